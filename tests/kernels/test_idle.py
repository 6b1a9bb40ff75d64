"""Between passes nothing spins: threads of an idle process use no processor time.

CPU time is not a matter of how fast or how busy the machine is. A spinning thread takes a second of it in a
second; what is allowed here covers the short watch after the last chunk.
"""

from __future__ import annotations

import resource
import time

import numpy as np

from paceline.kernels import _native, threads

IDLE_SECONDS, MOST_CPU_SECONDS = 1.0, 0.1


def cpu_seconds() -> float:
    """Return the processor time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def test_an_idle_pool_uses_no_processor_time(restore_native_threads: None) -> None:
    _native.set_num_threads(4)
    counts = np.zeros(1000, np.int64)
    for _ in range(100):
        _native.count_chunks(counts)
    threads.run_parts(lambda _: None, 4)
    before = cpu_seconds()
    time.sleep(IDLE_SECONDS)
    assert cpu_seconds() - before < MOST_CPU_SECONDS


def test_a_spinning_thread_would_be_noticed() -> None:
    """The measure counts: work of that length takes more than is allowed."""
    before = cpu_seconds()
    while cpu_seconds() - before < 2 * MOST_CPU_SECONDS:
        pass
    assert cpu_seconds() - before > MOST_CPU_SECONDS

"""The one pool of threads that all CPU work is spread over.

PyTorch's own threading is switched off: MKL's sums change with its thread count, and two runtimes that spin
on the same few cores cost more than they bring. Work is cut into parts whose results do not depend on which
thread computes them, so the pool's size never changes a number.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch

from paceline.errors import ConfigError
from paceline.kernels.native import native

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_OF_PROCESS = Path("/proc/self/cgroup")

_lock = threading.Lock()
_num_threads: int | None = None
_executor: ThreadPoolExecutor | None = None


def available_cpus(cgroup_root: Path = CGROUP_ROOT, cgroup_of_process: Path = CGROUP_OF_PROCESS) -> int:
    """Return how many CPUs this process may use: its affinity, within the quota of its cgroup."""
    try:
        num_cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        num_cpus = os.cpu_count() or 1
    quotas = _cgroup_quotas(cgroup_root, cgroup_of_process)
    return max(1, math.floor(min([num_cpus, *quotas])))


def _cgroup_quotas(root: Path, of_process: Path) -> Iterator[float]:
    """Yield the quotas, in CPUs, of this process's cgroup and all above it, where there are any."""
    for files, path in _cgroup_paths(of_process):
        # In a container its own cgroup is the root of what is mounted, whatever path it is said to have.
        for folder in (path, *path.parents):
            try:
                words = " ".join((root / mount / folder / name).read_text() for mount, name in files).split()
                quota, period = float(words[0]), float(words[1])
            except (OSError, ValueError, IndexError):
                continue  # "max", or no such file
            if quota > 0 and period > 0:
                yield quota / period


def _cgroup_paths(of_process: Path) -> Iterator[tuple[list[tuple[str, str]], Path]]:
    """Yield where quotas of cgroup v2, then v1, are: (mount, file) each, and the path of this process."""
    try:
        lines = [line.split(":", 2) for line in of_process.read_text().splitlines()]
    except OSError:
        lines = []
    unified = next((path for _, controllers, path in lines if not controllers), "/")
    cpu = next((path for _, controllers, path in lines if "cpu" in controllers.split(",")), "/")
    yield [("", "cpu.max")], Path(unified.lstrip("/"))
    yield [("cpu", "cpu.cfs_quota_us"), ("cpu", "cpu.cfs_period_us")], Path(cpu.lstrip("/"))


def num_threads() -> int:
    """Return the number of threads that work is spread over, the caller's included."""
    with _lock:
        return _effective_threads()


def _effective_threads() -> int:
    return available_cpus() if _num_threads is None else _num_threads


def set_num_threads(count: int | None) -> None:
    """Spread work over `count` threads from now on; none goes back to the CPUs there are.

    Raises:
        ConfigError: `count` is below 1.
    """
    global _executor, _num_threads
    if count is not None and count < 1:
        raise ConfigError(
            given=f"{count} threads", expected="at least 1", remedy="Give a positive number of threads"
        )
    with _lock:
        _num_threads = count
        old, _executor = _executor, None
        if native is not None:
            native.set_num_threads(_effective_threads())
    if old is not None:
        old.shutdown(wait=False)


def _submit(work: Callable[[], None], most: int) -> list[Future[None]]:
    """Start `work` on the helpers there are beside the caller, on `most` of them at most."""
    global _executor
    # Under the lock, since an executor that another thread has just replaced takes no more work.
    with _lock:
        num_helpers = _effective_threads() - 1
        if num_helpers == 0 or most < 1:
            return []
        if _executor is None:
            _executor = ThreadPoolExecutor(num_helpers, thread_name_prefix="paceline")
        return [_executor.submit(work) for _ in range(min(num_helpers, most))]


def use_one_torch_thread() -> None:
    """Make PyTorch compute on the calling thread alone; cheap where that is so already."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def run_parts(work: Callable[[int], None], num_parts: int) -> None:
    """Call `work(0)` .. `work(num_parts - 1)`, in any order, on the pool and the calling thread.

    An exception in a part is raised here once all threads have stopped; parts not yet begun are dropped.
    """
    use_one_torch_thread()
    counter = itertools.count()  # its next() is atomic, so threads take parts without a lock
    failed = threading.Event()

    @torch.inference_mode()  # a mode of the thread; parts write to tensors that were made under it
    def take_parts() -> None:
        use_one_torch_thread()
        while not failed.is_set() and (part := next(counter)) < num_parts:
            try:
                work(part)
            except BaseException:
                failed.set()
                raise

    futures = _submit(take_parts, num_parts - 1)
    try:
        take_parts()
    finally:
        # A helper that has not begun finds nothing left to do; waiting for it would cost time, and for ever
        # if this is a helper itself.
        begun = [future for future in futures if not future.cancel()]
        wait(begun)
    for future in begun:
        future.result()

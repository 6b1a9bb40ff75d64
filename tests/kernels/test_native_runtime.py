"""The native pool runs every chunk once, also after a fork; instruction sets are chosen by name."""

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from paceline.kernels import _native


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    isa, count = _native.isa(), _native.num_threads()
    yield
    _native.set_isa(isa)
    _native.set_num_threads(count)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_chunk_runs_once(count: int, nested: bool) -> None:
    _native.set_num_threads(count)
    assert _native.num_threads() == count
    for size in (0, 1, 2, 3, 100, 1000):
        counts = np.zeros(size, np.int64)
        for _ in range(50):
            _native.count_chunks(counts, nested)
        assert (counts == 50).all()


def test_calls_from_several_threads_do_not_mix() -> None:
    _native.set_num_threads(3)
    all_counts = [np.zeros(7 * (i + 1), np.int64) for i in range(4)]

    def call(counts: np.ndarray) -> None:
        for _ in range(500):
            _native.count_chunks(counts)

    callers = [threading.Thread(target=call, args=(counts,)) for counts in all_counts]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((counts == 500).all() for counts in all_counts)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    _native.set_num_threads(3)
    counts = np.zeros(64, np.int64)
    _native.count_chunks(counts)
    child = os.fork()
    if child == 0:
        _native.count_chunks(counts)
        os._exit(0 if _native.num_threads() == 3 and (counts == 2).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="0 threads; at least 1"):
        _native.set_num_threads(0)


def test_each_instruction_set_of_the_machine_can_be_chosen() -> None:
    isas = _native.isas()
    assert isas[0] == "portable"
    assert _native.isa() in isas
    for name in isas:
        _native.set_isa(name)
        assert _native.isa() == name


def test_an_instruction_set_that_is_missing_is_an_error_that_names_the_others() -> None:
    before = _native.isa()
    with pytest.raises(ValueError, match=r"instruction set sse9 is not available; this machine has portable"):
        _native.set_isa("sse9")
    assert _native.isa() == before

"""The pool: every part once, errors come back, and the machine's limits are respected."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline.errors import ConfigError
from paceline.kernels import threads


@pytest.fixture(autouse=True)
def _default_pool() -> Iterator[None]:
    yield
    threads.set_num_threads(None)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("num_parts", [0, 1, 2, 100])
def test_every_part_runs_once(count: int, num_parts: int) -> None:
    threads.set_num_threads(count)
    assert threads.num_threads() == count
    seen: list[int] = []
    threads.run_parts(seen.append, num_parts)
    assert sorted(seen) == list(range(num_parts))


def test_parts_run_side_by_side_with_one_torch_thread_each() -> None:
    threads.set_num_threads(2)
    barrier = threading.Barrier(2, timeout=10)
    torch_threads: list[int] = []

    def work(_: int) -> None:
        barrier.wait()  # passes only if two threads are here at once
        torch_threads.append(torch.get_num_threads())

    threads.run_parts(work, 2)
    assert torch_threads == [1, 1]


def test_torch_threads_set_elsewhere_are_put_back_to_one() -> None:
    torch.set_num_threads(2)
    counts: list[int] = []
    threads.run_parts(lambda _: counts.append(torch.get_num_threads()), 1)
    assert counts == [1]


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_in_a_part_is_raised(count: int) -> None:
    threads.set_num_threads(count)

    def work(part: int) -> None:
        if part == 5:
            raise ZeroDivisionError("part five")

    with pytest.raises(ZeroDivisionError, match="part five"):
        threads.run_parts(work, 50)
    seen: list[int] = []
    threads.run_parts(seen.append, 3)  # the pool still works
    assert sorted(seen) == [0, 1, 2]


def test_a_part_may_have_parts_of_its_own() -> None:
    threads.set_num_threads(3)
    seen: list[tuple[int, int]] = []

    def outer(part: int) -> None:
        threads.run_parts(lambda inner: seen.append((part, inner)), 5)

    threads.run_parts(outer, 20)
    assert sorted(seen) == [(part, inner) for part in range(20) for inner in range(5)]


def test_the_pool_may_be_replaced_while_others_compute() -> None:
    """As when a second engine is loaded in the process of one that serves."""
    errors: list[BaseException] = []
    is_over = threading.Event()

    def compute() -> None:
        try:
            while not is_over.is_set():
                seen: list[int] = []
                threads.run_parts(seen.append, 20)
                assert sorted(seen) == list(range(20))
        except BaseException as error:
            errors.append(error)

    computing = threading.Thread(target=compute)
    computing.start()
    for number in range(1000):
        threads.set_num_threads(2 + number % 2)
    is_over.set()
    computing.join()
    assert not errors


def test_no_threads_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 threads; expected at least 1"):
        threads.set_num_threads(0)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_container_quota_limits_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], limit: int | None
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert threads.available_cpus(write(tmp_path, files), tmp_path / "none") == (limit or 64)


@pytest.mark.parametrize(
    ("membership", "quota"),
    [
        ("0::/system.slice/engine.service\n", {"system.slice/engine.service/cpu.max": "300000 100000"}),
        ("0::/system.slice/engine.service\n", {"system.slice/cpu.max": "300000 100000"}),
        (
            "0::/a/b\n",
            {"cpu.max": "900000 100000", "a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"},
        ),
        ("0::/docker/somewhere/else\n", {"cpu.max": "300000 100000"}),
        (
            "4:memory:/m\n1:cpu,cpuacct:/jobs/one\n0::/\n",
            {"cpu/jobs/one/cpu.cfs_quota_us": "300000", "cpu/jobs/one/cpu.cfs_period_us": "100000"},
        ),
    ],
)
def test_the_tightest_quota_of_the_own_cgroup_and_those_above_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, quota: dict[str, str]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    write(tmp_path, {**quota, "membership": membership})
    assert threads.available_cpus(tmp_path, tmp_path / "membership") == 3

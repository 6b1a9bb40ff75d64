from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.memory import available_memory
from paceline.errors import ConfigError


def machine(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    1000 kB\n")
    (tmp_path / "memory").mkdir()


def test_without_a_limit_it_is_what_the_machine_has(tmp_path: Path) -> None:
    machine(tmp_path)
    assert available_memory(tmp_path, tmp_path) == 1000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert available_memory(tmp_path, tmp_path) == 1000 * 1024


def test_a_cgroup_limit_counts_less_what_is_used_and_cannot_be_given_back(tmp_path: Path) -> None:
    machine(tmp_path)
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("300000\n")
    assert available_memory(tmp_path, tmp_path) == 200_000
    (tmp_path / "memory.stat").write_text("anon 200000\ninactive_file 100000\n")
    assert available_memory(tmp_path, tmp_path) == 300_000
    (tmp_path / "memory.current").write_text("900000\n")
    assert available_memory(tmp_path, tmp_path) == 0


def test_the_older_kind_of_cgroup_counts_too(tmp_path: Path) -> None:
    machine(tmp_path)
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("400000\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("100000\n")
    (tmp_path / "memory" / "memory.stat").write_text("total_inactive_file 50000\n")
    assert available_memory(tmp_path, tmp_path) == 350_000


def test_a_system_that_does_not_say_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kv-memory"):
        available_memory(tmp_path, tmp_path)

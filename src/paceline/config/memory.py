"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ConfigError

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Return the bytes that can be allocated now: free on the machine, and left under the cgroup's limit."""
    bounds = [_meminfo_available(proc / "meminfo")]
    bounds += [
        # Pages of files are given back under pressure, the model files' own first of all.
        limit - used + _field(cgroup / stat_file, file_pages)
        for limit_file, used_file, stat_file, file_pages in (
            ("memory.max", "memory.current", "memory.stat", "inactive_file"),
            (
                "memory/memory.limit_in_bytes",
                "memory/memory.usage_in_bytes",
                "memory/memory.stat",
                "total_inactive_file",
            ),
        )
        if (limit := _number(cgroup / limit_file)) is not None
        and (used := _number(cgroup / used_file)) is not None
    ]
    return max(0, min(bounds))


def _meminfo_available(path: Path) -> int:
    kilobytes = _field(path, "MemAvailable:")
    if not kilobytes:
        raise ConfigError(
            given=f"{path}, which does not say how much memory is free",
            expected="a Linux system, or a size",
            remedy="Give kv_memory (--kv-memory) a size such as 2GiB",
        )
    return kilobytes * 1024


def _field(path: Path, name: str) -> int:
    """Return the number behind a name at the beginning of a line; 0 if there is no such line or file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)


def _number(path: Path) -> int | None:
    """Return the number in a file; None if there is no such file or it says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None

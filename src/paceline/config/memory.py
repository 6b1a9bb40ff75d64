"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Return the bytes that can be allocated now: free on the machine, and left under the cgroup's limit."""
    bounds = [_meminfo_available(proc / "meminfo")]
    bounds += [
        limit - used
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
        )
        if (limit := _number(cgroup / limit_file)) is not None
        and (used := _number(cgroup / used_file)) is not None
    ]
    return max(0, min(bounds))


def _meminfo_available(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path} has no MemAvailable line")


def _number(path: Path) -> int | None:
    """Return the number in a file; None if there is no such file or it says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None

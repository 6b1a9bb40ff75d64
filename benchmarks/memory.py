"""Resident memory that two loaded models take, over their files' size: one number to hold a build to.

    python benchmarks/memory.py [--target NAME] [--draft NAME] [--json]

A process of its own loads both as the engine does, KV memory reserved and not touched. Resident memory is
what the kernel reports (VmRSS), pages of mapped files included; it is also split into memory of the process's
own (RssAnon) and pages of files (RssFile). From it goes what `import paceline` alone takes; PyTorch, the
tokenizers and all else that loading imports do count, and `imported` says how much that is. Linux only.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

FIELDS = ("VmRSS", "RssAnon", "RssFile", "VmHWM")
MIB = 1 << 20


def status() -> dict[str, int]:
    """Return this process's memory in bytes, as the kernel counts it."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    values = {line.split(":")[0]: line.split() for line in lines}
    return {name: int(values[name][1]) * 1024 for name in FIELDS}


def measure(target: str, draft: str) -> dict[str, object]:
    """Load both models in this process and return its memory at each step."""
    import paceline

    at_import = status()
    from paceline.llm import LLM

    imported = status()
    from paceline.models.download import resolve

    files = sum(resolve(name).stat().st_size for name in (target, draft))
    begin, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    with LLM(target, draft, kv_memory="64MiB", kernels="native"):
        seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
        loaded = status()
    return {
        "version": paceline.__version__,
        "files": files,
        "import_paceline": at_import,
        "imported": imported,
        "loaded": loaded,
        "ratio": (loaded["VmRSS"] - at_import["VmRSS"]) / files,
        "load_seconds": seconds,
        "load_cpu_seconds": after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime,
    }


def report(found: dict[str, object]) -> None:
    for name in ("import_paceline", "imported", "loaded"):
        memory = found[name]
        assert isinstance(memory, dict)
        print(f"{name:16}", "  ".join(f"{field} {memory[field] / MIB:7.1f} MiB" for field in FIELDS))
    files = found["files"]
    assert isinstance(files, int)
    print(f"{'both files':16} {files / MIB:.1f} MiB")
    print(
        f"loaded in {found['load_seconds']:.1f} s ({found['load_cpu_seconds']:.1f} s of processor time); "
        f"resident less `import paceline`, over the files: {found['ratio']:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--json", action="store_true", help="one object, bytes and seconds")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.target, arguments.draft)))
        return
    # A fresh interpreter, in which nothing has been imported yet.
    command = [sys.executable, __file__, "--child", "--target", arguments.target, "--draft", arguments.draft]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    if arguments.json:
        print(json.dumps(found))
    else:
        report(found)


if __name__ == "__main__":
    main()

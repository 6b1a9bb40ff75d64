"""An engine that waits for requests uses no processor time, and has one pool of threads.

A process of its own, so that no thread of another test is counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny_models import FAMILY_EXAMPLES

NUM_THREADS = 2
MOST_CPU_SECONDS = 0.1
"""In a second. A thread that spins would use all of it; what the last step leaves behind is far below."""

CHILD = """
import json, resource, sys, threading, time
from pathlib import Path
from paceline import LLM, SamplingParams

def num_threads():
    return len(list(Path("/proc/self/task").iterdir()))

def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

path, kernels, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
before = num_threads()
with LLM(path, path, kernels=kernels, threads=count, context_length=128, kv_memory="16MiB") as llm:
    llm.generate(["def the", "return in"], SamplingParams(max_tokens=12))
    added = num_threads() - before
    begin = cpu_seconds()
    time.sleep(1)
    print(json.dumps({"added": added, "cpu_seconds": cpu_seconds() - begin}))
"""


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_waits_without_work_on_one_pool(kernels: str, tmp_path: Path) -> None:
    path = replace(FAMILY_EXAMPLES["qwen2"], tensor_type="Q8_0").write(tmp_path / "tiny.gguf")
    command = [sys.executable, "-c", CHILD, str(path), kernels, str(NUM_THREADS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(result.stdout)
    # Both pools would be another NUM_THREADS - 1; PyTorch's own would be more. Two threads, since
    # the reference's pool starts a further one only when all that it has are at work.
    assert found["added"] == NUM_THREADS - 1
    assert found["cpu_seconds"] < MOST_CPU_SECONDS

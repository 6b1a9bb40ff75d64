"""The same step costs from llama.cpp's `llama-bench`, to take turns with."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError


class LlamaBench:
    """llama.cpp on the same file, rows and context; CPU only.

    It evaluates n tokens behind `context` others as a piece of a prompt: with logits for the last row alone,
    which is less than verification needs and Paceline is timed with.
    """

    def __init__(
        self, program: Path, model: Path, *, threads: int, context: int, rows: Sequence[int]
    ) -> None:
        self._command = [
            str(program), "--model", str(model), "--threads", str(threads), "--n-depth", str(context),
            "--n-prompt", ",".join(map(str, rows)), "--n-gen", "0", "--n-gpu-layers", "0", "--output", "json",
        ]  # fmt: skip
        self._samples: dict[int, list[float]] = {count: [] for count in rows}

    def round(self, repeats: int) -> None:
        """Time each number of rows `repeats` times.

        Raises:
            ConfigError: the program cannot be run, or does not answer as llama-bench does.
        """
        for test in self._run(repeats):
            self._samples[test["n_prompt"]] += [nanoseconds / 1e6 for nanoseconds in test["samples_ns"]]

    def ms(self) -> dict[int, float]:
        """Return the medians so far, by number of rows."""
        return {count: statistics.median(samples) for count, samples in self._samples.items() if samples}

    def _run(self, repeats: int) -> list[dict[str, Any]]:
        program = self._command[0]
        try:
            done = subprocess.run(
                [*self._command, "--repetitions", str(repeats)], capture_output=True, text=True, check=True
            )
            tests: list[dict[str, Any]] = json.loads(done.stdout)
            if any(test["n_prompt"] not in self._samples or not test["samples_ns"] for test in tests):
                raise ValueError("tests that were not asked for")
        except subprocess.CalledProcessError as error:
            last = (error.stderr or "").strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
            raise _unusable(program, last[0]) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _unusable(program, str(error)) from None
        return tests


def _unusable(program: str, reason: str) -> ConfigError:
    return ConfigError(
        given=f"{program} as llama-bench ({reason})",
        expected="llama.cpp's llama-bench, which runs the model and prints JSON",
        remedy="Give --vs-llama-bench the path of a llama-bench that was built for this machine",
    )

"""Portable kernels compile with no -march flags, and only files of an instruction set get any."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "native").glob("*_portable.cpp"))
# Without optimisation, which takes ten times as long and could only hide what is missing; builds have it.
FLAGS = ["-std=c++17", "-O0", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]


def compiler() -> str:
    found = [shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++") if name]
    return next(path for path in found if path)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_compiles_by_itself_without_machine_flags(source: Path, tmp_path: Path) -> None:
    command = [compiler(), *FLAGS, "-c", str(source), "-o", str(tmp_path / "out.o")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_family_of_kernels_has_a_portable_one() -> None:
    portable = {path.name.removesuffix("_portable.cpp") for path in SOURCES}
    assert portable == {path.name.split("_avx")[0] for path in (ROOT / "native").glob("*_avx*.cpp")}


def test_only_files_of_an_instruction_set_get_machine_flags() -> None:
    text = (ROOT / "CMakeLists.txt").read_text()
    flagged = re.findall(r"set_property\(SOURCE (\S+) PROPERTY COMPILE_OPTIONS ([^)]*)\)", text)
    assert {source for source, flags in flagged if "_FLAGS" in flags} == {
        "native/${kernels}_avx2.cpp",
        "native/${kernels}_avx512.cpp",
        "native/linear_avx2_vnni.cpp",
    }
    lines = [line for line in text.splitlines() if re.search(r"\s-m\w", line.split("#")[0])]
    assert lines
    assert all(line.strip().startswith("set(PACELINE_AVX") for line in lines)

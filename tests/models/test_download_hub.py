"""Downloads from a hub, against a local endpoint that breaks in every way we know."""

from __future__ import annotations

import hashlib
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.config.settings import Settings
from paceline.errors import DownloadError, HashMismatchError
from paceline.models import download_hub
from paceline.models.download_hub import MAX_FAILURES, fetch_from_hub
from paceline.models.presets import HubFile, PackageParts, Preset
from support.hub import FakeHub
from support.progress import RecordingProgress

CONTENT = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HUB = HubFile("someone/a-model", "model.gguf")
PRESET = Preset("a-model", "", SHA256, len(CONTENT), "none", HUB, PackageParts("none", "0", 1, "x"))


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub("/someone/a-model/resolve/main/model.gguf", CONTENT).running() as hub:
        yield hub


class _Waits(list[float]):
    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def _fetch(hub: FakeHub, tmp_path: Path, token: str | None = None) -> tuple[Path, str, RecordingProgress]:
    progress = RecordingProgress()
    settings = Settings(tmp_path, hf_endpoint=hub.endpoint, hf_token=token)
    path, digest = fetch_from_hub(PRESET, HUB, tmp_path / "hub", settings, progress, wait=_Waits())
    return path, digest, progress


def test_a_file_comes_whole_with_its_hash(hub: FakeHub, tmp_path: Path) -> None:
    path, digest, progress = _fetch(hub, tmp_path)
    assert path.read_bytes() == CONTENT
    assert digest == SHA256
    assert progress.bytes == {"a-model": len(CONTENT)}
    assert "fetching a-model from the hub (someone/a-model)" in progress.text


def test_a_broken_connection_goes_on_where_it_broke(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [100_000, 50_000]
    path, digest, progress = _fetch(hub, tmp_path)
    assert path.read_bytes() == CONTENT
    assert digest == SHA256
    ranges = [wanted for method, _, wanted in hub.requests if method == "GET"]
    assert ranges == [None, "bytes=100000-", "bytes=150000-"]
    assert progress.bytes["a-model"] == len(CONTENT)
    assert progress.text.count("connection broke") == 2


def test_a_later_run_goes_on_where_an_earlier_one_stopped(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [120_000, *[0] * MAX_FAILURES]
    with pytest.raises(DownloadError):
        _fetch(hub, tmp_path)
    hub.requests.clear()
    path, digest, progress = _fetch(hub, tmp_path)
    assert path.read_bytes() == CONTENT
    assert digest == SHA256
    assert [wanted for method, _, wanted in hub.requests if method == "GET"] == ["bytes=120000-"]
    assert progress.bytes["a-model"] == len(CONTENT)


def test_another_version_of_the_file_is_never_joined_to_the_old_one(hub: FakeHub, tmp_path: Path) -> None:
    hub.content = bytes(len(CONTENT))
    hub.cuts = [120_000, *[0] * MAX_FAILURES]
    with pytest.raises(DownloadError):
        _fetch(hub, tmp_path)
    hub.content, hub.etag = CONTENT, "v2"
    path, digest, _ = _fetch(hub, tmp_path)
    assert path.read_bytes() == CONTENT
    assert digest == SHA256


def test_a_server_without_ranges_starts_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [100_000]
    hub.honours_range = False
    path, digest, progress = _fetch(hub, tmp_path)
    assert path.read_bytes() == CONTENT
    assert digest == SHA256
    assert progress.bytes["a-model"] == len(CONTENT)


def test_a_connection_that_always_breaks_is_given_up_with_the_reason(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [0] * MAX_FAILURES
    with pytest.raises(DownloadError, match="the server closed it early"):
        _fetch(hub, tmp_path)


def test_wrong_bytes_show_in_the_hash(hub: FakeHub, tmp_path: Path) -> None:
    hub.content = b"x" + CONTENT[1:]
    _, digest, _ = _fetch(hub, tmp_path)
    assert digest == hashlib.sha256(hub.content).hexdigest() != SHA256


def test_a_hash_announced_beforehand_saves_the_download(hub: FakeHub, tmp_path: Path) -> None:
    hub.etag = "f" * 64
    with pytest.raises(HashMismatchError) as caught:
        _fetch(hub, tmp_path)
    assert "f" * 64 in str(caught.value)
    assert SHA256 in str(caught.value)
    assert [method for method, _, _ in hub.requests] == ["HEAD"]


def test_a_file_that_is_not_there_is_an_error_with_its_name(hub: FakeHub, tmp_path: Path) -> None:
    hub.path = "/elsewhere"
    with pytest.raises(DownloadError, match=r"someone/a-model/model\.gguf .*404"):
        _fetch(hub, tmp_path)


def test_the_token_goes_to_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    _fetch(hub, tmp_path, token="secret")
    assert {authorization for _, authorization, _ in hub.requests} == {"Bearer secret"}


@pytest.mark.parametrize("methods", [("HEAD", "GET"), ("GET",)])
def test_the_token_goes_to_no_store_that_the_hub_points_to(
    hub: FakeHub, tmp_path: Path, methods: tuple[str, ...]
) -> None:
    with FakeHub("/blob", CONTENT).running() as store:
        hub.redirects = dict.fromkeys(methods, f"{store.endpoint}/blob")
        path, _, _ = _fetch(hub, tmp_path, token="secret")
    assert path.read_bytes() == CONTENT
    assert {authorization for _, authorization, _ in hub.requests} == {"Bearer secret"}
    assert [(method, authorization) for method, authorization, _ in store.requests] == [("GET", "")]


def test_nobody_listening_is_found_out_at_once(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
    settings = Settings(tmp_path, hf_endpoint=endpoint)
    with pytest.raises(DownloadError, match="the hub did not give") as caught:
        fetch_from_hub(PRESET, HUB, tmp_path / "hub", settings, RecordingProgress())
    assert "Check the network, HF_ENDPOINT and HF_TOKEN" in caught.value.remedy
    assert not (tmp_path / "hub").exists()


def test_a_hub_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_hub, "ANSWER_SECONDS", 0.3)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        settings = Settings(tmp_path, hf_endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(DownloadError):
            fetch_from_hub(PRESET, HUB, tmp_path / "hub", settings, RecordingProgress())
        assert time.monotonic() - began < 5.0

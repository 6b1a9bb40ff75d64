"""What a replica is started with, of what the whole is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from paceline.config.engine import EngineSettings
from paceline.config.server import CaptureSettings, ServeSettings

LEAST_CAPTURE_BYTES = 10_000


def of_replica(settings: ServeSettings, number: int, num_replicas: int) -> ServeSettings:
    """Return a replica's settings: files of its own, and neither the configuration file nor the database.

    Args:
        settings: those of the whole.
        number: the replica's.
        num_replicas: how many share what may be captured.
    """
    log = settings.engine.decision_log
    engine = settings.engine
    if log is not None:
        engine = engine.model_copy(update={"decision_log": own_file(log, number)})
    capture = settings.capture
    if capture is not None:
        capture = _own_capture(capture, number, num_replicas)
    server = settings.server.model_copy(update={"state_path": None})
    return replace(settings, engine=engine, server=server, capture=capture, path=None, read_again=None)


def with_share(settings: ServeSettings, threads: int, kv_memory: int | None) -> ServeSettings:
    """Return settings whose engines compute with so many threads, and take so many bytes of KV memory unless
    they say otherwise themselves."""
    engine: EngineSettings = settings.engine
    update: dict[str, object] = {"threads": threads}
    if engine.kv_memory is None and kv_memory is not None:
        update["kv_memory"] = kv_memory
    return replace(settings, engine=engine.model_copy(update=update))


def own_file(path: Path, number: int) -> Path:
    """Return a replica's own file beside the one that is named: NAME.jsonl becomes NAME.0.jsonl."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def _own_capture(capture: CaptureSettings, number: int, num_replicas: int) -> CaptureSettings:
    most = max(LEAST_CAPTURE_BYTES, capture.max_bytes // num_replicas)
    return capture.model_copy(update={"path": own_file(capture.path, number), "max_bytes": most})

"""The configuration's keys as a JSON schema: for editors, and for whoever asks what a key means."""

from __future__ import annotations

from typing import Any

from paceline.config.engine import EngineSettings
from paceline.config.routes import RouteSettings
from paceline.config.server import CaptureSettings, ServerSettings
from paceline.config.vllm import VllmSettings

_SWITCH = {"enum": ["auto", "on", "off", True, False]}
_SIZE = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}


def config_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a configuration file, each key with its meaning."""
    kinds = (EngineSettings, ServerSettings, RouteSettings, CaptureSettings, VllmSettings)
    engine, server, route, capture, vllm = schemas = [kind.model_json_schema() for kind in kinds]
    definitions = {name: one for schema in schemas for name, one in schema.pop("$defs", {}).items()}
    definitions["RouteSettings"] = route
    # What validators take besides: YAML's own booleans, sizes in words, one name for a list of one.
    _widen(route["properties"], "speculation", _SWITCH)
    _widen(engine["properties"], "speculation", _SWITCH)
    _widen(engine["properties"], "kv_memory", _SIZE)
    _widen(server["properties"], "max_body_bytes", _SIZE)
    _widen(route["properties"], "drafters", {"type": ["array", "string"], "items": {"type": "string"}})
    _widen(capture["properties"], "max_bytes", _SIZE)
    capture["description"] = (
        "Sampled requests and answers in a file; nothing is written where this is not given."
    )
    vllm["description"] = "For `paceline vllm` alone: the same routes on vLLM."
    _widen(vllm["properties"], "flags", {"type": "array", "items": {"type": ["string", "number"]}})
    server["description"] = "Where to listen, who may ask, and how much."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Paceline configuration",
        "type": "object",
        "additionalProperties": False,
        "required": engine["required"],
        "properties": {**engine["properties"], "server": server, "capture": capture, "vllm": vllm},
        "$defs": definitions,
    }


def _widen(properties: dict[str, Any], name: str, form: dict[str, Any]) -> None:
    kept = {key: properties[name][key] for key in ("default", "description") if key in properties[name]}
    properties[name] = {**form, **kept}

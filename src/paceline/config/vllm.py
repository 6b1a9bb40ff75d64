"""The `vllm` part of the configuration: what `paceline vllm` needs beside the keys of every engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from paceline.config.section import Section


class VllmSettings(Section):
    """Read by `paceline vllm` alone."""

    where: ClassVar[str] = "vllm"

    model: str | None = Field(None, min_length=1)
    """What vLLM loads: a folder of safetensors, or a name of the hub; not given, `target`. Presets are GGUF
    files, which vLLM does not load, so beside a preset it has to be given."""
    draft: str | None = Field(None, min_length=1)
    """The same, of the model that proposes; not given, `draft`."""
    speculative: Mapping[str, Any] = Field(default_factory=dict)
    """Keys of vLLM's --speculative-config, over those that follow from `draft` and the routes: {method:
    eagle3, model: ...}, {prompt_lookup_min: 2, prompt_lookup_max: 5}."""
    additional_config: Mapping[str, Any] = Field(default_factory=dict)
    """Keys of vLLM's --additional-config beside Paceline's own, as some platforms want them."""
    flags: tuple[str, ...] = ()
    """Further flags, as on vLLM's command line: ["--tensor-parallel-size", "2"]."""
    bridge: Path | None = None
    """Folder by which the serving process and the engine cores hear of each other; not given, beside the
    configuration, as `NAME.vllm`. Engine cores on other machines need it on a file system that all share."""

    @field_validator("flags", mode="before")
    @classmethod
    def _numbers_are_words(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return tuple(str(one) if isinstance(one, int | float) else one for one in value)

    @field_validator("additional_config")
    @classmethod
    def _paceline_is_ours(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if "paceline" in value:
            raise ValueError("keys other than 'paceline', which `paceline vllm` writes itself")
        return value

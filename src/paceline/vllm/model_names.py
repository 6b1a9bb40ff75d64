"""Which names of models vLLM can load: folders of safetensors and names of the hub, where Paceline also knows
GGUF files and presets, which are GGUF files too."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ConfigError


def loadable(name: str, key: str) -> str:
    """Return what vLLM is to be told for a model of the configuration.

    Args:
        name: as the configuration has it.
        key: its key there, `target` or `draft`.

    Raises:
        ConfigError: it is a preset or a file; it says which key to set.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise _not_loadable(f"{key} {name!r}, a folder without config.json", key)
        return str(path.absolute())
    if path.is_file() or path.suffix == ".gguf":
        raise _not_loadable(f"{key} {name!r}, a single file", key)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        what = "no folder that is there" if "/" in name else "a preset, which is a GGUF file"
        raise _not_loadable(f"{key} {name!r}, {what}", key)
    return name


def as_named(name: str, key: str) -> str:
    """Return what vLLM is to be told for a model that was named for it: as it is, but a folder by its whole
    path.

    Args:
        name: as the configuration has it.
        key: its key there, `vllm.model` or `vllm.draft`.

    Raises:
        ConfigError: it is a folder that is not there, where vLLM would ask the hub, or not one of a model.
    """
    path = Path(name).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        problem = "a folder without config.json"
    elif name.startswith((".", "/", "~")) and not path.exists():
        problem = "no folder that is there"
    else:
        return str(path.absolute()) if path.exists() else name
    raise ConfigError(
        given=f"{key} {name!r}, {problem}",
        expected="a folder of safetensors with config.json, or ORGANISATION/NAME of the hub",
        remedy="Correct the path; one that is not absolute counts from the folder that the command is run in",
    )


def _not_loadable(given: str, key: str) -> ConfigError:
    ours = "model" if key == "target" else "draft"
    return ConfigError(
        given=given,
        expected="what vLLM loads: a folder of safetensors with config.json, or ORGANISATION/NAME of the hub",
        remedy=f"Name the same model in that form as {ours} below vllm; {key} stays for `paceline serve`",
    )

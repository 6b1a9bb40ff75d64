"""The rotary embeddings that a `config.json` describes.

Both ways of writing them are read: `rope_theta` with `rope_scaling`, and `rope_parameters` of transformers 5,
where each kind of layer may have its own.
"""

from __future__ import annotations

import logging

from paceline.models.decoder_config import Rotary, unsupported_feature
from paceline.models.json_keys import JsonKeys
from paceline.models.rotary_scaling import Llama3, Yarn, yarn_attention_factor

logger = logging.getLogger(__name__)

GLOBAL, LOCAL = "full_attention", "sliding_attention"

_ORIGINAL = "original_max_position_embeddings"
_GENERAL_KEYS = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}
_KEYS_OF = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL},
    "yarn": {
        "factor",
        _ORIGINAL,
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}


def read_rotary(keys: JsonKeys, kind: str, default_base: float) -> Rotary:
    """Read the rotary embedding of one kind of layer.

    Args:
        keys: of the whole `config.json`.
        kind: `GLOBAL` or `LOCAL`.
        default_base: where the file gives none.

    Raises:
        UnsupportedModelError: scaling of a kind that the decoder lacks.
        ModelFileError: a parameter is missing or makes no sense.
    """
    parameters = _parameters(keys, kind)
    base = parameters.number("rope_theta", default_base)
    name = parameters.get("rope_type", parameters.get("type", "default"))
    if not isinstance(name, str) or name not in _KEYS_OF:
        raise unsupported_feature(f"rotary scaling {name!r} in {keys.path}", f"one of {', '.join(_KEYS_OF)}")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise unsupported_feature(f"partial rotary embedding in {keys.path}", "whole heads")
    if unknown := sorted(set(parameters.values) - _GENERAL_KEYS - _KEYS_OF[name]):
        logger.warning("%s: rotary scaling %r has no %s; ignored", keys.path, name, ", ".join(unknown))
    if name == "linear":
        return Rotary(base, linear_factor=parameters.number("factor"))
    if name == "llama3":
        return Rotary(base, scaling=_llama3(keys, parameters))
    return _yarn(keys, parameters, base) if name == "yarn" else Rotary(base)


def _parameters(keys: JsonKeys, kind: str) -> JsonKeys:
    """Return the parameters of one kind of layer, `rope_theta` among them where the file has it anywhere."""
    table = keys.table("rope_parameters")
    if table is None:
        table = keys.table("rope_scaling") or JsonKeys(keys.path, {})
    elif kind in table.values:
        nested = table.table(kind)
        if nested is None:
            raise table.wrong(kind, "an object")
        if kind == LOCAL:
            return nested
        table = nested
    return JsonKeys(keys.path, {"rope_theta": keys.get("rope_theta")} | dict(table.values))


def _original_length(keys: JsonKeys, parameters: JsonKeys) -> float:
    """As in transformers, one beside the parameters counts more, and the default is the length itself."""
    if keys.get(_ORIGINAL) is not None:
        return keys.number(_ORIGINAL)
    return parameters.number(_ORIGINAL, keys.number("max_position_embeddings"))


def _llama3(keys: JsonKeys, parameters: JsonKeys) -> Llama3:
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    if high <= low:
        raise parameters.wrong("high_freq_factor", f"a high_freq_factor above the low_freq_factor, {low}")
    return Llama3(parameters.number("factor"), low, high, _original_length(keys, parameters))


def _yarn(keys: JsonKeys, parameters: JsonKeys, base: float) -> Rotary:
    yarn = Yarn(
        factor=parameters.number("factor"),
        original_length=_original_length(keys, parameters),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        is_truncated=parameters.boolean("truncate", True),
    )
    if yarn.beta_fast <= yarn.beta_slow:
        raise parameters.wrong("beta_fast", f"a beta_fast above the beta_slow, {yarn.beta_slow}")
    if base <= 1:
        raise parameters.wrong("rope_theta", "a base above 1 for YaRN")
    names = ("mscale", "mscale_all_dim")  # zero is as good as absent
    scales = [parameters.number(name) if parameters.get(name) else 0.0 for name in names]
    attention_factor = parameters.number("attention_factor", yarn_attention_factor(yarn.factor, *scales))
    return Rotary(base, scaling=yarn, attention_factor=attention_factor)

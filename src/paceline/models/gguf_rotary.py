"""The rotary embedding that a GGUF file's metadata describe.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and `gguf.constants`. Llama 3's scaling is in
no key: the tensor `rope_freqs.weight` holds what it divides each frequency by.
"""

from __future__ import annotations

from paceline.models.decoder_config import Rotary, unsupported_feature
from paceline.models.gguf_keys import GGUFKeys
from paceline.models.rotary_scaling import Yarn, yarn_attention_factor

_KINDS = ("none", "linear", "yarn")


def read_rotary(keys: GGUFKeys, context_length: int) -> Rotary:
    """Read the rotary embedding of the global layers; the original length is `context_length` unless given.

    Raises:
        UnsupportedModelError: scaling of a kind that the decoder lacks.
        ModelFileError: a key makes no sense.
    """
    base = keys.number("rope.freq_base", 10_000.0)
    kind = keys.get("rope.scaling.type")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    attention_factor = keys.number("rope.scaling.attn_factor", 1.0)
    if kind == "none":
        return Rotary(base, attention_factor=attention_factor)
    if kind in (None, "linear") or (kind == "" and factor == 1.0):
        return Rotary(base, linear_factor=factor, attention_factor=attention_factor)
    if kind != "yarn":
        raise unsupported_feature(
            f"{keys.prefix}.rope.scaling.type = {kind!r} in {keys.path}", f"one of {', '.join(_KINDS)}"
        )
    return _yarn(keys, base, factor, attention_factor, context_length)


def _yarn(keys: GGUFKeys, base: float, factor: float, attention_factor: float, context_length: int) -> Rotary:
    yarn = Yarn(
        factor=factor,
        original_length=keys.number("rope.scaling.original_context_length", float(context_length)),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )
    if yarn.beta_fast <= yarn.beta_slow:
        expected = f"more than yarn_beta_slow, {yarn.beta_slow}"
        raise keys.wrong("rope.scaling.yarn_beta_fast", yarn.beta_fast, expected)
    if base <= 1:
        raise keys.wrong("rope.freq_base", base, "a base above 1 for YaRN")
    # The multiplier is what config.json calls mscale_all_dim; its mscale is 1 then.
    name = "rope.scaling.yarn_log_multiplier"
    default = yarn_attention_factor(factor, 1.0, keys.number(name) if keys.get(name) else 0.0)
    own = keys.number("rope.scaling.yarn_attn_factor", default)
    return Rotary(base, scaling=yarn, attention_factor=own * attention_factor)

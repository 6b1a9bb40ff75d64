"""Tiny random models of every family, as real GGUF files: vocabulary, chat template and all.

Weights are drawn so that logits spread over several units and depend on the whole context; the same arguments
always give the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.kernels.weights import sized_weights

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
WITHOUT_QUANTISER = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")
_WORDS = ("the", "def", "return", "in", "er", "on", "to", "he", "th", "an", "re", "de", "ret", "urn")


@dataclass(frozen=True)
class TinyModel:
    """What to write; sizes are GGUF's, families as in `general.architecture`."""

    family: str = "llama"
    seed: int = 0
    num_layers: int = 2
    hidden_size: int = 64
    intermediate_size: int = 96
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    context_length: int = 4096
    rope_base: float = 10_000.0
    sliding_window: int | None = None
    is_tied: bool = False
    rope_factors: Sequence[float] | None = None
    tensor_type: str = "F32"
    """Type of the matrices; norms and biases stay F32."""
    tensor_types: Mapping[str, str] = field(default_factory=dict)
    """Other types of those whose names end so."""
    chat_template: str | None = CHATML
    num_padding_tokens: int = 3
    drop_tensors: Collection[str] = ()
    drop_metadata: Collection[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """More keys, whole, or other values for the usual ones."""

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(path, self.family)
        for key, value in self._metadata().items():
            _add(writer, key, value)
        for name, values in self.tensors().items():
            if name in self.drop_tensors:
                continue
            type_name = self._type_of(name)
            if values.ndim == 1 or type_name == "F32":
                writer.add_tensor(name, values)
                continue
            tensor_type = gguf.GGMLQuantizationType[type_name]
            writer.add_tensor(name, _blocks(values, type_name), raw_dtype=tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _type_of(self, name: str) -> str:
        others = (other for end, other in self.tensor_types.items() if name.endswith(end))
        return next(others, self.tensor_type)

    def _metadata(self) -> dict[str, Any]:
        sizes = {
            "context_length": self.context_length,
            "embedding_length": self.hidden_size,
            "block_count": self.num_layers,
            "feed_forward_length": self.intermediate_size,
            "attention.head_count": self.num_heads,
            "attention.head_count_kv": self.num_kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": self.rope_base,
        }
        if self.sliding_window is not None:
            sizes["attention.sliding_window"] = self.sliding_window
        known = {"general.name": f"Tiny {self.family}"}
        known |= {f"{self.family}.{key}": value for key, value in sizes.items()}
        known |= self.vocabulary() | dict(self.metadata)
        return {key: value for key, value in known.items() if key not in self.drop_metadata}

    def vocabulary(self) -> dict[str, Any]:
        """Return the metadata of the tokenizer and the chat template."""
        vocabulary = _spm_vocabulary() if self.family == "gemma3" else _bpe_vocabulary()
        padding = [f"[PAD{number}]" for number in range(self.num_padding_tokens)]
        vocabulary["tokenizer.ggml.tokens"] += padding
        vocabulary["tokenizer.ggml.token_type"] += [5] * len(padding)  # unused
        if "tokenizer.ggml.scores" in vocabulary:
            vocabulary["tokenizer.ggml.scores"] += [-1e9] * len(padding)
        if self.chat_template is not None:
            vocabulary["tokenizer.chat_template"] = self.chat_template
        return vocabulary

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return len(self.vocabulary()["tokenizer.ggml.tokens"])

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all tensors in float32 by GGUF name, row-major."""
        rng = np.random.default_rng(self.seed)

        def matrix(rows: int, columns: int) -> np.ndarray:
            return (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

        def norm(size: int) -> np.ndarray:
            return (1 + 0.2 * rng.standard_normal(size)).astype(np.float32)

        hidden, inner = self.hidden_size, self.intermediate_size
        query_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        tensors = {"token_embd.weight": matrix(self.vocab_size, hidden)}
        if not self.is_tied:
            tensors["output.weight"] = 2 * matrix(self.vocab_size, hidden)
        tensors["output_norm.weight"] = norm(hidden)
        if self.rope_factors is not None:
            tensors["rope_freqs.weight"] = np.asarray(self.rope_factors, np.float32)
        for layer in range(self.num_layers):
            block = {
                "attn_norm.weight": norm(hidden),
                "attn_q.weight": 2 * matrix(query_size, hidden),
                "attn_k.weight": 2 * matrix(kv_size, hidden),
                "attn_v.weight": matrix(kv_size, hidden),
                "attn_output.weight": matrix(hidden, query_size),
                "ffn_norm.weight": norm(hidden),
                "ffn_gate.weight": matrix(inner, hidden),
                "ffn_up.weight": matrix(inner, hidden),
                "ffn_down.weight": matrix(hidden, inner),
            }
            if self.family == "qwen2":
                sizes = {"q": query_size, "k": kv_size, "v": kv_size}
                block |= {f"attn_{part}.bias": norm(size) - 1 for part, size in sizes.items()}
            if self.family in ("qwen3", "gemma3"):
                block |= {
                    "attn_q_norm.weight": norm(self.head_dim),
                    "attn_k_norm.weight": norm(self.head_dim),
                }
            if self.family == "gemma3":
                block |= {"post_attention_norm.weight": norm(hidden), "post_ffw_norm.weight": norm(hidden)}
            tensors |= {f"blk.{layer}.{name}": values for name, values in block.items()}
        return tensors


def _blocks(values: np.ndarray, type_name: str) -> np.ndarray:
    """Quantise; types for which the package has no quantiser get random values of the same deviation."""
    if type_name not in WITHOUT_QUANTISER:
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[type_name])
    seed = zlib.crc32(values.tobytes())
    return sized_weights(type_name, values.shape, float(values.std()), seed).reshape(len(values), -1)


def _bpe_vocabulary() -> dict[str, Any]:
    """Byte-level BPE as GPT-2's: 256 bytes, merges that spell a few words, then the special tokens."""
    byte_characters = [_byte_character(byte) for byte in range(256)]
    tokens, merges = list(byte_characters), []
    for word in _WORDS:
        for prefix in ("", "Ġ"):
            characters = list(prefix + word)
            built = characters[0]
            for character in characters[1:]:
                if built + character not in tokens:
                    merges.append(f"{built} {character}")
                    tokens.append(built + character)
                built += character
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    first = len(tokens)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens + specials,
        "tokenizer.ggml.token_type": [_NORMAL] * len(tokens) + [_CONTROL] * len(specials),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": first,
        "tokenizer.ggml.eos_token_id": first + 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def _byte_character(byte: int) -> str:
    """Return the printable character that stands for a byte in GPT-2's vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    return chr(256 + [other for other in range(256) if other not in printable].index(byte))


def _spm_vocabulary() -> dict[str, Any]:
    """Pieces as SentencePiece's: control tokens, 256 bytes, characters, a few words with scores."""
    controls = ["<pad>", "<eos>", "<bos>", "<unk>", "<|im_start|>", "<|im_end|>"]
    types = [_CONTROL, _CONTROL, _CONTROL, _UNKNOWN, _CONTROL, _CONTROL]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    characters = ["▁", *"etaoinshrdlucmfwypvbgkjqxz.,"]
    words: list[str] = []
    for word in _WORDS:
        for piece in (word, "▁" + word):
            words += [piece[:end] for end in range(2, len(piece) + 1) if piece[:end] not in words]
    tokens = [*controls, *byte_tokens, *words, *characters]
    scores = [0.0] * (len(controls) + len(byte_tokens))
    scores += [-float(rank) for rank in range(len(words) + len(characters))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types
        + [_BYTE] * len(byte_tokens)
        + [_NORMAL] * (len(words) + len(characters)),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


FAMILY_EXAMPLES: dict[str, TinyModel] = {
    "llama": TinyModel("llama", rope_factors=[1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 8.0]),
    "mistral": TinyModel("llama", sliding_window=24),
    "qwen2": TinyModel("qwen2", is_tied=True),
    "qwen3": TinyModel("qwen3", head_dim=32),
    "gemma3": TinyModel(
        "gemma3", num_layers=7, head_dim=32, num_kv_heads=1, sliding_window=24, is_tied=True, rope_base=1e6
    ),
}
"""One example a kind of decoder; "mistral" is Llama with a sliding window."""

K_QUANT_SIZES: dict[str, int] = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
"""Sizes in whole blocks of 256."""


def _scaled(family: str, **scaling: Any) -> TinyModel:
    keys = {f"{family}.rope.scaling.{key}": value for key, value in scaling.items()}
    return TinyModel(family, metadata=keys)


SCALED_ROTARY: dict[str, TinyModel] = {
    "linear": _scaled("llama", type="linear", factor=4.0),
    "llama 3": FAMILY_EXAMPLES["llama"],
    "yarn": _scaled("qwen2", type="yarn", factor=4.0, original_context_length=32),
    "yarn from the context length": _scaled("llama", type="yarn", factor=8.0),
    "yarn with every key": _scaled(
        "llama",
        type="yarn",
        factor=16.0,
        original_context_length=48,
        yarn_beta_fast=12.0,
        yarn_beta_slow=2.0,
        yarn_attn_factor=0.8,
        yarn_ext_factor=1.0,
    ),
    "yarn with a multiplier": _scaled(
        "qwen3", type="yarn", factor=4.0, original_context_length=64, yarn_log_multiplier=0.5
    ),
}
"""Models whose metadata, or whose tensor of divisors, stretch their rotary embedding."""

"""Native norm, gate, rotary, KV store and embedding against float64 NumPy, or exactly where it can be.

Bounds, relative to the result: a norm's sum of squares has up to 8960 terms in 64 running sums, so 140
roundings of 2^-24, halved by the root, and four more: 1e-5. A gate has an exponential within 1.1 units of the
last place and ten more roundings: 2e-6.
"""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from kernels.test_dequantize import random_blocks
from paceline.kernels import _native, operators, reference
from paceline.kernels.activations import aligned_groups, as_bytes, quantise
from paceline.kernels.attention import BLOCK_SIZE, LayerStore, rotary_angles, rotate_and_store
from paceline.kernels.dequantize import SUPPORTED_TYPES, dequantize_reference
from paceline.kernels.reference import rotary_frequencies


def bits(x: np.ndarray) -> np.ndarray:
    """Return floats as integers, so that equality means equal bits."""
    return x.view({2: np.uint16, 4: np.uint32}[x.itemsize])


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("size", [8, 16, 24, 72, 80, 128, 576, 896, 1536, 8960])
@pytest.mark.parametrize("num_rows", [0, 1, 3, 33])
def test_rms_norm(isa: str, size: int, num_rows: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.normal(0, 3, (num_rows, size)).astype(np.float32)
    weight = rng.normal(1, 0.2, size).astype(np.float32)
    out = operators.rms_norm(x, weight, 1e-6)
    expected = rms_norm(x, weight, 1e-6)
    assert (np.abs(out - expected) <= 1e-5 * np.abs(expected)).all()
    _native.rms_norm(x, weight, 1e-6, x)
    np.testing.assert_array_equal(bits(x), bits(out))


def test_rms_norm_of_extreme_rows(isa: str) -> None:
    x = np.zeros((4, 64), np.float32)
    x[1] = 1e-30
    x[2] = 1e18
    x[3, 5] = np.nan
    out = operators.rms_norm(x, np.ones(64, np.float32), 1e-6)
    assert (out[0] == 0).all()
    np.testing.assert_allclose(out[1], 1e-27, rtol=1e-5)
    np.testing.assert_allclose(out[2], 1.0, rtol=1e-5)
    assert np.isnan(out[3]).all()


@pytest.mark.parametrize("value", [1e-45, 1e-38, 1e30, 3e38, np.inf, -np.inf, np.nan])
def test_rms_norm_at_the_ends_of_the_range_is_the_references(isa: str, value: float) -> None:
    """Squares that overflow make zeros, infinities NaN; neighbours do not notice."""
    x = np.random.default_rng(0).normal(0, 1, (16, 64)).astype(np.float32)
    clean = operators.rms_norm(x, np.ones(64, np.float32), 1e-6)
    x[4] = np.float32(value)
    out = operators.rms_norm(x, np.ones(64, np.float32), 1e-6)
    expected = reference.rms_norm(torch.from_numpy(x), torch.ones(64), 1e-6).numpy()
    np.testing.assert_allclose(out[4], expected[4], rtol=1e-5, atol=1e-44)
    np.testing.assert_array_equal(bits(np.delete(out, 4, 0)), bits(np.delete(clean, 4, 0)))


def test_any_number_of_rows(isa: str) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.normal(0, 3, (512, 96)).astype(np.float32), rng.normal(1, 0.2, 96).astype(np.float32)
    normed = as_bytes(operators.rms_norm_quantise(x, weight, 1e-6))
    gates = as_bytes(operators.gated_quantise("silu", np.tile(x, (1, 2)), interleaved=True))
    for num_rows in (*range(34), 64, 128):
        few = x[:num_rows]
        np.testing.assert_array_equal(
            as_bytes(operators.rms_norm_quantise(few, weight, 1e-6)), normed[:num_rows]
        )
        few_gates = operators.gated_quantise("silu", np.tile(few, (1, 2)), interleaved=True)
        np.testing.assert_array_equal(as_bytes(few_gates), gates[:num_rows])


@pytest.mark.parametrize("size", [32, 64, 96, 576, 896, 1536])
def test_norm_and_quantise(isa: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.normal(0, 3, (5, size)).astype(np.float32)
    weight = rng.normal(1, 0.2, size).astype(np.float32)
    expected = quantise(operators.rms_norm(x, weight, 1e-6))
    groups = operators.rms_norm_quantise(x, weight, 1e-6)
    np.testing.assert_array_equal(as_bytes(groups), as_bytes(expected))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [32, 96, 288, 1536])
def test_gate_and_quantise(isa: str, activation: str, interleaved: bool, size: int) -> None:
    gate_up = np.random.default_rng(size).normal(0, 3, (3, 2 * size)).astype(np.float32)
    expected = quantise(operators.gated(activation, gate_up, interleaved=interleaved))
    groups = operators.gated_quantise(activation, gate_up, interleaved=interleaved)
    np.testing.assert_array_equal(as_bytes(groups), as_bytes(expected))


def gate(activation: str, g: np.ndarray, up: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        if activation == "silu":
            return g / (1 + np.exp(-g)) * up
        z = np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)
        return g / (1 + np.exp(-2 * z)) * up  # (1 + tanh z) / 2 without its cancellation


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [16, 32, 48, 4864])
def test_gate(isa: str, activation: str, interleaved: bool, size: int) -> None:
    rng = np.random.default_rng(size)
    g = rng.normal(0, 4, (3, size)).astype(np.float32)
    up = rng.normal(0, 2, (3, size)).astype(np.float32)
    g[0, :8] = [0.0, -0.0, 100.0, -100.0, 1e4, -1e4, 1e-30, -1e-30]
    joined = np.concatenate([g, up], axis=1)
    if interleaved:
        blocks = np.stack([g.reshape(3, -1, 16), up.reshape(3, -1, 16)], axis=2)
        joined = np.ascontiguousarray(blocks.reshape(3, 2 * size))
    out = operators.gated(activation, joined, interleaved=interleaved)
    expected = gate(activation, g.astype(np.float64), up.astype(np.float64))
    # Far below, the exponential stops at e^88, and what is left is nothing beside any other number. Between,
    # gelu's exponent is a float of up to 88, whose own rounding counts as much as the rest.
    assert (np.abs(out - expected) <= 1e-5 * np.abs(expected) + 1e-30).all()
    is_moderate = np.abs(g) < 2
    assert (np.abs(out - expected) <= 2e-6 * np.abs(expected))[is_moderate].all()


def test_gate_of_what_is_not_a_number(isa: str) -> None:
    joined = np.zeros((1, 32), np.float32)
    joined[0, 3] = np.nan
    for activation in ("silu", "gelu_tanh"):
        out = operators.gated(activation, joined, interleaved=False)
        assert np.flatnonzero(np.isnan(out[0])).tolist() == [3]


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("value", [1e-45, 1e-38, -1e-38, 88.0, -88.0, 3e38, np.inf])
def test_gates_at_the_ends_of_the_range_are_the_references(isa: str, activation: str, value: float) -> None:
    joined = np.ones((1, 64), np.float32)
    joined[0, :32] = np.float32(value)
    function = {"silu": reference.gated_silu, "gelu_tanh": reference.gated_gelu_tanh}[activation]
    gates, ups = torch.from_numpy(joined[:, :32].copy()), torch.from_numpy(joined[:, 32:].copy())
    out = operators.gated(activation, joined, interleaved=False)
    np.testing.assert_allclose(out, function(gates, ups), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 1003])
def test_add(isa: str, size: int) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, size)).astype(np.float32)
    x[:3], y[:3] = [np.inf, np.nan, 1e-45][:size], [1, 1, 1e-45][:size]
    expected = x + y
    _native.add(x, y)
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("has_factors", [False, True])
def test_rotary_angles(has_factors: bool) -> None:
    head_dim, positions = 128, np.array([0, 1, 511, 32767, 131071])
    factors = np.linspace(1, 32, 64).astype(np.float32) if has_factors else None
    frequencies = rotary_frequencies(head_dim, 5e5, 2.0, factors)
    cos, sin = rotary_angles(frequencies, positions)
    exact = 5e5 ** (-2 * np.arange(64) / head_dim) / 2.0 / (1.0 if factors is None else factors)
    np.testing.assert_allclose(frequencies, exact, rtol=1e-6)
    # The angle is a float; of it, cosine and sine are within a unit in the last place.
    angles = (positions[:, None].astype(np.float32) * frequencies).astype(np.float64)
    assert np.abs(cos - np.cos(angles)).max() < 1e-7
    assert np.abs(sin - np.sin(angles)).max() < 1e-7
    assert (cos[0] == 1).all()
    assert (sin[0] == 0).all()


class Store:
    """A small paged store full of NaN, and rows of q, k and v for it."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, num_rows: int) -> None:
        rng = np.random.default_rng(head_dim)
        self.heads, self.kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.store = LayerStore.allocate(5, num_kv_heads, head_dim)
        self.store.keys[:] = np.nan
        self.store.values[:] = np.nan
        self.qkv = rng.standard_normal((num_rows, (num_heads + 2 * num_kv_heads) * head_dim)).astype(
            np.float32
        )
        places = rng.permutation(5 * BLOCK_SIZE)[:num_rows].astype(np.int32)
        self.block_ids, self.slots = places // BLOCK_SIZE, places % BLOCK_SIZE
        self.cos, self.sin = rotary_angles(
            rotary_frequencies(head_dim, 1e6), rng.integers(0, 30000, num_rows)
        )
        self.norms = rng.normal(1, 0.1, (2, head_dim)).astype(np.float32)

    def split(self) -> list[np.ndarray]:
        heads = self.qkv.copy().reshape(len(self.qkv), self.heads + 2 * self.kv_heads, self.head_dim)
        return np.split(heads, [self.heads, self.heads + self.kv_heads], axis=1)

    def write(self, *, interleaved: bool = False, **norms: np.ndarray) -> None:
        rotate_and_store(
            self.qkv,
            (self.cos, self.sin),
            (self.block_ids, self.slots),
            self.store,
            interleaved=interleaved,
            norm_eps=1e-6,
            **norms,
        )

    def stored(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows' keys and values, [num_rows, num_kv_heads, head_dim] each."""
        return (
            self.store.keys[self.block_ids, :, :, self.slots],
            self.store.values[self.block_ids, :, self.slots],
        )

    def rotated(self, heads: np.ndarray, interleaved: bool) -> np.ndarray:
        """Turn as the reference does: the same products and sums, so equal bits are expected."""
        cos, sin, half = self.cos[:, None], self.sin[:, None], self.head_dim // 2
        first, second = (
            (heads[..., 0::2], heads[..., 1::2]) if interleaved else np.split(heads, [half], axis=-1)
        )
        turned = [first * cos - second * sin, second * cos + first * sin]
        return np.stack(turned, -1).reshape(heads.shape) if interleaved else np.concatenate(turned, -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(12, 2, 128), (9, 3, 64), (4, 1, 256), (3, 3, 80), (2, 1, 8), (5, 1, 24)])
@pytest.mark.parametrize("num_rows", [0, 1, 19])
def test_rotate_and_store(isa: str, shape: tuple[int, int, int], interleaved: bool, num_rows: int) -> None:
    store = Store(*shape, num_rows)
    q, k, v = store.split()
    store.write(interleaved=interleaved)
    np.testing.assert_array_equal(store.split()[0], store.rotated(q, interleaved))
    keys, values = store.stored()
    np.testing.assert_array_equal(keys, store.rotated(k, interleaved).astype(np.float16))
    np.testing.assert_array_equal(values, v.astype(np.float16))
    assert np.isfinite(store.store.keys).sum() == keys.size
    assert np.isfinite(store.store.values).sum() == values.size


def test_norms_of_heads(isa: str) -> None:
    store = Store(4, 2, 64, 7)
    q, k, v = store.split()
    store.write(q_norm=store.norms[0], k_norm=store.norms[1])
    expected_q = store.rotated(rms_norm(q, store.norms[0], 1e-6), False)
    expected_k = store.rotated(rms_norm(k, store.norms[1], 1e-6), False)
    np.testing.assert_allclose(store.split()[0], expected_q, atol=1e-5)
    keys, values = store.stored()
    np.testing.assert_allclose(keys, expected_k, rtol=2**-10, atol=1e-5)
    np.testing.assert_array_equal(values, v.astype(np.float16))


def test_halves_are_rounded_as_ieee_says(isa: str) -> None:
    """Every half, its neighbours' middles and their neighbours, zeros, infinities and NaN."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:] + halves[:-1]) / 2
    values = np.concatenate(
        [halves, middles, np.nextafter(middles, 0), np.nextafter(middles, np.float32(np.inf))]
    )
    special = np.array([np.inf, np.nan, 65519.9, 65520.0, 1e30, 1e-30], np.float32)
    values = np.concatenate([values, -values, special, -special])
    values = np.resize(values, (-(-len(values) // 128), 128))
    num_rows = len(values)
    store = LayerStore.allocate(-(-num_rows // BLOCK_SIZE), 1, 128)
    places = np.arange(num_rows, dtype=np.int32)
    rotate_and_store(
        np.concatenate([values, values, values], axis=1),
        rotary_angles(rotary_frequencies(128, 1e4), np.zeros(num_rows, np.int64)),
        (places // BLOCK_SIZE, places % BLOCK_SIZE),
        store,
        interleaved=False,
    )
    written = store.values.reshape(-1, 128)[:num_rows]
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    is_nan = np.isnan(values)
    np.testing.assert_array_equal(bits(written)[~is_nan], bits(expected)[~is_nan])
    assert np.isnan(written[is_nan]).all()


@pytest.mark.parametrize("tensor_type", SUPPORTED_TYPES)
def test_embedding_rows(tensor_type: str) -> None:
    block = SUPPORTED_TYPES[tensor_type]
    size = max(96, block.elements)
    table = random_blocks(tensor_type, 11 * size // block.elements)
    expected = dequantize_reference(tensor_type, table, (11, size))
    token_ids = np.array([3, 0, 10, 3], np.int32)
    out = operators.embedding_rows(tensor_type, table, token_ids, size)
    np.testing.assert_array_equal(out, expected[token_ids])
    with np.errstate(over="ignore"):
        scaled = expected[token_ids] * np.float32(25.25)
    out = operators.embedding_rows(tensor_type, table, token_ids, size, scale=25.25)
    np.testing.assert_array_equal(out, scaled)


def test_embedding_of_no_tokens() -> None:
    table = random_blocks("Q8_0", 6)
    assert operators.embedding_rows("Q8_0", table, np.empty(0, np.int32), 64).shape == (0, 64)


def test_close_to_the_pytorch_reference(isa: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3, (16, 1536)).astype(np.float32)
    weight = rng.normal(1, 0.2, 1536).astype(np.float32)
    expected = reference.rms_norm(torch.from_numpy(x), torch.from_numpy(weight), 1e-6)
    np.testing.assert_allclose(operators.rms_norm(x, weight, 1e-6), expected, rtol=2e-5)
    gates, ups = (torch.from_numpy(np.ascontiguousarray(part)) for part in np.split(x, 2, axis=1))
    for name, function in (("silu", reference.gated_silu), ("gelu_tanh", reference.gated_gelu_tanh)):
        # The reference's 1 + tanh cancels for negative gates.
        np.testing.assert_allclose(
            operators.gated(name, x, interleaved=False), function(gates, ups), rtol=1e-5, atol=2e-6
        )


def test_what_cannot_be_is_refused() -> None:
    x = np.zeros((2, 32), np.float32)
    with pytest.raises(ValueError, match="disagree in shape"):
        operators.rms_norm(x, np.ones(31, np.float32), 1e-6)
    with pytest.raises(ValueError, match="multiple of 8"):
        operators.rms_norm(x[:, :30].copy(), np.ones(30, np.float32), 1e-6)
    with pytest.raises(ValueError, match="activation relu; silu and gelu_tanh are supported"):
        operators.gated("relu", x, interleaved=False)
    with pytest.raises(ValueError, match=r"gate_up must be \[num_rows, 2 \* size\]"):
        operators.gated("silu", x[:, :24].copy(), interleaved=False)
    with pytest.raises(ValueError, match="out does not hold the rows' groups"):
        _native.rms_norm_quantise(x, np.ones(32, np.float32), 1e-6, as_bytes(aligned_groups(2, 96)))
    with pytest.raises(ValueError, match="not aligned to 64 bytes"):
        _native.rms_norm_quantise(
            x[:1], np.ones(32, np.float32), 1e-6, as_bytes(aligned_groups(2, 64)).reshape(-1)[1:129][None]
        )
    with pytest.raises(ValueError, match="a multiple of 32 values are quantised"):
        operators.gated_quantise("silu", x, interleaved=False)
    with pytest.raises(ValueError, match="disagree in size"):
        _native.add(x[0], x[1, :31])
    cos = np.zeros((1, 3), np.float32)
    with pytest.raises(ValueError, match=r"cos and sin must be \[num_rows, head_dim / 2\]"):
        _native.rotary_angles(np.ones(4, np.float32), 1.0, np.zeros(1, np.int64), cos, cos)
    store = Store(4, 2, 64, 7)
    with pytest.raises(ValueError, match="norms must be"):
        store.write(q_norm=np.ones(3, np.float32))
    store.slots[0] = BLOCK_SIZE
    with pytest.raises(ValueError, match="a block id or slot is out of range"):
        store.write()


def test_embedding_tables_that_do_not_fit_are_refused() -> None:
    table = gguf.quants.quantize(np.ones((4, 32), np.float32), gguf.GGMLQuantizationType.Q8_0).reshape(-1)
    with pytest.raises(ValueError, match="a token id is out of range"):
        operators.embedding_rows("Q8_0", table, np.array([0, 4], np.int32), 32)
    with pytest.raises(ValueError, match="whole blocks of its type"):
        operators.embedding_rows("Q8_0", table, np.array([0, 1], np.int32), 16)
    with pytest.raises(ValueError, match="the table must be whole rows"):
        operators.embedding_rows("Q8_0", table[:-1], np.array([0, 1], np.int32), 32)
    with pytest.raises(ValueError, match="unknown tensor type IQ1_S"):
        operators.embedding_rows("IQ1_S", table, np.array([0, 1], np.int32), 32)

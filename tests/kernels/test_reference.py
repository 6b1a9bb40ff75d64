"""The reference operators: their mathematics, and bits that do not depend on neighbours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from paceline.kernels import reference, threads
from paceline.kernels.reference import KV_BLOCK, ROW_TILE


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    threads.set_num_threads(None)


def in_tiles(rows: torch.Tensor) -> torch.Tensor:
    missing = reference.padded(len(rows), ROW_TILE) - len(rows)
    return torch.cat((rows, torch.zeros(missing, *rows.shape[1:])))


# (out, in): shapes of the presets' layers, and some that fill no whole chunk or vector.
SHAPES = [(2048, 1536), (1536, 8960), (960, 576), (576, 1536), (2560, 640), (130, 70), (1, 3)]


@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_linear(num_outputs: int, num_inputs: int) -> None:
    weight, bias = torch.randn(num_outputs, num_inputs), torch.randn(num_outputs)
    rows = torch.randn(64, num_inputs)
    expected = rows.double() @ weight.double().T
    whole = reference.linear(rows, weight)
    torch.testing.assert_close(whole.double(), expected, rtol=0, atol=2e-3 * num_inputs**0.5 / 40)
    torch.testing.assert_close(reference.linear(rows, weight, bias), whole + bias, rtol=0, atol=0)
    assert whole.is_contiguous()


@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_a_row_of_linear_is_the_same_anywhere(num_outputs: int, num_inputs: int) -> None:
    """For 1 to 33 and 64 rows, at every place, beside any others, on 1 to 3 threads."""
    weight, rows = torch.randn(num_outputs, num_inputs), torch.randn(64, num_inputs)
    alone = torch.cat([reference.linear(in_tiles(row[None]), weight)[:1] for row in rows])
    for num_rows in [*range(1, 34), 64]:
        threads.set_num_threads(num_rows % 3 + 1)
        assert torch.equal(reference.linear(in_tiles(rows[:num_rows]), weight)[:num_rows], alone[:num_rows])
    order = torch.randperm(64)
    assert torch.equal(reference.linear(rows[order], weight), alone[order])


@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_layout_does_not_matter(num_outputs: int, num_inputs: int) -> None:
    """The result of one tile has the layout of that of several, and so has what is made from it."""
    weight, rows = torch.randn(num_outputs, num_inputs), torch.randn(16, num_inputs)
    result = reference.linear(rows, weight)
    assert result.is_contiguous()
    assert torch.equal(reference.linear(rows.T.contiguous().T, weight), result)


@pytest.mark.parametrize(("hidden_size", "intermediate_size"), [(576, 1536), (640, 2048), (64, 96)])
def test_a_row_of_a_feed_forward_part_is_the_same_anywhere(hidden_size: int, intermediate_size: int) -> None:
    gate_up, down = (
        torch.randn(2 * intermediate_size, hidden_size),
        torch.randn(hidden_size, intermediate_size),
    )

    def compute(rows: torch.Tensor) -> torch.Tensor:
        normed = reference.rms_norm(rows, torch.ones(hidden_size), 1e-6)
        gate, up = reference.linear(normed, gate_up).chunk(2, dim=-1)
        return reference.linear(reference.gated_silu(gate, up), down)

    rows = torch.randn(48, hidden_size)
    whole = compute(rows)
    for start in range(0, 48, 7):
        piece = rows[start : start + 13]
        assert torch.equal(compute(in_tiles(piece))[: len(piece)], whole[start : start + 13])


@pytest.mark.parametrize("size", [640, 896, 1536, 50, 2])
def test_rms_norm(size: int) -> None:
    rows, weight = 3 * torch.randn(64, size), torch.randn(size)
    normed = reference.rms_norm(rows, weight, 1e-6)
    expected = torch.nn.functional.rms_norm(rows.double(), (size,), weight.double(), 1e-6)
    torch.testing.assert_close(normed.double(), expected, rtol=1e-5, atol=1e-5)
    order = torch.randperm(64)
    assert torch.equal(reference.rms_norm(rows[order], weight, 1e-6), normed[order])
    assert torch.equal(reference.rms_norm(in_tiles(rows[:5]), weight, 1e-6)[:5], normed[:5])


def test_rms_norm_of_heads() -> None:
    """Heads are views of a wider matrix in the decoder."""
    fused, weight = torch.randn(32, 6, 16), torch.randn(16)
    normed = reference.rms_norm(fused[:, 1:4], weight, 1e-6)
    expected = torch.nn.functional.rms_norm(fused[:, 1:4], (16,), weight, 1e-6)
    torch.testing.assert_close(normed, expected)


def test_both_rotary_layouts_are_one_rotation() -> None:
    heads, angles = torch.randn(5, 3, 8), torch.randn(5, 1, 4)
    cos, sin = angles.cos(), angles.sin()
    turned = reference.rotate_halves(heads, cos, sin)
    as_complex = torch.complex(heads[..., :4], heads[..., 4:]) * torch.polar(torch.ones(5, 1, 4), angles)
    torch.testing.assert_close(turned, torch.cat((as_complex.real, as_complex.imag), -1))
    interleaved = torch.stack((heads[..., :4], heads[..., 4:]), -1).flatten(-2)
    expected = torch.stack((turned[..., :4], turned[..., 4:]), -1).flatten(-2)
    assert torch.equal(reference.rotate_interleaved(interleaved, cos, sin), expected)


@pytest.mark.parametrize("size", [96, 1536, 33])
def test_gated_activations(size: int) -> None:
    fused = 3 * torch.randn(48, 2 * size)
    gate, up = fused.chunk(2, dim=-1)
    functions = {
        reference.gated_silu: torch.nn.functional.silu,
        reference.gated_gelu_tanh: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }
    order = torch.randperm(48)
    for function, plain in functions.items():
        result = function(gate, up)
        torch.testing.assert_close(result.double(), plain(gate.double()) * up.double(), rtol=1e-5, atol=1e-5)
        assert torch.equal(function(*fused[order].chunk(2, dim=-1)), result[order])
        assert torch.equal(function(*fused[:16].chunk(2, dim=-1)), result[:16])


def attend_naively(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, window: int | None
) -> torch.Tensor:
    """Return attention in float64, one head and row at a time, scale 0.3."""
    out = torch.empty_like(queries, dtype=torch.float64)
    group = queries.shape[1] // keys.shape[1]
    for row, heads in enumerate(queries.double()):
        end = start + row + 1
        seen = slice(0 if window is None else max(0, end - window), end)
        for head, query in enumerate(heads):
            weights = torch.softmax(keys[seen, head // group].double() @ query * 0.3, 0)
            out[row, head] = weights @ values[seen, head // group].double()
    return out


@pytest.mark.parametrize("window", [None, 1, 24, 300])
@pytest.mark.parametrize("start", [0, 3, 250, 255, 600])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 2), (14, 2), (4, 4), (4, 1), (40, 2)])
def test_attention(num_heads: int, num_kv_heads: int, start: int, window: int | None) -> None:
    """Against float64; and the rows of a tile are the same in any part of it."""
    num_rows = reference.query_tile(num_heads // num_kv_heads)
    queries = torch.randn(num_rows, num_heads, 16)
    length = reference.padded(start + num_rows, KV_BLOCK)
    keys, values = torch.randn(length, num_kv_heads, 16), torch.randn(length, num_kv_heads, 16)
    expected = attend_naively(queries, keys, values, start, window)
    whole = reference.attend(queries, keys, values, start, 0, 0.3, window)
    torch.testing.assert_close(whole.double(), expected, rtol=1e-5, atol=1e-5)
    for first in range(num_rows):
        for last in {first + 1, (first + num_rows) // 2 + 1, num_rows}:
            low = 0 if window is None else max(0, start + first - window + 1) // KV_BLOCK * KV_BLOCK
            high = reference.padded(start + last, KV_BLOCK)
            part = reference.attend(
                queries[first:last], keys[low:high], values[low:high], start + first, low, 0.3, window
            )
            assert torch.equal(part, whole[first:last])


@pytest.mark.parametrize(
    "environment",
    [
        {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
        {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ATEN_CPU_CAPABILITY": "default"},
    ],
    ids=["AVX2", "SSE4.2"],
)
def test_other_instruction_sets(environment: dict[str, str]) -> None:
    """Libraries choose their kernels when they are loaded, so older processors take another process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    names = ("rms_norm", "gated", "layout", "feed", "anywhere and 576", "attention and 250")
    chosen = ["-k", " or ".join(f"({name})" for name in names)]
    result = subprocess.run(
        [*command, *chosen], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout

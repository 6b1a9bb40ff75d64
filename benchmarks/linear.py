"""Time of a model's linear layers, by rows, against the machine's read bandwidth.

    python benchmarks/linear.py MODEL.gguf [--rows 1,2,3,4,5,6,8,16,64,512] [--rounds 5] [--isa NAME]

Packs the weights of every layer as the engine does (q, k, v together; gate and up interleaved) and runs them
in turn, one pass after the other, for each number of rows in turn, so that neighbours on the machine disturb
all alike. Activations are quantised beforehand; norms, attention and sampling are not in it. Bandwidth is
measured in every round. Ratios are medians of ratios within a round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import gguf
import numpy as np
from numpy.typing import NDArray

from paceline.kernels import _native
from paceline.kernels.activations import quantise
from paceline.kernels.packed import Matrix, PackedLinear

BANDWIDTH_BYTES = 1 << 29


def load_layers(path: str) -> tuple[dict[str, list[PackedLinear]], int]:
    """Return packed layers by kind and the bytes that their tensors take in the file."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    num_bytes = 0

    def pack(names: Sequence[str], interleave: bool = False) -> PackedLinear:
        nonlocal num_bytes
        found = [tensors[name] for name in names]
        num_bytes += sum(int(tensor.n_bytes) for tensor in found)
        matrices = [Matrix(t.tensor_type.name, np.ascontiguousarray(t.data).reshape(-1)) for t in found]
        return PackedLinear(matrices, int(found[0].shape[0]), interleave=interleave)

    layers: dict[str, list[PackedLinear]] = {"qkv": [], "o": [], "gate_up": [], "down": [], "head": []}
    index = 0
    while f"blk.{index}.attn_q.weight" in tensors:
        block = f"blk.{index}"
        layers["qkv"].append(pack([f"{block}.attn_{name}.weight" for name in "qkv"]))
        layers["o"].append(pack([f"{block}.attn_output.weight"]))
        layers["gate_up"].append(
            pack([f"{block}.ffn_gate.weight", f"{block}.ffn_up.weight"], interleave=True)
        )
        layers["down"].append(pack([f"{block}.ffn_down.weight"]))
        index += 1
    layers["head"].append(pack(["output.weight" if "output.weight" in tensors else "token_embd.weight"]))
    return layers, num_bytes


class Pass:
    """One pass over all layers with a number of rows; a prompt's output layer has one row."""

    def __init__(self, layers: dict[str, list[PackedLinear]], num_rows: int) -> None:
        rng = np.random.default_rng(0)
        self.steps: list[tuple[PackedLinear, NDArray[np.void], NDArray[np.float32]]] = []
        for kind in layers:
            rows = min(num_rows, 16) if kind == "head" else num_rows
            first = layers[kind][0]
            x = quantise(rng.standard_normal((rows, first.num_inputs)).astype(np.float32))
            out = np.empty((rows, first.num_outputs), np.float32)
            self.steps += [(layer, x, out) for layer in layers[kind]]

    def seconds(self) -> float:
        start = time.perf_counter()
        for layer, x, out in self.steps:
            layer.linear(x, out=out)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--rows", default="1,2,3,4,5,6,8,16,64,512")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", default=_native.isa(), choices=_native.isas())
    parser.add_argument("--kinds", default="qkv,o,gate_up,down,head", help="the layers to run")
    parser.add_argument("--threads", type=int, default=_native.num_threads())
    arguments = parser.parse_args()
    _native.set_isa(arguments.isa)
    _native.set_num_threads(arguments.threads)
    start = time.perf_counter()
    layers, _ = load_layers(arguments.model)
    layers = {kind: layers[kind] for kind in arguments.kinds.split(",")}
    packed_bytes = sum(layer.nbytes for kind in layers.values() for layer in kind)
    print(f"{arguments.isa}, {_native.num_threads()} threads; loaded in {time.perf_counter() - start:.1f} s")
    row_counts = [int(word) for word in arguments.rows.split(",")]
    passes = {count: Pass(layers, count) for count in row_counts}
    seconds: dict[int, list[float]] = {count: [] for count in row_counts}
    bandwidths = []
    for _ in range(arguments.rounds):
        bandwidths.append(BANDWIDTH_BYTES / _native.fastest_read(BANDWIDTH_BYTES, 2) / 1e9)
        for count in row_counts:
            seconds[count].append(min(passes[count].seconds() for _ in range(1 if count > 16 else 2)))
    print(f"read bandwidth {statistics.median(bandwidths):.1f} GB/s ({max(bandwidths):.1f})")
    print(f"{'rows':>5} {'ms':>9} {'least':>9} {'ratio':>7} {'GB/s':>6} {'of bandwidth':>12}")
    for count in row_counts:
        median = statistics.median(seconds[count])
        ratio = statistics.median(
            one / base for one, base in zip(seconds[count], seconds[row_counts[0]], strict=True)
        )
        share = statistics.median(
            packed_bytes / one / 1e9 / width for one, width in zip(seconds[count], bandwidths, strict=True)
        )
        rate = packed_bytes / median / 1e9
        times = f"{1e3 * median:>9.2f} {1e3 * min(seconds[count]):>9.2f}"
        print(f"{count:>5} {times} {ratio:>7.2f} {rate:>6.1f} {share:>12.2f}")


if __name__ == "__main__":
    main()

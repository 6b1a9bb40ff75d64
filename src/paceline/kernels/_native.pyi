from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def dequantize(
    type_name: str, data: NDArray[np.uint8], out: NDArray[np.float32], num_threads: int
) -> None: ...
def isas() -> list[str]: ...
def isa() -> str: ...
def set_isa(name: str) -> None: ...
def num_threads() -> int: ...
def set_num_threads(count: int) -> None: ...
def count_chunks(counts: NDArray[np.int64], nested: bool = False) -> None: ...
def fastest_read(num_bytes: int, passes: int) -> float: ...
def quantise(x: NDArray[np.float32], out: NDArray[np.uint8]) -> None: ...

class Packed:
    def __init__(
        self,
        parts: Sequence[tuple[str, NDArray[np.uint8], str, NDArray[np.uint32] | None]],
        num_inputs: int,
        interleave: bool,
    ) -> None: ...
    @property
    def num_inputs(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def unpack(self, out: NDArray[np.float32]) -> None: ...
    def linear(
        self, x: NDArray[np.uint8], bias: NDArray[np.float32] | None, y: NDArray[np.float32]
    ) -> None: ...

def rms_norm(
    x: NDArray[np.float32], weight: NDArray[np.float32], eps: float, out: NDArray[np.float32]
) -> None: ...
def rms_norm_quantise(
    x: NDArray[np.float32], weight: NDArray[np.float32], eps: float, out: NDArray[np.uint8]
) -> None: ...
def gate(
    activation: str, gate_up: NDArray[np.float32], interleaved: bool, out: NDArray[np.float32]
) -> None: ...
def gate_quantise(
    activation: str, gate_up: NDArray[np.float32], interleaved: bool, out: NDArray[np.uint8]
) -> None: ...
def add(x: NDArray[np.float32], y: NDArray[np.float32]) -> None: ...
def rotary_angles(
    frequencies: NDArray[np.float32],
    scale: float,
    positions: NDArray[np.int64],
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
) -> None: ...
def rotate_and_store(
    qkv: NDArray[np.float32],
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
    interleaved: bool,
    q_norm: NDArray[np.float32] | None,
    k_norm: NDArray[np.float32] | None,
    norm_eps: float,
    keys: NDArray[np.uint16],
    values: NDArray[np.uint16],
    block_ids: NDArray[np.int32],
    slots: NDArray[np.int32],
) -> None: ...
def attention(
    queries: NDArray[np.float32],
    keys: NDArray[np.uint16],
    values: NDArray[np.uint16],
    num_rows: NDArray[np.int32],
    starts: NDArray[np.int32],
    block_ids: NDArray[np.int32],
    scale: float,
    window: int,
    out: NDArray[np.float32],
) -> None: ...
def embed(
    type_name: str,
    table: NDArray[np.uint8],
    token_ids: NDArray[np.int32],
    scale: float,
    out: NDArray[np.float32],
) -> None: ...
def arg_max(logits: NDArray[np.float32] | NDArray[np.float64]) -> int: ...
def rough_exp_sum(
    logits: NDArray[np.float32] | NDArray[np.float64], value: float, temperature: float
) -> float: ...
def log_sum_exp(logits: NDArray[np.float32] | NDArray[np.float64]) -> float: ...
def top_n(
    logits: NDArray[np.float32] | NDArray[np.float64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]: ...
def select(
    logits: NDArray[np.float32] | NDArray[np.float64],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]: ...
def sample(
    logits: NDArray[np.float32] | NDArray[np.float64],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    output_index: int,
    purpose: int = 0,
    salt: int = 0,
) -> int: ...
def philox(c0: int, c1: int, c2: int, c3: int, key: int) -> tuple[int, int, int, int]: ...
def gumbel(
    seed: int, output_index: int, token_ids: NDArray[np.int64], purpose: int = 0, salt: int = 0
) -> NDArray[np.float64]: ...
def allocate_pages(num_pages: int, page_bytes: int) -> NDArray[np.uint8]: ...

class KvStore:
    @property
    def num_pages(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def halves(self) -> NDArray[np.uint16]: ...

class DecoderLayer:
    def __init__(
        self,
        *,
        qkv: Packed,
        output: Packed,
        gate_up: Packed,
        down: Packed,
        attention_norm: NDArray[np.float32],
        feed_forward_norm: NDArray[np.float32],
        qkv_bias: NDArray[np.float32] | None,
        output_bias: NDArray[np.float32] | None,
        gate_up_bias: NDArray[np.float32] | None,
        down_bias: NDArray[np.float32] | None,
        q_norm: NDArray[np.float32] | None,
        k_norm: NDArray[np.float32] | None,
        post_attention_norm: NDArray[np.float32] | None,
        post_feed_forward_norm: NDArray[np.float32] | None,
        window: int,
        rotary: int,
    ) -> None: ...

class Model:
    def __init__(
        self,
        *,
        hidden_size: int,
        inner_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        norm_eps: float,
        embedding_scale: float,
        score_scale: float,
        activation: str,
        rotary_layout: str,
        embedding: tuple[str, NDArray[np.uint8]],
        layers: Sequence[DecoderLayer],
        rotaries: Sequence[tuple[NDArray[np.float32], float]],
        final_norm: NDArray[np.float32],
        head: Packed,
        head_ids: Sequence[int],
    ) -> None: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def kv_unit_bytes(self) -> int: ...
    def workspace_bytes_for(self, num_rows: int, num_logits: int, num_positions: int) -> int: ...
    def kv_in(self, pages: NDArray[np.uint8], blocks_per_page: int) -> KvStore: ...
    def forward(
        self, sequences: Sequence[tuple[Sequence[int], int, Sequence[int], int]], kv: KvStore
    ) -> NDArray[np.float32]: ...
    def stage_seconds(self) -> dict[str, float]: ...
    def reset_stages(self) -> None: ...

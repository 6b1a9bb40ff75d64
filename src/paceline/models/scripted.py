"""A target without weights, for those who test engines, drafters and policies.

Its "KV cache" holds the token ids themselves, each with a hash of those before it, and its logits are a
function of what it reads back through the block table. So a cache that was rolled back, shared or recomputed
wrongly shows as a wrong answer or as an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from paceline.models.interface import KVStore, SequenceSlice
from paceline.models.kv_arena import KVArena, KVLayout

NextLogits = Callable[[Sequence[int]], "np.ndarray | Sequence[float]"]

EMPTY = -1
TOKEN_BYTES = 8
"""Of a stored entry."""
_ID_BITS, _HASH_MASK = 20, (1 << 42) - 1


class ScriptedKV:
    """Entries by block and offset; EMPTY where nothing was ever written, by any model of the arena."""

    def __init__(self, arena: KVArena, block_size: int) -> None:
        pages = arena.memory.numpy().view(np.int64)
        pages.fill(EMPTY)
        self.entries = pages[:, :block_size]

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return int(self.entries.shape[0])

    @property
    def block_size(self) -> int:
        """Token positions in a block."""
        return int(self.entries.shape[1])


class ScriptedModel:
    """A causal model given by a function from the tokens so far to the next row of logits [vocab].

    It keeps count of its work: `num_forwards`, and `rows` with the row count of each forward pass.
    """

    def __init__(
        self,
        next_logits: NextLogits,
        vocab_size: int,
        context_length: int = 4096,
        kv_bytes_per_token: int = TOKEN_BYTES,
    ) -> None:
        self._next_logits = next_logits
        self._kv_bytes_per_token = kv_bytes_per_token
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.num_forwards = 0
        self.rows: list[int] = []

    def kv_bytes_per_token(self) -> int:
        """Bytes that a position counts as, of which an entry fills the first few."""
        return self._kv_bytes_per_token

    @property
    def kv_layout(self) -> KVLayout:
        """What the model asks of a page of KV memory."""
        return KVLayout(self._kv_bytes_per_token, TOKEN_BYTES)

    def kv_in(self, arena: KVArena, block_size: int) -> ScriptedKV:
        """Return a store in pages that other models may share; they are emptied first."""
        arena.check(self.kv_layout, block_size)
        return ScriptedKV(arena, block_size)

    def allocate_kv(self, num_blocks: int, block_size: int) -> ScriptedKV:
        """Return an empty store."""
        page_bytes = block_size * self._kv_bytes_per_token
        return self.kv_in(KVArena(num_blocks, page_bytes, torch.device("cpu")), block_size)

    def workspace_bytes_for(self, num_rows: int, num_logits: int, num_positions: int) -> int:
        """Bytes of the logits."""
        return 4 * num_logits * self.vocab_size

    def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
        """Store the tokens, read the history back, and apply the function; see `CausalModel.forward`."""
        if not isinstance(kv, ScriptedKV):
            raise TypeError(f"a scripted model needs its own KV store, not {type(kv).__name__}")
        self.num_forwards += 1
        self.rows.append(sum(len(piece.token_ids) for piece in slices))
        for piece in slices:
            self._write(piece, kv)
        rows = [row for piece in slices for row in self._logits(piece, kv)]
        return torch.tensor(np.array(rows, dtype=np.float32).reshape(len(rows), self.vocab_size))

    def _write(self, piece: SequenceSlice, kv: ScriptedKV) -> None:
        before = int(self._entries(piece, kv, piece.start)[-1]) if piece.start else EMPTY
        for offset, token_id in enumerate(piece.token_ids):
            block, slot = divmod(piece.start + offset, kv.block_size)
            before = _entry(before, token_id)
            kv.entries[piece.block_ids[block], slot] = before

    def _entries(self, piece: SequenceSlice, kv: ScriptedKV, end: int) -> np.ndarray:
        return kv.entries[list(piece.block_ids)].reshape(-1)[:end]

    def _logits(self, piece: SequenceSlice, kv: ScriptedKV) -> list[np.ndarray]:
        history = _token_ids(self._entries(piece, kv, piece.end).tolist())
        ends = range(piece.end - piece.num_logits + 1, piece.end + 1)
        return [np.asarray(self._next_logits(history[:end]), dtype=np.float32) for end in ends]


def _entry(before: int, token_id: int) -> int:
    """Return what stands for a token behind others: its id, and a hash of it and of the entry before it."""
    return (hash((before, token_id)) & _HASH_MASK) << _ID_BITS | token_id


def _token_ids(entries: Sequence[int]) -> list[int]:
    """Return the ids of entries; AssertionError where one was never written, or behind other tokens."""
    before, token_ids = EMPTY, []
    for position, entry in enumerate(entries):
        if entry == EMPTY:
            raise AssertionError(f"position {position} is read but was never computed")
        token_id = entry & ((1 << _ID_BITS) - 1)
        if entry != _entry(before, token_id):
            raise AssertionError(f"position {position} is read but was computed behind other tokens")
        before = entry
        token_ids.append(token_id)
    return token_ids


def table_logits(next_token: dict[int, int], vocab_size: int) -> NextLogits:
    """Return the script of a target in which each token has one sure successor (itself if not listed)."""

    def next_logits(token_ids: Sequence[int]) -> np.ndarray:
        row = np.full(vocab_size, -30.0, dtype=np.float32)
        row[next_token.get(token_ids[-1], token_ids[-1])] = 30.0
        return row

    return next_logits


class ScriptedVocabulary:
    """A vocabulary given as a list of byte strings, one a token."""

    def __init__(self, tokens: Sequence[bytes], eos_ids: frozenset[int] = frozenset()) -> None:
        self._tokens = tuple(tokens)
        self.eos_ids = eos_ids

    @property
    def num_real_tokens(self) -> int:
        """Ids below this number stand for text."""
        return len(self._tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; none for end tokens."""
        return b"" if token_id in self.eos_ids else self._tokens[token_id]

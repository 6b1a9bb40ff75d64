"""The noise is fixed for all time: golden vectors, and that it depends on nothing but its arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.records import draw_seed
from paceline.sampling.noise import NOISE_SPAN, Purpose, derive_seed, gumbel, philox4x32, uniform

KNOWN_ANSWERS = [
    # The philox4x32-10 lines of `kat_vectors`, published with Random123 (Salmon et al., 2011).
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

GOLDEN = [
    # (seed, output index, token id, purpose, salt), first two words, Gumbel
    ((0, 0, 0, 0, 0), (0x6627E8D5, 0xE169C58D), 0.08482025135306255),
    ((42, 0, 1, 0, 0), (0x42E0B8B3, 0x7DBF5DE8), -0.2943920827307426),
    ((42, 1, 0, 0, 0), (0xFCDB2127, 0x53BA6CFD), 4.3935011705829945),
    ((2**64 - 1, 2**32 - 1, 151935, 0, 0), (0xFF028864, 0x264712C1), 5.553183451685533),
    ((0x0123456789ABCDEF, 1000, 31337, 0, 0), (0xDFB7E1F8, 0xDBA47783), 2.0040386772413976),
    ((42, 0, 1, 1, 0), (0x37AA0818, 0xC62E3494), -0.4225453951273357),
    ((42, 0, 1, 1, 7), (0x5D79D38C, 0x7A62C8D7), -0.0074461724718009265),
    ((42, 0, 1, 3, 0), (0xFFD1E8D7, 0x7A75E4F8), 7.25939711167794),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: tuple, key: tuple, words: tuple) -> None:
    assert philox4x32(counter, key) == words
    arrays = philox4x32(tuple(np.full(3, word, dtype=np.uint64) for word in counter), key)
    assert [set(array.tolist()) for array in arrays] == [{word} for word in words]


@pytest.mark.parametrize(("address", "words", "noise"), GOLDEN)
def test_gumbel_golden_values(address: tuple, words: tuple[int, int], noise: float) -> None:
    seed, output_index, token_id, purpose, salt = address
    assert philox4x32((output_index, token_id, purpose, salt), (seed % 2**32, seed >> 32))[:2] == words
    value = gumbel(seed, output_index, np.array([token_id]), purpose, salt)[0]
    assert value == pytest.approx(noise, rel=0, abs=1e-12)
    u = ((words[0] << 20 | words[1] >> 12) + 0.5) / 2**52
    assert value == pytest.approx(-math.log(-math.log(u)), rel=0, abs=1e-12)


def test_uniform_and_derived_seeds_golden_values() -> None:
    assert uniform(42, 3, Purpose.ACCEPT) == 0.05106194362534022
    assert [derive_seed(42, j) for j in range(4)] == [
        42,
        0x14909873BE961592,
        0x23148B27C1465074,
        0x89F0FF113394CC49,
    ]
    assert [purpose.value for purpose in Purpose] == [0, 1, 2, 3, 4]


def test_negative_seeds_count_modulo_2_to_the_64() -> None:
    ids = np.arange(40)
    assert np.array_equal(gumbel(-1, 3, ids), gumbel(2**64 - 1, 3, ids))
    assert uniform(-5, 3, 2) == uniform(2**64 - 5, 3, 2)
    assert derive_seed(-1, 0) == 2**64 - 1
    assert derive_seed(-1, 1) == derive_seed(2**64 - 1, 1)


def test_a_tokens_noise_does_not_depend_on_the_other_tokens() -> None:
    everything = gumbel(7, 5, np.arange(20_000))
    for ids in (np.array([3]), np.array([9, 8191, 8192, 19_999]), np.arange(1, 20_000, 7)):
        assert gumbel(7, 5, ids) == pytest.approx(everything[ids], rel=0, abs=1e-12)


def test_the_open_interval_ends_short_of_the_noise_span() -> None:
    low, high = (-math.log(-math.log(u)) for u in (0.5 * 2.0**-52, (2.0**52 - 0.5) * 2.0**-52))
    assert math.isfinite(low)
    assert math.isfinite(high)
    assert 40.3 < high - low < NOISE_SPAN


def test_each_part_of_the_address_changes_the_noise() -> None:
    base = (42, 3, np.arange(64), 0, 0)
    for changed in ((43, 3), (42 + 2**32, 3), (42, 4), (42, 3, np.arange(64, 128)), (42, 3, base[2], 1)):
        address = (*changed, *base[len(changed) :])
        assert not np.isin(gumbel(*address), gumbel(*base)).any()


def test_the_noise_is_gumbel() -> None:
    """Mean and variance within five standard errors of a million draws: false alarm under 1e-6."""
    noise = gumbel(1, 0, np.arange(1_000_000))
    assert noise.mean() == pytest.approx(0.5772156649, abs=5 * 1.2825 / 1000)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=5 * math.sqrt(4.4) * (math.pi**2 / 6) / 1000)


def test_unseeded_requests_do_not_share_a_stream() -> None:
    """B18: eight unseeded requests over a uniform 16-token target, 32 tokens each, are all distinct."""
    texts = {
        tuple(int(gumbel(seed, i, np.arange(16)).argmax()) for i in range(32))
        for seed in [draw_seed() for _ in range(8)]
    }
    assert len(texts) == 8

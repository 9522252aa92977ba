from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest
from shardtool.request.split_options import SplitOptions, parse_shares
from shardtool.select.splits import assign_splits, sample_by_key

KEYS = st.lists(st.binary(min_size=1, max_size=8).filter(lambda key: b"\0" not in key), unique=True, max_size=60)
SHARES = (
    st.fractions(Fraction(1, 10**6), 1).map(lambda share: f"{float(share):.8f}").filter(lambda text: float(text) > 0)
)


def _sampled(keys: list[bytes], share: float | str) -> list[bytes]:
    samples = sample_by_key(PackedStrings.of(keys), share)
    assert samples.dtype == np.int64
    return [keys[at] for at in samples.tolist()]


@given(KEYS, SHARES)
def test_a_share_selects_by_hash(keys: list[bytes], share: str) -> None:
    """A sample is selected exactly if the BLAKE2b hash of its key is below the share of 2^64."""
    hashes = {key: int.from_bytes(blake2b(key, digest_size=8).digest(), "little") for key in keys}
    assert _sampled(keys, share) == [key for key in keys if hashes[key] < Fraction(share) * 2**64]


@given(KEYS, SHARES, SHARES, st.data())
def test_a_share_is_stable_and_nested(keys: list[bytes], one: str, two: str, data: st.DataObject) -> None:
    """Selection does not depend on other samples or order, and a smaller share is part of a larger one."""
    small, large = sorted((one, two), key=float)
    others = data.draw(st.permutations(keys))[: data.draw(st.integers(0, len(keys)))]
    assert set(_sampled(others, small)) == set(_sampled(keys, small)) & set(others)
    assert set(_sampled(keys, small)) <= set(_sampled(keys, large))
    assert _sampled(keys, 1) == keys


def test_a_share_has_its_size() -> None:
    """Of 200,000 similar keys, each share is within five standard deviations of its size, in every range."""
    keys = PackedStrings.of(b"imgs/%06d" % at for at in range(200_000))
    for share in (0.001, 0.01, 0.1, 0.5, 0.9):
        samples = sample_by_key(keys, share)
        assert abs(len(samples) - 200_000 * share) < 5 * math.sqrt(200_000 * share * (1 - share))
        assert (np.diff(samples) > 0).all()
        bins = np.bincount(samples // 20_000, minlength=10)
        expected = 20_000 * share
        assert ((bins - expected) ** 2 / (expected * (1 - share))).sum() < 35  # 10 degrees of freedom: p = 1e-4


def test_a_share_is_independent_of_the_split() -> None:
    """A share of the samples has the same split proportions as all samples, because the hashes differ."""
    keys = PackedStrings.of(b"imgs/%06d" % at for at in range(50_000))
    samples = assign_splits(keys.take(sample_by_key(keys, 0.2)), SplitOptions(parse_shares("train=0.8,val=0.2")))
    val = np.count_nonzero(samples.number == 1) / len(samples.number)
    assert abs(val - 0.2) < 5 * math.sqrt(0.2 * 0.8 / 10_000)


@pytest.mark.parametrize(
    ("text", "means"),
    [("1%", "0.01"), (" 12.5 % ", "0.125"), (".5", "0.5"), ("1.", "1"), ("100%", "1"), ("1e-2", "0.01"),
     (0.01, "0.01"), (1, "1"), (1e-05, "0.00001"), (np.float64(0.1), "0.1"), (Decimal("1E-3"), "0.001")],
)  # fmt: skip
def test_shares_are_exact(text: Any, means: str) -> None:
    """Shares are parsed exactly, in each notation."""
    keys = [b"%d" % at for at in range(3000)]
    hashes = {key: int.from_bytes(blake2b(key, digest_size=8).digest(), "little") for key in keys}
    assert _sampled(keys, text) == [key for key in keys if Fraction(hashes[key], 2**64) < Fraction(means)]


@pytest.mark.parametrize(
    "share",
    ["", "0", "0.0", "-0.1", "1.0001", "101%", "0%", "nan", "inf", "one", "1/2", "1_0", "\uff11", "0.5x", "%", ".",
     "9" * 5000, "1e9999", 0, -1, 2, math.nan, math.inf],
)  # fmt: skip
def test_invalid_shares_are_refused(share: Any) -> None:
    """Values that are not numbers above 0 and at most 1 are refused."""
    with pytest.raises(InvalidRequest) as caught:
        sample_by_key(PackedStrings.of([b"a"]), share)
    assert caught.value.where == "sample"
    assert "such as 0.01 or 1%" in str(caught.value)

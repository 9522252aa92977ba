"""Select a random share of the samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.request.option_values import parse_share as read_share
from shardtool.units import pluralize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings


_HASH_RANGE = 2**64


_NOTE_DEVIATION = 4  # a deviation of more than 1/4 of a share is worth a note


def sample_by_key(keys: PackedStrings, share: float | str) -> NDArray[np.int64]:
    """Return a random share of the samples (int64, in order), chosen by the hash of each key alone.

    A sample stays in or out when others are added or removed, and a larger share includes a smaller one. The hash is
    BLAKE2b (RFC 7693) of 8 bytes, little-endian: a sample is selected if it is below share * 2^64. `share` is more than
    0, at most 1: a number, `0.01` or `1%`.
    """
    last = np.uint64(math.ceil(read_share("sample", share, positive=True) * _HASH_RANGE) - 1)
    return np.flatnonzero(keys.hashes() <= last)


def sample_with_notes(keys: PackedStrings, share: float | str) -> tuple[NDArray[np.int64], list[str]]:
    """Return the result of `sample_by_key`, and notes about the deviation; refuse an empty result."""
    selected, total = sample_by_key(keys, share), len(keys)
    if not len(selected):
        found = f"{share} selects none of {total:,} samples"
        raise InvalidRequest(option_text("sample"), found, expected="at least one sample")
    target = read_share("sample", share) * total
    if abs(len(selected) - target) * _NOTE_DEVIATION <= target:
        return selected, []
    found = f"{option_text('sample', share)} selects {len(selected):,} of {pluralize(total, 'sample')}"
    return selected, [
        f"{found}: samples are selected by hash, which is uneven for few keys ({option_text('head')} selects a number)"
    ]

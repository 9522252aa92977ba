"""Take a random share of the samples, by the hashes of their keys."""

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


_NOTE_DEVIATION = 4  # a share that is off by more than this part of itself is worth a note


def sample_by_key(keys: PackedStrings, share: float | str) -> NDArray[np.int64]:
    """Return a random share of the samples, by the hash of each one's key alone.

    So a sample stays in or out when others come or go, and those of a smaller share are among those of a larger one.
    The hash is BLAKE2b (RFC 7693) of 8 bytes, little-endian: a sample is taken where it is below share * 2^64.

    Args:
        keys: One per sample.
        share: More than 0, at most 1: a number, `0.01` or `1%`.

    Returns:
        int64, the samples in order.

    Raises:
        InvalidRequest: `share` is no such number.
    """
    last = np.uint64(math.ceil(read_share("sample", share, positive=True) * _HASH_RANGE) - 1)
    return np.flatnonzero(keys.hashes() <= last)


def sample_with_notes(keys: PackedStrings, share: float | str) -> tuple[NDArray[np.int64], list[str]]:
    """Return what `sample_by_key` does; and notes, where the hashes of few keys took far more or fewer than the share.

    Raises:
        InvalidRequest: `share` is no such number, or takes no sample.
    """
    taken, total = sample_by_key(keys, share), len(keys)
    if not len(taken):
        found = f"none of {total:,} samples falls into {share}"
        raise InvalidRequest(option_text("sample"), found, expected="one sample or more")
    wanted = read_share("sample", share) * total
    if abs(len(taken) - wanted) * _NOTE_DEVIATION <= wanted:
        return taken, []
    found = f"{option_text('sample', share)} takes {len(taken):,} of {pluralize(total, 'sample')}"
    return taken, [
        f"{found}: a hash of each key decides, and few keys fall unevenly ({option_text('head')} takes a number)"
    ]

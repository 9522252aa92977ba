"""Entries that are made, not read from a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.entries import Entries
from shardtool.names import Names
from shardtool.values import FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

FIELDS = ("cls", "jpg", "json")


def made_entries(samples: Sequence[Sequence[int]], keys: Sequence[bytes] | None = None) -> Entries:
    """Return samples with fields of these payload bytes; sample 17 is called `00000017`."""
    counts = np.array([len(sizes) for sizes in samples], np.int64)
    rows = int(counts.sum())
    return Entries(
        root=b"/nowhere/",
        keys=Names.of(keys or [b"%08d" % at for at in range(len(samples))]),
        first=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
        fields=FIELDS,
        code=np.array([code for sizes in samples for code in range(len(sizes))], np.uint16),
        kind=np.full(rows, FILE, np.uint8),
        size=np.array([size for sizes in samples for size in sizes], np.int64),
        mtime_ns=np.zeros(rows, np.int64),
        changed_ns=np.zeros(rows, np.int64),
    )

"""Catalogs without files, to test orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.read.catalog import Catalog

if TYPE_CHECKING:
    from collections.abc import Sequence


def made_catalog(counts: Sequence[int], order_hash: str = "made") -> Catalog:
    """Return a catalog without files. `counts` has the number of samples of each shard. A sample has 1,000 bytes."""
    return Catalog(
        name="made",
        shards=(),
        first_samples=np.cumsum([0, *counts]).astype(np.int64),
        sizes=1000 * np.array(counts, np.int64),
        fields={},
        kinds={},
        classes={},
        order_hash=order_hash,
    )

"""Columns of URLs, as outputs may have them."""

from __future__ import annotations

import pyarrow as pa

from shardtool.fetch.urls import shown_url

_CHUNK = 2**16  # rows at a time


def shown_column(urls: pa.Array) -> pa.Array:
    """Return what may be seen of URLs: see `shown_url`. Where that is all, it is the same array."""
    found, same = [], True
    for first in range(0, len(urls), _CHUNK):
        texts = urls.slice(first, _CHUNK).to_pylist()
        shown = [shown_url(text) for text in texts]
        same = same and shown == texts
        found.append(pa.array(shown, urls.type))
    return urls if same else pa.concat_arrays(found)

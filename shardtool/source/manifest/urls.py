"""Columns of URLs, as outputs may have them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from shardtool.fetch.urls import LONGEST, shown_url

_CHUNK = 2**16  # rows at a time
_MAY_HIDE = r"[@#?\\]"  # what must be in a URL of which something is not shown, but for its length


def shown_column(urls: pa.Array) -> pa.Array:
    """Return what may be seen of URLs: see `shown_url`."""
    chunks = [urls.slice(first, _CHUNK) for first in range(0, len(urls), _CHUNK)]
    return pa.concat_arrays([_shown_chunk(chunk) for chunk in chunks]) if chunks else urls


def _shown_chunk(urls: pa.Array) -> pa.Array:
    """Return some of them; those that are shown whole are not looked at one by one."""
    mask = pc.or_(pc.match_substring_regex(urls, _MAY_HIDE), pc.greater(pc.utf8_length(urls), LONGEST))
    if not pc.any(mask).as_py():
        return urls
    shown = [shown_url(text) for text in urls.filter(mask).to_pylist()]
    return pc.replace_with_mask(urls, mask, pa.array(shown, urls.type))

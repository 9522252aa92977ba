"""Columns of URLs."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.fetch.options import redact_url
from shardtool.source.manifest import paths
from shardtool.source.manifest.paths import redact_urls

_URLS = st.lists(
    st.text("ab:/@?=&#\\tokensig\u00fc", max_size=30) | st.sampled_from(["http://u:p@h/?key=1", "x" * 3000]), max_size=9
)


@settings(max_examples=100)
@given(_URLS, st.sampled_from([pa.string(), pa.large_string()]))
def test_a_column_is_redacted_like_its_urls(texts: list[str], kind: pa.DataType) -> None:
    """A redacted column has the redacted URLs, in the same type."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(paths, "CHUNK_ROWS", 4)
        shown = redact_urls(pa.array(texts, kind))
    assert shown.to_pylist() == [redact_url(text) for text in texts]
    assert shown.type == kind

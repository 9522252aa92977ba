"""Columns of URLs."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.fetch import shown_url
from shardtool.source import manifest as urls
from shardtool.source.manifest import shown_column

_URLS = st.lists(
    st.text("ab:/@?=&#\\tokensig\u00fc", max_size=30) | st.sampled_from(["http://u:p@h/?key=1", "x" * 3000]), max_size=9
)


@settings(max_examples=100)
@given(_URLS, st.sampled_from([pa.string(), pa.large_string()]))
def test_a_column_is_shown_as_its_urls_are(texts: list[str], kind: pa.DataType) -> None:
    """What is shown of a column is what is shown of each of its URLs, in a column of the same type."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(urls, "_CHUNK", 4)
        shown = shown_column(pa.array(texts, kind))
    assert shown.to_pylist() == [shown_url(text) for text in texts]
    assert shown.type == kind

"""The reason codes of what was left out."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import get_args
from zlib import compress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.skipped import SKIP_CODES, SkipCode, Skipped, http_skip_code, pack_rows, unpack_rows
from tests.helpers import REPO


def test_the_table_of_codes_is_that_of_the_docs() -> None:
    """Each code has a meaning, in the words of docs/errors.md, and each stands in quotes where it is given."""
    chapter = (REPO / "docs" / "errors.md").read_text().partition("## What was left out")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*?) \|", chapter, re.MULTILINE)
    assert [(code, what.replace("`", "")) for code, what in rows] == [*SKIP_CODES.items()]
    assert [*SKIP_CODES] == [*get_args(SkipCode)]
    others = [path.read_text() for path in (REPO / "shardtool").rglob("*.py") if path.name != "skipped.py"]
    given = [code for code in SKIP_CODES if any(f'"{code}"' in text for text in others)]
    assert given == [code for code in SKIP_CODES if code != "http-404"]


@pytest.mark.parametrize("status", [204, 404, 503])
def test_a_status_is_a_code(status: int) -> None:
    """The code of a web server's status names it."""
    assert http_skip_code(status) == f"http-{status}"


rows = st.lists(
    st.builds(Skipped, st.text(max_size=9), st.text(max_size=9), st.sampled_from([*SKIP_CODES]), st.text(max_size=9))
)


@settings(max_examples=50)
@given(rows)
def test_rows_come_back(left_out: list[Skipped]) -> None:
    """Rows that were packed into a text are the same when they are unpacked; the text is ASCII without blanks."""
    text = pack_rows(left_out)
    assert unpack_rows(text) == tuple(left_out)
    assert text.isascii()
    assert not any(letter.isspace() for letter in text)


def test_a_list_that_is_none_is_refused() -> None:
    """What is no packed list, is cut, or would take far more memory than any list, is a ValueError."""
    bomb = b64encode(compress(b"[" + b" " * 2**27)).decode()
    for text in ("", "~~~ü", pack_rows([])[:-2], b64encode(compress(b'[["a"]]')).decode(), bomb):
        with pytest.raises(ValueError, match="a list of what was left out"):
            unpack_rows(text)

"""Reason codes of skipped files and samples."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import cast, get_args
from zlib import compress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.dataset.skipped_list import parse_skipped
from shardtool.skipped import (
    SKIP_CODES,
    SkipCode,
    Skipped,
    drop_keys,
    duplicate_message,
    has_same_content,
    http_skip_code,
    pack_rows,
    unpack_rows,
)
from tests.helpers import REPO


def test_docs_list_every_code_with_its_meaning() -> None:
    """docs/errors.md has the same meaning for each code, and the package assigns each code somewhere."""
    chapter = (REPO / "docs" / "errors.md").read_text().partition("## Skipped samples")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*?) \|", chapter, re.MULTILINE)
    assert [(code, what.replace("`", "")) for code, what in rows] == [*SKIP_CODES.items()]
    assert [*SKIP_CODES] == [*get_args(SkipCode)]
    others = [path.read_text() for path in (REPO / "shardtool").rglob("*.py") if path.name != "skipped.py"]
    assigned = [code for code in SKIP_CODES if any(f'"{code}"' in text for text in others)]
    assert assigned == [code for code in SKIP_CODES if code != "http-404"]


@pytest.mark.parametrize("status", [204, 404, 503])
def test_an_http_status_has_a_code(status: int) -> None:
    """The code of an HTTP status contains the status."""
    assert http_skip_code(status) == f"http-{status}"


rows = st.lists(
    st.builds(Skipped, st.text(max_size=9), st.text(max_size=9), st.sampled_from([*SKIP_CODES]), st.text(max_size=9))
)


@settings(max_examples=50)
@given(rows)
def test_packed_rows_can_be_unpacked(left_out: list[Skipped]) -> None:
    """Unpacking returns the packed rows; the packed text is ASCII without whitespace."""
    text = pack_rows(left_out)
    assert unpack_rows(text) == tuple(left_out)
    assert text.isascii()
    assert not any(letter.isspace() for letter in text)


def test_the_old_code_of_a_duplicate_is_still_read() -> None:
    """Sidecars and lists of older versions, which contain the code `twin` for duplicates, can be read."""
    old = Skipped("b", "", cast("SkipCode", "twin"), "holds the same as a, which has another cls")
    new = Skipped("b", "", "duplicate", duplicate_message("a", ["cls"]))
    data = b'{"key": "b", "path": "", "code": "twin", "message": "holds the same as a, which has another cls"}\n'
    assert unpack_rows(pack_rows([old])) == (new,)
    assert parse_skipped(data, "x.skipped") == [new]
    assert has_same_content(new)
    assert not has_same_content(Skipped("b", "", "duplicate", "another sample of that key is in x-0.tar"))
    assert drop_keys([new], {"a"}) == [new._replace(message=duplicate_message("a removed sample"))]


def test_an_invalid_list_is_refused() -> None:
    """An invalid or truncated list, or one that unpacks to far too much memory, raises ValueError."""
    bomb = b64encode(compress(b"[" + b" " * 2**26, 1)).decode()
    for text in ("", "~~~ü", pack_rows([])[:-2], b64encode(compress(b'[["a"]]')).decode(), bomb):
        with pytest.raises(ValueError, match="list of skipped samples"):
            unpack_rows(text)

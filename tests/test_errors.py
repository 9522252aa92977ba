"""Error classes and printable text."""

from __future__ import annotations

import pickle
import traceback
import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import errors
from shardtool.errors import Bug, PlainError, ShardError, format_list, printable

if TYPE_CHECKING:
    from collections.abc import Iterator


def _kinds(kind: type[ShardError] = ShardError) -> Iterator[type[PlainError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


KINDS: list[type[PlainError]] = [*_kinds(), Bug]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", KINDS)
def test_errors_can_be_pickled(kind: type[PlainError], protocol: int) -> None:
    """Every error keeps its class, attributes and text when pickled."""
    error = kind("a/\udcff.jpg", "found\x1b[2J", expected="expected", remedy="remedy")
    again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own
    assert type(again) is kind
    assert (again.to_json(), str(again), vars(again)) == (error.to_json(), str(error), vars(error))


@pytest.mark.parametrize("kind", KINDS)
def test_errors_can_be_restored_from_their_text(kind: type[PlainError]) -> None:
    """An error keeps all attributes if only its class and traceback text are passed on."""
    error = kind("s3://b/x.tar: a", "found\n;", expected="it", remedy="Do: it.")
    before = vars(error).copy()
    error.embed_in_text()
    again = kind("Caught it.\n" + "".join(traceback.format_exception(error)))
    assert {**vars(again), "detail": ""} == before
    assert again.detail.startswith("Caught it.\n")
    assert "shardtool-error" not in str(again)
    plain = kind("Caught it.\nOriginal traceback\nshardtool.errors.X: a: b\n")
    assert str(plain).startswith("Caught it.: shardtool.errors.X: a: b")
    assert plain.detail.splitlines()[1] == "Original traceback"


def test_every_error_has_its_own_code() -> None:
    """Each error class has its own code and a non-zero exit code."""
    assert len({kind.code for kind in KINDS}) == len(KINDS)
    assert all(kind.exit_code > 0 for kind in KINDS)
    assert {kind.__name__ for kind in KINDS} <= set(dir(errors))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "w: f"),
        ({"expected": "e"}, "w: f; expected e"),
        ({"remedy": "Do r."}, "w: f. Do r."),
        ({"expected": "e", "remedy": "Do r."}, "w: f; expected e. Do r."),
    ],
)
def test_an_error_is_one_line(fields: dict[str, str], text: str) -> None:
    """An error is one line: location, found, expected, what to do; missing parts are omitted."""
    assert str(ShardError("w", "f", **fields)) == text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain/ü 日本 🐈.jpg", "plain/ü 日本 🐈.jpg"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("a\nb\tc\rd\x00e\x7f", "a\\x0ab\\x09c\\x0dd\\x00e\\x7f"),
        ("c1\x9b2J", "c1\\x9b2J"),
        (b"not-utf8/\xff\xfe.jpg", "not-utf8/\\xff\\xfe.jpg"),
        ("surrogate\udcff", "surrogate\\xff"),
        ("lone\ud800", "lone\\ud800"),
        ("gpj\u202e.exe", "gpj\\u202e.exe"),
        ("line\u2028end", "line\\u2028end"),
    ],
)
def test_control_characters_are_escaped(raw: str | bytes, shown: str) -> None:
    """Control characters and invalid UTF-8 are escaped; other text is unchanged."""
    assert printable(raw) == shown


@given(st.binary() | st.text(st.characters()))
def test_printable_text_is_valid_utf8(raw: str | bytes) -> None:
    """The result is UTF-8 without control characters, and is not escaped twice."""
    shown = printable(raw)
    assert shown.encode().decode() == shown
    assert not any(unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} for char in shown)
    assert printable(shown) == shown


@pytest.mark.parametrize(
    ("count", "text"), [(0, ""), (1, "0"), (5, "0, 1, 2, 3, 4"), (6, "0, 1, 2, 3, 4 and 1 more"),
                        (2005, "0, 1, 2, 3, 4 and 2,000 more")],
)  # fmt: skip
def test_a_list_shows_its_first_items(count: int, text: str) -> None:
    """A list shows the first items and counts the others."""
    assert format_list([str(number) for number in range(count)]) == text


def test_an_os_error_is_its_reason_alone() -> None:
    """The reason of an operating system error is lower case, without the sentence that Arrow writes before it."""
    assert errors.os_error_text(OSError(13, "Permission denied")) == "permission denied"
    arrow = "Failed to open local file 'a [1] b.csv'. Detail: [errno 13] Permission denied"
    assert errors.os_error_text(OSError(13, arrow)) == "permission denied"


def test_repeated_names_are_listed_once() -> None:
    """A repeated name is listed once with its count."""
    assert format_list(["x"] * 22) == "x (22 times)"
    assert format_list(["a", "b", "a", "c"], 2) == "a (2 times), b and 1 more"
    assert format_list(["a", "a"], total=9) == "a (2 times) and 7 more"


@pytest.mark.parametrize("kind", [errors.InvalidRequest, errors.CorruptShard, errors.StoreFailed])
def test_repr_has_no_secrets(kind: type[ShardError]) -> None:
    """The representation of an error, which programs log, contains no password and no query of a URL."""
    error = kind("https://u:secret@h/x.tar?token=secret", "read https://u:secret@h/y.tar?token=secret")
    assert "https://h/x.tar?..." in repr(error)
    for text in (repr(error), str(vars(error)), repr(pickle.loads(pickle.dumps(error)))):  # noqa: S301
        assert "secret" not in text

"""Sizes, keys and fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.errors import InvalidRequest
from shardtool.names import split_name, to_bytes, to_text
from shardtool.units import format_size, parse_size

if TYPE_CHECKING:
    from shardtool.values import Dots


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500MB", 500 * 10**6),
        ("500MiB", 500 * 2**20),
        ("1kb", 1000),
        ("1KiB", 1024),
        ("1.5GiB", 3 * 2**29),
        ("1.1GB", 1_100_000_000),
        ("2T", 2 * 10**12),
        ("3PiB", 3 * 2**50),
        (" 7 MB ", 7 * 10**6),
        ("12345", 12345),
        ("12B", 12),
        ("0.0015kB", 1),
        (12345, 12345),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    """`MB` is 10^6 and `MiB` is 2^20, in any case; a plain number is bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "0MB", "0.4", "-1", "1e9", "1XB", "MB", "1 000", "1,5GB", "1.5.5GB", "nan", 0, -5]
)
def test_invalid_sizes_are_refused(text: str | int) -> None:
    """Invalid sizes are refused with an example."""
    with pytest.raises(InvalidRequest, match="500MB"):
        parse_size(text)


@given(st.integers(0, 10**18))
def test_formatted_sizes_are_close(size: int) -> None:
    """A formatted size is exact to half a percent and has no exponent."""
    number, unit = format_size(size).split()
    assert "e" not in number
    factor = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}[unit]
    assert abs(float(number.replace(",", "")) * factor - size) <= 0.005 * size


@pytest.mark.parametrize("size", [999_499, 999_999, 999_999_999, 10**15 - 1])
def test_sizes_just_below_a_unit(size: int) -> None:
    """A size just below the next unit is a plain number too."""
    assert "e" not in format_size(size)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("a.jpg", ("a", "jpg"), ("a", "jpg")),
        ("a.seg.png", ("a", "seg.png"), ("a.seg", "png")),
        ("scan.2019.01.jpg", ("scan", "2019.01.jpg"), ("scan.2019.01", "jpg")),
        (".a.jpg", (".a", "jpg"), (".a", "jpg")),
        ("..a", (".", "a"), (".", "a")),
        ("a..b", ("a", ".b"), ("a.", "b")),
        ("a.b.", ("a", "b."), None),
        ("a.", None, None),
        (".a", None, None),
        ("README", None, None),
        ("...", (".", "."), None),
    ],
)
def test_names_are_split_at_the_first_or_last_dot(
    name: str, first: tuple[str, str] | None, last: tuple[str, str] | None
) -> None:
    """The key ends at the first or last dot; leading and trailing dots do not split."""
    rules: list[tuple[Dots, tuple[str, str] | None]] = [("first", first), ("last", last)]
    for dots, expected in rules:
        split = split_name(name.encode(), dots)
        assert (split and (split[0].decode(), split[1].decode())) == expected


@given(st.binary(min_size=1).filter(lambda name: b"/" not in name), st.sampled_from(["first", "last"]))
def test_key_and_field_join_to_the_name(name: bytes, dots: Dots) -> None:
    """Key, dot and field are the name; neither part is empty."""
    split = split_name(name, dots)
    assert split is None or (b".".join(split) == name and all(split))


@given(st.binary())
def test_text_conversion_keeps_bytes(name: bytes) -> None:
    """Any bytes can be converted to text and back."""
    assert to_bytes(to_text(name)) == name

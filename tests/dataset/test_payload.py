"""How long audio is, by its header alone, and never more than its bytes allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.dataset.payload import seconds_of
from tests.verbs.inspect.made import sound

_FLAC = b"fLaC\0\0\0\x22" + bytes(10) + ((44_100 << 44) | 441_000).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("start", "length", "seconds"),
    [
        (sound(2.5)[:4096], len(sound(2.5)), 2.5),
        (sound(2.5)[:4096], 44 + 16_000, 1.0),
        (_FLAC, 500_000, 10.0),
        (b"OggS", 1000, None),
        (_FLAC, 1, None),
        (b"", 0, None),
    ],
)
def test_duration(start: bytes, length: int, seconds: float | None) -> None:
    """A WAV and a FLAC say how long they are; what is cut off is not counted."""
    assert seconds_of(start, length) == (None if seconds is None else pytest.approx(seconds, abs=0.01))


@given(
    st.sampled_from([b"RIFF....WAVE", b"fLaC", b"ID3", b"\xff\xfb", b""]), st.binary(max_size=80), st.integers(0, 2**63)
)
def test_any_bytes_are_bounded(head: bytes, rest: bytes, length: int) -> None:
    """Whatever a header claims, no audio lasts longer than eight seconds a byte, and nothing fails."""
    found = seconds_of(head + rest, length)
    assert found is None or 0 < found <= 8 * length

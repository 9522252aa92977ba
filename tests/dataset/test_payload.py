"""Durations of audio and video from headers, bounded by their bytes."""

from __future__ import annotations

import io
from itertools import product

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from shardtool.dataset.payload import duration_s
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
def test_wav_and_flac_durations(start: bytes, length: int, seconds: float | None) -> None:
    """WAV and FLAC headers contain the duration; missing data does not count."""
    assert duration_s(start, length) == (None if seconds is None else pytest.approx(seconds, abs=0.01))


@given(
    st.sampled_from(
        [b"RIFF....WAVE", b"fLaC", b"ID3", b"\xff\xfb", b"", b"OggS", b"\0\0\0\x08ftyp\0\0\0\x08moov\0\0\0\x20mvhd"]
    ),
    st.binary(max_size=80),
    st.none() | st.integers(0, 2**63),
)
def test_any_header_gives_a_bounded_duration(head: bytes, tail: bytes, length: int | None) -> None:
    """For any header, a duration is at most eight seconds per byte, and no error occurs."""
    length = len(head + tail) if length is None else length
    seconds = duration_s(head + tail, length)
    assert seconds is None or 0 < seconds <= 8 * length


@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        *product(("MP3",), (8000, 22_050, 24_000, 44_100, 48_000)),
        *product(("MP3 without a count",), (8000, 22_050, 48_000)),
        *product(("VORBIS", "OPUS"), (8000, 48_000)),
    ],
)
def test_mp3_and_ogg_durations(kind: str, rate: int) -> None:
    """MP3 and Ogg have the duration that libsndfile encoded, plus the encoder's padding."""
    file, file_format = io.BytesIO(), ("MP3", "MPEG_LAYER_III") if kind.startswith("MP3") else ("OGG", kind)
    constant = {"bitrate_mode": "CONSTANT", "compression_level": 0.5} if "without" in kind else {}
    noise = np.random.default_rng(1).normal(0, 0.1, (int(4.5 * rate), 2))
    soundfile.write(file, noise, rate, format=file_format[0], subtype=file_format[1], **constant)
    data = file.getvalue()
    if "without" in kind:
        data = data[data.index(data[:2], 4) :]  # without the frame that contains it
    tagged = b"ID3\4\0\0\0\0\1\0" + bytes(128) + data if file_format[0] == "MP3" else data
    for payload in (data, tagged):
        assert duration_s(payload, len(payload)) == pytest.approx(4.5, abs=0.2)
        from_start = duration_s(payload[:4096], len(payload))
        assert from_start is None if file_format[0] == "OGG" else from_start == pytest.approx(4.5, abs=0.2)


def _box(kind: bytes, content: bytes, *, is_large: bool = False) -> bytes:
    if is_large:
        return b"\0\0\0\1" + kind + (16 + len(content)).to_bytes(8, "big") + content
    return (8 + len(content)).to_bytes(4, "big") + kind + content


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("is_large", [False, True])
def test_mp4_durations(version: int, *, is_large: bool) -> None:
    """An MP4 contains the duration before or after its data."""
    times = (1).to_bytes(8 if version else 4, "big") * 2
    header = bytes([version, 0, 0, 0]) + times + (600).to_bytes(4, "big") + (7500).to_bytes(len(times) // 2, "big")
    kind, data = _box(b"ftyp", b"isom\0\0\0\0"), _box(b"mdat", bytes(9000), is_large=is_large)
    movie = _box(b"moov", _box(b"udta", b"abc") + _box(b"mvhd", header + bytes(80)))
    for payload in (kind + movie + data, kind + data + movie):
        assert duration_s(payload, len(payload)) == 12.5
    assert duration_s((kind + movie + data)[:4096], 10_000) == 12.5
    assert duration_s((kind + data + movie)[:4096], 10_000) is None

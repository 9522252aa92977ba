"""Describe arrays and videos from their headers.

Formats: NumPy (NEP 1), safetensors, MP4 and QuickTime (ISO/IEC 14496-12), Matroska and WebM (RFC 9559), AVI (RIFF).
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterator
from typing import NamedTuple

from shardtool.errors import is_out_of_memory

_MAX_LISTED_ARRAYS = 50
_MAX_NUMPY_HEADER_BYTES = 2**16
_MP4_HEADER = struct.Struct(">I4s")
_EBML_SEGMENT, _EBML_INFO, _EBML_TRACKS, _EBML_TRACK, _EBML_VIDEO = 0x18538067, 0x1549A966, 0x1654AE6B, 0xAE, 0xE0
_EBML_TIME_UNIT, _EBML_DURATION, _EBML_WIDTH, _EBML_HEIGHT = 0x2AD7B1, 0x4489, 0xB0, 0xBA
_NS_PER_S = 1e9


class _Video(NamedTuple):
    width: int = 0
    height: int = 0
    seconds: float = 0
    frames: int = 0


def describe_payload(field: str, data: bytes) -> tuple[str, ...]:
    """Return lines that describe arrays or a video, or an empty tuple for other payloads.

    The extension of `field` selects the format. `data` can be only the start of the payload.
    """
    ending = field.rpartition(".")[2].lower()
    try:
        if ending == "npy":
            return (_describe_array(io.BytesIO(data)),)
        if ending == "npz":
            return _describe_archive(data)
        if ending == "safetensors":
            return _describe_tensors(data)
        video = _READERS[ending](memoryview(data)) if ending in _READERS else None
    except Exception as error:  # NumPy and zipfile raise many kinds of errors for damaged headers
        if is_out_of_memory(error):
            raise
        return ()
    return () if video is None or not video.width else (_describe_video(video),)


def _describe_array(file: io.BytesIO) -> str:
    from numpy.lib import format as numpy_format

    version = numpy_format.read_magic(file)
    read = numpy_format.read_array_header_1_0 if version == (1, 0) else numpy_format.read_array_header_2_0
    shape, _, dtype = read(file)
    return f"{dtype}, shape {shape}"


def _describe_archive(data: bytes) -> tuple[str, ...]:
    lines = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        for name in names[:_MAX_LISTED_ARRAYS]:
            with archive.open(name) as member:
                header = io.BytesIO(member.read(_MAX_NUMPY_HEADER_BYTES))
            lines.append(f"{name.removesuffix('.npy')}: {_describe_array(header)}")
    return _shorten([*lines, *names[_MAX_LISTED_ARRAYS:]])


def _describe_tensors(data: bytes) -> tuple[str, ...]:
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    tensors = [(name, tensor) for name, tensor in header.items() if name != "__metadata__"]
    return _shorten([f"{name}: {tensor['dtype']}, shape {tuple(tensor['shape'])}" for name, tensor in tensors])


def _shorten(lines: list[str]) -> tuple[str, ...]:
    more = len(lines) - _MAX_LISTED_ARRAYS
    return (*lines[:_MAX_LISTED_ARRAYS], *([f"and {more:,} more arrays"] if more > 0 else []))


def _describe_video(video: _Video) -> str:
    parts = [f"{video.width:,} x {video.height:,}"]
    if video.seconds:
        parts.append(f"{video.seconds:,.1f} s")
    if video.frames:
        parts.append(f"{video.frames:,} frames")
    return ", ".join(parts)


def _read_mp4(data: memoryview) -> _Video | None:
    movie = dict(_iter_boxes(data))[b"moov"]
    for kind, track in _iter_boxes(movie):
        if kind != b"trak":
            continue
        boxes = dict(_iter_boxes(track))
        media = dict(_iter_boxes(boxes[b"mdia"]))
        if bytes(media[b"hdlr"][8:12]) != b"vide":
            continue
        width, height = struct.unpack(">II", boxes[b"tkhd"][-8:])  # fixed-point numbers with 16 fractional bits
        layout, start = (">IQ", 20) if media[b"mdhd"][0] else (">II", 12)
        time_units, duration = struct.unpack_from(layout, media[b"mdhd"], start)
        table = dict(_iter_boxes(dict(_iter_boxes(media[b"minf"]))[b"stbl"]))
        (frames,) = struct.unpack_from(">I", table[b"stsz"], 8)
        return _Video(width >> 16, height >> 16, duration / time_units if time_units else 0, frames)
    return None


def _iter_boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    # A box of size 0 extends to the end of `data`.
    start = 0
    while start + _MP4_HEADER.size <= len(data):
        size, kind = _MP4_HEADER.unpack_from(data, start)
        header = _MP4_HEADER.size
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, start + header)
            header = 16
        size = size or len(data) - start
        if size < header:
            return
        yield kind, data[start + header : start + size]
        start += size


def _read_matroska(data: memoryview) -> _Video | None:
    segment = dict(_iter_elements(dict(_iter_elements(data))[_EBML_SEGMENT]))
    info = dict(_iter_elements(segment[_EBML_INFO]))
    unit_ns = int.from_bytes(info[_EBML_TIME_UNIT], "big") if _EBML_TIME_UNIT in info else 10**6
    duration = info.get(_EBML_DURATION)
    units = 0.0 if duration is None else struct.unpack(">d" if len(duration) > 4 else ">f", duration)[0]  # noqa: PLR2004
    for kind, track in _iter_elements(segment[_EBML_TRACKS]):
        video = dict(_iter_elements(track)).get(_EBML_VIDEO) if kind == _EBML_TRACK else None
        if video is not None:
            sizes = dict(_iter_elements(video))
            width, height = (int.from_bytes(sizes[name], "big") for name in (_EBML_WIDTH, _EBML_HEIGHT))
            return _Video(width, height, units * unit_ns / _NS_PER_S)
    return None


def _iter_elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    # An element of unknown size extends to the end of `data`.
    start = 0
    while start < len(data):
        kind, start, _ = _read_vint(data, start, keep_marker=True)
        size, start, is_unknown = _read_vint(data, start, keep_marker=False)
        yield kind, data[start:] if is_unknown else data[start : start + size]
        start = len(data) if is_unknown else start + size


def _read_vint(data: memoryview, start: int, *, keep_marker: bool) -> tuple[int, int, bool]:
    if start >= len(data) or not data[start]:
        raise EOFError
    length = 9 - data[start].bit_length()
    value, end = int.from_bytes(data[start : start + length], "big"), start + length
    mask = (1 << 7 * length) - 1
    return (value if keep_marker else value & mask), end, value & mask == mask


def _read_avi(data: memoryview) -> _Video | None:
    start = bytes(data[: 2**12]).index(b"avih") + 8
    us_per_frame, _, _, _, frames, _, _, _, width, height = struct.unpack_from("<10I", data, start)
    return _Video(width, height, frames * us_per_frame / 1e6, frames)


_READERS = {
    **dict.fromkeys(("mp4", "m4v", "mov"), _read_mp4),
    **dict.fromkeys(("webm", "mkv"), _read_matroska),
    "avi": _read_avi,
}

"""Embed audio and video in the HTML page. MIME types are derived from the bytes, so no clip can run as a script."""

from __future__ import annotations

import base64
from typing import NamedTuple

import numpy as np

from shardtool.dataset.payload import content_type

_WAVEFORM_BARS = 80
_WAVEFORM_HEIGHT = 100
_EXTENSIBLE = 0xFFFE  # with this format code, the actual code is in the header's extension
_AUDIO_FRAME_BYTES = 4  # cut 8-bit and 16-bit audio at a multiple of this many bytes
_MIN_CLIP_BYTES = 64_000  # the start of a long clip is included only if at least this many bytes fit
_MAX_MEDIA_BYTES = 1_500_000
_MEDIA_SIGNATURES = (
    (b"fLaC", "audio/flac"), (b"OggS", "audio/ogg"), (b"ID3", "audio/mpeg"), (b"\xff\xf1", "audio/aac"),
    (b"\xff\xf9", "audio/aac"), (b"\xff", "audio/mpeg"),
)  # fmt: skip


_MAGIC_AUDIO = 3  # the first three of `_MEDIA_SIGNATURES` are recognised in fields of any name


class MediaClip(NamedTuple):
    """Audio or video of a sample. `data` is the whole payload, only its start, or empty."""

    field: str
    type: str
    length: int
    seconds: float | None
    data: bytes

    @property
    def waveform(self) -> str:
        """The waveform of `data` as an SVG path, or "" if `data` contains no uncompressed WAV audio."""
        peaks = wav_peaks(self.data, _WAVEFORM_BARS)
        highest = max(peaks, default=0) or 1
        heights = (max(1, round(_WAVEFORM_HEIGHT / 2 * peak / highest)) for peak in peaks)
        return "".join(
            f"M{2 * index + 1} {_WAVEFORM_HEIGHT // 2 - height}v{2 * height}" for index, height in enumerate(heights)
        )

    @property
    def element(self) -> str:
        """The HTML element: `audio` or `video`."""
        return self.type.partition("/")[0]

    @property
    def url(self) -> str:
        """The included bytes as a data URL."""
        return f"data:{self.type};base64," + base64.b64encode(self.data).decode()

    @property
    def description(self) -> str:
        """The kind, the duration, and how much of the payload is included."""
        duration = "" if self.seconds is None else f", {self.seconds:,.1f} s"
        included = (
            f", the first {len(self.data) / max(self.length, 1):.0%}" if self.data else ", not included in this page"
        )
        return f"{self.element}{duration}{included if len(self.data) < self.length else ''}"


def wav_peaks(data: bytes, bars: int) -> list[float]:
    """Return the largest amplitude in each of `bars` parts of an uncompressed WAV file, or [] for other files.

    Source: RFC 2361, and Microsoft's WAVEFORMATEXTENSIBLE.
    """
    chunks, at = {}, 12
    while data[:4] == b"RIFF" and at + 8 <= len(data) and b"data" not in chunks:
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        chunks[data[at : at + 4]] = at + 8, min(size, len(data) - at - 8)
        at += 8 + size + size % 2
    start, size = chunks.get(b"data", (0, 0))
    header_start, _ = chunks.get(b"fmt ", (len(data), 0))
    header = data[header_start : header_start + 26]
    coding, bits = int.from_bytes(header[:2], "little"), int.from_bytes(header[14:16], "little")
    coding = int.from_bytes(header[24:26], "little") if coding == _EXTENSIBLE else coding
    kind = {1: {8: "u1", 16: "<i2", 24: "V3", 32: "<i4"}, 3: {32: "<f4", 64: "<f8"}}.get(coding, {}).get(bits)
    if kind is None or size < bits // 8:
        return []
    values = np.frombuffer(data, kind, size // (bits // 8), start)
    if kind == "V3":  # 24-bit samples: drop the lowest byte
        values = np.ascontiguousarray(values.view("u1").reshape(-1, 3)[:, 1:]).view("<i2")[:, 0]
    with np.errstate(invalid="ignore"):  # a signalling NaN causes a warning
        amplitudes = np.abs(values.astype(np.float64) - (128 if kind == "u1" else 0))
    amplitudes[~np.isfinite(amplitudes)] = 0
    starts = np.unique(np.linspace(0, len(amplitudes), bars, endpoint=False).astype(np.int64))
    peaks: list[float] = np.maximum.reduceat(amplitudes, starts).tolist()
    return peaks


def media_type(name: str, start: bytes) -> str:
    """Return the MIME type of audio or video from its first bytes, or "" if browsers cannot play it."""
    content = content_type(name)
    if start[:4] == b"RIFF" and start[8:12] == b"WAVE":
        return "audio/wav"
    if start[:4] == b"\x1a\x45\xdf\xa3" and b"webm" in start[:80]:
        return "audio/webm" if content == "audio" else "video/webm"
    if start[4:8] == b"ftyp" and content in ("audio", "video"):
        return f"{content}/mp4"
    signatures = _MEDIA_SIGNATURES if content == "audio" else _MEDIA_SIGNATURES[:_MAGIC_AUDIO]
    return next((kind for magic, kind in signatures if start.startswith(magic)), "")


class MediaBudget:
    """Divides the bytes for audio and video in the HTML page among all samples."""

    def __init__(self, total: int, samples: int) -> None:
        self._available = float(min(_MIN_CLIP_BYTES, total))
        self._per_sample = (total - self._available) / max(samples, 1)

    def start_sample(self) -> None:
        """Make the next sample's share of the bytes available."""
        self._available += self._per_sample

    def take(self, kind: str, length: int) -> int:
        """Return how many bytes of a field to include: all, enough to play the start, or 0."""
        available = min(int(self._available), _MAX_MEDIA_BYTES)
        aligned = available // _AUDIO_FRAME_BYTES * _AUDIO_FRAME_BYTES
        start_bytes = aligned if aligned >= _MIN_CLIP_BYTES and not kind.endswith("/mp4") else 0
        taken = length if length <= available else start_bytes
        self._available -= taken
        return taken


def trim_audio(data: bytes) -> bytes:
    """Return `data`, the start of an audio file, as a playable file: in a WAV, correct the length of the data chunk."""
    chunk = data.find(b"data", 12, len(data) - 4) if data[:4] == b"RIFF" else -1
    return data if chunk < 0 else data[: chunk + 4] + (len(data) - chunk - 8).to_bytes(4, "little") + data[chunk + 8 :]

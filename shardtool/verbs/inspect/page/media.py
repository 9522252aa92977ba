"""Audio and video for a page. The first bytes of a file decide its MIME type, not its name; no such type can run code."""

from __future__ import annotations

import base64
from typing import NamedTuple

from shardtool.dataset.payload import (
    content_type,
)

_AUDIO_FRAME_BYTES = 4  # bytes: where audio of 8 or 16 bits may be cut


_MIN_CLIP_BYTES = 64_000  # bytes of audio at least, where not all of it fits


_MAX_MEDIA_BYTES = 1_500_000  # bytes of one field


_MEDIA_SIGNATURES = (
    (b"fLaC", "audio/flac"), (b"OggS", "audio/ogg"), (b"ID3", "audio/mpeg"), (b"\xff\xf1", "audio/aac"),
    (b"\xff\xf9", "audio/aac"), (b"\xff", "audio/mpeg"),
)  # fmt: skip


_MAGIC_AUDIO = 3  # by their content alone, whatever the field is called


class MediaClip(NamedTuple):
    """Audio or video.

    Attributes:
        field: Where it comes from.
        type: Its MIME type.
        length: Bytes of the field.
        seconds: How long it is; None where its header does not say.
        data: What is played: all of it, the start, or nothing.
    """

    field: str
    type: str
    length: int
    seconds: float | None
    data: bytes

    @property
    def element(self) -> str:
        """The HTML element that plays it: `audio` or `video`."""
        return self.type.partition("/")[0]

    @property
    def url(self) -> str:
        """It as a URL that holds it."""
        return f"data:{self.type};base64," + base64.b64encode(self.data).decode()

    @property
    def said(self) -> str:
        """What it is, for people."""
        long = "" if self.seconds is None else f", {self.seconds:,.1f} s"
        cut = f", the first {len(self.data) / max(self.length, 1):.0%}" if self.data else ", not in this page"
        return f"{self.element}{long}{cut if len(self.data) < self.length else ''}"


def media_type(name: str, start: bytes) -> str:
    """Return the MIME type of audio and video that browsers play, by its first bytes; empty: it is neither."""
    content = content_type(name)
    if start[:4] == b"RIFF" and start[8:12] == b"WAVE":
        return "audio/wav"
    if start[:4] == b"\x1a\x45\xdf\xa3" and b"webm" in start[:80]:
        return "audio/webm" if content == "audio" else "video/webm"
    if start[4:8] == b"ftyp" and content in ("audio", "video"):
        return f"{content}/mp4"
    known = _MEDIA_SIGNATURES if content == "audio" else _MEDIA_SIGNATURES[:_MAGIC_AUDIO]
    return next((kind for magic, kind in known if start.startswith(magic)), "")


class MediaBudget:
    """The bytes of audio and video that a page may hold, shared out so that what plays comes from all over."""

    def __init__(self, total: int, samples: int) -> None:
        self._left = float(min(_MIN_CLIP_BYTES, total))
        self._each = (total - self._left) / max(samples, 1)

    def next(self) -> None:
        """Go on to the next sample, which brings its part."""
        self._left += self._each

    def take(self, kind: str, length: int) -> int:
        """Return how many bytes of a field there is room for: all, as many as make sense to hear, or none."""
        room = min(int(self._left), _MAX_MEDIA_BYTES)
        cut = room // _AUDIO_FRAME_BYTES * _AUDIO_FRAME_BYTES
        start = cut if cut >= _MIN_CLIP_BYTES and not kind.endswith("/mp4") else 0
        taken = length if length <= room else start
        self._left -= taken
        return taken


def trim_audio(data: bytes) -> bytes:
    """Return the start of audio such that it plays to its end: of a WAV, with a header that says how much there is."""
    at = data.find(b"data", 12, len(data) - 4) if data[:4] == b"RIFF" else -1
    return data if at < 0 else data[: at + 4] + (len(data) - at - 8).to_bytes(4, "little") + data[at + 8 :]

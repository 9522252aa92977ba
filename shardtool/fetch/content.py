"""Check the content of a response: its encoding, robots directives, and whether it is an image."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from shardtool.fetch.options import ROBOTS_DIRECTIVES, FetchFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_GZIP_WBITS = 16 + zlib.MAX_WBITS


_DECOMPRESS_STEP_BYTES = 2**18  # bytes that are unpacked at a time


_NO_ENCODING = ("", "identity")


_IMAGE_SIGNATURES = (
    b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"\0\0\x01\0",
    b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a", b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51",
)  # fmt: skip


_IMAGE_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1", b"hevc")


def is_image(data: bytes | bytearray) -> bool:
    """Tell whether a file begins as an image does: JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF, HEIF, JPEG XL, JPEG 2000."""
    if data[:4] == b"RIFF":
        return data[8:12] == b"WEBP"
    if data[4:8] == b"ftyp":
        return bytes(data[8:12]) in _IMAGE_BRANDS
    return data.startswith(_IMAGE_SIGNATURES)


def refusing_directive(headers: Iterable[str], user_agent: str) -> str:
    """Return the directive of X-Robots-Tag headers that keeps a file from being used by us; empty: there is none.

    A header is for all, `noai, noindex`, or for the robot that it names: `shardtool: noai`.
    """
    own = user_agent.partition("/")[0].partition(" ")[0].casefold()
    for header in headers:
        robot = ""
        for part in header.casefold().split(","):
            name, colon, rest = part.partition(":")
            robot, directive = (name.strip(), rest) if colon else (robot, part)
            if robot in ("", own, "*") and directive.strip() in ROBOTS_DIRECTIVES:
                return directive.strip()
    return ""


class BodyDecoder:
    """Undoes the coding of a body, never more of it at a time than a step.

    Args:
        coding: What Content-Encoding says.

    Raises:
        FetchFailed: It is none that is known.
    """

    def __init__(self, coding: str) -> None:
        self._coding = coding.strip().lower()
        if self._coding not in (*_NO_ENCODING, "gzip", "x-gzip", "deflate"):
            raise FetchFailed("bad-response", f"a body in the coding {self._coding[:40]!r}, which was not asked for")
        self._unpack = None if self._coding in _NO_ENCODING else zlib.decompressobj(_GZIP_WBITS)
        self._begun = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes of a body stand for.

        Raises:
            FetchFailed: They are damaged.
        """
        if self._unpack is None:
            yield data
            return
        if not self._begun and self._coding == "deflate" and data:
            is_wrapped = data[0] & 15 == zlib.DEFLATED
            self._unpack = zlib.decompressobj(zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS)
        self._begun = self._begun or bool(data)
        try:
            while data and not self._unpack.eof:
                yield self._unpack.decompress(data, _DECOMPRESS_STEP_BYTES)
                data = self._unpack.unconsumed_tail
        except zlib.error:
            raise FetchFailed("bad-response", f"a damaged body, coded with {self._coding}") from None

    def end(self) -> None:
        """Check that the body is at its end.

        Raises:
            FetchFailed: It is not.
        """
        if self._unpack is not None and self._begun and not self._unpack.eof:
            raise FetchFailed("cut-short", f"a body that ends too early, coded with {self._coding}", is_temporary=True)

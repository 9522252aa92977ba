"""Check the content of a response: its encoding, robots directives, and whether it is an image."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from shardtool.fetch.options import ROBOTS_DIRECTIVES, FetchFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_GZIP_WBITS = 16 + zlib.MAX_WBITS
_DECOMPRESS_STEP_BYTES = 2**18
_NO_ENCODING = ("", "identity")

_IMAGE_SIGNATURES = (
    b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"\0\0\x01\0",
    b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a", b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51",
)  # fmt: skip

_IMAGE_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1", b"hevc")


def is_image(data: bytes | bytearray) -> bool:
    """Check for the signature of JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF, HEIF, JPEG XL or JPEG 2000."""
    if data[:4] == b"RIFF":
        return data[8:12] == b"WEBP"
    if data[4:8] == b"ftyp":
        return bytes(data[8:12]) in _IMAGE_BRANDS
    return data.startswith(_IMAGE_SIGNATURES)


def refusing_directive(headers: Iterable[str], user_agent: str) -> str:
    """Return the X-Robots-Tag directive that forbids us to use a file; empty if there is none.

    A header applies to every robot (`noai, noindex`), or to a named one (`shardtool: noai`).
    """
    our_name = user_agent.partition("/")[0].partition(" ")[0].casefold()
    for header in headers:
        robot = ""
        for part in header.casefold().split(","):
            name, colon, rest = part.partition(":")
            robot, directive = (name.strip(), rest) if colon else (robot, part)
            if robot in ("", our_name, "*") and directive.strip() in ROBOTS_DIRECTIVES:
                return directive.strip()
    return ""


class BodyDecoder:
    """Decompresses a body in bounded steps; `coding` is the Content-Encoding.

    Raises:
        FetchFailed: The encoding is not supported.
    """

    def __init__(self, coding: str) -> None:
        self._coding = coding.strip().lower()
        if self._coding not in (*_NO_ENCODING, "gzip", "x-gzip", "deflate"):
            raise FetchFailed(
                "bad-response", f"the body has Content-Encoding {self._coding[:40]!r}, which was not requested"
            )
        self._decompressor = None if self._coding in _NO_ENCODING else zlib.decompressobj(_GZIP_WBITS)
        self._started = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded bytes of the next part of a body.

        Raises:
            FetchFailed: The body is damaged.
        """
        if self._decompressor is None:
            yield data
            return
        if not self._started and self._coding == "deflate" and data:
            is_wrapped = data[0] & 15 == zlib.DEFLATED
            self._decompressor = zlib.decompressobj(zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS)
        self._started = self._started or bool(data)
        try:
            while data and not self._decompressor.eof:
                yield self._decompressor.decompress(data, _DECOMPRESS_STEP_BYTES)
                data = self._decompressor.unconsumed_tail
        except zlib.error:
            raise FetchFailed("bad-response", f"a damaged {self._coding} body") from None

    def end(self) -> None:
        """Check that the body is complete.

        Raises:
            FetchFailed: The body is truncated.
        """
        if self._decompressor is not None and self._started and not self._decompressor.eof:
            raise FetchFailed("cut-short", f"a {self._coding} body that ends too early", is_temporary=True)

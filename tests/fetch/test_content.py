"""The content of a response."""

from __future__ import annotations

import gzip
import io
import zlib

import pytest
from PIL import Image

from shardtool.fetch.client import BodyDecoder, is_image, refusing_directive
from shardtool.fetch.options import FetchFailed


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000"])
def test_images_are_recognised(form: str) -> None:
    """Images written by Pillow in each format are recognised."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, form)
    assert is_image(file.getvalue())


@pytest.mark.parametrize("data", [b"", b"\xff", b"<html>", b"RIFF1234WAVE", b"\0\0\0 ftypisom", b"%PDF", b"{}"])
def test_other_content_is_not_an_image(data: bytes) -> None:
    """Web pages, audio, video and empty files are not images."""
    assert not is_image(data)


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        ([], ""), (["all"], ""), (["noai"], "noai"), (["NoImageAI, nofollow"], "noimageai"),
        (["nofollow", "noindex"], "noindex"), (["none"], "none"), (["googlebot: noindex"], ""),
        (["shardtool: noai"], "noai"), (["Shardtool: nofollow, noai"], "noai"), (["*: noai"], "noai"),
        (["googlebot: noindex, noai"], ""), (["unavailable_after: 25 Jun 2010 15:00:00 PST"], ""),
    ],
)  # fmt: skip
def test_robots_directives(headers: list[str], word: str) -> None:
    """A directive applies if it is for all robots, or for this one."""
    assert refusing_directive(headers, "shardtool/1.0 (+https://example.org)") == word


@pytest.mark.parametrize("wbits", [zlib.MAX_WBITS, -zlib.MAX_WBITS])
def test_both_kinds_of_deflate(wbits: int) -> None:
    """`deflate` is decoded with and without the zlib wrapper, byte by byte."""
    packer = zlib.compressobj(wbits=wbits)
    packed = packer.compress(b"text" * 99) + packer.flush()
    unpacker = BodyDecoder("Deflate")
    assert (
        b"".join(piece for at in range(len(packed)) for piece in unpacker.pieces(packed[at : at + 1])) == b"text" * 99
    )
    unpacker.end()


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_all_members_of_a_gzip_body_are_decoded(step: int) -> None:
    """A gzip body of several members is decoded completely, and data after the last member is an error."""
    packed, decoder = gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two"), BodyDecoder("gzip")
    pieces = [piece for at in range(0, len(packed), step) for piece in decoder.pieces(packed[at : at + step])]
    assert b"".join(pieces) == b"one two"
    decoder.end()
    with pytest.raises(FetchFailed, match="damaged gzip body"):
        assert not b"".join(decoder.pieces(b"other data"))


def test_an_unknown_coding_is_refused() -> None:
    """An unsupported Content-Encoding is refused."""
    with pytest.raises(FetchFailed, match="br"):
        BodyDecoder("br")

"""What a response says of its content."""

from __future__ import annotations

import io
import zlib

import pytest
from PIL import Image

from shardtool.fetch.content import BodyDecoder, is_image, refusing_directive
from shardtool.fetch.options import FetchFailed


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000"])
def test_images_begin_as_such(form: str) -> None:
    """What Pillow writes in each format is taken for an image."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, form)
    assert is_image(file.getvalue())


@pytest.mark.parametrize("data", [b"", b"\xff", b"<html>", b"RIFF1234WAVE", b"\0\0\0 ftypisom", b"%PDF", b"{}"])
def test_others_do_not(data: bytes) -> None:
    """Pages, sounds, films and nothing are none."""
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
def test_robots(headers: list[str], word: str) -> None:
    """A directive counts where it is for all robots, or for ours."""
    assert refusing_directive(headers, "shardtool/1.0 (+https://example.org)") == word


@pytest.mark.parametrize("wbits", [zlib.MAX_WBITS, -zlib.MAX_WBITS])
def test_both_kinds_of_deflate(wbits: int) -> None:
    """`deflate` is unpacked with and without the wrapper that some servers leave out, byte by byte."""
    packer = zlib.compressobj(wbits=wbits)
    packed = packer.compress(b"text" * 99) + packer.flush()
    unpacker = BodyDecoder("Deflate")
    assert (
        b"".join(piece for at in range(len(packed)) for piece in unpacker.pieces(packed[at : at + 1])) == b"text" * 99
    )
    unpacker.end()


def test_an_unknown_coding_is_refused() -> None:
    """What cannot be unpacked is no file."""
    with pytest.raises(FetchFailed, match="br"):
        BodyDecoder("br")

"""A web server for the files of a folder. It needs only Python.

    python -m tests.servers.files PORT FOLDER

It supports GET and HEAD, one range per request, `If-Match`, `If-None-Match` and `If-Range`. The ETag of a file consists
of its size and modification time.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote, urlsplit

from tests.servers.web import PIECE, Head, WebServer, answer, body_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class FileServer(WebServer):
    """Serve the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    async def answer(self, request: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer with a file, a range of it, or an error."""
        method, target, _ = request.first
        async for _ in body_of(request, reader):
            pass
        path = self._folder / unquote(urlsplit(target).path, errors="surrogateescape").lstrip("/")
        if method not in ("GET", "HEAD"):
            return await self.reply(writer, answer(405, 0, {"Allow": "GET, HEAD"}))
        if not path.resolve().is_relative_to(self._folder) or not path.is_file():
            return await self.reply(writer, answer(404, 0))
        fact = path.stat()
        return await give_file(request, path, f'"{fact.st_size:x}-{fact.st_mtime_ns:x}"', writer)


async def give_file(
    request: Head, path: Path, etag: str, writer: asyncio.StreamWriter, more: Mapping[str, str] | None = None
) -> bool:
    """Send a file, or the requested range, with the additional headers `more`."""
    with path.open("rb") as file:
        head, start, length = _chosen(request, os.fstat(file.fileno()), etag, more or {})
        writer.write(head.encoded())
        if request.first[0] == "GET":
            await _send(file, start, length, writer)
    return True


def _chosen(request: Head, fact: os.stat_result, etag: str, more: Mapping[str, str]) -> tuple[Head, int, int]:
    """Return the response head, and the offset and length of the file's bytes to send."""
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Last-Modified": formatdate(fact.st_mtime, usegmt=True)}
    headers |= {"Content-Type": "application/octet-stream", **more}
    if (wanted := request.get("if-match")) and wanted not in ("*", etag):
        return answer(412, 0, headers), 0, 0
    if request.get("if-none-match") in ("*", etag):
        return answer(304, 0, headers), 0, 0
    size = fact.st_size
    if request.get("if-range") not in ("", etag) or not (span := _span(request.get("range"), size)):
        return answer(200, size, headers), 0, size
    start, end = span
    if start >= end:
        return answer(416, 0, {**headers, "Content-Range": f"bytes */{size}"}), 0, 0
    return _part(start, end, size, headers), start, end - start


def _part(start: int, end: int, size: int, headers: Mapping[str, str]) -> Head:
    return answer(206, end - start, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"})


def _span(text: str, size: int) -> tuple[int, int] | None:
    if not (match := re.fullmatch(r"bytes=(\d*)-(\d*)", text)) or match.groups() == ("", ""):
        return None
    low, high = match.groups()
    if not low:
        return max(0, size - int(high)), size
    return int(low), min(size, int(high) + 1) if high else size


async def _send(file: BinaryIO, start: int, length: int, writer: asyncio.StreamWriter) -> None:
    file.seek(start)
    while length:
        piece = file.read(min(length, PIECE))
        writer.write(piece)
        await writer.drain()
        length -= len(piece)


if __name__ == "__main__":
    asyncio.run(FileServer(Path(sys.argv[2])).listen(int(sys.argv[1])))

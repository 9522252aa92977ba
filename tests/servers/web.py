"""HTTP/1.1 for the test servers: read requests, and write responses."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

PIECE = 2**18
_HEAD_LIMIT = 2**20
_BACKLOG = 1000


@dataclass(frozen=True)
class Head:
    """The first lines of a request or response.

    Attributes:
        first: The words of the first line: `GET`, `/path?query`, `HTTP/1.1` for a request, or `HTTP/1.1`, `200`, `OK`
            for a response.
        headers: (name, value) of each header, in order. Names keep their case.
    """

    first: tuple[str, str, str]
    headers: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        """Return the value of the header with this lower-case name, or ""."""
        return next((value for one, value in self.headers if one.lower() == name), "")

    def but(self, headers: Mapping[str, str | None]) -> Head:
        """Return a copy with changed headers. The value None deletes a header."""
        names = {name.lower() for name in headers}
        kept = [(name, value) for name, value in self.headers if name.lower() not in names]
        return Head(self.first, (*kept, *((name, value) for name, value in headers.items() if value is not None)))

    def encoded(self) -> bytes:
        """Return the bytes to send."""
        lines = [" ".join(self.first), *(f"{name}: {value}" for name, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1")


def answer(status: int, length: int, headers: Mapping[str, str] | None = None) -> Head:
    """Return the head of a response with a body of `length` bytes."""
    all_headers = {"Content-Length": str(length), **(headers or {})}
    return Head(("HTTP/1.1", str(status), HTTPStatus(status).phrase), tuple(all_headers.items()))


async def read_head(reader: asyncio.StreamReader) -> Head:
    """Read the first line and the headers of a request or response."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
    one, two, *three = first.split(" ", 2)
    fields = (line.partition(":") for line in lines)
    return Head((one, two, "".join(three)), tuple((name, value.strip()) for name, _, value in fields))


async def body_of(head: Head, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the bytes of a body. Chunked bodies keep their framing. Without a length, the body is empty."""
    if "chunked" in head.get("transfer-encoding").lower():
        size = 1
        while size:
            yield (line := await reader.readuntil(b"\r\n"))
            size = int(line.split(b";")[0], 16)
            yield await reader.readexactly(size + 2)
        return
    left = int(head.get("content-length") or 0)
    while left:
        if not (piece := await reader.read(min(left, PIECE))):
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(piece)
        yield piece


class WebServer(ABC):
    """A server that answers the requests of each connection in order."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer all requests of a connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await read_head(reader)
                if request.get("expect"):
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                if not await self.answer(request, reader, writer) or request.get("connection").lower() == "close":
                    break
                await writer.drain()
        writer.close()

    @abstractmethod
    async def answer(self, request: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request, and return whether the connection stays open."""

    async def reply(self, writer: asyncio.StreamWriter, head: Head, body: bytes = b"") -> bool:
        """Send a response with a small body, and return True, because the connection stays open."""
        writer.write(head.encoded() + body)
        await writer.drain()
        return True

    async def listen(self, port: int) -> None:
        """Serve until killed."""
        server = await asyncio.start_server(self.serve, "127.0.0.1", port, limit=_HEAD_LIMIT, backlog=_BACKLOG)
        async with server:
            await server.serve_forever()

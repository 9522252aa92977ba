"""A server of objects for `remote_clients.py`: it delays, fails as asked, and counts.

    python benchmarks/remote_server.py PORT FILE DELAY_MS

It answers as a web server and, as far as clients ask here, as S3 does with paths for bucket and key. All keys of a
bucket are FILE; the bucket chooses what goes wrong. `GET /stats` returns what was asked since the last time, as JSON.

    data     nothing
    busy     the first two requests get 503 with `Retry-After: 2`
    denied   403, with the error document of S3
    cut      half of the body, then the connection ends
    lies     a range is asked for, the whole object is given (200)
    changing each answer has another ETag, and `If-Match` fails (412)
    list     100,000 keys, a thousand an answer
    sink     takes uploads, in parts and whole, and forgets them
"""

from __future__ import annotations

import asyncio
import json
import mmap
import re
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

KEYS = 100_000
_PAGE = 1000
_BUSY = 2
_PIECE = 2**20
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_DENIED = _XML + "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_DATE = "Last-Modified: Sun, 01 Jan 2023 00:00:00 GMT\r\n"
_REASONS = {200: "OK", 206: "Partial Content", 403: "Forbidden", 412: "Precondition Failed", 503: "Busy"}


class Server:
    """The objects, and what was asked of them."""

    def __init__(self, file: str, delay_s: float) -> None:
        self.delay_s = delay_s
        with Path(file).open("rb") as opened:
            self.data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self.now = self.most = 0
        self.asked: list[str] = []
        self.busy: dict[str, int] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self.answer(reader, writer):
                await writer.drain()
        writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; return whether the connection stays."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if target == "/stats":
            stats = {"requests": len(self.asked), "most_in_flight": self.most, "asked": self.asked[-5:]}
            self.asked, self.most = [], 0
            return self.reply(writer, 200, json.dumps(stats).encode())
        self.asked.append(f"{method} {target}")
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if headers.get("expect"):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            left = int(headers.get("content-length", 0))
            while left:
                left -= len(await reader.read(min(left, _PIECE)))
            while headers.get("transfer-encoding") and (
                left := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
            ):
                await reader.readexactly(left + 2)
            if headers.get("transfer-encoding"):
                await reader.readuntil(b"\r\n")
            await asyncio.sleep(self.delay_s)
            return await self.object(writer, method, target, headers)
        finally:
            self.now -= 1

    async def object(self, writer: asyncio.StreamWriter, method: str, target: str, headers: dict[str, str]) -> bool:
        """Answer a request for an object, or for a bucket."""
        parts = urlsplit(target)
        bucket, _, key = parts.path.lstrip("/").partition("/")
        if bucket == "busy" and self.busy.get(key, 0) < _BUSY:
            self.busy[key] = self.busy.get(key, 0) + 1
            return self.reply(writer, 503, b"", "Retry-After: 2\r\n")
        if bucket == "denied":
            return self.reply(writer, 403, b"" if method == "HEAD" else _DENIED.encode())
        if bucket == "list" and not key:
            return self.reply(writer, 200, page(parse_qs(parts.query)))
        if bucket == "sink":
            query = parse_qs(parts.query, keep_blank_values=True)
            return self.reply(writer, 200, uploaded(method, query), 'ETag: "part"\r\n')
        etag = f'"{len(self.asked)}"' if bucket == "changing" else '"same"'
        if "if-match" in headers and headers["if-match"] != etag:
            return self.reply(writer, 412, b"")
        return await self.content(writer, bucket, (method, etag), headers.get("range"))

    async def content(
        self, writer: asyncio.StreamWriter, bucket: str, asked: tuple[str, str], wanted: str | None
    ) -> bool:
        """Send the object, or a range of it."""
        (method, etag), total = asked, len(self.data)
        start, end, status, more = 0, total, 200, f"ETag: {etag}\r\nAccept-Ranges: bytes\r\n"
        if wanted and bucket != "lies" and (match := re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)):
            low, high = match.groups()
            start = int(low) if low else total - int(high)
            end = min(total, int(high) + 1) if low and high else total
            status, more = 206, more + f"Content-Range: bytes {start}-{end - 1}/{total}\r\n"
        self.head(writer, status, end - start, more)
        if method == "HEAD":
            return True
        if bucket == "cut":
            end = (start + end) // 2
        for at in range(start, end, _PIECE):
            writer.write(self.data[at : min(end, at + _PIECE)])
            await writer.drain()
        return bucket != "cut"

    def reply(self, writer: asyncio.StreamWriter, status: int, body: bytes, more: str = "") -> bool:
        """Send a small answer; the connection stays."""
        self.head(writer, status, len(body), more)
        writer.write(body)
        return True

    def head(self, writer: asyncio.StreamWriter, status: int, length: int, more: str) -> None:
        """Send the head of an answer."""
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {length}\r\n{_DATE}{more}\r\n"
        writer.write(head.encode())


def page(query: dict[str, list[str]]) -> bytes:
    """Return a thousand keys, as S3 lists them."""
    first = int(query.get("continuation-token", ["0"])[0])
    keys = "".join(
        f"<Contents><Key>shards/out-{at:06}.tar</Key><LastModified>2023-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;{at:032x}&quot;</ETag><Size>1000</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for at in range(first, min(KEYS, first + _PAGE))
    )
    more = first + _PAGE < KEYS
    token = f"<NextContinuationToken>{first + _PAGE}</NextContinuationToken>" if more else ""
    return (
        f"{_XML}<ListBucketResult><Name>list</Name><Prefix></Prefix><KeyCount>{_PAGE}</KeyCount><MaxKeys>{_PAGE}"
        f"</MaxKeys><IsTruncated>{'true' if more else 'false'}</IsTruncated>{token}{keys}</ListBucketResult>"
    ).encode()


def uploaded(method: str, query: dict[str, list[str]]) -> bytes:
    """Return what S3 says to the steps of an upload."""
    if method != "POST":
        return b""
    if "uploads" in query:
        name = "InitiateMultipartUploadResult"
        return f"{_XML}<{name}><Bucket>sink</Bucket><Key>k</Key><UploadId>1</UploadId></{name}>".encode()
    name = "CompleteMultipartUploadResult"
    return f'{_XML}<{name}><Bucket>sink</Bucket><Key>k</Key><ETag>"whole"</ETag></{name}>'.encode()


async def main() -> None:
    """Serve until killed."""
    port, file, delay_ms = sys.argv[1:]
    server = Server(file, float(delay_ms) / 1000)
    async with await asyncio.start_server(server.serve, "127.0.0.1", int(port), limit=2**20, backlog=1000) as listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

"""An object server for `remote_clients.py` with delays, faults and request counts.

    python -m benchmarks.remote_server PORT FILE DELAY_MS

The server answers as an HTTP server, and implements the parts of S3 (path-style addresses) that the clients use. Every
key of a bucket returns FILE. The bucket name selects the fault. `GET /stats` returns the requests since the last call
as JSON.

    data     no fault
    busy     503 with `Retry-After: 2` for the first two requests
    denied   403 with an S3 error document
    cut      half of the body; then the connection is closed
    lies     the whole object (200) for a range request
    changing another ETag in each response; `If-Match` fails (412)
    list     100,000 keys, a thousand per response
    sink     accepts uploads, whole and in parts, and discards them
"""

from __future__ import annotations

import asyncio
import json
import mmap
import re
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.servers.web import PIECE, Head, WebServer, answer, body_of

KEYS = 100_000
_PAGE = 1000
_BUSY = 2
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_DENIED = _XML + "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
DATED = {"Last-Modified": "Sun, 01 Jan 2023 00:00:00 GMT"}


class Server(WebServer):
    """The objects and the request counts."""

    def __init__(self, file: str, delay_s: float) -> None:
        self.delay_s = delay_s
        with Path(file).open("rb") as opened:
            self.data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self.now = self.most = 0
        self.asked: list[str] = []
        self.busy: dict[str, int] = {}

    async def answer(self, request: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; return whether the connection stays."""
        method, target, _ = request.first
        if target == "/stats":
            stats = {"requests": len(self.asked), "most_in_flight": self.most, "asked": self.asked[-5:]}
            self.asked, self.most = [], 0
            return await self.small(writer, 200, json.dumps(stats).encode())
        self.asked.append(f"{method} {target}")
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            async for _ in body_of(request, reader):
                pass
            await asyncio.sleep(self.delay_s)
            return await self.object(writer, request)
        finally:
            self.now -= 1

    async def object(self, writer: asyncio.StreamWriter, request: Head) -> bool:
        """Answer a request for an object, or for a bucket."""
        method, target, _ = request.first
        parts = urlsplit(target)
        bucket, _, key = parts.path.lstrip("/").partition("/")
        if bucket == "busy" and self.busy.get(key, 0) < _BUSY:
            self.busy[key] = self.busy.get(key, 0) + 1
            return await self.small(writer, 503, b"", {"Retry-After": "2"})
        if bucket == "denied":
            return await self.small(writer, 403, b"" if method == "HEAD" else _DENIED.encode())
        if bucket == "list" and not key:
            return await self.small(writer, 200, page(parse_qs(parts.query)))
        if bucket == "sink":
            query = parse_qs(parts.query, keep_blank_values=True)
            return await self.small(writer, 200, uploaded(method, query), {"ETag": '"part"'})
        etag = f'"{len(self.asked)}"' if bucket == "changing" else '"same"'
        if request.get("if-match") not in ("", etag):
            return await self.small(writer, 412, b"")
        return await self.content(writer, bucket, (method, etag), request.get("range"))

    async def content(self, writer: asyncio.StreamWriter, bucket: str, asked: tuple[str, str], wanted: str) -> bool:
        """Send the object, or a range of it."""
        (method, etag), total = asked, len(self.data)
        start, end, status, more = 0, total, 200, {"ETag": etag, "Accept-Ranges": "bytes"}
        if wanted and bucket != "lies" and (match := re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)):
            low, high = match.groups()
            start = int(low) if low else total - int(high)
            end = min(total, int(high) + 1) if low and high else total
            status, more["Content-Range"] = 206, f"bytes {start}-{end - 1}/{total}"
        writer.write(answer(status, end - start, more | DATED).encoded())
        if method == "HEAD":
            return True
        if bucket == "cut":
            end = (start + end) // 2
        for at in range(start, end, PIECE):
            writer.write(self.data[at : min(end, at + PIECE)])
            await writer.drain()
        return bucket != "cut"

    async def small(
        self, writer: asyncio.StreamWriter, status: int, body: bytes, more: dict[str, str] | None = None
    ) -> bool:
        """Send a small answer; the connection stays."""
        return await self.reply(writer, answer(status, len(body), (more or {}) | DATED), body)


def page(query: dict[str, list[str]]) -> bytes:
    """Return a thousand keys as an S3 listing."""
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
    """Return the S3 response to a step of an upload."""
    if method != "POST":
        return b""
    if "uploads" in query:
        name = "InitiateMultipartUploadResult"
        return f"{_XML}<{name}><Bucket>sink</Bucket><Key>k</Key><UploadId>1</UploadId></{name}>".encode()
    name = "CompleteMultipartUploadResult"
    return f'{_XML}<{name}><Bucket>sink</Bucket><Key>k</Key><ETag>"whole"</ETag></{name}>'.encode()


if __name__ == "__main__":
    port, file, delay_ms = sys.argv[1:]
    asyncio.run(Server(file, float(delay_ms) / 1000).listen(int(port)))

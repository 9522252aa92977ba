"""An S3 bucket in memory, served by a thread of this process. A test can block any write."""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers.web import Head, WebServer, answer, body_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "verySecretKeyOfTheBucketInMemory"  # noqa: S105 - the key of the server below
_PAGE_ROWS = 1000
_ROW = "<Contents><Key>{}</Key><Size>{}</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>{}</Contents>"


class Bucket(WebServer):
    """A bucket named `b`, with conditional requests, range requests and server-side copies.

    Attributes:
        objects: Content of each object, by key.
        writes: `PUT`, `COPY` or `DELETE`, and the key, of each requested write.
        held_write: Number of a write, from 0. The server neither performs nor answers this write and all later writes.
        is_held: Set when the held write has been requested.
        copies: Whether the server can copy objects. Otherwise, it answers 501.
        listings: Number of listing requests; each returns at most 1000 rows.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.writes: list[tuple[str, str]] = []
        self.held_write: int | None = None
        self.is_held = threading.Event()
        self.copies = True
        self.listings = 0
        self.url = ""
        self._over, self._connections = asyncio.Event(), list[asyncio.StreamWriter]()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that select this server and its credentials."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "AKIAMEMORY", "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true", "SHARDTOOL_ENDPOINT": ""}  # fmt: skip

    def below(self, prefix: str) -> dict[str, bytes]:
        """Return the objects below a prefix. The names are relative to the prefix."""
        start = prefix.rstrip("/") + "/"
        return {key[len(start) :]: data for key, data in sorted(self.objects.items()) if key.startswith(start)}

    def hold(self, write: int | None) -> None:
        """Reset the numbers of the writes to 0, and hold the write with this number. None holds no write."""
        self.writes, self.held_write = [], write
        self.is_held.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer all requests of a connection."""
        self._connections.append(writer)
        await super().serve(reader, writer)

    async def close(self) -> None:
        """Close all connections."""
        self._over.set()
        for writer in self._connections:
            writer.close()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks, timeout=20)

    async def answer(self, request: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer as S3 does."""
        body = b"".join([piece async for piece in body_of(request, reader)])
        method, target, _ = request.first
        parts = urlsplit(target)
        key, query = unquote(parts.path).strip("/").partition("/")[2], parse_qs(parts.query, keep_blank_values=True)
        if method in ("GET", "HEAD"):
            status, headers, data = self._list(query) if "list-type" in query else self._get(request, key)
            if status >= 300:
                data = f"<Error><Code>{status}</Code></Error>".encode()
            writer.write(answer(status, len(data), headers).encoded() + (data if method == "GET" else b""))
            return True
        action = "DELETE" if method in ("POST", "DELETE") else "COPY" if request.get("x-amz-copy-source") else "PUT"
        keys = re.findall("<Key>(.*?)</Key>", body.decode()) if method == "POST" else [key]
        self.writes += [(action, one) for one in keys]
        if self.held_write is not None and len(self.writes) > self.held_write:
            self.is_held.set()
            await self._over.wait()
            return False
        status, headers, data = self._delete(keys) if action == "DELETE" else self._put(request, key, body)
        return await self.reply(writer, answer(status, len(data), headers), data)

    def _list(self, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        rows, folders = [], set()
        for key, data in sorted(self.objects.items()):
            rest = key.removeprefix(prefix)
            if key.startswith(prefix) and delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            elif key.startswith(prefix):
                rows.append(_ROW.format(key, len(data), f"<ETag>{_tag(data)}</ETag>".replace('"', "&quot;")))
        rows += [f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
        self.listings += 1
        end = int(query.get("continuation-token", ["0"])[0]) + _PAGE_ROWS
        more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < len(rows) else ""
        page, truncated = "".join(rows[end - _PAGE_ROWS : end]), str(bool(more)).lower()
        head = f"<Name>b</Name><IsTruncated>{truncated}</IsTruncated>{more}"
        listing = f"<ListBucketResult>{head}{page}</ListBucketResult>"
        return 200, {}, listing.encode()

    def _get(self, request: Head, key: str) -> tuple[int, dict[str, str], bytes]:
        if (data := self.objects.get(key)) is None:
            return 404, {}, b""
        headers = {"ETag": _tag(data), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "Accept-Ranges": "bytes"}
        if request.get("if-match") not in ("", _tag(data)):
            return 412, headers, b""
        if not (span := re.fullmatch(r"bytes=(\d*)-(\d*)", request.get("range"))):
            return 200, headers, data
        start = int(span[1]) if span[1] else max(0, len(data) - int(span[2]))
        end = min(len(data), int(span[2]) + 1) if span[1] and span[2] else len(data)
        if start >= len(data):
            return 416, headers, b""
        return 206, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}, data[start:end]

    def _put(self, request: Head, key: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        old = _tag(self.objects[key]) if key in self.objects else ""
        if (request.get("if-none-match") == "*" and old) or request.get("if-match") not in ("", old):
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        if source := unquote(request.get("x-amz-copy-source")):
            if not self.copies:
                return 501, {}, b"<Error><Code>NotImplemented</Code></Error>"
            body = self.objects[source.strip("/").partition("/")[2]]
        self.objects[key] = body
        text = f"<CopyObjectResult><ETag>{_tag(body)}</ETag></CopyObjectResult>".encode() if source else b""
        return 200, {"ETag": _tag(body)}, text

    def _delete(self, keys: list[str]) -> tuple[int, dict[str, str], bytes]:
        for key in keys:
            self.objects.pop(key, None)
        rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return 200, {}, f"<DeleteResult>{rows}</DeleteResult>".encode()


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def served(bucket: Bucket) -> Iterator[None]:
    """Serve a bucket in a thread."""
    loop, started, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(bucket.serve, "127.0.0.1", 0, limit=2**20)
        bucket.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await over.wait()
        server.close()
        await bucket.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(20)
        loop.close()

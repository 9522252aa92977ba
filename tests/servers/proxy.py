"""A reverse proxy for a test server, which produces faults on request.

    python -m tests.servers.proxy PORT SERVER_PORT

The proxy forwards requests with their original `Host` header, because a client's signature covers this header. `POST
/-/set` sets faults and clears the log. `GET /-/log` returns the log. Both use JSON, see `tests.servers.faults`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.servers.faults import Asked, Fault
from tests.servers.web import PIECE, Head, WebServer, answer, body_of, read_head

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_FOREVER_S = 3600
_OF_UPLOADS = {"upload": "reset", "damage": "flip"}
_NO_BODY = ("204", "304")


class _Lost(ConnectionError):
    """The connection must be reset."""


class Proxy(WebServer):
    """Forwards requests to the server on this machine at `port`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._set({})

    def _set(self, given: dict[str, Any]) -> None:
        self._faults = [Fault(**one) for one in given.get("faults", ())]
        self._seen = [0] * len(self._faults)
        self._delay_s, self._rate = given.get("delay_s", 0.0), given.get("bytes_per_s", 0)
        self._random = random.Random(given.get("seed", 0))  # noqa: S311 - faults, no secrets
        self._asked: list[Asked] = []
        self._now = self._most = 0
        self._free_at = 0.0  # time when the next piece may be sent, if the rate is limited

    def _log(self) -> dict[str, Any]:
        return {"asked": [asdict(one) for one in self._asked], "most": self._most}

    async def answer(self, request: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Forward a request, apply the first matching fault, and add the request to the log."""
        if request.first[1].startswith("/-/"):
            body = b"".join([piece async for piece in body_of(request, reader)])
            if body:
                self._set(json.loads(body))
            said = json.dumps(self._log()).encode()
            return await self.reply(writer, answer(200, len(said)), said)
        fault = self._fault_of(request)
        asked = Asked(request.first[0], request.first[1], request.get("range"), fault.do if fault else "")
        self._asked.append(asked)
        self._now += 1
        self._most = max(self._most, self._now)
        try:
            await asyncio.sleep(self._delay_s)
            return await _Exchange(self, request, fault, asked).run(reader, writer)
        except _Lost:
            writer.transport.abort()
            return False
        finally:
            self._now = max(0, self._now - 1)

    def _fault_of(self, request: Head) -> Fault | None:
        method, target, _ = request.first
        chosen = None
        for at, fault in enumerate(self._faults):
            if not re.fullmatch(fault.method, method) or not re.search(fault.path, target):
                continue
            self._seen[at] += 1
            late = fault.times is not None and self._seen[at] >= fault.first + fault.times
            if chosen is None and self._seen[at] >= fault.first and not late and self._random.random() < fault.chance:
                chosen = fault
        return chosen

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the server."""
        return await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)

    async def pace(self, size: int) -> None:
        """Wait as long as `size` bytes take at the rate that the test has set."""
        if self._rate:
            now = asyncio.get_running_loop().time()
            self._free_at = max(now, self._free_at) + size / self._rate
            await asyncio.sleep(self._free_at - now)


class _Exchange:
    """A request with its fault, if any, and its entry in the log."""

    def __init__(self, proxy: Proxy, request: Head, fault: Fault | None, asked: Asked) -> None:
        self._proxy, self._request, self._fault, self._asked = proxy, request, fault, asked
        self._do = fault.do if fault else ""

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Forward the request and the response. Return whether the client's connection stays open."""
        if self._do in ("status", "redirect"):
            return await self._refuse(reader, writer)
        if self._do == "raw":
            return await self._send_raw(writer)
        if self._do == "refuse":
            raise _Lost
        if self._do == "silent":
            await asyncio.sleep(_FOREVER_S)
        from_server, to_server = await self._proxy.connect()
        try:
            await self._forward(reader, to_server)
            head = await read_head(from_server)
            while head.first[1] == "100":
                head = await read_head(from_server)
            if self._do == "lost":
                raise _Lost
            if self._do == "hang":
                await asyncio.sleep(_FOREVER_S)
            return await self._give_back(head, from_server, writer)
        finally:
            to_server.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        assert self._fault is not None
        async for _ in body_of(self._request, reader):
            pass
        status = self._fault.status if self._do == "status" else 307
        headers = dict(self._fault.headers)
        if self._do == "redirect":
            headers["Location"] = self._fault.to + self._request.first[1]
        self._asked.status = status
        body = self._fault.body.encode() if self._request.first[0] != "HEAD" else b""
        writer.write(answer(status, len(self._fault.body.encode()), headers).encoded() + body)
        return True

    async def _send_raw(self, writer: asyncio.StreamWriter) -> bool:
        assert self._fault is not None
        writer.write(self._fault.body.encode("latin-1"))
        while self._fault.to:
            writer.write(self._fault.to.encode("latin-1"))
            await writer.drain()
            await asyncio.sleep(self._fault.every_s)
        return False

    async def _forward(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        changed: dict[str, str | None] = {"Connection": "close", "Expect": None}
        if self._do == "whole":
            changed["Range"] = None
        elif self._do == "shift" and (match := re.fullmatch(r"bytes=(\d+)-(\d+)", self._asked.range)):
            changed["Range"] = f"bytes={int(match[1]) + 1}-{int(match[2]) + 1}"
        to_server.write(self._request.but(changed).encoded())
        body = body_of(self._request, reader)
        if self._do in _OF_UPLOADS:
            body = self._harmed(body, int(self._request.get("content-length") or 0), _OF_UPLOADS[self._do])
        async for piece in body:
            await self._proxy.pace(len(piece))
            to_server.write(piece)
            await to_server.drain()

    async def _give_back(self, head: Head, from_server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._asked.status = int(head.first[1])
        known = bool(head.get("content-length") or head.get("transfer-encoding"))
        empty = self._request.first[0] == "HEAD" or head.first[1] in _NO_BODY
        body = _all_of(from_server) if not known else body_of(head, from_server)
        changed: dict[str, str | None] = {"Connection": None if known or empty else "close"}
        if self._do == "etag":
            changed["ETag"] = '"another"'
        size = int(head.get("content-length") or 0)
        if self._do == "length":
            changed["Content-Length"] = str(size + 1)
        if self._do == "gzip" and not empty:
            data = gzip.compress(b"".join([piece async for piece in body]))
            changed |= {"Content-Encoding": "gzip", "Content-Length": str(len(data)), "Accept-Ranges": None}
            body = _one(data)
        writer.write(head.but(changed).encoded())
        if empty:
            return True
        async for piece in self._harmed(body, size, self._do):
            await self._proxy.pace(len(piece))
            writer.write(piece)
            self._asked.sent += len(piece)
            await writer.drain()
        return known and self._do not in ("cut", "length")

    async def _harmed(self, body: AsyncIterator[bytes], size: int, do: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a body. At the position of the fault, apply the fault `do`."""
        at = self._fault.at if self._fault and self._fault.at is not None else size // 2
        done = 0
        async for piece in body:
            here = at - done
            done += len(piece)
            if do not in ("cut", "reset", "stall", "flip", "drip") or not 0 <= here < len(piece):
                yield piece
            elif do == "flip":
                yield piece[:here] + bytes([piece[here] ^ 1]) + piece[here + 1 :]
            elif do == "drip":
                yield piece[:here]
                for byte in piece[here:]:
                    assert self._fault is not None
                    await asyncio.sleep(self._fault.every_s)
                    yield bytes([byte])
            else:
                yield piece[:here]
                if do == "cut":
                    return
                await asyncio.sleep(_FOREVER_S if do == "stall" else 0.01)  # so that the bytes arrive before the reset
                raise _Lost


async def _all_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(PIECE):
        yield piece


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(Proxy(int(sys.argv[2])).listen(int(sys.argv[1])))

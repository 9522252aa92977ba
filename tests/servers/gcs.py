"""An emulator of the XML interface of Google Cloud Storage, which translates requests for an S3 server.

    python -m tests.servers.gcs PORT S3_PORT

Google's XML interface has the same paths, listings and uploads as S3, but its conditions use generation numbers instead
of ETags. The gateway assigns a generation number to each version of an object that it sees. It also reports the CRC-32C
of uploaded objects. No other emulator supports enough of this interface for obstore: the XML interface of
gcp-storage-emulator 2026.7 has no HEAD, DELETE, listing or multipart uploads, and sends no ETag.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import sys
from typing import TYPE_CHECKING
from urllib.parse import unquote

from shardtool.fingerprint import crc32c
from tests.servers.web import Head, WebServer, body_of, read_head

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONDITION = "x-goog-if-generation-match"
_COPY = "x-goog-copy-source"


class Gateway(WebServer):
    """Forwards requests to the S3 server on this machine at `port`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers: dict[tuple[str, str], str] = {}
        self._crcs: dict[tuple[str, str], str] = {}
        self._next = itertools.count(1_700_000_000_000_000)

    async def answer(self, request: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Forward a request, and answer with the S3 server's response and Google's headers."""
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        try:
            to_server.write(request.but(self._as_s3(request)).encoded())
            crc = 0
            async for piece in body_of(request, reader):
                crc = crc32c(piece, crc)
                to_server.write(piece)
                await to_server.drain()
            head = await read_head(from_server)
            tag, path = head.get("etag"), unquote(request.first[1].partition("?")[0])
            if tag and (path, tag) not in self._numbers:
                self._numbers[path, tag] = str(next(self._next))
            if request.get(_COPY):
                source = f"/{unquote(request.get(_COPY)).lstrip('/')}"
                self._crcs |= {(path, tag): said for (one, tag), said in self._crcs.items() if one == source}
            elif tag and request.first[0] == "PUT":
                self._crcs[path, tag] = f"crc32c={base64.b64encode(crc.to_bytes(4, 'big')).decode()}"
            said = {
                "x-goog-generation": self._numbers.get((path, tag)),
                "x-goog-hash": self._crcs.get((path, tag or "")),
            }
            writer.write(head.but({**said, "Connection": None}).encoded())
            if request.first[0] != "HEAD" and head.first[1] not in ("204", "304"):
                async for piece in body_of(head, from_server):
                    writer.write(piece)
                    await writer.drain()
        finally:
            to_server.close()
        return True

    def _as_s3(self, request: Head) -> Mapping[str, str | None]:
        changed: dict[str, str | None] = {"Connection": "close", "Expect": None}
        if copied := request.get(_COPY):
            changed |= {_COPY: None, "x-amz-copy-source": copied}
        if (wanted := request.get(_CONDITION)) == "0":
            changed |= {_CONDITION: None, "If-None-Match": "*"}
        elif wanted:
            path = unquote(request.first[1].partition("?")[0])
            tags = (tag for (one, tag), number in self._numbers.items() if one == path and number == wanted)
            changed |= {_CONDITION: None, "If-Match": next(tags, '"none"')}
        return changed


if __name__ == "__main__":
    asyncio.run(Gateway(int(sys.argv[2])).listen(int(sys.argv[1])))

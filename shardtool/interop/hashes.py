"""The hashes that other tools want of a shard and of every payload in it: one pass over its bytes, in a worker."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import sha1, sha256
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, reason
from shardtool.fingerprint import crc32c
from shardtool.storage.open_file import open_file

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK = 2**20
_SHA256_SIZE = 32


@dataclass(frozen=True, slots=True)
class DigestTask:
    """A shard to be hashed.

    Attributes:
        path: Where it is.
        size: Its bytes.
        starts: int64 per payload: where it starts, in the order of the file.
        stops: int64 per payload: where it ends; none reaches into the next.
    """

    path: str
    size: int
    starts: bytes
    stops: bytes


@dataclass(frozen=True, slots=True)
class Digests:
    """The hashes of a shard.

    Attributes:
        crc: CRC-32C of the file.
        git: What git calls the file: the SHA-1 of a blob, in hex.
        sha256: Of the file, in hex.
        payloads: SHA-256 of each payload, in the order of the task.
    """

    crc: int
    git: str
    sha256: str
    payloads: bytes

    def payload(self, number: int) -> str:
        """Return the SHA-256 of a payload, in hex."""
        return self.payloads[number * _SHA256_SIZE : (number + 1) * _SHA256_SIZE].hex()


def digest(task: DigestTask, report: Callable[[int, int], None]) -> Digests:
    """Return the hashes of a shard; `report` gets the bytes done.

    Raises:
        CorruptShard: It cannot be read, or has another size.
    """
    starts, stops = (array("q", part).tolist() for part in (task.starts, task.stops))
    crc = at = end = 0
    git, whole, part = sha1(b"blob %d\0" % task.size, usedforsecurity=False), sha256(), sha256()
    payloads = []
    view = memoryview(bytearray(_BLOCK))
    try:
        file = open_file(task.path)
    except OSError as error:
        raise CorruptShard(task.path, reason(error), expected="the shard") from None
    try:
        while got := file.read_next(view, end):
            block, first, end = view[:got], end, end + got
            crc = crc32c(block, crc)
            git.update(block)
            whole.update(block)
            while at < len(starts) and starts[at] < end:
                part.update(block[max(starts[at] - first, 0) : stops[at] - first])
                if stops[at] > end:
                    break
                payloads.append(part.digest())
                part, at = sha256(), at + 1
            report(0, got)
    except OSError as error:
        raise CorruptShard(task.path, reason(error), expected="the shard") from None
    finally:
        file.close()
    if end != task.size:
        raise CorruptShard(task.path, f"{end:,} bytes", expected=f"{task.size:,}, as the dataset file says")
    payloads += [part.digest()] * (len(starts) - at)  # empty ones at the very end
    return Digests(crc, git.hexdigest(), whole.hexdigest(), b"".join(payloads))

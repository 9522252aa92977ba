"""What an index of another tool is made of, and how it is made."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import sha1, sha256
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, reason
from shardtool.fingerprint import crc32c
from shardtool.storage.open_file import open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa


# The hashes that other tools want of a shard and of every payload in it: one pass over its bytes, in a worker.


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


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """A shard, as far as its index is made of it.

    Attributes:
        name: Its name.
        size: Its bytes.
        table: Where its samples and fields lie, with the columns of `sidecar.SCHEMA`.
        digests: Its hashes, where the export wants them.
    """

    name: str
    size: int
    table: pa.Table
    digests: Digests | None = None


@dataclass(frozen=True, slots=True)
class SplitShards:
    """The shards of a dataset, or of one of its splits.

    Attributes:
        name: The split; empty: the dataset was never split.
        shards: Each shard's name, in order, to the number of its samples.
    """

    name: str
    shards: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FolderIndex:
    """Index files of which a folder has one set, shared by all splits of a dataset.

    Attributes:
        encode: Returns their bytes by their paths in the folder, in the order in which they should appear.
        info: The one of them that lists the shards.
        counts: Returns how many samples it gives for each of these shards.
        lasting: The one that is the user's to change: where it is there, it stays. Empty: there is none.
    """

    encode: Callable[[Sequence[SplitShards]], dict[str, bytes]]
    info: str
    counts: Callable[[bytes], dict[str, int]]
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class Export:
    """An index of another tool.

    Attributes:
        shard_format: `tar` or `tfrecord`: what it is an index of.
        reader: The tool.
        suffix: What the name of a shard's index ends with, in place of the shard's ending.
        encode: Returns the bytes of a shard's index; None: there is none.
        least: Samples that a shard must hold for the tool to take its index.
        hashed: Whether it has hashes of payloads: then shards are read.
        once: What else there is, once a folder.
        readme: Whether a `README.md` that names the shards comes with it.
        note: What the user should know.
    """

    shard_format: str
    reader: str
    suffix: str = ""
    encode: Callable[[IndexedShard], bytes] | None = None
    least: int = 0
    hashed: bool = False
    once: FolderIndex | None = None
    readme: bool = False
    note: str = ""

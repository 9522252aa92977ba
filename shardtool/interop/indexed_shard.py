"""A shard as input for index files of other tools: its samples, and its hashes from one pass over the bytes."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from hashlib import sha1, sha256
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import (
    CorruptShard,
    os_error_text,
    raising_machine_errors,
)
from shardtool.fingerprint import crc32c
from shardtool.storage.files import open_file
from shardtool.values import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.shard_index import ShardIndex

    Fields = list[tuple[bytes, int, int]]  # of a sample: each one's name, offset and length


_SHA256_BYTES = 32


class ShardHashTask(NamedTuple):
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

    @classmethod
    def of(cls, path: str, size: int, index: ShardIndex) -> ShardHashTask:
        """Return the task of a shard whose samples lie as an index says."""
        return cls(path, size, index.offsets.tobytes(), (index.offsets + index.lengths).tobytes())


class ShardHashes(NamedTuple):
    """The hashes of a shard.

    Attributes:
        crc: CRC-32C of the file.
        git: What git calls the file: the SHA-1 of a blob, in hex.
        sha256: Of the file, in hex.
        payloads: SHA-256 of each payload, 32 bytes, in the order of the task: of a million, as texts they took 120 MB.
    """

    crc: int
    git: str
    sha256: str
    payloads: bytes

    def payload(self, number: int) -> str:
        """Return the SHA-256 of a payload, in hex."""
        return self.payloads[number * _SHA256_BYTES : (number + 1) * _SHA256_BYTES].hex()


def hash_shard(task: ShardHashTask, report: Callable[[int, int], None]) -> ShardHashes:
    """Return the hashes of a shard; `report` gets the bytes done.

    Raises:
        CorruptShard: It cannot be read, or has another size.
    """
    starts, stops = (array("q", part).tolist() for part in (task.starts, task.stops))
    crc = at = end = 0
    git, whole, part = sha1(b"blob %d\0" % task.size, usedforsecurity=False), sha256(), sha256()
    payloads = bytearray()
    view = memoryview(bytearray(BLOCK_BYTES))
    try:
        with raising_machine_errors(task.path), open_file(task.path) as file, file.stream() as stream:
            while got := stream.readinto(view):
                block, first, end = view[:got], end, end + got
                crc = crc32c(block, crc)
                git.update(block)
                whole.update(block)
                while at < len(starts) and starts[at] < end:
                    part.update(block[max(starts[at] - first, 0) : stops[at] - first])
                    if stops[at] > end:
                        break
                    payloads += part.digest()
                    part, at = sha256(), at + 1
                report(0, got)
    except OSError as error:
        raise CorruptShard(task.path, os_error_text(error), expected="the shard") from None
    if end != task.size:
        raise CorruptShard(task.path, f"{end:,} bytes", expected=f"{task.size:,}, as the dataset file says")
    payloads += part.digest() * (len(starts) - at)  # empty ones at the very end
    return ShardHashes(crc, git.hexdigest(), whole.hexdigest(), bytes(payloads))


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """A shard, as far as its index is made of it: where its samples lie, and its hashes, where these are wanted."""

    index: ShardIndex
    digests: ShardHashes | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.index.fact.name

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.index.fact.size

    def samples(self) -> Iterator[tuple[bytes, Fields]]:
        """Yield the key and the fields of each sample."""
        index = self.index
        names = [name.encode() for name in index.names]
        columns = [[names[code] for code in index.codes.tolist()], index.offsets.tolist(), index.lengths.tolist()]
        fields = list(zip(*columns, strict=True))
        for key, (first, last) in zip(index.all_keys(), pairwise(index.firsts.tolist()), strict=True):
            yield key, fields[first:last]

    def places(self) -> list[tuple[int, int]]:
        """Return where each sample starts, and how many bytes it takes."""
        return list(zip(self.index.starts.tolist(), self.index.sizes.tolist(), strict=True))

    def limit(self) -> int:
        """Return how many bytes an index of it may have: more is none of it."""
        index, fields = self.index, Counter(self.index.codes.tolist())
        letters = int((index.key_sizes * index.counts).sum())
        letters += sum(count * len(index.names[code].encode()) for code, count in fields.items())
        return _MAX_HEAD_BYTES + len(index.codes) * _MAX_BYTES_PER_FIELD + letters * _MAX_ESCAPED_BYTES


_MAX_HEAD_BYTES = 4096  # bytes of an index besides those of its fields


_MAX_BYTES_PER_FIELD = 1024  # bytes of an index that a field takes, its name aside


_MAX_ESCAPED_BYTES = 6  # bytes that one byte of a name may take in JSON


STANDARD_SPLITS = ("train", "val", "test")  # `energon lint` wants all of them, empty ones too


def split_order(split: DatasetFile) -> tuple[int, str]:
    """Return a key that sorts the splits of a run: train, val, test, then others by name."""
    name = split.made.split
    return (STANDARD_SPLITS.index(name) if name in STANDARD_SPLITS else len(STANDARD_SPLITS), name)


DEFAULT_SPLIT = "train"  # of a dataset without splits: what timm looks for

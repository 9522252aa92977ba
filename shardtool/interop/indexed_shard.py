"""The samples and hashes of a shard, as input for other tools' index files."""

from __future__ import annotations

from array import array
from collections import Counter
from hashlib import sha1, sha256
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataclass import dataclass
from shardtool.errors import CorruptShard, os_error_text, raising_machine_errors
from shardtool.fingerprint import crc32c
from shardtool.storage.files import files_at
from shardtool.values import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.shard_index import ShardIndex

    Fields = list[tuple[bytes, int, int]]  # name, offset and length of each field of a sample


_SHA256_BYTES = 32


class ShardHashTask(NamedTuple):
    """A shard to hash. `starts` and `stops` contain the int64 offsets of the payloads, sorted and without overlap."""

    path: str
    size: int
    starts: bytes
    stops: bytes

    @classmethod
    def of(cls, path: str, size: int, index: ShardIndex) -> ShardHashTask:
        """Return the task for a shard with this index."""
        return cls(path, size, index.offsets.tobytes(), (index.offsets + index.lengths).tobytes())


class ShardHashes(NamedTuple):
    """CRC-32C, Git blob hash and SHA-256 of a shard, and the SHA-256 of each payload."""

    crc: int
    git: str
    sha256: str
    payloads: bytes

    def payload(self, number: int) -> str:
        """Return a payload's SHA-256, in hex."""
        return self.payloads[number * _SHA256_BYTES : (number + 1) * _SHA256_BYTES].hex()


def hash_shard(task: ShardHashTask, report: Callable[[int, int], None]) -> ShardHashes:
    """Hash a shard. After each block, report 0 samples and the size of the block."""
    starts, stops = (array("q", offsets).tolist() for offsets in (task.starts, task.stops))
    crc = payload_index = end = 0
    git_hash, file_hash, payload_hash = sha1(b"blob %d\0" % task.size, usedforsecurity=False), sha256(), sha256()
    payloads = bytearray()
    view = memoryview(bytearray(BLOCK_BYTES))
    try:
        with raising_machine_errors(task.path), files_at(task.path).open(task.path) as file, file.stream() as stream:
            while count := stream.readinto(view):
                block, block_start = view[:count], end
                end += count
                crc = crc32c(block, crc)
                git_hash.update(block)
                file_hash.update(block)
                while payload_index < len(starts) and starts[payload_index] < end:
                    start, stop = starts[payload_index], stops[payload_index]
                    payload_hash.update(block[max(start - block_start, 0) : stop - block_start])
                    if stop > end:
                        break
                    payloads += payload_hash.digest()
                    payload_hash, payload_index = sha256(), payload_index + 1
                report(0, count)
    except OSError as error:
        raise CorruptShard(task.path, os_error_text(error), expected="a readable shard") from None
    if end != task.size:
        raise CorruptShard(task.path, f"{end:,} bytes", expected=f"{task.size:,} bytes, as listed in the dataset file")
    payloads += payload_hash.digest() * (len(starts) - payload_index)  # of empty payloads at the end of the shard
    return ShardHashes(crc, git_hash.hexdigest(), file_hash.hexdigest(), bytes(payloads))


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """A shard's index and, if requested, its hashes."""

    index: ShardIndex
    digests: ShardHashes | None = None

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self.index.facts.name

    @property
    def size(self) -> int:
        """Size of the shard in bytes."""
        return self.index.facts.size

    def samples(self) -> Iterator[tuple[bytes, Fields]]:
        """Yield each sample: its key, and the name, offset and length of each field."""
        index = self.index
        names = [name.encode() for name in index.names]
        columns = [[names[code] for code in index.codes.tolist()], index.offsets.tolist(), index.lengths.tolist()]
        fields = list(zip(*columns, strict=True))
        for key, (first, last) in zip(index.all_keys(), pairwise(index.first_rows.tolist()), strict=True):
            yield key, fields[first:last]

    def sample_spans(self) -> list[tuple[int, int]]:
        """Return the offset and size of each sample."""
        return list(zip(self.index.starts.tolist(), self.index.sizes.tolist(), strict=True))

    def limit(self) -> int:
        """Return the maximum size in bytes of another tool's index of this shard."""
        index, fields = self.index, Counter(self.index.codes.tolist())
        name_bytes = int((index.key_sizes * index.counts).sum())
        name_bytes += sum(count * len(index.names[code].encode()) for code, count in fields.items())
        return _MAX_HEAD_BYTES + len(index.codes) * _MAX_BYTES_PER_FIELD + name_bytes * _MAX_ESCAPED_BYTES


_MAX_HEAD_BYTES = 4096
_MAX_BYTES_PER_FIELD = 1024
_MAX_ESCAPED_BYTES = 6  # JSON may use this many bytes for one byte of a name
STANDARD_SPLITS = ("train", "val", "test")  # `energon lint` requires all three splits


def split_order(split: DatasetFile) -> tuple[int, str]:
    """Return a sort key for the order train, val, test, then other splits by name."""
    name = split.run.split
    return (STANDARD_SPLITS.index(name) if name in STANDARD_SPLITS else len(STANDARD_SPLITS), name)


DEFAULT_SPLIT = "train"  # timm's name for the split of a dataset without splits

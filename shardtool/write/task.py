"""The task of packing one shard, its result, and buffers.

A worker reuses its buffers, because the page faults of new buffers would take as long as packing small files.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from shardtool.fingerprint import content_digest, crc32c

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shardtool.shard_samples import ShardContent, ShardSamples
    from shardtool.skipped import Skipped
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import DurableFile
    from shardtool.transform.transform import Transform
    from shardtool.values import Dots, OnError, Oversize


class KeepShard(NamedTuple):
    """Keep the existing shard if its checksum is `crc`. If `trusts_size` is true, do not compute the checksum."""

    crc: int
    field_crcs: bytes
    size: int
    trusts_size: bool


ShardAction: TypeAlias = "KeepShard | Literal['write', 'compare']"


class TransformWork(NamedTuple):
    """The transform that a task applies to its samples, and the limits of the shard.

    Attributes:
        max_bytes: Maximum bytes of all records in the shard.
        known_columns: An Arrow stream of planned metadata columns that `transform.where` needs, or b"".
    """

    transform: Transform
    max_bytes: int
    max_count: int | None
    oversize: Oversize
    dots: Dots = "first"
    known_columns: bytes = b""


class TransformedSamples(NamedTuple):
    """The samples of a shard after a transform.

    Attributes:
        content: The written samples, where `inline` contains only numbers, as text.
        sources: int64, the index of the source sample of each written sample.
        consumed: Number of processed source samples. Later samples do not fit in this shard.
        dropped: Number of source samples that the user's function dropped by returning no sample.
        measured: The measured values of each written sample (see `ReadSample`).
    """

    content: ShardContent
    sources: bytes
    consumed: int
    dropped: int
    measured: list[tuple[object, ...]]


class ShardTask(NamedTuple):
    """A shard to write.

    Attributes:
        action: `compare` keeps an existing shard if packing would write the same bytes.
        parallel_reads: Number of files to read in parallel.
        size: Size of the shard in bytes if no sample is skipped, or None if unknown.
    """

    name: str
    format: str
    folder: OutputFolder
    samples: ShardSamples
    on_error: OnError
    mtime_ns: int
    action: ShardAction = "write"
    work: TransformWork | None = None
    parallel_reads: int = 1
    size: int | None = None


class ShardResult(NamedTuple):
    """The result of a `ShardTask`.

    Attributes:
        staged: The file to publish, or None to keep the existing file.
        field_crcs: uint32, CRC-32C of each written field in the shard.
        compared: Whether the existing file was compared with its source.
        wrong: Whether the existing file cannot be kept. If true, the other attributes are empty.
    """

    staged: DurableFile | None
    size: int
    crc: int
    field_crcs: bytes
    digest: int
    skipped: tuple[tuple[int, Skipped], ...]
    transformed: TransformedSamples | None = None
    compared: bool = False
    wrong: bool = False


def split_names(names: bytes) -> list[bytes]:
    """Split NUL-terminated names."""
    return names[:-1].split(b"\0") if names else []


def compute_content_fingerprint(
    content: ShardContent, field_crcs: bytes, skipped: Collection[int], one_number_lists: Sequence[int] = ()
) -> int:
    """Return the content fingerprint of the samples whose indexes are not in `skipped`.

    Args:
        field_crcs: uint32, CRC-32C of each written field.
        one_number_lists: Three values for each list of one number: its index in `field_crcs`, and the length and
            CRC-32C of the number as text.
    """
    keys, counts = split_names(content.keys), array("H", content.counts).tolist()
    codes, sizes = content.codes, content.sizes
    texts = split_names(content.inline) if content.numbers and content.inline else []
    for sample in sorted(skipped, reverse=True):
        row = sum(counts[:sample])
        end = row + counts[sample]
        codes, sizes = codes[: 2 * row] + codes[2 * end :], sizes[: 8 * row] + sizes[8 * end :]
        del keys[sample], counts[sample], texts[row:end]
    if texts:
        crcs = array("I", field_crcs)
        for row, code in enumerate(array("H", codes)):
            if code in content.numbers:
                crcs[row] = crc32c(texts[row])
        field_crcs = crcs.tobytes()
    if one_number_lists:
        lengths, crcs = array("q", sizes), array("I", field_crcs)
        for row, length, crc in zip(one_number_lists[::3], one_number_lists[1::3], one_number_lists[2::3], strict=True):
            lengths[row], crcs[row] = length, crc
        sizes, field_crcs = lengths.tobytes(), crcs.tobytes()
    return content_digest(keys, counts, content.fields, codes=codes, lengths=sizes, crcs=field_crcs)


# Packing takes up to twice the time with buffers larger than the L2 cache.
BUFFER_SIZE = 512 * 1024

MAX_GAP_BYTES = 2**20  # smaller gaps between payloads are read and discarded, because seeking takes as long

_arena = memoryview(b"")


@cache
def get_buffer(use: Literal["shard", "window", "gap"]) -> memoryview:
    """Return the buffer for `use`, the same in every call."""
    return memoryview(bytearray(MAX_GAP_BYTES if use == "gap" else BUFFER_SIZE))


def get_arena(size: int) -> memoryview:
    """Return `size` bytes of memory for the payloads of a shuffle. The next call reuses it."""
    global _arena  # noqa: PLW0603 - a worker has memory for only one arena
    if len(_arena) < size:
        _arena = memoryview(b"")  # free the old arena first
        _arena = memoryview(bytearray(size))
    return _arena[:size]

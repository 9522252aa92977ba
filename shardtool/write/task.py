"""The task and the result of packing one shard: plain values that travel to a worker and back."""

from __future__ import annotations

from array import array
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
    """A file of the shard's name has a sound sidecar, of a source that has not changed: it stays if it is that file.

    Attributes:
        crc: What the sidecar says of the file.
        field_crcs: uint32 per field, as the sidecar has them.
        size: The file's bytes.
        unread: Whether its size is enough to know it, so that not even the file is read.
    """

    crc: int
    field_crcs: bytes
    size: int
    unread: bool


ShardAction: TypeAlias = "KeepShard | Literal['write', 'compare']"


class TransformWork(NamedTuple):
    """The changes to samples, whose sizes the plan then only estimates, and the limits of the shard.

    Attributes:
        transform: What to do to each sample.
        room: Bytes of records that the shard may hold.
        max_count: The most samples; None: any number.
        oversize: What becomes of a sample that fits in no shard.
        dots: Where keys end in the names of a tar's members.
        known: The columns that the transform's condition names, as far as the plan has them: a stream of Arrow.
    """

    transform: Transform
    room: int
    max_count: int | None
    oversize: Oversize
    dots: Dots = "first"
    known: bytes = b""


class TransformedSamples(NamedTuple):
    """A shard's samples as transforms made them.

    Attributes:
        content: What was written; its `inline` has the text of numbers only.
        sources: int64 per sample: the place in the task of the sample that it was made of.
        consumed: How many of the task's samples are dealt with; the rest wants another shard.
        dropped: How many of these the user's function dropped.
        found: Of each sample, what was found when it was read: a value for each column of `Transform.found`.
    """

    content: ShardContent
    sources: bytes
    consumed: int
    dropped: int
    found: list[tuple[object, ...]]


class ShardTask(NamedTuple):
    """A shard to write.

    Attributes:
        shard: Its number in the plan.
        name: Its final name.
        format: `tar` or `tfrecord`.
        folder: Where it goes.
        samples: What goes into it.
        on_error: Whether a sample that cannot be read ends the run, or is left out.
        mtime_ns: The modification time that the file gets.
        todo: Whether to write it, or to keep what an earlier run has left: `compare` keeps a file of its name if
            reading the source again gives the same bytes.
        work: What is done to the samples; None: nothing, they are packed as they are.
        reads: How many files are read at the same time.
        size: Its bytes, if nothing is left out; None: they are not known.
    """

    shard: int
    name: str
    format: str
    folder: OutputFolder
    samples: ShardSamples
    on_error: OnError
    mtime_ns: int
    todo: ShardAction = "write"
    work: TransformWork | None = None
    reads: int = 1
    size: int | None = None


class ShardResult(NamedTuple):
    """The result of a shard's task.

    Attributes:
        shard: Its number in the plan.
        staged: The file, to be published; None: the one that is there is right.
        size: Bytes.
        crc: CRC-32C of the whole file.
        field_crcs: uint32 for each field that was written, of its bytes in the shard.
        digest: The content fingerprint of its samples.
        skipped: What was left out, each with its place in the shard.
        made: What transforms made; None: what was planned.
        compared: Whether the file that is there was found right by reading the source again.
        wrong: Whether the file that is there is not to be kept, and nothing was written yet; then all else is empty.
    """

    shard: int
    staged: DurableFile | None
    size: int
    crc: int
    field_crcs: bytes
    digest: int
    skipped: tuple[tuple[int, Skipped], ...]
    made: TransformedSamples | None = None
    compared: bool = False
    wrong: bool = False


def split_names(names: bytes) -> list[bytes]:
    """Return the names in a buffer with a NUL after each."""
    return names[:-1].split(b"\0") if names else []


def compute_content_fingerprint(
    content: ShardContent, field_crcs: bytes, skipped: Collection[int], ones: Sequence[int] = ()
) -> int:
    """Return the content fingerprint of the samples that were written: all but those at the places `skipped`.

    Args:
        content: What was planned.
        field_crcs: uint32 for each field that was written.
        skipped: Places of samples that were not.
        ones: For each field of lists that holds a single number: its place in `field_crcs`, and the length and checksum
            of the number's text.
    """
    keys, counts = split_names(content.keys), array("H", content.counts).tolist()
    codes, sizes = content.codes, content.sizes
    texts = split_names(content.inline) if content.numbers and content.inline else []
    for sample in sorted(skipped, reverse=True):
        row = sum(counts[:sample])
        end = row + counts[sample]
        codes, sizes = codes[: 2 * row] + codes[2 * end :], sizes[: 8 * row] + sizes[8 * end :]
        del keys[sample], counts[sample], texts[row:end]
    if texts:  # content is the number's text, however a format stores it
        crcs = array("I", field_crcs)
        for row, code in enumerate(array("H", codes)):
            if code in content.numbers:
                crcs[row] = crc32c(texts[row])
        field_crcs = crcs.tobytes()
    if ones:
        lengths, crcs = array("q", sizes), array("I", field_crcs)
        for row, length, crc in zip(ones[::3], ones[1::3], ones[2::3], strict=True):
            lengths[row], crcs[row] = length, crc
        sizes, field_crcs = lengths.tobytes(), crcs.tobytes()
    return content_digest(keys, counts, content.fields, codes=codes, lengths=sizes, crcs=field_crcs)

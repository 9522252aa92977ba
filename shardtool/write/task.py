"""A shard to write, and what became of it: plain values that travel to a worker and back."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardtool.fingerprint import content_digest, crc32c
from shardtool.values import ShardContent
from shardtool.write.buffers import BUFFER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from shardtool.skipped import SkipCode, Skipped
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import DurableFile
    from shardtool.transform.steps import Transform
    from shardtool.values import Dots, Number, OnError, Oversize, ShardSamples

    Parts = list[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Write:
    """The shard is to be written."""


@dataclass(frozen=True, slots=True)
class Compare:
    """A file of the shard's name may be right: it stays if reading the source again gives the same bytes."""


@dataclass(frozen=True, slots=True)
class Keep:
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


@dataclass(frozen=True, slots=True)
class TransformWork:
    """The changes to samples, whose sizes the plan then only estimates, and the limits of the shard.

    Attributes:
        transform: What to do to each sample.
        room: Bytes of records that the shard may hold.
        max_count: The most samples; None: any number.
        oversize: What becomes of a sample that fits in no shard.
        dots: Where keys end in the names of a tar's members.
    """

    transform: Transform
    room: int
    max_count: int | None
    oversize: Oversize
    dots: Dots = "first"


@dataclass(frozen=True, slots=True)
class TransformedSamples:
    """A shard's samples as transforms made them.

    Attributes:
        content: What was written; its `inline` has the text of numbers only.
        sources: int64 per sample: the place in the task of the sample that it was made of.
        consumed: How many of the task's samples are dealt with; the rest wants another shard.
        dropped: How many of these the user's function dropped.
        images: (width, height, mode) of each sample's first image, None where it has none; empty: not asked for.
    """

    content: ShardContent
    sources: bytes
    consumed: int
    dropped: int
    images: list[tuple[int, int, str] | None]


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard to write.

    Attributes:
        shard: Its number in the plan.
        name: Its final name.
        format: `tar` or `tfrecord`.
        folder: Where it goes.
        samples: What goes into it.
        on_error: Whether a sample that cannot be read ends the run, or is left out.
        mtime_ns: The modification time that the file gets.
        todo: Whether to write it, or to keep what an earlier run has left.
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
    todo: Keep | Compare | Write = Write()
    work: TransformWork | None = None
    reads: int = 1
    size: int | None = None


@dataclass(frozen=True, slots=True)
class ShardResult:
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


class SourceFailed(Exception):
    """A file cannot be read, or is not what the plan saw; or a transform cannot take the sample."""

    def __init__(self, path: bytes, code: SkipCode, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.path, self.code, self.message, self.detail = path, code, message, detail


def split_names(names: bytes) -> list[bytes]:
    """Return the names in a buffer with a NUL after each."""
    return names[:-1].split(b"\0")


def numbers(kind: str, data: bytes) -> array[int]:
    """Return a column's numbers."""
    found = array(kind)
    found.frombytes(data)
    return found


def digest(content: ShardContent, field_crcs: bytes, skipped: Collection[int], ones: Sequence[int] = ()) -> int:
    """Return the content fingerprint of the samples that were written: all but those at the places `skipped`.

    Args:
        content: What was planned.
        field_crcs: uint32 for each field that was written.
        skipped: Places of samples that were not.
        ones: For each field of lists that holds a single number: its place in `field_crcs`, and the length and checksum
            of the number's text.
    """
    keys, counts = split_names(content.keys), numbers("H", content.counts).tolist()
    codes, sizes = content.codes, content.sizes
    texts = split_names(content.inline) if content.numbers and content.inline else []
    for sample in sorted(skipped, reverse=True):
        row = sum(counts[:sample])
        end = row + counts[sample]
        codes, sizes = codes[: 2 * row] + codes[2 * end :], sizes[: 8 * row] + sizes[8 * end :]
        del keys[sample], counts[sample], texts[row:end]
    if texts:  # content is the number's text, however a format stores it
        crcs = numbers("I", field_crcs)
        for row, code in enumerate(numbers("H", codes)):
            if code in content.numbers:
                crcs[row] = crc32c(texts[row])
        field_crcs = crcs.tobytes()
    if ones:
        lengths, crcs = numbers("q", sizes), numbers("I", field_crcs)
        for row, length, crc in zip(ones[::3], ones[1::3], ones[2::3], strict=True):
            lengths[row], crcs[row] = length, crc
        sizes, field_crcs = lengths.tobytes(), crcs.tobytes()
    return content_digest(keys, counts, content.fields, codes=codes, lengths=sizes, crcs=field_crcs)


# Samples that are in memory become records of a shard: their bytes, buffered, and columns of what they hold.


_COPIED = 2**16  # bytes of a part, up to which copying it costs less than another write


class Field(NamedTuple):
    """A field of a sample, encoded.

    Attributes:
        name: Its name.
        size: Bytes of its payload.
        stored: What the shard holds of it: the payload, or the number that it stands for.
        text: The payload where the plan of a table would carry it; empty otherwise.
    """

    name: bytes
    size: int
    stored: bytes | memoryview
    text: bytes = b""


class ShardRecords:
    """The samples of a shard, in the order in which they are added.

    Args:
        write: Takes the bytes of the shard, some at a time.

    Attributes:
        keys: The samples' keys.
        size: Bytes of all records so far.
        crcs: CRC-32C of each field, as it is stored.
    """

    def __init__(self, write: Callable[[bytes | memoryview], None]) -> None:
        self._write = write
        self.keys: list[bytes] = []
        self.size = 0
        self.crcs = array("I")
        self._places: dict[bytes, int] = {}  # field to its code
        self._counts, self._codes, self._sizes, self._stored = array("H"), array("H"), array("q"), array("q")
        self._texts: list[bytes] = []
        self._pending: Parts = []
        self._pending_size = 0

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: bytes, parts: Parts, size: int, fields: list[Field]) -> None:
        """Add a sample.

        Args:
            key: Its key.
            parts: The bytes of its record.
            size: How many there are.
            fields: What is in it.
        """
        self.keys.append(key)
        self._counts.append(len(fields))
        places = self._places
        for name, length, stored, text in fields:
            self._codes.append(places.setdefault(name, len(places)))
            self._sizes.append(length)
            self._stored.append(len(stored))
            self.crcs.append(crc32c(stored))
            self._texts.append(text)
        self._pending += parts
        self._pending_size += size
        self.size += size
        if self._pending_size > BUFFER_SIZE:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        run: Parts = []
        for part in self._pending:
            if len(part) < _COPIED:
                run.append(part)
            else:
                self._write(b"".join(run))
                self._write(part)
                run = []
        if run:
            self._write(b"".join(run))
        self._pending, self._pending_size = [], 0

    def content(self, numbers: Mapping[bytes, Number], *, texts: bool) -> ShardContent:
        """Return what the samples hold.

        Args:
            numbers: The fields that are stored as numbers, and of what kind.
            texts: Whether the text of fields belongs to it.
        """
        return ShardContent(
            keys=b"".join([key + b"\0" for key in self.keys]),
            counts=self._counts.tobytes(),
            fields=tuple(self._places),
            codes=self._codes.tobytes(),
            sizes=self._sizes.tobytes(),
            stored=self._stored.tobytes(),
            inline=b"\0".join(self._texts) + b"\0" if texts else b"",
            numbers={self._places[name]: kind for name, kind in numbers.items() if name in self._places},
        )

"""The shards of datasets, each as columns: what its sidecar says, or what a walk over it found.

A dataset file of ours is the promise of what is there: whatever is not as it says is an error, never a reason to walk,
for only a sidecar has metadata and checksums. No payload is read here, and nothing is trusted that a page or a footer
of a sidecar claims: see `shardtool.dataset.sidecar_read`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

import numpy as np

from shardtool.dataset.find import sidecar_path
from shardtool.dataset.shard_file import is_packed, unopened
from shardtool.dataset.sidecar_read import check_listed, check_samples, check_shard, read_bytes
from shardtool.dataset.sidecar_read import read_sidecar as read_rows
from shardtool.dataset.walk import FeatureConflict, Survey, SurveyTask, walked_text
from shardtool.entries.arrow import numbers, string_array, strings
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, printable, reason
from shardtool.pattern import sidecar_name
from shardtool.skipped import Skipped
from shardtool.storage.open_file import file_fact, plain_fact
from shardtool.storage.places import is_url
from shardtool.values import SpanFile, is_utf8, to_bytes
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.storage.sources import FileFact
    from shardtool.values import Dots, Number

FIELD_LIMIT = 2**16 - 1  # of different fields, and of those in a sample
_WIDE = 2**32
_GET = "Get the file again, or make it anew from its source."


class FilesSeen:
    """The files that were looked at, and the latest time at which one of them changed.

    Attributes:
        changed_ns: The latest time at which anything changed in them or their names, in nanoseconds since 1970.
    """

    def __init__(self) -> None:
        self.changed_ns = 0
        self._hash = blake2b(digest_size=16)

    def add(self, path: str, fact: FileFact) -> None:
        """Take what the file system says of a file, or a server of an object, before it is read.

        No clock is asked about an object: its address and its version tell it from any other.
        """
        if isinstance(fact, os.stat_result):
            self.changed_ns = max(self.changed_ns, fact.st_mtime_ns, fact.st_ctime_ns)
            self._hash.update(b"%d %d " % (fact.st_dev, fact.st_ino))
        else:
            self._hash.update(f"{path} {fact.st_size} {fact.st_mtime_ns} ".encode())

    @property
    def identity(self) -> str:
        """A digest of these files, in their order."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard that is there.

    Attributes:
        file: Where, and what the file system says of it.
        name: Its file name.
        dataset: The place of its dataset among those that were given.
        format: `tar` or `tfrecord`.
        entry: Its entry in a dataset file of ours.
        dots: Where keys end in its members' names.
        kinds: In a TFRecord, field to `int64` or `float`; None: only a walk can find them.
        numbers: In a tar, field to `int64` or `float`, where texts stand for numbers.
        index_folder: Where its sidecar lies; None: beside it.
    """

    file: SpanFile
    name: str
    dataset: int
    format: str
    entry: ShardEntry | None
    dots: Dots
    kinds: Mapping[str, Number] | None
    numbers: Mapping[str, Number]
    index_folder: str | None = None

    @property
    def path(self) -> str:
        """Its path."""
        return os.fsdecode(self.file.path)

    @property
    def packed(self) -> bool:
        """Whether it is compressed."""
        return is_packed(self.path)

    def walk(self, *, salvage: bool = False) -> SurveyTask:
        """Return how to walk it: the records of a TFRecord have checksums of their own, so these are seen to be right.

        Args:
            salvage: Whether to go on behind damage; not where an index says what there is.
        """
        return SurveyTask(self.path, self.format == "tfrecord", self.dots, salvage)


@dataclass(frozen=True, slots=True)
class ShardColumns:
    """The samples of one shard, as columns.

    Attributes:
        shard: The shard.
        keys: One per sample.
        counts: Fields per sample; uint16 once they are arranged.
        names: The field names that `codes` stands for.
        codes: One per field; uint16 once they are arranged.
        offsets: One per field, where its payload starts; uint32 where that is wide enough.
        lengths: One per field, bytes of its payload; of the same type.
        crcs: uint32 per field, the CRC-32C of its bytes; None: unknown.
        kinds: Field to `int64` or `float`: of a TFRecord's numbers.
        unlike: Field to the first feature that is no single value, or of another kind, as far as the shard was walked.
        skipped: What the shard holds that is no part of a sample.
        columns: Metadata, a row per sample; None where there is none.
        whole: bool per field: whether its bytes are all that a list holds; None: none are, as far as was walked.
        joined: How many samples were put together of fields that lie apart.
    """

    shard: Shard
    keys: pa.StringArray
    counts: NDArray[np.integer]
    names: tuple[str, ...]
    codes: NDArray[np.integer]
    offsets: NDArray[np.integer]
    lengths: NDArray[np.integer]
    crcs: NDArray[np.uint32] | None
    kinds: Mapping[str, Number]
    unlike: Mapping[str, FeatureConflict] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    columns: pa.Table | None = None
    whole: NDArray[np.bool_] | None = None
    joined: int = 0

    def __len__(self) -> int:
        return len(self.counts)

    def key(self, sample: int) -> str:
        """Return a sample's key."""
        return str(self.keys[sample].as_py())

    def owners(self) -> NDArray[np.int64]:
        """Return the sample that each row belongs to."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def rows(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield each field with its rows, ascending."""
        order = np.argsort(self.codes, kind="stable")
        ends = np.cumsum(np.bincount(self.codes, minlength=len(self.names)))
        for name, first, last in zip(self.names, [0, *ends.tolist()], ends.tolist(), strict=False):
            yield name, order[first:last]

    def where(self, sample: int) -> str:
        """Name a sample, for messages."""
        return f"{self.shard.path}, {printable(self.key(sample))}"


def stat_shard(path: str) -> FileFact:
    """Return what the file system says of a shard, or the server that it lies on.

    Raises:
        CorruptShard: It is not there, no plain file, or cannot be opened.
    """
    try:
        return plain_fact(path)
    except OSError as error:
        raise unopened(path, error, remedy=_GET) from None


def sidecar_bytes(shard: Shard) -> tuple[FileFact, bytes] | CorruptShard | None:
    """Return the sidecar of a shard, and what the file system says of it; what is wrong; None where it has none."""
    if shard.packed:
        return None
    path = sidecar_path(shard.path, shard.index_folder)
    try:
        return file_fact(path), read_bytes(path)
    except FileNotFoundError:
        if shard.entry is None and (is_url(path) or not os.path.islink(path)):
            return None
        return CorruptShard(path, "no such file", expected=f"the index of {shard.name}", remedy=_remedy())
    except OSError as error:
        found = f"cannot be read: {reason(error)}"
        return CorruptShard(path, found, expected=f"the index of {shard.name}", remedy=_remedy())
    except AccessRefused:
        if shard.entry is None:  # said of what is not there, too, where we may not list
            return None
        raise


def read_sidecar(shard: Shard, data: bytes) -> ShardColumns:
    """Return what the sidecar of a shard says.

    Raises:
        CorruptShard: It is damaged, of another shard, or not the one that the dataset file lists.
    """
    path = sidecar_path(shard.path, shard.index_folder)
    entry, size = shard.entry, shard.file.size
    if entry is not None:
        check_listed(data, path, entry)
    sidecar = read_rows(data, path, size)
    check_shard(sidecar.fact, path, shard.name, size)
    if entry is not None:
        check_samples(sidecar, path, entry)
    rows, columns = sidecar.rows, sidecar.decoded_metadata() if sidecar.metadata.num_columns else None
    keys, names = string_array(rows.keys, rows.key_sizes), tuple(map(bytes.decode, rows.names))
    places, kinds = (rows.codes, rows.offsets, rows.lengths), shard.kinds or {}
    return ShardColumns(shard, keys, rows.counts, names, *places, rows.crcs, kinds, columns=columns)


def needs_walk(shard: Shard, indexed: ShardColumns | None) -> bool:
    """Tell whether a shard must be walked: only so are its payloads' places, checksums or kinds known."""
    return indexed is None or (shard.format == "tfrecord" and shard.kinds is None) or indexed.crcs is None


def walked_part(shard: Shard, found: Survey, indexed: ShardColumns | None) -> ShardColumns:
    """Return what a walk found, with the metadata from its sidecar.

    Raises:
        CorruptShard: The shard is damaged, or is not the one of its sidecar.
    """
    if (error := found.error) is not None:
        if indexed is not None:
            raise error
        remedy = f"{error.remedy} {option('on_error', 'skip')} leaves out what is damaged.".strip()
        raise CorruptShard(error.where, error.problem, offset=error.offset, expected=error.expected, remedy=remedy)
    names = tuple(walked_text(name) for name in found.names)
    part = ShardColumns(
        shard=shard,
        keys=_texts(found.keys),
        counts=np.frombuffer(found.counts, np.uint32).astype(np.int64),
        names=names,
        codes=np.frombuffer(found.codes, np.uint32).astype(np.int64),
        offsets=np.frombuffer(found.offsets, np.int64),
        lengths=np.frombuffer(found.lengths, np.int64),
        crcs=np.frombuffer(found.crcs, np.uint32) if len(found.crcs) == len(found.codes) else None,
        kinds=cast(
            "dict[str, Number]", {n: kind for n, kind in zip(names, found.kinds, strict=True) if kind != "bytes"}
        ),
        unlike={names[code]: one for code, one in found.unlike.items()},
        skipped=tuple(_skipped(shard, found)),
        whole=_whole(found),
    )
    if indexed is None:
        return part
    if not _same(arranged(part), arranged(indexed)):
        remedy = f"{_remedy()} Or move {sidecar_name(shard.name)} away: without it, metadata is lost."
        raise CorruptShard(shard.path, "other samples, offsets or checksums than in its sidecar", remedy=remedy)
    return replace(part, columns=indexed.columns)


def arranged(part: ShardColumns) -> ShardColumns:
    """Return the part with the fields of each sample in the order of the bytes of their names, in little memory.

    Raises:
        InvalidRequest: There are too many different fields, or too many in a sample.
    """
    if len(part) and int(part.counts.max()) > FIELD_LIMIT:
        sample = int(part.counts.argmax())
        found = f"{int(part.counts[sample]):,} fields"
        raise InvalidRequest(part.where(sample), found, expected=f"at most {FIELD_LIMIT:,}")
    used = np.bincount(part.codes, minlength=len(part.names)).tolist()
    kept = sorted({name for name, times in zip(part.names, used, strict=True) if times}, key=to_bytes)
    check_fields(part.shard.path, kept)
    place = {name: at for at, name in enumerate(kept)}
    codes = np.array([*(place.get(name, 0) for name in part.names), 0], np.uint16)[part.codes]
    width = np.uint32 if 0 <= max(part.offsets.max(initial=0), part.lengths.max(initial=0)) < _WIDE else np.int64
    offsets, lengths, crcs, whole = part.offsets.astype(width), part.lengths.astype(width), part.crcs, part.whole
    owners = part.owners()
    if np.any((codes[1:] < codes[:-1]) & (owners[1:] == owners[:-1])):
        order = np.lexsort((codes, owners))
        codes, offsets, lengths = codes[order], offsets[order], lengths[order]
        crcs = None if crcs is None else crcs[order]
        whole = None if whole is None else whole[order]
    part = replace(part, counts=part.counts.astype(np.uint16), names=tuple(kept), crcs=crcs, whole=whole)
    return replace(part, codes=codes, offsets=offsets, lengths=lengths)


def put_together(part: ShardColumns) -> ShardColumns:
    """Return the part of a walked tar with the fields of a sample together, where they lie apart: all of them do.

    So does a plain `tar` of a folder that holds all images, and then all labels. Samples of one key that share a field
    are others than that, and stay as they are.
    """
    keys = part.keys.dictionary_encode()
    if len(keys.dictionary) == len(part):
        return part
    sample = numbers(keys.indices).astype(np.int64)
    owners = sample[part.owners()]
    order = np.lexsort((part.codes, owners))
    codes, owners = part.codes[order], owners[order]
    if np.any((codes[1:] == codes[:-1]) & (owners[1:] == owners[:-1])):
        return part
    return replace(
        part,
        keys=keys.dictionary,
        counts=np.bincount(owners, minlength=len(keys.dictionary)),
        codes=codes,
        offsets=part.offsets[order],
        lengths=part.lengths[order],
        joined=int(np.count_nonzero(np.bincount(sample) > 1)),
    )


def check_fields(where: str, names: Sequence[str]) -> None:
    """Check that there are not more different fields than can be counted.

    Raises:
        InvalidRequest: There are.
    """
    if len(names) > FIELD_LIMIT:
        found = f"{len(names):,} different fields, such as {printable(names[0])!r}"
        raise InvalidRequest(where, found, expected=f"at most {FIELD_LIMIT:,}")


def _whole(found: Survey) -> NDArray[np.bool_] | None:
    """Return which rows are all that a list holds."""
    if not found.whole:
        return None
    whole = np.zeros(len(found.codes), np.bool_)
    whole[np.frombuffer(found.whole, np.uint64).astype(np.int64)] = True
    return whole


def _texts(names: list[bytes]) -> pa.StringArray:
    if not is_utf8(b"\0".join(names)):
        names = [walked_text(name).encode() for name in names]
    return strings(names)


def _skipped(shard: Shard, found: Survey) -> Iterator[Skipped]:
    """Yield what a shard holds besides samples and folders, and what of it was lost."""
    for lost in found.lost:
        yield Skipped("", shard.name, "damaged", str(lost))
    for start, key, why in found.broken:
        yield Skipped(walked_text(key), shard.name, "damaged", f"at {start:,}: {why}")
    for one in found.odd:
        path = f"{shard.name}:{walked_text(one.name)}"
        if one.is_file and one.name:
            yield Skipped("", path, "no-field", "the name has no ending that could name a field")
        elif one.name and not one.name.endswith(b"/"):
            yield Skipped("", path, "special-file", "a link, device or sparse file")


def _same(found: ShardColumns, indexed: ShardColumns) -> bool:
    """Tell whether a walk and an index have the same payloads, offsets and, where both know them, checksums."""
    return bool(
        found.names == indexed.names
        and found.keys.equals(indexed.keys)
        and all(
            np.array_equal(getattr(found, column), getattr(indexed, column))
            for column in ("counts", "codes", "offsets", "lengths")
        )
        and (found.crcs is None or indexed.crcs is None or np.array_equal(found.crcs, indexed.crcs))
    )


def _remedy() -> str:
    return (
        f"`shardtool verify` tells what is wrong, and {either('`verify(repair=True)`', '--repair')} mends what it can."
    )

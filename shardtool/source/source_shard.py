"""One shard of a source as columns, from its sidecar or from a scan.

If a dataset file lists the shard, anything that differs from the dataset file is an error, and never a reason to
scan:
only a sidecar has metadata and checksums. No payload is read. Sidecars are untrusted: see
`shardtool.dataset.shard_index`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.dataset import index_differences, shard_index, sidecar_read
from shardtool.dataset.scan import FeatureConflict, ShardScan, index_text
from shardtool.dataset.shard_file import is_compressed, open_error
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, os_error_text, printable
from shardtool.messages import choose_text, option_text
from shardtool.names import MAX_FIELDS, to_bytes
from shardtool.pattern import sidecar_name
from shardtool.select.field_rows import check_field_count
from shardtool.skipped import Skipped
from shardtool.storage.files import open_file
from shardtool.storage.lookup import file_info
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredShard
    from shardtool.shard_samples import SpanFile
    from shardtool.storage.remote.objects import FileInfo
    from shardtool.values import FeatureType


_EMPTY_INDEX = shard_index.scanned_index(ShardScan("", "tar", 0))


_UINT32_LIMIT = 2**32


_REPLACE_ADVICE = "Get the file again, or make it anew from its source."


class FilesSeen:
    """The files that were looked at, and the latest time at which one of them changed.

    Attributes:
        changed_ns: The latest time at which anything changed in them or their names, in nanoseconds since 1970.
    """

    def __init__(self) -> None:
        self.changed_ns = 0
        self._hash = blake2b(digest_size=16)

    def add(self, path: str, fact: FileInfo) -> None:
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
class SourceShard:
    """A shard of a source.

    Attributes:
        stored: The shard.
        file: Where, and what the file system says of it.
        format: `tar` or `tfrecord`.
        dataset: The place of its dataset among those that were given.
        kinds: Field to what it holds, where that is no bytes; in a tar, what its texts stand for. None: of a TFRecord,
            of which only a walk can tell.
        index: Where its samples lie, and their metadata; empty before it was listed.
        unlike: Field to the first feature that is no single value, or of another kind, as far as the shard was walked.
        skipped: What the shard holds that is no part of a sample.
        whole: bool per field: whether its bytes are all that a list holds; None: none are, as far as was walked.
        joined: How many samples were put together of fields that lie apart.
    """

    stored: StoredShard
    file: SpanFile
    format: str
    dataset: int
    kinds: Mapping[str, FeatureType] | None
    index: shard_index.ShardIndex = _EMPTY_INDEX
    unlike: Mapping[str, FeatureConflict] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    whole: NDArray[np.bool_] | None = None
    joined: int = 0

    @property
    def path(self) -> str:
        """Its path."""
        return self.stored.path

    @property
    def name(self) -> str:
        """Its file name, as outputs have it."""
        return self.stored.name

    def kind(self, field_name: str) -> FeatureType:
        """Return what a field holds, or what its texts stand for."""
        return (self.kinds or {}).get(field_name, "bytes")

    def rows_of(self, field_name: str) -> NDArray[np.int64]:
        """Return the rows of a field that it has."""
        return np.flatnonzero(self.index.codes == self.index.names.index(field_name))

    def key(self, sample: int) -> str:
        """Return a sample's key."""
        return self.index.keys_of(np.array([sample]))[0]

    def where(self, sample: int) -> str:
        """Name a sample, for messages."""
        return f"{self.path}, {printable(self.key(sample))}"

    def describe_first(self, field_name: str) -> str:
        """Name the first sample that has a field, for messages."""
        return self.describe_value(field_name, 0)

    def describe_value(self, field_name: str, at: int) -> str:
        """Name the sample that has a value of a field, for messages."""
        return self.where(int(np.searchsorted(self.index.firsts, self.rows_of(field_name)[at], side="right")) - 1)


def stat_shard(path: str) -> FileInfo:
    """Return what the file system says of a shard, or the server that it lies on.

    Raises:
        CorruptShard: It is not there, no plain file, or cannot be opened.
    """
    try:
        with open_file(path) as file:
            return file.fact()
    except OSError as error:
        raise open_error(path, error, remedy=_REPLACE_ADVICE) from None


def read_sidecar_bytes(shard: SourceShard) -> tuple[FileInfo, bytes] | CorruptShard | None:
    """Return the sidecar of a shard, and what the file system says of it; what is wrong; None where it has none."""
    stored = shard.stored
    if is_compressed(stored.path):
        return None
    path = stored.sidecar
    try:
        return file_info(path), sidecar_read.load_sidecar(path)
    except FileNotFoundError:
        if stored.entry is None and (is_url(path) or not os.path.islink(path)):
            return None
        found = "no such file"
    except OSError as error:
        found = f"cannot be read: {os_error_text(error)}"
    except AccessRefused:
        if stored.entry is None:  # said of what is not there, too, where we may not list
            return None
        raise
    return CorruptShard(path, found, expected=f"the index of {stored.name}", remedy=_verify_advice())


def apply_sidecar(shard: SourceShard, data: bytes) -> SourceShard:
    """Return a shard with what its sidecar says.

    Raises:
        CorruptShard: It is damaged, of another shard, or not the one that the dataset file lists.
    """
    index = sidecar_read.parse_shard_sidecar(
        data, shard.stored.sidecar, shard.name, shard.file.size, shard.stored.entry
    )
    return replace(shard, index=replace(index, metadata=index.plain_metadata()))


def needs_scan(shard: SourceShard) -> bool:
    """Tell whether a shard that has an index must be walked: so alone are its checksums or kinds known."""
    return (shard.format == "tfrecord" and shard.kinds is None) or shard.index.crcs is None


def apply_scan(shard: SourceShard, found: ShardScan, *, has_index: bool) -> SourceShard:
    """Return a shard with what a walk found, with the metadata from its sidecar.

    Raises:
        CorruptShard: The shard is damaged, or is not the one of its sidecar.
    """
    if (error := found.error) is not None:
        if has_index:
            raise error
        remedy = f"{error.remedy} {option_text('on_error', 'skip')} leaves out what is damaged.".strip()
        raise CorruptShard(error.where, error.problem, offset=error.offset, expected=error.expected, remedy=remedy)
    index = shard_index.scanned_index(found)
    unlike = {index.names[code]: one for code, one in found.unlike.items()}
    skipped, kinds = tuple(_skipped_rows(shard.name, found)), index.kinds or shard.kinds
    part = replace(shard, index=index, kinds=kinds, unlike=unlike, skipped=skipped, whole=_whole_list_rows(found))
    if not has_index:
        return sort_fields(merge_interleaved(part) if found.format == "tar" else part)
    part, before = sort_fields(part), sort_fields(shard).index
    if any(index_differences.compare_indexes(before, part.index)):
        remedy = f"{_verify_advice()} Or move {sidecar_name(shard.name)} away: without it, metadata is lost."
        raise CorruptShard(shard.path, "other samples, offsets or checksums than in its sidecar", remedy=remedy)
    return replace(part, index=replace(part.index, metadata=before.metadata))


def sort_fields(part: SourceShard) -> SourceShard:
    """Return the shard with the fields of each sample in the order of the bytes of their names, in little memory.

    Raises:
        InvalidRequest: There are too many different fields, or too many in a sample.
    """
    index, whole = part.index, part.whole
    counts = index.counts
    if len(index) and int(counts.max()) > MAX_FIELDS:
        sample = int(counts.argmax())
        many = f"{int(counts[sample]):,} fields"
        raise InvalidRequest(part.where(sample), many, expected=f"at most {MAX_FIELDS:,}")
    used = np.bincount(index.codes, minlength=len(index.names)).tolist()
    names = sorted({name for name, times in zip(index.names, used, strict=True) if times}, key=to_bytes)
    check_field_count(part.path, names)
    place = {name: at for at, name in enumerate(names)}
    columns: dict[str, Any] = {
        "codes": np.array([*(place.get(name, 0) for name in index.names), 0], np.uint16)[index.codes],
        "offsets": _narrow_column(index.offsets), "lengths": _narrow_column(index.lengths), "crcs": index.crcs, "whole": whole,
    }  # fmt: skip
    owners = index.owners()
    if np.any((columns["codes"][1:] < columns["codes"][:-1]) & (owners[1:] == owners[:-1])):
        order = np.lexsort((columns["codes"], owners))
        columns = {name: None if column is None else column[order] for name, column in columns.items()}
    nothing, whole = np.broadcast_to(np.int64(0), len(index)), columns.pop("whole")
    found = shard_index.ShardIndex(
        keys=index.keys, key_ends=_narrow_column(index.key_ends), starts=nothing, sizes=nothing, firsts=_narrow_column(index.firsts),
        names=tuple(names), metadata=index.metadata, **columns,
    )  # fmt: skip
    return replace(part, index=found, whole=whole)


def _narrow_column(column: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a column of uint32, where its numbers allow that."""
    return column.astype(np.uint32 if 0 <= column.max(initial=0) < _UINT32_LIMIT else np.int64)


def merge_interleaved(part: SourceShard) -> SourceShard:
    """Return a walked tar with the fields of a sample together, where they lie apart: all of them do.

    So does a plain `tar` of a folder that holds all images, and then all labels. Samples of one key that share a field
    are others than that, and stay as they are.
    """
    index = part.index
    keys = index.all_keys()
    places = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    if len(places) == len(keys):
        return part
    sample = np.array([places[key] for key in keys])
    owners = sample[index.owners()]
    order = np.lexsort((index.codes, owners))
    codes, owners = index.codes[order], owners[order]
    if np.any((codes[1:] == codes[:-1]) & (owners[1:] == owners[:-1])):
        return part
    counts, sizes = np.bincount(owners, minlength=len(places)), [*map(len, places)]
    key_ends, firsts = shard_index.part_ends(sizes), shard_index.part_ends(counts)
    found = replace(
        index, keys=b"".join(places), key_ends=key_ends, starts=index.starts[: len(places)], firsts=firsts, codes=codes,
        offsets=index.offsets[order], lengths=index.lengths[order],
    )  # fmt: skip
    return replace(part, index=found, joined=int(np.count_nonzero(np.bincount(sample) > 1)))


def _whole_list_rows(found: ShardScan) -> NDArray[np.bool_] | None:
    """Return which rows are all that a list holds."""
    if not found.whole:
        return None
    whole = np.zeros(len(found.codes), np.bool_)
    whole[np.frombuffer(found.whole, np.uint64).astype(np.int64)] = True
    return whole


def _skipped_rows(shard: str, found: ShardScan) -> Iterator[Skipped]:
    """Yield what a shard holds besides samples and folders, and what of it was lost."""
    for lost in found.lost:
        yield Skipped("", shard, "damaged", str(lost))
    for start, key, why in found.broken:
        yield Skipped(index_text(key), shard, "damaged", f"at {start:,}: {why}")
    for one in found.odd:
        path = f"{shard}:{index_text(one.name)}"
        if one.is_file and one.name:
            yield Skipped("", path, "no-field", "the name has no ending that could name a field")
        elif one.name and not one.name.endswith(b"/"):
            yield Skipped("", path, "special-file", "a link, device or sparse file")


def _verify_advice() -> str:
    mends = choose_text("`verify(repair=True)`", "--repair")
    return f"`shardtool verify` tells what is wrong, and {mends} mends what it can."

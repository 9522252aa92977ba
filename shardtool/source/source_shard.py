"""One shard of a source as columns, from its sidecar or from a scan.

A shard or sidecar that does not match the dataset file is an error. Scanning the shard instead would lose metadata and
checksums.
"""

from __future__ import annotations

import os
from dataclasses import field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.dataset import shard_index, sidecar_read
from shardtool.dataset.scan import FeatureConflict, ShardScan, decode_name
from shardtool.dataset.shard_file import is_compressed, open_error
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, os_error_text, printable
from shardtool.messages import choose_text, option_text
from shardtool.names import MAX_FIELDS, to_bytes
from shardtool.pattern import sidecar_name
from shardtool.select.field_rows import check_field_count
from shardtool.skipped import Skipped
from shardtool.storage.files import files_at
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
_REPLACE_ADVICE = "Get the file again, or recreate it from its source."


class ExaminedFiles:
    """Hashes the files that a run has examined. `changed_ns` is the latest mtime or ctime of local files."""

    def __init__(self) -> None:
        self.changed_ns = 0
        self._hash = blake2b(digest_size=16)

    def add(self, path: str, info: FileInfo) -> None:
        """Add a file to the hash. Get `info` before you read the file."""
        if isinstance(info, os.stat_result):
            self.changed_ns = max(self.changed_ns, info.st_mtime_ns, info.st_ctime_ns)
            self._hash.update(b"%d %d " % (info.st_dev, info.st_ino))
        else:
            self._hash.update(f"{path} {info.st_size} {info.st_mtime_ns} ".encode())

    @property
    def identity(self) -> str:
        """The hash of all added files."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class SourceShard:
    """A shard of a source.

    Attributes:
        kinds: Types by field, or None if only a scan can find the types. A field without a type contains bytes. A
            tar stores numbers as strings.
        conflicts: For each field, the first sample with no value, several values or a type that differs from `kinds`.
        is_list: For each row, whether the payload is a list of a TFRecord. None if no payload is a list.
        regrouped: The number of samples whose fields were not adjacent.
    """

    stored: StoredShard
    file: SpanFile
    format: str
    dataset: int
    kinds: Mapping[str, FeatureType] | None
    index: shard_index.ShardIndex = _EMPTY_INDEX
    conflicts: Mapping[str, FeatureConflict] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    is_list: NDArray[np.bool_] | None = None
    regrouped: int = 0

    @property
    def path(self) -> str:
        """The path of the shard."""
        return self.stored.path

    @property
    def name(self) -> str:
        """The file name of the shard, as outputs record it."""
        return self.stored.name

    def kind(self, field_name: str) -> FeatureType:
        """Return the type of a field, or the type that its strings represent."""
        return (self.kinds or {}).get(field_name, "bytes")

    def rows_of(self, field_name: str) -> NDArray[np.int64]:
        """Return the positions in `index` of the rows of a field."""
        return np.flatnonzero(self.index.codes == self.index.names.index(field_name))

    def key(self, sample: int) -> str:
        """Return a sample's key."""
        return self.index.keys_of(np.array([sample]))[0]

    def where(self, sample: int) -> str:
        """Return the path and key of a sample, for messages."""
        return f"{self.path}, {printable(self.key(sample))}"

    def describe_value(self, field_name: str, index: int = 0) -> str:
        """Return the path and key of the sample that contains value `index` of a field, for messages."""
        row = self.rows_of(field_name)[index]
        return self.where(int(np.searchsorted(self.index.first_rows, row, side="right")) - 1)


def stat_shard(path: str) -> FileInfo:
    """Return the size and times of a shard file."""
    try:
        with files_at(path).open(path) as file:
            return file.stat()
    except OSError as error:
        raise open_error(path, error, remedy=_REPLACE_ADVICE) from None


def read_sidecar_bytes(shard: SourceShard) -> tuple[FileInfo, bytes] | CorruptShard | None:
    """Return the file information and content of a sidecar, an error, or None if there is no sidecar."""
    stored = shard.stored
    if is_compressed(stored.path):
        return None
    path = stored.sidecar
    try:
        return files_at(path).info(path), sidecar_read.load_sidecar(path)
    except FileNotFoundError:
        if stored.entry is None and (is_url(path) or not os.path.islink(path)):
            return None
        found = "no such file"
    except OSError as error:
        found = f"cannot be read: {os_error_text(error)}"
    except AccessRefused:
        if stored.entry is None:  # without permission to list objects, stores deny access to missing objects
            return None
        raise
    return CorruptShard(path, found, expected=f"the sidecar of {stored.name}", remedy=_verify_advice())


def apply_sidecar(shard: SourceShard, data: bytes) -> SourceShard:
    """Return the shard with the index and metadata of its sidecar."""
    index = sidecar_read.parse_shard_sidecar(
        data, shard.stored.sidecar, shard.name, shard.file.size, shard.stored.entry
    )
    return replace(shard, index=replace(index, metadata=index.plain_metadata()))


def needs_scan(shard: SourceShard) -> bool:
    """Return whether a shard must be scanned, because its checksums or types are unknown."""
    return (shard.format == "tfrecord" and shard.kinds is None) or shard.index.crcs is None


def apply_scan(shard: SourceShard, scan: ShardScan, *, has_index: bool) -> SourceShard:
    """Return the shard with the results of a scan. If `has_index`, the shard has a sidecar, which must match."""
    if (error := scan.error) is not None:
        if has_index:
            raise error
        salvage = f"`shardtool reshard` with {option_text('on_error', 'skip')} copies the undamaged samples."
        remedy = f"{error.remedy} {salvage}".strip()
        raise CorruptShard(error.where, error.problem, offset=error.offset, expected=error.expected, remedy=remedy)
    index = shard_index.scanned_index(scan)
    conflicts = {index.names[code]: conflict for code, conflict in scan.conflicts.items()}
    skipped = tuple(_skipped_rows(shard.name, scan))
    kinds = index.kinds or shard.kinds
    part = replace(shard, index=index, kinds=kinds, conflicts=conflicts, skipped=skipped, is_list=_list_rows(scan))
    if not has_index:
        return sort_fields(_merge_interleaved(part) if scan.format == "tar" else part)
    part, listed_index = sort_fields(part), sort_fields(shard).index
    if any(shard_index.compare_indexes(listed_index, part.index)):
        remedy = f"{_verify_advice()} Or move {sidecar_name(shard.name)} away, which loses its metadata."
        raise CorruptShard(shard.path, "its samples, offsets or checksums differ from its sidecar", remedy=remedy)
    return replace(part, index=replace(part.index, metadata=listed_index.metadata))


def sort_fields(part: SourceShard) -> SourceShard:
    """Sort the fields of each sample by the bytes of their names."""
    index = part.index
    counts = index.counts
    if len(index) and int(counts.max()) > MAX_FIELDS:
        sample = int(counts.argmax())
        problem = f"{int(counts[sample]):,} fields"
        raise InvalidRequest(part.where(sample), problem, expected=f"at most {MAX_FIELDS:,}")
    used = np.bincount(index.codes, minlength=len(index.names)).tolist()
    names = sorted({name for name, uses in zip(index.names, used, strict=True) if uses}, key=to_bytes)
    check_field_count(part.path, names)
    code_of = {name: code for code, name in enumerate(names)}
    columns: dict[str, Any] = {
        "codes": np.array([*(code_of.get(name, 0) for name in index.names), 0], np.uint16)[index.codes],
        "offsets": _narrow_column(index.offsets),
        "lengths": _narrow_column(index.lengths),
        "crcs": index.crcs,
        "is_list": part.is_list,
    }
    sample_of_row = index.sample_of_row()
    if np.any((columns["codes"][1:] < columns["codes"][:-1]) & (sample_of_row[1:] == sample_of_row[:-1])):
        order = np.lexsort((columns["codes"], sample_of_row))
        columns = {name: None if column is None else column[order] for name, column in columns.items()}
    zeros, is_list = np.broadcast_to(np.int64(0), len(index)), columns.pop("is_list")
    sorted_index = shard_index.ShardIndex(
        keys=index.keys,
        key_offsets=_narrow_column(index.key_offsets),
        starts=zeros,
        sizes=zeros,
        first_rows=_narrow_column(index.first_rows),
        names=tuple(names),
        metadata=index.metadata,
        **columns,
    )
    return replace(part, index=sorted_index, is_list=is_list)


def _narrow_column(column: NDArray[np.int64]) -> NDArray[np.int64]:
    return column.astype(np.uint32 if 0 <= column.max(initial=0) < _UINT32_LIMIT else np.int64)


def _merge_interleaved(part: SourceShard) -> SourceShard:
    # A tar may contain first all images and then all labels. Merge entries with the same key, unless a sample would
    # have a field twice.
    index = part.index
    keys = index.all_keys()
    number_of = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    if len(number_of) == len(keys):
        return part
    merged_sample = np.array([number_of[key] for key in keys])
    sample_of_row = merged_sample[index.sample_of_row()]
    order = np.lexsort((index.codes, sample_of_row))
    codes, sample_of_row = index.codes[order], sample_of_row[order]
    if np.any((codes[1:] == codes[:-1]) & (sample_of_row[1:] == sample_of_row[:-1])):
        return part
    counts, sizes = np.bincount(sample_of_row, minlength=len(number_of)), [*map(len, number_of)]
    key_offsets, first_rows = shard_index.part_offsets(sizes), shard_index.part_offsets(counts)
    merged_index = replace(
        index,
        keys=b"".join(number_of),
        key_offsets=key_offsets,
        starts=index.starts[: len(number_of)],
        first_rows=first_rows,
        codes=codes,
        offsets=index.offsets[order],
        lengths=index.lengths[order],
    )
    return replace(part, index=merged_index, regrouped=int(np.count_nonzero(np.bincount(merged_sample) > 1)))


def _list_rows(scan: ShardScan) -> NDArray[np.bool_] | None:
    if not scan.list_rows:
        return None
    is_list = np.zeros(len(scan.codes), np.bool_)
    is_list[np.frombuffer(scan.list_rows, np.uint64).astype(np.int64)] = True
    return is_list


def _skipped_rows(shard: str, scan: ShardScan) -> Iterator[Skipped]:
    for damage in scan.lost:
        yield Skipped("", shard, "damaged", str(damage))
    for start, key, why in scan.incomplete:
        yield Skipped(decode_name(key), shard, "damaged", f"at {start:,}: {why}")
    for member in scan.unrecognised:
        path = f"{shard}:{decode_name(member.name)}"
        if member.is_file and member.name:
            yield Skipped("", path, "no-field", "the name has no extension to name a field")
        elif member.name and not member.name.endswith(b"/"):
            yield Skipped("", path, "special-file", "a link, device or sparse file")


def _verify_advice() -> str:
    repair = choose_text("`verify(repair=True)`", "--repair")
    return f"Run `shardtool verify` to see what is wrong; {repair} fixes what can be rebuilt."

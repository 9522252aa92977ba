"""Store the samples of a source as columns (`SampleTable`), and match the rows of two tables.

Ten million samples must fit into the memory of a laptop (see benchmarks/plan10m.py). A table takes about 35 bytes per
field, and 16 bytes plus the key per sample.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.errors import Bug
from shardtool.fetch.options import redact_url_bytes
from shardtool.names import resolve_source_path, to_bytes, to_text
from shardtool.shard_samples import LINK, URL, SpanFile
from shardtool.storage.paths import is_address
from shardtool.values import FeatureType, NumberType, ValueType, number_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings, StringColumn

    Rows = NDArray[np.int64]


_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class FieldRows:
    """One row per field of each sample.

    Attributes:
        code: uint16[rows], index of the field's name in `SampleTable.fields`.
        kind: uint8[rows], where the payload is: FILE, LINK, INLINE, SPAN or URL (see `shard_samples`).
        size: int64[rows], size of the payload in bytes.
        mtime_ns: int64[rows], modification time of the listed file. For a remote object, its version as a number.
        changed_ns: int64[rows], latest status-change time (ctime) of the file and of the folders on its path.
        paths: The path of each row relative to `SampleTable.root`, or its URL. If None, the path is KEY.FIELD.
    """

    code: NDArray[np.uint16]
    kind: NDArray[np.uint8]
    size: NDArray[np.int64]
    mtime_ns: NDArray[np.int64]
    changed_ns: NDArray[np.int64]
    paths: StringColumn | None = None

    @classmethod
    def concat(cls, parts: Sequence[FieldRows], codes: Sequence[NDArray[np.uint16]]) -> FieldRows:
        """Concatenate rows of several tables, without paths. `codes` contains the new column `code` of each table."""
        return cls(
            code=np.concatenate(codes),
            kind=concat_columns([part.kind for part in parts]),
            size=concat_columns([part.size for part in parts]),
            mtime_ns=concat_columns([part.mtime_ns for part in parts]),
            changed_ns=concat_columns([part.changed_ns for part in parts]),
        )

    def take(self, rows: NDArray[np.int64]) -> FieldRows:
        """Return these rows, in this order."""
        paths = None if self.paths is None else self.paths.take(rows)
        times = take_values(self.mtime_ns, rows), take_values(self.changed_ns, rows)
        return FieldRows(self.code[rows], take_values(self.kind, rows), self.size[rows], *times, paths)


@dataclass(frozen=True, slots=True)
class FieldSpans:
    """The locations of SPAN payloads in shards, archives or a temporary file.

    Attributes:
        files: The files that contain the payloads. Empty if the payloads will be written to a temporary file later.
        file: uint32[samples], index in `files` of each sample's file.
        offset: int64[rows], offset of the payload in its file.
        crc: int64[rows], expected CRC-32C of the payload, or -1 if unknown.
        is_list: bool[rows], whether the payload is a whole TFRecord list (see `ExampleFeature.is_list`).
        row_file: uint32[rows], index in `files` of each row's file. None if no sample has rows in several files.
    """

    files: tuple[SpanFile, ...]
    file: NDArray[np.uint32]
    offset: NDArray[np.int64]
    crc: NDArray[np.int64]
    is_list: NDArray[np.bool_] | None = None
    row_file: NDArray[np.uint32] | None = None

    def take(self, samples: NDArray[np.int64], rows: NDArray[np.int64]) -> FieldSpans:
        """Return the locations for `samples`. `rows` contains the rows of all fields of these samples."""
        return replace(self.take_rows(rows), file=take_values(self.file, samples))

    def take_rows(self, rows: NDArray[np.int64]) -> FieldSpans:
        """Return the locations for `rows`."""
        is_list = None if self.is_list is None else self.is_list[rows]
        row_file = None if self.row_file is None else self.row_file[rows]
        crc = take_values(self.crc, rows)
        return replace(self, offset=self.offset[rows], crc=crc, is_list=is_list, row_file=row_file)


_NO_VALUES: Mapping[str, Any] = {}


class FieldValues(NamedTuple):
    """Values, value types and class names, by field name.

    Attributes:
        inline: One text per sample: the payload of its INLINE row (see `decode_inline_payload`). If a sample has no
            INLINE row for the field, its text is ignored.
        types: The original type of values stored as text. Bytes and unknown types are omitted.
        lists: The value types of fields with TFRecord lists. All rows of such a field are SPAN rows.
        classes: The class names of fields with class numbers.
    """

    inline: Mapping[str, StringColumn] = _NO_VALUES
    types: Mapping[str, ValueType] = _NO_VALUES
    lists: Mapping[str, FeatureType] = _NO_VALUES
    classes: Mapping[str, list[str]] = _NO_VALUES

    @property
    def numbers(self) -> dict[str, NumberType]:
        """The number type of each field that stores numbers as text."""
        return number_fields(self.types)

    def rename(self, names: Mapping[str, str]) -> FieldValues:
        """Rename fields from old to new names. Drop fields that are not in `names`."""
        renamed: list[Any] = [{new: by_name[old] for old, new in names.items() if old in by_name} for by_name in self]
        return FieldValues(*renamed)

    def select(self, names: Collection[str]) -> FieldValues:
        """Return the values of the named fields."""
        selected: list[Any] = [{name: by_name[name] for name in by_name if name in names} for by_name in self]
        return FieldValues(*selected)

    def merge(self, other: FieldValues) -> FieldValues:
        """Return the fields of both objects. If both have a field, use the values of `other`."""
        merged: list[Any] = [{**mine, **theirs} for mine, theirs in zip(self, other, strict=True)]
        return FieldValues(*merged)

    def take(self, samples: NDArray[np.int64]) -> FieldValues:
        """Return the values of `samples`."""
        return self._replace(inline={name: texts.take(samples) for name, texts in self.inline.items()})


@dataclass(frozen=True, slots=True)
class SampleTable:
    """The samples of a source. The fields of each sample are sorted by the bytes of their names.

    Attributes:
        root: The folder to which paths are relative, with a trailing slash.
        first_rows: int64[samples + 1]. Sample i has the rows `first_rows[i]` to `first_rows[i + 1]` (exclusive).
        source_paths: Whether the sidecar must store `rows.paths`, because they cannot be computed from keys and fields.
        source_identity: Text that identifies the source if `root` does not.
        folders: For a source of several folders, maps the first component of each path to a folder.
    """

    root: bytes
    keys: PackedStrings
    first_rows: NDArray[np.int64]
    fields: tuple[str, ...]
    rows: FieldRows
    values: FieldValues = field(default_factory=FieldValues)
    spans: FieldSpans | None = None
    metadata: pa.Table | None = None
    source_paths: bool = False
    source_identity: str = ""
    folders: Mapping[bytes, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def is_remote(self) -> bool:
        """Whether the files are in a remote store or on a server."""
        return any(map(is_address, (self.root, *self.folders.values())))

    @property
    def known_spans(self) -> FieldSpans:
        """The value of `spans`, which must not be None."""
        if self.spans is None:
            raise Bug(to_text(self.root), "samples without locations in shards")
        return self.spans

    def key(self, sample: int) -> str:
        """Return the key of a sample as text (see `to_text`)."""
        return to_text(self.keys[sample])

    def path(self, row: int) -> bytes:
        """Return the path of a row relative to `root`, or its URL without secrets."""
        if self.rows.paths is not None:
            path = self.rows.paths.span(row, row + 1)[:-1]
            return redact_url_bytes(path) if self.rows.kind[row] == URL else path
        return self.keys[int(self.samples_of(row))] + b"." + to_bytes(self.fields[int(self.rows.code[row])])

    def paths(self, rows: NDArray[np.int64]) -> list[bytes]:
        """Return the path or URL of each of `rows`. URLs include secrets. `rows` must not be empty."""
        if self.rows.paths is not None:
            return self.rows.paths.gather(rows)[:-1].split(b"\0")
        endings = [b"." + to_bytes(name) for name in self.fields]
        keys = self.keys.gather(self.samples_of(rows))[:-1].split(b"\0")
        return [key + endings[code] for key, code in zip(keys, self.rows.code[rows].tolist(), strict=True)]

    def file_path(self, row: int) -> bytes:
        """Return the full path of the file of a FILE or LINK row."""
        return self.root + resolve_source_path(self.path(row), self.folders)

    def files(self) -> tuple[bytes, ...]:
        """Return up to three example paths from FILE and LINK rows, and up to three from `spans.files`."""
        file_rows = np.flatnonzero(self.rows.kind <= LINK)
        file_rows = file_rows[[0, len(file_rows) // 2, -1]] if len(file_rows) else file_rows
        paths = [self.file_path(row) for row in file_rows.tolist()]
        spans = () if self.spans is None else self.spans.files
        paths += [spans[index].path for index in (0, len(spans) // 2, -1)] if spans else []
        return tuple(dict.fromkeys(paths))

    def counts(self) -> NDArray[np.int64]:
        """Return the number of fields of each sample."""
        return np.diff(self.first_rows)

    def counts_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of fields of each of `samples`."""
        return self.first_rows[samples + 1] - self.first_rows[samples]

    def code_counts(self) -> list[int]:
        """Return for each of `fields` the number of samples that have this field."""
        return [int(count) for count in np.bincount(self.rows.code, minlength=len(self.fields))]

    def used_fields(self) -> list[str]:
        """Return the `fields` that at least one sample has."""
        return [name for name, count in zip(self.fields, self.code_counts(), strict=True) if count]

    def samples_of(self, rows: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the index of each row's sample."""
        return np.asarray(np.searchsorted(self.first_rows, rows, "right")) - 1

    def file_numbers(self, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the index in `spans.files` of each row's file."""
        spans = self.known_spans
        return spans.file[self.samples_of(rows)] if spans.row_file is None else spans.row_file[rows]

    def rows_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of `samples`, in that order."""
        starts, counts = self.first_rows[samples], self.counts_of(samples)
        offsets = np.cumsum(counts) - counts
        return np.repeat(starts - offsets, counts) + np.arange(int(counts.sum()), dtype=np.int64)

    def take(self, samples: NDArray[np.int64]) -> SampleTable:
        """Return a table of `samples`, in that order."""
        rows = self.rows_of(samples)
        return replace(
            self,
            keys=self.keys.take(samples),
            first_rows=np.concatenate(([0], np.cumsum(self.counts_of(samples)))).astype(np.int64),
            rows=self.rows.take(rows),
            values=self.values.take(samples),
            spans=None if self.spans is None else self.spans.take(samples, rows),
            metadata=None if self.metadata is None else _take_optional_rows(self.metadata, samples),
        )

    def without(self, samples: Collection[int]) -> SampleTable:
        """Return a table without these samples."""
        return self.take(np.delete(np.arange(len(self)), [*samples]))

    def take_rows(self, rows: NDArray[np.int64]) -> SampleTable:
        """Return a table with only the given rows. `first_rows` is not updated, so the caller must replace it."""
        spans = None if self.spans is None else self.spans.take_rows(rows)
        return replace(self, rows=self.rows.take(rows), spans=spans)


def concat_columns(columns: Sequence[NDArray[_Number]]) -> NDArray[_Number]:
    """Concatenate columns. If all columns are broadcasts of the same scalar, the result is a broadcast, too."""
    filled = [column for column in columns if len(column)]
    if not any(any(column.strides) for column in columns) and len({column[0].item() for column in filled}) == 1:
        return np.broadcast_to(filled[0][0], sum(map(len, columns)))
    return np.concatenate(columns)


def take_values(values: NDArray[_Number], positions: NDArray[np.int64]) -> NDArray[_Number]:
    """Return `values[positions]`. If `values` is a broadcast scalar, return a broadcast, too."""
    if len(values) and not any(values.strides):
        return np.broadcast_to(values[0], len(positions))
    return values[positions]


def _take_optional_rows(table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    from shardtool.entries.arrow import number_array

    return table.take(number_array(rows))


_NameT = TypeVar("_NameT", str, bytes)


def field_ids(
    samples: Rows, counts: NDArray[Any], codes: NDArray[Any], names: Iterable[_NameT], ids_by_name: Mapping[_NameT, int]
) -> Rows:
    """Return an id for each row of a table, to compare two tables.

    Rows with the same sample and field have the same id in both tables. Rows that are not compared have the id -1.

    Args:
        samples: The id of each sample, or -1 if the sample is only in this table.
        counts: The number of rows of each sample.
        codes: The index in `names` of each row's field.
        ids_by_name: The id of each field name, or -1 if the field is not compared. Use the same ids for both tables.
    """
    samples = np.repeat(samples, counts)
    fields = np.array([*(ids_by_name[name] for name in names), -1], np.int64)[codes]
    return np.asarray(np.where((samples < 0) | (fields < 0), -1, samples * (len(ids_by_name) + 1) + fields))


def match_ids(ours: Rows, theirs: Rows) -> tuple[Rows, Rows, Rows, Rows]:
    """Find the common ids of two arrays. Ignore the id -1.

    Return four arrays of positions: the common ids in `ours`, the common ids in `theirs` (both sorted by id), the ids
    only in `ours`, and the ids only in `theirs`.
    """
    # `np.intersect1d` and `np.setdiff1d` take ten times as long.
    our_rows, their_rows = _first_positions(ours), _first_positions(theirs)
    our_ids, their_ids = ours[our_rows], theirs[their_rows]
    positions = np.searchsorted(their_ids, our_ids)
    is_common = np.append(their_ids, -1)[positions] == our_ids
    our_rows, their_rows = our_rows[is_common], their_rows[positions[is_common]]
    only = []
    for all_ids, common in ((ours, our_rows), (theirs, their_rows)):
        is_only = all_ids >= 0
        is_only[common] = False
        only.append(np.flatnonzero(is_only))
    return our_rows, their_rows, only[0], only[1]


def _first_positions(ids: Rows) -> Rows:
    positions = np.flatnonzero(ids >= 0)
    positions = positions[np.argsort(ids[positions], kind="stable")]
    return np.asarray(positions[np.diff(ids[positions], prepend=-1) > 0])

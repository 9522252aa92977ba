"""`SampleTable`: the samples of a source as columns, without a Python object per sample.

Ten million samples must fit a laptop's memory (benchmarks/plan10m.py): about 35 bytes per field, 16 per sample, and
the key. Larger data, such as the columns of a manifest, is in Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from shardtool.errors import Bug
from shardtool.fetch.urls import redact_url_bytes
from shardtool.names import resolve_source_path, to_bytes, to_text
from shardtool.shard_samples import LINK, URL
from shardtool.storage.paths import is_address
from shardtool.values import number_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings, StringColumn
    from shardtool.shard_samples import SpanFile
    from shardtool.values import FeatureType, NumberType, ValueType


_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class FieldRows:
    """The fields of all samples, a row for each.

    Attributes:
        code: uint16[rows], the field's name: its place among `Entries.fields`.
        kind: uint8[rows]: FILE, LINK, INLINE, SPAN or URL.
        size: int64[rows], payload bytes.
        mtime_ns: int64[rows], as seen when the source was listed; of an object, its version as a number.
        changed_ns: int64[rows], the latest time at which anything could have changed what the path gives.
        paths: One a row, relative to `Entries.root`, or its URL; None where each is key + "." + field.
    """

    code: NDArray[np.uint16]
    kind: NDArray[np.uint8]
    size: NDArray[np.int64]
    mtime_ns: NDArray[np.int64]
    changed_ns: NDArray[np.int64]
    paths: StringColumn | None = None

    @classmethod
    def joined(cls, parts: Sequence[FieldRows], codes: Sequence[NDArray[np.uint16]]) -> FieldRows:
        """Return the rows of all parts, one after the other and without paths; `codes` are those of each part."""
        return cls(
            code=np.concatenate(codes),
            kind=concat_columns([one.kind for one in parts]),
            size=concat_columns([one.size for one in parts]),
            mtime_ns=concat_columns([one.mtime_ns for one in parts]),
            changed_ns=concat_columns([one.changed_ns for one in parts]),
        )

    def take(self, rows: NDArray[np.int64]) -> FieldRows:
        """Return `rows`, in that order."""
        paths = None if self.paths is None else self.paths.take(rows)
        times = take_values(self.mtime_ns, rows), take_values(self.changed_ns, rows)
        return FieldRows(self.code[rows], take_values(self.kind, rows), self.size[rows], *times, paths)


@dataclass(frozen=True, slots=True)
class FieldSpans:
    """Where the payloads of SPAN rows lie: in shards, or in a spool.

    Attributes:
        files: The shards, or the spool; none: it is yet to be written.
        file: uint32[samples]: which of `files` the rows of a sample lie in.
        offset: int64[rows], where a payload starts in its file.
        expected: int64[rows], the CRC-32C that it must have; -1: it is unknown.
        whole: bool[rows]: whether it is all that the field's list holds, not one value in it, or numbers packed as
            one; None: it never is.
        of_row: uint32[rows]: which of `files` a row lies in, where those of a sample lie in several; None: in that of
            its sample.
    """

    files: tuple[SpanFile, ...]
    file: NDArray[np.uint32]
    offset: NDArray[np.int64]
    expected: NDArray[np.int64]
    whole: NDArray[np.bool_] | None = None
    of_row: NDArray[np.uint32] | None = None

    def take(self, samples: NDArray[np.int64], rows: NDArray[np.int64]) -> FieldSpans:
        """Return the spans of `rows`, those of `samples`, in that order."""
        return replace(self.take_rows(rows), file=take_values(self.file, samples))

    def take_rows(self, rows: NDArray[np.int64]) -> FieldSpans:
        """Return the spans of `rows`, in that order, which belong to the same samples."""
        whole = None if self.whole is None else self.whole[rows]
        of_row, expected = None if self.of_row is None else self.of_row[rows], take_values(self.expected, rows)
        return replace(self, offset=self.offset[rows], expected=expected, whole=whole, of_row=of_row)


_NO_VALUES: Mapping[str, Any] = {}


class FieldValues(NamedTuple):
    """What is known of the fields' values, by the fields' names.

    Attributes:
        inline: The payload of INLINE rows as text (see `inline_payload`), one a sample, also for samples without the
            field.
        types: What a value was, of which its payload is the text; empty of those that were bytes, or are not known.
        lists: What the values of a TFRecord's lists are: all their rows are SPAN.
        classes: The names of its class numbers.
    """

    inline: Mapping[str, StringColumn] = _NO_VALUES
    types: Mapping[str, ValueType] = _NO_VALUES
    lists: Mapping[str, FeatureType] = _NO_VALUES
    classes: Mapping[str, list[str]] = _NO_VALUES

    @property
    def numbers(self) -> dict[str, NumberType]:
        """What a field's text stands for, where that is a number; INLINE where it is to be stored as one."""
        return number_fields(self.types)

    def renamed(self, names: Mapping[str, str]) -> FieldValues:
        """Return the values of the fields `names`, in that order, by the new name of each."""
        facts: list[Any] = [{new: known[old] for old, new in names.items() if old in known} for known in self]
        return FieldValues(*facts)

    def only(self, names: Collection[str]) -> FieldValues:
        """Return the values of some fields."""
        facts: list[Any] = [{name: known[name] for name in known if name in names} for known in self]
        return FieldValues(*facts)

    def with_more(self, other: FieldValues) -> FieldValues:
        """Return these values and others, which count where both know a field."""
        facts: list[Any] = [{**one, **two} for one, two in zip(self, other, strict=True)]
        return FieldValues(*facts)

    def take(self, samples: NDArray[np.int64]) -> FieldValues:
        """Return the values of `samples`, in that order."""
        return self._replace(inline={name: texts.take(samples) for name, texts in self.inline.items()})


@dataclass(frozen=True, slots=True)
class SampleTable:
    """The samples of a source, the fields of each ordered by the bytes of their names.

    Sample i has the rows `first[i]` to `first[i + 1]` (exclusive).

    Attributes:
        root: What paths count from, ending in a slash.
        keys: One a sample.
        first: int64[samples + 1].
        fields: The fields' names.
        rows: The fields of all samples.
        values: What is known of the fields' values.
        spans: Where the payloads of SPAN rows lie; None where there are no such rows.
        metadata: Columns for the sidecars, a row a sample.
        source_paths: Whether `rows.paths` goes into the sidecar, because the keys are no longer the names.
        identity: What tells the source from any other, where it is not what `root` leads to.
        folders: Of a source of several folders: the first part of each path, and the folder that it stands for, ending
            in a slash. Then `root` is empty.
    """

    root: bytes
    keys: PackedStrings
    first: NDArray[np.int64]
    fields: tuple[str, ...]
    rows: FieldRows
    values: FieldValues = field(default_factory=FieldValues)
    spans: FieldSpans | None = None
    metadata: pa.Table | None = None
    source_paths: bool = False
    identity: str = ""
    folders: Mapping[bytes, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def is_remote(self) -> bool:
        """Whether files are read from a store or a server; then `rows.mtime_ns` has versions (see `Blob.fact`)."""
        return any(map(is_address, (self.root, *self.folders.values())))

    @property
    def known_spans(self) -> FieldSpans:
        """Where the payloads of SPAN rows lie, of a source that has such rows.

        Raises:
            Bug: It has none.
        """
        if self.spans is None:
            raise Bug(to_text(self.root), "samples that lie in no shards")
        return self.spans

    def key(self, sample: int) -> str:
        """Return a sample's key, for messages too: undecodable bytes become surrogates."""
        return to_text(self.keys[sample])

    def path(self, row: int) -> bytes:
        """Return the path of a row, as messages and outputs have it: relative to `root`, or what is shown of a URL."""
        if self.rows.paths is not None:
            path = self.rows.paths.span(row, row + 1)[:-1]
            return redact_url_bytes(path) if self.rows.kind[row] == URL else path
        return self.keys[int(self.owners(row))] + b"." + to_bytes(self.fields[int(self.rows.code[row])])

    def paths(self, rows: NDArray[np.int64]) -> list[bytes]:
        """Return the paths of `rows`, one at least, as they are read."""
        if self.rows.paths is not None:
            return self.rows.paths.gather(rows)[:-1].split(b"\0")
        endings = [b"." + to_bytes(name) for name in self.fields]
        keys = self.keys.gather(self.owners(rows))[:-1].split(b"\0")
        return [key + endings[code] for key, code in zip(keys, self.rows.code[rows].tolist(), strict=True)]

    def place(self, row: int) -> bytes:
        """Return where the file of a row is read."""
        return self.root + resolve_source_path(self.path(row), self.folders)

    def files(self) -> tuple[bytes, ...]:
        """Return some of the files that payloads lie in: the first, one in the middle, the last."""
        lie = np.flatnonzero(self.rows.kind <= LINK)
        found = [self.place(int(lie[at])) for at in (0, len(lie) // 2, -1)] if len(lie) else []
        spans = () if self.spans is None else self.spans.files
        found += [spans[at].path for at in (0, len(spans) // 2, -1)] if spans else []
        return tuple(dict.fromkeys(found))

    def counts(self) -> NDArray[np.int64]:
        """Return how many fields each sample has."""
        return np.diff(self.first)

    def counts_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many fields each of `samples` has; nothing is done for the others, who may be millions."""
        return self.first[samples + 1] - self.first[samples]

    def code_counts(self) -> list[int]:
        """Return how many samples have each of `fields`: some may have none, once samples were chosen."""
        return [int(count) for count in np.bincount(self.rows.code, minlength=len(self.fields))]

    def used_fields(self) -> list[str]:
        """Return those of `fields` that any sample has."""
        return [name for name, count in zip(self.fields, self.code_counts(), strict=True) if count]

    def owners(self, rows: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the sample that each of `rows` belongs to."""
        return np.asarray(np.searchsorted(self.first, rows, "right")) - 1

    def file_numbers(self, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return which of `known_spans.files` each of `rows` lies in."""
        spans = self.known_spans
        return spans.file[self.owners(rows)] if spans.of_row is None else spans.of_row[rows]

    def rows_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of `samples`, in that order."""
        starts, counts = self.first[samples], self.counts_of(samples)
        offsets = np.cumsum(counts) - counts
        return np.repeat(starts - offsets, counts) + np.arange(int(counts.sum()), dtype=np.int64)

    def take(self, samples: NDArray[np.int64]) -> SampleTable:
        """Return `samples`, in that order."""
        rows = self.rows_of(samples)
        return replace(
            self,
            keys=self.keys.take(samples),
            first=np.concatenate(([0], np.cumsum(self.counts_of(samples)))).astype(np.int64),
            rows=self.rows.take(rows),
            values=self.values.take(samples),
            spans=None if self.spans is None else self.spans.take(samples, rows),
            metadata=None if self.metadata is None else _take_optional_rows(self.metadata, samples),
        )

    def without(self, samples: Collection[int]) -> SampleTable:
        """Return all samples but these."""
        return self.take(np.delete(np.arange(len(self)), [*samples]))

    def take_rows(self, rows: NDArray[np.int64]) -> SampleTable:
        """Return `rows` alone, in that order; which samples they belong to is the caller's to say."""
        spans = None if self.spans is None else self.spans.take_rows(rows)
        return replace(self, rows=self.rows.take(rows), spans=spans)


def concat_columns(columns: Sequence[NDArray[_Number]]) -> NDArray[_Number]:
    """Return columns of rows as one; where all are one value, in no memory."""
    if not any(any(one.strides) for one in columns) and len({one[0].item() for one in columns if len(one)}) == 1:
        return np.broadcast_to(next(one[0] for one in columns if len(one)), sum(map(len, columns)))
    return np.concatenate(columns)


def take_values(values: NDArray[_Number], which: NDArray[np.int64]) -> NDArray[_Number]:
    """Return some of an array's values; where all are one value, in no memory."""
    if len(values) and not any(values.strides):
        return np.broadcast_to(values[0], len(which))
    return values[which]


def _take_optional_rows(table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    from shardtool.entries.arrow import number_array

    return table.take(number_array(rows))

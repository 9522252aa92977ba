"""`Entries`: the samples of a source as columns, with no object per sample; and `Names`, a column of byte strings.

Ten million samples must fit a laptop's memory (benchmarks/plan10m.py): about 35 bytes a field, 16 a
sample, and the key. What takes more, such as a manifest's columns, lies in Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from shardtool.errors import Bug
from shardtool.fetch import shown_bytes
from shardtool.storage.places import is_place
from shardtool.values import LINK, URL, chunks_of, numbers_among, placed, to_bytes, to_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.values import Kind, Number, SpanFile, ValueType

_MANY = 2**18  # names: of so many, gathering some is worth an import of pyarrow.compute
_FEW = 2**8  # that are gathered faster one by one
_Number = TypeVar("_Number", bound=np.generic)


class Texts(Protocol):
    """Byte strings without NULs, in order, that need not lie in memory: `Names`, or something that makes them."""

    def __len__(self) -> int:
        """Return how many there are."""

    def span(self, first: int, last: int, /) -> bytes:
        """Return texts `first` to `last` (exclusive), a NUL after each."""

    def gather(self, which: NDArray[np.int64], /) -> bytes:
        """Return the texts `which`, in that order, a NUL after each."""

    def take(self, which: NDArray[np.int64], /) -> Texts:
        """Return the texts `which`, in that order."""


@dataclass(frozen=True, slots=True)
class Names:
    """Byte strings without NULs in one buffer, a NUL after each.

    Attributes:
        data: The buffer.
        starts: int64[n + 1]; string i is `data[starts[i] : starts[i + 1] - 1]`.
    """

    data: bytes
    starts: NDArray[np.int64]

    @classmethod
    def parse(cls, data: bytes) -> Names:
        """Return the names in a buffer where each ends with a NUL."""
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 0)
        starts = np.empty(len(ends) + 1, np.int64)
        starts[0] = 0
        np.add(ends, 1, out=starts[1:])
        return cls(data, starts)

    @classmethod
    def of(cls, names: Iterable[bytes]) -> Names:
        """Return `names` as columns."""
        return cls.parse(b"".join([name + b"\0" for name in names]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, at: int) -> bytes:
        return self.data[int(self.starts[at]) : int(self.starts[at + 1]) - 1]

    def lengths(self) -> NDArray[np.int64]:
        """Return the bytes of each name, its NUL not counted."""
        return np.diff(self.starts) - 1

    def span(self, first: int, last: int) -> bytes:
        """Return names `first` to `last` (exclusive), a NUL after each."""
        return self.data[self.starts[first] : self.starts[last]]

    def chunks(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the place of a name, and it and the names after it: some at a time, never an object for each."""
        for some in chunks_of(len(self)):
            yield some.start, self.span(some.start, some.stop)[:-1].split(b"\0")

    def gather(self, which: NDArray[np.int64]) -> bytes:
        """Return the names `which`, in that order, a NUL after each."""
        if len(which) and which[-1] - which[0] == len(which) - 1 and (np.diff(which) == 1).all():  # as they lie
            return self.span(int(which[0]), int(which[-1]) + 1)
        if len(self) >= _MANY and len(which) > _FEW:
            return self._gather_many(which)
        starts, ends = self.starts[which].tolist(), self.starts[which + 1].tolist()
        return b"".join([self.data[start:end] for start, end in zip(starts, ends, strict=True)])

    def _gather_many(self, which: NDArray[np.int64]) -> bytes:
        """Do what `gather` does, in a third of its time where names lie all over the memory."""
        import pyarrow as pa

        places = pa.Array.from_buffers(pa.int64(), len(which), [None, pa.py_buffer(np.ascontiguousarray(which))])
        _, offsets, data = self.array().take(places).buffers()
        return bytes(memoryview(data)[: np.frombuffer(offsets, np.int64)[len(which)]])

    def array(self) -> pa.LargeBinaryArray:
        """Return the names as Arrow has them, with the NUL at the end of each."""
        import pyarrow as pa

        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self), [None, pa.py_buffer(self.starts), pa.py_buffer(self.data)]
        )

    def take(self, which: NDArray[np.int64]) -> Names:
        """Return the names `which`, in that order."""
        return Names.parse(b"".join([self.gather(which[some]) for some in chunks_of(len(which))]))

    def sorted_order(self) -> NDArray[np.int64]:
        """Return the places of the names in the order of their bytes."""
        import pyarrow.compute as pc

        return np.asarray(pc.sort_indices(self.array()).to_numpy(), np.int64)  # the NUL at the end of each sorts lowest

    def hashes(self, person: bytes = b"", seed: int | None = None) -> NDArray[np.uint64]:
        """Return the hash of each name: see `hashes_of`."""
        return np.concatenate([np.zeros(0, np.uint64), *(hashes_of(names, person, seed) for _, names in self.chunks())])

    def runs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places of the names, equal ones together and in their order, and where each such run starts."""
        order = self.sorted_order()
        is_first, last = np.ones(len(order), np.bool_), b"\0"
        for some in chunks_of(len(order)):
            for at, name in enumerate(self.gather(order[some]).split(b"\0")[:-1], some.start):
                is_first[at] = name != last
                last = name
        return order, np.flatnonzero(is_first)


def hashes_of(texts: Iterable[bytes], person: bytes = b"", seed: int | None = None) -> NDArray[np.uint64]:
    """Return the BLAKE2b (RFC 7693) of each text, of 8 bytes, little-endian: the same everywhere.

    Args:
        texts: The texts.
        person: The personalization, which makes hashes for one use independent of those for others.
        seed: A hash of it is the salt; None: there is none.
    """
    salt = b"" if seed is None else blake2b(b"%d" % seed, digest_size=16).digest()
    digests = [blake2b(text, digest_size=8, person=person, salt=salt).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


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
    paths: Texts | None = None

    @classmethod
    def joined(cls, parts: Sequence[FieldRows], codes: Sequence[NDArray[np.uint16]]) -> FieldRows:
        """Return the rows of all parts, one after the other and without paths; `codes` are those of each part."""
        return cls(
            code=np.concatenate(codes),
            kind=joined([one.kind for one in parts]),
            size=joined([one.size for one in parts]),
            mtime_ns=joined([one.mtime_ns for one in parts]),
            changed_ns=joined([one.changed_ns for one in parts]),
        )

    def take(self, rows: NDArray[np.int64]) -> FieldRows:
        """Return `rows`, in that order."""
        paths = None if self.paths is None else self.paths.take(rows)
        times = taken(self.mtime_ns, rows), taken(self.changed_ns, rows)
        return FieldRows(self.code[rows], taken(self.kind, rows), self.size[rows], *times, paths)


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
        return replace(self.take_rows(rows), file=taken(self.file, samples))

    def take_rows(self, rows: NDArray[np.int64]) -> FieldSpans:
        """Return the spans of `rows`, in that order, which belong to the same samples."""
        whole = None if self.whole is None else self.whole[rows]
        of_row, expected = None if self.of_row is None else self.of_row[rows], taken(self.expected, rows)
        return replace(self, offset=self.offset[rows], expected=expected, whole=whole, of_row=of_row)


_NONE: Mapping[str, Any] = {}


class FieldValues(NamedTuple):
    """What is known of the fields' values, by the fields' names.

    Attributes:
        inline: The payload of INLINE rows as text (see `inline_payload`), one a sample, also for samples without the
            field.
        types: What a value was, of which its payload is the text; empty of those that were bytes, or are not known.
        lists: What the values of a TFRecord's lists are: all their rows are SPAN.
        classes: The names of its class numbers.
    """

    inline: Mapping[str, Texts] = _NONE
    types: Mapping[str, ValueType] = _NONE
    lists: Mapping[str, Kind] = _NONE
    classes: Mapping[str, list[str]] = _NONE

    @property
    def numbers(self) -> dict[str, Number]:
        """What a field's text stands for, where that is a number; INLINE where it is to be stored as one."""
        return numbers_among(self.types)

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
class Entries:
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
    keys: Names
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
        return any(map(is_place, (self.root, *self.folders.values())))

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
            return shown_bytes(path) if self.rows.kind[row] == URL else path
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
        return self.root + placed(self.path(row), self.folders)

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

    def files_of(self, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return which of `known_spans.files` each of `rows` lies in."""
        spans = self.known_spans
        return spans.file[self.owners(rows)] if spans.of_row is None else spans.of_row[rows]

    def rows_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of `samples`, in that order."""
        starts, counts = self.first[samples], self.counts_of(samples)
        offsets = np.cumsum(counts) - counts
        return np.repeat(starts - offsets, counts) + np.arange(int(counts.sum()), dtype=np.int64)

    def take(self, samples: NDArray[np.int64]) -> Entries:
        """Return `samples`, in that order."""
        rows = self.rows_of(samples)
        return replace(
            self,
            keys=self.keys.take(samples),
            first=np.concatenate(([0], np.cumsum(self.counts_of(samples)))).astype(np.int64),
            rows=self.rows.take(rows),
            values=self.values.take(samples),
            spans=None if self.spans is None else self.spans.take(samples, rows),
            metadata=None if self.metadata is None else _take_rows(self.metadata, samples),
        )

    def without(self, samples: Collection[int]) -> Entries:
        """Return all samples but these."""
        return self.take(np.delete(np.arange(len(self)), [*samples]))

    def take_rows(self, rows: NDArray[np.int64]) -> Entries:
        """Return `rows` alone, in that order; which samples they belong to is the caller's to say."""
        spans = None if self.spans is None else self.spans.take_rows(rows)
        return replace(self, rows=self.rows.take(rows), spans=spans)


def joined(columns: Sequence[NDArray[_Number]]) -> NDArray[_Number]:
    """Return columns of rows as one; where all are one value, in no memory."""
    if not any(any(one.strides) for one in columns) and len({one[0].item() for one in columns if len(one)}) == 1:
        return np.broadcast_to(next(one[0] for one in columns if len(one)), sum(map(len, columns)))
    return np.concatenate(columns)


def taken(values: NDArray[_Number], which: NDArray[np.int64]) -> NDArray[_Number]:
    """Return some of an array's values; where all are one value, in no memory."""
    if len(values) and not any(values.strides):
        return np.broadcast_to(values[0], len(which))
    return values[which]


def _take_rows(table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    from shardtool.entries.arrow import number_array

    return table.take(number_array(rows))

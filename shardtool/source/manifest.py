"""A manifest as a source: a table with a row for each sample, or for each file of one, becomes `Entries`.

Everything that is wrong with the table is found before a file is looked at, and all that is wrong in one way is one
error, with the numbers of the rows; row 1 is the first after the header.

Columns stay in Arrow, and texts are made when a shard needs them (`ArrowTexts`): of five million rows there is no
Python object for each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.dataset_file import open_classes
from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.entries.entries import Entries, FieldRows, FieldSpans, FieldValues
from shardtool.errors import InvalidRequest, SampleFailed, printable
from shardtool.select.names import find_groups, grouped
from shardtool.skipped import Skipped
from shardtool.source import manifest_columns as checks
from shardtool.source.base import TASKS, Listing, Source, check_skipped
from shardtool.source.manifest_columns import META, Endings, asked_columns, choose, ending_of
from shardtool.source.scan import ALWAYS, ListedTask, stat_listed
from shardtool.storage.open_file import is_place
from shardtool.storage.places import is_url, parse_address, source_root
from shardtool.table import columns as keys
from shardtool.table.columns import Rows, check_sidecar_names, heavy_columns, is_wrapped_bytes, no_such
from shardtool.table.open import open_table, read_columns, readable
from shardtool.table.values import column_texts, number_of, numbered, render_rows, render_values
from shardtool.values import FILE, INLINE, SPAN, URL, counted, to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.execute.pool import Pool
    from shardtool.names import Names
    from shardtool.request.options import CreateOptions
    from shardtool.request.results import Observer
    from shardtool.select.names import Groups
    from shardtool.skipped import SkipCode
    from shardtool.source.base import Writable
    from shardtool.source.scan import ListedPart
    from shardtool.table.open import Table
    from shardtool.table.values import ArrowTexts
    from shardtool.values import Number


_FIELD_LIMIT = 2**16 - 1
_GUESSED = 100_000  # bytes of the file of a URL, where nothing says more
_CHUNK = 2**16  # samples at a time
_Number = TypeVar("_Number", bound=np.generic)
_OneOrEach = Union[int, "NDArray[np.integer]"]  # a value for all samples, or one for each


class ManifestSource(Source):
    """A table: a file, `-` for standard input, a folder of Parquet files, or a table in memory.

    Attributes:
        name: The name of the file, or of the kind of table.
        notes: What was chosen because nothing was said.

    Raises:
        InvalidRequest: The table cannot be read, or a column is not there.
    """

    def __init__(self, source: object, options: CreateOptions) -> None:
        self._options, self._known = options, open_classes(options.classes_from)
        self._table = table = open_table(source, {column for _, column in asked_columns(options)})
        self.name, self._where = table.name, table.where
        self._roles = roles = choose(self._where, table.schema, options, self._first_ending)
        self.notes = roles.notes
        self._root = _root(options, table.folder)
        is_typed = isinstance(source, str) and source == "-" and options.root is None
        self._is_list = is_typed and table.schema.names == ["path"]
        heavy = {*heavy_columns(table.schema), *roles.streamed()}
        self._light = [name for name in table.schema.names if name not in heavy]
        if not options.stat and roles.paths() and (options.size is None or len(roles.paths()) > 1):
            raise InvalidRequest(
                option("stat"),
                "no file is looked at, and nothing says how large it is",
                expected=f"{option('size', 'COLUMN')}, one file a row",
            )
        self._columns: dict[str, pa.Array] = {}  # those that were needed so far, as the rows that are left
        self._numbers: NDArray[np.int64] | None = None  # of the rows that are left; None: all are
        self._read(*{*roles.meta, *roles.texts(), *roles.columns_of("values"), options.size} & {*self._light})
        self._count = len(next(iter(self._columns.values()))) if self._columns else table.count()
        self._lengths: list[NDArray[np.int64]] = []  # of the bytes in the table, a column each

    @property
    def table(self) -> pa.Table:
        """The columns that hold no bytes, for the rows that are left."""
        self._read(*self._light)
        return pa.table(self._columns)

    def column(self, listed: Listing | None, name: str) -> pa.ChunkedArray:  # noqa: ARG002 - not of samples alone
        """Return a column of the manifest, for the rows that are left.

        Raises:
            InvalidRequest: There is no such column.
        """
        if name not in self._light:
            raise no_such("column", self._where, name, self._light)
        self._read(name)
        return pa.chunked_array([self._columns[name]])

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Keep only some of the rows that are left; `rows` are their places."""
        self._columns = {name: column.take(number_array(rows)) for name, column in self._columns.items()}
        self._lengths = [lengths[rows] for lengths in self._lengths]
        self._numbers, self._count = rows if self._numbers is None else self._numbers[rows], len(rows)

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """Choose rows, check columns, and look at the files in the workers."""
        options, roles = self._options, self._roles
        if options.where is not None:
            from shardtool.select.query import matching

            self.keep(matching(self.table, options.where))
        if not self._count:
            found = "no rows" if self._numbers is None else "no row is left"
            raise InvalidRequest(self._where, found, expected="a row per sample")
        rows = Rows(self._where, self._columns, self._numbers)
        checks.check_types(rows, roles, options.classes, self._table.schema)
        check_sidecar_names(self._where, self._sidecar_names(), remedy=f"leave them out of {option('meta')}")
        checks.check_values(rows, roles)
        urls = self._take_urls()
        sizes: _OneOrEach = _GUESSED
        if options.size is not None and (urls or (roles.paths() and not options.stat)):
            sizes = checks.check_sizes(rows, options.size)
        paths, endings = self._find_paths(rows)
        names, groups = self._find_keys(rows, endings)
        self._measure(rows)
        inline, values = self._values()
        files = _FoundFiles([FieldColumn(FILE, sizes, 0, 0) for _ in paths])
        if paths and options.stat:
            parts: dict[int, ListedPart] = {}
            for number, part in pool.map(stat_listed, self._tasks(paths)):
                parts[number] = part
                observer.listed(part.samples)
            files = _put_together([parts[number] for number in sorted(parts)], len(paths))
        columns = [
            *files.columns,
            *(FieldColumn(URL, sizes, 0, 0) for _ in urls),
            *(FieldColumn(SPAN, lengths, 0, ALWAYS) for lengths in self._lengths),
            *(FieldColumn(INLINE, text.lengths(), 0, 0) for text in inline.values()),
        ]
        known = [name for name, _ in (*roles.files, *roles.urls, *roles.binary)] + [*inline]
        layout = lay_out(endings if roles.path is not None else None, known)
        sidecar = self._sidecar_names()
        entries = Entries(
            root=self._root,
            keys=names,
            first=np.arange(self._count + 1, dtype=np.int64) * len(columns),
            fields=layout.fields,
            rows=layout.rows(columns, [*paths, *urls], self._count),
            values=values,
            metadata=pa.table({name: self._columns[name] for name in sidecar}) if sidecar else None,
        )
        if groups is not None:
            entries = grouped(entries, groups)
        skipped: tuple[Skipped, ...] = ()
        if groups is not None or files.problem.any():
            entries, skipped = self._without_lost(entries, groups, files)
        if self._lengths:
            entries = replace(entries, spans=_spans(entries))
        check_skipped(self.name, skipped, options.on_error, f"leave their rows out with {option('where')}")
        pa.default_memory_pool().release_unused()  # what making the texts took, to measure them
        return Listing(entries, skipped, self.name, tuple(self.notes))

    def write_binary(self, file: Writable) -> None:
        """Write all bytes that the table holds, where the offsets of the samples say, from 0 on.

        Raises:
            SampleFailed: They are not what they were.
        """
        if self._lengths and not write(self._table, self._roles.streamed(), self._numbers, self._lengths, file):
            found, expected = "changed while it was packed", "a table that stays as it was when the run began"
            remedy = f"Run again with {option('if_exists', 'resume')}."
            raise SampleFailed(self._where, found, expected=expected, remedy=remedy)

    def _read(self, *names: str | None) -> None:
        """Read more columns."""
        new = [name for name in names if name is not None and name not in self._columns]
        columns = read_columns(self._table, new, self._roles.texts())
        if self._numbers is not None:
            columns = {name: column.take(number_array(self._numbers)) for name, column in columns.items()}
        found = self._columns | columns
        self._columns = {name: found[name] for name in self._table.schema.names if name in found}

    def _first_ending(self, column: str) -> str:
        """Return the ending of the first path in a column of `struct<bytes, path>`; empty where there is none."""
        kind = self._table.schema.field(column).type
        if is_wrapped_bytes(kind) and kind.get_field_index("path") >= 0:
            with readable(self._where):
                for batch in self._table.batches([column]):
                    first = batch.column(0).slice(0, 1)
                    first.validate(full=True)
                    for value in first.to_pylist():
                        return ending_of((value or {}).get("path"), self._options.dots or "first")
        return ""

    def _sidecar_names(self) -> list[str]:
        """Return the columns that go into the sidecars: those that --meta names, or all but the keys and bytes."""
        roles, wanted = self._roles, {*self._roles.meta}
        if self._options.meta == "all":
            wanted |= {*roles.paths(), *roles.columns_of("urls"), *roles.columns_of("values")}
        return [name for name in self._columns if name in wanted]

    def _take_urls(self) -> list[pa.Array]:
        """Return the URLs, and keep only what may be seen of them in the columns, of which outputs are made."""
        names = self._roles.columns_of("urls")
        urls = [pc.fill_null(self._columns[name], "") for name in names]
        self._columns |= {name: checks.shown_column(column) for name, column in zip(names, urls, strict=True)}
        return urls

    def _find_paths(self, rows: Rows) -> tuple[list[pa.Array], Endings | None]:
        """Return the paths of files, a column each, as they count from the root, and the fields that they name."""
        roles, options = self._roles, self._options
        if self._is_list and not options.allow_outside:
            self._count_from_common_folder()
        found = [checks.relative(self._columns[name], self._root) for name in roles.paths()]
        for name, paths in zip(roles.paths(), found, strict=True):
            checks.check_paths(rows, name, paths, outside=options.allow_outside and not is_place(self._root))
        endings = None
        if found and (roles.path is not None or roles.key is None):
            endings = Endings(self._where, found[0], options.dots or "first")
        if roles.path is not None and endings is not None:
            checks.check_endings(rows, roles.path, endings, roles.field_names())
        found = [checks.from_root(paths, self._root) for paths in found]
        self._columns |= dict(zip(roles.paths(), found, strict=True))  # where the root lies goes into no output
        return found, endings

    def _count_from_common_folder(self) -> None:
        """Let typed paths that leave the current folder count from the one above all: they are the user's."""
        if (found := checks.from_common_folder(self._columns["path"], self._root)) is not None:
            folder, self._columns["path"] = found
            self._root = os.fsencode(os.path.join(folder, ""))
            where = f"{printable(folder)}, their common folder ({option('root')} names another)"
            self.notes.append(f"paths count from {where}")

    def _find_keys(self, rows: Rows, endings: Endings | None) -> tuple[Names, Groups | None]:
        """Return the keys and, where rows are files of which several make a sample, which belong together."""
        roles = self._roles
        if roles.key is not None:
            column = self._columns[roles.key]
            problem = f"column {roles.key!r}: a key that is no whole number"
            rows.refuse(keys.broken_numbers(column), problem, expected="text or whole numbers")
            found, bad = keys.gather(keys.key_texts(column))
        elif endings is not None:
            found, bad = keys.gather(endings.stems())
        else:
            numbers = np.arange(self._count) if self._numbers is None else self._numbers
            found, bad = keys.gather(keys.row_numbers(numbers))
        source = roles.key or next(iter(roles.paths()), None)
        checks.check_keys(rows, source, bad)
        if roles.path is None or roles.files or roles.urls or roles.binary or endings is None:
            checks.check_unique(rows, source, found)
        elif keys.may_repeat(found):
            groups = find_groups(found, by_key=False)
            checks.check_endings_differ(rows, source, found, groups.of_part * _FIELD_LIMIT + endings.codes)
            checks.check_agreement(rows, [*roles.meta, *roles.columns_of("values")], groups)
            return found, groups if len(groups.first) < len(found) else None
        return found, None

    def _measure(self, rows: Rows) -> None:
        """Find the lengths of the bytes in the table, a column each."""
        columns, found = self._roles.streamed(), []
        if columns:
            found = measure(self._table, columns)
        self._lengths = found if self._numbers is None else [lengths[self._numbers] for lengths in found]
        for column, lengths in zip(columns, self._lengths, strict=True):
            expected = "bytes in each row; a path beside them is not followed"
            remedy = f"{option('files')} takes a column of paths; {option('where')} can leave such rows out."
            rows.refuse(np.flatnonzero(lengths < 0), f"column {column!r}: no bytes", expected=expected, remedy=remedy)

    def _tasks(self, paths: list[pa.Array]) -> Iterator[ListedTask]:
        """Yield about `TASKS` tasks, in which workers look at files."""
        size = -(-self._count // TASKS)
        for first in range(0, self._count, size):
            last = min(first + size, self._count)
            texts = checks.join_rows(paths, first, last)
            yield ListedTask(self._root, texts, outside=self._options.allow_outside, samples=last - first)

    def _values(self) -> tuple[dict[str, ArrowTexts], FieldValues]:
        """Return the fields that are texts, and what numbers they stand for."""
        texts: dict[str, ArrowTexts] = {}
        numbers: dict[str, Number] = {}
        classes: dict[str, list[str]] = {}
        for name, column in self._roles.values:
            values = self._columns[column]
            if name in self._options.classes:  # also of samples that are left out, so that labels keep their numbers
                values, classes[name] = numbered(values, name, self._known)
            if (number := number_of(values.type)) is not None:
                numbers[name] = number
            texts[name] = column_texts(pa.table({name: values}), render_values)
        if self._roles.meta:
            texts[META] = column_texts(pa.table({name: self._columns[name] for name in self._roles.meta}), render_rows)
        return texts, FieldValues(inline=texts, numbers=numbers, classes=classes)

    def _without_lost(
        self, entries: Entries, groups: Groups | None, files: _FoundFiles
    ) -> tuple[Entries, tuple[Skipped, ...]]:
        """Return the samples whose files can all be packed, and why others cannot."""
        bad = np.flatnonzero(files.problem.any(axis=1))
        if len(bad) == self._count and all(code == "vanished" for code, _ in files.problems):
            first = printable(str(self._columns[self._roles.paths()[0]][0]))
            found = f"no file is there: all {self._count:,} rows name one that is missing, such as '{first}'"
            expected = f"paths that count from {printable(self._root)}"
            remedy = f"{option('root')} names another folder."
            raise InvalidRequest(self._where, found, expected=expected, remedy=remedy)
        owner = np.arange(self._count) if groups is None else groups.of_part
        numbers, skipped = np.arange(self._count) if self._numbers is None else self._numbers, []
        for row, which in zip(bad.tolist(), (files.problem[bad] > 0).argmax(axis=1).tolist(), strict=True):
            code, message = files.problems[int(files.problem[row, which]) - 1]
            path, where = str(self._columns[self._roles.paths()[which]][row]), f"row {int(numbers[row]) + 1:,}"
            skipped.append(Skipped(entries.key(int(owner[row])), path, code, f"{message}, {where}"))
        lost = np.zeros(len(entries), np.bool_)
        lost[owner[bad]] = True
        if groups is not None:
            left, samples = int((~lost[owner]).sum()), int((~lost).sum())
            self.notes.append(f"{counted(left, 'row')}, a file each, that share keys: {counted(samples, 'sample')}")
            self.keep(groups.first)
        if len(bad):
            kept = np.flatnonzero(~lost)
            entries = entries.take(kept)
            self.keep(kept)
        return entries, tuple(skipped)


def _root(options: CreateOptions, folder: str) -> bytes:
    """Return what paths count from, ending in a slash."""
    root = os.fspath(options.root or folder)
    if is_url(root):
        parse_address(root)  # which refuses what is none
        return bytes(source_root(root))
    if options.root is not None and options.stat and not os.path.isdir(options.root):
        found = f"no folder {os.fspath(options.root)!r}"
        raise InvalidRequest(option("root"), found, expected="what the manifest's paths count from")
    return os.fsencode(root).rstrip(b"/") + b"/"


# Parts of samples, a column each, become rows: in each sample ordered by the bytes of the fields' names.
#
# Every sample has the same parts. Only the first can have another name from sample to sample, and so another place
# among the others: the path whose ending names the field.


class FieldColumn(NamedTuple):
    """A field of each sample: one value for all, or an array with one per sample."""

    kind: _OneOrEach
    size: _OneOrEach
    mtime_ns: _OneOrEach
    changed_ns: _OneOrEach


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of each sample's fields.

    Attributes:
        fields: All names, sorted.
        code: uint16[endings, parts], the name at each place.
        part: int64[endings, parts], the part at each place.
        endings: uint16[samples], or None where there is one for all.
    """

    fields: tuple[str, ...]
    code: NDArray[np.uint16]
    part: NDArray[np.int64]
    endings: NDArray[np.uint16] | None

    def rows(self, columns: Sequence[FieldColumn], paths: Sequence[pa.Array], samples: int) -> FieldRows:
        """Return the rows of samples, of whose parts the first ones have paths."""
        code = np.empty((samples, self.code.shape[1]), np.uint16)
        code[:] = self.code[0] if self.endings is None else self.code[self.endings]
        kinds, sizes, mtimes, changed = zip(*columns, strict=True)
        return FieldRows(
            code=code.reshape(-1),
            kind=self._spread(kinds, samples, np.uint8),
            size=self._spread(sizes, samples, np.int64),
            mtime_ns=self._spread(mtimes, samples, np.int64),
            changed_ns=self._spread(changed, samples, np.int64),
            paths=checks.row_paths(samples, paths, np.where(self.part < len(paths), self.part, -1), self.endings),
        )

    def _spread(self, parts: Sequence[_OneOrEach], samples: int, kind: type[_Number]) -> NDArray[_Number]:
        """Return a value for each row, out of an array or one value for each part; where all are 0, in no memory."""
        if not any(isinstance(part, np.ndarray) or part for part in parts):
            return np.broadcast_to(kind(0), samples * len(parts))
        found = np.empty((samples, len(parts)), kind)
        if self.endings is None:
            for place, part in enumerate(self.part[0].tolist()):
                found[:, place] = parts[part]
            return found.reshape(-1)
        for part, values in enumerate(parts):
            found[:, part] = values
        for first in range(0, samples, _CHUNK):
            chunk = found[first : first + _CHUNK]
            chunk[:] = np.take_along_axis(chunk, self.part[self.endings[first : first + _CHUNK]], axis=1)
        return found.reshape(-1)


def lay_out(endings: Endings | None, known: Sequence[str]) -> Layout:
    """Return the layout of samples: `endings` name the first part, unless `known` does, which names the others."""
    names = [] if endings is None else endings.names
    fields = tuple(sorted({*names, *known}, key=to_bytes))
    number = {name: at for at, name in enumerate(fields)}
    code, part = [], []
    for parts in [[ending, *known] for ending in names] or [[*known]]:
        order = sorted(range(len(parts)), key=lambda at: to_bytes(parts[at]))
        code.append([number[parts[at]] for at in order])
        part.append(order)
    several = endings.codes if endings is not None and len(names) > 1 else None
    return Layout(fields, np.array(code, np.uint16), np.array(part, np.int64), several)


@dataclass(frozen=True, slots=True)
class _FoundFiles:
    """The files of a manifest.

    Attributes:
        columns: For each column of paths.
        problems: (code, message).
        problem: int64[samples, columns]: 0, or one more than the place in `problems`; or nothing was looked at.
    """

    columns: list[FieldColumn]
    problems: Sequence[tuple[SkipCode, str]] = ()
    problem: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 1), np.int64))


def _put_together(parts: list[ListedPart], columns: int) -> _FoundFiles:
    """Return the files that workers found."""
    before, problem = 0, []
    for part in parts:
        found = np.frombuffer(part.problem, np.uint32).astype(np.int64)
        problem.append(np.where(found > 0, found + before, 0))
        before += len(part.problems)

    def column(name: str, kind: type[_Number]) -> NDArray[_Number]:
        return np.concatenate([np.frombuffer(getattr(part, name), kind) for part in parts]).reshape(-1, columns)

    kinds, facts = column("kinds", np.uint8), [column(name, np.int64) for name in ("sizes", "mtimes", "changed")]
    return _FoundFiles(
        [FieldColumn(kinds[:, at], *(fact[:, at] for fact in facts)) for at in range(columns)],
        [problem for part in parts for problem in part.problems],
        np.concatenate(problem).reshape(-1, columns),
    )


# Bytes that a table holds: measured for the plan, and written end to end for the workers, in two passes over it.
#
# They are never in memory at once. Those of a row lie together, in the order of the fields' names.


_ROWS = 256  # at a time: some are taken out, which copies them


def _spans(entries: Entries) -> FieldSpans:
    """Return where the bytes of the table will lie."""
    spans = entries.rows.kind == SPAN
    sizes = np.where(spans, entries.rows.size, 0)
    offset = np.where(spans, np.cumsum(sizes) - sizes, 0)
    first, unknown = np.broadcast_to(np.uint32(0), len(entries)), np.broadcast_to(np.int64(-1), len(offset))
    return FieldSpans(files=(), file=first, offset=offset, expected=unknown)


def measure(table: Table, columns: list[str]) -> list[NDArray[np.int64]]:
    """Return int64[rows] for each column: the bytes of its values, -1 for a null."""
    found: list[list[NDArray[np.int64]]] = [[np.zeros(0, np.int64)] for _ in columns]
    for batch in _batches(table, columns):
        for array, lengths in zip(batch, found, strict=True):
            lengths.append(arrow.lengths(array))
            if array.null_count:
                lengths[-1][arrow.places(pc.is_null(array))] = -1
    return [np.concatenate(lengths) for lengths in found]


def write(
    table: Table, columns: list[str], rows: NDArray[np.int64] | None, lengths: list[NDArray[np.int64]], file: Writable
) -> bool:
    """Write the values of columns; return whether they were as long as they should be, or stop at those that are not.

    Args:
        table: What holds them.
        columns: Their names.
        rows: The numbers of those that are wanted, ascending; None: all.
        lengths: int64[wanted rows] for each column.
        file: Takes them, in order.
    """
    before = done = 0
    for batch in _batches(table, columns):
        count, kept = len(batch[0]), batch
        end = done + count
        if rows is not None:
            end = int(np.searchsorted(rows, before + count))
            wanted = number_array(rows[done:end] - before)
            kept = [array.take(wanted) for array in batch]
        before += count
        planned = [column[done:end] for column in lengths]
        if not all(np.array_equal(arrow.lengths(array), sizes) for array, sizes in zip(kept, planned, strict=True)):
            return False
        _write_rows(file, kept, planned)
        done = end
    return done == len(lengths[0])


def _batches(table: Table, columns: list[str]) -> Iterator[list[pa.Array]]:
    """Yield the values of columns, some rows at a time."""
    with readable(table.where):
        for batch in table.batches(columns):
            for first in range(0, batch.num_rows, _ROWS):
                some = batch.slice(first, _ROWS)
                some.validate(full=True)  # offsets that lead elsewhere would be followed
                yield [_bytes_of(some.column(at)) for at in range(len(columns))]


def _bytes_of(array: pa.Array) -> pa.Array:
    """Return the bytes in a column of them, of text, or of `struct<bytes, path>`."""
    if is_wrapped_bytes(array.type):
        array = array.flatten()[array.type.get_field_index("bytes")]
    array = arrow.plain(array)
    return pc.cast(array, pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def _write_rows(file: Writable, batch: list[pa.Array], lengths: list[NDArray[np.int64]]) -> None:
    """Write the values of columns, those of a row together."""
    if len(batch) == 1:
        file.write(arrow.payload(batch[0]))
        return
    columns = []
    for array, sizes in zip(batch, lengths, strict=True):
        data, ends = arrow.payload(array), np.cumsum(sizes)
        columns.append([data[start:end] for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)])
    for row in zip(*columns, strict=True):
        for value in row:
            file.write(value)

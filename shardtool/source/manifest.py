"""A manifest as a source: a table with a row for each sample, or for each file of one, becomes `Entries`.

Everything that is wrong with the table is found before a file is looked at, and all that is wrong in one way is one
error, with the numbers of the rows; row 1 is the first after the header.

Names alone decide which column is the key, a path, bytes or a value, and types where they are known. What was not asked
for is found by the usual names, and noted, so that what was guessed is known.

Columns stay in Arrow, and texts are made when a shard needs them (`ArrowTexts`): of five million rows there is no
Python object for each.
"""

from __future__ import annotations

import os
import re
import stat
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.dataset_file import open_classes
from shardtool.entries import arrow
from shardtool.entries.entries import Entries, FieldRows, FieldSpans, FieldValues
from shardtool.errors import InvalidRequest, SampleFailed, StoreFailed, listing, printable
from shardtool.fetch import LONGEST, shown_url
from shardtool.request.texts import pairs
from shardtool.select.fields import check_count
from shardtool.select.names import Groups, find_groups, grouped, share_of
from shardtool.skipped import SkipCode, Skipped
from shardtool.source.base import TASKS, Listing, Source, Writable, check_skipped
from shardtool.source.scan import ALWAYS, ListedPart, ListedTask, stat_listed
from shardtool.source.selecting import with_names
from shardtool.storage.places import file_stat, is_place, is_url, parse_address, source_root
from shardtool.table import columns as tables
from shardtool.table import values as cells
from shardtool.table.open import open_table, read_columns, readable
from shardtool.table.payloads import check_field_values, field_texts, field_type
from shardtool.values import (
    BINARY_ENDINGS,
    FIELD_LIMIT,
    FILE,
    INLINE,
    NAME_LIMIT,
    SPAN,
    URL,
    counted,
    split_name,
    to_bytes,
    to_text,
)
from shardtool.wording import either, flag, option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.entries import Names
    from shardtool.execute.pool import Pool
    from shardtool.request.options import CreateOptions
    from shardtool.request.settings import Observer
    from shardtool.values import Dots, ValueType

    Problem = tuple[SkipCode, str]


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
        self._table = table = open_table(source, {column for _, column in asked_columns(options)}, options.text_form)
        self.name, self._where = table.name, table.where
        self._roles = roles = choose(self._where, table.schema, options, self._first_ending)
        self.notes = [*table.notes, *roles.notes]
        self._root = _root(options, table.folder)
        self._is_typed = isinstance(source, str) and source == "-" and table.schema.names == ["path"]
        is_own = self._is_typed or not isinstance(source, str | os.PathLike)  # no file says these paths: the user does
        self._may_leave = is_own and options.root is None and not options.allow_outside
        heavy = {*tables.heavy_columns(table.schema), *roles.columns_of("binary")}
        self._light = [name for name in table.schema.names if name not in heavy]
        if not options.stat and roles.paths() and (options.size is None or len(roles.paths()) > 1):
            raise InvalidRequest(
                option("stat"),
                "no file is looked at, and nothing says how large it is",
                expected=f"{option('size', 'COLUMN')}, one file a row",
            )
        self._columns: dict[str, pa.Array] = {}  # those that were needed so far, as the rows that are left
        self._labels: dict[str, pa.Array] = {}  # the numbers of their classes, by field
        self._classes: dict[str, list[str]] = {}
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
        if (labels := self._numbers_of(name)) is not None:
            return pa.chunked_array([labels])
        if name not in self._light:
            name = dict(self._roles.values).get(name, name)
        if name not in self._light:
            raise tables.no_such("column", self._where, name, self._light)
        self._read(name)
        return pa.chunked_array([self._columns[name]])

    def _numbers_of(self, field: str) -> pa.Array | None:
        """Return what a number field is as a column of metadata; None where it is no such field, or names it has."""
        column, had = dict(self._roles.values).get(field), self._columns.get(field)
        if column is None or (had is not None and not arrow.is_number(had.type)):
            return None
        values = self._labels.get(field, self._columns[column])
        return None if cells.number_of(values.type) is None else values

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Keep only some of the rows that are left; `rows` are their places."""
        for columns in (self._columns, self._labels):
            columns.update({name: column.take(arrow.number_array(rows)) for name, column in columns.items()})
        self._lengths = [lengths[rows] for lengths in self._lengths]
        self._numbers, self._count = rows if self._numbers is None else self._numbers[rows], len(rows)

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """Choose rows, check columns, and look at the files in the workers."""
        options, roles, later = self._options, self._roles, None
        if self._is_typed and not is_place(self._root):
            self._pass_over_folders()
        if options.where is not None:
            from shardtool.select.query import matching_so_far

            taken, later = matching_so_far(with_names(self.table, roles.values), options.where, options.found)
            self.keep(taken)
        if not self._count:
            found = "no rows" if self._numbers is None else "no row is left"
            raise InvalidRequest(self._where, found, expected="a row per sample")
        rows = tables.Rows(self._where, self._columns, self._numbers)
        check_types(rows, roles, options.classes, self._table.schema)
        tables.check_sidecar_names(self._where, self._sidecar_names(), remedy=f"leave them out of {option('meta')}")
        check_values(rows, roles, self._table.classes)
        if options.stat:
            self._check_unused_paths()
        self._number_labels()
        urls = self._take_urls()
        sizes: _OneOrEach = _GUESSED
        if options.size is not None and (urls or (roles.paths() and not options.stat)):
            sizes = check_sizes(rows, options.size)
        paths, endings = self._find_paths(rows)
        names, groups = self._find_keys(rows, endings)
        if options.sample is not None or options.head is not None:  # before a file is looked at
            some = self._keep_some(names, groups)
            names, groups = names.take(some), None if groups is None else find_groups(names.take(some), by_key=False)
            paths, urls = ([one.take(arrow.number_array(some)) for one in columns] for columns in (paths, urls))
            sizes = sizes if isinstance(sizes, int) else sizes[some]
            endings = None if endings is None else endings.take(some)
        self._measure()
        inline, values = self._values()
        files, problems, problem = self._look_at(paths, sizes, pool, observer)
        columns = [
            *files,
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
            metadata=arrow.with_columns(
                pa.table({name: self._columns[name] for name in sidecar}) if sidecar else None,
                {name: self._numbers_of(name) for name, _ in roles.values},
            ),
        )
        if groups is not None:
            entries = grouped(entries, groups)
        skipped: tuple[Skipped, ...] = ()
        if groups is not None or problem.any():
            entries, skipped = self._without_lost(entries, groups, problems, problem)
        if self._lengths:
            entries = replace(entries, spans=_spans(entries))
        check_skipped(self.name, skipped, options.on_error, f"leave their rows out with {option('where')}")
        pa.default_memory_pool().release_unused()  # what making the texts took, to measure them
        return Listing(entries, skipped, self.name, tuple(self.notes), later=later)

    def write_binary(self, file: Writable) -> None:
        """Write all bytes that the table holds, where the offsets of the samples say, from 0 on.

        Raises:
            SampleFailed: They are not what they were.
        """
        done = 0
        for batch in self._bytes() if self._lengths else ():
            planned = [column[done : done + len(batch[0])] for column in self._lengths]
            self._check_unchanged(same=all(map(np.array_equal, map(arrow.lengths, batch), planned)))
            _write_rows(file, batch, planned)
            done += len(batch[0])
        self._check_unchanged(same=all(len(lengths) == done for lengths in self._lengths))

    def _check_unchanged(self, *, same: bool) -> None:
        if not same:
            found, expected = "changed while it was packed", "a table that stays as it was when the run began"
            remedy = f"Run again with {option('if_exists', 'resume')}."
            raise SampleFailed(self._where, found, expected=expected, remedy=remedy)

    def _bytes(self) -> Iterator[list[pa.Array]]:
        """Yield the values of the columns of bytes in the rows that are left, some rows at a time."""
        columns, before = self._roles.columns_of("binary"), 0
        with readable(self._where):
            for batch in self._table.batches(columns):
                for first in range(0, batch.num_rows, _ROWS):
                    some = batch.slice(first, _ROWS)
                    some.validate(full=True)  # offsets that lead elsewhere would be followed
                    arrays = [_bytes_of(some.column(at)) for at in range(len(columns))]
                    if self._numbers is not None:
                        low, high = np.searchsorted(self._numbers, (before, before + len(some)))
                        wanted = arrow.number_array(self._numbers[low:high] - before)
                        arrays = [array.take(wanted) for array in arrays]
                    before += len(some)
                    yield arrays

    def _read(self, *names: str | None) -> None:
        """Read more columns."""
        new = [name for name in names if name is not None and name not in self._columns]
        columns = read_columns(self._table, new, self._roles.texts())
        if self._numbers is not None:
            columns = {name: column.take(arrow.number_array(self._numbers)) for name, column in columns.items()}
        found = self._columns | columns
        self._columns = {name: found[name] for name in self._table.schema.names if name in found}

    def _first_ending(self, column: str) -> str:
        """Return the ending of the first path in a column of `struct<bytes, path>`; empty where there is none."""
        kind = self._table.schema.field(column).type
        if tables.is_wrapped_bytes(kind) and kind.get_field_index("path") >= 0:
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
        if self._options.meta in (None, "all"):
            wanted |= {*roles.paths(), *roles.columns_of("urls"), *roles.columns_of("values")}
        return [name for name in self._columns if name in wanted]

    def _take_urls(self) -> list[pa.Array]:
        """Return the URLs, and keep only what may be seen of them in the columns, of which outputs are made."""
        names = self._roles.columns_of("urls")
        urls = [pc.fill_null(self._columns[name], "") for name in names]
        self._columns |= {name: shown_column(column) for name, column in zip(names, urls, strict=True)}
        return urls

    def _pass_over_folders(self) -> None:
        """Leave folders out of a list of paths: `find` prints them before what lies in them."""
        paths, root = self._columns["path"].to_pylist(), os.fsdecode(self._root)
        above = {os.path.dirname(path) for path in paths}
        may_be = (at for at, path in enumerate(paths) if path.rstrip("/") in above or "." not in os.path.basename(path))
        folders = [at for at in may_be if paths[at] and os.path.isdir(os.path.join(root, paths[at]))]
        if folders:
            self.keep(np.setdiff1d(np.arange(len(paths)), folders))

    def _find_paths(self, rows: tables.Rows) -> tuple[list[pa.Array], Endings | None]:
        """Return the paths of files, a column each, as they count from the root, and the fields that they name."""
        roles, options = self._roles, self._options
        if self._may_leave and roles.paths():
            self._count_from_common_folder()
        found = [relative(self._columns[name], self._root) for name in roles.paths()]
        for name, paths in zip(roles.paths(), found, strict=True):
            check_paths(rows, name, paths, outside=options.allow_outside and not is_place(self._root))
        endings = None
        if found and (roles.path is not None or roles.key is None):
            endings = Endings(self._where, found[0], options.dots or "first")
        if roles.path is not None and endings is not None:
            check_endings(rows, roles.path, endings, roles.field_names())
        found = [from_root(paths, self._root) for paths in found]
        self._columns |= dict(zip(roles.paths(), found, strict=True))  # where the root lies goes into no output
        return found, endings

    def _count_from_common_folder(self) -> None:
        """Let the user's own paths that leave the current folder count from the one above all."""
        found = {name: relative(self._columns[name], self._root) for name in self._roles.paths()}
        leaving = {name: upward_places(paths) for name, paths in found.items()}
        if not any(len(leaving[name]) or len(absolute_places(paths)) for name, paths in found.items()):
            return
        top = os.path.join(os.path.realpath(os.fsdecode(self._root)), "")
        real = cache(lambda folder: os.path.realpath(os.path.join(top, folder)))
        folders = set[str]()
        for name, paths in found.items():
            texts = paths.to_pylist()
            for at in leaving[name].tolist():
                folder, file = os.path.split(texts[at])
                texts[at] = os.path.join(real(folder), file)
            texts = [text and os.path.join(top, text) for text in texts]  # absolute ones stay, and empty ones for now
            folders |= {os.path.dirname(text) for text in texts if text}
            self._columns[name] = arrow.texts(texts)
        common = os.path.commonpath(folders)
        self._root = os.fsencode(os.path.join(common, ""))
        where = f"{printable(common)}, their common folder ({option('root')} names another)"
        self.notes.append(f"paths count from {where}")

    def _find_keys(self, rows: tables.Rows, endings: Endings | None) -> tuple[Names, Groups | None]:
        """Return the keys and, where rows are files of which several make a sample, which belong together."""
        roles = self._roles
        if roles.key is not None:
            column = self._columns[roles.key]
            problem = f"column {roles.key!r}: a key that is no whole number"
            rows.refuse(tables.broken_numbers(column), problem, expected="text or whole numbers")
            found, bad = tables.gather(tables.key_texts(column))
        elif endings is not None:
            found, bad = tables.gather(endings.stems())
        else:
            numbers = np.arange(self._count) if self._numbers is None else self._numbers
            stems = self._stems_beside_bytes()
            found, bad = (
                (stems.take(numbers), numbers[:0]) if stems is not None else tables.gather(tables.row_numbers(numbers))
            )
            if roles.binary and stems is None:
                self.notes.append(f"keys: the numbers of the rows ({option('key', 'COLUMN')} names a column)")
        source = roles.key or next(iter(roles.paths()), None)
        check_keys(rows, source, bad)
        if roles.path is None or roles.files or roles.urls or roles.binary or endings is None:
            check_unique(rows, source, found)
        elif tables.may_repeat(found):
            groups = find_groups(found, by_key=False)
            check_endings_differ(rows, source, found, groups.of_part * FIELD_LIMIT + endings.codes)
            check_agreement(rows, [*roles.meta, *roles.columns_of("values")], groups)
            return found, groups if len(groups.first) < len(found) else None
        return found, None

    def _keep_some(self, names: Names, groups: Groups | None) -> NDArray[np.int64]:
        """Keep the rows of the samples that `sample` and `head` take; return their places.

        Raises:
            InvalidRequest: There are none.
        """
        options = self._options
        keys = names if groups is None else names.take(groups.first)
        samples = np.arange(len(keys))
        if options.sample is not None:
            samples, notes = share_of(keys, options.sample)
            self.notes += notes
        samples = samples[: options.head]
        rows = samples if groups is None else np.flatnonzero(np.isin(groups.of_part, samples))
        self.keep(rows)
        return rows

    def _check_unused_paths(self) -> None:
        """Check that no text column that nothing uses holds the paths of files, which would not be packed.

        Where an option names the payload, such columns are only noted.

        Raises:
            InvalidRequest: There are such columns.
        """
        options, roles, schema = self._options, self._roles, self._table.schema
        used = {*roles.paths(), *(name for role in ("urls", "binary", "values") for name in roles.columns_of(role))}
        if options.meta not in (None, "all", "none"):
            used |= {*roles.meta}  # named by the user
        if roles.key is not None and (options.key is not None or roles.paths() or roles.binary or roles.urls):
            used.add(roles.key)
        texts = [one.name for one in schema if tables.is_text(one.type) and one.name not in used]
        values = self._first_texts([*roles.paths(), *texts[:MAX_CHECKED_COLUMNS]])
        packed = [values.pop(name) for name in roles.paths()]
        examples = {name: example for name in values if (example := unused_file(self._root, values[name], packed))}
        if not examples:
            return
        is_chosen = options.path is not None or bool(options.files or options.binary or options.urls)
        name, example = next(iter(examples.items()))
        pack = _packing(roles, examples, options.dots or "first")
        names = listing([*map(repr, examples)])
        subject = f"column {names} holds" if len(examples) == 1 else f"columns {names} hold"
        found = f"{subject} paths of existing files, such as {printable(example)!r},"
        if is_chosen:
            self.notes.append(f"{found} which are not packed ({pack} packs them)")
            return
        named = [*roles.meta] if options.meta != "none" else []
        named += [one for one in examples if one not in named]
        kept = option("meta", ",".join(named) if len(named) <= MAX_NAMED_COLUMNS else f"{name},...")
        remedy = f"Pack the files: {pack}. To keep the paths as plain metadata: {kept}."
        expected = "an option that names the columns of paths"
        raise InvalidRequest(self._where, f"{found} which would not be packed", expected=expected, remedy=remedy)

    def _first_texts(self, names: Sequence[str]) -> dict[str, list[str | None]]:
        """Return the first texts of some columns."""
        found = {name: self._columns[name] for name in names if name in self._columns}
        unread = [name for name in names if name not in found]
        if unread:
            with readable(self._where):
                batch = next(iter(self._table.batches(unread)), None)
            if batch is not None and self._numbers is None:
                found |= {name: batch.column(at) for at, name in enumerate(unread)}
        heads = {name: column[:MAX_CHECKED_ROWS] for name, column in found.items() if tables.is_text(column.type)}
        heads = {name: arrow.plain(head) for name, head in heads.items()}
        for head in heads.values():
            head.validate(full=True)
        return {name: heads[name].to_pylist() if name in heads else [] for name in names}

    def _stems_beside_bytes(self) -> Names | None:
        """Return the paths in a column of `struct<bytes, path>` without their endings, where each row has its own."""
        kinds = {name: self._table.schema.field(name).type for name in self._roles.columns_of("binary")}
        column = next(
            (
                name
                for name, kind in kinds.items()
                if tables.is_wrapped_bytes(kind) and kind.get_field_index("path") >= 0
            ),
            None,
        )
        if column is None:
            return None
        with readable(self._where):
            parts = [*self._table.parts(column, "path")]
            for part in parts:
                part.validate(full=True)
        if not parts or not tables.is_text(parts[0].type) or any(part.null_count for part in parts):
            return None
        chunks = (
            pc.cast(part.slice(at, _CHUNK), pa.large_string()) for part in parts for at in range(0, len(part), _CHUNK)
        )
        found, bad = tables.gather(pc.replace_substring_regex(chunk, _ENDING, r"\1") for chunk in chunks)
        return None if len(bad) or (tables.may_repeat(found) and tables.repeated(found)) else found

    def _measure(self) -> None:
        """Find the lengths of the bytes in the table, int64[rows that are left] for each column.

        Raises:
            InvalidRequest: There is a null.
        """
        rows, columns = tables.Rows(self._where, self._columns, self._numbers), self._roles.columns_of("binary")
        found: list[list[NDArray[np.int64]]] = [[np.zeros(0, np.int64)] for _ in columns]
        for batch in self._bytes() if columns else ():
            for array, known in zip(batch, found, strict=True):
                known.append(arrow.lengths(array))
                if array.null_count:
                    known[-1][arrow.places(pc.is_null(array))] = -1
        self._lengths = [np.concatenate(known) for known in found]
        for column, lengths in zip(columns, self._lengths, strict=True):
            expected = "bytes in each row; a path beside them is not followed"
            remedy = f"{option('files')} takes a column of paths; {option('where')} can leave such rows out."
            rows.refuse(np.flatnonzero(lengths < 0), f"column {column!r}: no bytes", expected=expected, remedy=remedy)

    def _look_at(
        self, paths: list[pa.Array], sizes: _OneOrEach, pool: Pool, observer: Observer
    ) -> tuple[list[FieldColumn], list[Problem], NDArray[np.int64]]:
        """Return the files of each column of paths, of these sizes where none is looked at; see `_put_together`."""
        if not paths or not self._options.stat:
            return [FieldColumn(FILE, sizes, 0, 0) for _ in paths], [], np.zeros((0, 1), np.int64)
        parts: dict[int, ListedPart] = {}
        for number, part in pool.map(stat_listed, self._tasks(paths)):
            parts[number] = part
            observer.listed(len(part.kinds) // len(paths))
        return _put_together([parts[number] for number in sorted(parts)], len(paths))

    def _number_labels(self) -> None:
        """Number the labels, also of samples that are left out, so that they keep their numbers."""
        names, fields, asked = {**self._table.classes}, self._roles.values, self._options.classes
        for column, numbers in cells.numbers_kept(self._columns.__getitem__, names, fields, asked, self._known):
            self._columns[column] = numbers
        for name, column in fields:
            values, called = self._columns[column], names.get(column)
            if called is not None:
                cells.check_list_field(name, column, values.type)
                self._classes[name] = called
            if name in asked and called is not None:
                self._labels[name] = values.cast(pa.int64())
            elif name in asked:
                self._labels[name], self._classes[name] = cells.numbered(values, name, self._known)

    def _tasks(self, paths: list[pa.Array]) -> Iterator[ListedTask]:
        """Yield about `TASKS` tasks, in which workers look at files."""
        size = -(-self._count // TASKS)
        for first in range(0, self._count, size):
            last = min(first + size, self._count)
            texts = join_rows(paths, first, last)
            yield ListedTask(self._root, texts, outside=self._options.allow_outside)

    def _values(self) -> tuple[dict[str, cells.ArrowTexts], FieldValues]:
        """Return the fields that are texts, and what their values were."""
        texts: dict[str, cells.ArrowTexts] = {}
        types: dict[str, ValueType] = {}
        for name, column in self._roles.values:
            values = self._labels.get(name, self._columns[column])
            if (kind := field_type(name, values.type)) is not None:
                types[name] = kind
            texts[name] = field_texts(name, values)
        if self._roles.meta:
            texts[META] = cells.column_texts(
                pa.table({name: self._columns[name] for name in self._roles.meta}), cells.render_rows
            )
        return texts, FieldValues(inline=texts, types=types, classes=self._classes)

    def _without_lost(
        self, entries: Entries, groups: Groups | None, problems: list[Problem], problem: NDArray[np.int64]
    ) -> tuple[Entries, tuple[Skipped, ...]]:
        """Return the samples whose files can all be packed, and why others cannot: see `_put_together`."""
        bad = np.flatnonzero(problem.any(axis=1))
        if len(bad) == self._count and all(code == "vanished" for code, _ in problems):
            first = printable(str(self._columns[self._roles.paths()[0]][0]))
            found = f"no file is there: all {self._count:,} rows name one that is missing, such as '{first}'"
            expected = f"paths that count from {printable(self._root)}"
            remedy = f"{option('root')} names another folder."
            raise InvalidRequest(self._where, found, expected=expected, remedy=remedy)
        owner = np.arange(self._count) if groups is None else groups.of_part
        numbers, skipped = np.arange(self._count) if self._numbers is None else self._numbers, []
        for row, which in zip(bad.tolist(), (problem[bad] > 0).argmax(axis=1).tolist(), strict=True):
            code, message = problems[int(problem[row, which]) - 1]
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


MAX_CHECKED_ROWS = 100  # whose texts may be paths of files
MAX_CHECKED_COLUMNS = 100
MAX_MISSING_FILES = 10  # of the first texts of a column: if no file exists, the column holds no paths
MAX_CHECKED_OBJECTS = 3  # each takes a request
MAX_NAMED_COLUMNS = 8  # in a message


def unused_file(root: bytes, texts: Sequence[str | None], packed: Sequence[Sequence[str | None]]) -> str:
    """Return a text that is the path of a file that is not packed; empty: the texts of this column are no such paths.

    They are if most of them are paths of files, and one of these files is none of those that the row names already.

    Args:
        root: What paths count from.
        texts: The first texts of a column.
        packed: The texts of the columns of paths, in the same rows.
    """
    if is_place(root):
        return _unused_object(root, texts, packed)
    folder, files, missing, example = os.fsdecode(root), 0, 0, ""
    for row, text in enumerate(texts):
        if not text:
            continue
        fact = _regular_file(folder, text)
        if fact is None:
            missing += 1
            if not files and missing >= MAX_MISSING_FILES:
                return ""
            continue
        files += 1
        others = [_regular_file(folder, column[row] or "") for column in packed if row < len(column)]
        if not example and not any(other is not None and os.path.samestat(fact, other) for other in others):
            example = text
    return example if files > missing else ""


def _regular_file(folder: str, path: str) -> os.stat_result | None:
    """Return the facts of a file; None: there is none, or something else."""
    try:
        fact = file_stat(os.path.join(folder, path))
    except (OSError, ValueError):  # no file, no path, or a NUL in it
        return None
    return fact if stat.S_ISREG(fact.st_mode) else None


def _unused_object(root: bytes, texts: Sequence[str | None], packed: Sequence[Sequence[str | None]]) -> str:
    """Do what `unused_file` does in a store or on a server: ask for texts with the ending of a binary format only."""
    taken = {text for column in packed for text in column}
    wanted = [
        text
        for text in texts
        if text and text not in taken and "\0" not in text and ending_of(text, "last").lower() in BINARY_ENDINGS
    ][:MAX_CHECKED_OBJECTS]
    if not wanted:
        return ""
    paths = [*relative(arrow.texts(wanted), root).to_pylist()]
    data = b"".join([to_bytes(path) + b"\0" for path in paths])
    try:
        part = stat_listed(ListedTask(root, data, outside=False))
    except StoreFailed:  # what the run needs is asked for again, and named
        return ""
    problems = np.frombuffer(part.facts, np.int64).reshape(-1, 4)[:, 3]
    return wanted[0] if not problems.any() else ""


def _packing(roles: Roles, examples: Mapping[str, str], dots: Dots) -> str:
    """Return the options that pack the files of columns, too, of which an example is given."""
    if len(examples) == 1 and not (roles.paths() or roles.binary or roles.urls):
        return option("path", next(iter(examples)))
    words = [option("path", roles.path)] if roles.path is not None else []
    taken = {*roles.field_names()}
    for name, example in examples.items():
        ending = ending_of(example, dots) or "FIELD"
        field = ending if ending not in taken and roles.path is None else f"{_FIELD.sub('_', name)}.{ending}"
        taken.add(field)
        words.append(option("files", {field: name}))
    return " ".join(words)


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


# Which column is what.


KEY_NAMES = ("key", "__key__", "id", "sample_id", "object_id", "image_id", "uid", "uuid")
META = "json"
_OF_PATHS = ("root", "allow_outside", "stat", "symlinks")
_FORMATS = frozenset({
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jxl", "jp2", "npy", "npz", "pdf", "wav", "flac",
    "mp3", "ogg", "opus", "m4a", "mp4", "webm", "mkv", "avi", "mov",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of each column; pairs are of a field and the column that it is made of.

    Attributes:
        key: None: the paths' stems, or the rows' numbers where there are none.
        path: None: there are none, or their fields are named.
        files: Columns of paths.
        binary: Columns of bytes, in the order of the fields' names.
        urls: Columns of URLs.
        values: Columns whose values are the payload.
        meta: In the order of the table.
        notes: What was chosen by the usual names.
    """

    key: str | None
    path: str | None
    files: tuple[tuple[str, str], ...]
    binary: tuple[tuple[str, str], ...]
    urls: tuple[tuple[str, str], ...]
    values: tuple[tuple[str, str], ...]
    meta: tuple[str, ...]
    notes: list[str] = field(default_factory=list)

    def columns_of(self, role: str) -> list[str]:
        """Return the columns of `files`, `urls`, `binary` or `values`."""
        return [column for _, column in getattr(self, role)]

    def texts(self) -> list[str]:
        """Return the columns that must stay text where types are inferred."""
        keys = [self.key] if self.key is not None else []
        return [*keys, *self.paths(), *self.columns_of("urls"), *self.columns_of("binary")]

    def paths(self) -> list[str]:
        """Return the columns of paths; the one whose endings name the field first."""
        return [*([self.path] if self.path is not None else []), *self.columns_of("files")]

    def field_names(self) -> list[str]:
        """Return the fields whose names are known, `json` among them where there is metadata."""
        names = [name for pairs in (self.files, self.urls, self.binary, self.values) for name, _ in pairs]
        return names + ([META] if self.meta else [])


def asked_columns(options: CreateOptions) -> list[tuple[str, str]]:
    """Return (option, column) for every column that is asked for."""
    found = [(name, getattr(options, name)) for name in ("key", "path", "size")]
    for name in ("files", "binary", "urls", "values"):
        found += [(name, column) for _, column in pairs(name, getattr(options, name))]
    if options.meta not in (None, "all", "none"):
        found += [("meta", column) for column in options.meta.split(",")]
    return [(option(name), column) for name, column in found if column is not None]


def choose(where: str, schema: pa.Schema, options: CreateOptions, first_ending: Callable[[str], str]) -> Roles:
    """Return what each column is for.

    Args:
        where: What the manifest is called.
        schema: Its columns.
        options: What was asked for.
        first_ending: Gives, for a column of `struct<bytes, path>`, the ending of the first path, or nothing.

    Raises:
        InvalidRequest: A column that is not there, no columns that could be samples, or fields that clash.
    """
    for named_by, column in asked_columns(options):
        if column not in schema.names:
            raise tables.no_such("column", named_by, column, schema.names)
    notes: list[str] = []
    files, binary, urls, values = (
        pairs(name, getattr(options, name)) for name in ("files", "binary", "urls", "values")
    )
    path = options.path
    if path is None and not files and not binary and not urls:
        asked = {column for _, column in values}
        if values:  # columns that --meta names stay metadata
            asked |= {one for one in (options.meta or "").split(",") if one.casefold() in tables.MEDIA_NAMES}
        path = _usual("path", tables.PATH_NAMES, [one.name for one in schema if tables.is_text(one.type)], asked, notes)
        if path is None:
            some = [one.name for one in schema if tables.is_bytes(one.type) or tables.is_wrapped_bytes(one.type)]
            some = [one for one in some if one not in asked]
            binary = _only_bytes(where, some, first_ending, notes, needed=not values)
    payload = {path, *(column for _, column in (*files, *urls, *binary, *values))}
    key = options.key
    if key is None:
        key = _usual("key", KEY_NAMES, [one.name for one in schema if _is_key(one.type)], payload, notes)
    unasked = [one for one in tables.heavy_columns(schema) if one not in payload]
    wanted = {*schema.names} - {key, *payload, *unasked, *filter(tables.is_index, schema.names)}
    if options.meta not in (None, "all"):
        wanted = {*options.meta.split(",")} if options.meta != "none" else set()
    roles = Roles(
        key=None if key == (path if path is not None else next((column for _, column in files), None)) else key,
        path=path,
        files=files,
        binary=tuple(sorted(binary, key=lambda pair: to_bytes(pair[0]))),
        urls=urls,
        values=values,
        meta=tuple(one for one in schema.names if one in wanted),
        notes=notes,
    )
    names = roles.field_names()
    clash = bool(roles.meta) and names.count(META) > 1
    tables.check_fields(where, names, remedy=meta_clash() if clash else tables.NAME_APART)
    tables.check_labels(options.classes, roles.values)
    if not (roles.paths() or roles.binary or urls or values):
        found = f"no column with a usual name for paths, among {listing(schema.names, 20)}"
        expected = f"one called {listing([*tables.PATH_NAMES], len(tables.PATH_NAMES))}"
        asked_by = [option(name, {"jpg": "COLUMN"}) for name in ("files", "urls", "binary")]
        named = ", ".join([option("path", "COLUMN"), *asked_by])
        remedy = f"Name it: {named}, or {option('values', {'txt': 'COLUMN'})}."
        raise InvalidRequest(where, found, expected=expected, remedy=remedy)
    _note(roles, options)
    if unasked := [one for one in unasked if one not in roles.meta]:
        taken = option("binary", {"FIELD": "COLUMN"})
        notes.append(f"columns of bytes left out: {listing(unasked)} ({taken} takes one)")
    return roles


def meta_clash() -> str:
    """Return what to do where another field is called as the metadata's."""
    none = option("meta", "none")
    return f"The metadata is the field json: call the other something else, or leave it out with {none}."


def _note(roles: Roles, options: CreateOptions) -> None:
    """Add to the notes what no column was found for, and nothing that was asked for says what becomes of that."""
    idle = [option(name) for name in _OF_PATHS if not roles.paths() and options.is_given(name)]
    if idle:
        roles.notes.append(f"{listing(idle)}: no effect, for no column holds paths of files")
    if options.size is not None and options.stat and not roles.urls:
        roles.notes.append(f"{option('size')} has no effect without {either('stat=False', '--no-stat')}")
    if roles.key is None and options.key is None and not roles.paths() and not roles.binary:
        roles.notes.append(f"keys: the numbers of the rows ({option('key', 'COLUMN')} names a column)")
    if roles.meta and options.meta in (None, "all"):
        roles.notes.append(f"columns in the field {META}: {listing([*roles.meta], 8)} ({option('meta')} chooses)")


def _is_key(kind: pa.DataType) -> bool:
    return tables.is_text(kind) or bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _usual(
    role: str, names: Iterable[str], columns: list[str], taken: Collection[str | None], notes: list[str]
) -> str | None:
    """Return the column with the first of some names, in any case; None where there is none that is free."""
    lower = {column.casefold(): column for column in reversed(columns) if column not in taken}
    found = next((lower[name] for name in names if name in lower), None)
    if found is not None and found.casefold() != role:
        notes.append(f"{role} column: {found} ({option(role)} names another)")
    return found


def _only_bytes(
    name: str, columns: list[str], first_ending: Callable[[str], str], notes: list[str], *, needed: bool
) -> tuple[tuple[str, str], ...]:
    """Return the one column of bytes, with a field for it; none where there is not one, and no other payload needs it.

    Raises:
        InvalidRequest: Nothing says which of several columns is meant, or what kind of bytes one holds.
    """
    if not columns or (len(columns) > 1 and not needed):
        return ()
    if len(columns) > 1:
        remedy = f"Say which, and the fields that they become: {option('binary', {'jpg': columns[0]})}."
        raise InvalidRequest(name, f"{counted(len(columns), 'column of bytes')}: {listing(columns)}", remedy=remedy)
    column = columns[0]
    ending = column.casefold() if column.casefold() in _FORMATS else first_ending(column)
    if not ending and not needed:
        return ()
    if not ending:
        found = f"column {column!r} holds bytes, and nothing says of what kind"
        remedy = f"Name the field that they become: {option('binary', {'jpg': column})}."
        raise InvalidRequest(name, found, remedy=remedy)
    other = option("binary", {"FIELD": "COLUMN"})
    notes.append(f"bytes column: {column}, as the field {ending} ({other} names another)")
    return ((ending, column),)


def ending_of(path: str | None, dots: Dots) -> str:
    """Return the field that a path names; empty where it names none."""
    split = split_name(to_bytes(os.path.basename(path)), dots) if path else None
    return to_text(split[1]) if split else ""


# What can be wrong with a manifest's columns: each kind of problem is one error, with the numbers of its rows.


def check_types(rows: tables.Rows, roles: Roles, classes: Collection[str], schema: pa.Schema) -> None:
    """Refuse columns whose types cannot be what they are used for.

    Args:
        rows: The rows of the table.
        roles: What each column is for.
        classes: The fields whose values are numbered.
        schema: The columns of the table, with those of bytes.

    Raises:
        InvalidRequest: There are such columns.
    """
    bytes_remedy, any_text = f"{option('binary')} takes a column of bytes.", "text or numbers"
    not_in_meta = f"leave it out of {option('meta')}."
    wanted: list[tuple[str, str, Callable[[pa.DataType], bool], str, str]] = []
    if roles.key is not None:
        wanted.append((roles.key, "key", tables.is_key, "text or whole numbers", ""))
    wanted += [(column, "path", tables.is_text, "text", bytes_remedy) for column in roles.paths()]
    wanted += [(column, "URL", tables.is_text, "text", "") for column in roles.columns_of("urls")]
    for one, column in roles.values:
        wanted.append((column, f"field {one}", cells.has_text, any_text, bytes_remedy))
        if one in classes:
            wanted.append((column, "labels", lambda kind: not pa.types.is_nested(kind), any_text, ""))
    for column in roles.meta:
        cure = f"Make it a field ({option('binary', {'jpg': column})}), or {not_in_meta}"
        wanted.append((column, "metadata", cells.has_text, "what JSON has a form for", cure))
        expected = "objects with a name in some row, as Parquet needs"
        wanted.append((column, "metadata", lambda kind: not tables.is_hollow(kind), expected, not_in_meta.capitalize()))
    cure = f"{option('values')} takes a column of numbers."
    wanted += [(column, "bytes", _holds_bytes, "bytes, or text", cure) for column in roles.columns_of("binary")]
    for column, role, is_right, expected, remedy in wanted:
        kind = rows.columns[column].type if column in rows.columns else schema.field(column).type
        if not is_right(kind):
            raise InvalidRequest(
                rows.where, f"column {column!r} ({role}) holds {kind}", expected=expected, remedy=remedy
            )


def _holds_bytes(kind: pa.DataType) -> bool:
    return tables.is_bytes(kind) or tables.is_wrapped_bytes(kind) or tables.is_text(kind)


def check_values(rows: tables.Rows, roles: Roles, classes: Mapping[str, list[str]]) -> None:
    """Refuse nulls where a value must be, and values that cannot be written.

    Args:
        rows: The rows of the table.
        roles: What each column is for.
        classes: Of columns of class numbers, or of lists of these: the names of classes.

    Raises:
        InvalidRequest: There are such values.
    """
    needed = [("key", roles.key)] if roles.key is not None else []
    needed += [("path", name) for name in roles.paths()] + [("value", name) for name in roles.columns_of("values")]
    for role, name in needed:
        missing = cells.missing_places(rows.columns[name])
        found = f"column {name!r}: no {role} (null or NaN)"
        remedy = f"{option('where')} can leave such rows out."
        rows.refuse(missing, found, expected=f"a {role} in each row", remedy=remedy)
    for one, name in roles.values:
        check_field_values(one, name, rows.columns[name], classes.get(name), rows.refuse)
    for name in (*roles.paths(), *roles.columns_of("urls")):
        cells.check_payload(name, rows.columns[name], classes.get(name), rows.refuse)
    for name in roles.meta:
        problem = f"column {name!r}: an infinite number"
        remedy = f"Make it null, or leave the column out of {option('meta')}."
        rows.refuse(
            cells.infinite_places(rows.columns[name]), problem, expected="what JSON has a form for", remedy=remedy
        )


def check_sizes(rows: tables.Rows, name: str) -> NDArray[np.int64]:
    """Return the column of sizes as int64[rows].

    Raises:
        InvalidRequest: It holds something else.
    """
    column = rows.columns.get(name)
    if column is None or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InvalidRequest(option("size"), f"column {name!r} holds no numbers", expected="bytes of the file")
    rows.refuse(cells.missing_places(column), f"column {name!r}: no size (null or NaN)", expected="bytes of the file")
    broken = tables.broken_numbers(column)
    rows.refuse(broken, f"column {name!r}: no whole number", expected="bytes of the file")
    sizes = arrow.numbers(column).astype(np.int64)
    rows.refuse(np.flatnonzero(sizes < 0), f"column {name!r}: a negative size", expected="bytes of the file")
    return sizes


def check_paths(rows: tables.Rows, name: str, found: pa.Array, *, outside: bool) -> None:
    """Refuse paths that are empty, are no files' or lead out of the root.

    Args:
        rows: The rows of the table.
        name: The column.
        found: Its paths, relative to the root where they lead into it.
        outside: Whether they may lead out of it.

    Raises:
        InvalidRequest: There are such paths.
    """
    column = f"column {name!r}"
    original = rows.columns[name]
    empty = np.flatnonzero(arrow.lengths(original) == 0)
    rows.refuse(empty, f"{column}: an empty path", expected="a path in each row")
    is_url = pc.match_substring_regex(original, r"^[A-Za-z][A-Za-z0-9+.-]+://")
    urls = arrow.places(pc.and_(is_url, pc.match_substring_regex(found, r"^[A-Za-z][A-Za-z0-9+.-]+:/")))
    if len(urls):
        problem = f"{column}: a URL, such as {rows.examples(original, urls[:1])},"
        remedy = f"{option('urls', {'jpg': name})} fetches them."
        if pc.all(pc.match_substring_regex(original, "^(?i:s3|gs|az)://")).as_py():
            remedy = f"What they count from, such as {option('root', 's3://BUCKET')}, must be named."
        rows.refuse(urls, problem, expected="paths of files", remedy=remedy)
    if outside:
        return
    away = np.union1d(absolute_places(found), upward_places(found))
    if len(away):
        what = f"{column}: a path that leaves the root, such as {rows.examples(original, away[:1])},"
        cure = f"Name their common folder with {option('root')}, or take them with {flag('allow_outside')}."
        rows.refuse(away, what, expected=f"paths below the manifest's folder, or {option('root')}", remedy=cure)


def check_endings(rows: tables.Rows, name: str, endings: Endings, known: list[str]) -> None:
    """Refuse paths that name no field, or one that the sample has already.

    Raises:
        InvalidRequest: There are such paths.
    """
    column = rows.columns[name]
    if "" in endings.names:
        bad = np.flatnonzero(endings.codes == endings.names.index(""))
        found = f"column {name!r}: a name without an ending, such as {rows.examples(column, bad[:1])},"
        expected = "an ending that names the field, such as .jpg"
        rows.refuse(bad, found, expected=expected, remedy=f"Name the field: {option('files', {'jpg': name})}.")
    for one in sorted(set(endings.names) & set(known)):
        bad = np.flatnonzero(endings.codes == endings.names.index(one))
        remedy = meta_clash() if one == META else "Name them apart."
        rows.refuse(bad, f"column {name!r}: a file whose ending is another column's field {one!r}", remedy=remedy)


def check_keys(rows: tables.Rows, column: str | None, bad: NDArray[np.int64]) -> None:
    """Refuse keys that are no sound names.

    Args:
        rows: The rows of the table.
        column: Where the keys come from: the column of keys or, without one, of paths; None: they are numbers.
        bad: The places of those that are no sound names.

    Raises:
        InvalidRequest: There are such keys.
    """
    if column is not None and len(bad):
        shown = rows.examples(rows.columns[column], bad)
        problem = f"column {column!r}: {counted(len(bad), 'value')} that cannot be keys, such as {shown},"
        expected = f"text of 1 to {NAME_LIMIT:,} bytes, without control characters and parts such as '', '.' or '..'"
        rows.refuse(bad, problem, expected=expected, remedy=_other_key())


def check_endings_differ(rows: tables.Rows, column: str | None, found: Names, fields: NDArray[np.int64]) -> None:
    """Refuse keys that two rows have whose files would be the same field, of which `fields` has a number for each.

    Raises:
        InvalidRequest: There are such keys.
    """
    order = np.argsort(fields, kind="stable")
    again = np.flatnonzero(np.diff(fields[order]) == 0)
    if len(again):
        check_unique(rows, column, found, np.union1d(order[again], order[again + 1]))


def check_agreement(rows: tables.Rows, columns: Iterable[str], groups: Groups) -> None:
    """Refuse values that differ among the rows of a key, for a sample has one.

    Raises:
        InvalidRequest: There are such values.
    """
    first = arrow.number_array(groups.first[groups.of_part])
    for name in columns:
        column = rows.columns[name]
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        wanted = column.take(first)
        if not column.equals(wanted):
            bad = [at for at in range(len(column)) if not column[at].equals(wanted[at])]
            problem = f"column {name!r}: another value than in the first row of the same key"
            remedy = f"Leave it out of {option('meta')}, or of {option('values')}."
            rows.refuse(np.array(bad, np.int64), problem, expected="one value for all files of a sample", remedy=remedy)


def _other_key() -> str:
    return f"{option('key', 'COLUMN')} names another; the column of paths means the paths without their endings."


def check_unique(rows: tables.Rows, column: str | None, found: Names, which: NDArray[np.int64] | None = None) -> None:
    """Refuse keys that are not each one's own.

    Args:
        rows: The rows of the table.
        column: Where the keys come from; see `check_keys`.
        found: The keys.
        which: The places of those to look at; None: all.

    Raises:
        InvalidRequest: There are such keys.
    """
    expected = "a key of its own for each row" + (f", from column {column!r}" if column else "")
    rows.refuse_repeated(found, which, expected=expected, remedy=_other_key())


# Columns of URLs, as outputs may have them.


_MAY_HIDE = r"[@#?\\]"  # what must be in a URL of which something is not shown, but for its length


def shown_column(urls: pa.Array) -> pa.Array:
    """Return what may be seen of URLs: see `shown_url`."""
    chunks = [urls.slice(first, _CHUNK) for first in range(0, len(urls), _CHUNK)]
    for at, chunk in enumerate(chunks):  # those that are shown whole are not looked at one by one
        mask = pc.or_(pc.match_substring_regex(chunk, _MAY_HIDE), pc.greater(pc.utf8_length(chunk), LONGEST))
        if pc.any(mask).as_py():
            shown = [shown_url(text) for text in chunk.filter(mask).to_pylist()]
            chunks[at] = pc.replace_with_mask(chunk, mask, pa.array(shown, urls.type))
    return pa.concat_arrays(chunks) if chunks else urls


# Paths as a manifest gives them: where they lead from the root, and what their names say.
#
# Nothing is looked up on a disk here; links are for `stat_listed`.


_EMPTY = arrow.text("")
_END = arrow.text("\0")
_ENDING = r"(?s)([^/])\.[^./]*$"
_FIELD = re.compile(r"[^A-Za-z0-9_-]")
_UP = r"(?:^|/)\.\.(?:/|$)"
_SPLIT = {
    "first": r"(?s)^(?P<stem>(?:.*/)?[^/][^./]*)\.(?P<field>[^/]+)$",
    "last": r"(?s)^(?P<stem>(?:.*/)?[^/]+)\.(?P<field>[^./]+)$",
}
_BEFORE = {"first": r"(?:^|/)[^/][^./]*\.", "last": r"[^/]\."}


def relative(paths: pa.Array, root: bytes) -> pa.Array:
    """Return paths relative to `root` where they lead into it, without `./`, `//` and the like.

    Those that lead elsewhere stay absolute; `..` stays, for it may follow a link.
    """
    text = os.fsdecode(root)
    tidy = [(r"/(?:\.?/)+", "/"), (r"^\./", "")]
    if is_place(root):
        tidy = [(f"^{re.escape(text)}", ""), *tidy]
    else:
        tops = sorted({os.path.abspath(text), os.path.realpath(text)})
        tidy += [(f"^{re.escape(top.rstrip('/'))}/", "") for top in tops]
    for pattern, replacement in tidy:
        if pc.any(pc.match_substring_regex(paths, pattern)).as_py():
            paths = pc.replace_substring_regex(paths, pattern, replacement)
    return paths


def absolute_places(paths: pa.Array) -> NDArray[np.int64]:
    """Return which of `relative` paths are absolute: they lead out of the root."""
    return arrow.places(pc.starts_with(paths, "/"))


def upward_places(paths: pa.Array) -> NDArray[np.int64]:
    """Return which of `relative` paths leave the root by `..`, whatever links are on the way."""
    found = arrow.places(pc.match_substring_regex(paths, _UP))
    shown = paths.take(arrow.number_array(found)).to_pylist()
    return found[[os.path.normpath(path).startswith("..") for path in shown]] if shown else found


def from_root(paths: pa.Array, root: bytes) -> pa.Array:
    """Return `relative` paths that lead elsewhere as they count from `root`, by `..` from where it really lies."""
    if not len(absolute_places(paths)):
        return paths
    folder, up = os.path.realpath(os.fsdecode(root)), ""
    while folder != "/":
        folder, up = os.path.dirname(folder), f"{up}../"
        paths = pc.replace_substring_regex(_large(paths), f"^{re.escape(folder.rstrip('/'))}/+", up)
    return paths


def _large(paths: pa.Array) -> pa.Array:
    return pc.cast(paths, pa.large_string())


class Endings:
    """The fields that paths name.

    Attributes:
        names: Each once, in the order in which they were met; empty for names without one.
        codes: uint16[paths] of `names`.

    Raises:
        InvalidRequest: There are too many.
    """

    def __init__(self, where: str, paths: pa.Array, dots: Dots) -> None:
        self._where, self._paths, self._dots = where, paths, dots
        self.names: list[str] = []
        self.codes = np.zeros(len(paths), np.uint16)
        for first in range(0, len(paths), _CHUNK):
            chunk = paths.slice(first, _CHUNK)
            self.codes[first : first + len(chunk)] = self._chunk(chunk)

    def _chunk(self, chunk: pa.Array) -> NDArray[np.uint16] | int:
        """Return the codes of some paths. Nearly always all have the ending of the last one, which is quickly seen."""
        if self.names:
            pattern = f"(?s){_BEFORE[self._dots]}{re.escape(self.names[-1])}$"
            if self.names[-1] and pc.all(pc.match_substring_regex(chunk, pattern)).as_py():
                return len(self.names) - 1
        fields = pc.struct_field(pc.extract_regex(chunk, _SPLIT[self._dots]), [1])
        fields = pc.coalesce(_large(fields), _EMPTY).dictionary_encode()
        known = {name: at for at, name in enumerate(self.names)}
        codes = [known.setdefault(name, len(known)) for name in fields.dictionary.to_pylist()]
        self.names = [*known]
        remedy = f"If the names have dots in them, {option('dots', 'last')} makes the last ending the field."
        check_count(self._where, self.names, remedy)
        taken: NDArray[np.uint16] = np.array(codes, np.uint16)[arrow.numbers(fields.indices)]
        return taken

    def take(self, rows: NDArray[np.int64]) -> Endings:
        """Return the endings of some of the paths, of which no stems are asked for."""
        found = copy(self)
        found.codes = self.codes[rows]
        return found

    def stems(self) -> Iterator[pa.Array]:
        """Yield arrays of the paths without their endings, before any were left out."""
        for first in range(0, len(self._paths), _CHUNK):
            chunk, codes = self._paths.slice(first, _CHUNK), self.codes[first : first + _CHUNK]
            ending = self.names[codes[0]]
            if not np.all(codes == codes[0]):
                yield pc.coalesce(pc.struct_field(pc.extract_regex(chunk, _SPLIT[self._dots]), [0]), chunk)
            else:
                yield pc.replace_substring_regex(chunk, re.escape(f".{ending}") + "$", "") if ending else chunk


def row_paths(
    samples: int, columns: Sequence[pa.Array], roles: NDArray[np.int64], endings: NDArray[np.uint16] | None
) -> cells.ArrowTexts:
    """Return the paths of the rows of samples, made of the columns they stand in: a row that is no file has none.

    Args:
        samples: How many there are.
        columns: Columns of paths, each with a value per sample.
        roles: For each ending, which column each row of a sample takes its path from; -1 for none.
        endings: uint16[samples], or None where there is one for all.
    """
    count = samples * roles.shape[1]

    def render(which: NDArray[np.int64] | slice) -> pa.Array:
        rows = np.arange(which.start, which.stop) if isinstance(which, slice) else which
        sample, place = np.divmod(rows, roles.shape[1])
        role = roles[0 if endings is None else endings[sample], place]
        taken = [_large(column.take(arrow.number_array(sample))) for column in columns]
        texts = pc.choose(arrow.number_array(role + 1), _EMPTY, *taken)
        return pc.binary_join_element_wise(texts, _END, _EMPTY)

    return cells.ArrowTexts(count, render, _CHUNK)


def join_rows(columns: Sequence[pa.Array], first: int, last: int) -> bytes:
    """Return the paths of samples `first` to `last` (exclusive), those of a sample together, a NUL after each."""
    parts = [part for column in columns for part in (_large(column.slice(first, last - first)), _END)]
    return bytes(arrow.payload(pc.binary_join_element_wise(*parts, _EMPTY)))


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


class Layout(NamedTuple):
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
            paths=row_paths(samples, paths, np.where(self.part < len(paths), self.part, -1), self.endings),
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


def _put_together(parts: list[ListedPart], columns: int) -> tuple[list[FieldColumn], list[Problem], NDArray[np.int64]]:
    """Return the files that workers found, for each column of paths, and what is wrong with some.

    Returns:
        The columns; (code, message); and int64[samples, columns]: 0, or one more than the place of what is wrong.
    """
    kinds = np.frombuffer(b"".join([part.kinds for part in parts]), np.uint8).reshape(-1, columns)
    facts = [np.frombuffer(part.facts, np.int64).reshape(-1, columns, 4) for part in parts]
    every, problem = np.concatenate(facts), []
    problems: list[Problem] = []
    for part, fact in zip(parts, facts, strict=True):
        problem.append(np.where(fact[..., 3] > 0, fact[..., 3] + len(problems), 0))
        problems += part.problems
    found = [FieldColumn(kinds[:, at], *every[:, at, :3].T) for at in range(columns)]
    return found, problems, np.concatenate(problem)


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


def _bytes_of(array: pa.Array) -> pa.Array:
    """Return the bytes in a column of them, of text, or of `struct<bytes, path>`."""
    if tables.is_wrapped_bytes(array.type):
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

"""The manifest source: a table with a row per sample becomes `Entries`.

The order of calls: read (`Manifest`), choose rows (`keep`), `check`, look at the files (`tasks`, which
go to `stat_listed` in the workers), `entries`, and where there are bytes in the table `write_binary`.
Everything that is wrong with the table is found before `entries` returns, and all that is wrong in
one way is one error, with the numbers of the rows; row 1 is the first after the header.

Columns stay in Arrow, and texts are made when a shard needs them (`texts`): of five million rows
there is no Python object for each.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries.arrow import number_array
from shardtool.entries.entries import Entries, FieldRows, FieldSpans, FieldValues
from shardtool.errors import InvalidRequest, SampleFailed, printable
from shardtool.names import Names
from shardtool.skipped import Skipped
from shardtool.source import manifest_columns as checks
from shardtool.source import manifest_rows as places
from shardtool.source import manifest_rows as spool
from shardtool.source.base import TASKS, Listing, Source, check_skipped
from shardtool.source.manifest_columns import META, ManifestOptions, choose, ending_of, manifest_options
from shardtool.source.manifest_rows import FieldColumn, ListedFiles, lay_out, shown_column
from shardtool.source.naming import find_groups, grouped
from shardtool.source.scan import ALWAYS, ListedTask, look_at_objects, stat_listed
from shardtool.storage.open_file import is_place
from shardtool.storage.places import check_scheme, is_url, source_root
from shardtool.table import columns as keys
from shardtool.table.columns import Rows, check_sidecar_names, heavy_columns, is_wrapped_bytes, no_such
from shardtool.table.open import open_table, read_columns, readable
from shardtool.table.values import ColumnTexts, number_of, numbered, render_rows, render_values
from shardtool.values import FILE, INLINE, SPAN, URL, counted
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.execute.pool import Pool
    from shardtool.request.options import CreateOptions
    from shardtool.request.results import Observer
    from shardtool.source.base import Writable
    from shardtool.source.manifest_rows import Layout
    from shardtool.source.scan import ListedPart
    from shardtool.values import Number


_FIELD_LIMIT = 2**16 - 1
_GUESSED = 100_000  # bytes of the file of a URL, where nothing says more


class Manifest:
    """A table with a row per sample.

    Args:
        source: A file, `-` for standard input, a folder of Parquet files, or a table in memory.
        options: What its columns are for.

    Attributes:
        name: The name of the file, or of the kind of table.
        notes: What was chosen because nothing was said.

    Raises:
        InvalidRequest: The table cannot be read, or a column is not there.
    """

    def __init__(self, source: object, options: ManifestOptions | None = None) -> None:
        self._options = options = options or ManifestOptions()
        self._source = open_table(source, {column for _, column in options.named()})
        self.name, self._where = self._source.name, self._source.where
        self._roles = choose(self._where, self._source.schema, options, self._first_ending)
        self.notes = self._roles.notes
        self._root = _root(options, self._source.folder)
        is_typed = isinstance(source, str) and source == "-" and options.root is None
        self._is_list = is_typed and self._source.schema.names == ["path"]
        heavy = {*heavy_columns(self._source.schema), *self._roles.streamed()}
        self._light = [name for name in self._source.schema.names if name not in heavy]
        if not options.stat and self._roles.paths() and (options.size is None or len(self._roles.paths()) > 1):
            raise InvalidRequest(
                option("stat"),
                "no file is looked at, and nothing says how large it is",
                expected=f"{option('size', 'COLUMN')}, one file a row",
            )
        self._columns: dict[str, pa.Array] = {}  # those that were needed so far, as the rows that are left
        self._numbers: NDArray[np.int64] | None = None  # of the rows that are left; None: all are
        used = (*self._roles.meta, *self._roles.texts(), *self._roles.values())
        wanted = {*used, *([options.size] if options.size else [])}
        self._read([name for name in self._light if name in wanted])
        self._count = len(next(iter(self._columns.values()))) if self._columns else self._source.count()
        self._keys = Names.of([])
        self._by_file = False  # whether rows are files, of which several make a sample
        self._paths: list[pa.Array] = []
        self._urls: list[pa.Array] = []
        self._sizes = np.zeros(0, np.int64)  # of the files, where they are not looked at
        self._url_sizes: NDArray[np.int64] | int = _GUESSED
        self._endings: places.Endings | None = None
        self._lengths: list[NDArray[np.int64]] = []  # of the bytes in the table, a column each
        self._labels: dict[str, pa.Array] = {}
        self._classes: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def is_remote(self) -> bool:
        """Whether paths lead into a store, or to the web."""
        return is_place(self._root)

    @property
    def table(self) -> pa.Table:
        """The columns that hold no bytes, for the rows that are left."""
        self._read(self._light)
        return pa.table(self._columns)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column for the rows that are left.

        Raises:
            InvalidRequest: There is no such column.
        """
        if name not in self._light:
            raise no_such("column", self._where, name, self._light)
        self._read([name])
        return pa.chunked_array([self._columns[name]])

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Keep only some of the rows that are left.

        Args:
            rows: Their places, ascending.
        """
        self._columns = {name: column.take(number_array(rows)) for name, column in self._columns.items()}
        self._numbers, self._count = rows if self._numbers is None else self._numbers[rows], len(rows)

    def check(self) -> None:
        """Find whatever is wrong with the rows that are left.

        Raises:
            InvalidRequest: Something is.
        """
        if not self._count:
            found = "no rows" if self._numbers is None else "no row is left"
            raise InvalidRequest(self._where, found, expected="a row per sample")
        options = self._options
        rows, roles = Rows(self._where, self._columns, self._numbers), self._roles
        checks.check_types(rows, roles, self._options.classes, self._source.schema)
        check_sidecar_names(self._where, self._sidecar_names(), remedy=f"leave them out of {option('meta')}")
        checks.check_values(rows, roles)
        self._find_urls(rows)
        if not self._options.stat and roles.paths():
            self._sizes = checks.check_sizes(rows, self._options.size or "")
        self._paths = self._find_paths(rows)
        self._keys = self._find_keys(rows)
        self._lengths = self._measure(rows)
        for name, column in roles.fields:  # before any sample is left out, so that labels keep their numbers
            if name in self._options.classes:
                self._labels[name], self._classes[name] = numbered(self._columns[column], name, options.known_classes)

    def tasks(self, parts: int) -> Iterator[ListedTask]:
        """Yield about `parts` tasks for `stat_listed`; none where no file is to be looked at."""
        if not self._paths or not self._options.stat:
            return
        size = -(-self._count // parts)
        for first in range(0, self._count, size):
            last = min(first + size, self._count)
            paths = places.join_rows(self._paths, first, last)
            yield ListedTask(self._root, paths, outside=self._options.allow_outside, samples=last - first)

    def entries(self, parts: list[ListedPart]) -> tuple[Entries, tuple[Skipped, ...]]:
        """Return the samples, in the order of the table, and those that cannot be packed.

        Args:
            parts: What `stat_listed` returned, in the order of the tasks.

        Raises:
            InvalidRequest: None of the files is there, or there are too many different fields.
        """
        skipped: tuple[Skipped, ...] = ()
        if parts:
            listed = ListedFiles(parts, len(self._paths))
            skipped = self._skip(listed)
            files = listed.files
        else:
            files = [FieldColumn(FILE, self._sizes, 0, 0) for _ in self._paths]
        texts, numbers = self._texts()
        files += [FieldColumn(URL, self._url_sizes, 0, 0) for _ in self._urls]
        binary = [FieldColumn(SPAN, lengths, 0, ALWAYS) for lengths in self._lengths]
        columns = [*files, *binary, *(FieldColumn(INLINE, text.lengths(), 0, 0) for text in texts.values())]
        roles, endings, count = self._roles, self._endings, self._count
        known = [name for name, _ in (*roles.files, *roles.urls, *roles.binary)] + [*texts]
        if endings is None or roles.path is None:
            layout = lay_out([], known, None)
        else:
            layout = lay_out(endings.names, known, endings.codes)
        entries = Entries(
            root=self._root,
            keys=self._keys,
            first=np.arange(count + 1, dtype=np.int64) * len(columns),
            fields=layout.fields,
            rows=FieldRows(
                code=layout.codes(count),
                kind=layout.spread([part.kind for part in columns], count, np.uint8),
                size=layout.spread([part.size for part in columns], count, np.int64),
                mtime_ns=layout.spread([part.mtime_ns for part in columns], count, np.int64),
                changed_ns=layout.spread([part.changed_ns for part in columns], count, np.int64),
                paths=self._row_paths(layout),
            ),
            values=FieldValues(inline=texts, numbers=numbers, classes=self._classes),
            spans=self._spans(layout, len(texts)) if binary else None,
            metadata=self._metadata(),
        )
        if self._by_file:
            entries = self._by_key(entries)
        pa.default_memory_pool().release_unused()  # what making the texts took, to measure them
        return entries, skipped

    def _by_key(self, entries: Entries) -> Entries:
        """Return the samples that rows of files make."""
        groups = find_groups(entries.keys, by_key=False)
        rows, samples = counted(len(entries), "row"), counted(len(groups.first), "sample")
        self.notes.append(f"{rows}, a file each, that share keys: {samples}")
        self.keep(groups.first)
        return grouped(entries, groups)

    def write_binary(self, file: Writable) -> None:
        """Write all bytes that the table holds, where the offsets of `entries` say, from 0 on.

        Raises:
            SampleFailed: They are not what they were.
        """
        if self._lengths and not spool.write(self._source, self._roles.streamed(), self._numbers, self._lengths, file):
            found = "changed while it was packed"
            expected = "a table that stays as it was when the run began"
            raise SampleFailed(
                self._where, found, expected=expected, remedy=f"Run again with {option('if_exists', 'resume')}."
            )

    def _read(self, names: list[str]) -> None:
        """Read more columns."""
        new = [name for name in names if name not in self._columns]
        columns = read_columns(self._source, new, self._roles.texts())
        if self._numbers is not None:
            columns = {name: column.take(number_array(self._numbers)) for name, column in columns.items()}
        found = self._columns | columns
        self._columns = {name: found[name] for name in self._source.schema.names if name in found}

    def _first_ending(self, column: str) -> str:
        """Return the ending of the first path in a column of `struct<bytes, path>`; empty where there is none."""
        kind = self._source.schema.field(column).type
        if is_wrapped_bytes(kind) and kind.get_field_index("path") >= 0:
            with readable(self._where):
                for batch in self._source.batches([column]):
                    first = batch.column(0).slice(0, 1)
                    first.validate(full=True)
                    for value in first.to_pylist():
                        return ending_of((value or {}).get("path"), self._options.dots)
        return ""

    def _sidecar_names(self) -> list[str]:
        """Return the columns that go into the sidecars: those that --meta names, or all but the keys and bytes."""
        roles = self._roles
        used = [*roles.paths(), *roles.url_columns(), *roles.values()] if self._options.meta == "all" else []
        wanted = {*roles.meta, *used}
        return [name for name in self._columns if name in wanted]

    def _metadata(self) -> pa.Table | None:
        names = self._sidecar_names()
        return pa.table({name: self._columns[name] for name in names}) if names else None

    def _find_urls(self, rows: Rows) -> None:
        """Take the URLs, and keep only what may be seen of them in the columns, of which outputs are made."""
        self._urls = [pc.fill_null(self._columns[name], "") for name in self._roles.url_columns()]
        for name, urls in zip(self._roles.url_columns(), self._urls, strict=True):
            self._columns[name] = shown_column(urls)
        if self._urls and self._options.size is not None:
            self._url_sizes = checks.check_sizes(rows, self._options.size)

    def _find_paths(self, rows: Rows) -> list[pa.Array]:
        """Return the paths of files, a column each, as they count from the root; find the fields that they name."""
        roles, options = self._roles, self._options
        if self._is_list and not options.allow_outside:
            self._count_from_common_folder()
        found = [places.relative(self._columns[name], self._root) for name in roles.paths()]
        for name, paths in zip(roles.paths(), found, strict=True):
            checks.check_paths(rows, name, paths, outside=options.allow_outside and not self.is_remote)
        if found and (roles.path is not None or roles.key is None):
            self._endings = _endings(self._where, found[0], options)
        if roles.path is not None and self._endings is not None:
            checks.check_endings(rows, roles.path, self._endings, roles.field_names())
        found = [places.from_root(paths, self._root) for paths in found]
        self._columns |= dict(zip(roles.paths(), found, strict=True))  # where the root lies goes into no output
        return found

    def _count_from_common_folder(self) -> None:
        """Let typed paths that leave the current folder count from the one above all: they are the user's."""
        if (found := places.from_common_folder(self._columns["path"], self._root)) is not None:
            folder, self._columns["path"] = found
            self._root = os.fsencode(os.path.join(folder, ""))
            where = f"{printable(folder)}, their common folder ({option('root')} names another)"
            self.notes.append(f"paths count from {where}")

    def _find_keys(self, rows: Rows) -> Names:
        roles, bad = self._roles, np.zeros(0, np.int64)
        if roles.key is not None:
            column = self._columns[roles.key]
            problem = f"column {roles.key!r}: a key that is no whole number"
            rows.refuse(keys.broken_numbers(column), problem, expected="text or whole numbers")
            found, bad = keys.gather(keys.key_texts(column))
        elif self._endings is not None:
            found, bad = keys.gather(self._endings.stems())
        else:
            numbers = np.arange(self._count) if self._numbers is None else self._numbers
            found, bad = keys.gather(keys.row_numbers(numbers))
        column = roles.key or next(iter(roles.paths()), None)
        checks.check_keys(rows, column, bad)
        if roles.path is None or roles.files or roles.urls or roles.binary or self._endings is None:
            checks.check_unique(rows, column, found)
        elif keys.may_repeat(found):
            groups = find_groups(found, by_key=False)
            self._by_file = len(groups.first) < len(found)
            checks.check_endings_differ(rows, column, found, groups.of_part * _FIELD_LIMIT + self._endings.codes)
            checks.check_agreement(rows, [*roles.meta, *roles.values()], groups)
        return found

    def _measure(self, rows: Rows) -> list[NDArray[np.int64]]:
        """Return the lengths of the bytes in the table, a column each."""
        columns = self._roles.streamed()
        if not columns:
            return []
        found = spool.measure(self._source, columns)
        if self._numbers is not None:
            found = [lengths[self._numbers] for lengths in found]
        for column, lengths in zip(columns, found, strict=True):
            expected = "bytes in each row; a path beside them is not followed"
            remedy = f"{option('files')} takes a column of paths; {option('where')} can leave such rows out."
            rows.refuse(np.flatnonzero(lengths < 0), f"column {column!r}: no bytes", expected=expected, remedy=remedy)
        return found

    def _skip(self, listed: ListedFiles) -> tuple[Skipped, ...]:
        """Drop the samples whose files cannot be packed, and return why."""
        first = listed.first_problem()
        bad = np.flatnonzero(first >= 0)
        if not len(bad):
            return ()
        paths = self._roles.paths()
        if len(bad) == self._count and all(code == "vanished" for code, _ in listed.problems):
            found = (
                f"no file is there: all {self._count:,} rows name one that is missing, such as "
                f"'{printable(str(self._columns[paths[0]][0]))}'"
            )
            expected = f"paths that count from {printable(self._root)}"
            raise InvalidRequest(
                self._where, found, expected=expected, remedy=f"{option('root')} names another folder."
            )
        numbers = np.arange(self._count) if self._numbers is None else self._numbers
        skipped = []
        for sample in bad.tolist():
            which = int(first[sample])
            code, message = listed.problems[int(listed.problem[sample, which]) - 1]
            path = str(self._columns[paths[which]][sample])
            skipped.append(
                Skipped(self._keys[sample].decode(), path, code, f"{message}, row {int(numbers[sample]) + 1:,}")
            )
        good = np.flatnonzero(first < 0)
        if self._by_file:  # a sample that lost a field is left out whole
            groups = find_groups(self._keys, by_key=False)
            lost = np.zeros(len(groups.first), np.bool_)
            lost[groups.of_part[bad]] = True
            good = np.flatnonzero(~lost[groups.of_part])
        self.keep(good)
        self._keys = self._keys.take(good)
        self._paths, self._urls = (
            [column.take(number_array(good)) for column in columns] for columns in (self._paths, self._urls)
        )
        if isinstance(self._url_sizes, np.ndarray):
            self._url_sizes = self._url_sizes[good]
        self._lengths = [column[good] for column in self._lengths]
        self._labels = {name: column.take(number_array(good)) for name, column in self._labels.items()}
        if self._endings is not None:
            self._endings.codes = self._endings.codes[good]
        listed.files = [part.take(good) for part in listed.files]
        return tuple(skipped)

    def _texts(self) -> tuple[dict[str, ColumnTexts], dict[str, Number]]:
        """Return the fields that are texts, and what numbers they stand for."""
        texts: dict[str, ColumnTexts] = {}
        numbers: dict[str, Number] = {}
        for name, column in self._roles.fields:
            values = self._labels.get(name, self._columns[column])
            number = number_of(values.type)
            if number is not None:
                numbers[name] = number
            texts[name] = ColumnTexts(pa.table({name: values}), render_values)
        if self._roles.meta:
            table = pa.table({name: self._columns[name] for name in self._roles.meta})
            texts[META] = ColumnTexts(table, render_rows)
        return texts, numbers

    def _row_paths(self, layout: Layout) -> places.RowPaths:
        columns = [*self._paths, *self._urls]
        roles = np.where(layout.part < len(columns), layout.part, -1)
        return places.RowPaths(self._count, columns, roles, layout.endings)

    def _spans(self, layout: Layout, texts: int) -> FieldSpans:
        """Return where the bytes of the table will lie in the spool."""
        lengths = np.stack(self._lengths, axis=1)
        ends = np.cumsum(lengths).reshape(lengths.shape)
        starts = ends - lengths
        offsets = [starts[:, at] for at in range(starts.shape[1])]
        offset = layout.spread(
            [*[0] * (len(self._paths) + len(self._urls)), *offsets, *[0] * texts], self._count, np.int64
        )
        first, unknown = np.broadcast_to(np.uint32(0), self._count), np.broadcast_to(np.int64(-1), len(offset))
        return FieldSpans(files=(), file=first, offset=offset, expected=unknown)


def _root(options: ManifestOptions, folder: str) -> bytes:
    if is_url(options.root or folder):
        check_scheme(options.root or folder)
        return source_root(options.root or folder)
    if options.root is not None and options.stat and not os.path.isdir(options.root):
        raise InvalidRequest(
            option("root"), f"no folder {options.root!r}", expected="what the manifest's paths count from"
        )
    return os.fsencode(options.root or folder).rstrip(b"/") + b"/"


def _endings(where: str, paths: pa.Array, options: ManifestOptions) -> places.Endings:
    try:
        return places.Endings(paths, options.dots)
    except OverflowError:
        found = f"more than {_FIELD_LIMIT:,} different fields"
        remedy = f"If the names have dots in them, {option('dots', 'last')} makes the last ending the field."
        raise InvalidRequest(where, found, expected="a few", remedy=remedy) from None


# A manifest as a source: a table with a row for each sample.


class ManifestSource(Source):
    """A table with a row per sample."""

    def __init__(self, source: object, options: CreateOptions) -> None:
        self._manifest = Manifest(source, manifest_options(options))
        self._options = options

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """Choose rows and columns, and look at the files in the workers."""
        manifest, options = self._manifest, self._options
        if options.where is not None:
            from shardtool.select.query import matching

            manifest.keep(matching(manifest.table, options.where))
        manifest.check()
        found = {}
        look = look_at_objects if manifest.is_remote else stat_listed
        for number, part in pool.map(look, manifest.tasks(TASKS)):
            found[number] = part
            observer.listed(len(part))
        entries, skipped = manifest.entries([found[number] for number in sorted(found)])
        check_skipped(manifest.name, skipped, options.on_error, f"leave their rows out with {option('where')}")
        return Listing(entries, skipped, manifest.name, tuple(manifest.notes))

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:  # noqa: ARG002 - the table has more columns than samples
        """Return a column of the manifest, for the samples that are left."""
        return self._manifest.column(name)

    def write_binary(self, file: Writable) -> None:
        """Write the payload of all SPAN rows."""
        self._manifest.write_binary(file)

"""List the samples of a manifest."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.class_names import read_classes
from shardtool.entries import arrow, metadata_columns
from shardtool.entries.sample_table import FieldValues, SampleTable
from shardtool.errors import InvalidRequest, printable
from shardtool.messages import option_text
from shardtool.names import MAX_FIELDS
from shardtool.select.field_rows import merge_groups
from shardtool.select.splits import sample_with_notes
from shardtool.shard_samples import FILE, INLINE, SPAN, URL
from shardtool.skipped import SkipCode, Skipped
from shardtool.source.base import TASK_COUNT, Listing, Source, Writable, check_skipped, no_match_error
from shardtool.source.keys_from import key_list_name
from shardtool.source.manifest import checks
from shardtool.source.manifest.bytes_columns import BytesColumns, first_ending, written_spans
from shardtool.source.manifest.paths import (
    PathEndings,
    choose_root,
    find_containing_folder,
    find_folders,
    join_paths,
    rebase_to_root,
    redact_urls,
    relative_to_root,
    use_common_folder,
)
from shardtool.source.manifest.roles import META_FIELD, choose_roles, requested_columns
from shardtool.source.manifest.rows import FieldColumn, ScalarOrArray, arrange_fields, merge_stat_results
from shardtool.source.scan_part import ALWAYS_CHANGED
from shardtool.source.selection import add_field_columns, find_listed_samples, rename_listed_keys
from shardtool.source.stat_files import StatResult, StatTask, stat_files
from shardtool.storage.paths import is_address
from shardtool.table import columns as tables
from shardtool.table import keys, payloads, render
from shardtool.table.base import reading_table
from shardtool.table.concatenated import FILE_COLUMN, ConcatenatedTable
from shardtool.table.open import check_column, open_table, read_columns
from shardtool.table.rows import RowGroups, TableRows, collect_rows, collected_note, group_rows
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings
    from shardtool.execute.pool import Pool
    from shardtool.request.create_options import CreateOptions
    from shardtool.request.observer import Observer
    from shardtool.transform.transform import ReadCondition
    from shardtool.values import ValueType

    Problem = tuple[SkipCode, str]
    Rows = NDArray[np.int64]


_ASSUMED_URL_BYTES = 100_000


class ManifestSource(Source):
    """A table as a source: a file, standard input (`-`), a folder of Parquet files, or a table in memory."""

    def __init__(self, source: object, options: CreateOptions, _outputs: object = ()) -> None:
        self._options, self._known = options, read_classes(options.classes_from)
        requested = {column for _, column in requested_columns(options)}
        self._table = table = open_table(source, requested, options.delimited_format)
        self.name, self._where = table.name, table.location
        ending_of = partial(first_ending, table, dots=options.dots or "first")
        self._roles = roles = choose_roles(self._where, table.schema, options, ending_of)
        self._bytes = BytesColumns(table, roles.columns_of("binary"))
        self.notes = [*table.notes, *roles.notes]
        self._root = choose_root(options, table.folder)
        self._is_path_list = isinstance(source, str) and source == "-" and table.schema.names == ["path"]
        # Trust paths from standard input or memory, because the user wrote them.
        is_trusted = self._is_path_list or not isinstance(source, str | os.PathLike)
        self._may_leave_root = is_trusted and options.root is None and not options.allow_outside
        binary = {*tables.find_byte_columns(table.schema), *roles.columns_of("binary")}
        self._non_binary = [name for name in table.schema.names if name not in binary]
        if not options.stat and roles.paths() and (options.size_column is None or len(roles.paths()) > 1):
            found = "files are not examined, and their sizes are unknown"
            expected = f"{option_text('size_column', 'COLUMN')} and one file per row"
            raise InvalidRequest(option_text("stat"), found, expected=expected)
        self._columns: dict[str, pa.Array] = {}
        self._labels: dict[str, pa.Array] = {}
        self._recorded: dict[str, object] = {}
        self._classes: dict[str, list[str]] = {}
        self._row_numbers: NDArray[np.int64] | None = None  # row numbers of the selected rows, or None for all rows
        needed = {*roles.meta, *roles.texts(), *roles.columns_of("values"), options.size_column}
        self._read_columns(*needed.intersection(self._non_binary))
        self._count = len(next(iter(self._columns.values()))) if self._columns else table.count()
        self._binary_lengths: list[NDArray[np.int64]] = []
        if options.collect:
            self._collect_rows(options.collect)

    @property
    def table(self) -> pa.Table:
        """The selected rows of all columns that do not contain bytes."""
        self._read_columns(*self._non_binary)
        return pa.table(self._columns)

    def column(self, listing: Listing | None, name: str, option: str = "") -> pa.ChunkedArray:  # noqa: ARG002 - may be called before listing
        if (labels := self._number_column(name)) is not None:
            return pa.chunked_array([labels])
        if name not in self._non_binary:
            name = dict(self._roles.values).get(name, name)
        if name == FILE_COLUMN and name not in self._non_binary and isinstance(self._table, ConcatenatedTable):
            names = self._table.file_names()
            if self._row_numbers is not None:
                names = names.take(arrow.number_array(self._row_numbers))
            return pa.chunked_array([names])
        if name not in self._non_binary:
            raise tables.missing_name_error("column", option or self._where, name, self._non_binary)
        self._read_columns(name)
        return pa.chunked_array([self._columns[name]])

    def labels(self, listing: Listing, option: str, name: str) -> pa.ChunkedArray:
        labels = super().labels(listing, option, name)
        return labels if listing.kept is None else labels.take(arrow.number_array(listing.kept))

    def _rows(self) -> TableRows:
        return TableRows(self._where, self._columns, self._row_numbers, self._table.row_counts())

    def _number_column(self, field: str) -> pa.Array | None:
        column, existing = dict(self._roles.values).get(field), self._columns.get(field)
        if column is None or (existing is not None and not metadata_columns.is_number_type(existing.type)):
            return None
        values = self._labels.get(field, self._columns[column])
        return None if render.number_type(values.type) is None else values

    def _collect_rows(self, requested: Sequence[str]) -> None:
        roles = self._roles
        key = roles.key or next(iter(roles.paths()), None)
        if key is None:
            remedy = f"Name the column of keys with {option_text('key', 'COLUMN')}."
            raise InvalidRequest(option_text("collect"), "no column of keys or paths", expected="one", remedy=remedy)
        self._read_columns(*self._non_binary)
        rows, count = self._rows(), self._count
        rows.refuse(payloads.missing_positions(self._columns[key]), f"column {key!r}: no key", expected="a key")
        groups = group_rows(self._columns[key])
        single = {key, *roles.paths(), *roles.columns_of("urls")}
        if roles.binary and len(groups.first) < count:
            found = f"used with a column of bytes, {roles.binary[0][1]!r}"
            raise InvalidRequest(option_text("collect"), found, expected="paths of files")
        collected = collect_rows(rows, [name for name in self._columns if name not in single], requested, groups)
        first = groups.first[groups.of_row]
        expected, remedy = "one file for each key", f"Choose other keys with {option_text('key', 'COLUMN')}."
        rows.refuse_differing(single - {key}, first, expected=expected, remedy=remedy)
        self.keep_rows(groups.first)
        self._columns |= collected
        self.notes.append(collected_note(count, len(groups.first), self._table.name))

    def keep_rows(self, rows: NDArray[np.int64]) -> None:
        """Of the selected rows, keep those at the positions `rows`."""
        for columns in (self._columns, self._labels):
            columns.update({name: column.take(arrow.number_array(rows)) for name, column in columns.items()})
        self._binary_lengths = [lengths[rows] for lengths in self._binary_lengths]
        self._row_numbers = rows if self._row_numbers is None else self._row_numbers[rows]
        self._count = len(rows)

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        options, roles = self._options, self._roles
        condition = self._select_rows()
        rows = self._rows()
        checks.check_column_types(rows, roles, options.classes, self._table.schema)
        remedy = f"exclude them from {option_text('meta')}"
        tables.check_sidecar_names(self._where, self._sidecar_names(), remedy=remedy)
        checks.check_column_values(rows, roles, self._table.classes)
        if options.stat:
            self.notes += checks.check_unused_paths(
                self._where, self._table.schema, roles, options, self._root, self._first_texts
            )
        self._number_labels()
        urls = self._extract_urls()
        sizes: ScalarOrArray = _ASSUMED_URL_BYTES
        if options.size_column is not None and (urls or (roles.paths() and not options.stat)):
            sizes = checks.check_sizes(rows, options.size_column)
        paths, endings = self._resolve_paths(rows)
        names, groups = self._find_keys(rows, endings)
        if any(map(options.is_given, ("keys_from", "sample", "head"))):
            sampled = self._keep_chosen_rows(names, groups)
            names, rows_to_take = names.take(sampled), arrow.number_array(sampled)
            groups = None if groups is None else group_rows(names.array())
            paths, urls = ([column.take(rows_to_take) for column in columns] for columns in (paths, urls))
            sizes = sizes if isinstance(sizes, int) else sizes[sampled]
            endings = None if endings is None else endings.take(sampled)
        self._measure_bytes()
        inline, values = self._value_fields()
        files, problems, problem_numbers = self._stat_paths(paths, sizes, pool, observer)
        columns = [
            *files,
            *(FieldColumn(URL, sizes, 0, 0) for _ in urls),
            *(FieldColumn(SPAN, lengths, 0, ALWAYS_CHANGED) for lengths in self._binary_lengths),
            *(FieldColumn(INLINE, text.lengths(), 0, 0) for text in inline.values()),
        ]
        field_names = [name for name, _ in (*roles.files, *roles.urls, *roles.binary)] + [*inline]
        layout = arrange_fields(endings if roles.path is not None else None, field_names)
        sidecar = self._sidecar_names()
        entries = SampleTable(
            root=self._root,
            keys=names,
            first_rows=np.arange(self._count + 1, dtype=np.int64) * len(columns),
            fields=layout.fields,
            rows=layout.rows(columns, [*paths, *urls], self._count),
            values=values,
            metadata=metadata_columns.with_number_columns(
                pa.table({name: self._columns[name] for name in sidecar}) if sidecar else None,
                {name: self._number_column(name) for name, _ in roles.values},
            ),
        )
        if groups is not None:
            entries = merge_groups(entries, groups)
        skipped: tuple[Skipped, ...] = ()
        if groups is not None or problem_numbers.any():
            entries, skipped = self._drop_failed(entries, groups, problems, problem_numbers)
        if self._binary_lengths:
            entries = replace(entries, spans=written_spans(entries))
        check_skipped(self.name, skipped, options.on_error, f"exclude their rows with {option_text('where')}")
        pa.default_memory_pool().release_unused()
        return Listing(entries, skipped, self.name, tuple(self.notes), self._recorded, condition=condition)

    def select_and_sort(self, listing: Listing, _read_existing_keys: object) -> Listing:
        return rename_listed_keys(listing, self._options, partial(self.column, None))

    def _select_rows(self) -> ReadCondition | None:
        options, condition = self._options, None
        is_list_of_files = self._is_path_list and not is_address(self._root)
        if is_list_of_files and (folders := find_folders(self._columns["path"], self._root)):
            self.keep_rows(np.setdiff1d(np.arange(self._count), folders))
        if options.where is not None:
            from shardtool.select.query import match_partially

            table = add_field_columns(self.table, self._roles.values)
            selected, condition = match_partially(table, options.where, options.file_columns, self._table.classes)
            self.keep_rows(selected)
        if not self._count:
            found = "no rows" if self._row_numbers is None else "no remaining row"
            raise InvalidRequest(self._where, found, expected="a row per sample")
        return condition

    def write_payloads(self, file: Writable) -> None:
        self._bytes.write_payloads(file, self._row_numbers, self._binary_lengths)

    def _read_columns(self, *names: str | None) -> None:
        new = [name for name in names if name is not None and name not in self._columns]
        columns = read_columns(self._table, new, self._roles.texts())
        if self._row_numbers is not None:
            columns = {name: column.take(arrow.number_array(self._row_numbers)) for name, column in columns.items()}
        all_columns = self._columns | columns
        self._columns = {name: all_columns[name] for name in self._table.schema.names if name in all_columns}

    def _sidecar_names(self) -> list[str]:
        roles, chosen = self._roles, {*self._roles.meta}
        if self._options.meta in (None, "all"):
            chosen |= {*roles.paths(), *roles.columns_of("urls"), *roles.columns_of("values")}
        return [name for name in self._columns if name in chosen]

    def _extract_urls(self) -> list[pa.Array]:
        names = self._roles.columns_of("urls")
        urls = [pc.fill_null(self._columns[name], "") for name in names]
        self._columns |= {name: redact_urls(column) for name, column in zip(names, urls, strict=True)}
        return urls

    def _resolve_paths(self, rows: TableRows) -> tuple[list[pa.Array], PathEndings | None]:
        roles, options = self._roles, self._options
        if self._may_leave_root and roles.paths():
            path_columns = {name: self._columns[name] for name in roles.paths()}
            if (absolute := use_common_folder(path_columns, self._root)) is not None:
                path_columns, self._root = absolute
                self._columns |= path_columns
                where = f"{printable(self._root.rstrip(b'/') or b'/')}, their common folder"
                self.notes.append(f"paths are relative to {where} (change with {option_text('root')})")
        columns = [relative_to_root(self._columns[name], self._root) for name in roles.paths()]
        for name, paths in zip(roles.paths(), columns, strict=True):
            checks.check_paths(rows, name, paths, outside=options.allow_outside and not is_address(self._root))
        endings = None
        if columns and (roles.path is not None or roles.key is None):
            endings = PathEndings(self._where, columns[0], options.dots or "first")
        if roles.path is not None and endings is not None:
            checks.check_path_endings(rows, roles.path, endings, roles.field_names())
        columns = [rebase_to_root(paths, self._root) for paths in columns]
        # Store relative paths, because outputs must not contain absolute paths.
        self._columns |= dict(zip(roles.paths(), columns, strict=True))
        return columns, endings

    def _key_texts(
        self, columns: Mapping[str, pa.ChunkedArray], endings: PathEndings | None, numbers: NDArray[np.int64] | None
    ) -> tuple[PackedStrings, NDArray[np.int64]]:
        if self._roles.key is not None:
            return keys.gather_keys(keys.iter_key_texts(columns[self._roles.key]))
        if endings is not None:
            return keys.gather_keys(endings.stems())
        numbers = np.arange(self._table.count()) if numbers is None else numbers
        stems = self._bytes.path_stems
        return keys.gather_keys(keys.iter_row_numbers(numbers)) if stems is None else (stems.take(numbers), numbers[:0])

    @cached_property
    def _keys_before_where(self) -> set[bytes]:
        name = self._roles.key or next(iter(self._roles.paths()), "")
        columns = {
            name: column.drop_null() for name, column in read_columns(self._table, [name], self._roles.texts()).items()
        }
        endings = None
        if name and name != self._roles.key:
            paths = relative_to_root(columns[name], self._root)
            endings = PathEndings(self._where, paths, self._options.dots or "first")
        names, _ = self._key_texts(columns, endings, None)
        return {key for _, chunk in names.chunks() for key in chunk}

    def _find_keys(self, rows: TableRows, endings: PathEndings | None) -> tuple[PackedStrings, RowGroups | None]:
        roles = self._roles
        if roles.key is not None:
            column = self._columns[roles.key]
            problem = f"column {roles.key!r}: a key is not a whole number"
            rows.refuse(keys.inexact_positions(column), problem, expected="text or whole numbers")
        names, bad = self._key_texts(self._columns, endings, self._row_numbers)
        if roles.key is None and endings is None and roles.binary and self._bytes.path_stems is None:
            self.notes.append(f"using row numbers as keys (change with {option_text('key', 'COLUMN')})")
        source = roles.key or next(iter(roles.paths()), None)
        checks.check_keys(rows, source, bad)
        if roles.path is None or roles.files or roles.urls or roles.binary or endings is None:
            checks.check_unique(rows, source, names)
        elif keys.may_repeat(names):
            groups = group_rows(names.array())
            checks.check_fields_differ(rows, source, names, groups.of_row * MAX_FIELDS + endings.codes)
            columns = [*roles.meta, *roles.columns_of("values")]
            expected = "one value for all files of a sample"
            remedy = f"Exclude it from {option_text('meta')}, or from {option_text('field')}."
            rows.refuse_differing(columns, groups.first[groups.of_row], expected=expected, remedy=remedy)
            return names, groups if len(groups.first) < len(names) else None
        return names, None

    def _keep_chosen_rows(self, names: PackedStrings, groups: RowGroups | None) -> NDArray[np.int64]:
        options = self._options
        keys = names if groups is None else names.take(groups.first)
        samples = np.arange(len(keys))
        if options.keys_from is not None:
            is_known = (lambda key: key in self._keys_before_where) if options.where is not None else None
            samples, notes = find_listed_samples(keys, options, is_known)
            self._recorded["keys_from"] = key_list_name(options.keys_from)
            if not len(samples):
                raise no_match_error(options.where)
            keys = keys.take(samples)
            self.notes += notes
        if options.sample is not None:
            sampled, notes = sample_with_notes(keys, options.sample)
            samples = samples[sampled]
            self.notes += notes
        samples = samples[: options.head]
        rows = samples if groups is None else np.flatnonzero(np.isin(groups.of_row, samples))
        self.keep_rows(rows)
        return rows

    def _first_texts(self, names: Sequence[str]) -> dict[str, list[str | None]]:
        columns = {name: self._columns[name] for name in names if name in self._columns}
        if unread := [name for name in names if name not in columns]:
            with reading_table(self._where):
                batch = next(iter(self._table.batches(unread)), None)
            if batch is not None and self._row_numbers is None:
                columns |= {name: pa.chunked_array([batch.column(index)]) for index, name in enumerate(unread)}
        texts = {name: column for name, column in columns.items() if tables.is_text_type(column.type)}
        heads = {name: arrow.to_plain(column[: checks.MAX_CHECKED_ROWS]) for name, column in texts.items()}
        for name, head in heads.items():
            check_column(self._where, name, head)
        return {name: heads[name].to_pylist() if name in heads else [] for name in names}

    def _measure_bytes(self) -> None:
        rows, self._binary_lengths = self._rows(), self._bytes.measure(self._row_numbers)
        for column, lengths in zip(self._roles.columns_of("binary"), self._binary_lengths, strict=True):
            expected = "bytes in each row (paths in the same column are ignored)"
            files, where = option_text("file"), option_text("where")
            remedy = f"Pack a column of paths with {files}, or exclude such rows with {where}."
            rows.refuse(np.flatnonzero(lengths < 0), f"column {column!r}: no bytes", expected=expected, remedy=remedy)

    def _stat_paths(
        self, paths: list[pa.Array], sizes: ScalarOrArray, pool: Pool, observer: Observer
    ) -> tuple[list[FieldColumn], list[Problem], NDArray[np.int64]]:
        if not paths or not self._options.stat:
            return [FieldColumn(FILE, sizes, 0, 0) for _ in paths], [], np.zeros((0, 1), np.int64)
        parts: dict[int, StatResult] = {}
        for number, part in pool.map(stat_files, self._stat_tasks(paths)):
            parts[number] = part
            observer.listed(len(part.kinds) // len(paths))
        return merge_stat_results([parts[number] for number in sorted(parts)], len(paths))

    def _number_labels(self) -> None:
        names, fields, label_fields = {**self._table.classes}, self._roles.values, self._options.classes
        for column, numbers in payloads.renumber_columns(
            self._columns.__getitem__, names, fields, label_fields, self._known
        ):
            self._columns[column] = numbers
        for name, column in fields:
            values, class_names = self._columns[column], names.get(column)
            if class_names is not None:
                payloads.check_list_field(name, column, values.type)
                self._classes[name] = class_names
            if name in label_fields and class_names is not None:
                self._labels[name] = values.cast(pa.int64())
            elif name in label_fields:
                self._labels[name], self._classes[name] = payloads.number_labels(values, name, self._known)

    def _stat_tasks(self, paths: list[pa.Array]) -> Iterator[StatTask]:
        size = -(-self._count // TASK_COUNT)
        for first in range(0, self._count, size):
            last = min(first + size, self._count)
            texts = join_paths(paths, first, last)
            yield StatTask(self._root, texts, outside=self._options.allow_outside)

    def _value_fields(self) -> tuple[dict[str, render.ArrowStrings], FieldValues]:
        texts: dict[str, render.ArrowStrings] = {}
        types: dict[str, ValueType] = {}
        for name, column in self._roles.values:
            values = self._labels.get(name, self._columns[column])
            if (kind := payloads.field_type(name, values.type)) is not None:
                types[name] = kind
            texts[name] = payloads.field_texts(name, values)
        if self._roles.meta:
            table = pa.table({name: self._columns[name] for name in self._roles.meta})
            texts[META_FIELD] = render.render_column(table, render.render_rows)
        return texts, FieldValues(inline=texts, types=types, classes=self._classes)

    def _drop_failed(
        self, entries: SampleTable, groups: RowGroups | None, problems: list[Problem], problem_numbers: Rows
    ) -> tuple[SampleTable, tuple[Skipped, ...]]:
        bad = np.flatnonzero(problem_numbers.any(axis=1))
        if len(bad) == self._count and all(code == "vanished" for code, _ in problems):
            first = printable(str(self._columns[self._roles.paths()[0]][0]))
            found = f"every row names a missing file, such as '{first}'"
            expected = f"paths relative to {printable(self._root)}"
            remedy = f"Choose another folder with {option_text('root')}."
            if not is_address(self._root) and (folder := find_containing_folder(self._root, first)):
                remedy = f"Use {option_text('root', folder)}, which contains the first file."
            raise InvalidRequest(self._where, found, expected=expected, remedy=remedy)
        sample_of_row = np.arange(self._count) if groups is None else groups.of_row
        numbers = np.arange(self._count) if self._row_numbers is None else self._row_numbers
        skipped = []
        rows = self._rows()
        first_failed = (problem_numbers[bad] > 0).argmax(axis=1)
        for row, column in zip(bad.tolist(), first_failed.tolist(), strict=True):
            code, message = problems[int(problem_numbers[row, column]) - 1]
            path, where = str(self._columns[self._roles.paths()[column]][row]), rows.name_row(int(numbers[row]))
            skipped.append(Skipped(entries.key(int(sample_of_row[row])), path, code, f"{message}, {where}"))
        has_failed = np.zeros(len(entries), np.bool_)
        has_failed[sample_of_row[bad]] = True
        if groups is not None:
            kept_rows, samples = int((~has_failed[sample_of_row]).sum()), int((~has_failed).sum())
            rows_text = f"{pluralize(kept_rows, 'row')} with one file each"
            self.notes.append(f"{rows_text}, grouped by key: {pluralize(samples, 'sample')}")
            self.keep_rows(groups.first)
        if len(bad):
            kept = np.flatnonzero(~has_failed)
            entries = entries.take(kept)
            self.keep_rows(kept)
        return entries, tuple(skipped)

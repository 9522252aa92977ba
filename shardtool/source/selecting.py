"""The fields, columns and samples that are asked for, found in one order for a folder and for datasets."""

from __future__ import annotations

import io
import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest, listing, printable, reason
from shardtool.names import Names
from shardtool.request.texts import pairs
from shardtool.skipped import SkipCode, Skipped, key_mark
from shardtool.source.base import TASKS, Listing, check_skipped, none_taken
from shardtool.source.payloads import FILES_A_TASK, LONG_TEXT, Scalars, payload_tasks, read_scalars, scalars_of
from shardtool.storage.places import read_small
from shardtool.values import INLINE, SPAN, counted, to_bytes, to_text
from shardtool.wording import option

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.request.options import SelectingOptions

    Rows = NDArray[np.int64]


def with_fields(listed: Listing, options: SelectingOptions, pool: Pool, to_format: str = "tar") -> Listing:
    """Return the samples with the columns of JSON fields, and those of their fields that were asked for.

    Args:
        listed: The samples.
        options: What is asked for: this first, and then what `chosen` does.
        pool: Reads the JSON fields.
        to_format: What the samples will be written as.

    Raises:
        InvalidRequest: There is no such field, or names that no field can have.
        SampleFailed: A JSON field cannot be read, and its sample is not to be skipped.
    """
    if options.columns_from:
        for field in options.columns_from:
            listed = with_json_columns(listed, field, pool)
        check_skipped(listed.name, listed.skipped, options.on_error, f"leave out {option('columns_from')}")
    if not (options.select_fields or options.drop_fields or options.rename_fields):
        return listed
    from shardtool.select.fields import paths_of, select_fields

    entries, renames = listed.entries, pairs("rename_fields", options.rename_fields)
    if renames and not listed.shards:
        entries = replace(entries, rows=replace(entries.rows, paths=paths_of(entries)))
    entries, empty = select_fields(entries, options.select_fields, options.drop_fields, renames, to_format=to_format)
    entries, dropped = _with_labels(listed.entries.fields, entries, dict(renames), options.columns_from)
    return replace(listed, entries=entries, skipped=listed.skipped + empty, dropped=dropped)


def _with_labels(
    before: Sequence[str], entries: Entries, renames: Mapping[str, str], kept: Sequence[str]
) -> tuple[Entries, tuple[str, ...]]:
    """Return samples with the columns of number fields under the new names, too, and those whose fields are gone."""
    from shardtool.entries.arrow import is_number, with_columns

    columns = entries.metadata
    if columns is None:
        return entries, ()
    labels = [one.name for one in columns.schema if one.name in before and is_number(one.type)]
    moved = {renames[name]: columns.column(name) for name in labels if name in renames}
    moved = {name: values for name, values in moved.items() if name in renames or name not in columns.column_names}
    gone = tuple(name for name in labels if name not in (*entries.fields, *kept))
    return replace(entries, metadata=with_columns(columns, moved)), gone


def chosen(listed: Listing, options: SelectingOptions) -> Listing:
    """Return the samples that `where` takes, with the columns of the table of `join` and the fields of `values`.

    Raises:
        InvalidRequest: The table, the query or a column is not what it must be, or no sample is left.
    """
    names: dict[str, list[str]] = {}
    if options.join is not None:
        from shardtool.select.join import join

        joined = join(listed.entries, options.join, options.on or "", options.text_form)
        recorded, names = {**listed.recorded, "join": joined.name}, {**joined.classes}
        listed = replace(listed, entries=joined.entries, recorded=recorded, notes=(*listed.notes, *joined.notes))
    if (query := options.where) is not None:
        from shardtool.select.query import matching_so_far

        asked = with_names(table_of(listed), pairs("values", options.values))
        taken, later = matching_so_far(asked, query, options.found, listed.all_classes)
        if not len(taken):
            raise none_taken(query)
        listed = replace(listed, entries=listed.entries.take(taken), later=later)
    values = pairs("values", options.values)
    if not (values or options.classes):
        return listed
    from shardtool.dataset.dataset_file import open_classes
    from shardtool.entries.arrow import with_column
    from shardtool.select.join import set_fields
    from shardtool.table.values import numbers_kept

    known, columns, entries = open_classes(options.classes_from), table_of(listed).column, listed.entries
    asked = (*options.classes, *(("cls",) if getattr(options, "label_from_folder", False) else ()))
    for name, numbers in numbers_kept(columns, names, values, asked, known):
        entries = replace(entries, metadata=with_column(entries.metadata, name, numbers))
    entries, notes = set_fields(entries, values, options.classes, known, names)
    return replace(listed, entries=entries, notes=(*listed.notes, *notes))


def with_names(table: pa.Table, values: Iterable[tuple[str, str]]) -> pa.Table:
    """Return a table with the columns that fields are to be made of under the names of these, too."""
    for name, column in values:
        if name not in table.column_names and column in table.column_names:
            table = table.append_column(name, table.column(column))
    return table


def in_order(listed: Listing, options: SelectingOptions) -> Listing:
    """Return the samples in the order of `sort_by`.

    Raises:
        InvalidRequest: There is no such column, or it has no order.
    """
    if (name := options.sort_by) is None:
        return listed
    from shardtool.select.names import column_of, sort_order

    column = column_of(table_of(listed), name, option("sort_by"))
    order = sort_order(column, name, descending=options.descending)
    return replace(listed, entries=listed.entries.take(order))


def sampled(listed: Listing, options: SelectingOptions) -> Listing:
    """Return the share of the samples that `sample` takes, by the hashes of their keys.

    Raises:
        InvalidRequest: It takes none.
    """
    if options.sample is None:
        return listed
    from shardtool.select.names import share_of

    samples, notes = share_of(listed.entries.keys, options.sample)
    return replace(listed, entries=listed.entries.take(samples), notes=(*listed.notes, *notes))


def first_of(listed: Listing, options: SelectingOptions) -> Listing:
    """Return the first samples, as many as `head` says."""
    if options.head is None or options.head >= len(listed.entries):
        return listed
    return replace(listed, entries=listed.entries.take(np.arange(options.head)))


def table_of(listed: Listing) -> pa.Table:
    """Return what a query sees of samples."""
    if listed.shards:
        from shardtool.select.names import table_of

        return table_of(listed.entries, listed.entries.known_spans.file.astype(np.int32), listed.shards)
    from shardtool.source import folder_samples

    return folder_samples.table_of(listed.entries)


_SHOWN_KEYS = 5  # in a message


def places_of_keys(keys: Names, given: object, gone: Collection[str] = ()) -> Rows:
    """Return the places of the samples that have given keys, in their own order.

    Args:
        keys: The keys of all samples.
        given: A file with a key a line, `-` for standard input, or the keys.
        gone: Marks of keys that no sample needs to have, for these were removed.

    Raises:
        InvalidRequest: There is no such file, it has no key, or one that no sample has.
    """
    from shardtool.table.columns import places_among

    wanted = Names.of(dict.fromkeys(_given_keys(given)))
    if not len(wanted):
        raise InvalidRequest(option("keys_from"), "no key", expected="a key a line")
    found = places_among(keys, wanted)
    unknown = np.setdiff1d(np.arange(len(wanted)), found).tolist()
    lacking = [wanted[at] for at in unknown if not gone or key_mark(wanted[at]) not in gone]
    if lacking:
        shown = [*map(printable, lacking[:_SHOWN_KEYS])]
        problem = f"{counted(len(lacking), 'key')} that no sample has: {listing(shown, total=len(lacking))}"
        example = f", such as {printable(keys[0])}" if len(keys) else ""
        expected, remedy = f"keys of the dataset{example}", "Nothing was touched."
        raise InvalidRequest(option("keys_from"), problem, expected=expected, remedy=remedy)
    return np.flatnonzero(found >= 0)


def _given_keys(given: object) -> list[bytes]:
    """Return the keys of a file, or of a program."""
    if isinstance(given, str | os.PathLike):
        path = os.fspath(given)
        try:
            data = sys.stdin.buffer.read() if path == "-" else read_small(path)
        except OSError as error:
            raise InvalidRequest(option("keys_from"), f"{path}: {reason(error)}", expected="a file of keys") from None
        lines = data.removeprefix(b"\xef\xbb\xbf").splitlines()
        return [line for line in lines if line and b"\0" not in line]
    if isinstance(given, Iterable) and not isinstance(given, bytes):
        found = [*given]
        if all(isinstance(key, str) and key and "\0" not in key for key in found):
            with suppress(UnicodeEncodeError):  # half of a surrogate pair
                return [to_bytes(key) for key in found]
    raise InvalidRequest(option("keys_from"), type(given).__name__, expected="a file with a key a line, or keys")


# `--columns-from`: the top-level texts, numbers and truths of each sample's JSON field become columns of metadata, or a
# column of a field that is a plain number or a short text.


def with_json_columns(listed: Listing, field: str, pool: Pool) -> Listing:
    """Return the samples with columns from a JSON field; those where it cannot be read are among `skipped`.

    Raises:
        InvalidRequest: There is no such field, or it makes no columns.
        CorruptShard: A shard of the source cannot be read.
    """
    entries, left, notes = listed.entries, listed, list[str]()
    code = entries.fields.index(field) if field in entries.fields else len(entries.fields)
    rows = np.flatnonzero(entries.rows.code == code)
    if not len(rows):
        from shardtool.table.columns import no_such

        raise no_such("field", option("columns_from"), field, entries.fields)
    if entries.spans is not None and not entries.spans.files:
        problem = "an archive that can only be read in sequence"
        raise InvalidRequest(
            option("columns_from"), problem, expected="a folder, a zip, or a tar that is not compressed"
        )
    found, rows, failed = _read(listed, field, rows, pool)
    if len(failed) < len(rows):
        entries, notes = _with_table(entries, field, found, rows)
    if failed:
        entries = entries.without(failed)
        left = replace(listed, skipped=(*listed.skipped, *failed.values()), digest=None)
    return replace(left, entries=entries, notes=(*listed.notes, *notes))


def _read(listed: Listing, field: str, rows: Rows, pool: Pool) -> tuple[Scalars, Rows, dict[int, Skipped]]:
    """Return what workers find in a field's payloads, the row of each, and the samples whose payload is not read."""
    entries, inline = listed.entries, np.flatnonzero(listed.entries.rows.kind[rows] == INLINE)
    tasks = payload_tasks(entries, rows, most=min(len(rows) // TASKS + 1, FILES_A_TASK))
    done = dict(pool.map(read_scalars, [(field, task) for _, task in tasks]))
    parts = [which for which, _ in tasks]
    if len(inline):
        texts = entries.values.inline[field].gather(entries.owners(rows[inline])).split(b"\0")[:-1]
        done[len(parts)] = scalars_of(field, texts)
        parts.append(inline)
    kinds, long, failed = dict[str, Counter[str]](), Counter[str](), dict[int, Skipped]()
    for number, which in enumerate(parts):
        long.update(done[number].long)
        for name, counts in done[number].kinds.items():
            kinds.setdefault(name, Counter()).update(counts)
        for at, code, message in _failures(entries, rows[which], done[number]):
            row = int(rows[which[at]])
            sample = int(entries.owners(row))
            failed[sample] = Skipped(entries.key(sample), _path(listed, row), code, f"field {field!r}: {message}")
    lines = b"".join([done.pop(number).lines for number in range(len(parts))])
    return Scalars(lines, kinds, long, b"", ()), rows[np.concatenate(parts)], failed


def _failures(entries: Entries, rows: Rows, scalars: Scalars) -> Iterator[tuple[int, SkipCode, str]]:
    """Yield the places of payloads that cannot be read, or are not those that an index knows, and why."""
    if entries.spans is not None:
        wanted, crcs = entries.spans.expected[rows], np.frombuffer(scalars.crcs, np.uint32)
        differ = np.flatnonzero((wanted >= 0) & (wanted != crcs) & (entries.rows.kind[rows] == SPAN)).tolist()
        yield from ((at, "corrupt", f"the CRC-32C {crcs[at]:08x}, not {wanted[at]:08x}") for at in differ)
        if differ:
            return
    yield from scalars.failed


def _path(listed: Listing, row: int) -> str:
    """Return the file of a payload: of a shard, its name alone."""
    entries = listed.entries
    if entries.spans is None or not listed.shards:
        return to_text(entries.path(row))
    return listed.shards[int(entries.files_of(np.array([row]))[0])]


def _with_table(entries: Entries, field: str, found: Scalars, rows: Rows) -> tuple[Entries, list[str]]:
    """Return the samples with the columns that lines of JSON are, one for each of `rows`, and notes."""
    from shardtool.select.join import with_columns
    from shardtool.table.columns import check_names, check_sidecar_names
    from shardtool.table.open import MemoryTable, read_columns, read_json_lines

    where, lines = f"field {field!r}", found.lines
    notes = [
        f"{counted(count, 'text')} of more than {LONG_TEXT:,} letters left out: {name!r} of {where}"
        for name, count in found.long.items()
    ]
    mixed = {name: kinds for name, kinds in found.kinds.items() if len(kinds) > 1}
    for name, kinds in mixed.items():
        values = listing([counted(count, kind) for kind, count in sorted(kinds.items())])
        notes.append(f"column {name!r} of {where} is text: it holds {values}")
    if mixed:
        lines = b"".join([_as_text(line, mixed) for line in lines.splitlines(keepends=True)])
    table = MemoryTable(where, ".", read_json_lines(where, lambda: io.BytesIO(lines)))
    names = table.schema.names
    if not names:
        expected = 'objects such as {"label": "dog", "width": 640}'
        raise InvalidRequest(where, "no text, number or truth in any", expected=f"plain values, or {expected}")
    check_names(where, names)
    check_sidecar_names(where, names, remedy=f"make no columns of it ({option('columns_from')})")
    places = np.full(len(entries), -1, np.int64)
    places[entries.owners(rows)] = np.arange(len(rows))
    entries, replaced = with_columns(entries, table, read_columns(table, names, ()), places)
    return entries, [*notes, *replaced]


def _as_text(line: bytes, names: Collection[str]) -> bytes:
    """Return a line of JSON with some of its values as texts: what they are written as."""
    found = json.loads(line)
    for name, value in found.items():
        if name in names and value is not None and not isinstance(value, str):
            found[name] = json.dumps(value)
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"

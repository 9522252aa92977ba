"""The fields, columns and samples that are asked for, found in one order for a folder and for datasets; and twins."""

from __future__ import annotations

import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool.dataset.payload import content_of, is_label
from shardtool.entries import arrow
from shardtool.entries.entries import Names
from shardtool.errors import InvalidRequest, listing, printable, reason
from shardtool.request.texts import pairs
from shardtool.select.names import column_of, share_of, sort_order, table_of
from shardtool.skipped import Skipped, key_mark, same_as
from shardtool.source import base
from shardtool.source.base import Listing, Source, check_skipped, none_taken
from shardtool.storage.places import read_small, similar_path
from shardtool.table.columns import among, check_names, check_sidecar_names, hashes, is_text, no_such, places_among
from shardtool.values import INLINE, SPAN, counted, to_bytes, to_text
from shardtool.wording import option, speaks_command_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.request.options import SelectingOptions
    from shardtool.request.settings import Observer
    from shardtool.select.join import JoinedSamples

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
        check_skipped(listed.where, listed.skipped, options.on_error, f"leave out {option('columns_from')}")
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
    columns = entries.metadata
    if columns is None:
        return entries, ()
    labels = [one.name for one in columns.schema if one.name in before and arrow.is_number(one.type)]
    moved = {renames[name]: columns.column(name) for name in labels if name in renames}
    moved = {name: values for name, values in moved.items() if name in renames or name not in columns.column_names}
    gone = tuple(name for name in labels if name not in (*entries.fields, *kept))
    return replace(entries, metadata=arrow.with_columns(columns, moved)), gone


def chosen(listed: Listing, options: SelectingOptions, *, may_lack_values: bool = False) -> Listing:
    """Return the samples that `where` takes, with the columns of the table of `join` and the fields of `values`.

    Raises:
        InvalidRequest: The table, the query or a column is not what it must be, or no sample is left.
    """
    names: dict[str, list[str]] = {}
    if options.join is not None:
        from shardtool.select.join import join

        joined = join(listed.entries, options.join, options.on or "", options.text_form)
        recorded, names = {**listed.recorded, "join": joined.name}, {**joined.classes}
        unused = _unused_note(joined, options)
        listed = replace(
            listed, entries=joined.entries, recorded=recorded, notes=(*listed.notes, *joined.notes, *unused)
        )
    if (query := options.where) is not None:
        from shardtool.select.query import matching_so_far

        asked = with_names(table_of(listed.entries, listed.shards), pairs("values", options.values))
        taken, later = matching_so_far(asked, query, options.found, listed.all_classes)
        if not len(taken):
            raise none_taken(query)
        listed = replace(listed, entries=listed.entries.take(taken), later=later)
    values = pairs("values", options.values)
    if not (values or options.classes):
        return listed
    from shardtool.dataset.dataset_file import open_classes
    from shardtool.select.join import set_fields
    from shardtool.table.values import numbers_kept

    known, entries = open_classes(options.classes_from), listed.entries
    columns = table_of(entries, listed.shards).column
    asked = (*options.classes, *(("cls",) if getattr(options, "label_from_folder", False) else ()))
    for name, numbers in numbers_kept(columns, names, values, asked, known):
        entries = replace(entries, metadata=arrow.with_column(entries.metadata, name, numbers))
    entries, notes = set_fields(entries, values, options.classes, known, names, may_lack=may_lack_values)
    return replace(listed, entries=entries, notes=(*listed.notes, *notes))


# The options that name columns for something else than a field.
_USES = ("split_column", "stratify", "group_by", "sort_by", "of")


def _unused_note(joined: JoinedSamples, options: SelectingOptions) -> tuple[str, ...]:
    """Note that the columns of a table are in the sidecars alone, if no option names one of them."""
    kinds, where = joined.columns, options.where or ""
    used = {getattr(options, name, None) for name in _USES}.union(
        column for _, column in pairs("values", options.values)
    )
    if not kinds or not used.isdisjoint(kinds) or any(name in where for name in kinds):
        return ()
    name, kind = next(iter(kinds.items()))
    field = "txt" if is_text(kind) else "cls" if pa.types.is_integer(kind) else f"{name}.json"
    added = option("values", quote(f"{field}={name}") if speaks_command_line() else {field: name})
    which = (
        f"the columns of {joined.name} go into the sidecars, not into the shards: {listing([*map(printable, kinds)])}"
    )
    return (f"{which} ({added} makes a field of one)",)


def with_names(table: pa.Table, values: Iterable[tuple[str, str]]) -> pa.Table:
    """Return a table with the columns that fields are to be made of under the names of these, too."""
    for name, column in values:
        if name not in table.column_names and column in table.column_names:
            table = table.append_column(name, table.column(column))
    return table


def in_order(listed: Listing, options: SelectingOptions) -> Listing:
    """Return the samples in the order of `sort_by`, the first ones as many as `head` says.

    Raises:
        InvalidRequest: There is no such column, or it has no order.
    """
    entries = listed.entries
    if (name := options.sort_by) is not None:
        column = column_of(table_of(entries, listed.shards), name, option("sort_by"))
        entries = entries.take(sort_order(column, name, descending=options.descending)[: options.head])
    elif options.head is not None and options.head < len(entries):
        entries = entries.take(np.arange(options.head))
    return listed if entries is listed.entries else replace(listed, entries=entries)


def sampled(listed: Listing, options: SelectingOptions) -> Listing:
    """Return the share of the samples that `sample` takes, by the hashes of their keys.

    Raises:
        InvalidRequest: It takes none.
    """
    if options.sample is None:
        return listed
    samples, notes = share_of(listed.entries.keys, options.sample)
    return replace(listed, entries=listed.entries.take(samples), notes=(*listed.notes, *notes))


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
            problem, remedy = f"{path}: {reason(error)}", "" if os.path.lexists(path) else similar_path(path)
            raise InvalidRequest(option("keys_from"), problem, expected="a file of keys", remedy=remedy) from None
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


def _read(listed: Listing, field: str, rows: Rows, pool: Pool) -> tuple[base.Scalars, Rows, dict[int, Skipped]]:
    """Return what workers find in a field's payloads, the row of each, and the samples whose payload is not read."""
    entries, inline = listed.entries, np.flatnonzero(listed.entries.rows.kind[rows] == INLINE)
    tasks = base.payload_tasks(entries, rows, most=min(len(rows) // base.TASKS + 1, base.FILES_A_TASK))
    done = dict(pool.map(base.read_scalars, [(field, task) for _, task in tasks]))
    parts = [which for which, _ in tasks]
    if len(inline):
        texts = [*base.inline_payloads(entries, rows[inline], as_numbers=False)]
        done[len(parts)] = base.scalars_of(field, texts)
        parts.append(inline)
    kinds, long, failed = dict[str, Counter[str]](), Counter[str](), dict[int, Skipped]()
    for number, which in enumerate(parts):
        long.update(done[number].long)
        for name, counts in done[number].kinds.items():
            kinds.setdefault(name, Counter()).update(counts)
        for at, code, message in done[number].failed:
            row = int(rows[which[at]])
            sample = int(entries.owners(row))
            failed[sample] = Skipped(entries.key(sample), _path(listed, row), code, f"field {field!r}: {message}")
    lines = b"".join([done.pop(number).lines for number in range(len(parts))])
    return base.Scalars(lines, kinds, long, ()), rows[np.concatenate(parts)], failed


def _path(listed: Listing, row: int) -> str:
    """Return the file of a payload: of a shard, its name alone."""
    entries = listed.entries
    if entries.spans is None or not listed.shards:
        return to_text(entries.path(row))
    return listed.shards[int(entries.files_of(np.array([row]))[0])]


def _with_table(entries: Entries, field: str, found: base.Scalars, rows: Rows) -> tuple[Entries, list[str]]:
    """Return the samples with the columns that lines of JSON are, one for each of `rows`, and notes."""
    from shardtool.select.join import with_columns
    from shardtool.table.open import MemoryTable, read_columns, read_json_lines

    where, lines = f"field {field!r}", found.lines
    notes = [
        f"{counted(count, 'text')} of more than {base.LONG_TEXT:,} letters left out: {name!r} of {where}"
        for name, count in found.long.items()
    ]
    mixed = {name: kinds for name, kinds in found.kinds.items() if len(kinds) > 1}
    for name, kinds in mixed.items():
        values = listing([counted(count, kind) for kind, count in sorted(kinds.items())])
        notes.append(f"column {name!r} of {where} is text: it holds {values}")
    if mixed:
        lines = b"".join([_as_text(line, mixed) for line in lines.splitlines(keepends=True)])
    table = MemoryTable(where, read_json_lines(where, lambda: io.BytesIO(lines)), where)
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


# Twins: samples that hold the same, under whatever keys.
#
# What a sample holds are its images, audio, video and arrays; where it has none of these, its texts; then other bytes;
# then JSON. Labels and numbers are said of it, and are no part of that. Lengths and, where they are known, checksums
# find samples that may be twins; a digest of their bytes says which are.


# The first of these that a sample has is what it holds.
_RANKS = {"image": 0, "audio": 0, "video": 0, "array": 0, "text": 1, "bytes": 2, "pickle": 2, "json": 3}
_JSON, _NEVER = 3, 4
_MIXED = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # odd numbers


class Twins(NamedTuple):
    """The groups of samples that hold the same.

    Attributes:
        groups: The samples of each, two or more, in the order of their keys, but those that are there already come
            first; groups in the order of their first ones.
        sizes: Bytes of what each sample of a group holds.
        fields: The fields that samples hold.
        differ: Sample to the labels and other fields that the first one of its group has with other values.
    """

    groups: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    fields: tuple[str, ...]
    differ: dict[int, tuple[str, ...]]


def find_twins(
    entries: Entries, source: Source | None, pool: Pool, observer: Observer, there: NDArray[np.bool_] | None = None
) -> Twins:
    """Return which samples hold the same.

    Args:
        entries: The samples.
        source: What they come from; of shards, None.
        pool: Reads payloads: of those samples that may be twins.
        observer: Gets progress.
        there: Whether each sample comes before those that are not; None: none does.

    Raises:
        CorruptShard: A shard cannot be read.
    """
    held, ranks = _held(entries)
    fields = tuple(entries.fields[code] for code in np.unique(entries.rows.code[held]).tolist())
    owners = entries.owners(held)
    alike = np.isin(owners, _candidates(entries, held, owners))
    digests = base.source_digests(source, entries, held[alike], pool, observer)
    groups = _groups(owners[alike], digests, ranks)

    def place(sample: int) -> tuple[bool, bytes, int]:
        return there is None or not there[sample], entries.keys[sample], sample

    several = sorted((tuple(sorted(group, key=place)) for group in groups), key=lambda group: place(group[0]))
    sizes = np.bincount(owners, entries.rows.size[held], len(entries))
    of_groups = tuple(int(sizes[group[0]]) for group in several)
    return Twins(tuple(several), of_groups, fields, dict(_differing(entries, several, held, source, pool)))


def _held(entries: Entries) -> tuple[Rows, NDArray[np.uint8]]:
    """Return the rows that are what their samples hold, and of what rank that is, for each sample."""
    values = entries.values
    ranks = np.full(len(entries.fields), _NEVER, np.uint8)
    for code, name in enumerate(entries.fields):
        if not (is_label(name) or name in values.numbers or name in values.lists or name in values.classes):
            ranks[code] = _RANKS.get(content_of(name), _NEVER)
    of_rows, owners = ranks[entries.rows.code], np.repeat(np.arange(len(entries)), entries.counts())
    of_samples = np.full(len(entries), _NEVER, np.uint8)
    np.minimum.at(of_samples, owners, of_rows)
    return np.flatnonzero((of_rows < _NEVER) & (of_rows == of_samples[owners])), of_samples


def _candidates(entries: Entries, held: Rows, owners: Rows) -> Rows:
    """Return the samples that hold as many payloads as another one, of these lengths and checksums."""
    if not len(held):
        return held
    crcs = np.full(len(held), -1, np.int64)
    if entries.spans is not None and np.all(entries.rows.kind[held] == SPAN):
        crcs = entries.spans.expected[held]
    crcs = crcs if crcs.min() >= 0 else np.zeros_like(crcs)  # some unknown: lengths alone
    mixed = (entries.rows.size[held].astype(np.uint64) * _MIXED[0]) ^ (crcs.astype(np.uint64) * _MIXED[1])
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIXED[2]
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    sums, samples = np.add.reduceat(mixed, starts), owners[starts]
    order = np.argsort(sums, kind="stable")
    same = sums[order][1:] == sums[order][:-1]
    return np.asarray(np.sort(samples[order[np.append(same, False) | np.append(False, same)]]))


def _groups(owners: Rows, digests: NDArray[np.bytes_], ranks: NDArray[np.uint8]) -> list[list[int]]:
    """Return the samples whose payloads, in any order, have the same digests; not those that cannot be read.

    Args:
        owners: The sample of each payload, ascending.
        digests: The digest of each; empty where it cannot be had.
        ranks: What payloads are, for each sample.
    """
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    ends, found, samples = np.append(starts[1:], len(owners)), digests[starts], owners[starts]
    for at in np.flatnonzero(ends - starts > 1).tolist():
        own = np.sort(digests[starts[at] : ends[at]])
        found[at] = blake2b(own.tobytes(), digest_size=found.itemsize).digest() if np.all(own != b"") else b""
    samples, found = samples[found != b""], found[found != b""]
    order = np.lexsort((found, ranks[samples]))
    samples, found = samples[order], found[order]
    same = (found[1:] == found[:-1]) & (ranks[samples[1:]] == ranks[samples[:-1]])
    starts = np.flatnonzero(np.append(True, ~same))[: len(samples)]
    ends = np.append(starts[1:], len(samples))
    several = ends - starts > 1
    return [samples[start:end].tolist() for start, end in zip(starts[several], ends[several], strict=True)]


def _differing(
    entries: Entries, groups: list[tuple[int, ...]], held: Rows, source: Source | None, pool: Pool
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield samples that have other values than the first one of their group, but for JSON, and the names of these."""
    samples = np.array(sorted(sample for group in groups for sample in group), np.int64)
    if not len(samples):
        return
    others = np.setdiff1d(entries.rows_of(samples), held, assume_unique=True)
    names = [entries.fields[code] for code in entries.rows.code[others].tolist()]
    said: dict[int, dict[str, object]] = {sample: {} for sample in samples.tolist()}
    digests = base.source_digests(source, entries, others, pool).tolist()
    for sample, name, digest in zip(entries.owners(others).tolist(), names, digests, strict=True):
        if _RANKS.get(content_of(name)) != _JSON:
            said[sample][name] = digest
    table = entries.metadata if entries.metadata is not None else pa.table({})
    for name in filter(is_label, table.column_names):
        values = table.column(name).take(arrow.number_array(samples)).to_pylist()
        for sample, value in zip(samples.tolist(), values, strict=True):
            if value is not None:
                said[sample].setdefault(name, value)
    for group in groups:
        first = said[group[0]]
        for sample in group[1:]:
            here = said[sample]
            unlike = sorted(name for name in first.keys() & here.keys() if first[name] != here[name])
            if unlike:
                yield sample, tuple(unlike)


def each_once(
    listed: Listing,
    source: Source,
    options: SelectingOptions,
    pool: Pool,
    observer: Observer,
    taken: Callable[[], Names | None],
) -> Listing:
    """Return the samples, where that is asked for without those that hold the same as one whose key comes first.

    These are left out by name. A plan has none already.

    Args:
        listed: The samples.
        source: What they come from.
        options: What is asked for.
        pool: Reads payloads.
        observer: Gets progress.
        taken: Returns the keys of samples that a dataset has already: these stay, and come first.

    Raises:
        CorruptShard: A shard of the source cannot be read.
    """
    if not options.drop_duplicates or getattr(options, "plan", None) is not None:
        return listed
    entries, there = listed.entries, np.zeros(len(listed.entries), np.bool_)
    if (known := taken()) is not None:
        there = among(hashes(entries.keys), np.sort(hashes(known)))
    twins = find_twins(entries, source, pool, observer, there)
    skipped = {
        sample: _left_out(entries, sample, group[0], twins.differ.get(sample, ()))
        for group in twins.groups
        for sample in group[1:]
        if not there[sample]
    }
    if not skipped:
        return listed
    lost = sorted(skipped)
    rows = tuple(skipped[sample] for sample in lost)
    return replace(listed, entries=entries.without(lost), skipped=listed.skipped + rows, digest=None)


def _left_out(entries: Entries, sample: int, first: int, differ: tuple[str, ...]) -> Skipped:
    return Skipped(to_text(entries.keys[sample]), "", "twin", same_as(printable(entries.keys[first]), differ))

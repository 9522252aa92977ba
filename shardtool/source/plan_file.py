"""Plan files: what the listing of a source has found, kept for runs that make the same plan without another listing.

A plan file is Parquet, a row a sample. It holds what a listing says, and no cut of it: each run plans with it what it
would plan with its own, so that no file can make a shard other than the options allow. It appears whole or not at all.

What is read may be anyone's. It is held to the source and the options of the run, its pages to the bytes of the file
before anything is decoded, its paths to the source; nothing of it is imported or carried out. Text lies there as bytes,
for names of files need not be UTF-8. Whatever does not make samples is a `ValueError` on its way.

Source: docs/format.md, "Plan files".
"""

from __future__ import annotations

import json
import mmap
import os
import re
from contextlib import contextmanager
from dataclasses import fields
from itertools import compress
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.dataset.parquet_bounds import MAGIC, read_extents, read_footer
from shardtool.entries.arrow import ended, number_array, numbers, payload, unended
from shardtool.entries.classes import Classes
from shardtool.entries.entries import Entries, FieldRows, FieldSpans, FieldValues, Names, Texts
from shardtool.errors import CorruptShard, InvalidRequest, is_out_of_memory, listing, memory_for, printable, reason
from shardtool.fingerprint import crc32c
from shardtool.request.run_record import differing_options
from shardtool.request.settings import facts
from shardtool.skipped import SKIP_CODES, Skipped
from shardtool.source.base import Listing, Source
from shardtool.source.folder import label, name_of
from shardtool.source.scan import of_folder
from shardtool.storage.folders import check_name, open_mappable, target_file
from shardtool.storage.places import file_stat, folder_of, identity, is_url, source_root
from shardtool.storage.staging import check_target
from shardtool.table.kinds import archive_in, is_table, parquet_files
from shardtool.values import (
    CODED,
    FIELD_LIMIT,
    FILE,
    INLINE,
    LINK,
    SPAN,
    SpanFile,
    ValueType,
    __version__,
    chunks_of,
    inline_payload,
    show_size,
    to_bytes,
)
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from shardtool.execute.pool import Pool
    from shardtool.request.options import CreateOptions
    from shardtool.request.settings import Observer


# Which source a plan is of, without a listing of it, and what was asked for.


# What says how a run goes about it, or where things lie on a machine, and not which samples there are.
_FREE = frozenset({
    "plan", "plan_only", "part", "workers", "start_method", "if_exists", "max_removed", "trust", "target", "export",
    "root", "allow_outside", "stat",
})  # fmt: skip


class PlanRequest(NamedTuple):
    """What a plan must be of: a source, and what decides how it is listed and what is made of it.

    Attributes:
        kind: What the source is.
        names: What its files or folders are called, without the folders above them.
        stamps: The bytes and the modification time of each file that is read as a whole: of a manifest, an archive.
        root: What paths count from, ending in a slash; empty for several folders, and for an archive.
        folders: Of several folders: what the first part of each path stands for.
        archive: The archive that payloads lie in.
        identity: What tells the source from any other on this machine; empty: what `root` leads to does.
        outside: Whether the user lets paths lead out of the source, by links or, in a manifest, by `..`.
        options: What was asked for.
    """

    kind: Literal["folder", "folders", "archive", "manifest"]
    names: tuple[str, ...]
    stamps: tuple[tuple[int, int], ...] = ()
    root: bytes = b""
    folders: Mapping[bytes, bytes] = {}
    archive: SpanFile | None = None
    identity: str = ""
    outside: bool = False
    options: Mapping[str, object] = {}


def asked_of(source: object, options: CreateOptions, shard_format: str) -> PlanRequest:
    """Return what a plan of a run must be of.

    Raises:
        InvalidRequest: The source, or a table that an option names, is nowhere, or not on a disk.
    """
    asked: dict[str, object] = {"format": shard_format}
    known = facts(type(options)).keys() - _FREE
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name not in known or value == one.default or isinstance(value, Classes):
            continue
        if one.name in ("join", "classes_from"):
            if not isinstance(value, str | os.PathLike):
                expected = "a file, where a plan is written or used"
                raise InvalidRequest(option(one.name), "something in memory", expected=expected)
            value = os.path.basename(os.fspath(value))
        asked[one.name] = value
    found = _find_source(source, options)
    options.check_for(manifest=found.kind == "manifest")
    return found._replace(options={**asked, **options.recorded()})


def _find_source(source: object, options: CreateOptions) -> PlanRequest:
    """Return where a source lies.

    Raises:
        InvalidRequest: It is nowhere, or not on a disk.
    """
    sources: list[Any] = [*source] if isinstance(source, list | tuple) else [source]
    if url := next((one for one in sources if isinstance(one, str) and is_url(one)), None):
        raise InvalidRequest(url, "an address", expected="a source on a file system, for a plan file")
    follows = options.symlinks == "follow"
    if len(sources) != 1:
        paths = [os.fspath(one) for one in sources]
        roots, labels = [source_root(one, needed=True) for one in paths], label(paths)
        below, whose = dict(zip(labels, roots, strict=True)), " ".join(map(identity, roots))
        return PlanRequest("folders", tuple(map(printable, labels)), folders=below, identity=whose, outside=follows)
    (one,) = sources
    if not isinstance(one, str | os.PathLike) or one == "-":
        found, name = "standard input" if one == "-" else "a table in memory", "plan" if options.plan else "plan_only"
        remedy = "Write the table to a file first: each run must find the same."
        raise InvalidRequest(option(name), found, expected="a source that stays where it is", remedy=remedy)
    path = os.fspath(one)
    if (archive := archive_in(path)) is not None:
        path, folder = archive
        stamp, place = _stamp(path), os.fsencode(path)
        file = SpanFile(place, *stamp, "zip" if path.lower().endswith(".zip") else "tar")
        return PlanRequest("archive", (name_of(path), folder), (stamp,), archive=file, identity=identity(place))
    if is_table(path, options.text_form):
        stamps = tuple(map(_stamp, parquet_files(path) if os.path.isdir(path) else [path]))
        root = os.fsencode(options.root or folder_of(path.rstrip("/")) or ".").rstrip(b"/") + b"/"
        return PlanRequest("manifest", (name_of(path),), stamps, root, outside=options.allow_outside)
    return PlanRequest("folder", (name_of(path),), root=source_root(path, needed=True), outside=follows)


def _stamp(path: str) -> tuple[int, int]:
    try:
        fact = file_stat(path)
    except OSError as error:
        raise InvalidRequest(path, reason(error), expected="a source") from None
    return fact.st_size, fact.st_mtime_ns


# A plan file instead of a listing: the source says what it said when the plan was written.
#
# What is made of the samples is planned again, by the options of the run: so a run with a plan is one without it, but
# for the listing.


class PlannedSource(Source):
    """The samples that a plan file lists.

    Args:
        path: The plan file.
        asked: What it must be of.
    """

    def __init__(self, path: str, asked: PlanRequest) -> None:
        self._path, self._asked = path, asked
        self._divides: pa.ChunkedArray | None = None
        self.may_skip_names = asked.kind != "manifest"

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:  # noqa: ARG002 - no worker is needed
        """Return the samples of the plan."""
        listed, self._divides, self.by_key = read_plan(self._path, self._asked)
        observer.listed(len(listed.entries))
        return listed

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:  # noqa: ARG002 - the plan has one column of them
        """Return the column that samples are divided by."""
        if self._divides is None:
            raise InvalidRequest(self._path, f"a plan without the column {name}")
        return self._divides


# The file: its facts, and how it is written and read.


_FACTS, _VERSION = "shardtool.plan", 1
_HEAD = re.compile(r"([0-9]{1,9}) crc32c:([0-9a-f]{8}) (.*)", re.ASCII | re.DOTALL)
_SLACK, _FACTOR = 2**26, 256  # bytes that the columns may take, and more of them for each byte of the file
_KINDS: dict[str, type] = {  # of the facts that say what the listing is
    "name": str, "notes": list, "recorded": dict, "skipped": list, "by_key": bool, "fields": list, "inline": list,
    "types": dict, "classes": dict, "paths": bool, "divides": bool,
}  # fmt: skip


@memory_for("writing the plan")
def write_plan(
    path: str, listed: Listing, divides: pa.ChunkedArray | None, asked: PlanRequest, *, by_key: bool, overwrite: bool
) -> int:
    """Write a plan file, and return its bytes.

    Args:
        path: Where.
        listed: What the source has listed.
        divides: The column that samples are divided by; None: none is needed.
        asked: What the plan is of.
        by_key: Whether samples stand in the order of their keys.
        overwrite: Whether a plan that is there may be replaced.

    Raises:
        InvalidRequest: A plan cannot hold what was listed.
        OutputExists: There is such a file.
        OutputFailed: It cannot be written.
    """
    entries = listed.entries
    if entries.spans is not None and not entries.spans.files:
        found = "payloads in a table or a compressed archive, which are unpacked in the run that packs them"
        raise InvalidRequest(option("plan_only"), found, expected="payloads that stay where they are")
    facts = json.dumps(
        {
            "tool": __version__,
            "source": {"kind": asked.kind, "names": asked.names, "stamps": asked.stamps},
            "options": asked.options,
            "name": listed.name,
            "notes": listed.notes,
            "recorded": listed.recorded,
            "skipped": [[one.key, one.path, one.code, one.message] for one in listed.skipped],
            "by_key": by_key,
            "fields": entries.fields,
            "inline": [*entries.values.inline],
            "types": entries.values.types,
            "classes": entries.values.classes,
            "paths": entries.rows.paths is not None,
            "divides": divides is not None,
        }
    )
    check_plan_target(path, overwrite=overwrite)
    with target_file(path) as file:
        target = pa.PythonFile(file, "w")
        try:
            said = {_FACTS: f"{_VERSION} crc32c:{crc32c(facts.encode()):08x} {facts}"}
            with pq.ParquetWriter(  # with plain pages: then their bytes say what they take in memory
                target, schema_of(entries, divides).with_metadata(said), compression="zstd", compression_level=1,
                use_dictionary=False, write_statistics=False, write_page_checksum=True,
            ) as writer:  # fmt: skip
                for table in tables(entries, divides):
                    writer.write_table(table)
            with file.written() as written, _bounded(written):  # what is written can be read
                return file.tell()
        except ValueError as error:
            raise InvalidRequest(path, f"a plan that could not be read again: {error}") from None


def check_plan_target(path: str, *, overwrite: bool) -> None:
    """Refuse to write a plan where it cannot be, or where something is that it may not replace.

    Raises:
        InvalidRequest: It is no name of a file.
        OutputExists: There is something.
    """
    check_name(path, "plan.parquet")
    cure = option("if_exists", "overwrite")
    check_target(path, overwrite=overwrite, begins=MAGIC, holds=_FACTS.encode(), cure=cure)


@memory_for("reading the plan")
def read_plan(path: str, asked: PlanRequest) -> tuple[Listing, pa.ChunkedArray | None, bool]:
    """Return what a plan file says of the source of a run, as `write_plan` was given it: `listed, divides, by_key`.

    Raises:
        InvalidRequest: It is of another source, of other options, or of another version of this program.
        CorruptShard: It is damaged, or no plan file.
    """
    try:
        with open_mappable(path, MAGIC) as held, _bounded(held) as file:
            facts = _facts(file, path)
            _check_same(path, facts, asked)
            divides = file.read([DIVIDES]).column(0) if facts["divides"] else None
            listed = _listing(file, facts, asked, None if divides is None else divides.type)
            check_paths(listed.entries, asked, path)
            return listed, divides, facts["by_key"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        if is_out_of_memory(error):
            raise
        if isinstance(error, FileNotFoundError):
            remedy = f"Write one with {option('plan_only', path)}."
            raise InvalidRequest(path, "no such file", expected="a plan", remedy=remedy) from None
        found = reason(error) if isinstance(error, OSError) else str(error).partition("\n")[0]
        remedy = f"Write it again with {option('plan_only', 'FILE')}."
        raise CorruptShard(path, f"no plan, or a damaged one: {found[:200]}", remedy=remedy) from None


@contextmanager
def _bounded(file: IO[bytes]) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file whose columns take no more than its bytes can account for.

    Raises:
        ValueError: They take more, or it is none.
        OSError: It cannot be read.
    """
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size, whole = len(data), cast("bytes", data)  # it is read as bytes are
        footer = read_footer(whole)
        if _FACTS not in footer.facts:
            raise ValueError("a Parquet file without the facts of a plan")
        extents = read_extents(whole, footer)
    total = sum(extent.memory for extent in extents)
    if any(extent.coded for extent in extents) or total > _SLACK + _FACTOR * size:
        raise ValueError(f"columns of {show_size(total)} in {show_size(size)}")
    with pq.ParquetFile(file, page_checksum_verification=True) as opened:
        yield opened


def _facts(file: pq.ParquetFile, path: str) -> dict[str, Any]:
    """Return what a plan file says beside its rows.

    Raises:
        ValueError: It says nothing, or is damaged.
        InvalidRequest: Another version of this program made it.
    """
    match = _HEAD.fullmatch(file.metadata.metadata[_FACTS.encode()].decode())
    if match is None:
        raise ValueError("facts of no version")
    if int(match[1]) == _VERSION and int(match[2], 16) != crc32c(match[3].encode()):
        raise ValueError("facts with another checksum")
    found = json.loads(match[3])
    tool = found.get("tool") if isinstance(found, dict) else None
    if int(match[1]) != _VERSION or tool != __version__:
        remedy = f"Write it again with {option('plan_only', path)}: other versions may list a source otherwise."
        expected = f"one of this version, {__version__}"
        raise InvalidRequest(path, f"a plan of shardtool {str(tool)[:40]}", expected=expected, remedy=remedy)
    if wrong := [name for name, kind in _KINDS.items() if type(found[name]) is not kind]:
        raise TypeError(f"facts without {wrong[0]}")
    return dict(found)


def _check_same(path: str, facts: Mapping[str, Any], asked: PlanRequest) -> None:
    """Refuse a plan of another source, or of other options.

    Raises:
        InvalidRequest: It is one.
    """
    source, options = facts["source"], facts["options"]
    again = f"Write a plan of this run with {option('plan_only', 'FILE')}."
    before, now = (source["kind"], [*source["names"]]), (asked.kind, [*asked.names])
    if before != now:
        found, expected = (
            f"the {kind} {listing([str(name) for name in names if name])}" for kind, names in (before, now)
        )
        raise InvalidRequest(path, f"a plan of {found}", expected=f"one of {expected}", remedy=again)
    if [tuple(one) for one in source["stamps"]] != [*asked.stamps]:
        found = f"a plan of {asked.names[0]} before it was changed: its size or its time is another"
        raise InvalidRequest(path, found, expected=f"one of {asked.names[0]} as it is", remedy=again)
    if differing := differing_options(options, json.loads(json.dumps(asked.options))):
        found = f"a plan of other options: {'; '.join(differing)}"
        raise InvalidRequest(path, found, expected="the options that it was made with", remedy=again)


def _listing(file: pq.ParquetFile, facts: Mapping[str, Any], asked: PlanRequest, by: pa.DataType | None) -> Listing:
    """Return the listing that a plan file holds. `by`: the type of the column that it is divided by."""
    names, inline = _texts(facts["fields"]), _texts(facts["inline"])
    types = {name: kind for name, kind in facts["types"].items() if kind in get_args(ValueType)}
    classes = {name: _texts(texts) for name, texts in facts["classes"].items()}
    if len(types) < len(facts["types"]) or len({*names}) < len(names) or not {*inline} <= {*names}:
        raise ValueError("fields that are no plan's")
    skipped = [Skipped(*_texts(row)) for row in facts["skipped"]]  # type: ignore[arg-type]
    if any(one.code not in SKIP_CODES for one in skipped):
        raise ValueError("something left out for no reason")
    values = FieldValues(inline=dict.fromkeys(inline, Names.of(())), types=types, classes=classes)
    schema = plan_schema(len(inline), by, paths=facts["paths"], spans=asked.archive is not None)
    entries = read_entries(file, schema, tuple(names), values, asked)
    return Listing(entries, tuple(skipped), facts["name"], tuple(_texts(facts["notes"])), facts["recorded"])


def _texts(values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise TypeError("facts that are no list of texts")
    return values


# Its rows: samples as Arrow tables, a row each, and back.


KEY, FIELDS, DIVIDES = "__key__", "__fields__", "__divides__"
_INLINE, _PATH = "__inline_{}__", "path"
_NUMBERS = {"field": "uint16", "kind": "uint8", "size": "int64", "mtime_ns": "int64", "changed_ns": "int64"}
_OF_SPANS = {"offset": "int64", "crc32c": "int64"}
_GROUPS, _LEAST_ROWS = 64, 2**17  # row groups at most, of so many samples at least: a group is held while it is made
_MOST_SIZE, _MOST_BYTES = 2**50, 2.0**62


def plan_schema(inline: int, divides: pa.DataType | None, *, paths: bool, spans: bool) -> pa.Schema:
    """Return the columns of a plan file, but for those of metadata, which come after them.

    Args:
        inline: How many fields have payloads of their own.
        divides: The type of the column that samples are divided by; None: there is none.
        paths: Whether each field has a path; otherwise it is key + "." + field.
        spans: Whether fields lie in an archive.
    """
    of_field = {name: pa.type_for_alias(kind) for name, kind in {**_NUMBERS, **(_OF_SPANS if spans else {})}.items()}
    of_field |= {_PATH: pa.large_binary()} if paths else {}
    element = pa.struct([pa.field(name, kind, nullable=False) for name, kind in of_field.items()])
    columns = {KEY: pa.large_binary(), FIELDS: pa.list_(pa.field("element", element, nullable=False))}
    columns |= {_INLINE.format(at): pa.large_binary() for at in range(inline)}
    found = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
    return pa.schema(found if divides is None else [*found, pa.field(DIVIDES, divides)])


def schema_of(entries: Entries, divides: pa.ChunkedArray | None) -> pa.Schema:
    """Return the columns that hold samples, what they are divided by, and their metadata."""
    by, metadata = None if divides is None else divides.type, entries.metadata
    paths, spans = entries.rows.paths is not None, entries.spans is not None
    own = plan_schema(len(entries.values.inline), by, paths=paths, spans=spans)
    return own if metadata is None else pa.schema([*own, *metadata.schema])


def tables(entries: Entries, divides: pa.ChunkedArray | None) -> Iterator[pa.Table]:
    """Yield samples as tables, each of which becomes a row group."""
    schema, at_once = schema_of(entries, divides), max(_LEAST_ROWS, -(-len(entries) // _GROUPS))
    for first in range(0, len(entries), at_once):
        last = min(first + at_once, len(entries))
        texts: list[Texts] = [entries.keys, *entries.values.inline.values()]
        key, *inline = (unended(text.span(first, last), pa.large_binary()) for text in texts)
        columns = [key, _field_lists(entries, schema.field(FIELDS).type, first, last), *inline]
        columns += [] if divides is None else [divides.slice(first, last - first)]
        columns += [] if entries.metadata is None else entries.metadata.slice(first, last - first).columns
        yield pa.Table.from_arrays(columns, schema=schema)


def _field_lists(entries: Entries, kind: pa.ListType, first: int, last: int) -> pa.Array:
    """Return the fields of some samples, a list for each."""
    starts = entries.first[first : last + 1]
    rows, known, spans = slice(int(starts[0]), int(starts[-1])), entries.rows, entries.spans
    columns: list[Any] = [known.code, known.kind, known.size, known.mtime_ns, known.changed_ns]
    columns += [] if spans is None else [spans.offset, spans.expected]
    arrays = [number_array(column[rows]) for column in columns]
    if known.paths is not None:
        arrays.append(unended(known.paths.span(rows.start, rows.stop), pa.large_binary()))
    structs = pa.StructArray.from_arrays(arrays, fields=[*kind.value_type])
    return pa.ListArray.from_arrays(number_array((starts - starts[0]).astype(np.int32)), structs, type=kind)


def _ended(array: pa.LargeBinaryArray) -> bytes:
    """Return the texts of an array, a NUL after each."""
    if not np.frombuffer(payload(array), np.uint8).all():
        raise ValueError("a name with a NUL in it")
    return ended(array)


def _names(file: pq.ParquetFile, column: str) -> Names:
    """Return a column of texts."""
    return Names.parse(b"".join([_ended(array) for array in _chunks(file, column)]))


def read_entries(
    file: pq.ParquetFile, schema: pa.Schema, names: tuple[str, ...], values: FieldValues, asked: PlanRequest
) -> Entries:
    """Return the samples of a plan file.

    Args:
        file: It, whose pages fit its size.
        schema: The columns that it must have, before those of metadata.
        names: The fields' names.
        values: What is known of the fields' values, yet without the payloads of `inline`.
        asked: Where the source lies.

    Raises:
        ValueError: It holds no samples.
    """
    there, own = file.schema_arrow, len(schema)
    if pa.schema([*there][:own]) != schema or any(name.startswith("__") for name in there.names[own:]):
        raise ValueError("other columns than those of a plan")
    keys = _names(file, KEY)
    first, columns, paths = _read_fields(file, schema.field(FIELDS).type.value_type)
    inline = {name: _names(file, _INLINE.format(at)) for at, name in enumerate(values.inline)}
    code, kind, size, mtime_ns, changed_ns, *lie = columns
    spans = FieldSpans((asked.archive,), np.zeros(len(keys), np.uint32), *lie) if asked.archive else None
    found = Entries(
        root=asked.root,
        keys=keys,
        first=first,
        fields=names,
        rows=FieldRows(code, kind, size, mtime_ns, changed_ns, paths),
        values=values._replace(inline=inline),
        spans=spans,
        metadata=file.read(there.names[own:]) if own < len(there) else None,
        identity=asked.identity,
        folders=asked.folders,
    )
    _check(found)
    pa.default_memory_pool().release_unused()  # what decoding took
    return found


def _chunks(file: pq.ParquetFile, name: str) -> Iterator[Any]:
    """Yield the parts of a column, none of which has nulls."""
    for group in range(file.num_row_groups):
        for chunk in file.read_row_group(group, [name]).column(0).chunks:
            if chunk.null_count:
                raise ValueError(f"nulls in {name}")
            yield chunk


def _read_fields(
    file: pq.ParquetFile, kind: pa.StructType
) -> tuple[NDArray[np.int64], list[NDArray[Any]], Names | None]:
    """Return where the fields of each sample start, their numbers, and their paths."""
    groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
    most = sum(group.column(1).num_values for group in groups)  # with one for each sample without any
    starts, sample, row = np.zeros(file.metadata.num_rows + 1, np.int64), 0, 0
    columns = [np.empty(most, str(one.type)) for one in kind if one.name != _PATH]  # joined, they would be there twice
    has_paths, paths = kind.num_fields > len(columns), list[bytes]()
    for lists in _chunks(file, FIELDS):
        structs = lists.flatten()
        arrays = structs.flatten()
        if structs.null_count or any(array.null_count for array in arrays):
            raise ValueError(f"nulls in {FIELDS}")
        for column, array in zip(columns, arrays, strict=False):
            column[row : row + len(array)] = numbers(array)
        paths += [_ended(array) for array in arrays[len(columns) :]]  # one, or none; the array is not kept
        starts[sample + 1 : sample + 1 + len(lists)] = np.diff(numbers(lists.offsets))
        sample, row = sample + len(lists), row + len(structs)
    np.cumsum(starts, out=starts)
    return starts, [column[:row] for column in columns], Names.parse(b"".join(paths)) if has_paths else None


def _check(entries: Entries) -> None:
    """Refuse rows that are no fields of samples.

    Raises:
        ValueError: There are such.
    """
    rows, counts, spans = entries.rows, entries.counts(), entries.spans
    least, most = (FILE, INLINE) if spans is None else (INLINE, SPAN)  # of FILE, LINK, INLINE, SPAN
    forbidden = {*(b"\0" if rows.paths is not None else b"/\0")}  # where no path is given, it is made of the name
    total = rows.size.sum(dtype=float)
    for wrong, what in (
        (counts.min(initial=1) < 1 or counts.max(initial=1) > FIELD_LIMIT, "a sample without a field, or of too many"),
        (any(not name or {*to_bytes(name)} & forbidden for name in entries.fields), "a field without a name"),
        (rows.code.max(initial=0) >= max(1, len(entries.fields)), "a field of no name"),
        (
            rows.size.min(initial=0) < 0 or rows.size.max(initial=0) > _MOST_SIZE or total > _MOST_BYTES,
            "payloads of sizes that no file has",
        ),
        (rows.paths is not None and len(rows.paths) != len(rows.code), "paths for other fields"),
        (
            rows.kind.min(initial=least) < least or rows.kind.max(initial=least) > most,
            "fields that are read in no way that this source has",
        ),
    ):
        if wrong:
            raise ValueError(what)
    if spans is not None:
        size = rows.size if spans.files[0].form == "tar" else 0
        beyond = (spans.offset < 0) | (spans.offset + size > spans.files[0].size)
        if np.any(beyond & (rows.kind == SPAN)):
            raise ValueError("payloads beyond the end of the archive")
    left = rows.kind == INLINE
    for name, texts in entries.values.inline.items():
        mine = np.flatnonzero(left & (rows.code == entries.fields.index(name)))
        if len(texts) != len(entries) or not isinstance(texts, Names):
            raise ValueError(f"values of {name!r} for other samples")
        if not np.array_equal(_payload_lengths(texts)[entries.owners(mine)], rows.size[mine]):
            raise ValueError(f"values of {name!r} that are not as long as they say")
        left[mine] = False
    if left.any():
        raise ValueError("values of fields that have none")


def _payload_lengths(texts: Names) -> NDArray[np.int64]:
    """Return the bytes of the payloads that texts stand for.

    Raises:
        ValueError: One is coded, and not in hexadecimal digits.
    """
    found = texts.lengths()
    if CODED in texts.data:
        for first, some in texts.chunks():
            found[first : first + len(some)] = [len(inline_payload(text)) for text in some]
    return found


# Where the paths of a plan file lead: into the source, unless what the user typed says that they may leave it.


_LOOKED_AT = 16  # files, of which one at least must be there as it was listed


def check_paths(entries: Entries, asked: PlanRequest, where: str) -> None:
    """Refuse paths that lead out of a source, and a plan of which no file is there.

    Only folders and links are looked at, each once: files are held to what was listed when they are read.

    Args:
        entries: The samples of a plan file.
        asked: Where the source lies.
        where: The plan file.

    Raises:
        InvalidRequest: There are such paths, or it is another source.
    """
    kind = entries.rows.kind
    is_file = (kind == FILE) | (kind == LINK)
    if not is_file.any():
        return
    roots = asked.folders or {b"": asked.root}
    known = {root: os.path.join(os.path.realpath(root), b"") for root in roots.values()}
    for path in _leading(entries, is_file):
        top, _, below = path.partition(b"/") if asked.folders else (b"", b"", path)
        stays = top in roots and not below.startswith(b"/")
        if stays and not asked.outside:
            place = os.path.join(roots[top] + below, b"")  # of a link, too, with a slash
            stays = of_folder(known, place, _real).startswith(known[roots[top]])
        if not stays:
            found = f"a plan with a path that leads out of the source: {printable(path)}"
            name, value = ("allow_outside", True) if asked.kind == "manifest" else ("symlinks", "follow")
            raise InvalidRequest(where, found, expected=f"paths below it, or {option(name, value)}")
    _check_some(entries, where)


def _real(above: bytes, path: bytes) -> bytes:
    """Return where a folder or a link really lies, ending in a slash as all here do; `above`: what it lies in."""
    name = path[:-1].rpartition(b"/")[2]
    is_plain = name not in (b"", b".", b"..") and not os.path.islink(path[:-1])
    return above + name + b"/" if is_plain else os.path.join(os.path.realpath(path), b"")


def _leading(entries: Entries, is_file: NDArray[np.bool_]) -> Iterator[bytes]:
    """Yield each folder that files lie in, ending in a slash, once, and then the links."""
    seen, paths = set[bytes](), entries.rows.paths
    texts, wanted = (entries.keys, np.ones(len(entries), np.bool_)) if paths is None else (paths, is_file)
    for part in chunks_of(len(texts)):
        some = compress(texts.span(part.start, part.stop)[:-1].split(b"\0"), wanted[part].tolist())
        new = {text[: text.rfind(b"/") + 1] for text in some} - seen
        seen |= new
        yield from sorted(new)
    for row in np.flatnonzero(entries.rows.kind == LINK).tolist():
        yield entries.path(row)


def _check_some(entries: Entries, where: str) -> None:
    """Refuse a plan of which no file is there as it was listed: it is of another source, or of another time.

    Raises:
        InvalidRequest: It is one.
    """
    kind = entries.rows.kind
    rows = {*range(0, len(kind), -(-len(kind) // _LOOKED_AT)), int((kind == FILE).argmax())}
    some = [row for row in sorted(rows) if kind[row] == FILE]
    for row in some:
        try:
            fact = os.stat(entries.place(row))
        except (OSError, ValueError):
            continue
        if (fact.st_size, fact.st_mtime_ns) == (int(entries.rows.size[row]), int(entries.rows.mtime_ns[row])):
            return
    if some:
        found = f"a plan of which no file is there as it was listed, such as {printable(entries.path(some[0]))}"
        remedy = f"Is it the same source? Otherwise write a plan of it with {option('plan_only', 'FILE')}."
        raise InvalidRequest(where, found, expected="a plan of this source", remedy=remedy)

"""Plan files: the listed samples of a source, stored so that other runs can skip the listing.

A plan file is a Parquet file with one row per sample. Plan files are untrusted: their source and options must match the
run, their paths must stay inside the source, and reading must not need more memory than the file size allows. Strings
are stored as bytes, because some file names are not valid UTF-8.

Source: docs/format.md, "Plan files".
"""

from __future__ import annotations

import json
import mmap
import os
import re
from contextlib import contextmanager
from itertools import compress
from typing import IO, TYPE_CHECKING, Any, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.dataset.parquet_bounds import PARQUET_MAGIC, leaf_memory, parse_footer
from shardtool.entries.arrow import append_nuls, concat_values, number_array, number_values, split_at_nuls
from shardtool.entries.sample_table import FieldRows, FieldSpans, FieldValues, SampleTable
from shardtool.entries.strings import PackedStrings, StringColumn
from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    format_list,
    is_out_of_memory,
    os_error_text,
    printable,
    reporting_memory_errors,
)
from shardtool.fingerprint import crc32c
from shardtool.messages import flag_text, option_text
from shardtool.names import MAX_FIELDS, to_bytes
from shardtool.request.run_record import describe_differences
from shardtool.shard_samples import ENCODED_PAYLOAD_MARK, FILE, INLINE, LINK, SPAN, decode_inline_payload
from shardtool.skipped import SKIP_CODES, read_row
from shardtool.source.base import Listing, Source
from shardtool.source.plan_request import make_plan_request
from shardtool.source.scan_part import resolve_folder
from shardtool.storage.file_system import check_target
from shardtool.storage.target_file import check_target_name, create_target, open_mappable
from shardtool.units import format_size
from shardtool.values import ValueType, __version__, chunk_slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.execute.pool import Pool
    from shardtool.pattern import ShardPattern
    from shardtool.request.create_options import CreateOptions
    from shardtool.request.observer import Observer
    from shardtool.source.open import SourceArgument
    from shardtool.source.plan_request import PlanRequest


KEY_COLUMN, FIELDS_COLUMN, SPLIT_COLUMN = "__key__", "__fields__", "__divides__"
_INLINE_COLUMN, _PATH_NAME = "__inline_{}__", "path"
_FIELD_TYPES = {"field": "uint16", "kind": "uint8", "size": "int64", "mtime_ns": "int64", "changed_ns": "int64"}
_SPAN_TYPES = {"offset": "int64", "crc32c": "int64"}
_MAX_ROW_GROUPS, _MIN_GROUP_ROWS = 64, 2**17
_MAX_PAYLOAD_BYTES, _MAX_TOTAL_BYTES = 2**50, 2.0**62


def plan_schema(inline: int, split_type: pa.DataType | None, *, paths: bool, spans: bool) -> pa.Schema:
    """Return the schema of a plan file, except the metadata columns.

    `inline` is the number of fields whose payloads are in the plan. Without `paths`, each path is key + "." + field.
    """
    type_names = {**_FIELD_TYPES, **(_SPAN_TYPES if spans else {})}
    field_types = {name: pa.type_for_alias(kind) for name, kind in type_names.items()}
    field_types |= {_PATH_NAME: pa.large_binary()} if paths else {}
    element = pa.struct([pa.field(name, kind, nullable=False) for name, kind in field_types.items()])
    columns = {KEY_COLUMN: pa.large_binary(), FIELDS_COLUMN: pa.list_(pa.field("element", element, nullable=False))}
    columns |= {_INLINE_COLUMN.format(index): pa.large_binary() for index in range(inline)}
    fields = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
    return pa.schema(fields if split_type is None else [*fields, pa.field(SPLIT_COLUMN, split_type)])


def entries_schema(entries: SampleTable, split_values: pa.ChunkedArray | None) -> pa.Schema:
    """Return the schema of the plan file for `entries`."""
    split_type = None if split_values is None else split_values.type
    metadata = entries.metadata
    paths, spans = entries.rows.paths is not None, entries.spans is not None
    schema = plan_schema(len(entries.values.inline), split_type, paths=paths, spans=spans)
    return schema if metadata is None else pa.schema([*schema, *metadata.schema])


def entries_tables(entries: SampleTable, split_values: pa.ChunkedArray | None) -> Iterator[pa.Table]:
    """Yield one table for each row group of a plan file."""
    schema = entries_schema(entries, split_values)
    group_rows = max(_MIN_GROUP_ROWS, -(-len(entries) // _MAX_ROW_GROUPS))
    for first in range(0, len(entries), group_rows):
        last = min(first + group_rows, len(entries))
        texts: list[StringColumn] = [entries.keys, *entries.values.inline.values()]
        key, *inline = (split_at_nuls(text.span(first, last), pa.large_binary()) for text in texts)
        columns = [key, _field_lists(entries, schema.field(FIELDS_COLUMN).type, first, last), *inline]
        columns += [] if split_values is None else [split_values.slice(first, last - first)]
        columns += [] if entries.metadata is None else entries.metadata.slice(first, last - first).columns
        yield pa.Table.from_arrays(columns, schema=schema)


def _field_lists(entries: SampleTable, kind: pa.ListType, first: int, last: int) -> pa.Array:
    starts = entries.first_rows[first : last + 1]
    rows, field_rows, spans = slice(int(starts[0]), int(starts[-1])), entries.rows, entries.spans
    columns: list[Any] = [field_rows.code, field_rows.kind, field_rows.size, field_rows.mtime_ns, field_rows.changed_ns]
    columns += [] if spans is None else [spans.offset, spans.crc]
    arrays = [number_array(column[rows]) for column in columns]
    if field_rows.paths is not None:
        arrays.append(split_at_nuls(field_rows.paths.span(rows.start, rows.stop), pa.large_binary()))
    structs = pa.StructArray.from_arrays(arrays, fields=[*kind.value_type])
    return pa.ListArray.from_arrays(number_array((starts - starts[0]).astype(np.int32)), structs, type=kind)


def _join_texts(array: pa.LargeBinaryArray) -> bytes:
    if not np.frombuffer(concat_values(array), np.uint8).all():
        raise ValueError("a name with a NUL in it")
    return append_nuls(array)


def _read_names(file: pq.ParquetFile, column: str) -> PackedStrings:
    return PackedStrings.parse(b"".join([_join_texts(array) for array in _read_chunks(file, column)]))


def read_entries(
    file: pq.ParquetFile, schema: pa.Schema, names: tuple[str, ...], values: FieldValues, request: PlanRequest
) -> SampleTable:
    """Return the samples of a plan file. The caller must first check that the columns fit in memory.

    `values.inline` names the fields whose payloads the plan contains.

    Raises:
        ValueError: The rows are invalid.
    """
    stored_schema, expected_count = file.schema_arrow, len(schema)
    metadata_names = stored_schema.names[expected_count:]
    has_reserved = any(name.startswith("__") for name in metadata_names)
    if pa.schema([*stored_schema][:expected_count]) != schema or has_reserved:
        raise ValueError("unexpected columns")
    keys = _read_names(file, KEY_COLUMN)
    first_rows, columns, paths = _read_fields(file, schema.field(FIELDS_COLUMN).type.value_type)
    inline = {name: _read_names(file, _INLINE_COLUMN.format(index)) for index, name in enumerate(values.inline)}
    code, kind, size, mtime_ns, changed_ns, *span_columns = columns
    spans = FieldSpans((request.archive,), np.zeros(len(keys), np.uint32), *span_columns) if request.archive else None
    entries = SampleTable(
        root=request.root,
        keys=keys,
        first_rows=first_rows,
        fields=names,
        rows=FieldRows(code, kind, size, mtime_ns, changed_ns, paths),
        values=values._replace(inline=inline),
        spans=spans,
        metadata=file.read(metadata_names).replace_schema_metadata() if metadata_names else None,
        source_identity=request.source_identity,
        folders=request.folders,
    )
    _check_entries(entries)
    pa.default_memory_pool().release_unused()
    return entries


def _read_chunks(file: pq.ParquetFile, name: str) -> Iterator[Any]:
    for group in range(file.num_row_groups):
        for chunk in file.read_row_group(group, [name]).column(0).chunks:
            if chunk.null_count:
                raise ValueError(f"nulls in {name}")
            yield chunk


def _read_fields(
    file: pq.ParquetFile, kind: pa.StructType
) -> tuple[NDArray[np.int64], list[NDArray[Any]], PackedStrings | None]:
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    max_rows = sum(group.column(1).num_values for group in groups)
    first_rows, sample, row = np.zeros(file.metadata.num_rows + 1, np.int64), 0, 0
    # Copy chunks into arrays, because concatenating the chunks would take twice the memory.
    columns = [np.empty(max_rows, str(member.type)) for member in kind if member.name != _PATH_NAME]
    has_paths, paths = kind.num_fields > len(columns), list[bytes]()
    for lists in _read_chunks(file, FIELDS_COLUMN):
        structs = lists.flatten()
        arrays = structs.flatten()
        if structs.null_count or any(array.null_count for array in arrays):
            raise ValueError(f"nulls in {FIELDS_COLUMN}")
        for column, array in zip(columns, arrays, strict=False):
            column[row : row + len(array)] = number_values(array)
        paths += [_join_texts(array) for array in arrays[len(columns) :]]
        first_rows[sample + 1 : sample + 1 + len(lists)] = np.diff(number_values(lists.offsets))
        sample, row = sample + len(lists), row + len(structs)
    np.cumsum(first_rows, out=first_rows)
    columns = [column[:row] for column in columns]
    return first_rows, columns, PackedStrings.parse(b"".join(paths)) if has_paths else None


def _check_entries(entries: SampleTable) -> None:
    rows, counts, spans = entries.rows, entries.counts(), entries.spans
    min_kind, max_kind = (FILE, INLINE) if spans is None else (INLINE, SPAN)
    # Without stored paths, the path of a file is `KEY.FIELD`, so the field name must not contain a slash.
    forbidden = {*(b"\0" if rows.paths is not None else b"/\0")}
    has_bad_size = rows.size.min(initial=0) < 0 or rows.size.max(initial=0) > _MAX_PAYLOAD_BYTES
    has_bad_kind = rows.kind.min(initial=min_kind) < min_kind or rows.kind.max(initial=min_kind) > max_kind
    for is_invalid, problem in (
        (counts.min(initial=1) < 1 or counts.max(initial=1) > MAX_FIELDS, "a sample with no or too many fields"),
        (any(not name or {*to_bytes(name)} & forbidden for name in entries.fields), "an invalid field name"),
        (rows.code.max(initial=0) >= max(1, len(entries.fields)), "a field without a name"),
        (has_bad_size or rows.size.sum(dtype=float) > _MAX_TOTAL_BYTES, "impossible payload sizes"),
        (
            rows.paths is not None and len(rows.paths) != len(rows.code),
            "a number of paths that differs from the number of fields",
        ),
        (has_bad_kind, "payloads of a different kind of source"),
    ):
        if is_invalid:
            raise ValueError(problem)
    if spans is not None:
        size = rows.size if spans.files[0].form == "tar" else 0
        is_outside = (spans.offset < 0) | (spans.offset + size > spans.files[0].size)
        if np.any(is_outside & (rows.kind == SPAN)):
            raise ValueError("payloads beyond the end of the archive")
    lacks_value = rows.kind == INLINE
    for name, texts in entries.values.inline.items():
        field_rows = np.flatnonzero(lacks_value & (rows.code == entries.fields.index(name)))
        if len(texts) != len(entries) or not isinstance(texts, PackedStrings):
            raise ValueError(f"a number of values of {name!r} that differs from the number of samples")
        if not np.array_equal(_payload_lengths(texts)[entries.samples_of(field_rows)], rows.size[field_rows]):
            raise ValueError(f"values of {name!r} whose sizes differ from the listed sizes")
        lacks_value[field_rows] = False
    if lacks_value.any():
        raise ValueError("inline fields without values")


def _payload_lengths(texts: PackedStrings) -> NDArray[np.int64]:
    lengths = texts.lengths()
    if ENCODED_PAYLOAD_MARK in texts.data:
        for first, chunk in texts.chunks():
            lengths[first : first + len(chunk)] = [len(decode_inline_payload(text)) for text in chunk]
    return lengths


class PlannedSource(Source):
    """The samples that a plan file lists."""

    def __init__(self, source: SourceArgument, options: CreateOptions, outputs: Sequence[ShardPattern]) -> None:
        self._path = os.fspath(options.plan or "")
        self._request = make_plan_request(source, options, outputs[0].format)
        self._split_values: pa.ChunkedArray | None = None
        self.may_skip_unstorable = source.kind != "manifest"

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:  # noqa: ARG002 - no worker is needed
        listing, self._split_values, self.by_key = _read_plan(self._path, self._request)
        observer.listed(len(listing.entries))
        return listing

    def column(self, listing: Listing, name: str, option: str = "") -> pa.ChunkedArray:  # noqa: ARG002 - a plan has only this column
        if self._split_values is None:
            raise InvalidRequest(option or self._path, f"a plan without the column {name}")
        return self._split_values


_METADATA_KEY, _VERSION = "shardtool.plan", 1
_METADATA_FORM = re.compile(r"([0-9]{1,9}) crc32c:([0-9a-f]{8}) (.*)", re.ASCII | re.DOTALL)
_BASE_MEMORY_BYTES, _MEMORY_BYTES_PER_FILE_BYTE = 2**26, 256
_METADATA_TYPES: dict[str, type] = {
    "name": str, "notes": list, "recorded": dict, "skipped": list, "by_key": bool, "fields": list, "inline": list,
    "types": dict, "classes": dict, "paths": bool, "divides": bool, "joined": list,
}  # fmt: skip


@reporting_memory_errors("writing the plan")
def write_plan(
    path: str,
    listing: Listing,
    split_values: pa.ChunkedArray | None,
    request: PlanRequest,
    *,
    by_key: bool,
    overwrite: bool,
) -> int:
    """Write a plan file, and return its size in bytes."""
    entries = listing.entries
    if entries.spans is not None and not entries.spans.files:
        found = "payloads in a table or compressed archive"
        raise InvalidRequest(option_text("plan_only"), found, expected="payloads in files or uncompressed archives")
    metadata = json.dumps(
        {
            "tool": __version__,
            "source": {"kind": request.kind, "names": request.names, "stamps": request.stamps},
            "options": request.options,
            "name": listing.name,
            "notes": listing.notes,
            "recorded": listing.recorded,
            "skipped": [[row.key, row.path, row.code, row.message] for row in listing.skipped],
            "by_key": by_key,
            "fields": entries.fields,
            "inline": [*entries.values.inline],
            "types": entries.values.types,
            "classes": entries.values.classes,
            "paths": entries.rows.paths is not None,
            "divides": split_values is not None,
            "joined": listing.joined,
        }
    )
    check_plan_target(path, overwrite=overwrite)
    with create_target(path) as file:
        target = pa.PythonFile(file, "w")
        try:
            schema_metadata = {_METADATA_KEY: f"{_VERSION} crc32c:{crc32c(metadata.encode()):08x} {metadata}"}
            # Without dictionary encoding, page sizes show how much memory a reader needs.
            with pq.ParquetWriter(
                target,
                entries_schema(entries, split_values).with_metadata(schema_metadata),
                compression="zstd",
                compression_level=1,
                use_dictionary=False,
                write_statistics=False,
                write_page_checksum=True,
            ) as writer:
                for table in entries_tables(entries, split_values):
                    writer.write_table(table)
            with file.written() as written, _open_bounded(written):
                return file.tell()
        except ValueError as error:
            raise InvalidRequest(path, f"a plan that could not be read again: {error}") from None


def check_plan_target(path: str, *, overwrite: bool) -> None:
    """Raise an error if a plan file cannot be written or replaced."""
    check_target_name(path, "plan.parquet")
    marker, option = _METADATA_KEY.encode(), flag_text("overwrite")
    check_target(path, overwrite=overwrite, magic=PARQUET_MAGIC, marker=marker, option=option)


@reporting_memory_errors("reading the plan")
def _read_plan(path: str, request: PlanRequest) -> tuple[Listing, pa.ChunkedArray | None, bool]:
    try:
        with open_mappable(path, PARQUET_MAGIC) as opened, _open_bounded(opened) as file:
            metadata = _read_metadata(file, path)
            _check_request(path, metadata, request)
            split_values = file.read([SPLIT_COLUMN]).column(0) if metadata["divides"] else None
            listing = _read_listing(file, metadata, request, None if split_values is None else split_values.type)
            _check_plan_paths(listing.entries, request, path)
            return listing, split_values, metadata["by_key"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        if is_out_of_memory(error):
            raise
        if isinstance(error, FileNotFoundError):
            remedy = f"Write one with {option_text('plan_only', path)}."
            raise InvalidRequest(path, "no such file", expected="a plan", remedy=remedy) from None
        found = os_error_text(error) if isinstance(error, OSError) else str(error).partition("\n")[0]
        remedy = f"Write it again with {option_text('plan_only', 'FILE')}."
        raise CorruptShard(path, f"not a plan file, or damaged: {found[:200]}", remedy=remedy) from None


@contextmanager
def _open_bounded(file: IO[bytes]) -> Iterator[pq.ParquetFile]:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size, whole = len(data), cast("bytes", data)
        footer = parse_footer(whole)
        if _METADATA_KEY not in footer.key_values:
            raise ValueError("a Parquet file without the metadata of a plan")
        leaves = leaf_memory(whole, footer)
    total = sum(leaf.memory for leaf in leaves)
    if any(leaf.is_dictionary for leaf in leaves) or total > _BASE_MEMORY_BYTES + _MEMORY_BYTES_PER_FILE_BYTE * size:
        raise ValueError(f"columns of {format_size(total)} in {format_size(size)}")
    with pq.ParquetFile(file, page_checksum_verification=True) as opened:
        yield opened


def _read_metadata(file: pq.ParquetFile, path: str) -> dict[str, Any]:
    match = _METADATA_FORM.fullmatch(file.metadata.metadata[_METADATA_KEY.encode()].decode())
    if match is None:
        raise ValueError("metadata without a version")
    if int(match[1]) == _VERSION and int(match[2], 16) != crc32c(match[3].encode()):
        raise ValueError("metadata that does not match its checksum")
    metadata = json.loads(match[3])
    tool = metadata.get("tool") if isinstance(metadata, dict) else None
    if int(match[1]) != _VERSION or tool != __version__:
        remedy = f"Write it again with {option_text('plan_only', path)}: other versions may list a source differently."
        expected = f"a plan of this version, {__version__}"
        raise InvalidRequest(path, f"a plan of shardtool {str(tool)[:40]}", expected=expected, remedy=remedy)
    if invalid := [name for name, kind in _METADATA_TYPES.items() if type(metadata[name]) is not kind]:
        raise TypeError(f"metadata without a valid {invalid[0]}")
    return dict(metadata)


def _check_request(path: str, metadata: Mapping[str, Any], request: PlanRequest) -> None:
    source, options = metadata["source"], metadata["options"]
    remedy = f"Write a new plan with {option_text('plan_only', 'FILE')}."
    planned = source["kind"], [*source["names"]]
    requested = request.kind, [*request.names]
    if planned != requested:
        found, expected = (
            f"the {kind} {format_list([str(name) for name in names if name])}" for kind, names in (planned, requested)
        )
        raise InvalidRequest(path, f"a plan of {found}", expected=f"a plan of {expected}", remedy=remedy)
    if [tuple(stamp) for stamp in source["stamps"]] != [*request.stamps]:
        name = request.names[0]
        found = f"{name} has changed since the plan was written: its size or modification time differs"
        raise InvalidRequest(path, found, expected=f"a plan of the current {name}", remedy=remedy)
    if differing := describe_differences(options, json.loads(json.dumps(request.options))):
        found = f"a plan of other options: {'; '.join(differing)}"
        raise InvalidRequest(path, found, expected="the options of the plan", remedy=remedy)


def _read_listing(
    file: pq.ParquetFile, metadata: Mapping[str, Any], request: PlanRequest, split_type: pa.DataType | None
) -> Listing:
    names, inline = _check_texts(metadata["fields"]), _check_texts(metadata["inline"])
    types = {name: kind for name, kind in metadata["types"].items() if kind in get_args(ValueType)}
    classes = {name: _check_texts(texts) for name, texts in metadata["classes"].items()}
    if len(types) < len(metadata["types"]) or len({*names}) < len(names) or not {*inline} <= {*names}:
        raise ValueError("invalid fields")
    skipped = [read_row(*_check_texts(row)) for row in metadata["skipped"]]
    if any(row.code not in SKIP_CODES for row in skipped):
        raise ValueError("a skipped row with an unknown reason")
    values = FieldValues(inline=dict.fromkeys(inline, PackedStrings.of(())), types=types, classes=classes)
    schema = plan_schema(len(inline), split_type, paths=metadata["paths"], spans=request.archive is not None)
    entries = read_entries(file, schema, tuple(names), values, request)
    notes, joined = (tuple(_check_texts(metadata[name])) for name in ("notes", "joined"))
    return Listing(entries, tuple(skipped), metadata["name"], notes, metadata["recorded"], joined=joined)


def _check_texts(values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        raise TypeError("metadata that is not a list of texts")
    return values


_MAX_PROBED_FILES = 16


def _check_plan_paths(entries: SampleTable, request: PlanRequest, where: str) -> None:
    kind = entries.rows.kind
    is_file = (kind == FILE) | (kind == LINK)
    if not is_file.any():
        return
    roots = request.folders or {b"": request.root}
    real_paths = {root: os.path.join(os.path.realpath(root), b"") for root in roots.values()}
    for path in _folders_and_links(entries, is_file):
        top, _, below = path.partition(b"/") if request.folders else (b"", b"", path)
        is_inside = top in roots and not below.startswith(b"/")
        if is_inside and not request.outside:
            location = os.path.join(roots[top] + below, b"")
            is_inside = resolve_folder(real_paths, location, _real_folder).startswith(real_paths[roots[top]])
        if not is_inside:
            found = f"a plan with a path that leaves the source: {printable(path)}"
            name, value = ("allow_outside", True) if request.kind == "manifest" else ("symlinks", "follow")
            raise InvalidRequest(where, found, expected=f"paths below the source, or {option_text(name, value)}")
    _check_any_exists(entries, where)


def _real_folder(parent: bytes, path: bytes) -> bytes:
    name = path[:-1].rpartition(b"/")[2]
    is_plain = name not in (b"", b".", b"..") and not os.path.islink(path[:-1])
    return parent + name + b"/" if is_plain else os.path.join(os.path.realpath(path), b"")


def _folders_and_links(entries: SampleTable, is_file: NDArray[np.bool_]) -> Iterator[bytes]:
    seen, paths = set[bytes](), entries.rows.paths
    texts = entries.keys if paths is None else paths
    for part in chunk_slices(len(texts)):
        used_paths: Iterable[bytes] = texts.span(part.start, part.stop)[:-1].split(b"\0")
        if paths is not None:
            used_paths = compress(used_paths, is_file[part].tolist())
        new_folders = {text[: text.rfind(b"/") + 1] for text in used_paths} - seen
        seen |= new_folders
        yield from sorted(new_folders)
    for row in np.flatnonzero(entries.rows.kind == LINK).tolist():
        yield entries.path(row)


def _check_any_exists(entries: SampleTable, where: str) -> None:
    kind = entries.rows.kind
    rows = {*range(0, len(kind), -(-len(kind) // _MAX_PROBED_FILES)), int((kind == FILE).argmax())}
    probed = [row for row in sorted(rows) if kind[row] == FILE]
    for row in probed:
        try:
            file_stat = os.stat(entries.file_path(row))
        except (OSError, ValueError):
            continue
        if (file_stat.st_size, file_stat.st_mtime_ns) == (int(entries.rows.size[row]), int(entries.rows.mtime_ns[row])):
            return
    if probed:
        found = f"the files of the plan do not exist or have changed, such as {printable(entries.path(probed[0]))}"
        remedy = f"Check the source, or write a new plan with {option_text('plan_only', 'FILE')}."
        raise InvalidRequest(where, found, expected="a plan of this source", remedy=remedy)

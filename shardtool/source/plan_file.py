"""Plan files: the listing of a source, saved so that other runs create the same plan without listing again.

A plan file is a Parquet file with one row per sample. It stores the listing and not the division into shards: each
run
plans with its own options, so a plan file cannot create a shard that the options do not allow. The file appears
complete or not at all.

Plan files are untrusted. The source and the options must match the run, the memory for all pages is limited by the
file
size before anything is decoded, and paths must stay inside the source. Invalid content raises `ValueError`
internally.

Source: docs/format.md, "Plan files".
"""

from __future__ import annotations

import json
import mmap
import re
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.dataset.parquet_bounds import PARQUET_MAGIC, leaf_memory, parse_footer
from shardtool.entries.sample_table import FieldValues
from shardtool.entries.strings import PackedStrings
from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    format_list,
    is_out_of_memory,
    os_error_text,
    reporting_memory_errors,
)
from shardtool.fingerprint import crc32c
from shardtool.messages import option_text
from shardtool.request.run_record import describe_differences
from shardtool.skipped import SKIP_CODES, Skipped
from shardtool.source.base import Listing, Source
from shardtool.source.plan_paths import check_plan_paths
from shardtool.source.plan_table import SPLIT_COLUMN, entries_schema, entries_tables, plan_schema, read_entries
from shardtool.storage.file_system import check_target
from shardtool.storage.target_file import check_target_name, create_target, open_mappable
from shardtool.units import format_size
from shardtool.values import ValueType, __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.source.plan_request import PlanRequest


class PlannedSource(Source):
    """The samples that a plan file lists.

    Args:
        path: The plan file.
        asked: What it must be of.
    """

    def __init__(self, path: str, asked: PlanRequest) -> None:
        self._path, self._asked = path, asked
        self._split_values: pa.ChunkedArray | None = None
        self.may_skip_names = asked.kind != "manifest"

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:  # noqa: ARG002 - no worker is needed
        """Return the samples of the plan."""
        listed, self._split_values, self.by_key = read_plan(self._path, self._asked)
        observer.listed(len(listed.entries))
        return listed

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:  # noqa: ARG002 - the plan has one column of them
        """Return the column that samples are divided by."""
        if self._split_values is None:
            raise InvalidRequest(self._path, f"a plan without the column {name}")
        return self._split_values


_METADATA_KEY, _VERSION = "shardtool.plan", 1


_METADATA_FORM = re.compile(r"([0-9]{1,9}) crc32c:([0-9a-f]{8}) (.*)", re.ASCII | re.DOTALL)


_BASE_MEMORY_BYTES, _MEMORY_BYTES_PER_FILE_BYTE = (
    2**26,
    256,
)  # bytes that the columns may take, and more of them for each byte of the file


_METADATA_TYPES: dict[str, type] = {  # of the facts that say what the listing is
    "name": str, "notes": list, "recorded": dict, "skipped": list, "by_key": bool, "fields": list, "inline": list,
    "types": dict, "classes": dict, "paths": bool, "divides": bool,
}  # fmt: skip


@reporting_memory_errors("writing the plan")
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
        raise InvalidRequest(option_text("plan_only"), found, expected="payloads that stay where they are")
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
    with create_target(path) as file:
        target = pa.PythonFile(file, "w")
        try:
            said = {_METADATA_KEY: f"{_VERSION} crc32c:{crc32c(facts.encode()):08x} {facts}"}
            with pq.ParquetWriter(  # with plain pages: then their bytes say what they take in memory
                target, entries_schema(entries, divides).with_metadata(said), compression="zstd", compression_level=1,
                use_dictionary=False, write_statistics=False, write_page_checksum=True,
            ) as writer:  # fmt: skip
                for table in entries_tables(entries, divides):
                    writer.write_table(table)
            with file.written() as written, _open_bounded(written):  # what is written can be read
                return file.tell()
        except ValueError as error:
            raise InvalidRequest(path, f"a plan that could not be read again: {error}") from None


def check_plan_target(path: str, *, overwrite: bool) -> None:
    """Refuse to write a plan where it cannot be, or where something is that it may not replace.

    Raises:
        InvalidRequest: It is no name of a file.
        OutputExists: There is something.
    """
    check_target_name(path, "plan.parquet")
    cure = option_text("if_exists", "overwrite")
    check_target(path, overwrite=overwrite, magic=PARQUET_MAGIC, marker=_METADATA_KEY.encode(), option=cure)


@reporting_memory_errors("reading the plan")
def read_plan(path: str, asked: PlanRequest) -> tuple[Listing, pa.ChunkedArray | None, bool]:
    """Return what a plan file says of the source of a run, as `write_plan` was given it: `listed, divides, by_key`.

    Raises:
        InvalidRequest: It is of another source, of other options, or of another version of this program.
        CorruptShard: It is damaged, or no plan file.
    """
    try:
        with open_mappable(path, PARQUET_MAGIC) as held, _open_bounded(held) as file:
            facts = _read_metadata(file, path)
            _check_request(path, facts, asked)
            divides = file.read([SPLIT_COLUMN]).column(0) if facts["divides"] else None
            listed = _read_listing(file, facts, asked, None if divides is None else divides.type)
            check_plan_paths(listed.entries, asked, path)
            return listed, divides, facts["by_key"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        if is_out_of_memory(error):
            raise
        if isinstance(error, FileNotFoundError):
            remedy = f"Write one with {option_text('plan_only', path)}."
            raise InvalidRequest(path, "no such file", expected="a plan", remedy=remedy) from None
        found = os_error_text(error) if isinstance(error, OSError) else str(error).partition("\n")[0]
        remedy = f"Write it again with {option_text('plan_only', 'FILE')}."
        raise CorruptShard(path, f"no plan, or a damaged one: {found[:200]}", remedy=remedy) from None


@contextmanager
def _open_bounded(file: IO[bytes]) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file whose columns take no more than its bytes can account for.

    Raises:
        ValueError: They take more, or it is none.
        OSError: It cannot be read.
    """
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size, whole = len(data), cast("bytes", data)  # it is read as bytes are
        footer = parse_footer(whole)
        if _METADATA_KEY not in footer.facts:
            raise ValueError("a Parquet file without the facts of a plan")
        extents = leaf_memory(whole, footer)
    total = sum(extent.memory for extent in extents)
    if any(extent.coded for extent in extents) or total > _BASE_MEMORY_BYTES + _MEMORY_BYTES_PER_FILE_BYTE * size:
        raise ValueError(f"columns of {format_size(total)} in {format_size(size)}")
    with pq.ParquetFile(file, page_checksum_verification=True) as opened:
        yield opened


def _read_metadata(file: pq.ParquetFile, path: str) -> dict[str, Any]:
    """Return what a plan file says beside its rows.

    Raises:
        ValueError: It says nothing, or is damaged.
        InvalidRequest: Another version of this program made it.
    """
    match = _METADATA_FORM.fullmatch(file.metadata.metadata[_METADATA_KEY.encode()].decode())
    if match is None:
        raise ValueError("facts of no version")
    if int(match[1]) == _VERSION and int(match[2], 16) != crc32c(match[3].encode()):
        raise ValueError("facts with another checksum")
    found = json.loads(match[3])
    tool = found.get("tool") if isinstance(found, dict) else None
    if int(match[1]) != _VERSION or tool != __version__:
        remedy = f"Write it again with {option_text('plan_only', path)}: other versions may list a source otherwise."
        expected = f"one of this version, {__version__}"
        raise InvalidRequest(path, f"a plan of shardtool {str(tool)[:40]}", expected=expected, remedy=remedy)
    if wrong := [name for name, kind in _METADATA_TYPES.items() if type(found[name]) is not kind]:
        raise TypeError(f"facts without {wrong[0]}")
    return dict(found)


def _check_request(path: str, facts: Mapping[str, Any], asked: PlanRequest) -> None:
    """Refuse a plan of another source, or of other options.

    Raises:
        InvalidRequest: It is one.
    """
    source, options = facts["source"], facts["options"]
    again = f"Write a plan of this run with {option_text('plan_only', 'FILE')}."
    before, now = (source["kind"], [*source["names"]]), (asked.kind, [*asked.names])
    if before != now:
        found, expected = (
            f"the {kind} {format_list([str(name) for name in names if name])}" for kind, names in (before, now)
        )
        raise InvalidRequest(path, f"a plan of {found}", expected=f"one of {expected}", remedy=again)
    if [tuple(one) for one in source["stamps"]] != [*asked.stamps]:
        found = f"a plan of {asked.names[0]} before it was changed: its size or its time is another"
        raise InvalidRequest(path, found, expected=f"one of {asked.names[0]} as it is", remedy=again)
    if differing := describe_differences(options, json.loads(json.dumps(asked.options))):
        found = f"a plan of other options: {'; '.join(differing)}"
        raise InvalidRequest(path, found, expected="the options that it was made with", remedy=again)


def _read_listing(
    file: pq.ParquetFile, facts: Mapping[str, Any], asked: PlanRequest, by: pa.DataType | None
) -> Listing:
    """Return the listing that a plan file holds. `by`: the type of the column that it is divided by."""
    names, inline = _check_texts(facts["fields"]), _check_texts(facts["inline"])
    types = {name: kind for name, kind in facts["types"].items() if kind in get_args(ValueType)}
    classes = {name: _check_texts(texts) for name, texts in facts["classes"].items()}
    if len(types) < len(facts["types"]) or len({*names}) < len(names) or not {*inline} <= {*names}:
        raise ValueError("fields that are no plan's")
    skipped = [Skipped(*_check_texts(row)) for row in facts["skipped"]]  # type: ignore[arg-type]
    if any(one.code not in SKIP_CODES for one in skipped):
        raise ValueError("something left out for no reason")
    values = FieldValues(inline=dict.fromkeys(inline, PackedStrings.of(())), types=types, classes=classes)
    schema = plan_schema(len(inline), by, paths=facts["paths"], spans=asked.archive is not None)
    entries = read_entries(file, schema, tuple(names), values, asked)
    return Listing(entries, tuple(skipped), facts["name"], tuple(_check_texts(facts["notes"])), facts["recorded"])


def _check_texts(values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise TypeError("facts that are no list of texts")
    return values

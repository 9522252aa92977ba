"""Plan files: what the listing of a source has found, kept for runs that make the same plan without another listing.

A plan file is Parquet, a row a sample. It holds what a listing says, and no cut of it: each run plans with it what it
would plan with its own, so that no file can make a shard other than the options allow. It appears whole or not at all.

What is read may be anyone's. It is held to the source and the options of the run, its pages to the bytes of the file
before anything is decoded, its paths to the source; nothing of it is imported or carried out.

Source: docs/format.md, "Plan files".
"""

from __future__ import annotations

import json
import mmap
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from shardtool._version import __version__
from shardtool.dataset.parquet_bounds import read_extents, read_footer
from shardtool.entries.classes import Classes
from shardtool.entries.entries import FieldValues
from shardtool.errors import (
    Bug,
    CorruptShard,
    InvalidRequest,
    OutputFailed,
    is_out_of_memory,
    listing,
    memory_for,
    reason,
)
from shardtool.fingerprint import crc32c
from shardtool.skipped import SKIP_CODES, Skipped
from shardtool.source.base import Listing, Source
from shardtool.source.planned.columns import DIVIDES, PlanColumns, check_paths, read_entries, tables
from shardtool.source.planned.place import find_place
from shardtool.storage.places import is_url
from shardtool.storage.reading import open_plain
from shardtool.storage.staging import Folder, check_target
from shardtool.values import Number, show_size
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.execute.pool import Pool
    from shardtool.names import Names
    from shardtool.request.options import CreateOptions
    from shardtool.request.results import Observer
    from shardtool.source.base import Writable
    from shardtool.source.planned.place import SourcePlace


_FACTS, _VERSION = "shardtool.plan", 1
_HEAD = re.compile(r"([0-9]{1,9}) crc32c:([0-9a-f]{8}) (.*)", re.ASCII | re.DOTALL)
_SLACK, _FACTOR = 2**26, 256  # bytes that the columns may take, and more of them for each byte of the file


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Which source is listed, and what is asked for: what a plan must be of.

    Attributes:
        place: Where the source lies.
        options: What decides how it is listed, and what is made of it.
    """

    place: SourcePlace
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PlannedListing:
    """A listing, as a plan file has it.

    Attributes:
        listed: The listing.
        divides: The column that samples are divided by; None: none is needed.
        by_key: Whether samples stand in the order of their keys.
    """

    listed: Listing
    divides: pa.ChunkedArray | None
    by_key: bool


@memory_for("writing the plan")
def write_plan(path: str, planned: PlannedListing, asked: PlanRequest, *, overwrite: bool) -> int:
    """Write a plan file, and return its bytes.

    Raises:
        InvalidRequest: A plan cannot hold what was listed.
        OutputExists: There is such a file.
        OutputFailed: It cannot be written.
    """
    entries = planned.listed.entries
    if entries.spans is not None and not entries.spans.files:
        found = "payloads in a table or a compressed archive, which are unpacked in the run that packs them"
        raise InvalidRequest(option("plan_only"), found, expected="payloads that stay where they are")
    facts = json.dumps(_document(planned, asked)).encode()
    if is_url(path):
        raise InvalidRequest(option("plan_only"), path, expected="a file of this machine, or of a shared file system")
    folder, name = Folder(os.path.dirname(path)), os.path.basename(path)
    folder.ready()
    cure = option("if_exists", "overwrite")
    check_target(path, overwrite=overwrite, begins=b"PAR1", holds=_FACTS.encode(), cure=cure)
    with folder.stage(name) as file:
        try:
            _write(file.path, planned, f"{_VERSION} crc32c:{crc32c(facts):08x} {facts.decode()}")
            size = os.path.getsize(file.path)
            with _bounded(file.path):  # what is written can be read
                pass
        except OSError as error:
            raise OutputFailed(path, f"cannot write: {reason(error)}") from None
        except ValueError as error:
            raise InvalidRequest(path, f"a plan that could not be read again: {error}") from None
        folder.publish(file.finish())
    return size


def _write(path: str, planned: PlannedListing, facts: str) -> None:
    """Write a table, a row group at a time, with plain pages: then their bytes say what they take in memory."""
    writer = None
    for table in tables(planned.listed.entries, planned.divides):
        if writer is None:
            schema = table.schema.with_metadata({**(table.schema.metadata or {}), _FACTS: facts})
            writer = pq.ParquetWriter(
                path, schema, compression="zstd", compression_level=1, use_dictionary=False, write_statistics=False,
                write_page_checksum=True,
            )  # fmt: skip
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _document(planned: PlannedListing, asked: PlanRequest) -> dict[str, object]:
    """Return what a plan file says beside its rows."""
    listed, place = planned.listed, asked.place
    entries = listed.entries
    return {
        "tool": __version__,
        "source": {"kind": place.kind, "names": place.names, "stamps": place.stamps},
        "options": asked.options,
        "name": listed.name,
        "notes": listed.notes,
        "recorded": listed.recorded,
        "skipped": [[one.key, one.path, one.code, one.message] for one in listed.skipped],
        "by_key": planned.by_key,
        "fields": entries.fields,
        "inline": [*entries.values.inline],
        "numbers": entries.values.numbers,
        "classes": entries.values.classes,
        "paths": entries.rows.paths is not None,
        "divides": planned.divides is not None,
    }


@memory_for("reading the plan")
def read_plan(path: str, asked: PlanRequest) -> PlannedListing:
    """Return what a plan file says of the source of a run.

    Raises:
        InvalidRequest: It is of another source, of other options, or of another version of this program.
        CorruptShard: It is damaged, or no plan file.
    """
    try:
        with _bounded(path) as file:
            document = _facts(file, path)
            _check_same(path, document, asked)
            found = _planned(file, document, asked.place)
            check_paths(found.listed.entries, asked.place, path)
            return found
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        if is_out_of_memory(error):
            raise
        if isinstance(error, FileNotFoundError):
            remedy = f"Write one with {option('plan_only', path)}."
            raise InvalidRequest(path, "no such file", expected="a plan", remedy=remedy) from None
        found_text = reason(error) if isinstance(error, OSError) else str(error).partition("\n")[0]
        remedy = f"Write it again with {option('plan_only', 'FILE')}."
        raise CorruptShard(path, f"no plan, or a damaged one: {found_text[:200]}", remedy=remedy) from None


@contextmanager
def _bounded(path: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file whose columns take no more than its bytes can account for.

    Raises:
        ValueError: They take more, or it is none.
        OSError: It cannot be read.
    """
    fd, fact = open_plain(path)
    with open(fd, "rb") as file:
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
            whole = cast("bytes", data)  # it is read as bytes are
            footer = read_footer(whole)
            if _FACTS not in footer.facts:
                raise ValueError("a Parquet file without the facts of a plan")
            extents = read_extents(whole, footer)
        total = sum(extent.memory for extent in extents)
        if any(extent.coded for extent in extents) or total > _SLACK + _FACTOR * fact.st_size:
            raise ValueError(f"columns of {show_size(total)} in {show_size(fact.st_size)}")
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
    document = json.loads(match[3])
    tool = document.get("tool") if isinstance(document, dict) else None
    if int(match[1]) != _VERSION or tool != __version__:
        found = f"a plan of shardtool {str(tool)[:40]}"
        remedy = f"Write it again with {option('plan_only', path)}: other versions may list a source otherwise."
        raise InvalidRequest(path, found, expected=f"one of this version, {__version__}", remedy=remedy)
    return dict(document)


def _check_same(path: str, document: Mapping[str, Any], asked: PlanRequest) -> None:
    """Refuse a plan of another source, or of other options.

    Raises:
        InvalidRequest: It is one.
    """
    source, place, options = document["source"], asked.place, document["options"]
    again = f"Write a plan of this run with {option('plan_only', 'FILE')}."
    before, now = (source["kind"], [*source["names"]]), (place.kind, [*place.names])
    if before != now:
        found, expected = (
            f"the {kind} {listing([str(name) for name in names if name])}" for kind, names in (before, now)
        )
        raise InvalidRequest(path, f"a plan of {found}", expected=f"one of {expected}", remedy=again)
    if [tuple(one) for one in source["stamps"]] != [*place.stamps]:
        found = f"a plan of {place.names[0]} before it was changed: its size or its time is another"
        raise InvalidRequest(path, found, expected=f"one of {place.names[0]} as it is", remedy=again)
    wanted = json.loads(json.dumps(asked.options))
    if names := [name for name in {**options, **wanted} if options.get(name) != wanted.get(name)]:
        each = [f"{_named(name)} {_shown(options, name)} then, {_shown(wanted, name)} now" for name in names]
        found = f"a plan of other options: {listing(each)}"
        raise InvalidRequest(path, found, expected="the options that it was made with", remedy=again)


def _named(name: str) -> str:
    return "format" if name == "format" else option(name)


def _shown(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    if isinstance(value, list):
        return ",".join(map(str, value))[:80]
    return "not given" if value is None else "given" if value is True else str(value)[:80]


def _planned(file: pq.ParquetFile, document: Mapping[str, Any], place: SourcePlace) -> PlannedListing:
    """Return the listing that a plan file holds."""
    kinds = {"name": str, "notes": list, "recorded": dict, "skipped": list, "by_key": bool, "fields": list}
    kinds |= {"inline": list, "numbers": dict, "classes": dict, "paths": bool, "divides": bool}
    for name, kind in kinds.items():
        if type(document[name]) is not kind:
            raise TypeError(f"facts without {name}")
    fields = tuple(_texts(document["fields"]))
    numbers = {name: kind for name, kind in document["numbers"].items() if kind in get_args(Number)}
    classes = {name: _texts(names) for name, names in document["classes"].items()}
    inline = tuple(_texts(document["inline"]))
    if len(numbers) < len(document["numbers"]) or len({*fields}) < len(fields) or not {*inline} <= {*fields}:
        raise ValueError("fields that are no plan's")
    divides = file.read([DIVIDES]).column(0) if document["divides"] else None
    shape = PlanColumns(inline, document["paths"], place.archive is not None, None if divides is None else divides.type)
    entries = read_entries(file, shape, fields, FieldValues(numbers=numbers, classes=classes), place)
    skipped = tuple(Skipped(*_row(row)) for row in document["skipped"])
    listed = Listing(entries, skipped, document["name"], tuple(_texts(document["notes"])), document["recorded"])
    return PlannedListing(listed, divides, document["by_key"])


def _texts(values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise TypeError("facts that are no list of texts")
    return values


def _row(row: object) -> list[Any]:
    if len(texts := _texts(row)) != len(Skipped.__slots__) or texts[2] not in SKIP_CODES:
        raise ValueError("something left out for no reason")
    return texts


# A plan file instead of a listing: the source says what it said when the plan was written.
#
# What is made of the samples is planned again, by the options of the run: so a run with a plan is one without it, but
# for the listing.


# What says how a run goes about it, or where things lie on a machine, and not which samples there are.
_FREE = frozenset({
    "plan", "plan_only", "part", "workers", "start_method", "if_exists", "max_removed", "trust", "target", "export",
    "root", "allow_outside", "stat",
})  # fmt: skip


def asked_of(source: object, options: CreateOptions, shard_format: str) -> PlanRequest:
    """Return what a plan of a run must be of.

    Raises:
        InvalidRequest: The source, or a table that an option names, is nowhere, or not on a disk.
    """
    found: dict[str, object] = {"format": shard_format}
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name in _FREE or value == one.default or isinstance(value, Classes):
            continue
        if one.name in ("join", "classes_from"):
            value = _file_of(one.name, value)
        found[one.name] = value
    place = find_place(source, options)
    options.check_for(manifest=place.kind == "manifest")
    return PlanRequest(place, {**found, **options.recorded()})


def _file_of(name: str, value: object) -> str:
    """Return the name of a file that an option is given."""
    if not isinstance(value, str | os.PathLike):
        raise InvalidRequest(option(name), "something in memory", expected="a file, where a plan is written or used")
    return os.path.basename(os.fspath(value))


class PlannedSource(Source):
    """The samples that a plan file lists.

    Args:
        path: The plan file.
        asked: What it must be of.
    """

    def __init__(self, path: str, asked: PlanRequest) -> None:
        self._path, self._asked = path, asked
        self._by_key = True
        self._divides: pa.ChunkedArray | None = None
        self.may_skip_names = asked.place.kind != "manifest"

    @property
    def by_key(self) -> bool:
        """Whether samples stand in the order of their keys, once they are listed."""
        return self._by_key

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:  # noqa: ARG002 - no worker is needed
        """Return the samples of the plan."""
        planned = read_plan(self._path, self._asked)
        self._by_key, self._divides = planned.by_key, planned.divides
        observer.listed(len(planned.listed.entries))
        return planned.listed

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:  # noqa: ARG002 - the plan has one column of them
        """Return the column that samples are divided by."""
        if self._divides is None:
            raise InvalidRequest(self._path, f"a plan without the column {name}")
        return self._divides


class RecordedSource(Source):
    """A source that keeps what it listed for a plan file.

    Args:
        source: What lists the samples.
        asked: What the plan is of.
        options: What says where it is written.
    """

    def __init__(self, source: Source, asked: PlanRequest, options: CreateOptions) -> None:
        self._source, self._asked, self._options = source, asked, options
        self._listed: Listing | None = None
        self._divides: pa.ChunkedArray | None = None
        self.may_skip_names = source.may_skip_names

    @property
    def by_key(self) -> bool:
        """Whether samples stand in the order of their keys."""
        return self._source.by_key

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """Return all samples."""
        return self._source.list_samples(pool, observer)

    def choose(self, listed: Listing, taken: Names | None) -> Listing:
        """Return the samples that were asked for, and keep them."""
        self._listed = self._source.choose(listed, taken)
        return self._listed

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column to divide by, and keep it."""
        self._divides = self._source.column(listed, name)
        return self._divides

    def write_binary(self, file: Writable) -> None:
        """Write the payloads of a table."""
        self._source.write_binary(file)

    def write(self) -> str:
        """Write the plan file, and return a note of it.

        Raises:
            InvalidRequest: A plan cannot hold what was listed.
            OutputExists: There is such a file.
            OutputFailed: It cannot be written.
        """
        path = os.fspath(self._options.plan_only or "")
        if self._listed is None:
            raise Bug(path, "a plan of a source that was not listed")
        planned = PlannedListing(self._listed, self._divides, self.by_key)
        size = write_plan(path, planned, self._asked, overwrite="overwrite" in self._options.if_exists)
        return f"the plan is in {path} ({show_size(size)}): {option('plan', path)} goes by it"

"""A plan file instead of a listing: the source says what it said when the plan was written.

What is made of the samples is planned again, by the options of the run: so a run with a plan is one without it, but for
the listing.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING

from shardtool.entries.classes import Classes
from shardtool.errors import Bug, InvalidRequest
from shardtool.source.base import Listing, Source
from shardtool.source.planned.place import find_place
from shardtool.source.planned.plan_file import Asked, Planned, read_plan, write_plan
from shardtool.values import show_size
from shardtool.wording import option

if TYPE_CHECKING:
    import pyarrow as pa

    from shardtool.execute.pool import Pool
    from shardtool.names import Names
    from shardtool.request.observer import Observer
    from shardtool.request.options import CreateOptions
    from shardtool.source.base import Writable

# What says how a run goes about it, or where things lie on a machine, and not which samples there are.
_FREE = frozenset({
    "plan", "plan_only", "part", "workers", "start_method", "if_exists", "max_removed", "trust", "target", "export",
    "root", "allow_outside", "stat",
})  # fmt: skip


def asked_of(source: object, options: CreateOptions, shard_format: str) -> Asked:
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
    return Asked(place, {**found, **options.recorded()})


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

    def __init__(self, path: str, asked: Asked) -> None:
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

    def __init__(self, source: Source, asked: Asked, options: CreateOptions) -> None:
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
        planned = Planned(self._listed, self._divides, self.by_key)
        size = write_plan(path, planned, self._asked, overwrite="overwrite" in self._options.if_exists)
        return f"the plan is in {path} ({show_size(size)}): {option('plan', path)} goes by it"

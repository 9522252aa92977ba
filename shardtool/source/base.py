"""What a source is: it lists samples, and nothing of it changes while a run goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from shardtool.errors import Bug, InvalidRequest, SampleFailed, listing, printable
from shardtool.skipped import Skipped, failures
from shardtool.values import OnError, counted, source_name
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.dataset.find import StoredDataset, StoredShard
    from shardtool.entries.entries import Entries, Names
    from shardtool.execute.pool import Pool
    from shardtool.request.settings import Observer
    from shardtool.transform import Condition

    Rows = NDArray[np.int64]


TASKS = 32  # enough to keep a few workers busy to the end
_EMPTY = "empty"  # of samples, not files, that are without a field


@dataclass(frozen=True, slots=True)
class Listing:
    """The samples of a source.

    Attributes:
        entries: The samples, without those that `where` refuses.
        skipped: What the source holds but cannot be part of a sample, and samples that cannot be in a shard.
        name: The source's name for the dataset file: no folder, nothing of this machine.
        notes: What the user should know.
        recorded: What the dataset file says, beside the options, of how the samples were chosen.
        digest: The content fingerprint that all samples together must have; None if it is unknown.
        shards: The names of the shards that hold the samples; empty if they lie in files or a table.
        stored: The dataset of each of these shards, and the shard.
        compressed: Whether a shard is compressed, so that it can only be read in sequence.
        later: What of `where` the workers judge; None: the samples are those that it takes.
        dropped: Fields that samples no longer have: a column of the numbers of one goes, too, once they are divided.
        classes: What the numbers of labels stand for in the source, fields that are not taken among them.
    """

    entries: Entries
    skipped: tuple[Skipped, ...]
    name: str
    notes: tuple[str, ...] = ()
    recorded: Mapping[str, object] = field(default_factory=dict)
    digest: int | None = None
    shards: tuple[str, ...] = ()
    stored: tuple[tuple[StoredDataset, StoredShard], ...] = ()
    compressed: bool = False
    later: Condition | None = None
    dropped: tuple[str, ...] = ()
    classes: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def all_classes(self) -> dict[str, list[str]]:
        """What the numbers of labels stand for, by field: in the source, and of those that were numbered."""
        return {**self.classes, **self.entries.values.classes}

    def without_dropped(self) -> Listing:
        """Return the same without the columns of fields that were dropped, which no sidecar is to have."""
        columns = self.entries.metadata
        if columns is None or not self.dropped:
            return self
        from shardtool.entries.arrow import without_numbers

        left = without_numbers(columns, {*self.dropped}.difference(self.entries.fields))
        return replace(self, entries=replace(self.entries, metadata=left))


class Writable(Protocol):
    """Takes bytes in order, such as a file."""

    def write(self, data: memoryview, /) -> object:
        """Append `data`."""


class Source(ABC):
    """A folder, a manifest or datasets, which list their samples.

    Attributes:
        may_skip_names: Whether `--on-error skip` leaves samples out whose names no shard can hold.
        asks_for_taken_keys: Whether `choose` needs the keys of the dataset that is appended to.
        by_key: Whether samples, once they are listed, stand in the order of their keys, not in that of a column or of
            shards, and are sorted again when their keys change.
    """

    may_skip_names: bool = False
    asks_for_taken_keys: bool = False
    by_key: bool = True

    @abstractmethod
    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """Return the samples, with the fields and metadata that were asked for."""

    def choose(self, listed: Listing, taken: Names | None) -> Listing:  # noqa: ARG002
        """Return the samples that were asked for, in their order.

        Args:
            listed: All of them.
            taken: Keys that they cannot have; None: they may have any.
        """
        return listed

    def labels(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column to divide by, with a value for each sample: of labels, the names of their classes."""
        from shardtool.entries.arrow import class_names

        return class_names(self.column(listed, name), listed.all_classes.get(name, ()))

    @abstractmethod
    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column, with a value for each sample."""

    def write_binary(self, file: Writable) -> None:
        """Write the payloads of all SPAN rows of a table, each to its offset. No other source has such rows."""
        raise Bug(str(file), "payloads of a source that is no table")


def check_some(listed: Listing) -> None:
    """Refuse a source without samples.

    Raises:
        InvalidRequest: It has none.
    """
    if not len(listed.entries):
        where, skipped = source_name(listed.entries.root), listed.skipped
        remedy = f"Is it the right folder? Look at {option('include')}, {option('exclude')} and {option('hidden')}."
        if skipped:
            remedy = f"All {len(skipped):,} files were left out, such as {skipped[0].path}."
        raise InvalidRequest(where, "no samples", expected="files such as cat/0001.jpg", remedy=remedy)


def none_taken(query: object, split: str = "", remedy: str = "") -> InvalidRequest:
    """Return the error of a query that takes no sample, or none of a split."""
    found = f"no sample{f' of the split {printable(split)}' if split else ''} for which {query}"
    return InvalidRequest(option("where"), found, expected="one sample or more", remedy=remedy)


def check_skipped(source: str, skipped: tuple[Skipped, ...], on_error: OnError, otherwise: str) -> None:
    """Refuse a source with files that cannot be packed, unless they are to be skipped; `otherwise` is another way out.

    Raises:
        SampleFailed: There are such files.
    """
    lost = failures(skipped)
    if lost and on_error == "stop":
        named = listing([f"{printable(one.path)} ({one.message})" for one in lost])
        remedy = f"Mend them, {otherwise}, or leave them out with {option('on_error', 'skip')}. Nothing was written."
        raise SampleFailed(source, f"{counted(len(lost), 'file')} cannot be packed: {named}", remedy=remedy)


def skipped_notes(skipped: Iterable[Skipped]) -> list[str]:
    """Return a line for each reason why something was left out."""
    by_code: dict[str, list[str]] = {}
    for one in skipped:
        code = _EMPTY if one.code == "no-field" and one.key else one.code
        name = f"{one.path} ({one.key})" if one.code == "damaged" and one.key else one.path or one.key
        by_code.setdefault(code, []).append(printable(name))
    text = {
        "no-field": "file left out, without an ending that could name a field",
        _EMPTY: "sample left out, without a field",
        "incomplete": "sample left out, without a part of each source",
        "duplicate": "sample left out, of a key that another one has",
        "twin": "sample left out, the same as another one",
        "damaged": "part of the shards left out as damaged",
    }
    return [
        f"{counted(len(paths), text.get(code, f'file left out ({code})'))}: {listing(paths, 3)}"
        for code, paths in by_code.items()
    ]

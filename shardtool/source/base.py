"""The source interface: a source lists its samples, and the listing stays unchanged during a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from shardtool.errors import (
    Bug,
    InvalidRequest,
    SampleFailed,
    format_list,
    printable,
)
from shardtool.messages import option_text
from shardtool.names import source_label
from shardtool.skipped import Skipped, failed_rows, has_same_content
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.transform.transform import ReadCondition
    from shardtool.values import OnError


TASK_COUNT = 32  # enough to keep a few workers busy to the end


_SAME_CONTENT = "same-content"  # duplicates by content, not by key
_EMPTY_SAMPLE = "empty"  # of samples, not files, that are without a field


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

    entries: SampleTable
    skipped: tuple[Skipped, ...]
    name: str
    notes: tuple[str, ...] = ()
    recorded: Mapping[str, object] = field(default_factory=dict)
    digest: int | None = None
    shards: tuple[str, ...] = ()
    stored: tuple[tuple[StoredDataset, StoredShard], ...] = ()
    compressed: bool = False
    later: ReadCondition | None = None
    dropped: tuple[str, ...] = ()
    classes: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The source's name for messages: of several datasets, each distinct name once."""
        return format_list(self.name.split(", "))

    @property
    def all_classes(self) -> dict[str, list[str]]:
        """What the numbers of labels stand for, by field: in the source, and of those that were numbered."""
        return {**self.classes, **self.entries.values.classes}

    def without_dropped(self) -> Listing:
        """Return the same without the columns of fields that were dropped, which no sidecar is to have."""
        columns = self.entries.metadata
        if columns is None or not self.dropped:
            return self
        from shardtool.entries.metadata_columns import drop_number_columns

        left = drop_number_columns(columns, {*self.dropped}.difference(self.entries.fields))
        return replace(self, entries=replace(self.entries, metadata=left))


class Writable(Protocol):
    """Takes bytes in order, such as a file."""

    def write(self, data: memoryview, /) -> object:
        """Append `data`."""


class Source(ABC):
    """A folder, a manifest or datasets, which list their samples.

    Attributes:
        may_skip_names: Whether `--on-error skip` leaves samples out whose names no shard can hold.
        by_key: Whether samples, once they are listed, stand in the order of their keys, not in that of a column or of
            shards, and are sorted again when their keys change.
        may_lack_values: Whether a sample without a value for a field of `values` lacks the field; otherwise that is an
            error. A comparison reports the field.
    """

    may_skip_names: bool = False
    by_key: bool = True
    may_lack_values: bool = False

    @abstractmethod
    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """Return the samples, with the fields and metadata that were asked for."""

    def choose(self, listed: Listing, taken: Callable[[], PackedStrings | None]) -> Listing:  # noqa: ARG002
        """Return the samples that were asked for, in their order.

        Args:
            listed: All of them.
            taken: Returns the keys that they cannot have, those of a dataset; None: they may have any.
        """
        return listed

    def labels(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column to divide by, with a value for each sample: of labels, the names of their classes."""
        from shardtool.entries.metadata_columns import to_class_names

        return to_class_names(self.column(listed, name), listed.all_classes.get(name, ()))

    @abstractmethod
    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column, with a value for each sample."""

    def write_binary(self, file: Writable) -> None:
        """Write the payloads of all SPAN rows of a table, each to its offset. No other source has such rows."""
        raise Bug(str(file), "payloads of a source that is no table")


def check_not_empty(listed: Listing) -> None:
    """Refuse a source without samples.

    Args:
        listed: The samples.

    Raises:
        InvalidRequest: It has none.
    """
    if not len(listed.entries):
        where, skipped = source_label(listed.entries.root), listed.skipped
        remedy = f"Is it the right folder? Look at {option_text('include')}, {option_text('exclude')} and {option_text('hidden')}."
        if skipped:
            remedy = f"All {len(skipped):,} files were left out, such as {skipped[0].path}."
        raise InvalidRequest(where, "no samples", expected="files such as cat/0001.jpg", remedy=remedy)


def no_match_error(query: object, split: str = "", remedy: str = "") -> InvalidRequest:
    """Return the error of a query that takes no sample, or none of a split."""
    found = f"no sample{f' of the split {printable(split)}' if split else ''} for which {query}"
    return InvalidRequest(option_text("where"), found, expected="one sample or more", remedy=remedy)


def check_skipped(source: str, skipped: tuple[Skipped, ...], on_error: OnError, otherwise: str) -> None:
    """Refuse a source with files that cannot be packed, unless they are to be skipped; `otherwise` is another way out.

    Raises:
        SampleFailed: There are such files.
    """
    lost = failed_rows(skipped)
    if lost and on_error == "stop":
        named = format_list([f"{printable(one.path)} ({one.message})" for one in lost])
        remedy = (
            f"Mend them, {otherwise}, or leave them out with {option_text('on_error', 'skip')}. Nothing was written."
        )
        raise SampleFailed(source, f"{pluralize(len(lost), 'file')} cannot be packed: {named}", remedy=remedy)


def skipped_notes(skipped: Iterable[Skipped]) -> list[str]:
    """Return a line for each reason why something was left out."""
    by_code: dict[str, list[str]] = {}
    for one in skipped:
        code = _EMPTY_SAMPLE if one.code == "no-field" and one.key else one.code
        code = _SAME_CONTENT if has_same_content(one) else code
        name = f"{one.path} ({one.key})" if one.code == "damaged" and one.key else one.path or one.key
        by_code.setdefault(code, []).append(printable(name))
    text = {
        "no-field": "file left out, without an ending that could name a field",
        _EMPTY_SAMPLE: "sample left out, without a field",
        "incomplete": "sample left out, without a part of each source",
        "duplicate": "sample left out, of a key that another one has",
        _SAME_CONTENT: "sample left out, the same as another one",
        "damaged": "part of the shards left out as damaged",
    }
    return [
        f"{pluralize(len(paths), text.get(code, f'file left out ({code})'))}: {format_list(paths, 3)}"
        for code, paths in by_code.items()
    ]

"""The base class of sources, and the list of samples that a source returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field, replace
from typing import TYPE_CHECKING, Protocol

from shardtool.dataclass import dataclass
from shardtool.errors import Bug, InvalidRequest, SampleFailed, format_list, printable
from shardtool.messages import option_text
from shardtool.skipped import Skipped, failed_rows, has_same_content
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.transform.transform import ReadCondition
    from shardtool.values import OnError


TASK_COUNT = 32
_SAME_CONTENT, _EMPTY_SAMPLE = "same-content", "empty"


@dataclass(frozen=True, slots=True)
class Listing:
    """The samples of a source.

    Attributes:
        name: The name of the source in the dataset file, without folders.
        recorded: Values that the dataset file records in addition to the options.
        digest: The content fingerprint of all samples, or None if unknown.
        stored: For each shard name in `shards`, its dataset and shard. Names from `--add` have none.
        compressed: Whether some shards are compressed, and can only be read from start to end.
        condition: The part of `--where` that workers evaluate, because it depends on the content of files.
        dropped: Label fields that are not packed, but whose metadata columns are kept until splits are chosen.
        classes: Class names by field, including fields that are not packed.
        kept: The earlier positions of the remaining samples, or None if no duplicates were dropped.
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
    condition: ReadCondition | None = None
    dropped: tuple[str, ...] = ()
    classes: Mapping[str, list[str]] = field(default_factory=dict)
    joined: tuple[str, ...] = ()
    kept: NDArray[np.int64] | None = None

    @property
    def where(self) -> str:
        """The name of the source for messages."""
        return format_list(self.name.split(", "))

    @property
    def all_classes(self) -> dict[str, list[str]]:
        """Class names by field, including labels that this run converts to numbers."""
        return {**self.classes, **self.entries.values.classes}

    def without_dropped(self) -> Listing:
        """Return the listing without the metadata columns of `dropped` fields."""
        columns = self.entries.metadata
        if columns is None or not self.dropped:
            return self
        from shardtool.entries.metadata_columns import drop_number_columns

        kept = drop_number_columns(columns, {*self.dropped}.difference(self.entries.fields))
        return replace(self, entries=replace(self.entries, metadata=kept))


class Writable(Protocol):
    """An object that accepts bytes, such as a file."""

    def write(self, data: memoryview, /) -> object:
        """Append `data`."""


class Source(ABC):
    """A source of samples, such as a folder or a manifest.

    Attributes:
        may_skip_unstorable: Whether `--on-error skip` also skips samples whose names a shard cannot store.
        by_key: Whether samples are sorted by key.
        optional_values: Whether a sample may have no value for a field.
    """

    may_skip_unstorable: bool = False
    by_key: bool = True
    optional_values: bool = False

    @abstractmethod
    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """Return the samples, with the requested fields and metadata."""

    def select_and_sort(self, listing: Listing, read_existing_keys: Callable[[], PackedStrings | None]) -> Listing:  # noqa: ARG002
        """Select and sort the samples. For an append, `read_existing_keys` returns the output's keys."""
        return listing

    def labels(self, listing: Listing, option: str, name: str) -> pa.ChunkedArray:
        """Return the column `name` (see `column`), with class numbers replaced by class names."""
        from shardtool.entries.metadata_columns import to_class_names

        return to_class_names(self.column(listing, name, option), listing.all_classes.get(name, ()))

    @abstractmethod
    def column(self, listing: Listing, name: str, option: str = "") -> pa.ChunkedArray:
        """Return the column `name`, with one value per sample. `option` is the option to name in messages."""

    def write_payloads(self, file: Writable) -> None:
        """Write the payloads of a table or compressed archive to `file`, in the order of their offsets.

        Workers cannot read these payloads themselves.
        """
        raise Bug(str(file), "a source that is not a table has no binary payloads")


def no_match_error(query: object, split: str = "", remedy: str = "") -> InvalidRequest:
    """Return the error for a query that matches no sample."""
    found = f"no sample{f' of the split {printable(split)}' if split else ''} matches {query}"
    return InvalidRequest(option_text("where"), found, expected="at least one sample", remedy=remedy)


def check_skipped(source: str, skipped: tuple[Skipped, ...], on_error: OnError, otherwise: str) -> None:
    """Raise `SampleFailed`, with the advice `otherwise`, if files cannot be packed and `on_error` is `raise`."""
    failed = failed_rows(skipped)
    if failed and on_error == "raise":
        named = format_list([f"{printable(row.path) or 'the folder itself'} ({row.message})" for row in failed])
        remedy = f"Fix them, {otherwise}, or skip them with {option_text('on_error', 'skip')}. Nothing was written."
        raise SampleFailed(source, f"{pluralize(len(failed), 'file')} cannot be packed: {named}", remedy=remedy)


def skipped_notes(skipped: Iterable[Skipped]) -> list[str]:
    """Return a note for each reason code, with the number and some names of the skipped files."""
    by_code: dict[str, list[str]] = {}
    for row in skipped:
        code = _EMPTY_SAMPLE if row.code == "no-field" and row.key else row.code
        code = _SAME_CONTENT if has_same_content(row) else code
        name = f"{row.path} ({row.key})" if row.code == "damaged" and row.key else row.path or row.key
        by_code.setdefault(code, []).append(printable(name))
    text = {
        "no-field": "file skipped (no extension)",
        _EMPTY_SAMPLE: "sample skipped (no field)",
        "incomplete": "sample skipped (incomplete)",
        "duplicate": "sample skipped (another sample has the same key)",
        _SAME_CONTENT: "sample skipped (another sample has the same content)",
        "damaged": "part of shards skipped (damaged)",
    }
    return [
        f"{pluralize(len(paths), text.get(code, f'file skipped ({code})'))}: {format_list(paths, 3)}"
        for code, paths in by_code.items()
    ]

"""`Entries`: the samples of a source as columns, with no object per sample.

Ten million samples must fit a laptop's memory (benchmarks/plan10m.py): about 35 bytes a field, 16 a
sample, and the key. What takes more, such as a manifest's columns, lies in Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.values import to_bytes, to_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shardtool.names import Names, Texts
    from shardtool.skipped import Skipped
    from shardtool.values import Kind, Number, SpanFile


@dataclass(frozen=True, slots=True)
class Entries:
    """The samples of a source, the fields of each ordered by the bytes of their names.

    Sample i has the rows `first[i]` to `first[i + 1]` (exclusive) of the columns below `first`.

    Attributes:
        root: What paths count from, ending in a slash.
        keys: One per sample.
        first: int64[samples + 1].
        fields: The names that `code` stands for.
        code: uint16[rows], a field's name.
        kind: uint8[rows]: FILE, LINK, INLINE or SPAN.
        size: int64[rows], payload bytes.
        mtime_ns: int64[rows], as seen when the source was listed.
        changed_ns: int64[rows], the latest time at which anything could have changed what the path gives.
        paths: One per row, relative to `root`; None where each is key + "." + field.
        source_paths: Whether `paths` goes into the sidecar, because the keys are no longer the names.
        skipped: What the source holds but cannot be part of a sample.
        inline: Field to the payload of its INLINE rows, one per sample, also for samples without the field.
        numbers: What the text of fields stands for, where that is a number; INLINE where it is to be stored as one.
        classes: Field to the names of its class numbers.
        offset: int64[rows], where the payload of SPAN rows starts in its file; None where there are none.
        files: The files that SPAN rows lie in: shards, or a spool; none: the spool is yet to be written.
        file: uint32[samples]: which of `files`; None: the first.
        expected: int64[rows], the CRC-32C that a payload must have, -1 where it is unknown; None: all are unknown.
        identity: A digest of the source, where `root` does not identify it.
        columns: Metadata for the sidecars, a row per sample: a `pyarrow.Table`.
        lists: What the values of fields are that are lists of a TFRecord: all their rows are SPAN.
        whole: bool[rows]: whether the payload is all that the field's list holds, not one value in it, or numbers
            packed as one; None: it never is.
    """

    root: bytes
    keys: Names
    first: NDArray[np.int64]
    fields: tuple[str, ...]
    code: NDArray[np.uint16]
    kind: NDArray[np.uint8]
    size: NDArray[np.int64]
    mtime_ns: NDArray[np.int64]
    changed_ns: NDArray[np.int64]
    paths: Names | None = None
    source_paths: bool = False
    skipped: tuple[Skipped, ...] = ()
    inline: Mapping[str, Texts] = field(default_factory=dict)
    numbers: Mapping[str, Number] = field(default_factory=dict)
    classes: Mapping[str, list[str]] = field(default_factory=dict)
    offset: NDArray[np.int64] | None = None
    files: tuple[SpanFile, ...] = ()
    file: NDArray[np.uint32] | None = None
    expected: NDArray[np.int64] | None = None
    identity: str = ""
    columns: Any = None
    lists: Mapping[str, Kind] = field(default_factory=dict)
    whole: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, sample: int) -> str:
        """Return a sample's key, for messages too: undecodable bytes become surrogates."""
        return to_text(self.keys[sample])

    def path(self, row: int) -> bytes:
        """Return the path of a row, relative to `root`."""
        if self.paths is not None:
            return self.paths[row]
        sample = int(np.searchsorted(self.first, row, "right")) - 1
        return self.keys[sample] + b"." + to_bytes(self.fields[int(self.code[row])])

    def counts(self) -> NDArray[np.int64]:
        """Return how many fields each sample has."""
        return np.diff(self.first)

    def code_counts(self) -> list[int]:
        """Return how many samples have each of `fields`: some may have none, once samples were chosen."""
        return [int(count) for count in np.bincount(self.code, minlength=len(self.fields))]

    def rows_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of `samples`, in that order."""
        starts = self.first[samples]
        counts = self.first[samples + 1] - starts
        offsets = np.cumsum(counts) - counts
        return np.repeat(starts - offsets, counts) + np.arange(int(counts.sum()), dtype=np.int64)

    def take(self, samples: NDArray[np.int64]) -> Entries:
        """Return `samples`, in that order."""
        first = np.concatenate(([0], np.cumsum(self.counts()[samples]))).astype(np.int64)
        return replace(
            self.take_rows(self.rows_of(samples)),
            keys=self.keys.take(samples),
            first=first,
            inline={name: texts.take(samples) for name, texts in self.inline.items()},
            file=self.file[samples] if self.file is not None else None,
            columns=None if self.columns is None else _take_rows(self.columns, samples),
        )

    def take_rows(self, rows: NDArray[np.int64]) -> Entries:
        """Return the columns of `rows`, in that order; which samples they belong to is the caller's to say."""
        return replace(
            self,
            code=self.code[rows],
            kind=self.kind[rows],
            size=self.size[rows],
            mtime_ns=self.mtime_ns[rows],
            changed_ns=self.changed_ns[rows],
            paths=self.paths.take(rows) if self.paths is not None else None,
            offset=self.offset[rows] if self.offset is not None else None,
            expected=self.expected[rows] if self.expected is not None else None,
            whole=self.whole[rows] if self.whole is not None else None,
        )


def _take_rows(table: Any, rows: NDArray[np.int64]) -> Any:
    from shardtool.entries.arrow import number_array

    return table.take(number_array(rows))

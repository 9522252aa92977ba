"""What the user should know of names and fields, shard by shard: what `create` says of all samples at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.entries import Entries, FieldRows, FieldValues
from shardtool.interop.portability import NUMBER_FIELDS, READERS, Holders, Misread, misreads, missing_field
from shardtool.names import Names
from shardtool.values import FILE, INLINE, ShardContent, to_bytes, to_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.values import Number

_UNEVEN = "missing-field"  # of all shards together


class ShardNotes:
    """What readers would get wrong about the shards of a tar dataset that were added."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Misread] = {}  # by code and what it is about
        self._fields: Counter[str] = Counter()
        self._samples = 0
        self._first = b""
        self._having: dict[str, bytes] = {}  # the first key of a sample that has a field
        self._lacking: dict[str, bytes] = {}  # and of one that lacks it

    def add(self, content: ShardContent, numbers: dict[str, Number]) -> None:
        """Take a shard's samples, whose fields are numbered in the order of their names; `numbers`: those that are."""
        entries = _entries(content, numbers)
        for one in misreads(entries):
            about = one.code, one.what
            before = self._found.get(about)
            if one.code != _UNEVEN:
                self._found[about] = replace(before, count=before.count + one.count) if before else one
        self._count(entries)

    def texts(self, readers: Sequence[str]) -> Iterator[str]:
        """Yield a line for each thing that one of some readers would get wrong."""
        uneven = [name for name in sorted(self._fields, key=to_bytes) if self._fields[name] < self._samples]
        found = [*self._found.values()]
        if uneven:
            holders = Holders(uneven[0], self._fields[uneven[0]], self._samples)
            key = (self._having if holders.few else self._lacking)[uneven[0]]
            found.append(missing_field(len(uneven), holders, to_text(key)))
        order = [*READERS]
        for one in sorted(found, key=lambda one: order.index(one.code)):
            if not {*READERS[one.code]}.isdisjoint(readers):
                yield str(one)

    def _count(self, entries: Entries) -> None:
        """Count the fields of a shard, and find samples that have or lack what others lack or have."""
        total, counts = len(entries), entries.code_counts()
        self._first = self._first if self._samples else entries.keys[0]
        here = {
            name: (code, count) for code, (name, count) in enumerate(zip(entries.fields, counts, strict=True)) if count
        }
        for name in {**self._fields, **here}:
            code, count = here.get(name, (-1, 0))
            if count and name not in self._having:
                self._having[name] = entries.keys[int(entries.owners(np.flatnonzero(entries.rows.code == code))[0])]
                if self._samples:
                    self._lacking[name] = self._first
            if count < total and name not in self._lacking:
                holders = entries.owners(np.flatnonzero(entries.rows.code == code))
                self._lacking[name] = entries.keys[int(np.setdiff1d(np.arange(total), holders)[0])]
        self._fields.update({name: count for name, (_, count) in here.items()})
        self._samples += total


def _entries(content: ShardContent, numbers: dict[str, Number]) -> Entries:
    """Return the samples of a shard as those of a source."""
    counts = np.frombuffer(content.counts, np.uint16).astype(np.int64)
    codes, sizes = np.frombuffer(content.codes, np.uint16), np.frombuffer(content.sizes, np.int64)
    fields = tuple(map(to_text, content.fields))
    first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    inline, kind = _labels(content, fields, counts)
    times = np.broadcast_to(np.int64(0), len(codes))
    values = FieldValues(inline=inline, numbers=numbers)
    return Entries(
        root=b"",
        keys=Names.parse(content.keys),
        first=first,
        fields=fields,
        rows=FieldRows(code=codes, kind=kind, size=sizes, mtime_ns=times, changed_ns=times),
        values=values,
    )


def _labels(
    content: ShardContent, fields: tuple[str, ...], counts: NDArray[np.int64]
) -> tuple[dict[str, Names], NDArray[np.uint8]]:
    """Return the texts of fields that readers take for whole numbers, and the kind of each row."""
    codes = np.frombuffer(content.codes, np.uint16)
    kind = np.full(len(codes), FILE, np.uint8)
    wanted = [code for code, name in enumerate(fields) if name.rpartition(".")[2].lower() in NUMBER_FIELDS]
    found: dict[str, Names] = {}
    if not content.inline or not wanted:
        return found, kind
    texts, owners = content.inline[:-1].split(b"\0"), np.repeat(np.arange(len(counts)), counts)
    for code in wanted:
        column = [b""] * len(counts)
        for row in np.flatnonzero(codes == code).tolist():
            if texts[row]:
                column[int(owners[row])], kind[row] = texts[row], INLINE
        found[fields[code]] = Names.of(column)
    return found, kind

"""Which samples of a source that grows are new: those whose keys no dataset that is appended to has.

Samples that a dataset lists as left out are not new either: they would fail again, and be listed again, in every run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import listing, printable
from shardtool.names import Names
from shardtool.publish.append import keys_of, read_old
from shardtool.table.keys import places_among
from shardtool.values import INLINE, counted, to_bytes, to_text
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.publish.destination import Destination

    Numbers = NDArray[np.int64]

_SLACK_NS = 120 * 10**9  # a shard's time is a minute before its run began, and clocks may differ by another
_SHOWN = 3  # keys in a note


@dataclass(frozen=True, slots=True)
class Known:
    """The samples of a source that are not new.

    Attributes:
        there: bool per sample: whether a dataset has its key.
        listed: bool per sample: whether a dataset only lists its key, as left out.
        changed: bool per sample: whether its files are others than those that were packed, by names, sizes or times.
    """

    there: NDArray[np.bool_]
    listed: NDArray[np.bool_]
    changed: NDArray[np.bool_]

    @property
    def new(self) -> NDArray[np.bool_]:
        """Whether each sample is new."""
        return ~(self.there | self.listed)

    def notes(self, entries: Entries) -> Iterator[str]:
        """Yield what the user should know of them."""
        if self.new.any() and (count := int(self.there.sum())):
            yield f"{counted(count, 'sample')} left out: the dataset has their keys"
        if self.listed.any():
            once = f"once mended, append them alone, without {option('on_duplicate')}"
            yield f"{_named(self.listed, entries)} stay left out, as the dataset lists them: {once}"
        if self.changed.any():
            what = "changed in files, sizes or times since they were packed; the dataset keeps what it has"
            yield f"{_named(self.changed, entries)} {what}"


def _named(which: NDArray[np.bool_], entries: Entries) -> str:
    places = np.flatnonzero(which)
    keys = [printable(to_text(entries.keys[place])) for place in places[:_SHOWN].tolist()]
    return f"{counted(len(places), 'sample')} ({listing(keys, _SHOWN, total=len(places))})"


@dataclass(frozen=True, slots=True)
class _Packed:
    """The samples of datasets, in one order.

    Attributes:
        keys: Their keys.
        counts: Fields per sample.
        names: Per field: the number of its name.
        sizes: Per field: bytes.
        written_ns: Per sample: the time of its shard.
    """

    keys: Names
    counts: Numbers
    names: Numbers
    sizes: Numbers
    written_ns: Numbers


def known_samples(entries: Entries, destinations: Sequence[Destination], *, transformed: bool) -> Known:
    """Return which samples are not new, compared with all that the datasets hold.

    Args:
        entries: The samples.
        destinations: The datasets that are appended to.
        transformed: Whether samples are changed on the way: then the sizes and fields in shards say nothing.

    Raises:
        CorruptShard: A sidecar, or the list of what was left out, is damaged.
    """
    numbers = {to_bytes(name): number for number, name in enumerate(entries.fields)}
    packed = _read(destinations, numbers)
    place = places_among(packed.keys, entries.keys)
    there, changed = np.zeros(len(entries), np.bool_), np.zeros(len(entries), np.bool_)
    mine = np.flatnonzero(place >= 0)
    theirs = place[mine]
    there[theirs] = True
    if len(mine):
        times = entries.rows.changed_ns if entries.is_remote else entries.rows.mtime_ns
        newest = np.maximum.reduceat(times, entries.first[:-1])
        changed[theirs[newest[theirs] > packed.written_ns[mine] + _SLACK_NS]] = True
        if not transformed:
            changed[theirs[_differ(packed, entries, mine, theirs)]] = True
    return Known(there, _listed(entries, there, destinations), changed)


def _read(destinations: Sequence[Destination], numbers: dict[bytes, int]) -> _Packed:
    """Return what the sidecars of datasets say; `numbers` gets those field names that it lacks."""
    keys, counts, names, sizes, written = [], [], [], [], []
    for output in destinations:
        for shard in output.old.shards if output.old else ():
            rows = read_old(output.folder, shard).rows
            known = [numbers.setdefault(name, len(numbers)) for name in rows.names]
            keys.append(keys_of(rows))
            counts.append(rows.counts)
            names.append(np.array(known, np.int64)[rows.codes])
            sizes.append(rows.lengths)
            fact = output.existing[os.fsdecode(to_bytes(shard.name))]
            written.append(np.full(len(rows.counts), fact.mtime_ns, np.int64))
    parts = (np.concatenate([np.zeros(0, np.int64), *one]) for one in (counts, names, sizes, written))
    return _Packed(Names.parse(b"".join(keys)), *parts)


def _differ(packed: _Packed, entries: Entries, mine: Numbers, theirs: Numbers) -> NDArray[np.bool_]:
    """Return which samples have other fields, or files of other sizes, than were packed.

    Args:
        packed: The samples that were packed.
        entries: The samples of the source.
        mine: The places of some of the first.
        theirs: The places of the same samples among the second.
    """
    counts = entries.counts_of(theirs)
    differ: NDArray[np.bool_] = packed.counts[mine] != counts
    same = np.flatnonzero(~differ)
    first = np.concatenate(([0], np.cumsum(packed.counts)))
    owners = np.repeat(np.arange(len(same)), counts[same])
    starts = np.repeat(np.cumsum(counts[same]) - counts[same], counts[same])
    before = np.repeat(first[mine[same]], counts[same]) + np.arange(len(owners)) - starts
    before = before[np.lexsort((packed.names[before], owners))]
    now = entries.rows_of(theirs[same])
    now = now[np.lexsort((entries.rows.code[now], owners))]
    other = packed.names[before] != entries.rows.code[now]
    of_file = entries.rows.kind[now] != INLINE  # a number has other bytes in each format
    other |= of_file & (packed.sizes[before] != entries.rows.size[now])
    differ[same[owners[other]]] = True
    return differ


def _listed(entries: Entries, there: NDArray[np.bool_], destinations: Sequence[Destination]) -> NDArray[np.bool_]:
    """Return which samples the datasets do not have, and list as left out."""
    listed = {one.key for output in destinations for one in output.listed_skipped()}
    found = np.zeros(len(entries), np.bool_)
    for place in np.flatnonzero(~there).tolist() if listed else ():
        found[place] = printable(to_text(entries.keys[place])) in listed
    return found

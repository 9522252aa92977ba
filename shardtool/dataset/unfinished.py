"""Shards of a run that did not end: their sidecars say how many shards there were to be.

A dataset file is written last, so where none is there, a run may have been killed. What has been published by then is
sound, and looks like a smaller dataset: who makes a dataset file for it loses the rest without a word.

Source: docs/format.md, "Sidecar".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, ShardError, printable
from shardtool.pattern import sidecar_name
from shardtool.shard_names import is_shard_name
from shardtool.storage.places import base_name, folder_of, for_each, join, names_in, plain_sizes, read_beside
from shardtool.values import counted
from shardtool.wording import create_again

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.dataset.find import Found
    from shardtool.dataset.sidecar import ShardFact
    from shardtool.values import Dots

EXPECTED = "all of them, and their dataset file"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run whose shards are not all there.

    Attributes:
        first: The name of its first shard.
        shards: How many there are.
        planned: How many there were to be, at least.
    """

    first: str
    shards: int
    planned: int

    def __str__(self) -> str:
        there = f"{counted(self.shards, 'shard')} of {self.planned:,} that were planned"
        return f"{there} from {printable(self.first)[:80]} on: a run did not end, or not all was copied"


def unfinished(facts: Iterable[ShardFact | None], beside: Iterable[ShardFact] = ()) -> list[Unfinished]:
    """Return the runs, of `create` or of an append, of which fewer shards are there than their sidecars say.

    Args:
        facts: What the sidecar of each shard says; None where there is none, or it is damaged: such a shard may
            be of any of the runs.
        beside: The same of other shards that are there: who asks about some shards need not name all.
    """
    there: Counter[str] = Counter()
    planned: dict[str, int] = {}
    unknown = 0
    for fact in facts:
        if fact is None or fact.shards is None:
            unknown += 1
            continue
        there[fact.first] += 1
        planned[fact.first] = max(planned.get(fact.first, 0), fact.shards)
    there.update(fact.first for fact in beside if fact.first in planned)
    return [
        Unfinished(first, there[first] + unknown, number)
        for first, number in sorted(planned.items())
        if number > there[first] + unknown
    ]


def facts_beside(folder: str, shards: Sequence[str]) -> list[ShardFact]:
    """Return what the sidecars of other shards in a folder say, beside those that were given."""
    given = {base_name(path) for path in shards if folder_of(path) == folder}
    others = [name for name in names_in(folder) if is_shard_name(name) and name not in given]
    return [fact for fact in for_each(_fact_beside, [join(folder, name) for name in others]) if fact is not None]


def check_finished(folder: str, shards: Sequence[str]) -> None:
    """Check that shards without a dataset file are all of their dataset, as far as their sidecars say.

    Raises:
        InvalidRequest: They are not.
    """
    there = [path for path, size in zip(shards, plain_sizes(shards), strict=True) if size is not None]
    for one in unfinished(for_each(_fact_beside, there), facts_beside(folder, shards)):
        remedy = f"{create_again()} finishes such a run; `shardtool reshard` makes a dataset of those that are here."
        raise InvalidRequest(folder or ".", str(one), expected=EXPECTED, remedy=remedy)


def _fact_beside(shard: str) -> ShardFact | None:
    """Return what the sidecar beside a shard says; None where there is none, or it is damaged."""
    path = join(folder_of(shard), sidecar_name(base_name(shard)))
    if (data := read_beside(path)) is None:
        return None
    from shardtool.dataset.sidecar_read import read_facts

    try:
        return read_facts(data, path)
    except ShardError:
        return None


def recorded_dots(found: Found) -> Dots:
    """Return where keys end in members' names, as far as the sidecars show: where a key has a dot, at the last one.

    Args:
        found: Shards without a dataset file of ours that says it.
    """
    from shardtool.dataset.sidecar_read import read_sidecar

    for shard, data in zip(found.shards, for_each(read_beside, map(found.sidecar, found.shards)), strict=True):
        try:
            rows = read_sidecar(data, shard, None, metadata=False).rows if data is not None else None
        except ShardError:
            continue
        if rows is None:
            continue
        if b"." in rows.keys and any(b"." in key.rpartition(b"/")[2][1:] for key in rows.all_keys()):
            return "last"
    return "first"

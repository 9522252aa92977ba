"""Shards of a run that did not end: their sidecars say how many shards there were to be.

A dataset file is written last, so where none is there, a run may have been killed. What has been published by then is
sound, and looks like a smaller dataset: who makes a dataset file for it loses the rest without a word.

Source: docs/format.md, "Sidecar".
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, ShardError, printable
from shardtool.pattern import sidecar_name
from shardtool.shard_names import is_shard_name
from shardtool.storage.reading import names_in, read_small
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
    given = {os.path.basename(path) for path in shards if os.path.dirname(path) == folder}
    others = [name for name in names_in(folder) if is_shard_name(name) and name not in given]
    return [fact for name in others if (fact := _fact_beside(os.path.join(folder, name))) is not None]


def check_finished(folder: str, shards: Sequence[str]) -> None:
    """Check that shards without a dataset file are all of their dataset, as far as their sidecars say.

    Raises:
        InvalidRequest: They are not.
    """
    there = [path for path in shards if os.path.isfile(path)]
    for one in unfinished(map(_fact_beside, there), facts_beside(folder, shards)):
        remedy = f"{create_again()} finishes such a run; `shardtool reshard` makes a dataset of those that are here."
        raise InvalidRequest(folder or ".", str(one), expected=EXPECTED, remedy=remedy)


def _fact_beside(shard: str) -> ShardFact | None:
    """Return what the sidecar beside a shard says; None where there is none, or it is damaged."""
    path = os.path.join(os.path.dirname(shard), sidecar_name(os.path.basename(shard)))
    try:
        data = read_small(path)
        from shardtool.dataset.sidecar_read import read_facts

        return read_facts(data, path)
    except (OSError, ShardError):
        return None


def recorded_dots(found: Found) -> Dots:
    """Return where keys end in members' names, as far as the sidecars show: where a key has a dot, at the last one.

    Args:
        found: Shards without a dataset file of ours that says it.
    """
    from shardtool.dataset.sidecar_read import read_sidecar

    for shard in found.shards:
        try:
            rows = read_sidecar(read_small(found.sidecar(shard)), shard, None, metadata=False).rows
        except (OSError, ShardError):
            continue
        if b"." in rows.keys and any(b"." in key.rpartition(b"/")[2][1:] for key in rows.all_keys()):
            return "last"
    return "first"

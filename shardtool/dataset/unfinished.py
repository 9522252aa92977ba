"""Detect shards of an unfinished run: sidecars record how many shards their run planned.

The dataset file is written last, so shards without one may come from an interrupted run. The published shards are
valid and look like a smaller dataset: a dataset file created for them would hide the missing ones.

Source: docs/format.md, "Sidecar".
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardtool.dataset.stored import StoredDataset, sidecar_path
from shardtool.errors import CorruptShard, InvalidRequest, printable
from shardtool.messages import resume_hint
from shardtool.shard_names import is_shard_name
from shardtool.storage import files, lookup
from shardtool.storage.lookup import list_folder_names, map_paths
from shardtool.storage.paths import base_name, folder_of, join
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.dataset.sidecar_schema import ShardFacts


ALL_SHARDS = "all of them, and their dataset file"


def describe_unfinished(facts: Iterable[ShardFacts | None], beside: Iterable[ShardFacts] = ()) -> Iterator[str]:
    """Yield, in words, the runs, of `create` or of an append, of which fewer shards are there than their sidecars say.

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
    for first, number in sorted(planned.items()):
        if number > (seen := there[first] + unknown):
            what = f"{pluralize(seen, 'shard')} of {number:,} that were planned from {printable(first)[:80]} on"
            yield f"{what}: a run did not end, or not all was copied"


def sibling_facts(found: StoredDataset) -> list[ShardFacts]:
    """Return what the sidecars of other shards in a dataset's folder say."""
    given = {base_name(path) for path in found.paths if folder_of(path) == found.folder}
    others = [name for name in list_folder_names(found.folder) if is_shard_name(name) and name not in given]
    return [
        fact for fact in map_paths(read_shard_facts, [join(found.folder, name) for name in others]) if fact is not None
    ]


def require_finished(found: StoredDataset) -> None:
    """Check that shards without a dataset file are all of their dataset, as far as their sidecars say.

    Raises:
        InvalidRequest: They are not.
    """
    there = [path for path, size in zip(found.paths, lookup.plain_sizes(found.paths), strict=True) if size is not None]
    for one in describe_unfinished(map_paths(read_shard_facts, there), sibling_facts(found)):
        remedy = f"{resume_hint()} finishes such a run; `shardtool reshard` makes a dataset of those that are here."
        raise InvalidRequest(found.folder or ".", one, expected=ALL_SHARDS, remedy=remedy)


def read_shard_facts(shard: str) -> ShardFacts | None:
    """Return what the sidecar beside a shard says; None where there is none, or it is damaged."""
    path = sidecar_path(shard, None)
    if (data := files.read_optional(path)) is None:
        return None
    from shardtool.dataset.sidecar_read import parse_facts

    try:
        return parse_facts(data, path)
    except CorruptShard:
        return None

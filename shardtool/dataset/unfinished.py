"""Detect shards of an unfinished run. The sidecars record how many shards the run planned.

This check prevents `index` from writing a dataset file that lacks shards.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardtool.dataset.stored import StoredDataset, sidecar_path
from shardtool.errors import CorruptShard, InvalidRequest, printable
from shardtool.messages import resume_hint
from shardtool.pattern import is_shard_name
from shardtool.storage import files
from shardtool.storage.paths import base_name, folder_of, join
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.dataset.sidecar_schema import ShardFacts


ALL_SHARDS = "all shards of the run, and their dataset file"


def describe_unfinished(facts: Iterable[ShardFacts | None], sibling_facts: Iterable[ShardFacts]) -> Iterator[str]:
    """Yield a description of each run that planned more shards than exist.

    Each item of `facts` comes from a shard's sidecar, or is None if the sidecar is missing or invalid. `sibling_facts`
    come from other shards in the folder, which may belong to the same runs.
    """
    counts: Counter[str] = Counter()
    planned: dict[str, int] = {}
    unknown_shards = 0
    for fact in facts:
        if fact is None or fact.shards is None:
            unknown_shards += 1
            continue
        counts[fact.first] += 1
        planned[fact.first] = max(planned.get(fact.first, 0), fact.shards)
    counts.update(fact.first for fact in sibling_facts if fact.first in planned)
    for first, planned_count in sorted(planned.items()):
        if planned_count > (count := counts[first] + unknown_shards):
            shards = f"{pluralize(count, 'shard')} of {planned_count:,} planned, starting with {printable(first)[:80]}"
            yield f"{shards}: the run did not finish, or the copy is incomplete"


def sibling_facts(dataset: StoredDataset) -> list[ShardFacts]:
    """Return the facts in the sidecars of other shards in the dataset's folder."""
    named = {base_name(path) for path in dataset.paths if folder_of(path) == dataset.folder}
    others = [name for name in files.list_folder_names(dataset.folder) if is_shard_name(name) and name not in named]
    facts = files.map_paths(read_shard_facts, [join(dataset.folder, name) for name in others])
    return [fact for fact in facts if fact is not None]


def require_finished(dataset: StoredDataset) -> None:
    """Raise an error if shards without a dataset file come from an unfinished run."""
    existing = [
        path for path, size in zip(dataset.paths, files.plain_sizes(dataset.paths), strict=True) if size is not None
    ]
    for problem in describe_unfinished(files.map_paths(read_shard_facts, existing), sibling_facts(dataset)):
        remedy = f"{resume_hint()} finishes the run; `shardtool reshard` packs the existing shards into a new dataset."
        raise InvalidRequest(dataset.folder or ".", problem, expected=ALL_SHARDS, remedy=remedy)


def read_shard_facts(shard: str) -> ShardFacts | None:
    """Return the facts in the sidecar next to a shard, or None without a valid sidecar."""
    path = sidecar_path(shard, None)
    if (data := files.read_optional(path)) is None:
        return None
    from shardtool.dataset.sidecar_read import parse_facts

    try:
        return parse_facts(data, path)
    except CorruptShard:
        return None

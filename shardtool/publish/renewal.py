"""The indexes of other tools beside a dataset that is appended to: they are renewed with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, OutputExists, listing
from shardtool.interop.export_formats import EXPORTS
from shardtool.pattern import SIDECAR_SUFFIX, sidecar_name
from shardtool.publish.exporter import Exporter
from shardtool.publish.folder_index import listed_shards
from shardtool.values import to_bytes
from shardtool.wording import export_call

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from shardtool.publish.destination import Destination
    from shardtool.request.observer import Notes


def exports_beside(destination: Destination) -> list[str]:
    """Return which indexes of other tools, as `--export` calls them, lie beside the dataset that is appended to."""
    old = destination.old
    if old is None or not old.shards:
        return []
    stem = sidecar_name(os.fsdecode(to_bytes(old.shards[0].name))).removesuffix(SIDECAR_SUFFIX)
    ours, found = {shard.name for shard in old.shards}, []
    for name, export in EXPORTS.items():
        if export.once is not None:  # a list of the folder's shards: it may be of others
            is_there = not ours.isdisjoint(listed_shards(export.once, destination.folder) or ())
        else:
            is_there = export.encode is not None and bool(destination.folder.facts([stem + export.suffix]))
        if is_there and export.shard_format == old.format:
            found.append(name)
    return found


def export_notes(destination: Destination, renewed: Collection[str]) -> Iterable[str]:
    """Return what the user should know of other tools' indexes beside the dataset.

    Args:
        destination: The dataset.
        renewed: The exports that this run makes itself.
    """
    hashed = {name for name in exports_beside(destination) if EXPORTS[name].hashed}
    if stale := sorted(hashed.difference(renewed)):
        again = f"{export_call('', stale, overwrite=False)} renews them, and reads all shards"
        yield f"indexes of other tools ({listing(stale)}) cover the old shards only: {again}"


def renew_exports(destination: Destination, made: Collection[str], notes: Notes) -> None:
    """Renew the indexes of other tools beside a dataset that was appended to, where no shard must be read for them.

    Args:
        destination: The dataset.
        made: The exports that the run has made itself.
        notes: Gets which could not be renewed: the dataset is complete without them.
    """
    for name in exports_beside(destination):
        export = EXPORTS[name]
        if name not in made and not export.hashed:
            exporter = Exporter(destination.folder, destination.pattern.dataset_file, {name: export}, notes)
            try:
                exporter.write(destination.folder, overwrite=True)
            except (InvalidRequest, OutputExists) as error:
                notes.add(f"the index for {export.reader} could not be renewed: {error}")

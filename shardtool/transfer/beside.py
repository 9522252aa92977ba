"""The indexes of other tools that lie beside a dataset: they are copied with it where they are right.

No checksum covers them, so each is held against what the sidecars say of the shards, which were copied and checked.
What has the name of an index at the destination already stays. On the web nothing is listed, and so none is found.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, listing
from shardtool.interop.export_formats import EXPORTS, ONCE
from shardtool.interop.export_types import IndexedShard
from shardtool.interop.huggingface import README, is_ours, listed
from shardtool.interop.index_forms import HEAD_SIZE, difference, form_of, index_limit, index_name
from shardtool.shard_names import is_packed_name
from shardtool.storage.folders import open_folder
from shardtool.storage.places import is_file, is_web, join, names_in, read_head, read_small
from shardtool.storage.staging import write_whole
from shardtool.values import counted, output_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.request.observer import Notes
    from shardtool.storage.folders import OutputFolder
    from shardtool.transfer.goal import Goal
    from shardtool.transfer.origin import Origin, Pair

_LIST_LIMIT = 2**28  # bytes of a file that lists a folder's shards


def copy_indexes(goal: Goal, notes: Notes) -> int:
    """Copy the index files that lead into a shard, where they are right; return how many were.

    Raises:
        OutputFailed: One cannot be written.
    """
    origin = goal.origin
    if is_web(origin.path) or origin.file.shards_folder:
        return 0
    try:
        names, copied, wrong = {*names_in(origin.folder, needed=True)}, 0, list[str]()
    except AccessRefused:
        notes.add("indexes of other tools were not looked for: the store does not let us list")
        return 0
    for pair in origin.pairs:
        for name in sorted(_names_of(pair, names) - {origin.name}):
            data = _index_data(join(origin.folder, name), name, pair)
            if data is None:
                wrong.append(output_text(name))
            elif data and _put(goal.folder, name, data):
                copied += 1
    if wrong:
        found = f"{counted(len(wrong), 'index file')} of other tools"
        notes.add(f"{found} not copied, for they are not those of their shards: {listing(sorted(wrong), 3)}")
    return copied


def copy_lists(origins: Sequence[Origin], where: str) -> int:
    """Copy the files of other tools that list the shards of a folder, where all of those are copied; return how many.

    Args:
        origins: The datasets of one folder that were copied.
        where: The folder that they were copied to.

    Raises:
        OutputFailed: One cannot be written.
    """
    source, folder = origins[0].folder, open_folder(where)
    if is_web(source) or any(origin.file.shards_folder for origin in origins):
        return 0
    shards = {shard.name: shard.samples for origin in origins for shard in origin.file.shards}
    copied = 0
    for name, data in _right_lists(origins, source, shards):
        copied += _put(folder, name, data)
    return copied


def _right_lists(origins: Sequence[Origin], source: str, shards: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the paths and the bytes of such files, in the order in which they should appear."""
    for once in ONCE.values():
        counts = once.counts(_read(join(source, once.info), _LIST_LIMIT))
        if counts and counts == {name: shards[name] for name in counts if name in shards}:
            with suppress(InvalidRequest):
                paths = once.encode([origin.file.split_shards() for origin in origins])
                yield from ((path, _read(join(source, path), _LIST_LIMIT)) for path in paths)
    readme = _read(join(source, README), _LIST_LIMIT)
    if is_ours(readme) and listed(readme, [*map(output_text, names_in(source))]) == {*shards}:
        yield README, readme


def _names_of(pair: Pair, names: set[str]) -> set[str]:
    """Return the files that may be indexes of a shard, by their names."""
    if is_packed_name(pair.shard.name):
        return set()
    return {index_name(pair.shard.name, export) for export in EXPORTS.values() if export.suffix} & names


def _index_data(path: str, name: str, pair: Pair) -> bytes | None:
    """Return the bytes of a shard's index; empty: the file is something else; None: it is not that of this shard."""
    from shardtool.dataset.sidecar_read import read_sidecar

    try:
        head, size = read_head(path, HEAD_SIZE)
        if not (form := form_of(name, head, size)):
            return b""
        sidecar = read_sidecar(read_small(pair.sidecar.path), pair.sidecar.path, None, metadata=False)
        shard = IndexedShard(output_text(pair.shard.name), pair.shard.size, sidecar.plain_table())
        if size > index_limit(shard):
            return None
        data = read_small(path)
        return None if difference(form, data, shard) else data
    except (OSError, KeyError, CorruptShard):
        return None


def _read(path: str, limit: int) -> bytes:
    """Return a whole file; nothing where there is none, or it cannot be read, which a store may say of none, too."""
    try:
        return read_small(path, limit) if is_file(path) else b""
    except (OSError, AccessRefused):
        return b""


def _put(folder: OutputFolder, path: str, data: bytes) -> bool:
    """Write a file where there is none of its name; return whether that was done."""
    below, name = os.path.split(path)
    if below:
        fact = folder.facts([below]).get(below)
        if fact is not None and not fact.is_folder:  # a link to one would lead elsewhere
            return False
        folder = open_folder(folder.full_path(below))
    if not data or folder.facts([name]):
        return False
    folder.ready()
    folder.publish(write_whole(folder, name, data))
    return True

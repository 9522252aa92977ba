"""Read the index files of other tools in a folder, with a size limit."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.errors import AccessRefused, OutputExists
from shardtool.interop import exports, huggingface, indexed_shard
from shardtool.storage import files
from shardtool.storage.folders import OutputFolder, open_folder

if TYPE_CHECKING:
    from shardtool.interop.exports import FolderIndex


def open_subfolder(folder: OutputFolder, names: str) -> OutputFolder:
    """Return a folder below another.

    Raises:
        OutputExists: There is something else of its name, or a link to a folder, which would lead elsewhere.
    """
    for name in names.split("/") if names else ():
        fact = folder.facts([name]).get(name)
        if fact is not None and not fact.is_folder:
            raise OutputExists(folder.full_path(name), "no folder", remedy="Move it away.")
        folder = open_folder(folder.full_path(name))
    return folder


def read_foreign_index(path: str, form: str, shard: indexed_shard.IndexedShard) -> tuple[bytes, str]:
    """Return the bytes of a shard's index file, as far as such a file can go, and what is wrong with them.

    Args:
        path: Where it is.
        form: What it is, as `form_of` returns it.
        shard: Its hashes are compared only where it has some.

    Returns:
        The text is empty where readers find by the file what lies there.
    """
    limit = shard.limit()
    try:
        data, size = files.read_head(path, limit)
    except (OSError, AccessRefused):  # the latter is said of what is not there, too, where we may not list
        data, size = b"", 0
    return data, f"{size:,} bytes" if size > limit else exports.describe_index_difference(form, data, shard)


def read_sample_counts(once: FolderIndex, target: OutputFolder) -> dict[str, int]:
    """Return how many samples the files which are there give for each shard; none where there are no such files."""
    below = os.path.dirname(once.info)  # not through a link to a folder
    apart = below and not all(fact.is_folder for fact in target.facts([below]).values())
    return {} if apart else once.counts(read_or_empty(target, once.info))


def has_own_readme(folder: OutputFolder) -> bool:
    """Tell whether there is a `README.md` of ours, which names the shards."""
    return huggingface.is_own_readme(read_or_empty(folder, huggingface.README_FILE))


def read_or_empty(folder: OutputFolder, path: str) -> bytes:
    """Return a file of an output; nothing where there is none, or it cannot be read."""
    with suppress(OSError):
        return folder.read(path)
    return b""

"""Read and check the files that a dataset file lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, parse_dataset
from shardtool.errors import CorruptShard, os_error_text
from shardtool.names import to_local_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.storage.file_system import EntryInfo
    from shardtool.storage.folders import OutputFolder


RUN_VERIFY = "`shardtool verify` shows what is damaged."  # a remedy


def wrong_size_error(where: str, found: int | None, wanted: int) -> CorruptShard:
    """Return what is wrong with a file of other bytes than the dataset file says; None: it is not there."""
    shown, expected = "no such file" if found is None else f"{found:,} bytes", f"{wanted:,} bytes"
    return CorruptShard(where, shown, expected=f"{expected}, as the dataset file says", remedy=RUN_VERIFY)


def check_file_size(folder: OutputFolder, name: str, size: int, known: Mapping[str, EntryInfo] | None = None) -> None:
    """Check that a file is there, and as large as the dataset file says.

    Args:
        folder: Where it lies.
        name: Its name.
        size: Its bytes.
        known: What is known of the folder's files; None: it is asked for.

    Raises:
        CorruptShard: It is not.
    """
    fact = (folder.facts([name]) if known is None else known).get(name)
    if fact is None or fact.size != size:
        raise wrong_size_error(folder.full_path(name), None if fact is None else fact.size, size)


def read_output_file(folder: OutputFolder, name: str) -> bytes:
    """Return a small file of an output, which should be there.

    Raises:
        CorruptShard: It cannot be read: it may be a folder, or a link.
    """
    try:
        return folder.read(name)
    except OSError as error:
        raise CorruptShard(folder.full_path(name), f"cannot be read: {os_error_text(error)}") from None


def read_existing_dataset(folder: OutputFolder, name: str) -> DatasetFile | None:
    """Return what a dataset file says; None: there is none.

    Raises:
        CorruptShard: It is damaged, or cannot be read.
    """
    there = folder.facts([name])
    return parse_dataset(read_output_file(folder, name), folder.full_path(name)) if there else None


def read_listed_sidecar(
    folder: OutputFolder, shard: ShardEntry, known: Mapping[str, EntryInfo] | None = None
) -> ShardIndex:
    """Return what a sidecar beside records says, if it is the one that the dataset file lists.

    Args:
        folder: Where it lies.
        shard: Its shard.
        known: What is known of the folder's files; None: it is asked for.

    Raises:
        CorruptShard: It is another, or cannot be read.
    """
    from shardtool.dataset.sidecar_read import parse_shard_sidecar

    where, name = folder.full_path(shard.sidecar), to_local_name(shard.sidecar)
    check_file_size(folder, name, shard.sidecar_size, known)  # one that is right may be held in memory
    try:
        data = folder.read(name)
    except OSError as error:
        raise CorruptShard(where, os_error_text(error), remedy=RUN_VERIFY) from None
    index = parse_shard_sidecar(data, where, shard.name, shard.size, shard, metadata=False)
    if index.fact.crc not in (None, shard.crc):
        found, expected = f"the checksum {index.fact.crc:08x} of its shard", "that in the dataset file"
        raise CorruptShard(where, found, expected=expected, remedy=RUN_VERIFY)
    return index

"""Read and check the files that a dataset file lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import RUN_VERIFY, DatasetFile, ShardEntry, parse_dataset
from shardtool.errors import CorruptShard, os_error_text
from shardtool.names import to_local_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.storage.file_system import EntryInfo
    from shardtool.storage.folders import OutputFolder


def wrong_size_error(where: str, found: int | None, expected_size: int) -> CorruptShard:
    """Return the error for a listed file that is missing (`found` is None) or has a wrong size."""
    actual = "no such file" if found is None else f"{found:,} bytes"
    expected = f"{expected_size:,} bytes"
    return CorruptShard(where, actual, expected=f"{expected}, as in the dataset file", remedy=RUN_VERIFY)


def check_file_size(folder: OutputFolder, name: str, size: int, existing: Mapping[str, EntryInfo] | None) -> None:
    """Raise an error unless a file exists with the listed size."""
    file_info = (folder.find_entries([name]) if existing is None else existing).get(name)
    if file_info is None or file_info.size != size:
        raise wrong_size_error(folder.full_path(name), None if file_info is None else file_info.size, size)


def read_output_file(folder: OutputFolder, name: str) -> bytes:
    """Return the content of a small output file."""
    try:
        return folder.read(name)
    except OSError as error:
        raise CorruptShard(folder.full_path(name), f"cannot be read: {os_error_text(error)}") from None


def read_existing_dataset(folder: OutputFolder, name: str) -> DatasetFile | None:
    """Return the dataset file with this name, or None if it does not exist."""
    exists = folder.find_entries([name])
    return parse_dataset(read_output_file(folder, name), folder.full_path(name)) if exists else None


def read_listed_sidecar(
    folder: OutputFolder, shard: ShardEntry, existing: Mapping[str, EntryInfo] | None = None
) -> ShardIndex:
    """Read a sidecar that the dataset file lists. Raise an error if the sidecar does not match `shard`."""
    from shardtool.dataset.sidecar_read import parse_shard_sidecar

    where, name = folder.full_path(shard.sidecar), to_local_name(shard.sidecar)
    # check the size before reading, to limit the memory
    check_file_size(folder, name, shard.sidecar_size, existing)
    try:
        data = folder.read(name)
    except OSError as error:
        raise CorruptShard(where, os_error_text(error), remedy=RUN_VERIFY) from None
    index = parse_shard_sidecar(data, where, shard.name, shard.size, shard, metadata=False)
    if index.facts.crc not in (None, shard.crc):
        found, expected = f"shard checksum {index.facts.crc:08x}", "the checksum in the dataset file"
        raise CorruptShard(where, found, expected=expected, remedy=RUN_VERIFY)
    return index

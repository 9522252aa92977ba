"""The dataset to copy: its files, with the sizes and checksums in its dataset file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardtool import errors
from shardtool.dataset.dataset_file import RUN_VERIFY, DatasetFile, parse_dataset
from shardtool.dataset.find import check_not_damaged, find_dataset
from shardtool.dataset.skipped_list import read_skipped_bytes
from shardtool.names import to_local_name
from shardtool.pattern import DATASET_SUFFIX, old_list_name
from shardtool.publish.listed_files import wrong_size_error
from shardtool.storage import files, lookup, paths
from shardtool.storage.copying import OriginalFile
from shardtool.storage.remote import address
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.values import DatasetLike


class ShardCopy(NamedTuple):
    """A shard and its sidecar, and whether the destination already has them.

    Attributes:
        shard_right: Whether the existing shard at the destination is right; None: it does not exist.
        sidecar_right: The same for the sidecar.
    """

    shard: OriginalFile
    sidecar: OriginalFile
    samples: int
    shard_right: bool | None = None
    sidecar_right: bool | None = None

    @property
    def wrong(self) -> list[str]:
        """The names of existing files that are not right."""
        return [original.name for original, right in self.parts if right is False]

    @property
    def size(self) -> int:
        """The number of bytes to copy."""
        return sum(original.size for original, right in self.parts if not right)

    @property
    def parts(self) -> tuple[tuple[OriginalFile, bool | None], tuple[OriginalFile, bool | None]]:
        """The shard and the sidecar, each with whether it is right."""
        return (self.shard, self.shard_right), (self.sidecar, self.sidecar_right)


class CopySource(NamedTuple):
    """A dataset to copy.

    Attributes:
        data: The bytes of the dataset file. They are what is copied, even if the file changes meanwhile.
        pairs: The shards and sidecars, in order, not yet compared with the destination.
        skipped: The list of skipped samples; empty: none.
    """

    path: str
    data: bytes
    file: DatasetFile
    pairs: tuple[ShardCopy, ...]
    skipped: bytes

    @property
    def name(self) -> str:
        """The name of the dataset file."""
        return paths.base_name(self.path)

    @property
    def old_list(self) -> str:
        """The name under which a copy keeps a dataset file that it replaces, until the end."""
        return old_list_name(self.name.removesuffix(DATASET_SUFFIX))

    @property
    def folder(self) -> str:
        """The folder of the dataset file and the sidecars."""
        return paths.folder_of(self.path)

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The names of the files in `folder`, with those of new and old dataset files, and of the shards."""
        names = [self.name, self.old_list, self.file.skipped_file, *(pair.sidecar.name for pair in self.pairs)]
        return names, [pair.shard.name for pair in self.pairs]

    def has_changed(self) -> bool:
        """Return whether the dataset file was changed or deleted since it was read."""
        try:
            return files.read_small(self.path) != self.data
        except OSError:
            return True


def open_source(given: DatasetLike) -> CopySource:
    """Return a dataset after checking that all of its files exist with the right sizes.

    Raises:
        InvalidRequest: The dataset or its dataset file does not exist, or only some of its shards are given.
        CorruptShard: The dataset file is damaged, or a listed file is missing or has another size.
    """
    dataset = find_dataset(given)
    if dataset.dataset_file is None or not dataset.own:
        check_not_damaged(dataset)
        expected, remedy = "a dataset with a dataset file", "`index` creates one."
        raise errors.InvalidRequest(dataset.where, "no dataset file of shardtool", expected=expected, remedy=remedy)
    path, data = dataset.dataset_file, read_dataset_bytes(dataset.dataset_file)
    file = parse_dataset(data, path)
    names = {shard.name for shard in dataset.shards}
    if missing := [shard.name for shard in file.shards if shard.name not in names]:
        problem = f"{pluralize(len(names), 'shard')}, without {errors.format_list(missing, 3)}"
        remedy = "Give the dataset file to copy all shards, or use `reshard` to create a dataset from some."
        raise errors.InvalidRequest(path, problem, expected=f"all {len(file.shards):,} that it lists", remedy=remedy)
    folder = paths.folder_of(path)
    shards_folder = paths.join(folder, to_local_name(file.shards_folder)) if file.shards_folder else folder
    shards = [_original_file(shards_folder, entry.name, entry.size, entry.crc) for entry in file.shards]
    sidecars = [_original_file(folder, entry.sidecar, entry.sidecar_size, entry.sidecar_crc) for entry in file.shards]
    if not address.is_web(folder):  # on the web, the size is checked when the file is copied
        _check_sizes([*shards, *sidecars])
    pairs = tuple(map(ShardCopy, shards, sidecars, (entry.samples for entry in file.shards)))
    return CopySource(path, data, file, pairs, read_skipped_bytes(file, folder))


def _original_file(folder: str, name: str, size: int, crc: int | None) -> OriginalFile:
    return OriginalFile(paths.join(folder, to_local_name(name)), size, crc, to_local_name(name))


def read_dataset_bytes(path: str) -> bytes:
    """Return the bytes of a dataset file.

    Raises:
        CorruptShard: The file cannot be read.
    """
    try:
        return files.read_small(path)
    except OSError as error:
        raise errors.CorruptShard(path, f"cannot be read: {errors.os_error_text(error)}", remedy=RUN_VERIFY) from None


def _check_sizes(originals: Sequence[OriginalFile]) -> None:
    """Check that all files exist with the recorded sizes, before the first is copied."""
    for original, size in zip(originals, lookup.plain_sizes([original.path for original in originals]), strict=True):
        if size != original.size:
            raise wrong_size_error(errors.printable(original.path), size, original.size)

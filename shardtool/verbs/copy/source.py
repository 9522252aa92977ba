"""The dataset that is copied: its files, with the sizes and checksums that its dataset file lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardtool import errors
from shardtool.dataset.dataset_file import DatasetFile, parse_dataset
from shardtool.dataset.find import check_not_damaged, find_dataset
from shardtool.names import to_local_name
from shardtool.publish.listed_files import RUN_VERIFY, wrong_size_error
from shardtool.publish.skipped_list import read_skipped_bytes
from shardtool.storage import files, lookup, paths
from shardtool.storage.copying import OriginalFile
from shardtool.storage.remote import address
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.values import DatasetLike


class ShardCopy(NamedTuple):
    """A shard and its sidecar, as they are to be copied, and what is there of each.

    Attributes:
        shard: The shard.
        sidecar: Its sidecar.
        samples: How many samples it has.
        shard_right: True if what is there of it is right, False if it is not, None if nothing is.
        sidecar_right: The same of its sidecar.
    """

    shard: OriginalFile
    sidecar: OriginalFile
    samples: int
    shard_right: bool | None = None
    sidecar_right: bool | None = None

    @property
    def wrong(self) -> list[str]:
        """The names of what is there and is not right."""
        return [one.name for one, right in self.parts if right is False]

    @property
    def size(self) -> int:
        """The bytes that are copied."""
        return sum(one.size for one, right in self.parts if not right)

    @property
    def parts(self) -> tuple[tuple[OriginalFile, bool | None], tuple[OriginalFile, bool | None]]:
        """The shard and the sidecar, each with whether it is right."""
        return (self.shard, self.shard_right), (self.sidecar, self.sidecar_right)


class CopySource(NamedTuple):
    """A dataset that is copied.

    Attributes:
        path: Where its dataset file is.
        data: The bytes of that file, which are what is copied, whatever becomes of the file meanwhile.
        file: What it says.
        pairs: Its shards and their sidecars, in order, of which nothing is known elsewhere.
        skipped: The list of what was left out; empty: there is none.
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
    def folder(self) -> str:
        """Where the dataset file and the sidecars are."""
        return paths.folder_of(self.path)

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The names of all that lies beside the dataset file, itself too, and those of the shards."""
        beside = [self.name, self.file.skipped_file, *(one.sidecar.name for one in self.pairs)]
        return beside, [one.shard.name for one in self.pairs]

    def has_changed(self) -> bool:
        """Tell whether the dataset file is another one by now, or gone."""
        try:
            return files.read_small(self.path) != self.data
        except OSError:
            return True


def open_source(given: DatasetLike) -> CopySource:
    """Return a dataset that can be copied: all of its files are there, as far as their sizes show.

    Raises:
        InvalidRequest: There is no such dataset, it has no dataset file, or only some of its shards are given.
        CorruptShard: Its dataset file is damaged, or a file that it lists is not there, or has another size.
    """
    found = find_dataset(given)
    if found.dataset_file is None or not found.own:
        check_not_damaged(found)
        expected, remedy = "a dataset with a dataset file, which says what its shards must be", "`index` makes one."
        raise errors.InvalidRequest(found.where, "no dataset file of shardtool", expected=expected, remedy=remedy)
    path, data = found.dataset_file, read_dataset_bytes(found.dataset_file)
    file = parse_dataset(data, path)
    names = {shard.name for shard in found.shards}
    if lacking := [shard.name for shard in file.shards if shard.name not in names]:
        what = f"{pluralize(len(names), 'shard')}, without {errors.format_list(lacking, 3)}"
        remedy = "Give that file to copy them all; `reshard` makes a dataset of some shards."
        raise errors.InvalidRequest(path, what, expected=f"all {len(file.shards):,} that it lists", remedy=remedy)
    folder = paths.folder_of(path)
    below = paths.join(folder, to_local_name(file.shards_folder)) if file.shards_folder else folder
    shards = [_original_file(below, one.name, one.size, one.crc) for one in file.shards]
    sidecars = [_original_file(folder, one.sidecar, one.sidecar_size, one.sidecar_crc) for one in file.shards]
    if not address.is_web(folder):  # there, each is asked for when it is copied
        _check_sizes([*shards, *sidecars])
    pairs = tuple(map(ShardCopy, shards, sidecars, (one.samples for one in file.shards)))
    return CopySource(path, data, file, pairs, read_skipped_bytes(file, folder))


def _original_file(folder: str, name: str, size: int, crc: int | None) -> OriginalFile:
    return OriginalFile(paths.join(folder, to_local_name(name)), size, crc, to_local_name(name))


def read_dataset_bytes(path: str) -> bytes:
    try:
        return files.read_small(path)
    except OSError as error:
        raise errors.CorruptShard(path, f"cannot be read: {errors.os_error_text(error)}", remedy=RUN_VERIFY) from None


def _check_sizes(originals: Sequence[OriginalFile]) -> None:
    """Check that files are there with the sizes that the dataset file says, before the first of them is copied."""
    for one, size in zip(originals, lookup.plain_sizes([one.path for one in originals]), strict=True):
        if size != one.size:
            raise wrong_size_error(errors.printable(one.path), size, one.size)

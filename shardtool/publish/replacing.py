"""Some shards of a finished dataset are replaced by others of the same names: all of them, or none.

All that is new is staged beside what is there. Then a plan appears, `.out.replacing`, which is the new dataset file
under another name: from here on the new dataset counts. The old dataset file goes, staged files get their names, the
new dataset file comes last, and the plan goes. A run that is killed before the plan is there has changed nothing; after
it, `finish` ends the work with what the plan says and what is staged. Until then nobody else gets the dataset's lock
(docs/decisions/024-removing-and-extracting.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import read_dataset
from shardtool.pattern import DATASET_SUFFIX, replacing_name
from shardtool.publish.records import wrong_size
from shardtool.values import local_name

if TYPE_CHECKING:
    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.storage.staging import Folder


def replace_staged(folder: Folder, base: str, file: DatasetFile) -> None:
    """Give staged shards, sidecars and the list of what was left out their names, under the lock.

    Args:
        folder: Where the dataset lies.
        base: The name of its dataset file, without the ending.
        file: What the dataset file will say; each file that it lists is staged, or stays as it is.

    Raises:
        OutputFailed: The file system refuses.
    """
    folder.publish(folder.stage_whole(replacing_name(base), file.encode()))
    finish(folder, base)


def begun_in(folder: Folder) -> list[str]:
    """Return the datasets in a folder of which a run has begun to replace shards, by the names of dataset files."""
    begun, end = replacing_name("\0").split("\0")
    return [name[len(begun) : -len(end)] for name in folder.names() if name.startswith(begun) and name.endswith(end)]


def finish(folder: Folder, base: str) -> None:
    """End what a run has begun, under the lock.

    Raises:
        CorruptShard: The plan, or a file that it lists, is not what it was.
        OutputFailed: The file system refuses.
    """
    plan = replacing_name(base)
    if not folder.facts([plan]):
        return  # another run has, meanwhile
    data, where = folder.read(plan), folder.full_path(plan)
    file = read_dataset(data, where)
    sizes = {local_name(one.name): one.size for one in file.shards}
    sizes |= {local_name(one.sidecar): one.sidecar_size for one in file.shards}
    staged = [one for one in folder.staged() if one.name in sizes or one.name == file.skipped_file]
    waiting = {one.name for one in staged}
    there = folder.facts(name for name in sizes if name not in waiting)
    for name, size in sizes.items():
        if name not in waiting and (name not in there or there[name].size != size):
            raise wrong_size(folder.full_path(name), there[name].size if name in there else None, size)
    folder.remove([base + DATASET_SUFFIX])
    if staged:
        folder.publish(*staged)
    if not file.skipped:
        folder.remove([file.skipped_file])
    folder.publish(folder.stage_whole(base + DATASET_SUFFIX, data))
    folder.remove([plan])

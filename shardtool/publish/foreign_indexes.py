"""The index files of other tools beside a dataset that is written: none of them outlives the bytes that it leads into.

A reader that is given the index of a shard as it was before returns other bytes, most without an error. So what no
longer fits its shard is removed before the shard changes: a crash in between leaves a missing index, never a wrong one.
Removed is only what has the name of an index of a shard of this dataset, and the form of one (`interop.index_forms`).
Any other file stays.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import read_dataset
from shardtool.errors import CorruptShard, OutputExists, listing
from shardtool.interop import huggingface
from shardtool.interop.export_formats import EXPORTS, HEAD_SIZE, ONCE, difference, form_of, index_limit, stems_of
from shardtool.interop.export_types import IndexedShard
from shardtool.interop.huggingface import README, is_ours
from shardtool.pattern import DATASET_SUFFIX
from shardtool.storage.folders import open_folder
from shardtool.values import counted, output_text, to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.interop.export_types import FolderIndex
    from shardtool.pattern import ShardPattern
    from shardtool.storage.folders import OutputFolder


# Index files of which a folder has one set, such as energon's .nv-meta, shared by all splits of a dataset.


@dataclass(frozen=True, slots=True)
class OnceFiles:
    """The index files that are to be in a folder.

    Attributes:
        files: Bytes by path, in the order in which they should appear.
        lasting: The one that stays where it is there.
        renewed: Whether what is there now is our own, of fewer splits, or of fewer shards since samples were appended:
            it may be replaced without a word.
    """

    files: dict[str, bytes]
    lasting: str
    renewed: bool


def once_files(once: FolderIndex, datasets: Sequence[DatasetFile], target: OutputFolder) -> OnceFiles:
    """Return the files that cover these datasets.

    Raises:
        InvalidRequest: A name cannot stand in them.
        OutputExists: The ones that are there cover other shards that are there.
    """
    files = once.encode([one.split_shards() for one in datasets])
    ours = {shard.name for dataset in datasets for shard in dataset.shards}
    listed = listed_shards(once, target)
    if listed is None:
        return OnceFiles(files, once.lasting, renewed=False)
    refuse_others(once, target, listed - ours)
    earlier = [found for one in datasets if (found := _as_listed(one, listed)) is not None]
    was = once.encode([one.split_shards() for one in earlier])
    return OnceFiles(files, once.lasting, all(_read(target, one) == was[one] for one in was if one != once.lasting))


def _as_listed(dataset: DatasetFile, listed: set[str]) -> DatasetFile | None:
    """Return a dataset as it was when all of its shards were listed: now, or before samples were appended."""
    for shards in (len(dataset.shards), *reversed(dataset.appends)):
        if listed.issuperset(shard.name for shard in dataset.shards[:shards] if shard.samples):
            return replace(dataset, shards=dataset.shards[:shards])
    return None


def listed_shards(once: FolderIndex, target: OutputFolder) -> set[str] | None:
    """Return the shards that the files which are there cover; None: there are no such files."""
    counts = sample_counts(once, target)
    return None if counts is None else set(counts)


def sample_counts(once: FolderIndex, target: OutputFolder) -> dict[str, int] | None:
    """Return how many samples the files which are there give for each shard; None: there are no such files."""
    below = os.path.dirname(once.info)  # not through a link to a folder
    apart = below and not all(fact.is_folder for fact in target.facts([below]).values())
    info = None if apart else _read(target, once.info)
    return None if info is None else once.counts(info)


def refuse_others(once: FolderIndex, target: OutputFolder, others: Iterable[str]) -> None:
    """Refuse files that cover shards of another dataset.

    Raises:
        OutputExists: Some of these other shards are there.
    """
    there = {output_text(name) for name in target.names()}
    if others := sorted(name for name in others if "/" in name or name in there):
        found = f"that of other shards: {listing(others, 3)}"
        expected = "one dataset in a folder, or the splits of one"
        remedy = f"Put the datasets into folders of their own, or remove {os.path.dirname(once.info) or once.info}."
        raise OutputExists(target.full_path(once.info), found, expected=expected, remedy=remedy)


def other_splits(dataset: DatasetFile, name: str, folder: OutputFolder) -> list[DatasetFile]:
    """Return the datasets in a folder that the same run made as `dataset`, called `name`, for other splits."""
    if not dataset.made.split:
        return []
    found = []
    for other in sorted(folder.names()):
        if other.endswith(DATASET_SUFFIX) and other != name:
            with suppress(OSError, CorruptShard):
                read = read_dataset(folder.read(other), other)
                if dataset.made.is_split_with(read.made):
                    found.append(read)
    return found


def has_own_readme(folder: OutputFolder) -> bool:
    """Tell whether there is a `README.md` of ours, which names the shards."""
    with suppress(OSError):
        return is_ours(folder.read(README))
    return False


def _read(folder: OutputFolder, path: str) -> bytes | None:
    try:
        return folder.read(path)
    except OSError:
        return None


class StaleIndexes:
    """The index files of other tools that lie in an output folder.

    Args:
        folder: The folder.
        pattern: The names of the dataset's shards.
        appends: Whether the shards that are there stay: then what the folder's indexes list is not wrong, only old.

    Attributes:
        removed: The names of those that were removed, and what each was, as `--export` calls it.
    """

    def __init__(self, folder: OutputFolder, pattern: ShardPattern, *, appends: bool) -> None:
        self.folder, self.pattern, self._appends = folder, pattern, appends
        self.removed: dict[str, str] = {}
        self._forms: dict[str, str] = {}  # by file
        self._files: dict[str, list[str]] = {}  # by shard
        self._stale: list[str] = []
        self._counts: dict[str, dict[str, int]] = {}  # for this dataset's shards, by index of the folder

    def look(self, there: Iterable[str]) -> None:
        """Find the index files of shards that the pattern owns.

        Args:
            there: The names of all that lies in the folder.
        """
        self._forms, self._files = {}, {}
        ending = "." + self.pattern.shard(0).rpartition(".")[2]
        for name in there:
            owned = [stem + ending for stem in stems_of(name) if self.pattern.owns(stem + ending)]
            if owned and name != self.pattern.dataset_file and (form := self._form(name)):
                self._forms[name] = form
                self._files.setdefault(owned[0], []).append(name)
        lists = {form: sample_counts(once, self.folder) or {} for form, once in ONCE.items()}
        ours = {form: {name: found[name] for name in found if self.pattern.owns(name)} for form, found in lists.items()}
        self._counts = {form: counts for form, counts in ours.items() if counts}

    def _form(self, name: str) -> str:
        head = memoryview(bytearray(HEAD_SIZE))
        with suppress(OSError):
            for got in self.folder.blocks(name, head):
                size = self.folder.facts([name])[name].size
                return form_of(name, bytes(head[:got]), size) if isinstance(got, int) else ""
        return ""

    def check_none_left(self, there: Collection[str]) -> None:
        """Refuse index files of shards that are not there, where nothing may be replaced.

        Raises:
            OutputExists: There are such.
        """
        left = sorted(name for shard, names in self._files.items() if shard not in there for name in names)
        if left:
            found = f"{counted(len(left), 'file')} that index earlier shards: {listing(left, 3)}"
            expected = "none that would be taken for indexes of the new ones"
            remedy = f"Remove them, choose another name, or {option('if_exists', 'overwrite')}."
            raise OutputExists(self.folder.path or ".", found, expected=expected, remedy=remedy)

    def compare(self, shard: str, sidecar: bytes, *, written: bool) -> None:
        """Find what will no longer fit a shard.

        Args:
            shard: Its name.
            sidecar: The bytes of its sidecar, as it will be.
            written: Whether the shard is written, too; otherwise the one that is there stays.
        """
        files = self._files.pop(shard, [])
        for name in files:
            if self._differs(name, shard, sidecar, written=written):
                self._stale.append(name)
        if self._counts and not self._appends:
            self._compare_count(shard, sidecar)

    def drop(self, shard: str) -> None:
        """Have all index files of a shard removed, and what lists its samples: it will be another one.

        Args:
            shard: Its name.
        """
        self._stale += self._files.pop(shard, [])
        if not self._appends:
            self._drop_infos([form for form, counts in self._counts.items() if shard in counts])

    def _differs(self, name: str, shard: str, sidecar: bytes, *, written: bool) -> bool:
        from shardtool.dataset.sidecar_read import read_sidecar

        form = self._forms[name]
        if written and EXPORTS[form].hashed:
            return True  # hashes that were not taken yet
        try:
            found = read_sidecar(sidecar, shard, None, metadata=False)
            indexed = IndexedShard(output_text(shard), found.fact.size, found.plain_table())
            if self.folder.facts([name])[name].size > index_limit(indexed):
                return True
            return bool(difference(form, self.folder.read(name), indexed))
        except (OSError, KeyError, CorruptShard):
            return True

    def _compare_count(self, shard: str, sidecar: bytes) -> None:
        from shardtool.dataset.sidecar_read import read_sidecar

        samples = len(read_sidecar(sidecar, shard, None, metadata=False).rows.counts)
        self._drop_infos([form for form, counts in self._counts.items() if counts.pop(shard, 0) != samples])

    def _drop_infos(self, forms: Iterable[str]) -> None:
        """Have the files removed that list the folder's shards: without them, the folder is none of their readers'."""
        for form in forms:
            del self._counts[form]
            self._stale.append(ONCE[form].info)
            self._forms[ONCE[form].info] = form

    def keep_only(self, shards: Iterable[str]) -> None:
        """Find the index files of shards that are no longer there.

        Args:
            shards: The names of all shards of the dataset.
        """
        wanted = {os.fsdecode(to_bytes(name)) for name in shards}
        for shard in sorted(set(self._files) - wanted):
            self._stale += self._files.pop(shard)
        self._drop_infos([form for form, counts in self._counts.items() if counts.keys() - wanted])
        self._compare_readme(wanted)

    def _compare_readme(self, shards: set[str]) -> None:
        """Have a `README.md` of ours removed that names other shards of this dataset than there are."""
        there = set(self.folder.names())
        if huggingface.README not in there:
            return
        with suppress(OSError):
            data = self.folder.read(huggingface.README)
            names = {name for name in there if not self.pattern.owns(name)} | shards
            named = {name for name in huggingface.listed(data, names) if self.pattern.owns(name)}
            if huggingface.is_ours(data) and named and named != shards:
                self._stale.append(huggingface.README)
                self._forms[huggingface.README] = "huggingface"

    def remove(self) -> None:
        """Remove what was found to be stale, durably; to be called before any of the shards changes.

        Raises:
            OutputFailed: The file system refuses.
        """
        for name in self._stale:
            below, _, last = name.rpartition("/")
            (open_folder(self.folder.full_path(below)) if below else self.folder).remove([last])
        self.removed |= {name: self._forms[name] for name in self._stale}
        self._stale = []

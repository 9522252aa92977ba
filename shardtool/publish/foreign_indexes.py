"""The index files of other tools: written, renewed, copied, and none outlives the bytes that it leads into.

They are made from a dataset file and its sidecars; only where they hold hashes of payloads, shards are read, by
workers. Nothing is visible before all of it is written.

A reader that is given the index of a shard as it was before returns other bytes, most without an error. So what no
longer fits its shard is removed before the shard changes: a crash in between leaves a missing index, never a wrong one.
Removed is only what has the name of an index of a shard of this dataset, and the form of one (`interop.indexes`).
Any other file stays.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, read_dataset, shard_names
from shardtool.dataset.find import check_below, splits_in
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, OutputExists, listing, reason
from shardtool.interop import indexes
from shardtool.pattern import DATASET_SUFFIX, ShardPattern, is_packed_name
from shardtool.publish.records import LOOK, read_listed
from shardtool.storage import places
from shardtool.storage.folders import OutputFolder, open_folder
from shardtool.storage.staging import DurableFile
from shardtool.values import already_exist, counted, local_name, output_text
from shardtool.wording import export_call, exporting, flag, made_again, option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.execute.pool import Pool
    from shardtool.interop.indexes import Export, FolderIndex
    from shardtool.request.settings import Notes


File = tuple[str, bytes, bool, bool]  # its path in a folder, its bytes, whether it replaces another, whether that stays


def folder_below(folder: OutputFolder, names: str) -> OutputFolder:
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


# An index file beside a shard.


def read_index(path: str, form: str, shard: indexes.IndexedShard) -> tuple[bytes, str]:
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
        data, size = places.read_head(path, limit)
    except (OSError, AccessRefused):  # the latter is said of what is not there, too, where we may not list
        data, size = b"", 0
    return data, f"{size:,} bytes" if size > limit else indexes.difference(form, data, shard)


# Index files of which a folder has one set, such as energon's .nv-meta, shared by all splits of a dataset.


def sample_counts(once: FolderIndex, target: OutputFolder) -> dict[str, int]:
    """Return how many samples the files which are there give for each shard; none where there are no such files."""
    below = os.path.dirname(once.info)  # not through a link to a folder
    apart = below and not all(fact.is_folder for fact in target.facts([below]).values())
    return {} if apart else once.counts(_read(target, once.info))


def _once_files(
    once: FolderIndex, datasets: Sequence[DatasetFile], target: OutputFolder
) -> tuple[dict[str, bytes], bool]:
    """Return the files that cover these datasets, by their paths, in the order in which they should appear.

    And whether what is there now is our own, of fewer splits, or of fewer shards since samples were appended: it may be
    replaced without a word.

    Raises:
        InvalidRequest: A name cannot stand in them.
        OutputExists: The ones that are there cover other shards that are there.
    """
    files, counts = once.encode(datasets), sample_counts(once, target)
    refuse_others(once, target, counts.keys() - {shard.name for dataset in datasets for shard in dataset.shards})
    earlier = [found for one in datasets if (found := _as_listed(one, counts)) is not None]
    was = once.encode(earlier)
    return files, all(_read(target, one) == was[one] for one in was if one != once.lasting)


def _as_listed(dataset: DatasetFile, listed: Collection[str]) -> DatasetFile | None:
    """Return a dataset as it was when all of its shards were listed: now, or before samples were appended."""
    for shards in (len(dataset.shards), *reversed(dataset.appends)):
        if all(shard.name in listed for shard in dataset.shards[:shards] if shard.samples):
            return replace(dataset, shards=dataset.shards[:shards])
    return None


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


def has_own_readme(folder: OutputFolder) -> bool:
    """Tell whether there is a `README.md` of ours, which names the shards."""
    return indexes.is_ours(_read(folder, indexes.README))


def _read(folder: OutputFolder, path: str) -> bytes:
    """Return a file of an output; nothing where there is none, or it cannot be read."""
    with suppress(OSError):
        return folder.read(path)
    return b""


class StaleIndexes:
    """The index files of other tools that lie in an output folder.

    Args:
        folder: The folder.
        pattern: The names of the dataset's shards; None: they are none of a pattern, and no index of theirs is found.
        there: The names of all that lies in the folder.
        appends: Whether the shards that are there stay: then what the folder's indexes list is not wrong, only old.

    Attributes:
        removed: The names of those that were removed, and what each was, as `--export` calls it.
    """

    def __init__(
        self, folder: OutputFolder, pattern: ShardPattern | None, there: Iterable[str], *, appends: bool
    ) -> None:
        self.folder, self._appends = folder, appends
        self.removed: dict[str, str] = {}
        self._files: dict[str, dict[str, str]] = {}  # by shard: its index files, and what each is
        self._stale: dict[str, str] = {}  # the same of those that are to go
        self._counts: dict[str, dict[str, int]] = {}  # for this dataset's shards, by index of the folder
        self._owns = (lambda _: False) if pattern is None else pattern.owns
        if pattern is None:
            return
        ending = "." + pattern.shard(0).rpartition(".")[2]
        for name in there:
            owned = [stem + ending for stem in indexes.stems_of(name) if pattern.owns(stem + ending)]
            if owned and name != pattern.dataset_file and (form := self._form(name)):
                self._files.setdefault(owned[0], {})[name] = form
        for form, once in indexes.ONCE.items():
            counts = sample_counts(once, folder)
            if ours := {name: count for name, count in counts.items() if pattern.owns(name)}:
                self._counts[form] = ours

    def _form(self, name: str) -> str:
        with suppress(OSError):
            path = self.folder.full_path(name)
            return indexes.form_of(name, *places.read_head(path, indexes.HEAD_SIZE, places.READ_PLAIN))
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

    def compare(self, shard: str, sidecar: Callable[[], bytes], *, written: bool) -> None:
        """Find what will no longer fit a shard.

        Args:
            shard: Its name.
            sidecar: Returns the bytes of its sidecar, as it will be; called where they are needed.
            written: Whether the shard is written, too; otherwise the one that is there stays.
        """
        files, counts = self._files.pop(shard, {}), {} if self._appends else self._counts
        for name in [name for name, form in files.items() if written and indexes.EXPORTS[form].hashed]:
            self._stale[name] = files.pop(name)  # hashes that were not taken yet
        if not files and not counts:
            return
        from shardtool.dataset.shard_index import read_sidecar

        try:
            indexed = indexes.IndexedShard(read_sidecar(sidecar(), shard, None, metadata=False))
        except CorruptShard:
            self._stale |= files
            if counts:
                raise
            return
        for name, form in files.items():
            if read_index(self.folder.full_path(name), form, indexed)[1]:
                self._stale[name] = form
        self._drop_infos([form for form, listed in counts.items() if listed.pop(shard, 0) != len(indexed.index)])

    def drop(self, shard: str) -> None:
        """Have all index files of a shard removed, and what lists its samples: it will be another one.

        Args:
            shard: Its name.
        """
        self._stale |= self._files.pop(shard, {})
        if not self._appends:
            self._drop_infos([form for form, counts in self._counts.items() if shard in counts])

    def _drop_infos(self, forms: Iterable[str]) -> None:
        """Have the files removed that list the folder's shards: without them, the folder is none of their readers'."""
        for form in forms:
            del self._counts[form]
            self._stale[indexes.ONCE[form].info] = form

    def keep_only(self, shards: Iterable[str]) -> None:
        """Find the index files of shards that are no longer there.

        Args:
            shards: The names of all shards of the dataset.
        """
        wanted = {*map(local_name, shards)}
        for shard in sorted(set(self._files) - wanted):
            self._stale |= self._files.pop(shard)
        self._drop_infos([form for form, counts in self._counts.items() if counts.keys() - wanted])
        there = set(self.folder.names())
        if indexes.README in there and indexes.is_ours(data := _read(self.folder, indexes.README)):
            names = {name for name in there if not self._owns(name)} | wanted
            named = {name for name in indexes.listed(data, names) if self._owns(name)}
            if named and named != wanted:  # other shards of this dataset than there are
                self._stale[indexes.README] = "huggingface"

    def remove(self) -> None:
        """Remove what was found to be stale, durably; to be called before any of the shards changes.

        Raises:
            OutputFailed: The file system refuses.
        """
        for name in self._stale:
            below, _, last = name.rpartition("/")
            (open_folder(self.folder.full_path(below)) if below else self.folder).remove([last])
        self.removed |= self._stale
        self._stale = {}

    def removal_notes(self, dataset_file: str, renewed: Collection[str] = ()) -> Iterator[str]:
        """Yield which were removed, but for those that the run makes again: `renewed`, as `--export` calls them."""
        if gone := {name: form for name, form in self.removed.items() if form not in renewed}:
            what = f"{counted(len(gone), 'file')} of other tools' indexes removed, since their shards changed"
            again = export_call(dataset_file, sorted({*gone.values()}), overwrite=True)
            yield f"{what} ({listing([*gone], 3)}): {again} makes them again"


# The indexes of other tools that lie beside a dataset: they are copied with it where they are right.
#
# No checksum covers them, so each is held against what the sidecars say of the shards, which were copied and checked.
# What has the name of an index at the destination already stays. On the web nothing is listed, and so none is found.


def copy_indexes(dataset_file: str, dataset: DatasetFile, folder: OutputFolder, notes: Notes) -> int:
    """Copy the index files that lead into a shard, where they are right; return how many were.

    Args:
        dataset_file: Where the dataset file is that the files lie beside.
        dataset: What it says.
        folder: The folder that they are copied to.
        notes: Gets what was not copied.

    Raises:
        OutputFailed: One cannot be written.
    """
    source = places.folder_of(dataset_file)
    if places.is_web(source) or dataset.shards_folder:
        return 0
    try:
        names = {*places.names_in(source, needed=True)} - {places.base_name(dataset_file)}
    except AccessRefused:
        notes.add("indexes of other tools were not looked for: the store does not let us list")
        return 0
    copied, wrong = 0, list[str]()
    for shard in dataset.shards:
        for name in indexes.names_beside(local_name(shard.name), names):
            data = _index_data(places.join(source, name), places.join(source, local_name(shard.sidecar)))
            if data is None:
                wrong.append(output_text(name))
            else:
                copied += _put(folder, name, data)
    if wrong:
        found = f"{counted(len(wrong), 'index file')} of other tools"
        notes.add(f"{found} not copied, for they are not those of their shards: {listing(sorted(wrong), 3)}")
    return copied


def _index_data(path: str, sidecar: str) -> bytes | None:
    """Return the bytes of a shard's index; empty: the file is something else; None: it is not that of this shard."""
    from shardtool.dataset.shard_index import read_sidecar

    try:
        if not (form := indexes.form_of(places.base_name(path), *places.read_head(path, indexes.HEAD_SIZE))):
            return b""
        shard = indexes.IndexedShard(read_sidecar(places.read_small(sidecar), sidecar, None, metadata=False))
        data, wrong = read_index(path, form, shard)
    except (OSError, CorruptShard):
        return None
    return None if wrong else data


def copy_lists(datasets: Sequence[DatasetFile], source: str, folder: OutputFolder) -> None:
    """Copy the files of other tools that list the shards of a folder, where all of those are copied.

    Args:
        datasets: The datasets of one folder that were copied.
        source: That folder.
        folder: The folder that they were copied to.

    Raises:
        OutputFailed: One cannot be written.
    """
    if places.is_web(source) or any(dataset.shards_folder for dataset in datasets):
        return
    shards, paths = {shard.name: shard.samples for dataset in datasets for shard in dataset.shards}, list[str]()
    for once in indexes.ONCE.values():
        counts = once.counts(indexes.read_list(places.join(source, once.info)))
        if counts and counts == {name: shards[name] for name in counts if name in shards}:
            with suppress(InvalidRequest):
                paths += once.encode(datasets)
    data = indexes.read_list(places.join(source, indexes.README))
    if indexes.is_ours(data) and indexes.listed(data, [*map(output_text, places.names_in(source))]) == {*shards}:
        paths.append(indexes.README)
    for path in paths:
        _put(folder, path, indexes.read_list(places.join(source, path)))


def _put(folder: OutputFolder, path: str, data: bytes) -> bool:
    """Write a file where there is none of its name; return whether that was done."""
    below, name = os.path.split(path)
    try:
        folder = folder_below(folder, below)
    except OutputExists:
        return False
    if not data or folder.facts([name]):
        return False
    folder.ready()
    folder.publish(folder.stage_whole(name, data))
    return True


# The indexes are made.


def _discard(folders: Mapping[str, OutputFolder], paths: Sequence[str]) -> None:
    """Remove what is staged of some files, or was left so by a killed run."""
    for folder in folders.values():
        folder.discard_staged(map(os.path.basename, paths))


def _is_there(folder: OutputFolder, name: str, data: bytes, *, overwrite: bool) -> bool:
    """Tell whether a file has these bytes already.

    Raises:
        OutputExists: It lists others, and may not be replaced.
    """
    fact = folder.facts([name]).get(name)
    if fact is None:
        return False
    where, remedy = folder.full_path(name), f"choose another folder with {option('output')}."
    if fact.special:
        raise OutputExists(where, fact.special, remedy=remedy.capitalize())
    if fact.size == len(data) and _read(folder, name) == data:
        return True
    if not overwrite:
        remedy = f"Replace it with {flag('overwrite')}, or {remedy}"
        raise OutputExists(where, "a file there already, with other bytes", remedy=remedy)
    if name.endswith(DATASET_SUFFIX) and shard_names(_read(folder, name)) is not None:
        raise OutputExists(where, "a dataset file", remedy=remedy.capitalize())
    return False


_FOLDER_LOCK = ".exported"  # no dataset is called that: for the files of which a folder has one set


def check_exports(
    outputs: Sequence[tuple[ShardPattern, int]], wanted: Mapping[str, Export], *, overwrite: bool
) -> None:
    """Check, before the shards of a run are written, that their indexes may be written, too.

    Args:
        outputs: The names of the shards of each dataset, and how many there will be.
        wanted: What to make of them.
        overwrite: Whether other files may be replaced.

    Raises:
        InvalidRequest: Two files would have the same name.
        OutputExists: There are files of these names that may not be replaced.
    """
    for pattern, shards in outputs:
        folder = open_folder(pattern.folder)
        names = index_names(map(pattern.shard, range(shards)), wanted, pattern.dataset_file)
        for once in filter(None, (export.once for export in wanted.values())):
            listed = sample_counts(once, folder)
            refuse_others(once, folder, [name for name in listed if not any(one.owns(name) for one, _ in outputs)])
            names.append(once.info)
        if not overwrite and (found := [*folder.facts(names)]):
            what = f"{already_exist(len(found), 'file')}: {listing(found, 3)}"
            remedy = f"Remove them, choose another folder, or {option('if_exists', 'overwrite')}."
            raise OutputExists(folder.path or ".", what, remedy=remedy)


class Exporter:
    """Makes the indexes of one dataset. The caller of `write` holds the dataset's lock.

    Args:
        folder: The folder of the dataset.
        name: The name of its dataset file.
        wanted: What to make.
        notes: Gets notes that it does not have yet, and its observer the progress.
    """

    def __init__(self, folder: OutputFolder, name: str, wanted: Mapping[str, Export], notes: Notes) -> None:
        self.folder, self.name, self.wanted, self.observer = folder, name, wanted, notes.observer
        self._note = notes.add_new

    def check(self) -> DatasetFile:
        """Return what the dataset file says, if these indexes can be made of it.

        Raises:
            InvalidRequest: They cannot.
            CorruptShard: It is damaged.
        """
        where = self.folder.full_path(self.name)
        if not self.name.endswith(DATASET_SUFFIX):
            raise InvalidRequest(where or "the dataset", "no dataset file", expected="its name, such as out.json")
        try:
            data = self.folder.read(self.name)
        except OSError as error:
            raise InvalidRequest(where, reason(error), expected="a dataset file") from None
        dataset = read_dataset(data, where)
        check_below(where, {dataset.shards_folder})
        indexes.wanted_exports([*self.wanted], dataset.format)
        if packed := [shard.name for shard in dataset.shards if is_packed_name(shard.name)]:
            raise InvalidRequest(packed[0], "a compressed shard", expected="plain ones: offsets lead nowhere else")
        return dataset

    def write(self, target: OutputFolder, pool: Pool | None = None, *, overwrite: bool) -> tuple[tuple[str, ...], int]:
        """Write all index files, then let them appear.

        Args:
            target: The folder that they go into.
            pool: The workers; None: no export that is wanted needs them.
            overwrite: Replace other files of their names.

        Returns:
            Their names, and how many were there already.
        """
        dataset, wanted = self.check(), self.wanted.values()  # again: only under the lock does no other run replace it
        self._note_limits(dataset, target)
        own = self.name if target == self.folder else ""
        names = index_names([shard.name for shard in dataset.shards], self.wanted, own)
        readmes = any(export.readme for export in wanted)
        with ExitStack() as stack:
            if readmes or any(export.once for export in wanted):
                stack.enter_context(target.lock(_FOLDER_LOCK))
            shared = self._of_folder(dataset, target)
            names += [path for path, *_ in shared]
            folders = {below: folder_below(target, below) for below in ("", *map(os.path.dirname, names))}
            stack.callback(_discard, folders, names)
            _discard(folders, names)
            kept, staged = 0, dict[str, list[DurableFile]]()
            for path, data, replaces, lasting in chain(self._of_shards(dataset, pool), shared):
                below, name = os.path.split(path)
                folder = folders[below]
                if (lasting and folder.facts([name])) or _is_there(folder, name, data, overwrite=overwrite or replaces):
                    kept += 1
                    continue
                if below:
                    folder.ready()
                staged.setdefault(below, []).append(folder.stage_whole(name, data))
            for below, files in staged.items():
                folders[below].publish(*files)
        return tuple(names), kept

    def _of_shards(self, dataset: DatasetFile, pool: Pool | None) -> Iterator[File]:
        """Yield the index of each shard."""
        for shard in self._indexed(dataset, pool):
            for export in self.wanted.values():
                if export.encode is not None:
                    yield indexes.index_name(shard.name, export), export.encode(shard), False, False

    def _of_folder(self, dataset: DatasetFile, target: OutputFolder) -> list[File]:
        """Return the files of which a folder has one set."""
        found, wanted = list[File](), self.wanted.values()
        for export in wanted:
            if (once := export.once) is not None:
                files, renewed = _once_files(once, self._covered(export, dataset, target), target)
                found += [(path, data, renewed, path == once.lasting) for path, data in files.items()]
        for export in wanted if target == self.folder else ():
            if export.readme and (data := self._readme(export, dataset)) is not None:
                found.append((indexes.README, data, True, False))
        return found

    def _note_limits(self, dataset: DatasetFile, target: OutputFolder) -> None:
        """Say what the tools will not like."""
        for name, export in self.wanted.items():
            few = [shard.name for shard in dataset.shards if shard.samples < export.least]
            if few:
                what = counted(len(few), f"shard with fewer than {counted(export.least, 'sample')}")
                self._note(f"{export.reader} cannot read the index ({name}) of {what}: {listing(few, 3)}")
            if export.note:
                self._note(f"{name}: {export.note}")
            if export.once and (target != self.folder or dataset.shards_folder):
                self._note(f"{name}: {export.reader} looks for the shards beside these files")

    def _indexed(self, dataset: DatasetFile, pool: Pool | None) -> Iterator[indexes.IndexedShard]:
        """Yield each shard with its index; where hashes are wanted, with these, as they come."""
        shards, wanted = dataset.shards, self.wanted.values()
        if all(export.encode is None for export in wanted):
            return
        hashed = pool is not None and any(export.hashed for export in wanted)
        size = sum(shard.size if hashed else shard.sidecar_size for shard in shards)
        self.observer.start(sum(shard.samples for shard in shards), size, len(shards))
        if pool is None or not hashed:
            for shard in shards:
                yield indexes.IndexedShard(read_listed(self.folder, shard))
                self._done(shard, shard.sidecar_size)
            return
        known: dict[int, ShardIndex] = {}

        def tasks() -> Iterator[indexes.DigestTask]:
            for number, shard in enumerate(shards):
                known[number] = read_listed(self.folder, shard)
                yield self._digest_task(dataset, shard, known[number])

        for number, digests in pool.map(indexes.digest, tasks(), lambda _, __, size: self.observer.advance(0, size, 0)):
            shard = shards[number]
            if shard.crc is not None and shard.crc != digests.crc:
                where = self.folder.full_path(shard.name)
                raise CorruptShard(where, "its checksum is not the one in the dataset file", remedy=LOOK)
            yield indexes.IndexedShard(known.pop(number), digests)
            self._done(shard, 0)

    def _done(self, shard: ShardEntry, size: int) -> None:
        self.observer.advance(shard.samples, size, 1)
        self.observer.shard(shard.name, "indexed", shard.samples, shard.size)

    def _digest_task(self, dataset: DatasetFile, shard: ShardEntry, index: ShardIndex) -> indexes.DigestTask:
        if (index.offsets[1:] < (index.offsets + index.lengths)[:-1]).any():
            raise CorruptShard(self.folder.full_path(shard.sidecar), "fields that overlap", remedy=made_again())
        path = places.join(places.join(self.folder.path, local_name(dataset.shards_folder)), local_name(shard.name))
        return indexes.DigestTask.of(path, shard.size, index)

    def _covered(self, export: Export, dataset: DatasetFile, target: OutputFolder) -> list[DatasetFile]:
        """Return this dataset, and those that the same run made for other splits and that have an index."""
        covered = [dataset]
        for other in splits_in(self.folder.path, dataset.made).values():
            shards = other.shards if export.encode is not None else ()
            names = {indexes.index_name(shard.name, export) for shard in shards}
            if len(target.facts(names)) == len(names):
                covered.append(other)
        return covered

    def _readme(self, export: Export, dataset: DatasetFile) -> bytes | None:
        """Return the `README.md` that names the shards; None where there is one that is not ours to replace."""
        datasets, there = self._covered(export, dataset, self.folder), {*map(output_text, self.folder.names())}
        for one in datasets:
            if (split := one.made.split) and (name := indexes.split_name(split)) != split:
                self._note(f"Hugging Face datasets takes no split called {split!r}: {indexes.README} calls it {name}")
        if indexes.README in there:
            old = _read(self.folder, indexes.README)
            ours = {shard.name for one in datasets for shard in one.shards}
            others = sorted(indexes.listed(old, there) & there - ours)
            if not indexes.is_ours(old) or others:
                whose = f"names other shards ({listing(others, 3)})" if indexes.is_ours(old) else "is not ours"
                self._note(
                    f"{indexes.README} {whose}, and stays: unless it names the shards as data_files, Hugging Face "
                    "load_dataset(folder) takes the JSON files for the data (one that we write has the lines)"
                )
                return None
        return indexes.readme(datasets, there)


def index_names(shards: Iterable[str], wanted: Mapping[str, Export], dataset_file: str) -> list[str]:
    """Return the names of all indexes of shards, by shard.

    Raises:
        InvalidRequest: Two files would have the same name.
    """
    exports = {name: export for name, export in wanted.items() if export.encode is not None}
    for name, export in wanted.items():
        if export.once is not None and export.once.info == dataset_file:
            found, expected = f"{dataset_file}, which is the dataset file", "shards with other names"
            raise InvalidRequest(exporting(name), found, expected=expected)
    owners: dict[str, str] = {}
    for shard in shards:
        for name, export in exports.items():
            index = indexes.index_name(shard, export)
            if index == dataset_file or index in owners:
                other = "the dataset file" if index == dataset_file else f"an index of {owners[index]}"
                found = f"the index of {shard} and {other} would both be {index}"
                expected = "shards with a number in their names, such as out-{000..}.tar"
                raise InvalidRequest(exporting(name), found, expected=expected)
            owners[index] = shard
    return [*owners]


# The indexes of other tools beside a dataset that is appended to: they are renewed with it.


def exports_beside(folder: OutputFolder, old: DatasetFile | None) -> list[str]:
    """Return which indexes of other tools, as `--export` calls them, lie beside the dataset that is appended to."""
    if old is None or not old.shards:
        return []
    ours, found = {shard.name for shard in old.shards}, []
    for name, export in indexes.EXPORTS.items():
        if export.once is not None:  # a list of the folder's shards: it may be of others
            is_there = not ours.isdisjoint(sample_counts(export.once, folder))
        else:
            name_of_first = indexes.index_name(old.shards[0].name, export)
            is_there = export.encode is not None and bool(folder.facts([name_of_first]))
        if is_there and export.shard_format == old.format:
            found.append(name)
    return found


def export_notes(folder: OutputFolder, old: DatasetFile | None, renewed: Collection[str]) -> Iterable[str]:
    """Return what the user should know of other tools' indexes beside the dataset that is appended to.

    Args:
        folder: Its folder.
        old: What its dataset file says; None: there is none.
        renewed: The exports that this run makes itself.
    """
    hashed = {name for name in exports_beside(folder, old) if indexes.EXPORTS[name].hashed}
    if stale := sorted(hashed.difference(renewed)):
        again = f"{export_call('', stale, overwrite=False)} renews them, and reads all shards"
        yield f"indexes of other tools ({listing(stale)}) cover the old shards only: {again}"


def renew_exports(
    folder: OutputFolder, dataset_file: str, old: DatasetFile | None, made: Collection[str], notes: Notes
) -> None:
    """Renew the indexes of other tools beside a dataset that was appended to, where no shard must be read for them.

    Args:
        folder: Its folder.
        dataset_file: The name of its dataset file.
        old: What that said before; None: there was none.
        made: The exports that the run has made itself.
        notes: Gets which could not be renewed: the dataset is complete without them.
    """
    for name in exports_beside(folder, old):
        export = indexes.EXPORTS[name]
        if name not in made and not export.hashed:
            try:
                Exporter(folder, dataset_file, {name: export}, notes).write(folder, overwrite=True)
            except (InvalidRequest, OutputExists) as error:
                notes.add(f"the index for {export.reader} could not be renewed: {error}")

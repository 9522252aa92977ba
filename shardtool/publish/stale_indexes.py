"""Remove index files of other tools that no longer fit their shard.

A reader with an outdated index returns wrong bytes, mostly without an error. So a stale index is removed before its
shard changes: a crash in between leaves a missing index, never a wrong one. Only a file with both the name and the
format of an index of this dataset's shards is removed (`interop.indexes`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, OutputExists, format_list
from shardtool.interop import exports, huggingface, indexed_shard
from shardtool.messages import export_call_text, option_text
from shardtool.names import to_local_name
from shardtool.publish.foreign_index_files import read_foreign_index, read_or_empty, read_sample_counts
from shardtool.storage import files
from shardtool.storage.folders import OutputFolder, open_folder
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from shardtool.pattern import ShardPattern


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
            owned = [stem + ending for stem in exports.shard_stems(name) if pattern.owns(stem + ending)]
            if owned and name != pattern.dataset_file and (form := self._form(name)):
                self._files.setdefault(owned[0], {})[name] = form
        for form, once in exports.FOLDER_INDEXES.items():
            counts = read_sample_counts(once, folder)
            if ours := {name: count for name, count in counts.items() if pattern.owns(name)}:
                self._counts[form] = ours

    def _form(self, name: str) -> str:
        with suppress(OSError):
            path = self.folder.full_path(name)
            return exports.detect_export(name, *files.read_head(path, exports.PROBE_BYTES, files.READ_PLAIN))
        return ""

    def check_no_leftovers(self, there: Collection[str]) -> None:
        """Refuse index files of shards that are not there, where nothing may be replaced.

        Raises:
            OutputExists: There are such.
        """
        left = sorted(name for shard, names in self._files.items() if shard not in there for name in names)
        if left:
            found = f"{pluralize(len(left), 'file')} that index earlier shards: {format_list(left, 3)}"
            expected = "none that would be taken for indexes of the new ones"
            remedy = f"Remove them, choose another name, or {option_text('if_exists', 'overwrite')}."
            raise OutputExists(self.folder.path or ".", found, expected=expected, remedy=remedy)

    def compare(self, shard: str, sidecar: Callable[[], bytes], *, written: bool) -> None:
        """Find what will no longer fit a shard.

        Args:
            shard: Its name.
            sidecar: Returns the bytes of its sidecar, as it will be; called where they are needed.
            written: Whether the shard is written, too; otherwise the one that is there stays.
        """
        files, counts = self._files.pop(shard, {}), {} if self._appends else self._counts
        for name in [name for name, form in files.items() if written and exports.EXPORTS[form].hashed]:
            self._stale[name] = files.pop(name)  # hashes that were not taken yet
        if not files and not counts:
            return
        from shardtool.dataset.sidecar_read import parse_sidecar

        try:
            indexed = indexed_shard.IndexedShard(parse_sidecar(sidecar(), shard, None, metadata=False))
        except CorruptShard:
            self._stale |= files
            if counts:
                raise
            return
        for name, form in files.items():
            if read_foreign_index(self.folder.full_path(name), form, indexed)[1]:
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
            self._stale[exports.FOLDER_INDEXES[form].info] = form

    def keep_only(self, shards: Iterable[str]) -> None:
        """Find the index files of shards that are no longer there.

        Args:
            shards: The names of all shards of the dataset.
        """
        wanted = {*map(to_local_name, shards)}
        for shard in sorted(set(self._files) - wanted):
            self._stale |= self._files.pop(shard)
        self._drop_infos([form for form, counts in self._counts.items() if counts.keys() - wanted])
        there = set(self.folder.names())
        if huggingface.README_FILE in there and huggingface.is_own_readme(
            data := read_or_empty(self.folder, huggingface.README_FILE)
        ):
            names = {name for name in there if not self._owns(name)} | wanted
            named = {name for name in huggingface.readme_shards(data, names) if self._owns(name)}
            if named and named != wanted:  # other shards of this dataset than there are
                self._stale[huggingface.README_FILE] = "huggingface"

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
            what = f"{pluralize(len(gone), 'file')} of other tools' indexes removed, since their shards changed"
            again = export_call_text(dataset_file, sorted({*gone.values()}), overwrite=True)
            yield f"{what} ({format_list([*gone], 3)}): {again} makes them again"

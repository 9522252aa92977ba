"""A source is listed: a folder or a manifest becomes `Entries`, with the help of the workers."""

from __future__ import annotations

import importlib
import os
import threading
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from shardtool.errors import InvalidRequest, SampleFailed, listing, printable
from shardtool.request.options import TOP_FOLDER
from shardtool.source.folder.scan import ScanPart, ScanRules, scan, share_out
from shardtool.storage.reading import entries_in, inside, source_root
from shardtool.values import DUPLICATE, NO_FIELD, Skipped, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardtool.entries.entries import Entries
    from shardtool.execute.local import LocalPool
    from shardtool.names import Names
    from shardtool.pattern import ShardPattern
    from shardtool.plan.plan import Plan
    from shardtool.request.observer import Observer
    from shardtool.request.options import CreateOptions
    from shardtool.storage.staging import Folder
    from shardtool.values import OnError

_CHOSEN = (NO_FIELD, DUPLICATE)  # reasons that are no failure
_EMPTY = "empty"  # of samples, not files, that are without a field
_TASKS = 32  # enough to keep a few workers busy to the end
_MANIFEST_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".feather", ".arrow", ".ipc", ".gz", ".zst")


class Source(Protocol):
    """Where samples come from.

    Attributes:
        name: For the dataset file: no folder, nothing of this machine.
        notes: What the user should know, once the samples are known.
        recorded: What the dataset file tells of how the samples were chosen, beside the options.
        taken: Gives the keys that new samples cannot have, once `name` and `recorded` are known; None: there are none.
        may_skip_names: Whether `--on-error skip` leaves samples out whose names no shard can hold.
        by_key: Whether samples stand in the order of their keys, and are put into that of other ones.
        digest: The content fingerprint that all samples together must have; None where nobody knows it.
        outputs: Where samples go; of splits that a column names, once samples are divided.
    """

    name: str
    notes: list[str]
    recorded: Mapping[str, object] = MappingProxyType({})
    taken: Callable[[], Names] | None = None
    by_key: bool = True
    may_skip_names: bool = False
    digest: int | None = None
    outputs: Sequence[ShardPattern] = ()

    def entries(self, pool: LocalPool, observer: Observer) -> Entries:
        """Return the samples, those that `--where` takes."""

    def column(self, name: str) -> Any:
        """Return a column to divide by, one value a sample: a `pyarrow.ChunkedArray`."""

    def write_binary(self, file: Any) -> None:
        """Write the payload of all SPAN rows where offsets say."""

    def arrange(self, plans: list[Plan], pool: LocalPool, observer: Observer, to_write: int) -> list[Plan]:  # noqa: ARG002
        """Return the same plans for payloads that lie where they can be read better; the output is locked.

        Args:
            plans: One a split.
            pool: Workers.
            observer: Is told of progress.
            to_write: Bytes of the shards that are not there yet.
        """
        return plans

    def scratch(self) -> tuple[Folder, str] | None:
        """Return where temporary files of this source lie: their folder, and their final name; None: nowhere."""
        return None


def open_source(source: Any, options: CreateOptions, outputs: Iterable[ShardPattern]) -> Source:
    """Return what a source is.

    Raises:
        InvalidRequest: It is nothing that can be packed, or options do not go with it.
    """
    if not isinstance(source, (str, os.PathLike)):
        options.check_for(manifest=True)
        return ManifestSource(source, options)
    text = os.fspath(source)
    if _may_be_manifest(text):
        from shardtool.source.manifest.options import is_manifest

        if is_manifest(text):
            options.check_for(manifest=True)
            return ManifestSource(text, options)
    options.check_for(manifest=False)
    return FolderSource(text, options, outputs)


def _may_be_manifest(text: str) -> bool:
    """Tell whether it is worth to ask: pyarrow is not imported for a folder of samples."""
    if text == "-" or os.path.isfile(text) or text.lower().endswith(_MANIFEST_ENDINGS):
        return True
    try:
        names = [entry.name for _, entry in zip(range(8), entries_in(text), strict=False)]
    except OSError:
        return False
    return any(name.endswith(".parquet") or "=" in name for name in names)


class FolderSource(Source):
    """A tree of files."""

    may_skip_names = True

    def __init__(self, source: str, options: CreateOptions, outputs: Iterable[ShardPattern]) -> None:
        self.name = printable(os.fsencode(os.path.basename(os.path.realpath(source))))
        self.notes: list[str] = []
        self._source, self._options = source, options
        self._root = source_root(source)
        places = [(inside(pattern.folder, self._root), pattern) for pattern in outputs]
        own = tuple((folder, pattern) for folder, pattern in places if folder is not None)
        self._rules = ScanRules(
            options.include, options.exclude, options.hidden, options.symlinks, options.dots or "first", own
        )
        self._entries: Entries | None = None

    def entries(self, pool: LocalPool, observer: Observer) -> Entries:
        """List the tree in the workers, while a thread imports what comes next."""
        ahead = threading.Thread(target=importlib.import_module, args=("shardtool.pack.rounds",), daemon=True)
        top = ScanPart()
        tasks = share_out(self._root, self._rules, _TASKS, top)
        ahead.start()
        found: dict[int, ScanPart] = {}
        for number, part in pool.map(scan, tasks):
            found[number] = part
            observer.listed(len(part.counts))
        parts = [found[number] for number in sorted(found)]
        ahead.join()
        from shardtool.source.folder import samples as folder

        options = self._options
        self.notes += _left_behind_notes([top, *parts])
        entries = folder.collect(self._root, parts, top.left_out)
        check_left_out(self._source, entries.left_out, options.on_error)
        chosen = None
        if options.where is not None:
            from shardtool.select.query import matching

            chosen = matching(folder.table_of(entries), options.where)
        if options.label_from_folder:  # a class has its number whether its samples are chosen or not
            from shardtool.dataset.classes import open_classes

            depth = 1 if options.split_from_folder else 0
            entries = folder.label_from_folder(entries, open_classes(options.classes_from), depth=depth)
            self.notes += filter(None, [folder.split_note(entries)])
        if options.dots is None:
            folder.check_torn(entries)
        if chosen is not None and options.where is not None:
            entries = entries.take(chosen)
            _check_some(entries, options.where)
        if options.on_error == "skip" and not options.portable:
            from shardtool.source.naming import leave_out_unsafe

            entries = leave_out_unsafe(entries)
        self._entries = entries
        return entries

    def column(self, name: str) -> Any:
        """Return `key`, `path`, `folder` or `size` of each sample."""
        from shardtool.source.folder import samples as folder

        if self._entries is not None and name == TOP_FOLDER:
            return folder.split_folders(self._entries.keys)
        if self._entries is None or name not in folder.COLUMNS:
            expected = f"one of {', '.join(folder.COLUMNS)}"
            raise InvalidRequest(name, "a folder has no such column", expected=expected, remedy="Use a manifest.")
        return folder.table_of(self._entries).column(name)

    def write_binary(self, file: Any) -> None:
        """Write nothing: all fields are files."""


def _left_behind_notes(parts: Iterable[ScanPart]) -> list[str]:
    """Tell of what operating systems leave in folders, which is passed over as hidden names are."""
    found = sum((part.left_behind for part in parts), Counter[bytes]())
    if not found:
        return []
    names = [printable(name) for name, _ in found.most_common()]
    what = counted(found.total(), "name that an operating system made, passed over")
    return [f"{what}: {listing(names)} (--hidden takes them)"]


class ManifestSource(Source):
    """A table with a row a sample."""

    def __init__(self, source: Any, options: CreateOptions) -> None:
        from shardtool.source.manifest.manifest import Manifest
        from shardtool.source.manifest.options import manifest_options

        self._manifest = Manifest(source, manifest_options(options))
        self._options = options
        self.name, self.notes = self._manifest.name, self._manifest.notes

    def entries(self, pool: LocalPool, observer: Observer) -> Entries:
        """Choose rows and columns, and look at the files in the workers."""
        from shardtool.source.manifest.stat import stat_listed

        manifest, options = self._manifest, self._options
        if options.where is not None:
            from shardtool.select.query import matching

            manifest.keep(matching(manifest.table, options.where))
        manifest.check()
        found = {}
        for number, part in pool.map(stat_listed, manifest.tasks(_TASKS)):
            found[number] = part
            observer.listed(len(part))
        entries = manifest.entries([found[number] for number in sorted(found)])
        check_left_out(self.name, entries.left_out, options.on_error, "leave their rows out with --where")
        return entries

    def column(self, name: str) -> Any:
        """Return a column of the manifest, for the samples that are left."""
        return self._manifest.column(name)

    def write_binary(self, file: Any) -> None:
        """Write the payload of all SPAN rows."""
        self._manifest.write_binary(file)


def _check_some(entries: Entries, query: str) -> None:
    if not len(entries):
        raise InvalidRequest("--where", f"no sample for which {query}")


def check_left_out(
    source: str, left_out: tuple[Skipped, ...], on_error: OnError, otherwise: str = "--exclude them"
) -> None:
    """Refuse a source with files that cannot be packed, unless they are to be skipped; `otherwise` is another way out.

    Raises:
        SampleFailed: There are such files.
    """
    failed = [one for one in left_out if one.code not in _CHOSEN]
    if failed and on_error == "stop":
        named = listing([f"{printable(one.path)} ({one.message})" for one in failed])
        raise SampleFailed(
            source, f"{counted(len(failed), 'file')} cannot be packed: {named}",
            remedy=f"Mend them, {otherwise}, or leave them out with --on-error skip. Nothing was written.",
        )  # fmt: skip


def left_out_notes(entries: Entries) -> list[str]:
    """Return a line for each reason why something was left out."""
    by_code: dict[str, list[str]] = {}
    for one in entries.left_out:
        code = _EMPTY if one.code == NO_FIELD and one.key else one.code
        by_code.setdefault(code, []).append(printable(one.path or one.key))
    text = {
        NO_FIELD: "file left out, without an ending that could name a field",
        _EMPTY: "sample left out, without a field",
        DUPLICATE: "sample left out, of a key that another one has",
    }
    return [
        f"{counted(len(paths), text.get(code, f'file left out ({code})'))}: {listing(paths, 3)}"
        for code, paths in by_code.items()
    ]

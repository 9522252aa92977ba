"""A folder as a source: a tree of files, where those that share a key are one sample."""

from __future__ import annotations

import importlib
import os
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, listing, printable
from shardtool.request.options import TOP_FOLDER
from shardtool.source.advice import shards_note
from shardtool.source.base import TASKS, Listing, Source, check_skipped
from shardtool.source.folder.objects import ObjectTree
from shardtool.source.folder.scan import ScanPart, ScanRules, scan, share_out
from shardtool.source.selecting import Selection
from shardtool.storage import sources
from shardtool.storage.places import is_url
from shardtool.storage.reading import source_root
from shardtool.values import counted, to_bytes
from shardtool.wording import flag, option

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.pattern import ShardPattern
    from shardtool.request.observer import Observer
    from shardtool.request.options import CreateOptions
    from shardtool.skipped import Skipped

    Found = tuple[Entries, tuple[Skipped, ...], list[str]]  # samples, what was left out, notes

_HEAVY = ("shardtool.dataset.sidecar_write", "shardtool.plan.plan")  # NumPy and pyarrow


class FolderSource(Source):
    """A tree of files."""

    may_skip_names = True

    def __init__(self, source: str, options: CreateOptions, outputs: Iterable[ShardPattern]) -> None:
        self._name = _name_of(source)
        self._source, self._options = source, options
        self._tree = open_tree(source, options, outputs)

    @property
    def by_key(self) -> bool:
        """Whether samples stand in the order of their keys, not in that of a column."""
        return self._options.sort_by is None

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """List the samples of the tree."""
        from shardtool.source.folder import samples as folder

        entries, skipped, notes = self._list(pool, observer)
        options = self._options
        check_skipped(self._source, skipped, options.on_error, f"{option('exclude')} them")
        notes += filter(None, [shards_note(entries, named=bool(options.include))])
        if options.dots is None and not entries.folders:
            folder.check_torn(entries)
        selection = Selection(options, _table)
        listed = selection.with_fields(Listing(entries, skipped, self._name, tuple(notes)), pool)
        if options.label_from_folder:  # a class has its number whether its samples are chosen or not
            from shardtool.dataset.classes import open_classes

            depth, known = 1 if options.split_from_folder else 0, open_classes(options.classes_from)
            below = self._below_folders(listed.skipped)
            entries = folder.label_from_folder(listed.entries, known, depth=depth, skipped=below)
            listed = replace(listed, entries=entries, notes=(*listed.notes, *folder.split_note(entries)))
        listed = selection.in_order(selection.chosen(listed))
        if options.on_error == "skip" and not options.portable:
            from shardtool.source.naming import skip_unsafe_names

            entries, unsafe = skip_unsafe_names(listed.entries)
            listed = replace(listed, entries=entries, skipped=listed.skipped + unsafe)
        return listed

    def _list(self, pool: Pool, observer: Observer) -> Found:
        """Return the samples that files make."""
        parts = self._tree.scan(pool, observer)
        from shardtool.source.folder.samples import collect

        entries, skipped = collect(self._tree.root, parts)
        return entries, skipped, left_behind_notes(parts)

    def _below_folders(self, skipped: tuple[Skipped, ...]) -> tuple[Skipped, ...]:
        """Return what was left out, with its paths below the folders that paths start with."""
        return skipped

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column of metadata, `key`, `path`, `folder` or `size` of each sample, or the label of `cls`."""
        from shardtool.source.folder import samples as folder

        table = _table(listed)
        labelled = name == "cls" and self._options.label_from_folder and name not in table.column_names
        if name == TOP_FOLDER or labelled:
            return folder.split_folders(listed.entries.keys, in_order=self.by_key)
        if name not in table.column_names:
            remedy = f"{option('join')} adds a table's columns, {option('columns_from')} those of JSON fields."
            expected = f"one of {listing(table.column_names, 100)}"
            raise InvalidRequest(name, "no such column", expected=expected, remedy=remedy)
        return table.column(name)


def _table(listed: Listing) -> pa.Table:
    """Return what a query sees of samples."""
    from shardtool.source.folder import samples as folder

    return folder.table_of(listed.entries)


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder to list; `root` ends in a slash."""

    root: bytes
    rules: ScanRules

    def scan(self, pool: Pool, observer: Observer) -> list[ScanPart]:
        """Return what the tree holds, its top first; listed in the workers, while a thread imports what comes next."""
        ahead = threading.Thread(target=_import_heavy, daemon=True)
        top = ScanPart()
        tasks = share_out(self.root, self.rules, TASKS, top)
        ahead.start()
        found: dict[int, ScanPart] = {}
        for number, part in pool.map(scan, tasks):
            found[number] = part
            observer.listed(len(part.counts))
        ahead.join()
        return [top.packed(), *(found[number] for number in sorted(found))]


def _import_heavy() -> None:
    """Import what takes long of what comes after the listing."""
    with suppress(Exception):  # whoever needs it imports it again, and says what is wrong
        for name in _HEAVY:
            importlib.import_module(name)


def open_tree(source: str, options: CreateOptions, outputs: Iterable[ShardPattern]) -> Tree | ObjectTree:
    """Return a source folder, in which outputs are passed over.

    Raises:
        InvalidRequest: There is no such folder.
    """
    is_remote = is_url(source)
    root = sources.source_root(source) if is_remote else source_root(source)
    below = [(sources.inside(pattern.folder, root), pattern) for pattern in outputs]
    own = tuple((folder, pattern) for folder, pattern in below if folder is not None)
    dots = options.dots or "first"
    rules = ScanRules(options.include, options.exclude, options.hidden, options.symlinks, dots, own)
    return ObjectTree(root, rules) if is_remote else Tree(root, rules)


def _name_of(source: str) -> str:
    """Return the name of a folder for outputs: of a link, that of what it leads to; of a whole bucket, the bucket's."""
    if is_url(source):
        return printable(to_bytes(source.rstrip("/").rpartition("/")[2]))
    return printable(os.fsencode(os.path.basename(os.path.realpath(source))))


def left_behind_notes(parts: Iterable[ScanPart]) -> list[str]:
    """Note files that operating systems leave in folders; they are passed over, as hidden names are."""
    found = sum((part.left_behind for part in parts), Counter[bytes]())
    if not found:
        return []
    names = [printable(name) for name, _ in found.most_common()]
    what = counted(found.total(), "name that an operating system made, passed over")
    return [f"{what}: {listing(names)} ({flag('hidden')} takes them)"]

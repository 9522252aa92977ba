"""Scan a folder, or the objects below a URL of a store."""

from __future__ import annotations

import importlib
import threading
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import InvalidRequest
from shardtool.names import to_bytes, to_text
from shardtool.shard_samples import FILE
from shardtool.source.base import TASK_COUNT
from shardtool.source.collect_files import FileCollector
from shardtool.source.scan import make_scan_tasks, scan_items
from shardtool.source.scan_result import ALWAYS_CHANGED, ScanPart
from shardtool.storage.lookup import iter_objects
from shardtool.storage.paths import is_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.source.scan_rules import ScanRules
    from shardtool.storage.remote.buckets import BucketEntry


_SLOW_IMPORTS = ("shardtool.dataset.sidecar_read", "shardtool.plan.plan")  # NumPy and pyarrow


_OBJECTS_PER_REPORT = 1000


class FileTree(NamedTuple):
    """A folder, or the objects below a URL of a store; `root` ends in a slash."""

    root: bytes
    rules: ScanRules

    def scan(self, pool: Pool, observer: Observer) -> list[ScanPart]:
        """Return the contents of the tree, in key order, its top first.

        Workers list a local folder while a thread imports the next modules.
        """
        if is_address(self.root):
            return [self._scan_objects(observer)]
        pool.check((self.root,))
        importer = threading.Thread(target=_import_ahead, daemon=True)
        top = ScanPart()
        tasks = make_scan_tasks(self.root, self.rules, TASK_COUNT, top)
        importer.start()
        parts: dict[int, ScanPart] = {}
        for number, part in pool.map(scan_items, tasks):
            parts[number] = part
            observer.listed(len(part.counts))
        importer.join()
        return [top.packed(), *(parts[number] for number in sorted(parts))]

    def _scan_objects(self, observer: Observer) -> ScanPart:
        where, total = to_text(self.root), 0

        def reported() -> Iterator[BucketEntry]:
            nonlocal total
            for total, entry in enumerate(iter_objects(where), 1):
                yield entry
                if total % _OBJECTS_PER_REPORT == 0:
                    observer.listed(_OBJECTS_PER_REPORT)

        part = collect_objects(reported(), self.rules)
        observer.listed(total % _OBJECTS_PER_REPORT)
        if not total:
            raise InvalidRequest(where, "nothing found", expected="a prefix with samples below it")
        return part


def _import_ahead() -> None:
    with suppress(Exception):  # the module that needs them reports errors
        for name in _SLOW_IMPORTS:
            importlib.import_module(name)


def collect_objects(objects: Iterable[BucketEntry], rules: ScanRules) -> ScanPart:
    """Return the objects that the rules include, in key order."""
    files = FileCollector(rules)
    for entry in objects:
        if name := files.split(to_bytes(entry.key), entry.size):
            files.add(name, entry.size, entry.version, entry.changed_ns if entry.version else ALWAYS_CHANGED)
    part, columns = files.part, files.in_order("")
    part.sizes, part.mtimes, part.changed = (array("q", column.tobytes()) for column in columns)
    part.kinds = bytearray([FILE]) * len(part.sizes)
    return part

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


_OBJECTS_PER_REPORT = 1000  # objects between two reports


class FileTree(NamedTuple):
    """A folder, or what lies below an address of a store; `root` ends in a slash."""

    root: bytes
    rules: ScanRules

    def scan(self, pool: Pool, observer: Observer) -> list[ScanPart]:
        """Return what the tree holds, in key order, its top first.

        A folder is listed in the workers, while a thread imports what comes next. What a store lists is one stream of
        names, in its own order, so the parent reads it; no object is asked for.

        Raises:
            InvalidRequest: Nothing lies below an address.
            AccessRefused: We may not list it.
            StoreFailed: The store fails time and again.
        """
        if is_address(self.root):
            return [self._scan_objects(observer)]
        pool.check((self.root,))
        ahead = threading.Thread(target=_import_ahead, daemon=True)
        top = ScanPart()
        tasks = make_scan_tasks(self.root, self.rules, TASK_COUNT, top)
        ahead.start()
        found: dict[int, ScanPart] = {}
        for number, part in pool.map(scan_items, tasks):
            found[number] = part
            observer.listed(len(part.counts))
        ahead.join()
        return [top.packed(), *(found[number] for number in sorted(found))]

    def _scan_objects(self, observer: Observer) -> ScanPart:
        where, total = to_text(self.root), 0

        def reported() -> Iterator[BucketEntry]:
            nonlocal total
            for total, one in enumerate(iter_objects(where), 1):
                yield one
                if total % _OBJECTS_PER_REPORT == 0:
                    observer.listed(_OBJECTS_PER_REPORT)

        part = collect_objects(reported(), self.rules)
        observer.listed(total % _OBJECTS_PER_REPORT)
        if not total:
            raise InvalidRequest(where, "nothing lies there", expected="a prefix with samples below it")
        return part


def _import_ahead() -> None:
    """Import what takes long of what comes after the listing."""
    with suppress(Exception):  # whoever needs it imports it again, and says what is wrong
        for name in _SLOW_IMPORTS:
            importlib.import_module(name)


def collect_objects(objects: Iterable[BucketEntry], rules: ScanRules) -> ScanPart:
    """Return the files that objects are, in key order, as far as the rules take them."""
    files = FileCollector(rules)
    for one in objects:
        if name := files.split(to_bytes(one.key), one.size):
            files.add(name, one.size, one.version, one.changed_ns if one.version else ALWAYS_CHANGED)
    part, facts = files.part, files.in_order("")
    part.sizes, part.mtimes, part.changed = (array("q", fact.tobytes()) for fact in facts)
    part.kinds = bytearray([FILE]) * len(part.sizes)
    return part

"""List what lies below an address of a store: what `scan` does for a folder, by the same rules and in the same order.

A listing is one stream of names, page after page, in the order of the store. So the parent reads it; no object is
asked for.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.source.folder.scan import ALWAYS, ScanPart, ScanRules, add_names, no_field, pass_over
from shardtool.storage.sources import objects_below
from shardtool.values import FILE, split_name, to_bytes, to_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.storage.sources import FoundObject

_PAGE = 1000  # objects between two reports
_CHUNK = 2**15  # files whose columns are made at a time


@dataclass(frozen=True, slots=True)
class ObjectTree:
    """A prefix to list; `root` is its address, ending in a slash."""

    root: bytes
    rules: ScanRules

    def scan(self, _pool: Pool, observer: Observer) -> list[ScanPart]:
        """Return what lies below, in key order.

        Raises:
            InvalidRequest: Nothing does.
            AccessRefused: We may not list it.
            StoreFailed: The store fails time and again.
        """
        where, total = to_text(self.root), 0

        def counted() -> Iterator[FoundObject]:
            nonlocal total
            for one in objects_below(where):
                yield one
                total += 1
                if total % _PAGE == 0:
                    observer.listed(_PAGE)
            observer.listed(total % _PAGE)

        parts = parts_of(counted(), self.rules)
        if not total:
            raise InvalidRequest(where, "nothing lies there", expected="a prefix with samples below it")
        return parts


def parts_of(objects: Iterable[FoundObject], rules: ScanRules) -> list[ScanPart]:
    """Return the files that objects are, in key order, as far as the rules take them."""
    found = _Found(rules)
    for one in objects:
        found.add(one)
    return list(found.parts())


@dataclass(slots=True)
class _Found:
    """The objects that are files, as columns; `names` are `folder/stem NUL field`."""

    rules: ScanRules
    left_out: ScanPart = field(default_factory=ScanPart)
    names: list[bytes] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    versions: array[int] = field(default_factory=lambda: array("q"))
    changed: array[int] = field(default_factory=lambda: array("q"))
    folders: dict[bytes, bool] = field(default_factory=lambda: {b"": True})  # whether each is looked into
    no_field: dict[bytes, int] = field(default_factory=dict)  # paths that name no field, and their sizes

    def add(self, one: FoundObject) -> None:
        """Note an object, if the rules take it."""
        path = to_bytes(one.path)
        prefix, name = path[: path.rfind(b"/") + 1], path[path.rfind(b"/") + 1 :]
        rules = self.rules
        if not self._looks_into(prefix):
            return
        if rules.hides(name):
            pass_over(rules, prefix, name, self.left_out)
            return
        if not rules.takes_file(prefix, name):
            return
        split = split_name(name, rules.dots)
        if split is None:
            self.no_field[path] = one.size
            return
        self.names.append(prefix + b"\0".join(split))
        self.sizes.append(one.size)
        self.versions.append(one.version)
        self.changed.append(one.changed_ns if one.version else ALWAYS)

    def parts(self) -> Iterator[ScanPart]:
        """Yield all of them, in key order, without the empty objects that stand for folders; what is left out first."""
        for path, size in self.no_field.items():
            if size or path + b"/" not in self.folders:
                self.left_out.skipped.append(no_field(b"", path))
        yield self.left_out.packed()
        some: list[int] = []
        for at in sorted(range(len(self.names)), key=self.names.__getitem__):
            name = self.names[at]
            if not self.sizes[at] and name.replace(b"\0", b".") + b"/" in self.folders:
                continue
            if len(some) >= _CHUNK and name.partition(b"\0")[0] != self.names[some[-1]].partition(b"\0")[0]:
                yield self._part(some)
                some = []
            some.append(at)
        yield self._part(some)

    def _part(self, places: list[int]) -> ScanPart:
        """Return some files as columns; their names are held no longer."""
        part, names = ScanPart(), [self.names[at] for at in places]
        add_names(part, b"", names)
        columns = (part.sizes, self.sizes), (part.mtimes, self.versions), (part.changed, self.changed)
        for column, values in columns:
            column.extend([values[at] for at in places])
        part.kinds += bytes([FILE]) * len(places)
        for at in places[:-1]:
            self.names[at] = b""
        return part.packed()

    def _looks_into(self, prefix: bytes) -> bool:
        """Tell whether a folder, and all that it lies in, is looked into."""
        if (known := self.folders.get(prefix)) is not None:
            return known
        above = prefix[: prefix.rfind(b"/", 0, -1) + 1]
        name, taken = prefix[len(above) : -1], self._looks_into(above)
        if taken and self.rules.hides(name):
            pass_over(self.rules, above, name, self.left_out)
            taken = False
        taken = self.folders[prefix] = taken and self.rules.takes_folder(above, name)
        return taken

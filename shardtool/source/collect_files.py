"""Collect files that arrive in any order (archive members, objects) into key order, by the rules for folders."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.names import split_name
from shardtool.source.scan_result import ScanPart, count_system_file, no_field_row
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.source.scan_rules import ScanRules


Property = TypeVar("Property")


_SORT_CHUNK_FILES = 2**16


def resolve_folder(
    known: dict[bytes, Property], folder: bytes, derive: Callable[[Property, bytes], Property]
) -> Property:
    """Return a property that a folder derives from its parent.

    `known` caches the property by folder path (empty, or ending in a slash).
    """
    unresolved = []
    while folder not in known:  # not recursive: a path may have a thousand parts
        unresolved.append(folder)
        folder = folder[: folder.rfind(b"/", 0, -1) + 1]
    value = known[folder]
    for path in reversed(unresolved):
        value = known[path] = derive(value, path)
    return value


class FileCollector:
    """Files in any order.

    Attributes:
        part: Skipped files and system files; after `in_order`, also the files in key order.
        folders: Whether each folder is included.
    """

    def __init__(self, rules: ScanRules) -> None:
        self._rules, self.part, self.folders = rules, ScanPart(), {b"": True}
        self._names, self._starts, self._numbers = bytearray(), array("q", [0]), array("q")
        self._no_field: dict[bytes, int] = {}

    def split(self, path: bytes, size: int) -> tuple[bytes, bytes] | None:
        """Return the key and field of a file; None if excluded or without a field."""
        rules, start = self._rules, path.rfind(b"/") + 1
        parent, name = path[:start], path[start:]
        if not resolve_folder(self.folders, parent, self._includes_folder_below):
            return None
        if rules.hides(name):
            count_system_file(rules, parent, name, self.part)
            return None
        if not rules.includes_file(parent, name):
            return None
        split = split_name(name, rules.dots)
        if split is None:
            self._no_field[path] = size
            return None
        return parent + split[0], split[1]

    def add(self, name: tuple[bytes, bytes], size: int, second: int, third: int) -> None:
        """Add a file, with two more numbers."""
        self._names += b"%b\0%b\0" % name
        self._starts.append(len(self._names))
        self._numbers.extend((size, second, third))

    def in_order(self, where: str) -> NDArray[np.int64]:
        """Move the files into `part`; return int64[3, files], their numbers.

        Objects that represent folders are ignored.
        """
        import numpy as np

        from shardtool.entries.strings import PackedStrings

        part, names = self.part, PackedStrings(bytes(self._names), np.array(self._starts, np.int64))
        for path, size in self._no_field.items():
            if size or path + b"/" not in self.folders:
                part.skipped.append(no_field_row(b"", path))
        numbers, order = np.array(self._numbers, np.int64).reshape(-1, 3), names.sorted_order()
        empty = order[numbers[order, 0] == 0].tolist()
        markers = [row for row in empty if names[row].replace(b"\0", b".") + b"/" in self.folders]
        order = order[~np.isin(order, markers)]
        keys, previous_key, previous_field, twice = bytearray(), None, None, list[bytes]()
        for first in range(0, len(order), _SORT_CHUNK_FILES):
            parts = names.gather(order[first : first + _SORT_CHUNK_FILES]).split(b"\0")
            for key, ending in zip(parts[:-1:2], parts[1::2], strict=True):
                if key != previous_key:
                    keys += key + b"\0"
                    part.counts.append(1)
                elif ending == previous_field:
                    twice.append(key + b"." + ending)
                else:
                    part.counts[-1] += 1
                part.codes.append(part.fields.setdefault(ending, len(part.fields)))
                previous_key, previous_field = key, ending
        if twice:
            shown = format_list([printable(name) for name in twice])
            problem = f"{pluralize(len(twice), 'name')} of several members: {shown}"
            raise InvalidRequest(where, problem, expected="each file once", remedy="Recreate the archive.")
        part.keys = [bytes(keys)]
        columns: NDArray[np.int64] = numbers[order].T
        return columns

    def _includes_folder_below(self, taken: bool, folder: bytes) -> bool:  # noqa: FBT001 - it is a value of `folders`
        start = folder.rfind(b"/", 0, -1) + 1
        above, name = folder[:start], folder[start:-1]
        if taken and self._rules.hides(name):
            count_system_file(self._rules, above, name, self.part)
            return False
        return taken and self._rules.includes_folder(above, name)

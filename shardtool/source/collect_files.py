"""Collect files that are named in any order, such as archive members or objects of a store, into key order.

The rules and the resulting samples are those of a folder.
"""

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


Fact = TypeVar("Fact")


_SORT_CHUNK_FILES = 2**16  # files at a time


def resolve_folder(known: dict[bytes, Fact], folder: bytes, of_below: Callable[[Fact, bytes], Fact]) -> Fact:
    """Return what is known of a folder, which follows from what is known of the one that it lies in.

    Args:
        known: What is known of folders, by their paths: these are empty, or end in a slash. Takes what is found.
        folder: The path.
        of_below: Gives it, once for each folder, from that of the folder above and the path.
    """
    new = []
    while folder not in known:  # no recursion: a path may have a thousand parts
        new.append(folder)
        folder = folder[: folder.rfind(b"/", 0, -1) + 1]
    found = known[folder]
    for below in reversed(new):
        found = known[below] = of_below(found, below)
    return found


class FileCollector:
    """Files that are named in any order.

    Attributes:
        part: What is left out and passed over, and in the end the files in the order of keys and fields.
        folders: The folders that were met, and whether each is looked into.
    """

    def __init__(self, rules: ScanRules) -> None:
        self._rules, self.part, self.folders = rules, ScanPart(), {b"": True}
        self._names, self._starts, self._facts = bytearray(), array("q", [0]), array("q")
        self._no_field: dict[bytes, int] = {}

    def split(self, path: bytes, size: int) -> tuple[bytes, bytes] | None:
        """Return the key and the field of a file; None where it is not wanted, or its name has no field."""
        rules, start = self._rules, path.rfind(b"/") + 1
        above, name = path[:start], path[start:]
        if not resolve_folder(self.folders, above, self._includes_folder_below):
            return None
        if rules.hides(name):
            count_system_file(rules, above, name, self.part)
            return None
        if not rules.includes_file(above, name):
            return None
        split = split_name(name, rules.dots)
        if split is None:
            self._no_field[path] = size
            return None
        return above + split[0], split[1]

    def add(self, name: tuple[bytes, bytes], size: int, second: int, third: int) -> None:
        """Note a file: its key and field, its bytes, and two more facts."""
        self._names += b"%b\0%b\0" % name
        self._starts.append(len(self._names))
        self._facts.extend((size, second, third))

    def in_order(self, where: str) -> NDArray[np.int64]:
        """Put the files into `part`; return int64[3, files], the facts of each.

        Empty files that stand for folders in a store are none.

        Raises:
            InvalidRequest: A file is there twice.
        """
        import numpy as np

        from shardtool.entries.strings import PackedStrings

        part, names = self.part, PackedStrings(bytes(self._names), np.array(self._starts, np.int64))
        for path, size in self._no_field.items():
            if size or path + b"/" not in self.folders:
                part.skipped.append(no_field_row(b"", path))
        facts, order = np.array(self._facts, np.int64).reshape(-1, 3), names.sorted_order()
        empty = order[facts[order, 0] == 0].tolist()
        markers = [at for at in empty if names[at].replace(b"\0", b".") + b"/" in self.folders]
        order = order[~np.isin(order, markers)]
        keys, last, field_before, twice = bytearray(), None, None, list[bytes]()
        for first in range(0, len(order), _SORT_CHUNK_FILES):
            both = names.gather(order[first : first + _SORT_CHUNK_FILES]).split(b"\0")
            for key, ending in zip(both[:-1:2], both[1::2], strict=True):
                if key != last:
                    keys += key + b"\0"
                    part.counts.append(1)
                elif ending == field_before:
                    twice.append(key + b"." + ending)
                else:
                    part.counts[-1] += 1
                part.codes.append(part.fields.setdefault(ending, len(part.fields)))
                last, field_before = key, ending
        if twice:
            shown = format_list([printable(name) for name in twice])
            problem = f"{pluralize(len(twice), 'name')} of several members: {shown}"
            raise InvalidRequest(where, problem, expected="each file once", remedy="Make the archive anew.")
        part.keys = [bytes(keys)]
        found: NDArray[np.int64] = facts[order].T
        return found

    def _includes_folder_below(self, taken: bool, folder: bytes) -> bool:  # noqa: FBT001 - it is a value of `folders`
        """Tell whether a folder is looked into; `taken`: whether the one above is."""
        start = folder.rfind(b"/", 0, -1) + 1
        above, name = folder[:start], folder[start:-1]
        if taken and self._rules.hides(name):
            count_system_file(self._rules, above, name, self.part)
            return False
        return taken and self._rules.includes_folder(above, name)

"""Rules that select the files of a source, and columns that store the listed files."""

from __future__ import annotations

import errno
import os
import re
from array import array
from collections import Counter
from dataclasses import field
from fnmatch import translate
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from shardtool.dataclass import dataclass
from shardtool.errors import (
    PROCESS_ERRNOS,
    InvalidRequest,
    format_list,
    os_error_text,
    printable,
    raise_if_machine_error,
)
from shardtool.names import split_name, to_text
from shardtool.skipped import SkipCode, Skipped
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.pattern import ShardPattern
    from shardtool.values import Dots, Symlinks


SYSTEM_FILES = frozenset({b"Thumbs.db", b"thumbs.db", b"ehthumbs.db", b"Desktop.ini", b"desktop.ini", b"__MACOSX"})


@dataclass(frozen=True)
class ScanRules:
    """Rules that select the files of a source.

    Attributes:
        hidden: Whether to include names that start with a dot, and names that operating systems create.
        outputs: Folder and pattern of each output inside the source. The folder is relative, with a final slash.
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    hidden: bool = False
    symlinks: Symlinks = "inside"
    dots: Dots = "first"
    outputs: tuple[tuple[bytes, ShardPattern], ...] = ()

    @cached_property
    def _include(self) -> list[tuple[bool, re.Pattern[bytes]]]:
        return [_compile_glob(text) for text in self.include]

    @cached_property
    def _exclude(self) -> list[tuple[bool, re.Pattern[bytes]]]:
        return [_compile_glob(text) for text in self.exclude]

    @cached_property
    def has_filters(self) -> bool:
        """Whether `includes_file` may return False."""
        return bool(self.include or self.exclude or self.outputs)

    def hides(self, name: bytes) -> bool:
        """Return whether to ignore a file or folder as hidden."""
        return (name.startswith(b".") or name in SYSTEM_FILES) and not self.hidden

    def includes_file(self, prefix: bytes, name: bytes) -> bool:
        """Return whether the file `prefix + name` is included."""
        if any(folder == prefix and _is_output(pattern, name) for folder, pattern in self.outputs):
            return False
        is_included = not self._include or _matches(self._include, prefix, name)
        return is_included and not _matches(self._exclude, prefix, name)

    def includes_folder(self, prefix: bytes, name: bytes) -> bool:
        """Return whether the folder `prefix + name` is included."""
        return not any(_matches(self._exclude, prefix, spelling) for spelling in (name, name + b"/"))


def _compile_glob(text: str) -> tuple[bool, re.Pattern[bytes]]:
    # `*` also matches slashes, like `**` in gitignore.
    is_path = "/" in text.rstrip("/")
    return is_path, re.compile(os.fsencode(translate(text.removeprefix("./"))), re.DOTALL)


def _matches(globs: list[tuple[bool, re.Pattern[bytes]]], prefix: bytes, name: bytes) -> bool:
    return any(pattern.match(prefix + name if is_path else name) for is_path, pattern in globs)


def _is_output(pattern: ShardPattern, name: bytes) -> bool:
    text = os.fsdecode(name)
    return (
        pattern.owns(text)
        or text == f".{pattern.base}.lock"
        or (text.startswith(".") and text.endswith(".part") and pattern.owns(text[1:].removesuffix(".part")))
    )


_MAC_FILES = (b"._", b".DS_Store")
SPECIAL_FILE_MESSAGE = "a fifo, socket or device; only files can be packed"
# The `changed_ns` of files whose changes cannot be detected, such as targets of links.
ALWAYS_CHANGED = 2**62


@dataclass
class ScanPart:
    """Some listed samples of a source, in columns as in `SampleTable`."""

    fields: dict[bytes, int] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)
    counts: array[int] = field(default_factory=lambda: array("I"))
    codes: array[int] = field(default_factory=lambda: array("I"))
    kinds: bytearray = field(default_factory=bytearray)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    mtimes: array[int] = field(default_factory=lambda: array("q"))
    changed: array[int] = field(default_factory=lambda: array("q"))
    skipped: list[Skipped] = field(default_factory=list)
    system_files: Counter[bytes] = field(default_factory=Counter)

    def join_keys(self) -> ScanPart:
        """Join the keys, because many small objects are slow to send between processes."""
        self.keys = [b"".join([key + b"\0" for key in self.keys])]
        return self


def count_system_file(rules: ScanRules, prefix: bytes, name: bytes, part: ScanPart) -> None:
    """Count an ignored file if an operating system created it, and no filter excludes it."""
    if (name in SYSTEM_FILES or name.startswith(_MAC_FILES)) and rules.includes_file(prefix, name):
        part.system_files[b"._*" if name[:2] == b"._" else name] += 1


def link_failure(error: OSError) -> tuple[SkipCode, str]:
    """Return the reason code and message for a link that cannot be followed."""
    if isinstance(error, FileNotFoundError):
        return "dangling-link", "a broken link"
    return "link-loop" if error.errno == errno.ELOOP else "unreadable", os_error_text(error)


def skipped_row(key: bytes, path: bytes, code: SkipCode, message: str) -> Skipped:
    """Return a row for the list of skipped files."""
    return Skipped(to_text(key), to_text(path), code, message)


def no_field_row(prefix: bytes, name: bytes) -> Skipped:
    """Return the row of a file whose name has no extension."""
    return skipped_row(b"", prefix + name, "no-field", "the name has no extension to name a field")


def path_failure(error: OSError) -> tuple[SkipCode, str]:
    """Return the reason code and message for a path that cannot be read.

    Raise `StoreFailed` if the process is the cause, for example because it has too many open files.
    """
    raise_if_machine_error(error, printable(error.filename or ""), PROCESS_ERRNOS)
    is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    return "vanished" if is_missing else "unreadable", os_error_text(error)


Property = TypeVar("Property")
_SORT_CHUNK_FILES = 2**16


def resolve_folder(
    known: dict[bytes, Property], folder: bytes, derive: Callable[[Property, bytes], Property]
) -> Property:
    """Return a property of a folder. `derive` computes it from the parent folder's property and the folder's path.

    `known` caches the properties of folders. A folder path is empty or ends in a slash.
    """
    unresolved = []
    while folder not in known:
        unresolved.append(folder)
        folder = folder[: folder.rfind(b"/", 0, -1) + 1]
    value = known[folder]
    for path in reversed(unresolved):
        value = known[path] = derive(value, path)
    return value


class FileCollector:
    """Applies `ScanRules` to files in any order, such as members of an archive.

    Attributes:
        part: The skipped and ignored files. `in_order` adds samples, and files without an extension.
        folders: For each folder, whether the rules include it.
    """

    def __init__(self, rules: ScanRules) -> None:
        self._rules, self.part, self.folders = rules, ScanPart(), {b"": True}
        self._names, self._starts, self._numbers = bytearray(), array("q", [0]), array("q")
        self._no_field: dict[bytes, int] = {}

    def split(self, path: bytes, size: int) -> tuple[bytes, bytes] | None:
        """Split a path into key and field. Return None if the file is excluded or has no field."""
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

    def add(self, name: tuple[bytes, bytes], size: int, version_or_offset: int, changed_ns: int) -> None:
        """Add a file. `name` is the key and field that `split` returned."""
        self._names += b"%b\0%b\0" % name
        self._starts.append(len(self._names))
        self._numbers.extend((size, version_or_offset, changed_ns))

    def in_order(self, where: str) -> NDArray[np.int64]:
        """Sort the added files by key, and add the keys and fields to `part`.

        Return size, version or offset, and `changed_ns` as int64[3, files]. Ignore empty objects named like a folder.
        """
        import numpy as np

        from shardtool.entries.strings import PackedStrings

        part, names = self.part, PackedStrings(bytes(self._names), np.array(self._starts, np.int64))
        for path, size in self._no_field.items():
            if size or path + b"/" not in self.folders:
                part.skipped.append(no_field_row(b"", path))
        numbers = np.array(self._numbers, np.int64).reshape(-1, 3)
        order, (sizes, _, _) = names.sorted_order(), numbers.T
        empty = order[sizes[order] == 0].tolist()
        markers = [row for row in empty if names[row].replace(b"\0", b".") + b"/" in self.folders]
        order = order[~np.isin(order, markers)]
        keys, repeated = bytearray(), list[bytes]()
        previous_key = previous_field = None
        for first in range(0, len(order), _SORT_CHUNK_FILES):
            parts = names.gather(order[first : first + _SORT_CHUNK_FILES]).split(b"\0")
            for key, ending in zip(parts[:-1:2], parts[1::2], strict=True):
                if key != previous_key:
                    keys += key + b"\0"
                    part.counts.append(1)
                elif ending == previous_field:
                    repeated.append(key + b"." + ending)
                else:
                    part.counts[-1] += 1
                part.codes.append(part.fields.setdefault(ending, len(part.fields)))
                previous_key, previous_field = key, ending
        if repeated:
            shown = format_list([printable(name) for name in repeated])
            problem = f"{pluralize(len(repeated), 'file')} stored several times: {shown}"
            raise InvalidRequest(where, problem, expected="each file once", remedy="Recreate the archive.")
        part.keys = [bytes(keys)]
        columns: NDArray[np.int64] = numbers[order].T
        return columns

    def _includes_folder_below(self, parent_included: bool, folder: bytes) -> bool:  # noqa: FBT001 - `resolve_folder` passes it by position
        start = folder.rfind(b"/", 0, -1) + 1
        parent, name = folder[:start], folder[start:-1]
        if parent_included and self._rules.hides(name):
            count_system_file(self._rules, parent, name, self.part)
            return False
        return parent_included and self._rules.includes_folder(parent, name)

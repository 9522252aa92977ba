"""List a folder in workers, without opening files. Samples are sorted by the bytes of key and field."""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import printable
from shardtool.messages import cli_option
from shardtool.names import split_name
from shardtool.shard_samples import LINK
from shardtool.source.scan_part import (
    ALWAYS_CHANGED,
    SPECIAL_FILE_MESSAGE,
    SYSTEM_FILES,
    ScanPart,
    ScanRules,
    count_system_file,
    link_failure,
    no_field_row,
    path_failure,
    skipped_row,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.skipped import SkipCode, Skipped


_DOT_BYTE = 46
_MAX_ITEM_FILES = 8192


class ScanItem(NamedTuple):
    """A folder to list, or some files of a folder.

    Attributes:
        prefix: The folder relative to the root, with a final slash. Empty for the root.
        names: Sorted file names, with NUL instead of the dot between stem and field. None to list the whole folder with
            its subfolders.
        changed_ns: The latest ctime of the folder and the folders above it.
        links: The symbolic links in `names`.
    """

    prefix: bytes
    names: list[bytes] | None
    changed_ns: int
    links: frozenset[bytes] = frozenset()


class ScanTask(NamedTuple):
    """Items for one worker to list. `root` ends in a slash."""

    root: bytes
    rules: ScanRules
    items: list[ScanItem]


def scan_items(task: ScanTask) -> ScanPart:
    """List the items of a task, including all subfolders."""
    part = ScanPart()
    stack = task.items[::-1]
    while stack:
        item = stack.pop()
        if item.names is None:
            stack += _expand_folder(task.root, task.rules, item, part)[::-1]
        else:
            _add_files(part, task.root, item)
    return part.join_keys()


def make_scan_tasks(root: bytes, rules: ScanRules, parts: int, top: ScanPart) -> Iterator[ScanTask]:
    """List the upper levels of the tree, until there are about `parts` items. Yield tasks for the items, in key order.

    Skipped files of the listed folders are added to `top`.
    """
    changed = max(os.lstat(root.rstrip(b"/") or b"/").st_ctime_ns, os.stat(root).st_ctime_ns)
    items = [ScanItem(b"", None, changed)]
    for _ in range(4):  # one worker lists a folder on the fourth level, with all its subfolders
        if len(items) >= parts or not any(item.names is None for item in items):
            break
        parts_of_items = [[item] if item.names else _expand_folder(root, rules, item, top) for item in items]
        items = [item for part in parts_of_items for item in part]
    items = [piece for item in items for piece in _split_item(item)]
    size = max(1, len(items) // parts)
    for start in range(0, len(items), size):
        yield ScanTask(root, rules, items[start : start + size])


def _expand_folder(root: bytes, rules: ScanRules, item: ScanItem, part: ScanPart) -> list[ScanItem]:
    path = root + item.prefix
    try:
        folder_stat = os.stat(path)
        is_same_device = folder_stat.st_dev == os.stat(root).st_dev
        changed = max(item.changed_ns, folder_stat.st_ctime_ns if is_same_device else ALWAYS_CHANGED)
        files, links, folders, linked_folders = _list_folder(root, rules, item.prefix, part)
    except OSError as error:
        part.skipped.append(_failed_row(b"", item.prefix, error))
        return []
    if not folders:
        return [ScanItem(item.prefix, files, changed, links)] if files else []
    items, start = [], 0
    for name in sorted(name + b"/" for name in folders):
        end = bisect_left(files, name, start)
        if end > start:
            items.append(ScanItem(item.prefix, files[start:end], changed, links))
        items.append(ScanItem(item.prefix + name, None, ALWAYS_CHANGED if name[:-1] in linked_folders else changed))
        start = end
    if start < len(files):
        items.append(ScanItem(item.prefix, files[start:], changed, links))
    return items


def _list_folder(  # noqa: C901 - one loop, for speed
    root: bytes, rules: ScanRules, prefix: bytes, part: ScanPart
) -> tuple[list[bytes], frozenset[bytes], list[bytes], set[bytes]]:
    files: list[bytes] = []
    links: set[bytes] = set()
    folders: list[bytes] = []
    linked_folders: set[bytes] = set()
    first, has_filters = rules.dots == "first", rules.has_filters
    with os.scandir(root + prefix) as listing:
        for entry in listing:
            name = entry.name
            if (name[0] == _DOT_BYTE or name in SYSTEM_FILES) and not rules.hidden:
                count_system_file(rules, prefix, name, part)
                continue
            is_link = False
            if entry.is_file(follow_symlinks=False):
                pass
            elif entry.is_dir(follow_symlinks=False):
                if rules.includes_folder(prefix, name):
                    folders.append(name)
                continue
            else:
                kind = _inspect_special(root, rules, prefix, name, part.skipped)
                if kind == "folder":
                    folders.append(name)
                    linked_folders.add(name)
                if kind != "file":
                    continue
                is_link = True
            if has_filters and not rules.includes_file(prefix, name):
                continue
            file = name.replace(b".", b"\0", 1) if first else b"\0".join(name.rsplit(b".", 1))
            if file == name or file[0] == 0 or file[-1] == 0:
                split = split_name(name, rules.dots)
                if split is None:
                    part.skipped.append(no_field_row(prefix, name))
                    continue
                file = b"\0".join(split)
            files.append(file)
            if is_link:
                links.add(file)
    files.sort()
    return files, frozenset(links), folders, linked_folders


def _inspect_special(root: bytes, rules: ScanRules, prefix: bytes, name: bytes, skipped: list[Skipped]) -> str:
    """If the special file is a link to pack, return "file" or "folder", else ""."""
    path = root + prefix + name
    is_included = rules.includes_file(prefix, name)
    if not os.path.islink(path):
        if is_included:
            key = _key_of_name(rules, prefix, name)
            skipped.append(skipped_row(key, prefix + name, "special-file", SPECIAL_FILE_MESSAGE))
        return ""
    if rules.symlinks == "skip":
        return ""
    target = os.path.realpath(path)
    is_folder = os.path.isdir(target)
    if not (rules.includes_folder(prefix, name) if is_folder else is_included):
        return ""
    if problem := _link_problem(root, rules, prefix, path, target):
        key = b"" if is_folder else _key_of_name(rules, prefix, name)
        skipped.append(skipped_row(key, prefix + name, *problem))
        return ""
    return "folder" if is_folder else "file"


def _link_problem(
    root: bytes, rules: ScanRules, prefix: bytes, path: bytes, target: bytes
) -> tuple[SkipCode, str] | None:
    if rules.symlinks == "inside" and not _is_below(target, os.path.realpath(root)):
        where = printable(os.readlink(path))  # the link as written, because `target` is absolute
        remedy = f"{cli_option('symlinks', 'follow')} packs it, skip ignores it"
        return "link-outside", f"a link out of the source, to {where}; {remedy}"
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return link_failure(error)
    if stat.S_ISDIR(mode):
        parts = prefix.split(b"/")[:-1]
        parents = [root + b"/".join(parts[:count]) for count in range(len(parts) + 1)]
        if any(_is_below(os.path.realpath(parent), target) for parent in parents):
            skip = cli_option("symlinks", "skip")
            return "link-loop", f"a link to a folder that contains the link; {skip} ignores it"
    elif not stat.S_ISREG(mode):
        return "special-file", "a link to a fifo, socket or device"
    return None


def _is_below(path: bytes, folder: bytes) -> bool:
    return (path.rstrip(b"/") + b"/").startswith(folder.rstrip(b"/") + b"/")


def _split_item(item: ScanItem) -> list[ScanItem]:
    if item.names is None or len(item.names) <= _MAX_ITEM_FILES:
        return [item]
    names, pieces, start = item.names, [], 0
    while start < len(names):
        end = min(start + _MAX_ITEM_FILES, len(names))
        while end < len(names) and names[end].partition(b"\0")[0] == names[end - 1].partition(b"\0")[0]:
            end += 1
        pieces.append(item._replace(names=names[start:end]))
        start = end
    return pieces


def _add_files(part: ScanPart, root: bytes, item: ScanItem) -> None:
    names, stats = _stat_item(root, item, part.skipped)
    part.sizes.extend([file_stat.st_size for file_stat in stats])
    part.mtimes.extend([file_stat.st_mtime_ns for file_stat in stats])
    latest = item.changed_ns
    part.changed.extend([changed if (changed := file_stat.st_ctime_ns) > latest else latest for file_stat in stats])
    first = len(part.kinds)
    part.kinds += bytes(len(names))  # FILE is 0
    for index, name in enumerate(names, first) if item.links else ():
        if name in item.links:
            part.changed[index] = ALWAYS_CHANGED
            part.kinds[index] = LINK
    _add_names(part, item.prefix, names)


def _add_names(part: ScanPart, prefix: bytes, names: list[bytes]) -> None:
    keys, counts, fields, previous = part.keys, part.counts, part.fields, None
    codes = []
    for name in names:
        stem, _, ending = name.partition(b"\0")
        if stem == previous:
            counts[-1] += 1
        else:
            keys.append(prefix + stem)
            counts.append(1)
            previous = stem
        try:
            codes.append(fields[ending])
        except KeyError:
            codes.append(fields.setdefault(ending, len(fields)))
    part.codes.extend(codes)


def _stat_item(root: bytes, item: ScanItem, skipped: list[Skipped]) -> tuple[list[bytes], list[os.stat_result]]:
    names = item.names or []
    try:
        folder = os.open(root + item.prefix, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        skipped.append(_failed_row(b"", item.prefix, error))
        return [], []
    try:
        if not item.links:
            with suppress(OSError):
                files = b"/".join(names).replace(b"\0", b".").split(b"/")
                return names, [os.lstat(file, dir_fd=folder) for file in files]
        return _stat_one_by_one(folder, item, skipped)
    finally:
        os.close(folder)


def _stat_one_by_one(folder: int, item: ScanItem, skipped: list[Skipped]) -> tuple[list[bytes], list[os.stat_result]]:
    names, stats = [], []
    for name in item.names or ():
        file = name.replace(b"\0", b".", 1)
        try:
            stats.append(os.stat(file, dir_fd=folder, follow_symlinks=name in item.links))
        except OSError as error:
            stem = name.partition(b"\0")[0]
            skipped.append(_failed_row(item.prefix + stem, item.prefix + file, error))
        else:
            names.append(name)
    return names, stats


def _key_of_name(rules: ScanRules, prefix: bytes, name: bytes) -> bytes:
    split = split_name(name, rules.dots)
    return prefix + split[0] if split else b""


def _failed_row(key: bytes, path: bytes, error: OSError) -> Skipped:
    return skipped_row(key, path, *path_failure(error))

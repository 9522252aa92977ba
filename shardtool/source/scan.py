"""List a tree of files: a folder, whose listing runs in workers; and what lies in a store or an archive.

Strategy, of a folder: the parent lists the top of the tree until there is enough to share out; workers list
what lies below. Everything comes back in the order of the bytes of key and field, because a
folder's files are sorted with the first dot taken for a NUL, and each subfolder stands where its
name with a slash sorts. No file is opened, and no NumPy is imported: on 60,000 files start-up
costs more than the work.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import stat
import threading
from array import array
from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shardtool.errors import InvalidRequest, listing, printable, reason
from shardtool.skipped import SkipCode, Skipped
from shardtool.source.base import TASKS
from shardtool.storage.places import file_fact, is_place, objects_below, together
from shardtool.values import FILE, LINK, Dots, Symlinks, counted, split_name, to_bytes, to_text
from shardtool.wording import typed_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.execute.pool import Pool
    from shardtool.pattern import ShardPattern
    from shardtool.request.settings import Observer
    from shardtool.storage.remote.stores import BucketEntry


_LEFT_BEHIND = frozenset({b"Thumbs.db", b"thumbs.db", b"ehthumbs.db", b"Desktop.ini", b"desktop.ini", b"__MACOSX"})
_OF_MACS = (b"._", b".DS_Store")  # what starts with the first, beside each file, and the second
_SPECIAL = "a fifo, socket or device; only files can be packed"
ALWAYS = 2**62  # "changed": where what a path leads to can change without a trace in the times of the tree
_DOT = 46  # the byte
Fact = TypeVar("Fact")
_CHUNK = 8192  # files of one folder that a worker takes at a time


@dataclass(frozen=True)
class ScanRules:
    """The rules by which a file is a part of a sample.

    Attributes:
        include: Globs; where there are any, a file must match one.
        exclude: Globs; a file or folder that matches one is left out.
        hidden: Whether names that start with a dot count, and those that operating systems leave behind.
        symlinks: `inside` follows links whose target lies in the tree and reports others, `follow` follows all,
            `skip` leaves links out.
        dots: Where the key ends.
        own: The folder (relative, ending in a slash) and the pattern of each output that lies in the source.
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    hidden: bool = False
    symlinks: Symlinks = "inside"
    dots: Dots = "first"
    own: tuple[tuple[bytes, ShardPattern], ...] = ()

    @cached_property
    def _include(self) -> list[tuple[bool, re.Pattern[bytes]]]:
        return [_glob(text) for text in self.include]

    @cached_property
    def _exclude(self) -> list[tuple[bool, re.Pattern[bytes]]]:
        return [_glob(text) for text in self.exclude]

    @cached_property
    def filters(self) -> bool:
        """Whether any name must be looked at."""
        return bool(self.include or self.exclude or self.own)

    def hides(self, name: bytes) -> bool:
        """Tell whether a file or folder of that name is passed over."""
        return (name.startswith(b".") or name in _LEFT_BEHIND) and not self.hidden

    def takes_file(self, prefix: bytes, name: bytes) -> bool:
        """Tell whether a file is wanted."""
        if any(folder == prefix and _is_output(pattern, name) for folder, pattern in self.own):
            return False
        wanted = not self._include or _matches(self._include, prefix, name)
        return wanted and not _matches(self._exclude, prefix, name)

    def takes_folder(self, prefix: bytes, name: bytes) -> bool:
        """Tell whether a folder is looked into."""
        return not any(_matches(self._exclude, prefix, one) for one in (name, name + b"/"))


def _glob(text: str) -> tuple[bool, re.Pattern[bytes]]:
    """Return whether the glob is about whole paths, and its pattern. `*` crosses slashes, as in gitignore's `**`."""
    whole = "/" in text.rstrip("/")
    return whole, re.compile(os.fsencode(translate(text.removeprefix("./"))), re.DOTALL)


def _matches(globs: list[tuple[bool, re.Pattern[bytes]]], prefix: bytes, name: bytes) -> bool:
    return any(pattern.match(prefix + name if whole else name) for whole, pattern in globs)


def _is_output(pattern: ShardPattern, name: bytes) -> bool:
    text = os.fsdecode(name)
    return (
        pattern.owns(text)
        or text == f".{pattern.base}.lock"
        or (text.startswith(".") and text.endswith(".part") and pattern.owns(text[1:-5]))
    )


class Item(NamedTuple):
    """A folder to list, or some of its files, in key order.

    Attributes:
        prefix: The folder, relative to the root; empty or ending in a slash.
        names: Its files as `stem NUL field`, sorted; None: list the folder and all below it.
        changed_ns: The latest change of the folder and those above it.
        links: Those of `names` that are symbolic links.
    """

    prefix: bytes
    names: list[bytes] | None
    changed_ns: int
    links: frozenset[bytes] = frozenset()


class ScanTask(NamedTuple):
    """Items for one worker. `root` ends in a slash."""

    root: bytes
    rules: ScanRules
    items: list[Item]


@dataclass
class ScanPart:
    """Columns of the samples found, in the order of the items; see `Entries` for their meaning."""

    fields: dict[bytes, int] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)
    counts: array[int] = field(default_factory=lambda: array("I"))
    codes: array[int] = field(default_factory=lambda: array("I"))
    kinds: bytearray = field(default_factory=bytearray)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    mtimes: array[int] = field(default_factory=lambda: array("q"))
    changed: array[int] = field(default_factory=lambda: array("q"))
    skipped: list[Skipped] = field(default_factory=list)
    left_behind: Counter[bytes] = field(default_factory=Counter)  # passed over, as made by an operating system

    def packed(self) -> ScanPart:
        """Return the part with its keys as one buffer: what travels is a few objects, not one per sample."""
        self.keys = [b"".join([key + b"\0" for key in self.keys])]
        return self


def scan(task: ScanTask) -> ScanPart:
    """List the items of a task, and all that lies below them."""
    part = ScanPart()
    stack = task.items[::-1]
    while stack:
        item = stack.pop()
        if item.names is None:
            stack += expand(task.root, task.rules, item, part)[::-1]
        else:
            _add(part, task.root, item)
    return part.packed()


def share_out(root: bytes, rules: ScanRules, parts: int, top: ScanPart) -> Iterator[ScanTask]:
    """List the top of the tree until there are `parts` items or more, then yield tasks, in key order.

    Args:
        root: Ending in a slash.
        rules: What counts.
        parts: How many items.
        top: Takes what is left out there, and no samples.
    """
    changed = max(os.lstat(root.rstrip(b"/") or b"/").st_ctime_ns, os.stat(root).st_ctime_ns)
    items = [Item(b"", None, changed)]
    for _ in range(4):  # levels; below, one worker lists a whole subtree
        if len(items) >= parts or not any(item.names is None for item in items):
            break
        items = [new for item in items for new in ([item] if item.names else expand(root, rules, item, top))]
    items = [piece for item in items for piece in _pieces(item)]
    size = max(1, len(items) // parts)
    for at in range(0, len(items), size):
        yield ScanTask(root, rules, items[at : at + size])


def expand(root: bytes, rules: ScanRules, item: Item, part: ScanPart) -> list[Item]:
    """Return a folder's files and folders, in key order; `part` takes what is left out."""
    path = root + item.prefix
    try:
        fact = os.stat(path)
        changed = max(item.changed_ns, fact.st_ctime_ns if fact.st_dev == os.stat(root).st_dev else ALWAYS)
        files, links, folders, linked = _list_folder(root, rules, item.prefix, part)
    except OSError as error:
        part.skipped.append(_failure(b"", item.prefix, error))
        return []
    if not folders:
        return [Item(item.prefix, files, changed, links)] if files else []
    items, done = [], 0
    for name in sorted(name + b"/" for name in folders):
        at = bisect_left(files, name, done)
        if at > done:
            items.append(Item(item.prefix, files[done:at], changed, links))
        items.append(Item(item.prefix + name, None, ALWAYS if name[:-1] in linked else changed))
        done = at
    if done < len(files):
        items.append(Item(item.prefix, files[done:], changed, links))
    return items


def _list_folder(  # noqa: C901 - a name's way through the rules, once a file
    root: bytes, rules: ScanRules, prefix: bytes, part: ScanPart
) -> tuple[list[bytes], frozenset[bytes], list[bytes], set[bytes]]:
    """Return a folder's files as sorted `stem NUL field`, those of them that are links, its folders, and links."""
    files: list[bytes] = []
    links: set[bytes] = set()
    folders: list[bytes] = []
    linked: set[bytes] = set()
    first, filters = rules.dots == "first", rules.filters
    with os.scandir(root + prefix) as listing:
        for entry in listing:
            name = entry.name
            if (name[0] == _DOT or name in _LEFT_BEHIND) and not rules.hidden:
                pass_over(rules, prefix, name, part)
                continue
            link = False
            if entry.is_file(follow_symlinks=False):
                pass
            elif entry.is_dir(follow_symlinks=False):
                if rules.takes_folder(prefix, name):
                    folders.append(name)
                continue
            else:
                kind = _look_at(root, rules, prefix, name, part.skipped)
                if kind == "folder":
                    folders.append(name)
                    linked.add(name)
                if kind != "file":
                    continue
                link = True
            if filters and not rules.takes_file(prefix, name):
                continue
            file = name.replace(b".", b"\0", 1) if first else b"\0".join(name.rsplit(b".", 1))
            if file == name or file[0] == 0 or file[-1] == 0:  # no dot, or one where it starts or ends a name
                split = split_name(name, rules.dots)
                if split is None:
                    part.skipped.append(no_field(prefix, name))
                    continue
                file = b"\0".join(split)
            files.append(file)
            if link:
                links.add(files[-1])
    files.sort()
    return files, frozenset(links), folders, linked


def pass_over(rules: ScanRules, prefix: bytes, name: bytes, part: ScanPart) -> None:
    """Count a hidden name, where an operating system has left it behind and nothing else passes it over."""
    if (name in _LEFT_BEHIND or name.startswith(_OF_MACS)) and rules.takes_file(prefix, name):
        part.left_behind[b"._*" if name[:2] == b"._" else name] += 1


def _look_at(root: bytes, rules: ScanRules, prefix: bytes, name: bytes, skipped: list[Skipped]) -> str:
    """Return what a name that is no plain file or folder stands for: `file`, `folder`, or nothing."""
    path, wanted = root + prefix + name, rules.takes_file(prefix, name)
    if not os.path.islink(path):
        if wanted:
            skipped.append(_skip(_key(rules, prefix, name), prefix + name, "special-file", _SPECIAL))
        return ""
    if rules.symlinks == "skip":
        return ""
    target = os.path.realpath(path)
    is_folder = os.path.isdir(target)
    if not (rules.takes_folder(prefix, name) if is_folder else wanted):
        return ""
    problem = _link_problem(root, rules, prefix, path, target)
    if problem:
        key = b"" if is_folder else _key(rules, prefix, name)
        skipped.append(_skip(key, prefix + name, *problem))
        return ""
    return "folder" if is_folder else "file"


def _link_problem(
    root: bytes, rules: ScanRules, prefix: bytes, path: bytes, target: bytes
) -> tuple[SkipCode, str] | None:
    """Return the code and message of why the link at `path`, which leads to `target`, cannot be followed."""
    if rules.symlinks == "inside" and not _below(target, os.path.realpath(root)):
        where = printable(os.readlink(path))  # what the link says, not where that is on this machine
        cure = f"{typed_option('symlinks', 'follow')} packs it, skip leaves it out"
        return "link-outside", f"a link out of the tree, to {where}; {cure}"
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return _link_failure(error)
    if stat.S_ISDIR(mode):
        if any(_below(os.path.realpath(root + above), target) for above in _and_above(prefix)):
            return "link-loop", f"a link to a folder that it lies in; {typed_option('symlinks', 'skip')} leaves it out"
    elif not stat.S_ISREG(mode):
        return "special-file", "a link to a fifo, socket or device"
    return None


def _link_failure(error: OSError) -> tuple[SkipCode, str]:
    if isinstance(error, FileNotFoundError):
        return "dangling-link", "a link to nothing"
    return "link-loop" if error.errno == errno.ELOOP else "unreadable", reason(error)


def _below(path: bytes, folder: bytes) -> bool:
    return (path.rstrip(b"/") + b"/").startswith(folder.rstrip(b"/") + b"/")


def _and_above(prefix: bytes) -> list[bytes]:
    """Return a folder and those above it, up to the root: `a/b/`, `a/`, and the empty prefix."""
    parts = prefix.split(b"/")[:-1]
    return [b"/".join(parts[:count]) for count in range(len(parts) + 1)]


def _pieces(item: Item) -> list[Item]:
    """Cut a large folder's files into chunks; a sample's fields stay together."""
    if item.names is None or len(item.names) <= _CHUNK:
        return [item]
    pieces, done, names = [], 0, item.names
    while done < len(names):
        end = min(done + _CHUNK, len(names))
        while end < len(names) and names[end].partition(b"\0")[0] == names[end - 1].partition(b"\0")[0]:
            end += 1
        pieces.append(item._replace(names=names[done:end]))
        done = end
    return pieces


def _add(part: ScanPart, root: bytes, item: Item) -> None:
    """Stat files that are sorted by key, and append them."""
    prefix, names = item.prefix, item.names or []
    facts = _stat_all(root, item, part.skipped)
    if None in facts:
        names = [name for name, fact in zip(names, facts, strict=True) if fact is not None]
    found = [fact for fact in facts if fact is not None]
    part.sizes.extend([fact.st_size for fact in found])
    part.mtimes.extend([fact.st_mtime_ns for fact in found])
    changed_ns = item.changed_ns
    part.changed.extend([changed if (changed := fact.st_ctime_ns) > changed_ns else changed_ns for fact in found])
    if item.links:
        for at, name in enumerate(names, len(part.changed) - len(names)):
            if name in item.links:
                part.changed[at] = ALWAYS
    part.kinds += bytes([LINK if name in item.links else FILE for name in names]) if item.links else bytes(len(names))
    add_names(part, prefix, names)


def add_names(part: ScanPart, prefix: bytes, names: list[bytes]) -> None:
    """Append the keys and fields of files of a folder, sorted names with a NUL between stem and field."""
    keys, counts, fields, last = part.keys, part.counts, part.fields, None
    codes = []
    for name in names:
        stem, _, ending = name.partition(b"\0")
        if stem == last:
            counts[-1] += 1
        else:
            keys.append(prefix + stem)
            counts.append(1)
            last = stem
        try:
            codes.append(fields[ending])
        except KeyError:
            codes.append(fields.setdefault(ending, len(fields)))
    part.codes.extend(codes)


def _stat_all(root: bytes, item: Item, skipped: list[Skipped]) -> list[os.stat_result | None]:
    """Return what stat says of each file, in order; None, and a row of `skipped`, for those that it fails on."""
    links = item.links
    facts: list[os.stat_result | None] = []
    try:
        folder = os.open(root + item.prefix, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        skipped.append(_failure(b"", item.prefix, error))
        return [None] * len(item.names or ())
    try:
        for name in item.names or ():
            file = name.replace(b"\0", b".", 1)
            try:
                facts.append(os.stat(file, dir_fd=folder, follow_symlinks=name in links))
            except OSError as error:
                stem = name.partition(b"\0")[0]
                skipped.append(_failure(item.prefix + stem, item.prefix + file, error))
                facts.append(None)
    finally:
        os.close(folder)
    return facts


def _skip(key: bytes, path: bytes, code: SkipCode, message: str) -> Skipped:
    return Skipped(to_text(key), to_text(path), code, message)


def _key(rules: ScanRules, prefix: bytes, name: bytes) -> bytes:
    split = split_name(name, rules.dots)
    return prefix + split[0] if split else b""


def no_field(prefix: bytes, name: bytes) -> Skipped:
    """Return a file whose name has no field, as a row of what was left out."""
    return _skip(b"", prefix + name, "no-field", "the name has no ending that could name a field")


def _failure(key: bytes, path: bytes, error: OSError) -> Skipped:
    return _skip(key, path, *_path_failure(error))


# Files of a store or an archive: the same samples as of a folder, by the same rules and in the same order.


_HEAVY = ("shardtool.dataset.shard_index", "shardtool.plan.plan")  # NumPy and pyarrow
_LISTED = 1000  # objects between two reports
_SORTED = 2**16  # files at a time


def of_folder(known: dict[bytes, Fact], folder: bytes, of_below: Callable[[Fact, bytes], Fact]) -> Fact:
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


class NamedFiles:
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
        if not of_folder(self.folders, above, self._takes_below):
            return None
        if rules.hides(name):
            pass_over(rules, above, name, self.part)
            return None
        if not rules.takes_file(above, name):
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

        from shardtool.entries.entries import Names

        part, names = self.part, Names(bytes(self._names), np.array(self._starts, np.int64))
        for path, size in self._no_field.items():
            if size or path + b"/" not in self.folders:
                part.skipped.append(no_field(b"", path))
        facts, order = np.array(self._facts, np.int64).reshape(-1, 3), names.sorted_order()
        empty = order[facts[order, 0] == 0].tolist()
        markers = [at for at in empty if names[at].replace(b"\0", b".") + b"/" in self.folders]
        order = order[~np.isin(order, markers)]
        keys, last, field_before, twice = bytearray(), None, None, list[bytes]()
        for first in range(0, len(order), _SORTED):
            both = names.gather(order[first : first + _SORTED]).split(b"\0")
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
            shown = listing([printable(name) for name in twice])
            problem = f"{counted(len(twice), 'name')} of several members: {shown}"
            raise InvalidRequest(where, problem, expected="each file once", remedy="Make the archive anew.")
        part.keys = [bytes(keys)]
        found: NDArray[np.int64] = facts[order].T
        return found

    def _takes_below(self, taken: bool, folder: bytes) -> bool:  # noqa: FBT001 - it is a value of `folders`
        """Tell whether a folder is looked into; `taken`: whether the one above is."""
        start = folder.rfind(b"/", 0, -1) + 1
        above, name = folder[:start], folder[start:-1]
        if taken and self._rules.hides(name):
            pass_over(self._rules, above, name, self.part)
            return False
        return taken and self._rules.takes_folder(above, name)


class Tree(NamedTuple):
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
        if is_place(self.root):
            return [self._scan_objects(observer)]
        pool.check((self.root,))
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

    def _scan_objects(self, observer: Observer) -> ScanPart:
        where, total = to_text(self.root), 0

        def reported() -> Iterator[BucketEntry]:
            nonlocal total
            for total, one in enumerate(objects_below(where), 1):
                yield one
                if total % _LISTED == 0:
                    observer.listed(_LISTED)

        part = part_of(reported(), self.rules)
        observer.listed(total % _LISTED)
        if not total:
            raise InvalidRequest(where, "nothing lies there", expected="a prefix with samples below it")
        return part


def _import_heavy() -> None:
    """Import what takes long of what comes after the listing."""
    with suppress(Exception):  # whoever needs it imports it again, and says what is wrong
        for name in _HEAVY:
            importlib.import_module(name)


def part_of(objects: Iterable[BucketEntry], rules: ScanRules) -> ScanPart:
    """Return the files that objects are, in key order, as far as the rules take them."""
    files = NamedFiles(rules)
    for one in objects:
        if name := files.split(to_bytes(one.key), one.size):
            files.add(name, one.size, one.version, one.changed_ns if one.version else ALWAYS)
    part, facts = files.part, files.in_order("")
    part.sizes, part.mtimes, part.changed = (array("q", fact.tobytes()) for fact in facts)
    part.kinds = bytearray([FILE]) * len(part.sizes)
    return part


# Look at the files that a manifest lists: the half of that source that runs in workers.
#
# What comes back is columns of plain bytes, a row per path, in the order of the paths. No file is
# opened, and neither NumPy nor pyarrow is imported (see `scan`).


class ListedTask(NamedTuple):
    """Files for one worker.

    Attributes:
        root: What paths count from, ending in a slash.
        paths: A NUL after each.
        outside: Whether what a path leads to may lie outside of `root`.
    """

    root: bytes
    paths: bytes
    outside: bool


class ListedPart(NamedTuple):
    """The files that were found, one per path.

    Attributes:
        kinds: FILE or LINK.
        facts: int64[paths, 4]: bytes; when they were modified and the latest time at which anything could have changed
            what the path gives, in nanoseconds; and 0, or one more than the place in `problems`: all else is 0 then.
        problems: (code, message), each once.
    """

    kinds: bytes
    facts: bytes
    problems: list[tuple[SkipCode, str]]


class _Folder(NamedTuple):
    """A folder on the way to files: whether a link is on the way, when it last changed, what is wrong with it."""

    linked: bool
    changed_ns: int
    problem: tuple[SkipCode, str] | None


class _Seen(NamedTuple):
    """What is at a path: its kind, and facts as in `ListedPart`, or why it cannot be packed."""

    kind: int = FILE
    size: int = 0
    mtime_ns: int = 0
    changed_ns: int = 0
    problem: tuple[SkipCode, str] | None = None


def stat_listed(task: ListedTask) -> ListedPart:
    """Look at the files, or objects, of a task.

    Raises:
        AccessRefused: We may not look at objects.
        StoreFailed: The store or server fails time and again.
    """
    paths, kinds, facts = task.paths[:-1].split(b"\0"), bytearray(), array("q")
    found: dict[tuple[SkipCode, str], int] = {}
    if is_place(task.root):
        all_seen: Iterable[_Seen] = together(_look_at_object, [task.root + path for path in paths])
    else:
        all_seen = map(_Files(task.root, outside=task.outside).look_at, paths)
    for kind, size, mtime_ns, changed_ns, problem in all_seen:
        kinds.append(kind)
        number = 0 if problem is None else found.setdefault(problem, len(found) + 1)
        facts.extend((size, mtime_ns, changed_ns, number))
    return ListedPart(bytes(kinds), facts.tobytes(), [*found])


class _Files:
    """Looks at files below a root, and at each folder on the way once.

    Args:
        root: Ending in a slash.
        outside: Whether links may lead out of it.
    """

    def __init__(self, root: bytes, *, outside: bool) -> None:
        self._root, self._outside = root, outside
        self._real = os.path.realpath(root).rstrip(b"/") + b"/"
        changed = max(os.lstat(root.rstrip(b"/") or b"/").st_ctime_ns, os.stat(root).st_ctime_ns)
        self._device = os.stat(root).st_dev
        self._folders = {b"": _Folder(linked=False, changed_ns=changed, problem=None)}

    def look_at(self, path: bytes) -> _Seen:
        """Return what is at a path, relative to the root."""
        folder, kind = of_folder(self._folders, path[: path.rfind(b"/") + 1], self._below), FILE
        if folder.problem is not None:
            return _Seen(problem=folder.problem)
        try:
            fact = os.lstat(self._root + path)
            if stat.S_ISLNK(fact.st_mode):
                kind = LINK
                if problem := self._outside_problem(self._root + path):
                    return _Seen(problem=problem)
                fact = os.stat(self._root + path)
        except OSError as error:
            return _Seen(problem=_link_failure(error) if kind == LINK else _path_failure(error))
        if not stat.S_ISREG(fact.st_mode):
            what = "a folder" if stat.S_ISDIR(fact.st_mode) else _SPECIAL
            return _Seen(problem=("special-file", what))
        changed_ns = ALWAYS if kind == LINK else max(fact.st_ctime_ns, folder.changed_ns)
        return _Seen(kind, fact.st_size, fact.st_mtime_ns, changed_ns)

    def _below(self, above: _Folder, prefix: bytes) -> _Folder:
        if above.problem is not None:
            return above
        path = self._root + prefix
        try:
            fact = os.lstat(path[:-1])
            linked = above.linked or stat.S_ISLNK(fact.st_mode)
            sure = not linked and fact.st_dev == self._device
            problem = self._outside_problem(path) if linked else None
        except OSError as error:
            return _Folder(linked=above.linked, changed_ns=0, problem=_path_failure(error))
        return _Folder(linked, max(above.changed_ns, fact.st_ctime_ns) if sure else ALWAYS, problem)

    def _outside_problem(self, path: bytes) -> tuple[SkipCode, str] | None:
        if self._outside or (os.path.realpath(path) + b"/").startswith(self._real):
            return None
        return "link-outside", f"leads out of the root by a link; {typed_option('allow_outside', value=True)} packs it"


def _path_failure(error: OSError) -> tuple[SkipCode, str]:
    gone = isinstance(error, FileNotFoundError | NotADirectoryError)
    return "vanished" if gone else "unreadable", reason(error)


def _look_at_object(place: bytes) -> _Seen:
    try:
        fact = file_fact(place)
    except OSError as error:
        return _Seen(problem=_path_failure(error))
    version = fact.st_mtime_ns  # it shows each change, and no clock does
    return _Seen(FILE, fact.st_size, version, 0 if version else ALWAYS)

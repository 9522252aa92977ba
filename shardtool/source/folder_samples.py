"""The folder source: a tree of files becomes `Entries`.

A sample is the files that share a key. What a tree holds besides samples is not passed over in
silence: it is returned beside them, and `create` decides what that means.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import pyarrow as pa

from shardtool.entries.arrow import number_array, strings
from shardtool.entries.classes import Classes, number_classes
from shardtool.entries.entries import Entries, FieldRows, Names
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.select.fields import Field, check_count, with_fields
from shardtool.source.scan import ALWAYS, ScanPart, ScanRules, no_field, pass_over
from shardtool.storage.places import objects_below
from shardtool.values import FILE, INLINE, SPLIT_NAMES, counted, split_name, to_bytes, to_text
from shardtool.wording import either, flag, option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.skipped import Skipped
    from shardtool.storage.remote.stores import BucketEntry

COLUMNS = ("key", "path", "folder", "size")
_WILD = re.compile(rb"[*?\[]")  # what a glob does not take for itself


def collect(root: bytes, parts: list[ScanPart]) -> tuple[Entries, tuple[Skipped, ...]]:
    """Return the samples that were found below `root`, and what else there is.

    Args:
        root: Ending in a slash.
        parts: What `share_out` and `scan` found, in key order.

    Raises:
        InvalidRequest: Too many different fields.
    """
    skipped = sorted([one for part in parts for one in part.skipped], key=lambda one: to_bytes(one.path))
    names = sorted({name for part in parts for name in part.fields})
    remedy = f"If the names have dots in them, {option('dots', 'last')} makes the last ending the field."
    check_count(printable(root), names, remedy)
    place = {name: at for at, name in enumerate(names)}
    codes = [np.zeros(0, np.uint16)]
    for part in parts:
        own = np.array([place[name] for name in part.fields], np.uint16)
        codes.append(own[np.frombuffer(part.codes, np.uint32)])
    counts = np.frombuffer(b"".join(part.counts for part in parts), np.uint32)
    entries = Entries(
        root=root,
        keys=Names.parse(b"".join(part.keys[0] for part in parts)),
        first=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64))),
        fields=tuple(to_text(name) for name in names),
        rows=FieldRows(
            code=np.concatenate(codes),
            kind=np.frombuffer(b"".join(part.kinds for part in parts), np.uint8),
            size=np.frombuffer(b"".join(part.sizes for part in parts), np.int64),
            mtime_ns=np.frombuffer(b"".join(part.mtimes for part in parts), np.int64),
            changed_ns=np.frombuffer(b"".join(part.changed for part in parts), np.int64),
        ),
    )
    return without_torn(entries, skipped), tuple(skipped)


def without_torn(entries: Entries, skipped: Iterable[Skipped]) -> Entries:
    """Return the samples that lost no field: the others are left out whole."""
    torn = {to_bytes(one.key) for one in skipped if one.key}
    if not torn:
        return entries
    return entries.take(np.array([at for at in range(len(entries)) if entries.keys[at] not in torn], np.int64))


def check_torn(entries: Entries) -> None:
    """Refuse names that WebDataset's rule would tear apart, such as `scan.2019.01.jpg`, unless a rule was asked for.

    A field with a dot is common (`a.seg.png`). It is suspicious where a part of it is a number, or
    where nearly every file has such a field of its own.

    Raises:
        InvalidRequest: Names look torn.
    """
    dotted = [code for code, name in enumerate(entries.fields) if "." in name]
    if not dotted:
        return
    uses = np.bincount(entries.rows.code, minlength=len(entries.fields))
    numbered = [
        code for code in dotted if any(part.isdigit() or not part for part in entries.fields[code].split(".")[:-1])
    ]
    rows = int(uses[dotted].sum())
    lonely = len(dotted) > 1 and len(entries) > 1 and rows < 2 * len(dotted)
    if not numbered and not lonely:
        return
    row = int(np.flatnonzero(entries.rows.code == (numbered or dotted)[0])[0])
    name = printable(entries.path(row))
    field = printable(entries.fields[entries.rows.code[row]])
    key = printable(entries.keys[int(entries.owners(row))])
    found = f"dots in {counted(rows, 'name')}: WebDataset's rule makes this one's key {key!r}, its field {field!r}"
    remedy = (
        f"Choose {option('dots', 'last')} (only the last ending is the field; add {flag('portable')} for "
        f"readers that end the key at the first dot), or {option('dots', 'first')} if that is what you want."
    )
    raise InvalidRequest(name, found, remedy=remedy)


def label_from_folder(
    entries: Entries, known: Classes | None = None, *, depth: int = 0, skipped: Iterable[Skipped] = ()
) -> Entries:
    """Give each sample the field `cls`: the number of its top folder, in the order of the bytes of their names.

    This is torchvision's ImageFolder convention.

    Args:
        entries: The samples, sorted by their keys.
        known: The numbers that classes have already.
        depth: How many folders lie above those of the classes.
        skipped: What is not among the samples, but in folders of classes.

    Raises:
        InvalidRequest: Samples lie beside the class folders, or have a field `cls` already.
    """
    if not len(entries):
        return entries
    if "cls" in entries.fields:
        raise InvalidRequest(option("label_from_folder"), "the samples have a field 'cls' already")
    expected = "paths such as SPLIT/CLASS/FILE" if depth else "paths such as CLASS/FILE"
    spans = _folders(entries.keys, depth, ("label_from_folder", expected))
    # A class keeps its number where all of its samples are left out: it is there, and may be read tomorrow.
    paths = [to_bytes(one.path).split(b"/") for one in skipped if one.code != "no-field"]
    failed = {parts[depth] for parts in paths if len(parts) > depth + 1}
    number, names = number_classes({*(name for _, _, name in spans), *failed}, "cls", known)
    label = np.repeat(np.array([number[name] for _, _, name in spans]), [high - low for low, high, _ in spans])
    labels = Names.of(b"%d" % at for at in range(len(names))).take(label)
    every = np.ones(len(entries), bool)
    return with_fields(entries, [Field("cls", labels, every, "int64", names, number_array(label))])


def split_folders(keys: Names, *, in_order: bool = True) -> pa.ChunkedArray:
    """Return the name of the top folder of each sample, which says its split.

    Args:
        keys: One per sample.
        in_order: Whether they are sorted.

    Raises:
        InvalidRequest: Samples lie beside these folders.
    """
    if not in_order:
        order = keys.sorted_order()
        return split_folders(keys.take(order)).take(number_array(np.argsort(order)))
    spans = _folders(keys, 0, ("split_from_folder", "paths such as SPLIT/FILE"))
    which = np.repeat(np.arange(len(spans)), [high - low for low, high, _ in spans])
    return pa.chunked_array([strings([name for _, _, name in spans]).take(number_array(which))])


def split_note(entries: Entries) -> tuple[str, ...]:
    """Return what the user should know of classes that are called like splits."""
    classes = entries.values.classes.get("cls", [])
    found = [name for name in classes if name.lower() in SPLIT_NAMES]
    if len(found) < min(2, len(classes)) or not found:
        return ()
    shown = listing(found)
    label, split = option("label_from_folder"), option("split_from_folder")
    return (f"{label} takes {shown} for classes: {split} takes them for splits, and labels below",)


def _folders(keys: Names, depth: int, asked: tuple[str, str]) -> list[tuple[int, int, bytes]]:
    """Return where the samples of each folder start and end, and its name, `depth` folders below the top.

    Keys are sorted, so this is a few bisections.

    Args:
        keys: One per sample.
        depth: How many folders lie above.
        asked: The option that wants to know, and what it expects.

    Raises:
        InvalidRequest: Samples lie beside these folders.
    """
    spans, beside = [(0, len(keys), b"")], list[str]()
    for _ in range(depth + 1):
        found = []
        for low, high, above in spans:
            at = low
            while at < high:
                name, slash, _rest = keys[at][len(above) :].partition(b"/")
                if not slash:
                    path = printable(_WILD.sub(rb"[\g<0>]", keys[at]))
                    beside.append(path + ".*" if b"/" in keys[at] else f"./{path}.*")  # as `exclude` takes it
                    at += 1
                    continue
                end = bisect_left(cast("Sequence[bytes]", keys), above + name + b"0", at, high)  # "0" follows "/"
                found.append((at, end, above + name + b"/"))
                at = end
        spans = found
    if beside:
        problem = f"{counted(len(beside), 'sample')} in no such folder: {listing(beside)}"
        left_out = either(f"exclude=({beside[0]!r}, ...)", f"--exclude {quote(beside[0])}")
        remedy = f"Move them, or leave them out: {left_out}."
        raise InvalidRequest(option(asked[0]), problem, expected=asked[1], remedy=remedy)
    return [(low, high, path.split(b"/")[depth]) for low, high, path in spans]


def table_of(entries: Entries) -> pa.Table:
    """Return what `--where` and splits can ask of a folder's samples, a row each.

    It is their metadata and, where they have no such column, `COLUMNS`: `path` is that of the sample's first file,
    `folder` what stands before the key's last slash, and `size` the bytes of all its files.
    """
    keys, chunks, kinds = entries.keys, [], entries.rows.kind
    files = np.append(np.flatnonzero(kinds != INLINE), len(kinds))
    sizes = np.where(kinds == INLINE, 0, entries.rows.size)
    for first, names in keys.chunks():
        ends = entries.first[first : first + len(names) + 1]
        paths = entries.paths(files[np.searchsorted(files, ends[:-1])])
        folders = [name.rpartition(b"/")[0] for name in names]
        totals = np.add.reduceat(sizes[: ends[-1]], ends[:-1])
        texts = map(strings, (names, paths, folders))
        chunks.append(pa.RecordBatch.from_arrays([*texts, number_array(totals)], names=list(COLUMNS)))
    schema = pa.schema([*((name, pa.string()) for name in COLUMNS[:-1]), (COLUMNS[-1], pa.int64())])
    own, table = pa.Table.from_batches(chunks, schema=schema), entries.metadata
    if table is None:
        return own
    own = own.select([name for name in COLUMNS if name not in table.column_names])
    return pa.Table.from_arrays([*table.columns, *own.columns], names=[*table.column_names, *own.column_names])


# Files of a store or an archive: the same samples as of a folder, by the same rules and in the same order.


_LISTED = 1000  # objects between two reports
_CHUNK = 2**16  # files at a time


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
        if not self._looks_into(above):
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
        part, names = self.part, Names(bytes(self._names), np.array(self._starts, np.int64))
        for path, size in self._no_field.items():
            if size or path + b"/" not in self.folders:
                part.skipped.append(no_field(b"", path))
        facts, order = np.array(self._facts, np.int64).reshape(-1, 3), names.sorted_order()
        empty = order[facts[order, 0] == 0].tolist()
        markers = [at for at in empty if names[at].replace(b"\0", b".") + b"/" in self.folders]
        order = order[~np.isin(order, markers)]
        keys, last, field_before, twice = bytearray(), None, None, list[bytes]()
        for first in range(0, len(order), _CHUNK):
            both = names.gather(order[first : first + _CHUNK]).split(b"\0")
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

    def _looks_into(self, folder: bytes) -> bool:
        """Tell whether a folder, empty or ending in a slash, is looked into, and all that it lies in."""
        unknown = []
        while folder not in self.folders:  # no recursion: a path may have a thousand parts
            unknown.append(folder)
            folder = folder[: folder.rfind(b"/", 0, -1) + 1]
        taken = self.folders[folder]
        for below in reversed(unknown):
            name = below[len(folder) : -1]
            if taken and self._rules.hides(name):
                pass_over(self._rules, folder, name, self.part)
                taken = False
            taken = taken and self._rules.takes_folder(folder, name)
            self.folders[below], folder = taken, below
        return taken


class ObjectTree(NamedTuple):
    """A prefix to list; `root` is its address, ending in a slash.

    A listing is one stream of names, in the order of the store. So the parent reads it; no object is asked for.
    """

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
        return [part]


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

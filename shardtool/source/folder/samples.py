"""The folder source: a tree of files becomes `Entries`.

A sample is the files that share a key. What a tree holds besides samples is not passed over in
silence: it comes back as `left_out`, and `create` decides what that means.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardtool.entries.classes import number_classes
from shardtool.entries.entries import Entries
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.names import Names
from shardtool.values import INLINE, NO_FIELD, SPLIT_NAMES, counted, to_bytes, to_text

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.entries.classes import Classes
    from shardtool.source.folder.scan import ScanPart
    from shardtool.values import Skipped

Number = TypeVar("Number", np.uint32, np.int64)
COLUMNS = ("key", "path", "folder", "size")
_FIELD_LIMIT = 2**16 - 1


def collect(root: bytes, parts: list[ScanPart], left_out: list[Skipped]) -> Entries:
    """Return the samples that were found below `root`.

    Args:
        root: Ending in a slash.
        parts: What `scan` returned, in key order.
        left_out: What the top of the tree holds besides samples.

    Raises:
        InvalidRequest: Too many different fields.
    """
    left_out = sorted(
        [*left_out, *(one for part in parts for one in part.left_out)], key=lambda one: to_bytes(one.path)
    )
    names = sorted({name for part in parts for name in part.fields})
    if len(names) > _FIELD_LIMIT:
        raise InvalidRequest(
            printable(root), f"{len(names):,} different fields, such as {printable(names[0])!r}", expected="a few",
            remedy="If the names have dots in them, --dots last makes the last ending the field.",
        )  # fmt: skip
    place = {name: at for at, name in enumerate(names)}
    codes = [
        np.array([place[name] for name in part.fields], np.uint16)[np.frombuffer(part.codes, np.uint32)]
        for part in parts
        if part.fields
    ]
    torn = {to_bytes(one.key) for one in left_out if one.key}
    counts = _joined((part.counts for part in parts), np.uint32).astype(np.int64)
    entries = Entries(
        root=root,
        keys=Names.parse(b"".join(part.keys[0] for part in parts)),
        first=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
        fields=tuple(to_text(name) for name in names),
        code=np.concatenate(codes) if codes else np.zeros(0, np.uint16),
        kind=np.frombuffer(b"".join(part.kinds for part in parts), np.uint8),
        size=_joined((part.sizes for part in parts), np.int64),
        mtime_ns=_joined((part.mtimes for part in parts), np.int64),
        changed_ns=_joined((part.changed for part in parts), np.int64),
        left_out=tuple(left_out),
    )
    if not torn:
        return entries
    # A sample that lost a field is left out whole.
    whole = [sample for sample in range(len(entries)) if entries.keys[sample] not in torn]
    return entries.take(np.array(whole, np.int64))


def _joined(parts: Iterable[array[int]], kind: type[Number]) -> NDArray[Number]:
    arrays = [np.frombuffer(part, kind) for part in parts if len(part)]
    return np.concatenate(arrays) if arrays else np.zeros(0, kind)


def check_torn(entries: Entries) -> None:
    """Refuse names that WebDataset's rule would tear apart, such as `scan.2019.01.jpg`, before anybody chose.

    A field with a dot is common (`a.seg.png`). It is suspicious where a part of it is a number, or
    where nearly every file has such a field of its own.

    Raises:
        InvalidRequest: Names look torn.
    """
    dotted = [code for code, name in enumerate(entries.fields) if "." in name]
    if not dotted:
        return
    uses = np.bincount(entries.code, minlength=len(entries.fields))
    numbered = [
        code for code in dotted if any(part.isdigit() or not part for part in entries.fields[code].split(".")[:-1])
    ]
    rows = int(uses[dotted].sum())
    lonely = len(dotted) > 1 and len(entries) > 1 and rows < 2 * len(dotted)
    if not numbered and not lonely:
        return
    row = int(np.flatnonzero(entries.code == (numbered or dotted)[0])[0])
    name = printable(entries.path(row))
    field = printable(entries.fields[entries.code[row]])
    key = printable(entries.keys[int(np.searchsorted(entries.first, row, "right")) - 1])
    raise InvalidRequest(
        name, f"dots in {counted(rows, 'name')}: WebDataset's rule makes this one's key {key!r}, its field {field!r}",
        remedy="Choose --dots last (only the last ending is the field; add --portable for readers that end the key at "
        "the first dot), or --dots first if that is what you want.",
    )  # fmt: skip


def label_from_folder(entries: Entries, known: Classes | None = None, *, depth: int = 0) -> Entries:
    """Give each sample the field `cls`: the number of its top folder, in the order of the bytes of their names.

    This is torchvision's ImageFolder convention.

    Args:
        entries: The samples, sorted by their keys.
        known: The numbers that classes have already.
        depth: How many folders lie above those of the classes.

    Raises:
        InvalidRequest: Samples lie beside the class folders, or have a field `cls` already.
    """
    if not len(entries):
        return entries
    if "cls" in entries.fields:
        raise InvalidRequest("--label-from-folder", "the samples have a field 'cls' already")
    expected = "SOURCE/SPLIT/CLASS/FILE" if depth else "SOURCE/CLASS/FILE"
    spans = _folders(entries.keys, depth, ("--label-from-folder", expected))
    # A class keeps its number where all of its samples are left out: it is there, and may be read tomorrow.
    paths = [to_bytes(one.path).split(b"/") for one in entries.left_out if one.code != NO_FIELD]
    failed = {parts[depth] for parts in paths if len(parts) > depth + 1}
    number, names = number_classes({*(name for _, _, name in spans), *failed}, "cls", known)
    label = np.repeat(np.array([number[name] for _, _, name in spans]), [high - low for low, high, _ in spans])
    fields = tuple(sorted((*entries.fields, "cls"), key=to_bytes))
    cls = fields.index("cls")
    code = np.array([fields.index(name) for name in entries.fields], np.uint16)[entries.code]
    before = np.add.reduceat(code < cls, entries.first[:-1]).astype(np.int64)
    at = entries.first[:-1] + before
    labels = Names.of(b"%d" % at for at in range(len(names))).take(label)
    return replace(
        entries,
        first=entries.first + np.arange(len(entries) + 1),
        fields=fields,
        code=np.insert(code, at, cls),
        kind=np.insert(entries.kind, at, INLINE),
        size=np.insert(entries.size, at, labels.lengths()),
        mtime_ns=np.insert(entries.mtime_ns, at, 0),
        changed_ns=np.insert(entries.changed_ns, at, 0),
        inline={"cls": labels},
        numbers={"cls": "int64"},
        classes={"cls": names},
    )


def split_folders(keys: Names) -> pa.ChunkedArray:
    """Return the name of the top folder of each sample, which says its split.

    Raises:
        InvalidRequest: Samples lie beside these folders.
    """
    import pyarrow as pa

    from shardtool.entries.arrow import number_array, strings

    spans = _folders(keys, 0, ("--split-from-folder", "SOURCE/SPLIT/FILE"))
    which = np.repeat(np.arange(len(spans)), [high - low for low, high, _ in spans])
    return pa.chunked_array([strings([name for _, _, name in spans]).take(number_array(which))])


def split_note(entries: Entries) -> str:
    """Return what the user should know of classes that are called like splits; empty for others."""
    classes = entries.classes.get("cls", [])
    found = [name for name in classes if name.lower() in SPLIT_NAMES]
    if len(found) < min(2, len(classes)) or not found:
        return ""
    shown = listing(found)
    return f"--label-from-folder takes {shown} for classes: --split-from-folder takes them for splits, and labels below"


def _folders(keys: Names, depth: int, option: tuple[str, str]) -> list[tuple[int, int, bytes]]:
    """Return where the samples of each folder start and end, and its name, `depth` folders below the top.

    Keys are sorted, so this is a few bisections.

    Args:
        keys: One a sample.
        depth: How many folders lie above.
        option: Who wants to know, and what it expects.

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
                    beside.append(printable(keys[at]))
                    at += 1
                    continue
                end = _end_of(keys, at, high, above + name + b"0")  # "0" follows "/"
                found.append((at, end, above + name + b"/"))
                at = end
        spans = found
    if beside:
        raise InvalidRequest(
            option[0], f"{counted(len(beside), 'sample')} in no such folder: {listing(beside)}",
            expected=option[1], remedy="Move them, or leave them out with --exclude.",
        )  # fmt: skip
    return [(low, high, path.split(b"/")[depth]) for low, high, path in spans]


def _end_of(keys: Names, low: int, high: int, end: bytes) -> int:
    """Return the first place from `low` to `high` whose key is not before `end`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if keys[middle] < end else (low, middle)
    return low


def table_of(entries: Entries) -> pa.Table:
    """Return what `--where` and splits can ask of a folder's samples: `COLUMNS`, a row a sample.

    `path` is that of the sample's first file, `folder` what stands before the key's last slash, and `size` the bytes
    of all its fields.
    """
    import pyarrow as pa

    from shardtool.entries.arrow import number_array, string_array

    keys, chunks = entries.keys, []
    first_paths = [b"." + to_bytes(name) for name in entries.fields]
    for first, names in keys.chunks():
        last = first + len(names)
        codes = entries.code[entries.first[first:last]].tolist()
        paths = [name + first_paths[code] for name, code in zip(names, codes, strict=True)]
        folders = [name.rpartition(b"/")[0] for name in names]
        sizes = np.add.reduceat(entries.size[: entries.first[last]], entries.first[first:last])
        texts = [
            string_array(b"".join(column), np.array([len(one) for one in column], np.int64))
            for column in (names, paths, folders)
        ]
        chunks.append(pa.RecordBatch.from_arrays([*texts, number_array(sizes)], names=list(COLUMNS)))
    schema = pa.schema([*((name, pa.string()) for name in COLUMNS[:-1]), (COLUMNS[-1], pa.int64())])
    return pa.Table.from_batches(chunks, schema=schema)

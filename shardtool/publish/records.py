"""The record that each part of a run leaves beside its shards, until the dataset file of all parts is there.

`.out.part03of64` is written last, so it exists only for a part that has ended. It holds what the dataset file says of
the part's shards, and what neither they nor their sidecars say: which plan they are of, and what was left out. What is
read of it is bounded and checked as a dataset file is.

Source: docs/format.md, "Parts".
"""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, cast

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, read_dataset
from shardtool.errors import CorruptShard, OutputExists, listing, printable, reason
from shardtool.fingerprint import crc32c
from shardtool.request.texts import MOST_PARTS, Part
from shardtool.skipped import SkipCode, Skipped
from shardtool.storage.places import join, read_small
from shardtool.values import counted, local_name, output_text, to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.pattern import ShardPattern
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import FileFact


# The list of what was left out, `out.skipped`: rows to bytes and back, and the rows of several runs in one list.
#
# Source: docs/format.md, "`out.skipped`".


_COLUMNS = ("key", "path", "code", "message")
LOOK = "`shardtool verify` shows what is damaged."  # a remedy


def wrong_size(where: str, found: int | None, wanted: int) -> CorruptShard:
    """Return what is wrong with a file of other bytes than the dataset file says; None: it is not there."""
    shown, expected = "no such file" if found is None else f"{found:,} bytes", f"{wanted:,} bytes"
    return CorruptShard(where, shown, expected=f"{expected}, as the dataset file says", remedy=LOOK)


def check_size(folder: OutputFolder, name: str, size: int, known: Mapping[str, FileFact] | None = None) -> None:
    """Check that a file is there, and as large as the dataset file says.

    Args:
        folder: Where it lies.
        name: Its name.
        size: Its bytes.
        known: What is known of the folder's files; None: it is asked for.

    Raises:
        CorruptShard: It is not.
    """
    fact = (folder.facts([name]) if known is None else known).get(name)
    if fact is None or fact.size != size:
        raise wrong_size(folder.full_path(name), None if fact is None else fact.size, size)


def encode_skipped(skipped: Iterable[Skipped]) -> bytes:
    """Return the bytes of the list of what was left out."""
    rows = [{name: printable(getattr(one, name)) for name in _COLUMNS} for one in skipped]
    return b"".join(json.dumps(row, ensure_ascii=True).encode() + b"\n" for row in rows)


def read_skipped(data: bytes, where: str) -> list[Skipped]:
    """Return the rows of a list.

    Args:
        data: Its bytes.
        where: Its name, for messages.

    Raises:
        CorruptShard: It is none.
    """
    try:
        rows = [[str(json.loads(line)[name]) for name in _COLUMNS] for line in data.splitlines()]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptShard(where, f"no list of what was left out: {str(error)[:200]}", remedy=LOOK) from None
    return [Skipped(key, path, cast("SkipCode", code), message) for key, path, code, message in rows]


def skipped_bytes(file: DatasetFile, folder: str) -> bytes:
    """Return the list of what was left out of a dataset, checked by what its dataset file says; empty: there is none.

    Args:
        file: What the dataset file says.
        folder: Where that lies.

    Raises:
        CorruptShard: The list cannot be read, or is another.
    """
    where = join(folder, file.skipped_file)
    try:
        data = read_small(where) if file.skipped else b""
    except OSError as error:
        raise CorruptShard(where, reason(error), remedy=LOOK) from None
    check_skipped_file(data, file, where)
    return data


def check_skipped_file(data: bytes, dataset: DatasetFile, where: str) -> None:
    """Check that a list, empty where there is none, is the one in the dataset file.

    Raises:
        CorruptShard: It is another.
    """
    rows = data.count(b"\n")
    if rows != dataset.skipped:
        expected = f"{dataset.skipped:,}, as the dataset file says"
        raise CorruptShard(where, counted(rows, "row"), expected=expected, remedy=LOOK)
    if dataset.skipped_crc not in (None, crc32c(data)):
        raise CorruptShard(where, "its checksum is not the one in the dataset file", remedy=LOOK)


def skipped_rows(file: DatasetFile, folder: str) -> list[Skipped]:
    """Return the list of what was left out of a dataset.

    Args:
        file: What the dataset file says.
        folder: Where that lies.

    Raises:
        CorruptShard: The list cannot be read, or is another.
    """
    return read_skipped(skipped_bytes(file, folder), join(folder, file.skipped_file))


def merged(old: Sequence[Skipped], new: Iterable[Skipped]) -> list[Skipped]:
    """Return the rows of an older list, in its order, and newer ones among them."""
    rows = [Skipped(printable(one.key), printable(one.path), one.code, printable(one.message)) for one in new]
    rows.sort(key=lambda one: (*_place(one), one.code, one.message))
    return list(heapq.merge(old, rows, key=_place))


def unmerged(rows: Iterable[Skipped], newer: Iterable[Skipped]) -> list[Skipped]:
    """Return what `merged` was given as the older list, from what it gave, and the newer ones."""
    left = Counter(merged((), newer))
    found = []
    for one in rows:
        if left[one]:
            left[one] -= 1
        else:
            found.append(one)
    return found


def _place(one: Skipped) -> tuple[bytes, bytes]:
    return to_bytes(one.path), to_bytes(one.key)


_HEAD = b"shardtool part 1 crc32c:%08x\n"  # the version of the record, and the checksum of what follows
_HEAD_SIZE = len(_HEAD % 0)
_PLAN = re.compile(r"[0-9a-f]{32}")
_CONTENT = re.compile(r"b2:[0-9a-f]{64}|")
_MOST = 2**62
_LOCK = ".lock"


class PartRecord(NamedTuple):
    """What a part has left.

    Attributes:
        part: The part.
        plan: The fingerprint of the plan of all parts.
        planned: How many shards that plan has.
        resumed: Whether the part went on with what was there, so that what the plan does not have may be removed.
        content: The content fingerprint that all parts together must have; empty: it is not known.
        dataset: What the dataset file says of its shards; None: it has none.
        skipped: What it left out, in the order of the list.
    """

    part: Part
    plan: str
    planned: int
    resumed: bool
    content: str
    dataset: DatasetFile | None
    skipped: tuple[Skipped, ...]

    def encode(self) -> bytes:
        """Return the bytes of the record."""
        document = {
            "part": self.part.number,
            "parts": self.part.parts,
            "plan": self.plan,
            "planned": self.planned,
            "resumed": self.resumed,
            "content": self.content,
            "dataset": "" if self.dataset is None else self.dataset.encode().decode(),
            "skipped": [[one.key, one.path, one.code, one.message] for one in self.skipped],
        }
        body = json.dumps(document, indent=1, ensure_ascii=True).encode() + b"\n"
        return _HEAD % crc32c(body) + body


def record_name(pattern: ShardPattern, part: Part) -> str:
    """Return the name of a part's record."""
    return f".{pattern.base}.{part.tag}"


def read_record(folder: OutputFolder, pattern: ShardPattern, part: Part) -> PartRecord:
    """Return what the record of a part says: that the files are there is not known, and what they hold neither.

    Raises:
        CorruptShard: It is damaged, or no record of this part.
    """
    where = folder.full_path(record_name(pattern, part))
    try:
        data = folder.read(record_name(pattern, part))
        return _parse(data, pattern, part, where)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, CorruptShard) as error:
        found = reason(error) if isinstance(error, OSError) else getattr(error, "found", error)
        remedy = f"Remove it, and run {option('part', str(part))} again with {option('if_exists', 'resume')}."
        raise CorruptShard(where, f"no record of a part: {str(found)[:200]}", remedy=remedy) from None


def _parse(data: bytes, pattern: ShardPattern, part: Part, where: str) -> PartRecord:
    body = data[_HEAD_SIZE:]
    if data[:_HEAD_SIZE] != _HEAD % crc32c(body):
        raise ValueError("its checksum is not that of its bytes, or its version is not this program's")
    document = json.loads(body)
    planned, resumed = document["planned"], document["resumed"]
    texts = [document[name] for name in ("plan", "content", "dataset")]
    if (document["part"], document["parts"]) != (part.number, part.parts):
        raise ValueError(f"that of {document['part']!r:.40}/{document['parts']!r:.40}")
    if type(planned) is not int or not 0 < planned < _MOST or type(resumed) is not bool:
        raise TypeError(f"{planned!r:.40} planned shards, resumed {resumed!r:.40}")
    plan, content, dataset = (one if isinstance(one, str) else "?" for one in texts)
    if not _PLAN.fullmatch(plan) or not _CONTENT.fullmatch(content):
        raise ValueError(f"the plan {plan!r:.80} or the content {content!r:.80}")
    rows = document["skipped"]
    if not isinstance(rows, list) or not all(isinstance(row, list) and [*map(type, row)] == [str] * 4 for row in rows):
        raise TypeError("no list of what was left out")
    skipped = tuple(Skipped(*row) for row in rows)  # names as they are: the order of the list is that of their bytes
    file = read_dataset(dataset.encode(), where) if dataset else None
    if file is not None:
        check_skipped_file(encode_skipped(skipped), file, where)
    own = part.shards(planned)
    names = [shard.name for shard in file.shards] if file else []
    if len(names) != len(own) or (pattern.count is not None and planned > pattern.count):
        raise ValueError(f"{len(names):,} shards, of {planned:,} in all")
    if names != [output_text(pattern.shard(number)) for number in own] or (file and file.format != pattern.format):
        raise ValueError(f"other shards than the pattern's: {listing(names, 3)}")
    return PartRecord(part, plan, planned, resumed, content, file, skipped)


def find_parts(pattern: ShardPattern, names: Iterable[str]) -> tuple[list[Part], list[Part]]:
    """Return the parts that have left a record, and those that run or were killed: they have left a lock.

    Args:
        pattern: The dataset's.
        names: The names of all files in its folder.
    """
    own = re.compile(rf"\.{re.escape(pattern.base)}\.part([0-9]{{1,7}})of([0-9]{{1,7}})({re.escape(_LOCK)}|)", re.ASCII)
    ended: list[Part] = []
    begun: list[Part] = []
    for name in names:
        if match := own.fullmatch(name):
            part = Part(int(match[1]), int(match[2]))
            if 1 <= part.number <= part.parts <= MOST_PARTS and name == record_name(pattern, part) + match[3]:
                (begun if match[3] else ended).append(part)
    for parts in (ended, begun):
        parts.sort(key=lambda one: (one.parts, one.number))
    return ended, begun


def remove_records(folder: OutputFolder, pattern: ShardPattern) -> None:
    """Remove what parts have left beside their shards, once the dataset is whole, which must be locked.

    Raises:
        OutputFailed: The file system refuses.
    """
    ended, begun = find_parts(pattern, folder.names())
    records = [record_name(pattern, part) for part in ended]
    folder.remove([*records, *(record_name(pattern, part) + _LOCK for part in begun)])


def check_divided_alike(folder: OutputFolder, pattern: ShardPattern, part: Part) -> None:
    """Refuse to be a part of so many where others are parts of another number; this part must be locked.

    Raises:
        OutputExists: There are such.
    """
    ended, begun = find_parts(pattern, folder.names())
    others = [one for one in ended if one.parts != part.parts]
    for one in begun:
        if one.parts != part.parts:
            try:
                with folder.lock(record_name(pattern, one)[1:]):
                    pass  # a killed one has left the file
            except OutputExists:
                others.append(one)
    if others:
        where = folder.full_path(record_name(pattern, others[0]))
        found = f"the part {others[0]} of this dataset"
        expected = f"parts of {part.parts:,}, such as {option('part', str(part))}"
        remedy = "Divide it as before; or end those parts and remove their records: shards that are right stay."
        raise OutputExists(where, found, expected=expected, remedy=remedy)


def read_output(folder: OutputFolder, name: str) -> bytes:
    """Return a small file of an output, which should be there.

    Raises:
        CorruptShard: It cannot be read: it may be a folder, or a link.
    """
    try:
        return folder.read(name)
    except OSError as error:
        raise CorruptShard(folder.full_path(name), f"cannot be read: {reason(error)}") from None


def read_listing(folder: OutputFolder, name: str) -> DatasetFile | None:
    """Return what a dataset file says; None: there is none.

    Raises:
        CorruptShard: It is damaged, or cannot be read.
    """
    there = folder.facts([name])
    return read_dataset(read_output(folder, name), folder.full_path(name)) if there else None


def read_listed(folder: OutputFolder, shard: ShardEntry, known: Mapping[str, FileFact] | None = None) -> ShardIndex:
    """Return what a sidecar beside records says, if it is the one that the dataset file lists.

    Args:
        folder: Where it lies.
        shard: Its shard.
        known: What is known of the folder's files; None: it is asked for.

    Raises:
        CorruptShard: It is another, or cannot be read.
    """
    from shardtool.dataset.shard_index import sidecar_of

    where, name = folder.full_path(shard.sidecar), local_name(shard.sidecar)
    check_size(folder, name, shard.sidecar_size, known)  # one that is right may be held in memory
    try:
        data = folder.read(name)
    except OSError as error:
        raise CorruptShard(where, reason(error), remedy=LOOK) from None
    index = sidecar_of(data, where, shard.name, shard.size, shard, metadata=False)
    if index.fact.crc not in (None, shard.crc):
        found, expected = f"the checksum {index.fact.crc:08x} of its shard", "that in the dataset file"
        raise CorruptShard(where, found, expected=expected, remedy=LOOK)
    return index

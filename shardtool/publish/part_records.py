"""The record of one part of a run, `.out.part03of64`, which exists until the parts are merged.

A part writes its record last, so the record exists only for a finished part. It holds the dataset file of the
part's
shards, the fingerprint of the plan, and the skipped samples. Reading limits and checks it in the same way as a
dataset file.

Source: docs/format.md, "Parts".
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.dataset_file import DatasetFile, parse_dataset
from shardtool.errors import CorruptShard, OutputExists, format_list, os_error_text
from shardtool.fingerprint import crc32c
from shardtool.messages import option_text
from shardtool.names import to_output_name
from shardtool.publish.skipped_list import check_skipped_file, encode_skipped
from shardtool.request.run_part import MAX_PARTS, RunPart
from shardtool.skipped import Skipped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardtool.pattern import ShardPattern
    from shardtool.storage.folders import OutputFolder


_HEADER = b"shardtool part 1 crc32c:%08x\n"  # the version of the record, and the checksum of what follows


_HEADER_BYTES = len(_HEADER % 0)


_PLAN_PATTERN = re.compile(r"[0-9a-f]{32}")


_CONTENT_PATTERN = re.compile(r"b2:[0-9a-f]{64}|")


_MAX_PLANNED_SHARDS = 2**62


_LOCK_SUFFIX = ".lock"


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

    part: RunPart
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
        return _HEADER % crc32c(body) + body


def part_record_name(pattern: ShardPattern, part: RunPart) -> str:
    """Return the name of a part's record."""
    return f".{pattern.base}.{part.tag}"


def read_part_record(folder: OutputFolder, pattern: ShardPattern, part: RunPart) -> PartRecord:
    """Return what the record of a part says: that the files are there is not known, and what they hold neither.

    Raises:
        CorruptShard: It is damaged, or no record of this part.
    """
    where = folder.full_path(part_record_name(pattern, part))
    try:
        data = folder.read(part_record_name(pattern, part))
        return _parse(data, pattern, part, where)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, CorruptShard) as error:
        found = os_error_text(error) if isinstance(error, OSError) else getattr(error, "found", error)
        remedy = f"Remove it, and run {option_text('part', str(part))} again with {option_text('if_exists', 'resume')}."
        raise CorruptShard(where, f"no record of a part: {str(found)[:200]}", remedy=remedy) from None


def _parse(data: bytes, pattern: ShardPattern, part: RunPart, where: str) -> PartRecord:
    body = data[_HEADER_BYTES:]
    if data[:_HEADER_BYTES] != _HEADER % crc32c(body):
        raise ValueError("its checksum is not that of its bytes, or its version is not this program's")
    document = json.loads(body)
    planned, resumed = document["planned"], document["resumed"]
    texts = [document[name] for name in ("plan", "content", "dataset")]
    if (document["part"], document["parts"]) != (part.number, part.parts):
        raise ValueError(f"that of {document['part']!r:.40}/{document['parts']!r:.40}")
    if type(planned) is not int or not 0 < planned < _MAX_PLANNED_SHARDS or type(resumed) is not bool:
        raise TypeError(f"{planned!r:.40} planned shards, resumed {resumed!r:.40}")
    plan, content, dataset = (one if isinstance(one, str) else "?" for one in texts)
    if not _PLAN_PATTERN.fullmatch(plan) or not _CONTENT_PATTERN.fullmatch(content):
        raise ValueError(f"the plan {plan!r:.80} or the content {content!r:.80}")
    rows = document["skipped"]
    if not isinstance(rows, list) or not all(isinstance(row, list) and [*map(type, row)] == [str] * 4 for row in rows):
        raise TypeError("no list of what was left out")
    skipped = tuple(Skipped(*row) for row in rows)  # names as they are: the order of the list is that of their bytes
    file = parse_dataset(dataset.encode(), where) if dataset else None
    if file is not None:
        check_skipped_file(encode_skipped(skipped), file, where)
    own = part.shards(planned)
    names = [shard.name for shard in file.shards] if file else []
    if len(names) != len(own) or (pattern.count is not None and planned > pattern.count):
        raise ValueError(f"{len(names):,} shards, of {planned:,} in all")
    if names != [to_output_name(pattern.shard(number)) for number in own] or (file and file.format != pattern.format):
        raise ValueError(f"other shards than the pattern's: {format_list(names, 3)}")
    return PartRecord(part, plan, planned, resumed, content, file, skipped)


def find_part_records(pattern: ShardPattern, names: Iterable[str]) -> tuple[list[RunPart], list[RunPart]]:
    """Return the parts that have left a record, and those that run or were killed: they have left a lock.

    Args:
        pattern: The dataset's.
        names: The names of all files in its folder.
    """
    own = re.compile(
        rf"\.{re.escape(pattern.base)}\.part([0-9]{{1,7}})of([0-9]{{1,7}})({re.escape(_LOCK_SUFFIX)}|)", re.ASCII
    )
    ended: list[RunPart] = []
    begun: list[RunPart] = []
    for name in names:
        if match := own.fullmatch(name):
            part = RunPart(int(match[1]), int(match[2]))
            if 1 <= part.number <= part.parts <= MAX_PARTS and name == part_record_name(pattern, part) + match[3]:
                (begun if match[3] else ended).append(part)
    for parts in (ended, begun):
        parts.sort(key=lambda one: (one.parts, one.number))
    return ended, begun


def remove_part_records(folder: OutputFolder, pattern: ShardPattern) -> None:
    """Remove what parts have left beside their shards, once the dataset is whole, which must be locked.

    Raises:
        OutputFailed: The file system refuses.
    """
    ended, begun = find_part_records(pattern, folder.names())
    records = [part_record_name(pattern, part) for part in ended]
    folder.remove([*records, *(part_record_name(pattern, part) + _LOCK_SUFFIX for part in begun)])


def check_part_count(folder: OutputFolder, pattern: ShardPattern, part: RunPart) -> None:
    """Refuse to be a part of so many where others are parts of another number; this part must be locked.

    Raises:
        OutputExists: There are such.
    """
    ended, begun = find_part_records(pattern, folder.names())
    others = [one for one in ended if one.parts != part.parts]
    for one in begun:
        if one.parts != part.parts:
            try:
                with folder.lock(part_record_name(pattern, one)[1:]):
                    pass  # a killed one has left the file
            except OutputExists:
                others.append(one)
    if others:
        where = folder.full_path(part_record_name(pattern, others[0]))
        found = f"the part {others[0]} of this dataset"
        expected = f"parts of {part.parts:,}, such as {option_text('part', str(part))}"
        remedy = "Divide it as before; or end those parts and remove their records: shards that are right stay."
        raise OutputExists(where, found, expected=expected, remedy=remedy)

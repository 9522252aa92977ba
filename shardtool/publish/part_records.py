"""The record of one part of a run, `.out.part03of64`, which exists until the parts are merged.

A part writes its record last. It contains the dataset file of the part's shards, the fingerprint of the plan, and the
skipped samples.

Source: docs/format.md, "Parts".
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.dataset_file import DatasetFile, parse_dataset
from shardtool.dataset.skipped_list import check_skipped_file, encode_skipped
from shardtool.errors import CorruptShard, OutputExists, format_list, os_error_text
from shardtool.fingerprint import crc32c
from shardtool.messages import flag_text, option_text
from shardtool.names import to_output_name
from shardtool.publish.journal import list_journals
from shardtool.request.run_part import MAX_PARTS, RunPart
from shardtool.skipped import Skipped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardtool.pattern import ShardPattern
    from shardtool.storage.folders import OutputFolder


_HEADER = b"shardtool part 1 crc32c:%08x\n"  # format version, and checksum of the remaining bytes


_HEADER_BYTES = len(_HEADER % 0)


_PLAN_PATTERN = re.compile(r"[0-9a-f]{32}")


_CONTENT_PATTERN = re.compile(r"b2:[0-9a-f]{64}|")


_MAX_PLANNED_SHARDS = 2**62


_LOCK_SUFFIX = ".lock"


_TAG_PATTERN = "part([0-9]{1,7})of([0-9]{1,7})"


class PartRecord(NamedTuple):
    """The record of a finished part.

    Attributes:
        resumed: Whether the merge may delete files outside the plan.
        content: The expected content fingerprint of all parts; empty if unknown.
        dataset: The dataset file of its shards; None without shards.
        skipped: The samples it skipped, in list order.
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
            "skipped": [[row.key, row.path, row.code, row.message] for row in self.skipped],
        }
        body = json.dumps(document, indent=1, ensure_ascii=True).encode() + b"\n"
        return _HEADER % crc32c(body) + body


def part_record_name(pattern: ShardPattern, part: RunPart) -> str:
    """Return the name of a part's record."""
    return f".{pattern.base}.{part.tag}"


def read_part_record(folder: OutputFolder, pattern: ShardPattern, part: RunPart) -> PartRecord:
    """Return the record of a part, without checking the listed files."""
    where = folder.full_path(part_record_name(pattern, part))
    try:
        data = folder.read(part_record_name(pattern, part))
        return _parse(data, pattern, part, where)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, CorruptShard) as error:
        found = os_error_text(error) if isinstance(error, OSError) else getattr(error, "found", error)
        remedy = f"Delete it, and run {option_text('part', str(part))} again with {flag_text('resume')}."
        raise CorruptShard(where, f"not a valid part record: {str(found)[:200]}", remedy=remedy) from None


def _parse(data: bytes, pattern: ShardPattern, part: RunPart, where: str) -> PartRecord:
    body = data[_HEADER_BYTES:]
    if data[:_HEADER_BYTES] != _HEADER % crc32c(body):
        raise ValueError("wrong checksum, or a version that this program cannot read")
    document = json.loads(body)
    planned, resumed = document["planned"], document["resumed"]
    texts = [document[name] for name in ("plan", "content", "dataset")]
    if (document["part"], document["parts"]) != (part.number, part.parts):
        raise ValueError(f"the record of part {document['part']!r:.40}/{document['parts']!r:.40}")
    if type(planned) is not int or not 0 < planned < _MAX_PLANNED_SHARDS or type(resumed) is not bool:
        raise TypeError(f"{planned!r:.40} planned shards, resumed {resumed!r:.40}")
    plan, content, dataset = (text if isinstance(text, str) else "?" for text in texts)
    if not _PLAN_PATTERN.fullmatch(plan) or not _CONTENT_PATTERN.fullmatch(content):
        raise ValueError(f"plan {plan!r:.80} or content {content!r:.80} is not a fingerprint")
    rows = document["skipped"]
    if not isinstance(rows, list) or not all(isinstance(row, list) and [*map(type, row)] == [str] * 4 for row in rows):
        raise TypeError("invalid list of skipped samples")
    skipped = tuple(Skipped(*row) for row in rows)  # undecoded, because the list is sorted by bytes
    file = parse_dataset(dataset.encode(), where) if dataset else None
    if file is not None:
        check_skipped_file(encode_skipped(skipped), file, where)
    numbers = part.shards(planned)
    names = [shard.name for shard in file.shards] if file else []
    if len(names) != len(numbers) or (pattern.count is not None and planned > pattern.count):
        raise ValueError(f"{len(names):,} shards of {planned:,} in total")
    if names != [to_output_name(pattern.shard(number)) for number in numbers] or (
        file and file.format != pattern.format
    ):
        raise ValueError(f"shards that do not match the pattern: {format_list(names, 3)}")
    return PartRecord(part, plan, planned, resumed, content, file, skipped)


def find_part_records(pattern: ShardPattern, names: Iterable[str]) -> tuple[list[RunPart], list[RunPart]]:
    """Return the parts with a record, and those with a lock, which run or were interrupted."""
    name_pattern = re.compile(rf"\.{re.escape(pattern.base)}\.{_TAG_PATTERN}({re.escape(_LOCK_SUFFIX)}|)", re.ASCII)
    finished: list[RunPart] = []
    started: list[RunPart] = []
    for name in names:
        if match := name_pattern.fullmatch(name):
            part = RunPart(int(match[1]), int(match[2]))
            if 1 <= part.number <= part.parts <= MAX_PARTS and name == part_record_name(pattern, part) + match[3]:
                (started if match[3] else finished).append(part)
    for parts in (finished, started):
        parts.sort(key=lambda run_part: (run_part.parts, run_part.number))
    return finished, started


def list_run_files(folder: OutputFolder, pattern: ShardPattern) -> list[str]:
    """Return the journals of a dataset, and the records, locks and journals of its parts."""
    names = folder.names()
    finished, started = find_part_records(pattern, names)
    records = [part_record_name(pattern, part) for part in finished]
    locks = [part_record_name(pattern, part) + _LOCK_SUFFIX for part in started]
    return [*records, *locks, *list_journals(pattern.base, names, _TAG_PATTERN)]


def check_part_count(folder: OutputFolder, pattern: ShardPattern, part: RunPart) -> None:
    """Refuse a part if other parts have another total count."""
    finished, started = find_part_records(pattern, folder.names())
    others = [other for other in finished if other.parts != part.parts]
    for other in started:
        if other.parts != part.parts:
            try:
                with folder.lock(part_record_name(pattern, other)[1:]):
                    pass  # an interrupted part left its lock file
            except OutputExists:
                others.append(other)
    if others:
        where = folder.full_path(part_record_name(pattern, others[0]))
        found = f"part {others[0]} of this dataset"
        expected = f"{part.parts:,} parts in total, as in {option_text('part', str(part))}"
        remedy = "Use the same number of parts, or stop those parts and delete their records. Valid shards are reused."
        raise OutputExists(where, found, expected=expected, remedy=remedy)

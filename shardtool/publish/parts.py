"""The parts of a dataset, each written by one of several runs or writers.

A finished part has a record until the merge, such as `.out.part03of64` from `create --part 3/64`, or
`.out-part03of16.record` from a writer.

Source: docs/format.md, "Parts".
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.dataset.dataset_file import DatasetFile, parse_dataset
from shardtool.dataset.skipped_list import check_skipped_file, encode_skipped, parse_skipped
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, format_list, os_error_text
from shardtool.fingerprint import crc32c
from shardtool.messages import flag_text, option_text
from shardtool.names import to_output_name
from shardtool.publish.journal import list_journals
from shardtool.publish.listed_files import read_output_file
from shardtool.request.run_part import MAX_PARTS, RunPart
from shardtool.skipped import Skipped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from shardtool.pattern import ShardPattern
    from shardtool.storage.folders import OutputFolder


_HEADER = b"shardtool part 1 crc32c:%08x\n"  # format version, and checksum of the rest of the record
_HEADER_BYTES = len(_HEADER % 0)
_PLAN_PATTERN = re.compile(r"[0-9a-f]{32}")
_CONTENT_PATTERN = re.compile(r"b2:[0-9a-f]{64}|")
_MAX_PLANNED_SHARDS = 2**62
_LOCK_SUFFIX = ".lock"
_TAG_PATTERN = "part([0-9]{1,7})of([0-9]{1,7})"
_WRITER_TAG_PATTERN = r"part(?:([0-9]{1,7})of([0-9]{1,7})|_[A-Za-z0-9_]{1,40})"
_WRITER_PART_NAME = re.compile(r"[A-Za-z0-9_]{1,40}", re.ASCII)
_RECORD_SUFFIX = ".record"
_OLD_EMPTY_SUFFIX = ".empty"


class PartRecord(NamedTuple):
    """The record of a finished part.

    Attributes:
        part: The part of a run, or the tag of a writer's part.
        dataset: A dataset file that lists the part's shards, or None if there are no shards.
        plan: The fingerprint of the plan. For a writer, this and all later attributes have their defaults.
        planned: Number of shards planned for all parts together.
        resumed: Whether the part ran with `--resume`. If any part did, the merge may delete shards outside the plan.
        content: The expected content fingerprint of all parts together, or "" if unknown.
    """

    part: RunPart | str
    dataset: DatasetFile | None
    skipped: tuple[Skipped, ...]
    plan: str = ""
    planned: int = 0
    resumed: bool = False
    content: str = ""

    def encode(self) -> bytes:
        """Return the bytes of the record."""
        document: dict[str, object] = {"writer": self.part}
        if isinstance(self.part, RunPart):
            document = {
                "part": self.part.number,
                "parts": self.part.parts,
                "plan": self.plan,
                "planned": self.planned,
                "resumed": self.resumed,
                "content": self.content,
            }
        document["dataset"] = "" if self.dataset is None else self.dataset.encode().decode()
        document["skipped"] = [[row.key, row.path, row.code, row.message] for row in self.skipped]
        body = json.dumps(document, indent=1, ensure_ascii=True).encode() + b"\n"
        return _HEADER % crc32c(body) + body


class WriterPart(NamedTuple):
    """The files of a writer's part. Their names contain `tag`: `part03of16` or `part_NAME`."""

    tag: str
    number: int | None
    parts: int | None
    shards: tuple[str, ...] = ()
    finished: bool = False


def part_record_name(pattern: ShardPattern, part: RunPart | str) -> str:
    """Return the name of a part's record."""
    if isinstance(part, str):
        return f".{add_tag(pattern, part).base}{_RECORD_SUFFIX}"
    return f".{pattern.base}.{part.tag}"


def read_part_record(folder: OutputFolder, pattern: ShardPattern, part: RunPart | str) -> PartRecord:
    """Read the record of a part, without checking its shards."""
    name = part_record_name(pattern, part)
    if isinstance(part, str) and not folder.find_entries([name]):
        return _read_old_writer_part(folder, add_tag(pattern, part), part)
    try:
        return _parse_record(folder.read(name), pattern, part, folder.full_path(name))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, CorruptShard) as error:
        found = os_error_text(error) if isinstance(error, OSError) else getattr(error, "found", error)
        run = f"run {option_text('part', str(part))}" if isinstance(part, RunPart) else "write the part"
        remedy = f"Delete it, and {run} again with {flag_text('resume')}."
        where = folder.full_path(name)
        raise CorruptShard(where, f"not a valid part record: {str(found)[:200]}", remedy=remedy) from None


def _parse_record(data: bytes, pattern: ShardPattern, part: RunPart | str, where: str) -> PartRecord:
    body = data[_HEADER_BYTES:]
    if data[:_HEADER_BYTES] != _HEADER % crc32c(body):
        raise ValueError("wrong checksum, or a version that this program cannot read")
    document = json.loads(body)
    rows, dataset = document["skipped"], document["dataset"]
    if not isinstance(rows, list) or not all(isinstance(row, list) and [*map(type, row)] == [str] * 4 for row in rows):
        raise TypeError("invalid list of skipped samples")
    if not isinstance(dataset, str):
        raise TypeError("invalid dataset file")
    # keys and paths stay encoded, because the list of skipped samples is sorted by the encoded form
    skipped = tuple(Skipped(*row) for row in rows)
    file = parse_dataset(dataset.encode(), where) if dataset else None
    if file is not None:
        check_skipped_file(encode_skipped(skipped), file, where)
    record = PartRecord(part, file, skipped)
    names = [shard.name for shard in file.shards] if file else []
    if isinstance(part, str):
        pattern = add_tag(pattern, part)
        numbers = range(len(names))
        if document["writer"] != part:
            raise ValueError(f"the record of {document['writer']!r:.40}")
    else:
        record = _with_plan(record, part, document)
        numbers = part.shards(record.planned)
        if len(names) != len(numbers) or (pattern.count is not None and record.planned > pattern.count):
            raise ValueError(f"{len(names):,} shards of {record.planned:,} in total")
    pattern_names = [to_output_name(pattern.shard(number)) for number in numbers]
    if names != pattern_names or (file and file.format != pattern.format):
        raise ValueError(f"shards that do not match the pattern: {format_list(names, 3)}")
    return record


def _with_plan(record: PartRecord, part: RunPart, document: Mapping[str, Any]) -> PartRecord:
    planned, resumed = document["planned"], document["resumed"]
    if (document["part"], document["parts"]) != (part.number, part.parts):
        raise ValueError(f"the record of part {document['part']!r:.40}/{document['parts']!r:.40}")
    if type(planned) is not int or not 0 < planned < _MAX_PLANNED_SHARDS or type(resumed) is not bool:
        raise TypeError(f"{planned!r:.40} planned shards, resumed {resumed!r:.40}")
    plan, content = (text if isinstance(text, str) else "?" for text in (document["plan"], document["content"]))
    if not _PLAN_PATTERN.fullmatch(plan) or not _CONTENT_PATTERN.fullmatch(content):
        raise ValueError(f"plan {plan!r:.80} or content {content!r:.80} is not a fingerprint")
    return record._replace(plan=plan, planned=planned, resumed=resumed, content=content)


def _read_old_writer_part(folder: OutputFolder, pattern: ShardPattern, tag: str) -> PartRecord:
    if not folder.find_entries([pattern.dataset_file]):
        return PartRecord(tag, None, ())
    where, name = folder.full_path(pattern.dataset_file), pattern.skipped_file
    dataset = parse_dataset(read_output_file(folder, pattern.dataset_file), where)
    data = read_output_file(folder, name) if folder.find_entries([name]) else b""
    check_skipped_file(data, dataset, folder.full_path(name))
    return PartRecord(tag, dataset, tuple(parse_skipped(data, folder.full_path(name))))


def find_run_parts(pattern: ShardPattern, names: Iterable[str]) -> tuple[list[RunPart], list[RunPart]]:
    """Return the parts with a record (finished), and the parts with a lock file (running or interrupted)."""
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


def list_run_files(pattern: ShardPattern, names: Collection[str]) -> list[str]:
    """Return the names of a run's journals, part records and part locks."""
    finished, started = find_run_parts(pattern, names)
    records = [part_record_name(pattern, part) for part in finished]
    locks = [part_record_name(pattern, part) + _LOCK_SUFFIX for part in started]
    return [*records, *locks, *list_journals(pattern.base, names, _TAG_PATTERN)]


def check_part_count(folder: OutputFolder, pattern: ShardPattern, part: RunPart) -> None:
    """Raise an error if a finished or running part has a different part count than `part`."""
    finished, started = find_run_parts(pattern, folder.names())
    others = [other for other in finished if other.parts != part.parts]
    for other in started:
        if other.parts != part.parts:
            try:
                with folder.lock(f"{pattern.base}.{other.tag}"):
                    pass  # no process holds the lock, so the part was interrupted
            except OutputExists:
                others.append(other)
    if others:
        where = folder.full_path(part_record_name(pattern, others[0]))
        found = f"part {others[0]} of this dataset"
        expected = f"{part.parts:,} parts in total, as in {option_text('part', str(part))}"
        remedy = "Use the same number of parts, or stop those parts and delete their records. Valid shards are reused."
        raise OutputExists(where, found, expected=expected, remedy=remedy)


def make_part_tag(part: int | str, parts: int | None) -> str:
    """Return the tag for the file names of a writer's part, such as `part03of16`."""
    if isinstance(part, str):
        if parts is not None:
            raise InvalidRequest(option_text("parts"), f"used with the part name {part!r}", expected="a part number")
        if not _WRITER_PART_NAME.fullmatch(part):
            expected = "a number, or a name of up to 40 letters, digits and underscores"
            raise InvalidRequest(option_text("part"), repr(part), expected=expected)
        return f"part_{part}"
    if not isinstance(parts, int) or isinstance(parts, bool) or not 1 <= parts <= MAX_PARTS:
        expected = f"the total number of parts, from 1 to {MAX_PARTS:,}"
        raise InvalidRequest(option_text("parts"), repr(parts), expected=expected)
    if not isinstance(part, int) or isinstance(part, bool) or not 0 <= part < parts:
        raise InvalidRequest(option_text("part"), repr(part), expected=f"a number from 0 to {parts - 1:,}")
    return f"part{part:0{len(str(parts - 1))}}of{parts}"


def make_part_pattern(pattern: ShardPattern, tag: str) -> ShardPattern:
    """Return `add_tag(pattern, tag)`. Raise an error if `pattern` is not an open range."""
    if pattern.names is not None or pattern.count is not None:
        expected = "an open range such as out-{000000..}.tar"
        raise InvalidRequest(pattern.text, "a closed pattern, used with parts", expected=expected)
    return add_tag(pattern, tag)


def add_tag(pattern: ShardPattern, tag: str) -> ShardPattern:
    """Return a shard pattern whose names have the tag after their prefix."""
    prefix = f"{pattern.prefix}{tag}-"
    return replace(pattern, prefix=prefix, text=prefix + pattern.text.removeprefix(pattern.prefix))


def find_writer_parts(pattern: ShardPattern, names: Iterable[str]) -> dict[str, WriterPart]:
    """Return the parts that `ShardWriter` wrote, by tag and sorted by part number or name."""
    tags = re.compile(rf"\.?{re.escape(pattern.prefix)}(?P<tag>{_WRITER_TAG_PATTERN})")
    parts: dict[str, WriterPart] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        match = tags.match(name)
        if match is None:
            continue
        tag, number, count = match["tag"], match[2], match[3]
        part_pattern = add_tag(pattern, tag)
        is_record = name in (part_record_name(pattern, tag), old_empty_name(part_pattern))
        if not is_record and not part_pattern.owns(name) and not list_journals(part_pattern.base, [name]):
            continue
        part = parts.get(tag) or WriterPart(tag, int(number) if number else None, int(count) if count else None)
        if is_record or name == part_pattern.dataset_file:
            part = part._replace(finished=True)
        elif name.endswith(f".{pattern.format}"):
            part = part._replace(shards=(*part.shards, name))
        parts[tag] = part
    order = {tag: (part.number is None, part.number or 0, part.parts or 0, tag) for tag, part in parts.items()}
    return {tag: parts[tag] for tag in sorted(parts, key=order.__getitem__)}


def old_empty_name(part_pattern: ShardPattern) -> str:
    """Return the file name that earlier versions used for a part without samples."""
    return part_pattern.base + _OLD_EMPTY_SUFFIX


def list_writer_part_files(pattern: ShardPattern, tag: str, names: Iterable[str]) -> list[str]:
    """Return the files that a merge deletes for a writer's part."""
    part_pattern, existing = add_tag(pattern, tag), {*names}
    part_files = [part_record_name(pattern, tag), part_pattern.dataset_file, part_pattern.skipped_file]
    part_files += [old_empty_name(part_pattern), *list_journals(part_pattern.base, existing)]
    return sorted(existing.intersection(part_files))

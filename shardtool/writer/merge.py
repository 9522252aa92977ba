"""The datasets of parts become one dataset: a dataset file that lists the shards of all, which stay as they are.

Nothing of a part goes before the merged dataset file is there. A merge that was killed is repeated: what it has listed
counts as merged.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, read_dataset
from shardtool.errors import InvalidRequest, OutputExists, current_folder, listing, printable
from shardtool.names import Names
from shardtool.pattern import DATASET_SUFFIX, SIDECAR_SUFFIX, SKIPPED_SUFFIX, check_written, parse_pattern, text_of
from shardtool.publish.publisher import check_old
from shardtool.publish.records import check_skipped_file, encode_skipped, merged, read_skipped
from shardtool.publish.records import find_parts as find_records
from shardtool.request.results import IndexResult, Observer, RunRecord
from shardtool.storage.folders import open_folder
from shardtool.storage.staging import local_folder
from shardtool.table.columns import repeated
from shardtool.values import __version__, counted, output_text, to_bytes
from shardtool.verbs.create.append import existing_keys
from shardtool.verbs.create.parts import check_all_ended, joined_parts, merge_parts, merge_result
from shardtool.wording import flag, option
from shardtool.writer.output import journal_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.pattern import ShardPattern
    from shardtool.skipped import Skipped
    from shardtool.storage.staging import Folder
    from shardtool.verbs.create.run import OutputNames


# The names of what several writers make side by side: each part is a dataset of its own, until they are merged.


EMPTY_SUFFIX = ".empty"
_MOST_PARTS = 10**6
_TOKEN = re.compile(r"[A-Za-z0-9_]{1,40}", re.ASCII)
_TAG = r"part(?:([0-9]{1,7})of([0-9]{1,7})|_[A-Za-z0-9_]{1,40})"


@dataclass
class PartFiles:
    """What is there of a part.

    Attributes:
        tag: What its names have behind the dataset's: `part03of16`, or `part_NAME`.
        number: Its number; None: it has a name.
        parts: How many parts there are; None: it has a name.
        shards: The names of its shards, in order.
        dataset_file: The name of its dataset file; empty: it has none, so it has not ended.
        empty: Whether it ended without a sample.
    """

    tag: str
    number: int | None = None
    parts: int | None = None
    shards: list[str] = field(default_factory=list)
    dataset_file: str = ""
    empty: bool = False

    @property
    def ended(self) -> bool:
        """Whether its writer ended."""
        return bool(self.dataset_file) or self.empty


def part_tag(part: int | str, parts: int | None) -> str:
    """Return what the names of a part have behind the dataset's.

    Raises:
        InvalidRequest: There is no such part.
    """
    if isinstance(part, str):
        if parts is not None:
            raise InvalidRequest(option("parts"), f"used with the name {part!r}", expected="a number as the part")
        if not _TOKEN.fullmatch(part):
            expected = "a number, or a name of up to 40 letters, digits and underscores"
            raise InvalidRequest(option("part"), repr(part), expected=expected)
        return f"part_{part}"
    if not isinstance(parts, int) or isinstance(parts, bool) or not 1 <= parts <= _MOST_PARTS:
        raise InvalidRequest(option("parts"), repr(parts), expected=f"how many parts there are, up to {_MOST_PARTS:,}")
    if not isinstance(part, int) or isinstance(part, bool) or not 0 <= part < parts:
        raise InvalidRequest(option("part"), repr(part), expected=f"a number from 0 to {parts - 1:,}")
    return f"part{part:0{len(str(parts - 1))}}of{parts}"


def part_pattern(pattern: ShardPattern, part: int | str, parts: int | None) -> ShardPattern:
    """Return the pattern of the names of a part.

    Args:
        pattern: That of the dataset.
        part: The part's number, counted from 0, or its name.
        parts: How many parts there are; None for a name.

    Raises:
        InvalidRequest: There is no such part, or the pattern has no numbers, or not any number of them.
    """
    tag = part_tag(part, parts)
    if pattern.names is not None or pattern.count is not None:
        expected = "an open range such as out-{000000..}.tar"
        raise InvalidRequest(pattern.text, "names for parts", expected=expected)
    return tagged_pattern(pattern, tag)


def tagged_pattern(pattern: ShardPattern, tag: str) -> ShardPattern:
    """Return the pattern of the names of a part, by its tag."""
    prefix = f"{pattern.prefix}{tag}-"
    return replace(pattern, prefix=prefix, text=prefix + pattern.text.removeprefix(pattern.prefix))


def merged_part(folder: Folder, whole: ShardPattern, part: ShardPattern) -> DatasetFile | None:
    """Return what the dataset file of a merge says of a part's shards, where it lists them.

    Args:
        folder: Where they lie.
        whole: The names of the merged dataset.
        part: Those of the part.

    Raises:
        CorruptShard: The dataset file is damaged.
    """
    if whole.dataset_file not in folder.facts([whole.dataset_file]):
        return None
    found = read_dataset(folder.read(whole.dataset_file), folder.full_path(whole.dataset_file))
    shards = tuple(shard for shard in found.shards if part.owns(os.fsdecode(to_bytes(shard.name))))
    return replace(found, shards=shards, skipped=0) if shards else None


def find_parts(pattern: ShardPattern, names: Iterable[str]) -> dict[str, PartFiles]:
    """Return what is there of each part, by its tag, in the order of numbers and names.

    Args:
        pattern: That of the dataset.
        names: The names of all files in its folder.
    """
    tags = re.compile(re.escape(pattern.prefix) + f"(?P<tag>{_TAG})")
    found: dict[str, PartFiles] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        match = tags.match(name)
        if match is None:
            continue
        tag, number, parts = match["tag"], match[2], match[3]
        own = tagged_pattern(pattern, tag)
        if not own.owns(name) and name != own.base + EMPTY_SUFFIX:
            continue
        part = found.setdefault(tag, PartFiles(tag, *((int(number), int(parts)) if number else (None, None))))
        if name == own.dataset_file:
            part.dataset_file = name
        elif name == own.base + EMPTY_SUFFIX:
            part.empty = True
        elif not name.endswith((SIDECAR_SUFFIX, SKIPPED_SUFFIX, DATASET_SUFFIX)):
            part.shards.append(name)
    ordered = sorted(found.values(), key=lambda one: (one.number is None, one.number or 0, one.parts or 0, one.tag))
    return {one.tag: one for one in ordered}


_MERGED = "merged"  # in how a dataset was made: the parts that it was made of


@current_folder()
def merge(output: OutputNames, *, observer: Observer | None = None) -> IndexResult:
    """Make one dataset of the parts that several writers, or runs of `create`, have written under a pattern.

    Parts of writers that come later are added by another merge.

    Args:
        output: The pattern that the writers were given, such as `out-{000000..}.tar`.
        observer: Gets what the user should know.

    Returns:
        The dataset: its shards are those of all parts, which stay where they are.

    Raises:
        InvalidRequest: There are no parts; some are missing, or have not ended; a key is in two parts; or fields and
            columns do not go together. Nothing was touched.
        CorruptShard: A part is damaged.
        OutputExists: The dataset file is one that no merge has made, or another run is writing.
        OutputFailed: The file system refuses.
    """
    pattern = parse_pattern(output)
    check_written(pattern)
    there = open_folder(pattern.folder)
    names = there.names()
    if any(find_records(pattern, names)):
        return merge_parts(there, pattern, observer or Observer())
    if not find_parts(pattern, names):
        raise InvalidRequest(
            pattern.text, "no part of a ShardWriter or of a run", expected="the pattern that these were given"
        )
    folder = local_folder(pattern.folder)
    with folder.lock(pattern.base):
        merging = _Merge(folder, pattern)
        dataset = merging.run()
    return merge_result(folder, pattern, len(merging.parts), dataset, observer or Observer())


class _Merge:
    """A merge, under the lock of the whole dataset.

    Args:
        folder: Where the parts lie.
        pattern: The names of the whole dataset.
    """

    def __init__(self, folder: Folder, pattern: ShardPattern) -> None:
        self._folder, self._pattern = folder, pattern
        self.parts = find_parts(pattern, folder.names())
        self._old = self._find_old()
        self._listed = {shard.name for shard in self._old.shards} if self._old else set()
        before = [] if self._old is None else self._old.made.document[_MERGED]
        self._before = [str(tag) for tag in before] if isinstance(before, list) else []

    def run(self) -> DatasetFile:
        """Publish the dataset file of all, and remove those of the parts; return what it says."""
        new = [part for part in self.parts.values() if not self._is_merged(part)]
        self._check_whole(new)
        found = [(self._dataset(part), part) for part in new if part.dataset_file]
        whole = [*([self._old] if self._old else []), *(dataset for dataset, _ in found)]
        if not whole:
            raise InvalidRequest(self._pattern.text, "parts without a sample", expected="one sample at least")
        self._check_keys(whole)
        lists = [(self._old, self._pattern.skipped_file)] if self._old else []
        lists += [(one, tagged_pattern(self._pattern, part.tag).skipped_file) for one, part in found]
        skipped = self._skipped(lists)
        rows, tags = encode_skipped(skipped), [*dict.fromkeys([*self._before, *(part.tag for part in new)])]
        dataset = self._joined(whole, skipped, tags)
        if found:
            staged = [self._folder.stage_whole(self._pattern.skipped_file, rows)] if rows else []
            self._folder.publish(*staged, self._folder.stage_whole(self._pattern.dataset_file, dataset.encode()))
        self._folder.remove([name for part in self.parts.values() for name in self._left_of(part)])
        return dataset

    def _find_old(self) -> DatasetFile | None:
        """Return the dataset of an earlier merge."""
        name = self._pattern.dataset_file
        if name not in self._folder.facts([name]):
            return None
        where = self._folder.full_path(name)
        old = read_dataset(self._folder.read(name), where)
        if _MERGED not in old.made.document:
            found = "a dataset file that no merge has made"
            raise OutputExists(where, found, remedy="Move that dataset away, or give the writers another pattern.")
        return old

    def _is_merged(self, part: PartFiles) -> bool:
        """Tell whether an earlier merge has listed a part."""
        listed = [name for name in part.shards if output_text(name) in self._listed]
        if listed and len(listed) < len(part.shards):
            found = f"{part.tag}: {counted(len(part.shards), 'shard')}, of which {len(listed):,} were merged before"
            raise InvalidRequest(self._pattern.text, found, expected="a part that is whole before it is merged")
        return bool(listed) or (part.tag in self._before and not part.shards)

    def _check_whole(self, new: Sequence[PartFiles]) -> None:
        """Refuse to make a dataset of less than all parts, and say which are missing."""
        where = self._pattern.text
        counts = {part.parts for part in self.parts.values() if part.parts is not None}
        open_ = [f"{part.tag} ({counted(len(part.shards), 'shard')})" for part in new if not part.ended]
        there = {part.number for part in self.parts.values()} | {_number(tag) for tag in self._before}
        missing = [part_tag(number, count) for count in counts for number in range(count) if number not in there]
        check_all_ended(where, counts, open_, missing, flag("resume"))

    def _dataset(self, part: PartFiles) -> DatasetFile:
        """Return what the dataset file of a part says, whose shards are all there."""
        own = tagged_pattern(self._pattern, part.tag)
        existing = self._folder.facts(name for name in self._folder.names() if own.owns(name))
        return check_old(self._folder, own, existing, self._folder.read(part.dataset_file))

    def _check_keys(self, whole: Iterable[DatasetFile]) -> None:
        """Refuse keys that two parts have."""
        names = [existing_keys(self._folder, dataset.shards) for dataset in whole]
        twice = repeated(Names.parse(b"".join(one.span(0, len(one)) for one in names)))
        if twice:
            shown = listing([printable(key) for key in [*twice][:5]], total=len(twice))
            found = f"{counted(len(twice), 'key')} of samples in two parts: {shown}"
            raise InvalidRequest(self._pattern.text, found, expected="a key of its own for each sample")

    def _joined(self, whole: Sequence[DatasetFile], skipped: Sequence[Skipped], tags: list[str]) -> DatasetFile:
        dataset = joined_parts(whole, skipped, self._pattern)
        options = {
            name: value
            for name, value in whole[0].made.options.items()
            if all(one.made.options.get(name) == value for one in whole)
        }
        if any(one.made.dots == "last" for one in whole):
            options["dots"] = "last"
            if dotted := [name for name in dataset.fields if "." in name]:
                found = f"keys with dots in their last part, and fields with dots: {listing(dotted)}"
                expected = "names that the first dot divides, or the last"
                raise InvalidRequest(self._pattern.text, found, expected=expected)
        asked = {"verb": "create", "source": "ShardWriter", "options": options, _MERGED: tags}
        made = RunRecord({**asked, "tool": f"shardtool {__version__}"})
        pattern = text_of([shard.name for shard in dataset.shards])
        return replace(dataset, name=output_text(self._pattern.base), pattern=pattern, made=made)

    def _skipped(self, datasets: Iterable[tuple[DatasetFile, str]]) -> list[Skipped]:
        """Return what datasets have left out, each with the name of its list."""
        found: list[Skipped] = []
        for dataset, name in datasets:
            where = self._folder.full_path(name)
            data = self._folder.read(name) if name in self._folder.facts([name]) else b""
            check_skipped_file(data, dataset, where)
            found = merged(found, read_skipped(data, where))
        return found

    def _left_of(self, part: PartFiles) -> list[str]:
        """Return the files of a part that the merged dataset stands for."""
        own = tagged_pattern(self._pattern, part.tag)
        names = [own.dataset_file, own.skipped_file, own.base + EMPTY_SUFFIX, journal_name(own.base)]
        return [*self._folder.facts(names)]


def _number(tag: str) -> int | None:
    """Return the number of a part, by its tag; None: it has a name."""
    digits = tag.removeprefix("part").partition("of")[0]
    return int(digits) if digits.isdigit() else None

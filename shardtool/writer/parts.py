"""The file names of the parts of several writers. Each part is a dataset of its own until the parts are merged."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.pattern import DATASET_SUFFIX, SIDECAR_SUFFIX, SKIPPED_SUFFIX, ShardPattern

if TYPE_CHECKING:
    from collections.abc import Iterable


EMPTY_SUFFIX = ".empty"


_MAX_PARTS = 10**6


_PART_NAME = re.compile(r"[A-Za-z0-9_]{1,40}", re.ASCII)


_TAG_PATTERN = r"part(?:([0-9]{1,7})of([0-9]{1,7})|_[A-Za-z0-9_]{1,40})"


@dataclass
class PartFiles:
    """The files of a part.

    Attributes:
        tag: The suffix of its names: `part03of16` or `part_NAME`.
        dataset_file: Empty if there is none.
        empty: Whether it finished without samples.
    """

    tag: str
    number: int | None = None
    parts: int | None = None
    shards: list[str] = field(default_factory=list)
    dataset_file: str = ""
    empty: bool = False

    @property
    def finished(self) -> bool:
        """Whether its writer has finished."""
        return bool(self.dataset_file) or self.empty


def make_part_tag(part: int | str, parts: int | None) -> str:
    """Return the suffix for the names of a part."""
    if isinstance(part, str):
        if parts is not None:
            raise InvalidRequest(option_text("parts"), f"used with the part name {part!r}", expected="a part number")
        if not _PART_NAME.fullmatch(part):
            expected = "a number, or a name of up to 40 letters, digits and underscores"
            raise InvalidRequest(option_text("part"), repr(part), expected=expected)
        return f"part_{part}"
    if not isinstance(parts, int) or isinstance(parts, bool) or not 1 <= parts <= _MAX_PARTS:
        raise InvalidRequest(
            option_text("parts"), repr(parts), expected=f"the total number of parts, from 1 to {_MAX_PARTS:,}"
        )
    if not isinstance(part, int) or isinstance(part, bool) or not 0 <= part < parts:
        raise InvalidRequest(option_text("part"), repr(part), expected=f"a number from 0 to {parts - 1:,}")
    return f"part{part:0{len(str(parts - 1))}}of{parts}"


def make_part_pattern(pattern: ShardPattern, tag: str) -> ShardPattern:
    """Return the shard pattern of a part."""
    if pattern.names is not None or pattern.count is not None:
        raise InvalidRequest(
            pattern.text, "a closed pattern, used with parts", expected="an open range such as out-{000000..}.tar"
        )
    return add_tag(pattern, tag)


def add_tag(pattern: ShardPattern, tag: str) -> ShardPattern:
    """Return the shard pattern of a part by its tag."""
    prefix = f"{pattern.prefix}{tag}-"
    return replace(pattern, prefix=prefix, text=prefix + pattern.text.removeprefix(pattern.prefix))


def find_writer_parts(pattern: ShardPattern, names: Iterable[str]) -> dict[str, PartFiles]:
    """Return the parts in a folder by tag, sorted by number and name."""
    tags = re.compile(re.escape(pattern.prefix) + f"(?P<tag>{_TAG_PATTERN})")
    parts_by_tag: dict[str, PartFiles] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        match = tags.match(name)
        if match is None:
            continue
        tag, number, parts = match["tag"], match[2], match[3]
        part_pattern = add_tag(pattern, tag)
        if not part_pattern.owns(name) and name != part_pattern.base + EMPTY_SUFFIX:
            continue
        part = parts_by_tag.setdefault(tag, PartFiles(tag, *((int(number), int(parts)) if number else (None, None))))
        if name == part_pattern.dataset_file:
            part.dataset_file = name
        elif name == part_pattern.base + EMPTY_SUFFIX:
            part.empty = True
        elif not name.endswith((SIDECAR_SUFFIX, SKIPPED_SUFFIX, DATASET_SUFFIX)):
            part.shards.append(name)
    ordered = sorted(
        parts_by_tag.values(), key=lambda part: (part.number is None, part.number or 0, part.parts or 0, part.tag)
    )
    return {part.tag: part for part in ordered}

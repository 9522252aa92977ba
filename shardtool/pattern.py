"""Shard patterns: the names of a dataset's shards, and of the files beside them.

`out-{000000..000999}.tar`, `out-<000000..000999>.tar`, `out-%06d.tar`, the open range
`out-{000000..}.tar`, and a list of names all become one `ShardPattern`. The ending picks the
format. A pattern names files in one folder, which may be a URL; it touches none.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, listing, printable
from shardtool.values import is_utf8, to_bytes, to_text

if TYPE_CHECKING:
    from collections.abc import Sequence

SIDECAR_SUFFIX = ".index"
SKIPPED_SUFFIX = ".skipped"
DATASET_SUFFIX = ".json"
FORMATS = {".tar": "tar", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord"}

_RANGE = re.compile(r"\{(\d+)\.\.(\d*)\}|<(\d+)\.\.(\d*)>|%0?(\d*)d", re.ASCII)
_MOST_NAMES = 10**6  # that several patterns may mean: they are held, as a shell holds them
_NAME_LIMIT = 240  # of the 255 that file systems allow; temporary names and other tools' endings want some
_MOST_DIGITS = 18  # of a number: no dataset has more shards, and it stays a number that a machine counts with
# What some other tool's pattern has, and no file's name should.
_LEFT_OVER = re.compile(r"[{}<>*?]|%\d*[disux]", re.ASCII)
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
_EXAMPLE = "a pattern such as out-{000000..}.tar, out-<000000..000999>.tar or out-%06d.tar"


@dataclass(frozen=True, slots=True)
class ShardPattern:
    """The names of a dataset's shards.

    Attributes:
        folder: Where all files of the dataset lie; "" is the current folder.
        prefix: What stands before the number.
        suffix: What stands after it, the format's ending included.
        first: The first number.
        width: Digits, zero-padded.
        count: How many names there are; None for an open range.
        names: The names themselves where a list was given that is no range.
        text: The pattern as the dataset file records it.
    """

    folder: str
    prefix: str
    suffix: str
    first: int
    width: int
    count: int | None
    names: tuple[str, ...] | None
    text: str

    @property
    def format(self) -> str:
        """`tar` or `tfrecord`."""
        return FORMATS[_ending(self.suffix if self.names is None else self.names[0])]

    @property
    def base(self) -> str:
        """The name of the dataset: `out` for `out-{000000..}.tar`."""
        rest = self.suffix.removesuffix(_ending(self.suffix))
        return f"{self.prefix}{rest}".strip("-_. ") or "dataset"

    @property
    def dataset_file(self) -> str:
        """The dataset file's name, in `folder`."""
        return self.base + DATASET_SUFFIX

    @property
    def skipped_file(self) -> str:
        """The name of the list of what was left out, in `folder`."""
        return self.base + SKIPPED_SUFFIX

    def shard(self, number: int) -> str:
        """Return the name of shard `number`, counted from 0."""
        if self.names is not None:
            return self.names[number]
        return f"{self.prefix}{self.first + number:0{self.width}d}{self.suffix}"

    def rivals(self, name: str) -> bool:
        """Tell whether a file is a shard of another format whose sidecar would have the name of one of ours."""
        ending, own = _ending(name), _ending(self.suffix if self.names is None else self.names[0])
        return ending in FORMATS and ending != own and self.owns(name.removesuffix(ending) + own)

    def owned_by(self, other: ShardPattern) -> str | None:
        """Return a name that this pattern makes and `other`, in the same folder, owns; None where there is none."""
        if os.path.abspath(self.folder or ".") != os.path.abspath(other.folder or "."):
            return None
        numbers = (0, 1, (self.count or 1) - 1) if self.names is None else range(len(self.names))
        names = [self.dataset_file, self.skipped_file, *(self.shard(number) for number in numbers)]
        return next((name for name in names if other.owns(name)), None)

    def owns(self, name: str) -> bool:
        """Tell whether a file called `name` in `folder` is, or could be, one of this dataset.

        Of numbers only the way that this pattern writes them counts: `out-2024.tar` is no shard of
        `out-{000000..}.tar`, and what is owned may be replaced.
        """
        if name in (self.dataset_file, self.skipped_file):
            return True
        ending = _ending(self.suffix)
        stem = name.removesuffix(ending) if name.endswith(ending) else name.removesuffix(SIDECAR_SUFFIX)
        if self.names is not None:
            return stem + ending in self.names and stem != name
        tail = self.suffix.removesuffix(ending)
        if stem == name or not stem.startswith(self.prefix) or not stem.endswith(tail):
            return False
        digits = stem[len(self.prefix) : len(stem) - len(tail)]
        return digits.isascii() and digits.isdigit() and digits == f"{int(digits):0{self.width}d}"


def format_of(shard: str) -> str:
    """Return the format by a shard's name: `tar` or `tfrecord`; empty for any other name."""
    return FORMATS.get(_ending(shard), "")


def sidecar_name(shard: str) -> str:
    """Return the name of a shard's sidecar: `out-000000.index` for `out-000000.tar`."""
    return shard.removesuffix(_ending(shard)) + SIDECAR_SUFFIX


def parse_pattern(output: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> ShardPattern:
    """Return the pattern that `output` means: one pattern, or the names that a shell made of one.

    Raises:
        InvalidRequest: No range, two ranges, an unknown ending, names in several folders.
    """
    texts = [os.fspath(one) for one in ([output] if isinstance(output, (str, os.PathLike)) else output)]
    if not texts:
        raise InvalidRequest("the output", "nothing given", expected=_EXAMPLE)
    for text in texts:
        if not is_utf8(raw := _raw(text)):
            raise InvalidRequest(text, "no UTF-8", expected="a name that the dataset file can hold")
        if printable(name := to_text(raw.rpartition(b"/")[2])) != name:
            raise InvalidRequest(text, "control characters in a name", expected="a name that can be printed")
    folder, slash, name = texts[0].rpartition("/")
    if any(mark in folder for mark in "{}<>"):
        raise InvalidRequest(texts[0], "a range in a folder's name", expected="one range, in the file name")
    ranges = list(_RANGE.finditer(name))
    if len(texts) > 1 or not ranges:
        pattern = _from_names(_expand(texts))
    else:
        pattern = _from_range(folder if folder or not slash else "/", name, ranges)
    names = pattern.names or [pattern.shard(number) for number in (0, (pattern.count or 1) - 1)]
    longest = max(names, key=lambda one: len(_raw(one)))
    if len(_raw(sidecar_name(longest))) > _NAME_LIMIT:
        raise InvalidRequest(longest, "too long a name", expected=f"at most {_NAME_LIMIT} bytes")
    return pattern


def _raw(name: str) -> bytes:
    """Return the bytes of a name, which is one of this locale, or out of a dataset file."""
    try:
        return os.fsencode(name)
    except UnicodeEncodeError:
        return to_bytes(name)


def _from_range(folder: str, name: str, ranges: list[re.Match[str]]) -> ShardPattern:
    match = ranges[0]
    prefix, suffix = name[: match.start()], name[match.end() :]
    if _LEFT_OVER.search(prefix) or _LEFT_OVER.search(suffix):
        raise InvalidRequest(name, "more than a range", expected="one range, in the file name")
    digits, last = match[1] or match[3], match[2] or match[4]
    given = [one for one in match.groups() if one]
    if any(len(one) > _NAME_LIMIT or len(one.lstrip("0")) > _MOST_DIGITS for one in given):
        raise InvalidRequest(name, "too long a number", expected=f"at most {_MOST_DIGITS} digits")
    if not digits and int(match[5] or 1) > _NAME_LIMIT:
        raise InvalidRequest(name, f"{match[5]} digits a number", expected=f"at most {_NAME_LIMIT}")
    if digits is None:
        first, width, count = 0, int(match[5] or 1), None
    else:
        first, width = int(digits), len(digits)
        count = int(last) - first + 1 if last else None
        if count is not None and count < 1:
            raise InvalidRequest(name, f"the range ends at {last}, before it starts", expected=_EXAMPLE)
    _check_ending(name, suffix)
    body = f"{digits}..{last or ''}" if digits is not None else f"{0:0{width}d}.."
    return ShardPattern(folder, prefix, suffix, first, width, count, None, f"{prefix}{{{body}}}{suffix}")


def _expand(texts: list[str]) -> list[str]:
    """Expand what braces are left: a script may have quoted one of several patterns."""
    if any("{" in text for text in texts):
        for match in re.finditer(r"\{(\d+)\.\.(\d+)", " ".join(texts)):  # braceexpand holds a range as a whole
            if max(map(len, match.groups())) > _MOST_DIGITS or abs(int(match[2]) - int(match[1])) >= _MOST_NAMES:
                raise InvalidRequest(match[0][:100], f"more than {_MOST_NAMES:,} names", expected="one pattern")
        from braceexpand import UnbalancedBracesError, braceexpand  # type: ignore[attr-defined,unused-ignore]

        try:
            names = [*islice((name for text in texts for name in braceexpand(text)), _MOST_NAMES + 1)]
        except UnbalancedBracesError:
            raise InvalidRequest(" ".join(texts), "a brace that is not closed", expected=_EXAMPLE) from None
        if len(names) > _MOST_NAMES:
            raise InvalidRequest(" ".join(texts)[:100], f"more than {_MOST_NAMES:,} names", expected="one pattern")
        return names
    return texts


def _from_names(names: list[str]) -> ShardPattern:
    if len(names) == 1:
        _check_ending(names[0], names[0])
    for name in names:
        if match := _LEFT_OVER.search(name.rpartition("/")[2]):
            raise InvalidRequest(name, f"{match[0]!r} that is no range", expected=_EXAMPLE)
    folders, where = {name.rpartition("/")[0] for name in names}, f"{names[0]} ... {names[-1]}"
    if len(folders) > 1:
        found = f"shards in {len(folders)} folders: {listing(sorted(folders), 3)}"
        raise InvalidRequest(where, found, expected="one folder")
    plain = [name.rpartition("/")[2] for name in names]
    for name in plain:
        _check_ending(name, name)
    if len(set(map(_ending, plain))) > 1:
        raise InvalidRequest(where, f"several formats: {listing(sorted(set(map(_ending, plain))))}", expected="one")
    if twice := sorted(name for name, count in Counter(plain).items() if count > 1):
        raise InvalidRequest(where, f"names given twice: {listing(twice)}")
    stems = [name.removesuffix(_ending(name)) for name in plain]
    folder = "/" if names[0].startswith("/") and folders == {""} else folders.pop()
    prefix, ending = _common(stems), _ending(plain[0])
    numbers = [stem[len(prefix) :] for stem in stems]
    if len(plain) > 1 and _is_range(numbers):
        text = f"{prefix}{{{numbers[0]}..{numbers[-1]}}}{ending}"
        return ShardPattern(folder, prefix, ending, int(numbers[0]), len(numbers[0]), len(plain), None, text)
    return ShardPattern(folder, prefix, ending, 0, 0, len(plain), tuple(plain), text_of(plain))


def text_of(names: Sequence[str]) -> str:
    """Return the text of a pattern that is a list of names: a long one is shortened to its first and last."""
    return ",".join((names[0], "...", names[-1]) if names[2:] else names)


def _common(stems: list[str]) -> str:
    """Return what all stems start with, a number at its end left out."""
    prefix = os.path.commonprefix(stems)  # noqa: RUF071 - character by character is what is wanted
    return prefix.rstrip("0123456789") if len(stems) > 1 else prefix


def _is_range(numbers: list[str]) -> bool:
    """Tell whether a shell made these of one range."""
    if not all(number.isdigit() and number.isascii() for number in numbers):
        return False
    first, width = int(numbers[0]), len(numbers[0])
    return numbers == [f"{first + at:0{width}d}" for at in range(len(numbers))]


def _ending(name: str) -> str:
    match = _ENDING.search(name)
    return match[0] if match else ""


def _check_ending(where: str, name: str) -> None:
    if where and where == _ending(name):
        raise InvalidRequest(where, "an ending without a name", expected=_EXAMPLE)
    if _ending(name) not in FORMATS:
        known = ", ".join(sorted(FORMATS))
        found = f"the ending {_ending(name)!r}" if _ending(name) else "no ending"
        raise InvalidRequest(where, found, expected=f"{_EXAMPLE} (formats: {known})")

"""Parse shard patterns and shard names.

`parse_pattern` accepts `out-{000000..000999}.tar`, `out-<000000..000999>.tar`, `out-%06d.tar`, the open range
`out-{000000..}.tar`, and lists of names in one folder or URL. The file extension selects the format and compression.
Upper-case extensions, compressed shards, and TensorFlow's numbered names (`x.tfrecord-00000-of-00010`,
`train-00000-of-01024`) can be read but not written.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.names import is_utf8, list_names, to_bytes, to_text

READABLE_ENDINGS = ".tar, .tfrecord, .tfrecords, .tar.gz, .tar.bz2, .tar.xz, .tar.zst"
_COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "xz": "xz", "zst": "zstd"}
_SHORT_ENDINGS = {"tgz": "gzip", "tbz": "bz2", "tbz2": "bz2", "txz": "xz", "tzst": "zstd"}
_SHARD_NAME = re.compile(
    r".+\.(?:(tar|tfrecords?)(?:-\d+-of-\d+)?(?:\.(gz|bz2|xz|zst))?|(tgz|tbz2?|txz|tzst))",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
SPLIT_FIELD = "{split}"
SPLIT_STAND_IN = "\ue000"  # replaces `{split}` while a pattern for all splits is parsed
_FILE_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
_NUMBERED_NAME = re.compile(r"(?<!\d)(\d{1,18})(-of-(\d{1,18}))$", re.ASCII)


class ShardName(NamedTuple):
    """Format and compression of a shard. `compression` is `gzip`, `bz2`, `xz`, `zstd` or empty."""

    format: str
    compression: str = ""


def parse_shard_name(name: str) -> ShardName | None:
    """Parse the name of a shard. Return None if the name has no known extension."""
    match = _SHARD_NAME.fullmatch(name)
    if match is None:
        return None
    shard_format, compression, short = (part.lower() for part in match.groups(""))
    if short:
        return ShardName("tar", _SHORT_ENDINGS[short])
    return ShardName("tar" if shard_format == "tar" else "tfrecord", _COMPRESSIONS.get(compression, ""))


def is_shard_name(name: str) -> bool:
    """Return whether a name has a known extension, or ends like `-00000-of-00010` (TensorFlow)."""
    return parse_shard_name(name) is not None or bool(find_count_suffix(name))


def is_compressed_name(name: str) -> bool:
    """Return whether a name has the extension of a compressed shard, such as `.tar.gz`."""
    parsed = parse_shard_name(name)
    return bool(parsed and parsed.compression)


def parse_format(shard: str) -> str:
    """Return `tar` or `tfrecord`, or "" if the extension is unknown."""
    parsed = parse_shard_name(shard)
    return parsed.format if parsed else ""


def file_ending(name: str) -> str:
    """Return the extension of a file name with its dot, or ""."""
    match = _FILE_ENDING.search(name)
    return match[0] if match else ""


def find_count_suffix(name: str) -> str:
    """Return the suffix `-of-01024` of a TensorFlow name such as `train-00003-of-01024`, or ""."""
    match = _NUMBERED_NAME.search(name)
    return match[2] if match else ""


def parse_numbered_name(name: str) -> tuple[str, int, int, int] | None:
    """Return prefix, number, digit count and file count of a TensorFlow name such as `train-00003-of-01024`."""
    match = _NUMBERED_NAME.search(name)
    return (name[: match.start()], int(match[1]), len(match[1]), int(match[3])) if match else None


SIDECAR_SUFFIX = ".index"
SKIPPED_SUFFIX = ".skipped"
DATASET_SUFFIX = ".json"
TIMM_FILE, OPEN_CLIP_FILE, ENERGON_FILE = "_info.json", "sizes.json", ".nv-meta/.info.json"
WRITABLE_FORMATS = {".tar": "tar", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord"}
_RANGE = re.compile(r"\{(\d+)\.\.(\d*)\}|<(\d+)\.\.(\d*)>|%0?(\d*)d", re.ASCII)
_AT_COUNT = re.compile(r"([^{}<>@]*)@(\d{1,18})", re.ASCII)
MAX_EXPANDED_NAMES = 10**6
_MAX_FILE_NAME_BYTES = 240  # file systems allow 255 bytes, and temporary names are longer than final names
_MAX_DIGITS = 18
_UNPARSED_RANGE = re.compile(r"[{}<>*?]|%\d*[disux]", re.ASCII)
# An unsupported range such as [000..999]. The error suggests braces.
_BRACKET_RANGE = re.compile(r"\[(\d+)(?:\.\.+|-)(\d*)\]", re.ASCII)
OUTPUT_EXAMPLE = "a pattern such as out-{000000..}.tar, out-<000000..000999>.tar or out-%06d.tar"


@dataclass(frozen=True, slots=True)
class ShardPattern:
    """The names of a dataset's shards.

    Attributes:
        folder: Folder of the dataset's files, or "" for the current folder.
        width: Minimum number of digits. Shorter numbers are padded with zeros.
        count: Number of names, or None for an open range.
        names: The shard names if they are not numbered consecutively, otherwise None.
        text: The pattern without the folder.
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
        """`tar`, `tfrecord`, or "" if the extension is unknown."""
        return parse_format(self.shard(0))

    @property
    def base(self) -> str:
        """The name of the dataset, such as `out` for `out-{000000..}.tar`."""
        rest = self.suffix.removesuffix(_shard_ending(self.shard(0)))
        base = f"{self.prefix}{rest}".strip("-_. ")
        if find_count_suffix(self.shard(0)) and file_ending(base) in WRITABLE_FORMATS:  # x.tfrecord-00000-of-00010
            base = base.removesuffix(file_ending(base))
        return base or "dataset"

    @property
    def dataset_file(self) -> str:
        """The name of the dataset file in `folder`."""
        return self.base + DATASET_SUFFIX

    @property
    def skipped_file(self) -> str:
        """The name of the list of skipped samples."""
        return self.base + SKIPPED_SUFFIX

    def shard(self, number: int) -> str:
        """Return the name of shard `number`, counted from 0."""
        if self.names is not None:
            return self.names[number]
        return f"{self.prefix}{self.first + number:0{self.width}d}{self.suffix}"

    def closed_pattern(self, count: int) -> str:
        """Return the pattern of the first `count` shards, for example `out/x-{000000..000041}.tar`.

        Return "" if the names are not numbered consecutively. Also return "" for numbers such as 08 to 100, because a
        shell would expand {08..100} to 008, 009 ...
        """
        if count == 1:
            return os.path.join(self.folder, self.shard(0))
        first, last = (f"{self.first + number:0{self.width}d}" for number in (0, count - 1))
        if self.names is not None or (len(first) < len(last) and first.startswith("0") and len(first) > 1):
            return ""
        return os.path.join(self.folder, f"{self.prefix}{{{first}..{last}}}{self.suffix}")

    def shares_sidecar_name(self, name: str) -> bool:
        """Return whether `name` has the same sidecar name as a shard of this dataset, but a different extension."""
        ending, own = file_ending(name), file_ending(self.shard(0))
        return ending in WRITABLE_FORMATS and ending != own and self.owns(name.removesuffix(ending) + own)

    def find_overlap(self, other: ShardPattern) -> str | None:
        """Return a file name that both datasets would use, or None."""
        if os.path.abspath(self.folder or ".") != os.path.abspath(other.folder or "."):
            return None
        numbers = (0, 1, (self.count or 1) - 1) if self.names is None else range(len(self.names))
        names = [self.dataset_file, self.skipped_file, *(self.shard(number) for number in numbers)]
        return next((name for name in names if other.owns(name)), None)

    def owns(self, name: str) -> bool:
        """Return whether the file `name` in `folder` can belong to this dataset, and may therefore be replaced.

        Numbers must be padded as in the pattern: `out-2024.tar` does not belong to `out-{000000..}.tar`.
        """
        if name.endswith((DATASET_SUFFIX, SKIPPED_SUFFIX)) and name in (self.dataset_file, self.skipped_file):
            return True
        if name.endswith(SIDECAR_SUFFIX):
            name = name.removesuffix(SIDECAR_SUFFIX) + file_ending(self.shard(0))
        if self.names is not None:
            return name in self.names
        if not name.startswith(self.prefix) or not name.endswith(self.suffix):
            return False
        digits = name[len(self.prefix) : len(name) - len(self.suffix)]
        return digits.isascii() and digits.isdigit() and digits == f"{int(digits):0{self.width}d}"


def sidecar_name(shard: str) -> str:
    """Return the name of a shard's sidecar, such as `out-000000.index`."""
    return shard.removesuffix(file_ending(shard)) + SIDECAR_SUFFIX


def replacement_plan_name(base: str) -> str:
    """Return the name that the new dataset file has while a run replaces shards."""
    return f".{base}.replacing"


def old_list_name(base: str) -> str:
    """Return the name that the old dataset file has while `copy` deletes the old shards."""
    return f".{base}.replaced"


def parse_pattern(output: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> ShardPattern:
    """Parse a shard pattern, or the list of names to which a shell has expanded it."""
    if not (texts := list_names("the output", output, OUTPUT_EXAMPLE)):
        raise InvalidRequest("the output", "not given", expected=OUTPUT_EXAMPLE)
    for text in texts:
        _check_pattern_text(text)
    if len(texts) == 1 and (spec := _AT_COUNT.fullmatch(texts[0])) and (count := int(spec[2])):
        texts = [f"{spec[1]}-{{{0:05}..{count - 1:05}}}-of-{count:05}"]
    folder, slash, name = texts[0].rpartition("/")
    if any(mark in folder for mark in "{}<>"):
        raise InvalidRequest(texts[0], "a range in a folder name", expected="one range, in the file name")
    ranges = list(_RANGE.finditer(name))
    if len(texts) > 1 or not ranges:
        pattern = _parse_names(_expand_braces(texts))
    else:
        pattern = _parse_range(folder if folder or not slash else "/", name, ranges)
    names = pattern.names or [pattern.shard(number) for number in (0, (pattern.count or 1) - 1)]
    longest = max(names, key=lambda name: len(_name_bytes(name)))
    if len(_name_bytes(sidecar_name(longest))) > _MAX_FILE_NAME_BYTES:
        raise InvalidRequest(longest, "name too long", expected=f"at most {_MAX_FILE_NAME_BYTES} bytes")
    return pattern


def _check_pattern_text(text: str) -> None:
    if not is_utf8(raw := _name_bytes(text)):
        raise InvalidRequest(text, "not UTF-8", expected="a UTF-8 name, for the dataset file")
    if printable(name := to_text(raw.rpartition(b"/")[2])) != name:
        raise InvalidRequest(text, "control characters in a name", expected="a printable name")
    _, scheme_end, rest = text.partition("://")
    folder, slash, _ = rest.rpartition("/")
    if scheme_end and not slash:
        raise InvalidRequest(text, "no bucket or folder", expected="a URL such as s3://bucket/out-{000000..}.tar")
    if scheme_end and "" in folder.split("/"):
        raise InvalidRequest(text, "an empty path component", expected="names between the slashes")


def check_writable(pattern: ShardPattern) -> None:
    """Raise InvalidRequest for names that cannot be written, and for ranges in brackets instead of braces."""
    name = pattern.shard(0)
    if pattern.names is not None and (range_ := _BRACKET_RANGE.search(name)):
        corrected = f"{name[: range_.start()]}{{{range_[1]}..{range_[2]}}}{name[range_.end() :]}"
        raise InvalidRequest(pattern.text, "a range in brackets", expected=f"braces: {corrected}")
    if file_ending(name) not in WRITABLE_FORMATS:
        found = f"{_shard_ending(name)} can be read but not written"
        raise InvalidRequest(
            pattern.text, found, expected=f"{OUTPUT_EXAMPLE} (formats: {', '.join(sorted(WRITABLE_FORMATS))})"
        )


def _name_bytes(name: str) -> bytes:
    try:
        return os.fsencode(name)
    except UnicodeEncodeError:
        return to_bytes(name)


def _parse_range(folder: str, name: str, ranges: list[re.Match[str]]) -> ShardPattern:
    match = ranges[0]
    prefix, suffix = name[: match.start()], name[match.end() :]
    if extra := _UNPARSED_RANGE.search(prefix) or _UNPARSED_RANGE.search(suffix):
        where = os.path.join(folder, name)  # the full path, because errors find secrets only in complete URLs
        found = f"a range and {extra[0]!r}" if extra[0] in "*?" else "more than one range"
        raise InvalidRequest(where, found, expected="one range, in the file name")
    start = match[1] or match[3]
    last = match[2] or match[4]
    numbers = [number for number in match.groups() if number]
    if any(len(number) > _MAX_FILE_NAME_BYTES or len(number.lstrip("0")) > _MAX_DIGITS for number in numbers):
        raise InvalidRequest(name, "number too long", expected=f"at most {_MAX_DIGITS} digits")
    if start is None:
        if (width := int(match[5] or 1)) > _MAX_FILE_NAME_BYTES:
            raise InvalidRequest(name, f"numbers of {match[5]} digits", expected=f"at most {_MAX_FILE_NAME_BYTES}")
        start = f"{0:0{width}d}"
    first = int(start)
    count = int(last) - int(start) + 1 if last else None
    if count is not None and count < 1:
        raise InvalidRequest(name, f"the range ends at {last}, before it starts", expected=OUTPUT_EXAMPLE)
    _check_ending(name, f"{prefix}0{suffix}")
    text = f"{prefix}{{{start}..{last or ''}}}{suffix}"
    return ShardPattern(folder, prefix, suffix, first, len(start), count, None, text)


def _expand_braces(texts: list[str]) -> list[str]:
    if not any("{" in text for text in texts):
        return texts
    all_texts, too_many = " ".join(texts), f"more than {MAX_EXPANDED_NAMES:,} names"
    for match in re.finditer(r"\{(\d+)\.\.(\d+)", all_texts):  # check now: `braceexpand` creates all names in memory
        if max(map(len, match.groups())) > _MAX_DIGITS or abs(int(match[2]) - int(match[1])) >= MAX_EXPANDED_NAMES:
            raise InvalidRequest(match[0][:100], too_many, expected="one pattern")
    from braceexpand import UnbalancedBracesError, braceexpand  # type: ignore[attr-defined,unused-ignore]

    try:
        names = [*islice((name for text in texts for name in braceexpand(text)), MAX_EXPANDED_NAMES + 1)]
    except UnbalancedBracesError:
        raise InvalidRequest(all_texts, "a brace is not closed", expected=OUTPUT_EXAMPLE) from None
    if len(names) > MAX_EXPANDED_NAMES:
        raise InvalidRequest(all_texts[:100], too_many, expected="one pattern")
    return names


def _parse_names(names: list[str]) -> ShardPattern:
    if len(names) == 1:
        _check_ending(names[0], names[0])
    for name in names:
        if match := _UNPARSED_RANGE.search(name.rpartition("/")[2]):
            raise InvalidRequest(name, f"{match[0]!r} does not start a range", expected=OUTPUT_EXAMPLE)
    folders, where = {name.rpartition("/")[0] for name in names}, f"{names[0]} ... {names[-1]}"
    if len(folders) > 1:
        found = f"shards in {len(folders)} folders: {format_list(sorted(folders), 3)}"
        raise InvalidRequest(where, found, expected="one folder")
    plain = [name.rpartition("/")[2] for name in names]
    for name in plain:
        _check_ending(name, name)
    endings = {_shard_ending(name) for name in plain}
    if len(endings) > 1 and not all(map(find_count_suffix, plain)):
        raise InvalidRequest(where, f"several formats: {format_list(sorted(endings))}", expected="one")
    if twice := sorted(name for name, count in Counter(plain).items() if count > 1):
        raise InvalidRequest(where, f"duplicate names: {format_list(twice)}")
    ending = endings.pop() if len(endings) == 1 else ""
    stems = [name.removesuffix(ending) for name in plain]
    folder = "/" if names[0].startswith("/") and folders == {""} else folders.pop()
    numbered = len(plain) > 1 or bool(find_count_suffix(plain[0]))
    prefix = os.path.commonprefix(stems)  # noqa: RUF071 - a prefix of characters, not of path components
    prefix = prefix.rstrip("0123456789") if numbered else prefix
    numbers = [stem[len(prefix) :] for stem in stems]
    if numbered and _is_consecutive(numbers):
        text = f"{prefix}{{{numbers[0]}..{numbers[-1]}}}{ending}"
        return ShardPattern(folder, prefix, ending, int(numbers[0]), len(numbers[0]), len(plain), None, text)
    return ShardPattern(folder, prefix, ending, 0, 0, len(plain), tuple(plain), abbreviate_names(plain))


def abbreviate_names(names: Sequence[str]) -> str:
    """Join names with commas. Of three or more names, only the first and the last are shown."""
    return ",".join((names[0], "...", names[-1]) if names[2:] else names)


def _is_consecutive(numbers: list[str]) -> bool:
    if not all(number.isdigit() and number.isascii() for number in numbers):
        return False
    first, width = int(numbers[0]), len(numbers[0])
    return numbers == [f"{first + index:0{width}d}" for index in range(len(numbers))]


def _shard_ending(name: str) -> str:
    ending = file_ending(name)
    compressed_ending = file_ending(name.removesuffix(ending)) + ending if is_compressed_name(name) else ""
    return find_count_suffix(name) or compressed_ending or ending


def _check_ending(where: str, name: str) -> None:
    if where and where == _shard_ending(name):
        raise InvalidRequest(where, "a file extension without a name", expected=OUTPUT_EXAMPLE)
    if not is_shard_name(name):
        formats = ", ".join(sorted(WRITABLE_FORMATS))
        found = f"the file extension {file_ending(name)!r}" if file_ending(name) else "no file extension"
        raise InvalidRequest(where, found, expected=f"{OUTPUT_EXAMPLE} (formats: {formats})")

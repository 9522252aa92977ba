"""The members of a zip or a tar, by the rules of a folder: hidden names, globs, keys and fields.

A name that no file below a folder could have, and a member that cannot be read, is listed beside the samples, as what
a folder holds besides them is.
"""

from __future__ import annotations

import stat
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.dataset.shard_file import ShardFile
from shardtool.errors import CorruptShard, InvalidRequest, listing, printable
from shardtool.format import tar_read, zip_read
from shardtool.names import Names
from shardtool.skipped import SkipCode, Skipped
from shardtool.source.folder.scan import ScanPart, pass_over
from shardtool.values import SPAN, counted, is_utf8, split_name, to_text
from shardtool.wording import typed_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.dataset.shard_file import PackedFile
    from shardtool.format.zip_read import ZipMember
    from shardtool.source.folder.scan import ScanRules

_KEPT_A_MEMBER = 128  # bytes, besides its name
_KEPT_ALWAYS, _KEPT_A_PACKED_BYTE = 2**27, 128  # how much listing a compressed tar may keep
_LONGEST = 2**13  # bytes of a name: a key and a field, as long as they may be
_CHUNK = 2**16
_FOLDER = b"5"
_LINKS = (b"1", b"2")


class _Member(NamedTuple):
    """A member that is no folder; `problem` is why it cannot be packed."""

    name: bytes
    offset: int
    size: int
    problem: tuple[SkipCode, str] | None


@dataclass
class Listed:
    """What an archive holds.

    Attributes:
        part: Its samples, in the order of their keys, of which nothing is known but names and sizes.
        offsets: int64[fields], where each payload, or the header of a zip's member, starts.
        skipped: What is no part of a sample.
    """

    part: ScanPart = field(default_factory=ScanPart)
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    skipped: list[Skipped] = field(default_factory=list)


def list_members(file: ShardFile | PackedFile, folder: bytes, rules: ScanRules, *, is_zip: bool, size: int) -> Listed:
    """Return what an archive holds below one of its folders.

    Args:
        file: The archive.
        folder: Empty, or ending in a slash.
        rules: Which files are taken, and what their names mean.
        is_zip: Whether it is a zip; otherwise it is a tar.
        size: Its bytes on disk.

    Raises:
        CorruptShard: It is damaged, or claims more than there is.
        InvalidRequest: It holds a file twice.
    """
    found, folders = Listed(), dict[bytes, bool]()
    names, starts, offsets, sizes = bytearray(), array("q", [0]), array("q"), array("q")
    kept, most = 0, max(_KEPT_ALWAYS, _KEPT_A_PACKED_BYTE * size)
    for member in _zip_members(file) if is_zip else _tar_members(file):
        kept += _KEPT_A_MEMBER + len(member.name)
        if kept > most:
            raise CorruptShard(file.path, "far more members than an archive of its size has")
        name = member.name
        while name.startswith(b"./"):
            name = name[2:]
        if not name.startswith(folder) or len(name) == len(folder):
            continue
        name = name[len(folder) :]
        above, slash, last = name.rpartition(b"/")
        if is_unsafe(name) or len(name) > _LONGEST:
            path = to_text(name[:_LONGEST])
            found.skipped.append(Skipped("", path, "unsafe-name", "a name that no file below a folder can have"))
            continue
        known = len(folders)
        is_wanted = _takes(above + slash, last, rules, found.part, folders)
        kept += (len(folders) - known) * (_KEPT_A_MEMBER + len(above))
        if not is_wanted:
            continue
        split = split_name(last, rules.dots)
        if split is None:
            what = "the name has no ending that could name a field"
            found.skipped.append(Skipped("", to_text(name), "no-field", what))
            continue
        key = above + slash + split[0]
        if member.problem is not None:
            if member.problem != _link() or rules.symlinks != "skip":
                found.skipped.append(Skipped(to_text(key), to_text(name), *member.problem))
            continue
        names += key + b"\0" + split[1] + b"\0"
        starts.append(len(names))
        offsets.append(member.offset)
        sizes.append(member.size)
    _arrange(found, Names(bytes(names), np.array(starts, np.int64)), np.array(offsets), np.array(sizes), file.path)
    return found


def is_unsafe(name: bytes) -> bool:
    """Tell whether a name is no path of a file below a folder."""
    return b"\0" in name or any(part in (b"", b".", b"..") for part in name.split(b"/"))


def _takes(above: bytes, last: bytes, rules: ScanRules, part: ScanPart, folders: dict[bytes, bool]) -> bool:
    """Tell whether a file is wanted; `above` is its folder, `folders` what is known of such."""
    if not _takes_folder(above, rules, part, folders):
        return False
    if rules.hides(last):
        pass_over(rules, above, last, part)
        return False
    return rules.takes_file(above, last)


def _takes_folder(folder: bytes, rules: ScanRules, part: ScanPart, folders: dict[bytes, bool]) -> bool:
    """Tell whether files of a folder may be wanted; `folder` is empty, or ends in a slash."""
    unknown = []
    while folder and folder not in folders:
        unknown.append(folder)
        folder = folder[: folder.rfind(b"/", 0, -1) + 1]
    taken = folders.get(folder, True)
    for below in reversed(unknown):
        name = below[len(folder) : -1]
        taken = taken and rules.takes_folder(folder, name)
        if taken and rules.hides(name):
            pass_over(rules, folder, name, part)
            taken = False
        folders[below], folder = taken, below
    return taken


def _link() -> tuple[SkipCode, str]:
    return (
        "special-file",
        f"a link, which is not followed in an archive; {typed_option('symlinks', 'skip')} leaves it out",
    )


def _zip_members(file: ShardFile | PackedFile) -> Iterator[_Member]:
    places = array("q")
    with ShardFile(file.path) as heads:  # two places of the file, each read in its order
        for one in zip_read.members(file.read, file.size, file.path):
            problem = _zip_problem(one)
            start = one.offset + len(one.name) if problem else zip_read.payload_start(heads.read, one, file.path)
            places.extend((one.offset, start + one.packed))
            if not one.name.endswith(b"/"):
                name = one.name if is_utf8(one.name) else one.name.decode("cp437").encode()
                yield _Member(name, one.offset, one.size, problem)
    starts = np.array(places[::2], np.int64)
    order = np.argsort(starts)
    if np.any(np.array(places[1::2], np.int64)[order][:-1] > starts[order][1:]):
        raise CorruptShard(file.path, "members that lie in each other: a zip made to unpack to far too much")


def _zip_problem(one: ZipMember) -> tuple[SkipCode, str] | None:
    """Return why a member cannot be packed."""
    if one.encrypted:
        return "unreadable", "encrypted"
    if one.method not in (zip_read.STORED, zip_read.DEFLATED):
        return "unreadable", f"compressed by method {one.method}, which is not read"
    return _link() if stat.S_ISLNK(one.mode) else None


def _tar_members(file: ShardFile | PackedFile) -> Iterator[_Member]:
    for one in tar_read.walk(file.read, file.path):
        if one.kind == _FOLDER or one.name.endswith(b"/"):
            continue
        problem: tuple[SkipCode, str] | None = None
        if not one.is_file:
            problem = _link() if one.kind in _LINKS else ("special-file", "no plain file")
        yield _Member(one.name, one.data, one.size, problem)


def _arrange(found: Listed, names: Names, offsets: NDArray[np.int64], sizes: NDArray[np.int64], where: str) -> None:
    """Put what was found into the order of keys and fields; `names` has both of each, with a NUL between them.

    Raises:
        InvalidRequest: A file is there twice.
    """
    order, part = names.sorted_order(), found.part
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
        problem = f"{counted(len(twice), 'name')} of several members: {listing([printable(name) for name in twice])}"
        raise InvalidRequest(where, problem, expected="each file once", remedy="Make the archive anew.")
    part.keys = [bytes(keys)]
    part.kinds = bytearray([SPAN]) * len(order)
    found.offsets = offsets[order]
    part.sizes = array("q", sizes[order].tobytes())

"""What can still be read of a damaged shard: members and records behind the damage, and which samples are whole.

A tar has no checksums of payloads, and does not say which members make a sample. So a sample next to a lost part counts
as whole only if it has all the fields that samples of the shard have; another one may have lost some.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import CorruptShard
from shardtool.format import resync, tar_read, tfrecord_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardtool.dataset.shard_file import PackedFile, ShardFile

_MOST = 2**16  # lost parts of a shard: what has more is no shard
_MAY_MISS = "fields of it may be lost there"


class Lost(NamedTuple):
    """A part of a shard that could not be read.

    Attributes:
        start: Where it starts.
        end: Where the shard goes on; -1: nowhere.
        found: What is wrong there.
        name: Of a tar, the name in the damaged header, as far as that seems to have one.
    """

    start: int
    end: int
    found: str
    name: bytes = b""

    def __str__(self) -> str:
        rest = f"{self.end - self.start:,} bytes" if self.end >= 0 else "all from there on"
        return f"at {self.start:,}: {self.found}; passed over: {rest}"


def what_is_wrong(error: CorruptShard) -> str:
    """Return what an error says, without the place and what to do."""
    return f"{error.problem}, expected {error.expected}" if error.expected else error.problem


def walk_members(
    shard: ShardFile | PackedFile, note: Callable[[int, str], None], lost: list[Lost]
) -> Iterator[tar_read.Member]:
    """Yield the members of a tar that can be read; what cannot is added to `lost`."""
    at, doubtful = 0, False
    while at >= 0:
        try:
            for member in tar_read.walk(shard.read, shard.path, note, at):
                at = member.end
                if doubtful and member.data - member.offset == tar_read.BLOCK and resync.may_lack_its_name(member.name):
                    lost.append(Lost(member.offset, at, "a member whose long name may be lost", member.name))
                else:
                    yield member
                doubtful = False
        except CorruptShard as error:
            lost.append(_lost_of_tar(shard, at, error))
            at, doubtful = lost[-1].end, True
            if len(lost) > _MOST:
                raise
        else:
            return


def _lost_of_tar(shard: ShardFile | PackedFile, at: int, error: CorruptShard) -> Lost:
    at = at if shard.size < 0 else min(at, shard.size)
    place = at if error.offset is None else max(at, error.offset)
    try:
        block = bytes(shard.read(place, tar_read.BLOCK))
        end = resync.next_header(shard.read, place, place + (place == at), shard.size)
    except CorruptShard:  # of what is compressed, nothing behind it can be read
        return Lost(at, -1, what_is_wrong(error))
    return Lost(at, -1 if end is None else end, what_is_wrong(error), resync.tar_name(block))


def walk_records(
    shard: ShardFile | PackedFile, hold: Callable[[int, int], None] | None, lost: list[Lost]
) -> Iterator[tfrecord_read.Record]:
    """Yield the records of a TFRecord file that can be read; what cannot is added to `lost`."""
    at = before = 0
    while at >= 0:
        try:
            for record in tfrecord_read.walk(shard.read, shard.path, hold, at):
                before, at = record.offset, record.end
                yield record
        except CorruptShard as error:
            # A record whose data is damaged may be shorter than its head says: what follows begins in it.
            cut = bool(lost) and lost[-1].start == before < at == lost[-1].end and shard.size >= 0
            try:
                end = resync.next_record(shard.read, at, before + 1 if cut else at + 1, shard.size)
            except CorruptShard:  # of what is compressed, nothing behind it can be read
                end = None
            found = lost.pop() if cut else Lost(at, -1, what_is_wrong(error))
            lost.append(found._replace(end=-1 if end is None else end))
            at = lost[-1].end
            if len(lost) > _MOST:
                raise
        else:
            return


def broken_samples(
    keys: Sequence[bytes],
    starts: Sequence[int],
    fields: Sequence[frozenset[int]],
    ends: Sequence[int],
    lost: Iterable[tuple[Lost, bytes]],
    size: int,
) -> dict[int, str]:
    """Return the samples of a tar that are not whole, and why.

    Args:
        keys: The keys of the samples.
        starts: Where each starts.
        fields: The fields of each.
        ends: Where the last payload of each ends.
        lost: The parts that could not be read, and the key that each seems to have.
        size: Bytes of the file; -1: unknown, since it is compressed.
    """
    broken: dict[int, str] = {}
    near: dict[int, str] = {}
    for one, key in lost:
        before, behind = bisect_left(starts, one.start) - 1, bisect_right(starts, one.end - 1)
        sides = [before] if one.end < 0 else [before, behind]
        for at in sides:
            if 0 <= at < len(keys):
                near[at] = f"next to what is lost at {one.start:,}"
                if keys[at] == key or (size < 0 and one.end < 0):
                    broken[at] = f"{near[at]}: {_MAY_MISS}"
    for at, end in enumerate(ends) if size >= 0 else ():
        if end > size:
            broken[at] = f"the file ends in it: {end - size:,} bytes are not there"
    usual = frozenset().union(*(names for at, names in enumerate(fields) if at not in broken))
    for at, reason in near.items():
        if at not in broken and not fields[at] >= usual:
            broken[at] = f"{reason}: {_MAY_MISS}"
    return dict(sorted(broken.items()))


def torn_samples(keys: Sequence[bytes], fields: Sequence[frozenset[int]]) -> list[tuple[int, int]]:
    """Return the samples of a tar whose fields lie apart: the places of the first two parts of each.

    Where parts of one key share a field, it has samples of one key, and none is torn.

    Args:
        keys: The keys of the samples as they lie.
        fields: The fields of each.
    """
    if len({*keys}) == len(keys):
        return []
    first: dict[bytes, int] = {}
    torn: dict[bytes, tuple[int, int]] = {}
    known: dict[bytes, frozenset[int]] = {}
    for at, (key, names) in enumerate(zip(keys, fields, strict=True)):
        before = known.get(key, frozenset())
        if before & names:
            return []
        known[key] = before | names
        if first.setdefault(key, at) != at:
            torn.setdefault(key, (first[key], at))
    return [*torn.values()]

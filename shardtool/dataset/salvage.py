"""Read the undamaged samples of a damaged shard.

A tar does not record how many members a sample has. A sample next to a lost range therefore counts as complete only if
it has every field that occurs in the shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import CorruptShard
from shardtool.format import tar_read, tar_write, tfrecord_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.dataset.shard_file import OpenShard


_MAX_LOST_RANGES = 2**16
FIELDS_MAY_BE_LOST = "some of its fields may be lost"


class LostRange(NamedTuple):
    """A range of a shard that could not be read.

    Attributes:
        end: Offset where reading continues, or -1 if the rest of the shard is lost.
        name: For tar, the name in the damaged header.
    """

    start: int
    end: int
    found: str
    name: bytes = b""

    def __str__(self) -> str:
        rest = f"{self.end - self.start:,} bytes" if self.end >= 0 else "the rest of the file"
        return f"at {self.start:,}: {self.found}; skipped: {rest}"


def error_text(error: CorruptShard) -> str:
    """Return the message of an error without its location and advice."""
    return f"{error.problem}, expected {error.expected}" if error.expected else error.problem


def salvage_members(
    shard: OpenShard, note: Callable[[int, str], None], lost: list[LostRange]
) -> Iterator[tar_read.TarMember]:
    """Yield the readable members of a tar, and append the unreadable ranges to `lost`."""
    offset, follows_damage = 0, False
    while offset >= 0:
        try:
            for member in tar_read.iter_members(shard.read, shard.path, note, offset):
                offset = member.end
                if (
                    follows_damage
                    and member.data - member.offset == tar_write.TAR_BLOCK_BYTES
                    and tar_read.may_be_truncated(member.name)
                ):
                    lost.append(LostRange(member.offset, offset, "a member whose long name may be lost", member.name))
                else:
                    yield member
                follows_damage = False
        except CorruptShard as error:
            lost.append(_lost_tar_range(shard, offset, error))
            offset, follows_damage = lost[-1].end, True
            if len(lost) > _MAX_LOST_RANGES:
                raise
        else:
            return


def _lost_tar_range(shard: OpenShard, start: int, error: CorruptShard) -> LostRange:
    start = start if shard.size < 0 else min(start, shard.size)
    error_offset = start if error.offset is None else max(start, error.offset)
    search_start = start + 1 if error_offset == start else error_offset
    try:
        block = bytes(shard.read(error_offset, tar_write.TAR_BLOCK_BYTES))
        end = tar_read.next_header(shard.read, error_offset, search_start, shard.size)
    except CorruptShard:
        return LostRange(start, -1, error_text(error))
    return LostRange(start, -1 if end is None else end, error_text(error), tar_read.damaged_name(block))


def salvage_records(
    shard: OpenShard, hold: Callable[[int, int], object] | None, lost: list[LostRange]
) -> Iterator[tfrecord_read.TFRecord]:
    """Yield the readable records of a TFRecord file, and append the unreadable ranges to `lost`."""
    offset = previous = 0
    while offset >= 0:
        try:
            for record in tfrecord_read.iter_records(shard.read, shard.path, hold, offset):
                previous, offset = record.offset, record.end
                yield record
        except CorruptShard as error:
            # The caller adds records with damaged data to `lost`. If the previous record is one of them, its length may
            # be wrong, so also search inside the previous record.
            continues_loss = bool(lost) and lost[-1].start == previous < offset == lost[-1].end and shard.size >= 0
            try:
                end = tfrecord_read.next_record(
                    shard.read, offset, previous + 1 if continues_loss else offset + 1, shard.size
                )
            except CorruptShard:
                end = None
            lost_range = lost.pop() if continues_loss else LostRange(offset, -1, error_text(error))
            lost.append(lost_range._replace(end=-1 if end is None else end))
            offset = lost[-1].end
            if len(lost) > _MAX_LOST_RANGES:
                raise
        else:
            return

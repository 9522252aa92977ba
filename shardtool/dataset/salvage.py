"""Read a damaged shard past the damage.

A tar has no checksums of payloads, and does not record which members form a sample. A sample next to a lost range
counts as whole only if it has every field that samples of the shard have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import (
    CorruptShard,
)
from shardtool.format import tar_read, tar_resync, tar_write, tfrecord_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.dataset.shard_file import CompressedFile, ShardFile


_MAX_LOST_RANGES = 2**16  # lost parts of a shard: what has more is no shard


FIELDS_MAY_BE_LOST = "fields of it may be lost there"


class LostRange(NamedTuple):
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


def error_text(error: CorruptShard) -> str:
    """Return what an error says, without the place and what to do."""
    return f"{error.problem}, expected {error.expected}" if error.expected else error.problem


def salvage_members(
    shard: ShardFile | CompressedFile, note: Callable[[int, str], None], lost: list[LostRange]
) -> Iterator[tar_read.TarMember]:
    """Yield the members of a tar that can be read; what cannot is added to `lost`."""
    at, doubtful = 0, False
    while at >= 0:
        try:
            for member in tar_read.iter_members(shard.read, shard.path, note, at):
                at = member.end
                if (
                    doubtful
                    and member.data - member.offset == tar_write.TAR_BLOCK_BYTES
                    and tar_resync.may_lack_name(member.name)
                ):
                    lost.append(LostRange(member.offset, at, "a member whose long name may be lost", member.name))
                else:
                    yield member
                doubtful = False
        except CorruptShard as error:
            lost.append(_lost_tar_range(shard, at, error))
            at, doubtful = lost[-1].end, True
            if len(lost) > _MAX_LOST_RANGES:
                raise
        else:
            return


def _lost_tar_range(shard: ShardFile | CompressedFile, at: int, error: CorruptShard) -> LostRange:
    at = at if shard.size < 0 else min(at, shard.size)
    place = at if error.offset is None else max(at, error.offset)
    try:
        block = bytes(shard.read(place, tar_write.TAR_BLOCK_BYTES))
        end = tar_resync.next_header(shard.read, place, place + (place == at), shard.size)
    except CorruptShard:  # of what is compressed, nothing behind it can be read
        return LostRange(at, -1, error_text(error))
    return LostRange(at, -1 if end is None else end, error_text(error), tar_resync.damaged_name(block))


def salvage_records(
    shard: ShardFile | CompressedFile, hold: Callable[[int, int], object] | None, lost: list[LostRange]
) -> Iterator[tfrecord_read.TFRecord]:
    """Yield the records of a TFRecord file that can be read; what cannot is added to `lost`."""
    at = before = 0
    while at >= 0:
        try:
            for record in tfrecord_read.iter_records(shard.read, shard.path, hold, at):
                before, at = record.offset, record.end
                yield record
        except CorruptShard as error:
            # A record whose data is damaged may be shorter than its head says: what follows begins in it.
            cut = bool(lost) and lost[-1].start == before < at == lost[-1].end and shard.size >= 0
            try:
                end = tfrecord_read.next_record(shard.read, at, before + 1 if cut else at + 1, shard.size)
            except CorruptShard:  # of what is compressed, nothing behind it can be read
                end = None
            found = lost.pop() if cut else LostRange(at, -1, error_text(error))
            lost.append(found._replace(end=-1 if end is None else end))
            at = lost[-1].end
            if len(lost) > _MAX_LOST_RANGES:
                raise
        else:
            return

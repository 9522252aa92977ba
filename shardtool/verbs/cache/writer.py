"""A sampler's writer: its samples become shards of a cache, one after the other, each visible once it is whole."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Literal

from shardtool.dataset.shard_index import ShardFact
from shardtool.dataset.sidecar import encode, index_of
from shardtool.errors import InvalidRequest, OutputFailed, memory_for, printable, reason
from shardtool.format.sizes import SAMPLE_LIMIT, TRAILER_SIZE
from shardtool.pattern import sidecar_name
from shardtool.request.settings import check_choice
from shardtool.storage.shared import take_lock
from shardtool.storage.staging import Folder
from shardtool.values import show_size
from shardtool.verbs.cache.folder import WRITTEN, room_path
from shardtool.wording import option
from shardtool.writer.samples import Columns, OpenShard, SampleEncoder, SampleRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from shardtool.verbs.cache.folder import Space


Format = Literal["tar", "tfrecord"]
_PART = re.compile(r"[A-Za-z0-9_]{1,20}")
_LOOK_S = 0.1  # between two looks for room
_LONG_S = 10.0  # until a writer says that it waits


@dataclass(frozen=True, slots=True)
class CacheWriterOptions:
    """What a writer writes.

    Attributes:
        part: What distinguishes its shards' names, for people; no two writers clash.
        format: `tar` or `tfrecord`.
        max_size: Bytes of a shard at most.
        max_count: Samples in a shard at most.
    """

    part: int | str
    format: Format
    max_size: int
    max_count: int


class CacheWriter:
    """Writes samples into a cache; made by `Cache.writer`, to be used in a `with` block, by one thread.

    A shard is visible, for `refresh`, once it is full or the block ends. Before each shard, its bytes are taken: where
    the policy can evict nothing, since all is held, the writer waits until a trainer lets shards go. A block that
    ends with an exception leaves no part of a shard, and neither does a kill.

    Args:
        space: The cache's space.
        grown: What to write.
        on_wait: Gets a note when the writer has waited for long.
        on_evict: Gets how many shards were evicted for a new one.

    Raises:
        InvalidRequest: The cache can never hold a shard.
        OutputFailed: The folder cannot be written to.
    """

    def __init__(
        self, space: Space, grown: CacheWriterOptions, on_wait: Callable[[str], None], on_evict: Callable[[int], None]
    ) -> None:
        if not _PART.fullmatch(str(grown.part)):
            expected = "a number, or 1 to 20 letters, digits and underscores"
            raise InvalidRequest(option("part"), f"{grown.part!r}", expected=expected)
        check_choice("format", grown.format, Format)
        if space.policy == "keep":
            raise InvalidRequest(option("policy", "keep"), "a cache that never makes room", expected="another policy")
        if grown.max_size > space.max_bytes:
            found = f"{show_size(grown.max_size)}, the cache {show_size(space.max_bytes)}"
            raise InvalidRequest(option("max_size"), found, expected="room for a shard at least")
        self._space, self._grown, self._on_wait, self._on_evict = space, grown, on_wait, on_evict
        self._folder = Folder(os.path.join(space.folder, WRITTEN))
        self._name = f"grown-part_{grown.part}_{token_hex(4)}"
        self._limit = min(grown.max_size - TRAILER_SIZE[grown.format], SAMPLE_LIMIT[grown.format])
        self._columns, self._encoder = Columns(), SampleEncoder(grown.format, None)
        self._shard: OpenShard | None = None
        self._pid, self._closed = os.getpid(), False
        self.shards = self.samples = 0
        try:
            room = take_lock(room_path(self._folder, self._name), create=True)
        except OSError as error:
            raise OutputFailed(self._folder.path, f"cannot write: {reason(error)}") from None
        if room is None:
            raise OutputFailed(self._folder.path, "cannot be locked")
        self._room = room

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    @memory_for("a sample")
    def write(self, sample: Mapping[str, object], metadata: Mapping[str, object] | None = None) -> None:
        """Write a sample.

        Args:
            sample: Its key as `__key__`, and its fields, as for `ShardWriter`. Keys are unique in a shard, so that a
                sampler may give a sample again.
            metadata: Further columns of its row in the sidecar.

        Raises:
            InvalidRequest: It cannot be written; the writer goes on without it.
            OutputFailed: The file system refuses; what was not visible yet is lost.
        """
        if self._closed or os.getpid() != self._pid:
            raise InvalidRequest(
                "the writer", "closed, or of another process", expected="writes inside of its with block"
            )
        try:
            encoded = self._encoder.encode(sample)
            if encoded.size > self._limit:
                found = f"{printable(encoded.key)} has {show_size(encoded.size)}"
                raise InvalidRequest(option("max_size"), found, expected=f"{show_size(self._limit)} at most")
        except SampleRefused as refused:
            raise refused.error from None
        row = self._columns.check(metadata or {}, printable(encoded.key))
        shard = self._shard
        if shard is not None and (shard.size + encoded.size > self._limit or len(shard) >= self._grown.max_count):
            self.publish()
        if (shard := self._shard) is None:
            shard = self._shard = self._start()
        self._encoder.accept(encoded)
        self._columns.accept(row)
        try:
            shard.add(encoded, row)
        except OutputFailed:
            self.abandon()
            raise
        self.samples += 1

    def publish(self) -> None:
        """Make the samples so far visible now, though their shard may have room for more.

        Raises:
            InvalidRequest: Their metadata cannot stand together.
            OutputFailed: The file system refuses.
        """
        shard, self._shard = self._shard, None
        if shard is None:
            return
        try:
            numbers, inline = self._encoder.stored_numbers, self._encoder.inline
            staged, content, crcs, plan = shard.finish(numbers, inline=inline)
            index = index_of(self._grown.format, content, self._columns.table(shard.rows, shard.columns), crcs)
            data, _ = encode(index, ShardFact(shard.name, shard.file.size, shard.file.crc, plan))
            self._folder.publish(staged, self._folder.stage_whole(sidecar_name(shard.name), data))
        except BaseException:
            shard.abandon()
            raise
        self.shards += 1
        kinds = self._encoder.kinds
        self._encoder = SampleEncoder(self._grown.format, None)  # the keys of a sampler have no end
        self._encoder.restore(kinds, inline=inline)

    def close(self) -> None:
        """Publish the last shard, and give back the space that was taken. Closing twice is no error."""
        if not self._closed and os.getpid() == self._pid:
            try:
                self.publish()
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Close without what is not visible yet."""
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            if self._shard is not None:
                self._shard.abandon()
            self._folder.discard(os.path.basename(self._room.path))
            self._room.close()

    def _start(self) -> OpenShard:
        """Start a shard, once there is room for it."""
        start_s, said = time.monotonic(), False
        while True:
            with self._space.locked():
                evicted = self._space.give(self._room, self._grown.max_size)
            if evicted is not None:
                self._on_evict(evicted)
                break
            if not said and time.monotonic() - start_s > _LONG_S:
                said = True
                self._on_wait(f"{self._name} waits for room: all shards are held")
            time.sleep(_LOOK_S)
        name = f"{self._name}-{self.shards:06d}.{self._grown.format}"
        return OpenShard(self._folder, name, self._grown.format)

"""The writer of a sampler: its samples become shards of a cache, one after the other, each visible once it is
complete.
"""

from __future__ import annotations

import os
import re
import time
from secrets import token_hex
from typing import TYPE_CHECKING, Literal, NamedTuple

from shardtool.dataset.sidecar_schema import ShardFacts
from shardtool.dataset.sidecar_write import encode_sidecar
from shardtool.entries.record_sizes import MAX_SAMPLE_BYTES, TRAILER_SIZE
from shardtool.errors import InvalidRequest, OutputFailed, os_error_text, printable
from shardtool.messages import option_text
from shardtool.pattern import sidecar_name
from shardtool.request.option_checks import check_choice
from shardtool.storage.staging import Folder
from shardtool.units import format_size
from shardtool.verbs.cache.cache_space import CacheSpace, lock_room
from shardtool.verbs.cache.folder import WRITTEN
from shardtool.writer.sample_encoder import EncodedSample, SampleEncoder, SampleRefused
from shardtool.writer.sample_writer import SampleWriter
from shardtool.writer.shard_builder import ShardBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.verbs.cache.counts import CountsFile


ShardFormat = Literal["tar", "tfrecord"]


_PART_NAME = re.compile(r"[A-Za-z0-9_]{1,20}")


_POLL_S = 0.1  # between two looks for room


_WAIT_NOTE_S = 10.0  # until a writer says that it waits


class CacheWriterOptions(NamedTuple):
    """What a writer writes.

    Attributes:
        part: What distinguishes its shards' names, for people; no two writers clash.
        format: `tar` or `tfrecord`.
        max_size: Bytes of a shard at most.
        max_count: Samples in a shard at most.
    """

    part: int | str
    format: ShardFormat
    max_size: int
    max_count: int


class CacheWriter(SampleWriter):
    """Writes samples into a cache; made by `Cache.writer`, to be used in a `with` block, by one thread.

    A shard is visible, for `refresh`, once it is full or the block ends. Before each shard, its bytes are taken: where
    the policy can evict nothing, since all is held, the writer waits until a trainer lets shards go. A block that
    ends with an exception leaves no part of a shard, and neither does a kill. Keys are unique in a shard, so that a
    sampler may give a sample again.

    Args:
        space: The cache's space.
        grown: What to write.
        on_wait: Gets a note when the writer has waited for long.
        counter: Counts the shards that are evicted for new ones.

    Raises:
        InvalidRequest: The cache can never hold a shard.
        OutputFailed: The folder cannot be written to.
    """

    def __init__(
        self, space: CacheSpace, grown: CacheWriterOptions, on_wait: Callable[[str], None], counter: CountsFile
    ) -> None:
        if not _PART_NAME.fullmatch(str(grown.part)):
            expected = "a number, or 1 to 20 letters, digits and underscores"
            raise InvalidRequest(option_text("part"), f"{grown.part!r}", expected=expected)
        check_choice("format", grown.format, ShardFormat)
        if space.policy == "keep":
            raise InvalidRequest(
                option_text("policy", "keep"), "a cache that never makes room", expected="another policy"
            )
        if grown.max_size > space.max_bytes:
            found = f"{format_size(grown.max_size)}, the cache {format_size(space.max_bytes)}"
            raise InvalidRequest(option_text("max_size"), found, expected="room for a shard at least")
        max_bytes = min(grown.max_size - TRAILER_SIZE[grown.format], MAX_SAMPLE_BYTES[grown.format])
        super().__init__(grown.format, None, max_bytes, grown.max_count)
        self._space, self._grown, self._on_wait, self._counter = space, grown, on_wait, counter
        self._folder = Folder(os.path.join(space.folder, WRITTEN))
        self._name = f"grown-part_{grown.part}_{token_hex(4)}"
        self.shards = self.samples = 0
        try:
            taken = lock_room(self._folder, self._name)
        except OSError as error:
            raise OutputFailed(self._folder.path, f"cannot write: {os_error_text(error)}") from None
        if taken is None:
            raise OutputFailed(self._folder.path, "cannot be locked")
        self._taken = taken

    def publish(self) -> None:
        """Make the samples so far visible now, though their shard may have room for more.

        Raises:
            InvalidRequest: Their metadata cannot stand together.
            OutputFailed: The file system refuses.
        """
        if self._shard is not None:
            self._publish(self._shard)

    def _publish(self, shard: ShardBuilder) -> None:
        self._shard = None
        try:
            staged, index, _, _, plan = shard.finish(self._encoder, self._columns)
            data, _ = encode_sidecar(index, ShardFacts(shard.name, shard.file.size, shard.file.crc, plan))
            self._folder.publish(staged, self._folder.stage_bytes(sidecar_name(shard.name), data))
        except BaseException:
            shard.abandon()
            raise
        self.shards += 1
        before, self._encoder = self._encoder, SampleEncoder(self._grown.format, None)  # a sampler's keys have no end
        self._encoder.restore(before.kinds, inline=before.inline)

    _finish = publish

    def _release(self) -> None:
        self._folder.discard(os.path.basename(self._taken.path))
        self._taken.close()

    def _accepts(self, sample: EncodedSample) -> bool:
        if sample.size > self._max_bytes:
            found = f"{printable(sample.key)} has {format_size(sample.size)}"
            error = InvalidRequest(option_text("max_size"), found, expected=f"{format_size(self._max_bytes)} at most")
            raise SampleRefused(error, "oversize")
        return True

    def _add(self, sample: EncodedSample, row: Mapping[str, object]) -> None:
        try:
            super()._add(sample, row)
        except InvalidRequest as error:  # the shard before, whose metadata cannot stand together, is lost: go on
            raise SampleRefused(error, "bad-value") from None
        self.samples += 1

    def _next_shard(self, _: EncodedSample) -> ShardBuilder:
        """Start a shard, once there is room for it."""
        start_s, said = time.monotonic(), False
        while True:
            with self._space.locked():
                evicted = self._space.give(self._taken, self._grown.max_size)
            if evicted is not None:
                self._counter.add(evicted=evicted)
                break
            if not said and time.monotonic() - start_s > _WAIT_NOTE_S:
                said = True
                self._on_wait(f"{self._name} waits for room: all shards are held")
            time.sleep(_POLL_S)
        name = f"{self._name}-{self.shards:06d}.{self._grown.format}"
        return ShardBuilder(self._folder, name, self._grown.format)

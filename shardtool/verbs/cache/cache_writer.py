"""Write the samples of a sampler as shards of a cache."""

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
from shardtool.publish.publication import Publication
from shardtool.request.option_checks import check_choice
from shardtool.storage.staging import Folder
from shardtool.units import format_size
from shardtool.verbs.cache.cache_space import CacheSpace, lock_reservation
from shardtool.verbs.cache.folder import WRITTEN
from shardtool.writer.sample_encoder import EncodedSample, SampleEncoder, SampleRefused
from shardtool.writer.sample_writer import SampleWriter
from shardtool.writer.shard_builder import ShardBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.verbs.cache.counts import CountsFile


ShardFormat = Literal["tar", "tfrecord"]
_PART_NAME = re.compile(r"[A-Za-z0-9_]{1,20}")

_POLL_S = 0.1  # between attempts to reserve space

_WAIT_NOTE_S = 10.0  # until a waiting writer reports the wait


class CacheWriterOptions(NamedTuple):
    """Options of a `CacheWriter`."""

    part: int | str
    format: ShardFormat
    max_size: int
    max_count: int


class CacheWriter(SampleWriter):
    """Writes samples into a cache. Created by `Cache.writer`; use it in a `with` block, in one thread.

    A shard becomes visible once it is full or the block ends. If there is no space because all other shards are in use,
    the writer waits. An exception or a killed process leaves no partial shard. Keys are unique per shard.

    Raises:
        InvalidRequest: The cache can never hold a shard.
        OutputFailed: The folder cannot be written.
    """

    def __init__(
        self, space: CacheSpace, options: CacheWriterOptions, on_wait: Callable[[str], None], counter: CountsFile
    ) -> None:
        if not _PART_NAME.fullmatch(str(options.part)):
            expected = "a number, or 1 to 20 letters, digits and underscores"
            raise InvalidRequest(option_text("part"), f"{options.part!r}", expected=expected)
        check_choice("format", options.format, ShardFormat)
        if space.policy == "keep":
            raise InvalidRequest(
                option_text("policy", "keep"), "a cache that never evicts shards", expected="another policy"
            )
        if options.max_size > space.max_bytes:
            found = f"{format_size(options.max_size)}, but the cache has only {format_size(space.max_bytes)}"
            raise InvalidRequest(option_text("max_size"), found, expected="at most the size of the cache")
        max_bytes = min(options.max_size - TRAILER_SIZE[options.format], MAX_SAMPLE_BYTES[options.format])
        super().__init__(options.format, None, max_bytes, options.max_count)
        self._space, self._options, self._on_wait, self._counter = space, options, on_wait, counter
        self._folder = Folder(os.path.join(space.folder, WRITTEN))
        self._name = f"grown-part_{options.part}_{token_hex(4)}"
        self.shards = self.samples = 0
        try:
            reservation = lock_reservation(self._folder, self._name)
        except OSError as error:
            raise OutputFailed(self._folder.path, f"cannot write: {os_error_text(error)}") from None
        if reservation is None:
            raise OutputFailed(self._folder.path, "cannot be locked")
        self._reservation = reservation

    def publish(self) -> None:
        """Publish the samples so far as a shard, even if it is not full.

        Raises:
            InvalidRequest: The metadata of the samples have incompatible types.
            OutputFailed: The files cannot be written.
        """
        if self._shard is not None:
            self._publish(self._shard)

    def _publish(self, shard: ShardBuilder) -> None:
        self._shard = None
        try:
            staged, index, _, _, plan = shard.finish(self._encoder, self._columns)
            data, _ = encode_sidecar(index, ShardFacts(shard.name, shard.file.size, shard.file.crc, plan))
            Publication(self._folder, "", "keep").add(staged, data, shard.name)
        except BaseException:
            shard.abandon()
            raise
        self.shards += 1
        # A sampler's keys are unbounded, so a new encoder forgets those of finished shards.
        previous, self._encoder = self._encoder, SampleEncoder(self._options.format, None)
        self._encoder.restore(previous.kinds, inline=previous.inline)

    _finish = publish

    def _release(self) -> None:
        self._folder.discard(os.path.basename(self._reservation.path))
        self._reservation.close()

    def _accepts(self, sample: EncodedSample) -> bool:
        if sample.size > self._max_bytes:
            found = f"{printable(sample.key)} has {format_size(sample.size)}"
            error = InvalidRequest(option_text("max_size"), found, expected=f"at most {format_size(self._max_bytes)}")
            raise SampleRefused(error, "oversize")
        return True

    def _add(self, sample: EncodedSample, row: Mapping[str, object]) -> None:
        try:
            super()._add(sample, row)
        except InvalidRequest as error:  # the metadata of the previous shard was incompatible: skip that shard
            raise SampleRefused(error, "bad-value") from None
        self.samples += 1

    def _next_shard(self, _: EncodedSample) -> ShardBuilder:
        start_s, noted = time.monotonic(), False
        while True:
            with self._space.locked():
                evicted = self._space.reserve(self._reservation, self._options.max_size)
            if evicted is not None:
                self._counter.add(evicted=evicted)
                break
            if not noted and time.monotonic() - start_s > _WAIT_NOTE_S:
                noted = True
                self._on_wait(f"{self._name} is waiting for space: all shards are in use")
            time.sleep(_POLL_S)
        name = f"{self._name}-{self.shards:06d}.{self._options.format}"
        return ShardBuilder(self._folder, name, self._options.format)

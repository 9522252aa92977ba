"""Base class of writers that accept samples one by one and fill one shard after another."""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NoReturn

from shardtool import names, values
from shardtool.errors import InvalidRequest, printable, reporting_memory_errors
from shardtool.messages import option_text
from shardtool.writer.metadata_columns import MetadataColumns
from shardtool.writer.sample_encoder import EncodedSample, SampleEncoder, SampleRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from shardtool.writer.shard_builder import ShardBuilder


_OPEN, _BUSY, _CLOSED = "open", "busy", "closed"


_NO_METADATA: dict[str, object] = {}


class SampleWriter(AbstractContextManager["SampleWriter"]):
    """Takes samples one by one, in one thread of the process that made it, and fills shards with them.

    To be used in a `with` block: one that is left with an exception is abandoned, and closed otherwise.

    Args:
        shard_format: `tar` or `tfrecord`.
        dots: The dot at which keys end in a tar; None: what the names ask for.
        room: Bytes of a shard's records at most.
        most: Samples in a shard at most.
    """

    def __init__(self, shard_format: str, dots: values.Dots | None, room: int, most: int) -> None:
        self._encoder, self._columns = SampleEncoder(shard_format, dots), MetadataColumns()
        self._room, self._most = room, most
        self._shard: ShardBuilder | None = None
        self._last_key: str | None = None
        self._pid, self._state = os.getpid(), _OPEN

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and os.getpid() == self._pid:
            self.close()
        else:
            self.abandon()

    def write(self, sample: Mapping[str, object], metadata: Mapping[str, object] | None = None) -> None:
        """Write a sample.

        Args:
            sample: Its key as `__key__`, and its fields. A value is bytes, or becomes what `create` makes of a table's:
                numbers and text are text (numbers in TFRecord), dicts and lists JSON, arrays npy, and images of Pillow
                what the field's ending says.
            metadata: Further columns of its row in the sidecar.

        Raises:
            InvalidRequest: It cannot be written, and is not to be skipped: the writer goes on without it.
            OutputFailed: The file system refuses; the writer is closed.
            OutOfMemory: There is no memory for it; the writer is closed.
        """
        if self._state != _OPEN or os.getpid() != self._pid:
            self._raise_unusable()
        try:
            encoded = self._encoder.encode(sample)
            row = self._columns.check(metadata, printable(encoded.key)) if metadata else _NO_METADATA
        except SampleRefused as refused:
            self._refuse(sample, refused)
            return
        except Exception:
            with reporting_memory_errors("a sample"):
                raise
        self._state = _BUSY  # until then, nothing of it is written
        try:
            if self._accepts(encoded):
                self._add(encoded, row)
        except SampleRefused as refused:
            self._state = _OPEN
            raise refused.error from None
        except Exception:
            self.abandon()
            with reporting_memory_errors("a sample"):
                raise
        self._state = _OPEN

    def close(self) -> None:
        """Publish what is written. A writer that is closed already stays so.

        Raises:
            InvalidRequest: It cannot be published as it is.
            SampleFailed: All samples were left out.
            OutputFailed: The file system refuses.
        """
        if self._state == _CLOSED:
            return
        if self._state != _OPEN or os.getpid() != self._pid:
            self._raise_unusable()
        try:
            self._finish()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the writer without what is not published yet."""
        if self._state != _CLOSED and os.getpid() == self._pid:
            self._state = _CLOSED
            try:
                if self._shard is not None:
                    self._shard.abandon()
            finally:
                self._release()

    def _add(self, sample: EncodedSample, row: Mapping[str, object]) -> None:
        """Write a sample that is sound, into a new shard where the one before has no room for it."""
        shard = self._shard
        if shard is not None and (shard.size + sample.size > self._room or len(shard) >= self._most):
            self._publish(shard)
            shard = None
        if shard is None:
            shard = self._shard = self._next_shard(sample)
        self._encoder.accept(sample)
        if row:
            self._columns.accept(row)
        shard.add(sample, row)
        self._last_key = names.to_text(sample.key)

    def _raise_unusable(self) -> NoReturn:
        """Say why nothing can be written with a writer."""
        kind = type(self).__name__
        if os.getpid() != self._pid:
            found = "this process is a fork of the one that made the writer"
            raise InvalidRequest(kind, found, remedy=f"Make one here, with {option_text('part')}.")
        found = "the writer is closed" if self._state == _CLOSED else "an earlier write was interrupted"
        self.abandon()
        raise InvalidRequest(kind, found, expected="writes inside of its with block")

    def _refuse(self, _sample: Mapping[str, object], refused: SampleRefused) -> None:
        """Raise what is wrong with a sample, or note that it is left out."""
        raise refused.error from None

    @abstractmethod
    def _accepts(self, sample: EncodedSample) -> bool:
        """Return whether a sample gets into a shard; False: it is left out.

        Raises:
            SampleRefused: It cannot, and is not to be left out.
        """

    @abstractmethod
    def _next_shard(self, sample: EncodedSample) -> ShardBuilder:
        """Start a shard, whose first sample that is."""

    @abstractmethod
    def _publish(self, shard: ShardBuilder) -> None:
        """Publish a shard, which is then the writer's no more."""

    @abstractmethod
    def _finish(self) -> None:
        """Publish what is written."""

    @abstractmethod
    def _release(self) -> None:
        """Give back what the writer holds, once it is closed."""

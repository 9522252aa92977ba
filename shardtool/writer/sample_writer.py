"""Base class of writers that accept samples one by one and write one shard after another."""

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
    """Accepts samples and writes them into shards.

    Use a writer only in one thread of the process that created it. If the `with` block raises an exception, the
    writer discards unpublished samples.
    """

    def __init__(self, shard_format: str, dots: values.Dots | None, max_bytes: int, max_count: int) -> None:
        self._encoder, self._columns = SampleEncoder(shard_format, dots), MetadataColumns()
        self._max_bytes, self._max_count = max_bytes, max_count
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
            sample: The fields, and the key as `__key__`. Bytes are stored unchanged. Other values are encoded as in
                `create`: numbers and text become text (in TFRecord, numbers stay numbers), dicts and lists become
                JSON, arrays become npy, and Pillow images get the format of the field's extension.
            metadata: Values for additional columns of the sidecar.

        Raises:
            InvalidRequest: The sample cannot be written. The writer remains usable.
            OutputFailed: The file system reports an error. The writer is closed.
            OutOfMemory: There is not enough memory. The writer is closed.
        """
        if self._state != _OPEN or os.getpid() != self._pid:
            self._raise_unusable()
        try:
            encoded = self._encoder.encode(sample)
            row = self._columns.convert_row(metadata, printable(encoded.key)) if metadata else _NO_METADATA
        except SampleRefused as refused:
            self._refuse(sample, refused)
            return
        except Exception:
            with reporting_memory_errors("a sample"):
                raise
        self._state = _BUSY
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
        """Publish all samples. Closing a closed writer does nothing.

        Raises:
            InvalidRequest: The dataset is invalid, for example because it is empty.
            SampleFailed: All samples were skipped.
            OutputFailed: The file system reports an error.
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
        """Close the writer and discard unpublished samples."""
        if self._state != _CLOSED and os.getpid() == self._pid:
            self._state = _CLOSED
            try:
                if self._shard is not None:
                    self._shard.abandon()
            finally:
                self._release()

    def _add(self, sample: EncodedSample, row: Mapping[str, object]) -> None:
        shard = self._shard
        if shard is not None and (shard.size + sample.size > self._max_bytes or len(shard) >= self._max_count):
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
        kind = type(self).__name__
        if os.getpid() != self._pid:
            found = "the writer was created before this process was forked"
            raise InvalidRequest(kind, found, remedy=f"Create a writer in this process, with {option_text('part')}.")
        found = "the writer is closed" if self._state == _CLOSED else "an earlier write was interrupted"
        self.abandon()
        raise InvalidRequest(kind, found, expected="writes inside its with block")

    def _refuse(self, _sample: Mapping[str, object], refused: SampleRefused) -> None:
        raise refused.error from None

    @abstractmethod
    def _accepts(self, sample: EncodedSample) -> bool:
        """Return whether to write a sample. If not, the sample is skipped.

        Raises:
            SampleRefused: The sample cannot be written and must not be skipped.
        """

    @abstractmethod
    def _next_shard(self, sample: EncodedSample) -> ShardBuilder: ...

    @abstractmethod
    def _publish(self, shard: ShardBuilder) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...

    @abstractmethod
    def _release(self) -> None: ...

"""Writes a TFRecord shard."""

from __future__ import annotations

from shardtool.checksum import crc32c
from shardtool.errors import Bug
from shardtool.format.tfrecord import (
    FRAME_HEAD,
    FRAME_TAIL,
    KEY_FEATURE,
    FeatureHead,
    encode_number,
    example_head,
    key_feature,
    put_frame_head,
    put_frame_tail,
)
from shardtool.write.packer import Packer, unreadable
from shardtool.write.task import Failed, numbers


class TFRecordPacker(Packer):
    """An Example a sample."""

    def run(self) -> None:
        """Write all samples. A loop like that of `TarPacker`, less flat: an Example costs more than headers anyway."""
        samples, limit, without, crcs = self.task.samples, len(self.view), self.without, self.field_crcs
        self._heads = [FeatureHead(name, samples.numbers.get(code)) for code, name in enumerate(samples.fields)]
        self._after_key = [name > KEY_FEATURE for name in samples.fields]
        columns = zip(self.keys, numbers("q", samples.needs), numbers("H", samples.counts), strict=True)
        used = end = 0
        for sample, (key, need, count) in enumerate(columns):
            row, end = end, end + count
            if sample in without:
                continue
            if used + need > limit:
                self.flush(used, sample)
                used = 0
            crcs_at_start = len(crcs)
            try:
                if need > limit:
                    self._stream(key, row, end, need)
                else:
                    self._put(used, key, row, end, need)
                    used += need
            except Failed as failed:
                del crcs[crcs_at_start:]
                self.leave_out(sample, failed, streamed=need > limit)
        self.flush(used, len(self.keys))

    def _put(self, used: int, key: bytes, row: int, end: int, need: int) -> None:
        """Put one sample's record into the buffer at `used`."""
        view, heads, codes, sizes, endings = self.view, self._heads, self.codes, self.sizes, self.endings
        of_numbers, crcs, after_key = self.task.samples.numbers, self.field_crcs, self._after_key
        data = at = put_frame_head(view, used, need)
        key_part: bytes | None = key_feature(key)
        head = example_head(need)
        for field in range(row, end):
            code = codes[field]
            if key_part is not None and after_key[code]:
                head += key_part
                key_part = None
            if code in of_numbers:
                value = encode_number(self.inline[field], of_numbers[code])
                size = len(value)
            else:
                value, size = None, sizes[field]
            head += heads[code](size)
            start = at + len(head)
            view[at:start] = head
            at = start + size
            payload = view[start:at]
            if value is not None:
                payload[:] = value
            else:
                name = key + endings[code]
                try:
                    self.read_payload(name, field, payload)
                except OSError as error:
                    raise unreadable(name if self.paths is None else self.paths[field], error) from None
            crcs.append(crc32c(payload))
            if self.expected:
                self.check_crc(field, crcs[-1])
            head = b""
        if key_part is not None:
            view[at : at + len(key_part)] = key_part
            at += len(key_part)
        if put_frame_tail(view, at, crc32c(view[data:at])) - used != need:
            raise _mismatch(key)

    def _stream(self, key: bytes, row: int, end: int, need: int) -> None:
        """Write one sample that is larger than the buffer, block by block. The buffer is empty before and after."""
        crcs, before = [], self.size
        frame = bytearray(FRAME_HEAD)
        put_frame_head(frame, 0, need)
        self.write(bytes(frame))
        self.record_crc = 0
        self.write_streamed(example_head(need))
        key_part: bytes | None = key_feature(key)
        for field in range(row, end):
            code = self.codes[field]
            if key_part is not None and self._after_key[code]:
                self.write_streamed(key_part)
                key_part = None
            if code in self.task.samples.numbers:
                value = encode_number(self.inline[field], self.task.samples.numbers[code])
                self.write_streamed(self._heads[code](len(value)) + value)
                crcs.append(crc32c(value))
                continue
            self.write_streamed(self._heads[code](self.sizes[field]))
            crcs.append(self.stream_payload(key + self.endings[code], field))
        self.write_streamed(key_part or b"")
        tail = bytearray(FRAME_TAIL)
        put_frame_tail(tail, 0, self.record_crc)
        self.write(bytes(tail))
        if self.size - before != need:
            raise _mismatch(key)
        self.field_crcs.extend(crcs)

    def write_streamed(self, data: memoryview | bytes) -> None:
        """Write a part of a record's data, whose checksum follows it."""
        self.write(data)
        self.record_crc = crc32c(data, self.record_crc)


def _mismatch(key: bytes) -> Bug:
    return Bug(repr(key), "a record of another size than planned", remedy="Please report this.")

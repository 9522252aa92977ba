"""Packer of TFRecord shards."""

from __future__ import annotations

from array import array

from shardtool.errors import Bug
from shardtool.fingerprint import crc32c
from shardtool.format import tfrecord_read, tfrecord_write
from shardtool.write import packer, source_errors


class TFRecordPacker(packer.Packer):
    """Writes one `tf.train.Example` per sample."""

    def run(self) -> None:
        """Write the shard."""
        content, limit, skipped, crcs = self.content, len(self.view), self.skipped, self.field_crcs
        kinds = {**content.numbers, **content.lists}
        names = [*enumerate(content.fields)]
        self._heads = [tfrecord_write.FeatureHead(name, kinds.get(code)) for code, name in names]
        self._list_heads = [tfrecord_write.FeatureHead(name, kinds.get(code), is_list=True) for code, name in names]
        self._whole = content.is_list or bytes(len(self.codes))
        self._may_be_single = {code for code, kind in content.lists.items() if kind == "int64"}
        self._after_key = [name > tfrecord_write.KEY_FEATURE for name in content.fields]
        columns = zip(self.keys, array("q", self.task.samples.record_sizes), self.counts, strict=True)
        used = end = 0
        for sample, (key, record_size, count) in enumerate(columns):
            row, end = end, end + count
            if sample in skipped:
                continue
            if used + record_size > limit:
                self.flush(used, sample)
                used = 0
            crcs_at_start = len(crcs)
            try:
                if record_size > limit:
                    self._stream(key, row, end, record_size)
                else:
                    self._put(used, key, row, end, record_size)
                    used += record_size
            except source_errors.SourceFailed as failed:
                del crcs[crcs_at_start:]
                while self.one_number_lists and self.one_number_lists[-3] >= crcs_at_start:
                    del self.one_number_lists[-3:]
                self.skip(sample, failed, streamed=record_size > limit)
        self.flush(used, len(self.keys))

    def _put(self, used: int, key: bytes, row: int, end: int, record_size: int) -> None:
        view, heads, codes, sizes, endings = self.view, self._heads, self.codes, self.sizes, self.endings
        number_types, crcs, after_key = self.content.numbers, self.field_crcs, self._after_key
        list_heads, whole, may_be_single = self._list_heads, self._whole, self._may_be_single
        data = position = tfrecord_write.put_frame_head(view, used, record_size)
        key_part: bytes | None = tfrecord_write.key_feature(key)
        head = tfrecord_write.example_head(record_size)
        for field in range(row, end):
            code = codes[field]
            if key_part is not None and after_key[code]:
                head += key_part
                key_part = None
            if code in number_types:
                value = tfrecord_write.encode_number(self.inline[field], number_types[code])
                size = len(value)
            else:
                value, size = None, sizes[field]
            head += (list_heads if whole[field] else heads)[code](size)
            start = position + len(head)
            view[position:start] = head
            position = start + size
            payload = view[start:position]
            if value is not None:
                payload[:] = value
            else:
                self.read_payload(key + endings[code], field, payload)
            crcs.append(crc32c(payload))
            if self.expected:
                self.check_crc(field, crcs[-1])
            if code in may_be_single:
                self._note_single_number(len(crcs) - 1, field, payload)
            head = b""
        if key_part is not None:
            view[position : position + len(key_part)] = key_part
            position += len(key_part)
        if tfrecord_write.put_frame_tail(view, position, crc32c(view[data:position])) - used != record_size:
            raise _size_mismatch(key)

    def _stream(self, key: bytes, row: int, end: int, record_size: int) -> None:
        crcs, size_before = [], self.size
        frame = bytearray(tfrecord_write.FRAME_HEAD_BYTES)
        tfrecord_write.put_frame_head(frame, 0, record_size)
        self.write(bytes(frame))
        self._record_crc = 0
        self.write_streamed(tfrecord_write.example_head(record_size))
        key_part: bytes | None = tfrecord_write.key_feature(key)
        for field in range(row, end):
            code = self.codes[field]
            if key_part is not None and self._after_key[code]:
                self.write_streamed(key_part)
                key_part = None
            if code in self.content.numbers:
                value = tfrecord_write.encode_number(self.inline[field], self.content.numbers[code])
                self.write_streamed(self._heads[code](len(value)) + value)
                crcs.append(crc32c(value))
                continue
            head = (self._list_heads if self._whole[field] else self._heads)[code](self.sizes[field])
            self.write_streamed(head)
            crcs.append(self.stream_payload(key + self.endings[code], field))
            if code in self._may_be_single and self.sizes[field] <= len(self.view):
                self._note_single_number(len(self.field_crcs) + len(crcs) - 1, field, self.view[: self.sizes[field]])
        self.write_streamed(key_part or b"")
        tail = bytearray(tfrecord_write.FRAME_TAIL_BYTES)
        tfrecord_write.put_frame_tail(tail, 0, self._record_crc)
        self.write(bytes(tail))
        if self.size - size_before != record_size:
            raise _size_mismatch(key)
        self.field_crcs.extend(crcs)

    def _note_single_number(self, written: int, row: int, payload: memoryview) -> None:
        value = None if self._whole[row] else tfrecord_read.decode_single_int(payload)
        if value is not None:
            text = b"%d" % value
            self.one_number_lists.extend((written, len(text), crc32c(text)))

    def write_streamed(self, data: memoryview | bytes) -> None:
        """Write bytes of a record, and update its CRC-32C."""
        self.write(data)
        self._record_crc = crc32c(data, self._record_crc)


def _size_mismatch(key: bytes) -> Bug:
    return Bug(repr(key), "a record whose size differs from the plan")

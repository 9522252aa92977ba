"""One planned shard becomes one file. Runs in a worker; knows no other shard.

What comes back is numbers: checksums, and what was left out. The offsets follow from the plan.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from contextlib import closing, suppress
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import Bug, SampleFailed
from shardtool.fingerprint import crc32c
from shardtool.format import tfrecord
from shardtool.format.tar import BLOCK, PADDING, TRAILER, header, put_header
from shardtool.storage.places import MAX_READS, READ_FOLLOWING, READ_PLAIN, file_crc
from shardtool.values import FILE, INLINE, SPAN, to_text
from shardtool.wording import option
from shardtool.write import packer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardtool.skipped import Skipped
    from shardtool.storage.staging import Sink

Packed = TypeVar("Packed")


def pack_shard(task: packer.ShardTask, report: packer.Report) -> packer.ShardResult:
    """Write a shard, staged and durable, or find that the one which is there is right.

    Args:
        task: What to write.
        report: Called now and then with the samples and bytes done since the last time.

    Raises:
        SampleFailed: A sample cannot be read, or is not what the plan saw, and `on_error` is `stop`.
        OutputFailed: The file cannot be written.
    """
    if result := _left(task):
        report(len(packer.split_names(task.samples.content.keys)), result.size)
        return result
    if task.todo != "write" and not task.folder.hides:
        # What replaces it would be seen at once: others must know first.
        return packer.ShardResult(task.shard, None, 0, 0, b"", 0, (), wrong=True)
    if task.work is not None:
        from shardtool.write.transformed import pack_transformed

        work = task.work
        return _restarted(lambda: pack_transformed(task, work, report))
    skipped: dict[int, Skipped] = {}

    def fill(file: Sink) -> packer.Packer:
        return _packed(task, file.write, report, skipped)

    def pack() -> packer.ShardResult:
        packed, staged = task.folder.write(task.name, fill, None if skipped else task.size, task.mtime_ns)
        return packed.result(staged)

    return _restarted(pack)


def _restarted(pack: Callable[[], Packed]) -> Packed:
    """Return what `pack` returns, which is called again while it raises `StartAgain`.

    Raises:
        SampleFailed: The ctime of a file changes during every read.
    """
    touched = 0
    while True:
        try:
            return pack()
        except packer.SourceTouched as error:
            touched += 1
            if touched == MAX_READS:
                remedy = f"Run the same command with {option('if_exists', 'resume')}."
                expected, found = "a file that stays as it was when the run began", "changed while it was packed"
                raise SampleFailed(to_text(error.path), found, expected=expected, remedy=remedy) from None
        except packer.StartAgain:
            pass


def _packed(
    task: packer.ShardTask, put: packer.Put, report: packer.Report, skipped: dict[int, Skipped]
) -> packer.Packer:
    """Return the packer of a task whose shard is written; it is closed."""
    kind = SpanTarPacker if task.samples.spans.runs else TarPacker if task.format == "tar" else TFRecordPacker
    with closing(kind(task, put, report, skipped)) as packed:
        packed.run()
        packed.spans.check()
    return packed


def _left(task: packer.ShardTask) -> packer.ShardResult | None:
    """Return the result for a file that an earlier run has left; None if there is none, or it is not right."""
    if task.todo == "write":
        return None
    path = task.folder.full_path(task.name)
    with suppress(OSError):
        if isinstance(task.todo, packer.Keep):
            keep = task.todo
            if not keep.unread and keep.crc != file_crc(path)[1]:
                return None
            # Of changed samples, the sidecar has it.
            content = 0 if task.work is not None else packer.digest(task.samples.content, keep.field_crcs, ())
            return packer.ShardResult(task.shard, None, keep.size, keep.crc, keep.field_crcs, content, ())
        md5 = task.folder.md5(task.name)  # as the store says, of a file that it does not encrypt
        there = None if md5 else file_crc(path)
        result, found = _from_source(task, hashes=bool(md5))
        if result is None or (md5 and md5 == found) or (result.size, result.crc) == (there or file_crc(path)):
            return result
    return None


def _from_source(task: packer.ShardTask, *, hashes: bool) -> tuple[packer.ShardResult | None, str]:
    """Return the result for a file that is what the source gives, None where that cannot be read; and its MD5."""
    skipped: dict[int, Skipped] = {}

    def compare() -> tuple[packer.ShardResult, str]:
        hashed = hashlib.md5(usedforsecurity=False)
        packed = _packed(task, hashed.update if hashes else packer.no_report, packer.no_report, skipped)
        return packed.result(None)._replace(compared=True), hashed.hexdigest()

    with suppress(SampleFailed):  # writing the shard will meet it again
        return _restarted(compare)
    return None, ""


def content_of(task: packer.ShardTask) -> int | None:
    """Return the content fingerprint of samples, which are read for it; None: a file changes while it is read."""
    result, _ = _from_source(task, hashes=False)
    return None if result is None else result.digest


class TarPacker(packer.Packer):
    """A member a field."""

    def run(self) -> None:
        """Write all samples, and the end of the file."""
        self.pack(0, len(self.keys), 0)
        self.write(TRAILER)

    def pack(self, first: int, last: int, row: int) -> None:  # noqa: C901, PLR0912, PLR0915 - see below
        """Write some samples, one by one.

        The per-file loop, so it is long and flat: of 15 us for a file of 7 KB, besides the write, 8.5 are
        its four system calls. A function a sample, and attributes of `self`, were seen to add about 1.

        Args:
            first: The place of the first one.
            last: The place after the last.
            row: The first one's first field.
        """
        view, limit, skipped, expected = self.view, len(self.view), self.skipped, self.expected
        root, kinds, endings, codes, sizes = self.root, self.kinds, self.endings, self.codes, self.sizes
        mtimes, paths, inline, crcs, padding = self.mtimes, self.paths, self.inline, self.field_crcs, PADDING
        needs, counts, read_file = array("q", self.task.samples.needs), self.counts, self.read_file
        newest_ns, used, end = self.newest_ns, 0, row
        columns = zip(self.keys[first:last], needs[first:last], counts[first:last], strict=True)
        for sample, (key, need, count) in enumerate(columns, first):
            row, end = end, end + count
            if skipped and sample in skipped:
                continue
            if used + need > limit:
                self.flush(used, sample)
                used = 0
            try:
                if need > limit:
                    self._stream(key, row, end)
                    continue
                at_start, crcs_at_start = used, len(crcs)
                for at in range(row, end):
                    path = name = key + endings[codes[at]]
                    size = sizes[at]
                    start = put_header(view, used, name, size)
                    stop = start + size
                    payload = view[start:stop]
                    kind = kinds[at]
                    if kind == INLINE:
                        payload[:] = inline[at]
                    elif kind == SPAN:
                        path = self.span_path(at, name)
                        self.read_span(at, payload)
                    else:
                        if paths is not None:
                            path = paths[at]
                        got, fact = read_file(root + path, payload, READ_PLAIN if kind == FILE else READ_FOLLOWING)
                        if (
                            got != size
                            or fact.st_size != size
                            or fact.st_mtime_ns != mtimes[at]
                            or fact.st_ctime_ns > newest_ns
                        ):
                            self.check_read(path, at, payload, (got, fact))
                    crcs.append(crc32c(payload))
                    if expected:
                        self.check_crc(at, crcs[-1])
                    pad = -size & 511
                    used = stop + pad
                    view[stop:used] = padding[pad]
            except OSError as error:
                used = at_start
                del crcs[crcs_at_start:]
                self.skip(sample, packer.unreadable(path, error), streamed=False)
            except packer.SourceFailed as failed:
                if need <= limit:
                    used = at_start
                    del crcs[crcs_at_start:]
                self.skip(sample, failed, streamed=need > limit)
        self.flush(used, last)

    def _stream(self, key: bytes, row: int, end: int) -> None:
        """Write one sample that is larger than the buffer, block by block. The buffer is empty before and after."""
        crcs = []
        for at in range(row, end):
            name, size = key + self.endings[self.codes[at]], self.sizes[at]
            self.write(header(name, size))
            crcs.append(self.stream_payload(name, at))
            self.write(PADDING[-size & (BLOCK - 1)])
        self.field_crcs.extend(crcs)


# Writes a tar shard of samples that lie in other files, mostly shards, as far apart as they will here.
#
# Strategy: a buffer's worth of samples at a time. Runs of payloads are read at once to where they belong, and what
# stood between them is written over: headers are always made anew. So copying costs a system call
# or a few a buffer, and a header and a checksum a field. Where anything is not as planned, the samples of that buffer
# are packed one by one, which shows whose fault it is.


class SpanTarPacker(TarPacker):
    """A member a field, all of them spans or inline."""

    def run(self) -> None:
        """Write all samples, and the end of the file."""
        needs = array("q", self.task.samples.needs)
        after = [0, *accumulate(needs)]  # bytes before each sample
        rows = [0, *accumulate(self.counts)]
        self._runs, self._run = array("I", self.task.samples.spans.runs).tolist(), 0
        first, limit = 0, len(self.view)
        while first < len(needs):
            last = bisect_right(after, after[first] + limit) - 1  # what fits the buffer
            if last > first and not self.skipped and self._copy(first, last, rows):
                self.flush(after[last] - after[first], last)
            else:
                last = max(last, first + 1)
                self.pack(first, last, rows[first])
            first = last
        self.report_progress(first)
        self.write(TRAILER)

    def _copy(self, first: int, last: int, rows: list[int]) -> bool:
        """Fill the buffer with the records of samples; return whether all is as planned.

        The per-file loop, flat for that reason: 1.2 us a field of 7 KB, besides its checksum and system calls.
        """
        view, padding, row, end, crcs = self.view, PADDING, rows[first], rows[last], array("I")
        used, fetched, append = 0, row, crcs.append
        try:
            for at, (name, size) in enumerate(self._names_and_sizes(first, last, rows), row):
                start = put_header(view, used, name, size)
                stop = start + size
                if at == fetched:
                    fetched = self._fetch(at, end, start)
                append(crc32c(view[start:stop]))
                pad = -size & 511
                used = stop + pad
                view[stop:used] = padding[pad]
        except (OSError, packer.SourceFailed):
            return False
        found, wanted = crcs.tolist(), self.expected[row:end]
        if wanted and found != wanted and any(one != other >= 0 for one, other in zip(found, wanted, strict=True)):
            return False
        self.field_crcs.extend(crcs)
        return True

    def _names_and_sizes(self, first: int, last: int, rows: list[int]) -> Iterable[tuple[bytes, int]]:
        """Return the name and size of each member of samples."""
        endings, codes, names = self.endings, self.codes, []
        for key, row, end in zip(self.keys[first:last], rows[first:last], rows[first + 1 : last + 1], strict=True):
            names += [key + endings[code] for code in codes[row:end]]
        return zip(names, self.sizes[rows[first] : rows[last]], strict=True)

    def _fetch(self, row: int, end: int, start: int) -> int:
        """Read the payloads of a run of rows, no further than `end`, where the first belongs; return the row after."""
        runs = self._runs
        while runs[self._run] <= row:
            self._run += 1
        stop = min(runs[self._run], end)
        if self.kinds[row] == SPAN:
            offset = self.offsets[row]
            size = self.offsets[stop - 1] + self.sizes[stop - 1] - offset
            self.spans.read(self.file_of_row[row], offset, self.view[start : start + size])
        else:
            self.view[start : start + self.sizes[row]] = self.inline[row]
        return stop


# Writes a TFRecord shard.


class TFRecordPacker(packer.Packer):
    """An Example a sample."""

    def run(self) -> None:
        """Write all samples. A loop like that of `TarPacker`, less flat: an Example costs more than headers anyway."""
        content, limit, skipped, crcs = self.content, len(self.view), self.skipped, self.field_crcs
        kinds = {**content.numbers, **content.lists}
        names = [*enumerate(content.fields)]
        self._heads = [tfrecord.FeatureHead(name, kinds.get(code)) for code, name in names]
        self._list_heads = [tfrecord.FeatureHead(name, kinds.get(code), whole=True) for code, name in names]
        self._whole = content.whole or bytes(len(self.codes))
        self._may_be_one = {code for code, kind in content.lists.items() if kind == "int64"}
        self._after_key = [name > tfrecord.KEY_FEATURE for name in content.fields]
        columns = zip(self.keys, array("q", self.task.samples.needs), self.counts, strict=True)
        used = end = 0
        for sample, (key, need, count) in enumerate(columns):
            row, end = end, end + count
            if sample in skipped:
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
            except packer.SourceFailed as failed:
                del crcs[crcs_at_start:]
                while self.ones and self.ones[-3] >= crcs_at_start:
                    del self.ones[-3:]
                self.skip(sample, failed, streamed=need > limit)
        self.flush(used, len(self.keys))

    def _put(self, used: int, key: bytes, row: int, end: int, need: int) -> None:
        """Put one sample's record into the buffer at `used`."""
        view, heads, codes, sizes, endings = self.view, self._heads, self.codes, self.sizes, self.endings
        of_numbers, crcs, after_key = self.content.numbers, self.field_crcs, self._after_key
        list_heads, whole, may_be_one = self._list_heads, self._whole, self._may_be_one
        data = at = tfrecord.put_frame_head(view, used, need)
        key_part: bytes | None = tfrecord.key_feature(key)
        head = tfrecord.example_head(need)
        for field in range(row, end):
            code = codes[field]
            if key_part is not None and after_key[code]:
                head += key_part
                key_part = None
            if code in of_numbers:
                value = tfrecord.encode_number(self.inline[field], of_numbers[code])
                size = len(value)
            else:
                value, size = None, sizes[field]
            head += (list_heads if whole[field] else heads)[code](size)
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
                    raise packer.unreadable(self.path_of(field, name), error) from None
            crcs.append(crc32c(payload))
            if self.expected:
                self.check_crc(field, crcs[-1])
            if code in may_be_one:
                self._note_one(len(crcs) - 1, field, payload)
            head = b""
        if key_part is not None:
            view[at : at + len(key_part)] = key_part
            at += len(key_part)
        if tfrecord.put_frame_tail(view, at, crc32c(view[data:at])) - used != need:
            raise _mismatch(key)

    def _stream(self, key: bytes, row: int, end: int, need: int) -> None:
        """Write one sample that is larger than the buffer, block by block. The buffer is empty before and after."""
        crcs, before = [], self.size
        frame = bytearray(tfrecord.FRAME_HEAD)
        tfrecord.put_frame_head(frame, 0, need)
        self.write(bytes(frame))
        self.record_crc = 0
        self.write_streamed(tfrecord.example_head(need))
        key_part: bytes | None = tfrecord.key_feature(key)
        for field in range(row, end):
            code = self.codes[field]
            if key_part is not None and self._after_key[code]:
                self.write_streamed(key_part)
                key_part = None
            if code in self.content.numbers:
                value = tfrecord.encode_number(self.inline[field], self.content.numbers[code])
                self.write_streamed(self._heads[code](len(value)) + value)
                crcs.append(crc32c(value))
                continue
            head = (self._list_heads if self._whole[field] else self._heads)[code](self.sizes[field])
            self.write_streamed(head)
            crcs.append(self.stream_payload(key + self.endings[code], field))
            if code in self._may_be_one and self.sizes[field] <= len(self.view):  # which holds it since
                self._note_one(len(self.field_crcs) + len(crcs) - 1, field, self.view[: self.sizes[field]])
        self.write_streamed(key_part or b"")
        tail = bytearray(tfrecord.FRAME_TAIL)
        tfrecord.put_frame_tail(tail, 0, self.record_crc)
        self.write(bytes(tail))
        if self.size - before != need:
            raise _mismatch(key)
        self.field_crcs.extend(crcs)

    def _note_one(self, written: int, row: int, payload: memoryview) -> None:
        """Note the text of a number that is alone in its list: it is the content, as that of any other number.

        Args:
            written: How many fields were written before it.
            row: Which it is.
            payload: Its bytes.
        """
        value = None if self._whole[row] else tfrecord.single_int(payload)
        if value is not None:
            text = b"%d" % value
            self.ones.extend((written, len(text), crc32c(text)))

    def write_streamed(self, data: memoryview | bytes) -> None:
        """Write a part of a record's data, whose checksum follows it."""
        self.write(data)
        self.record_crc = crc32c(data, self.record_crc)


def _mismatch(key: bytes) -> Bug:
    return Bug(repr(key), "a record of another size than planned")

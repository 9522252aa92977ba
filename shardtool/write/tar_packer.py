"""Packers of tar shards.

If a file cannot be read, the samples in the buffer are packed again one by one, to skip only the failed sample.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from itertools import accumulate, chain, repeat

from shardtool.fingerprint import crc32c
from shardtool.format.tar_write import PADDING, TRAILER, encode_header, padding_size, put_header
from shardtool.shard_samples import INLINE, SPAN
from shardtool.storage.files import READ_FOLLOWING, READ_PLAIN
from shardtool.write import packer, source_errors

_open, _readv, _fstat, _close = os.open, os.readv, os.fstat, os.close


class TarPacker(packer.Packer):
    """Writes one tar member per field."""

    def run(self) -> None:
        """Write the shard."""
        self._record_sizes = array("q", self.task.samples.record_sizes)
        offsets, rows = [0, *accumulate(self._record_sizes)], [0, *accumulate(self.counts)]
        first, limit, fills = 0, len(self.view), self._fills_buffers()
        while first < len(self.keys):
            last = bisect_right(offsets, offsets[first] + limit) - 1
            if fills and last > first and not self.skipped and self._fill(first, last, rows):
                self.flush(offsets[last] - offsets[first], last)
            else:
                last = max(last, first + 1)
                self.pack(first, last, rows[first])
            first = last
        self.report_progress(first)
        self.write(TRAILER)

    def _fills_buffers(self) -> bool:
        return self.reads_local_files and SPAN not in self.kinds

    def _fill(self, first: int, last: int, rows: list[int]) -> bool:
        # Return False if a file cannot be read or differs from the plan. For speed, repeat the code of `read_file`.
        view, max_ctime_ns, crcs, used, padding = self.view, self.max_ctime_ns, list[int](), 0, 0
        dir_fd, row, end = self.dir_fd, rows[first], rows[last]
        names = self._names(first, last, rows)
        paths = names if self.paths is None else self.paths[row:end]
        if self.read_base:
            paths = [self.read_base + path for path in paths]
        columns = zip(names, paths, self.kinds[row:end], self.sizes[row:end], self.mtimes[row:end], strict=True)
        try:
            for name, path, kind, size, mtime_ns in columns:
                start = put_header(view, used, name, size, padding)
                used = start + size
                payload = view[start:used]
                if kind == INLINE:
                    payload[:] = self.inline[row + len(crcs)]
                else:
                    fd = _open(path, READ_FOLLOWING if kind else READ_PLAIN, dir_fd=dir_fd)
                    try:
                        size_read, info = _readv(fd, (payload,)), _fstat(fd)
                    finally:
                        _close(fd)
                    if (
                        size_read != size
                        or info.st_size != size
                        or info.st_mtime_ns != mtime_ns
                        or info.st_ctime_ns > max_ctime_ns
                    ):
                        return False
                crcs.append(crc32c(payload))
                padding = -size & 511
        except OSError:
            return False
        view[used : used + padding] = PADDING[padding]
        self.field_crcs.extend(crcs)
        return True

    def _names(self, first: int, last: int, rows: list[int]) -> list[bytes]:
        endings, codes = self.endings, self.codes[rows[first] : rows[last]]
        keys = chain.from_iterable(map(repeat, self.keys[first:last], self.counts[first:last]))
        return [key + endings[code] for key, code in zip(keys, codes, strict=True)]

    def pack(self, first: int, last: int, row: int) -> None:
        """Pack samples one by one. `row` is the first row of sample `first`."""
        view, crcs, used, end = self.view, self.field_crcs, 0, row
        columns = zip(self.keys[first:last], self.counts[first:last], strict=True)
        for sample, (key, count) in enumerate(columns, first):
            row, end = end, end + count
            if sample in self.skipped:
                continue
            record_size = self._record_sizes[sample]
            if used + record_size > len(view):
                self.flush(used, sample)
                used = 0
            at_start, crcs_at_start = used, len(crcs)
            try:
                if record_size > len(view):
                    self._stream(key, row, end)
                    continue
                for field_row in range(row, end):
                    name, size = key + self.endings[self.codes[field_row]], self.sizes[field_row]
                    start = put_header(view, used, name, size)
                    used = start + size
                    payload = view[start:used]
                    self.read_payload(name, field_row, payload)
                    crcs.append(crc32c(payload))
                    if self.expected:
                        self.check_crc(field_row, crcs[-1])
                    padding = PADDING[padding_size(size)]
                    view[used : used + len(padding)] = padding
                    used += len(padding)
            except source_errors.SourceFailed as failed:
                used = at_start
                del crcs[crcs_at_start:]
                self.skip(sample, failed, streamed=record_size > len(view))
        self.flush(used, last)

    def _stream(self, key: bytes, row: int, end: int) -> None:
        crcs = []
        for field_row in range(row, end):
            name, size = key + self.endings[self.codes[field_row]], self.sizes[field_row]
            self.write(encode_header(name, size))
            crcs.append(self.stream_payload(name, field_row))
            self.write(PADDING[padding_size(size)])
        self.field_crcs.extend(crcs)


class SpanTarPacker(TarPacker):
    """Writes samples whose payloads are all in shards, archives or the plan.

    One call reads many payloads and the bytes between them. The headers of the new tar then overwrite the bytes between
    the payloads.
    """

    def run(self) -> None:
        """Write the shard."""
        self._runs, self._run = array("I", self.task.samples.spans.runs).tolist(), 0
        super().run()

    def _fills_buffers(self) -> bool:
        return True

    def _fill(self, first: int, last: int, rows: list[int]) -> bool:
        view, row, end, crcs = self.view, rows[first], rows[last], list[int]()
        used, padding, fetched, append = 0, 0, row, crcs.append
        columns = zip(self._names(first, last, rows), self.sizes[row:end], strict=True)
        try:
            for field_row, (name, size) in enumerate(columns, row):
                start = put_header(view, used, name, size, padding)
                if field_row == fetched:
                    fetched = self._fetch(field_row, end, start)
                used = start + size
                append(crc32c(view[start:used]))
                padding = -size & 511
        except (OSError, source_errors.SourceFailed):
            return False
        view[used : used + padding] = PADDING[padding]
        expected = self.expected[row:end]
        if (
            expected
            and crcs != expected
            and any(crc != expected_crc >= 0 for crc, expected_crc in zip(crcs, expected, strict=True))
        ):
            return False
        self.field_crcs.extend(crcs)
        return True

    def _fetch(self, row: int, end: int, start: int) -> int:
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

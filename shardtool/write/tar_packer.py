"""Packers of tar shards.

Spans are packed one buffer at a time: contiguous payloads are read by one call, then headers overwrite the bytes
between payloads. If a check fails, the samples are packed one by one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from shardtool.fingerprint import crc32c
from shardtool.format.tar_write import PADDING, TAR_BLOCK_BYTES, TRAILER, encode_header, put_header
from shardtool.shard_samples import FILE, INLINE, SPAN
from shardtool.storage.files import READ_FOLLOWING, READ_PLAIN
from shardtool.write import packer, source_errors

if TYPE_CHECKING:
    from collections.abc import Iterable


class TarPacker(packer.Packer):
    """Writes one tar member per field."""

    def run(self) -> None:
        """Write all samples and the end of the file."""
        self.pack(0, len(self.keys), 0)
        self.write(TRAILER)

    def pack(self, first: int, last: int, row: int) -> None:  # noqa: C901, PLR0912, PLR0915 - see below
        """Write samples one by one.

        `row` is the first row of sample `first`. This method is long on purpose: a file takes 15 us, and a function
        call per sample added 1 us.
        """
        view, limit, skipped, expected = self.view, len(self.view), self.skipped, self.expected
        root, kinds, endings, codes, sizes = self.root, self.kinds, self.endings, self.codes, self.sizes
        mtimes, paths, inline, crcs, padding = self.mtimes, self.paths, self.inline, self.field_crcs, PADDING
        record_sizes, counts, read_file = array("q", self.task.samples.needs), self.counts, self.read_file
        max_ctime_ns, used, end = self.max_ctime_ns, 0, row
        columns = zip(self.keys[first:last], record_sizes[first:last], counts[first:last], strict=True)
        for sample, (key, record_size, count) in enumerate(columns, first):
            row, end = end, end + count
            if skipped and sample in skipped:
                continue
            if used + record_size > limit:
                self.flush(used, sample)
                used = 0
            try:
                if record_size > limit:
                    self._stream(key, row, end)
                    continue
                at_start, crcs_at_start = used, len(crcs)
                for field_row in range(row, end):
                    path = name = key + endings[codes[field_row]]
                    size = sizes[field_row]
                    start = put_header(view, used, name, size)
                    stop = start + size
                    payload = view[start:stop]
                    kind = kinds[field_row]
                    if kind == INLINE:
                        payload[:] = inline[field_row]
                    elif kind == SPAN:
                        path = self.span_path(field_row, name)
                        self.read_span(field_row, payload)
                    else:
                        if paths is not None:
                            path = paths[field_row]
                        size_read, info = read_file(
                            root + path, payload, READ_PLAIN if kind == FILE else READ_FOLLOWING
                        )
                        if (
                            size_read != size
                            or info.st_size != size
                            or info.st_mtime_ns != mtimes[field_row]
                            or info.st_ctime_ns > max_ctime_ns
                        ):
                            self.check_read(path, field_row, payload, (size_read, info))
                    crcs.append(crc32c(payload))
                    if expected:
                        self.check_crc(field_row, crcs[-1])
                    pad = -size & 511
                    used = stop + pad
                    view[stop:used] = padding[pad]
            except OSError as error:
                used = at_start
                del crcs[crcs_at_start:]
                self.skip(sample, source_errors.read_error(path, error), streamed=False)
            except source_errors.SourceFailed as failed:
                if record_size <= limit:
                    used = at_start
                    del crcs[crcs_at_start:]
                self.skip(sample, failed, streamed=record_size > limit)
        self.flush(used, last)

    def _stream(self, key: bytes, row: int, end: int) -> None:
        crcs = []
        for field_row in range(row, end):
            name, size = key + self.endings[self.codes[field_row]], self.sizes[field_row]
            self.write(encode_header(name, size))
            crcs.append(self.stream_payload(name, field_row))
            self.write(PADDING[-size & (TAR_BLOCK_BYTES - 1)])
        self.field_crcs.extend(crcs)


class SpanTarPacker(TarPacker):
    """Writes one tar member per field, from payloads that are all spans or inline."""

    def run(self) -> None:
        """Write all samples and the end of the file."""
        record_sizes = array("q", self.task.samples.needs)
        offsets = [0, *accumulate(record_sizes)]
        rows = [0, *accumulate(self.counts)]
        self._runs, self._run = array("I", self.task.samples.spans.runs).tolist(), 0
        first, limit = 0, len(self.view)
        while first < len(record_sizes):
            last = bisect_right(offsets, offsets[first] + limit) - 1
            if last > first and not self.skipped and self._copy(first, last, rows):
                self.flush(offsets[last] - offsets[first], last)
            else:
                last = max(last, first + 1)
                self.pack(first, last, rows[first])
            first = last
        self.report_progress(first)
        self.write(TRAILER)

    def _copy(self, first: int, last: int, rows: list[int]) -> bool:
        """Fill the buffer with records, and return whether all match the plan.

        The method calls few functions and takes 1.2 us per field.
        """
        view, padding, row, end, crcs = self.view, PADDING, rows[first], rows[last], array("I")
        used, fetched, append = 0, row, crcs.append
        try:
            for field_row, (name, size) in enumerate(self._names_and_sizes(first, last, rows), row):
                start = put_header(view, used, name, size)
                stop = start + size
                if field_row == fetched:
                    fetched = self._fetch(field_row, end, start)
                append(crc32c(view[start:stop]))
                pad = -size & 511
                used = stop + pad
                view[stop:used] = padding[pad]
        except (OSError, source_errors.SourceFailed):
            return False
        actual, expected = crcs.tolist(), self.expected[row:end]
        if (
            expected
            and actual != expected
            and any(crc != expected_crc >= 0 for crc, expected_crc in zip(actual, expected, strict=True))
        ):
            return False
        self.field_crcs.extend(crcs)
        return True

    def _names_and_sizes(self, first: int, last: int, rows: list[int]) -> Iterable[tuple[bytes, int]]:
        endings, codes, names = self.endings, self.codes, []
        for key, row, end in zip(self.keys[first:last], rows[first:last], rows[first + 1 : last + 1], strict=True):
            names += [key + endings[code] for code in codes[row:end]]
        return zip(names, self.sizes[rows[first] : rows[last]], strict=True)

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

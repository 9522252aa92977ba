"""Packers of tar shards.

A shard of samples from other shards or archives (spans) is packed a buffer at a time: each run of payloads is read
at once to its target, and new headers overwrite the bytes between payloads. If a check fails, the samples of that
buffer are packed one by one, which finds the bad one.
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
        max_ctime_ns, used, end = self.max_ctime_ns, 0, row
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
                            or fact.st_ctime_ns > max_ctime_ns
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
                self.skip(sample, source_errors.read_error(path, error), streamed=False)
            except source_errors.SourceFailed as failed:
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
            self.write(encode_header(name, size))
            crcs.append(self.stream_payload(name, at))
            self.write(PADDING[-size & (TAR_BLOCK_BYTES - 1)])
        self.field_crcs.extend(crcs)


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
        except (OSError, source_errors.SourceFailed):
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

"""Writes a tar shard of samples that lie in other files, mostly shards, as far apart as they will here.

Strategy: a run of such samples is read at once to where it belongs, and what stood between the payloads is written
over: headers are made anew, whoever made the old ones. So copying costs a system call a buffer, and a header and a
checksum a field.
"""

from __future__ import annotations

from bisect import bisect_right

from shardtool.checksum import crc32c
from shardtool.format.tar import TRAILER, put_header
from shardtool.sample import INLINE, SPAN
from shardtool.write.packer import unreadable
from shardtool.write.tar import PADDING, TarPacker
from shardtool.write.task import Failed, numbers


class SpanTarPacker(TarPacker):
    """A member a field, all of them spans or inline."""

    def run(self) -> None:  # noqa: C901, PLR0912, PLR0915 - see below
        """Write all samples, and the end of the file. As long and flat as `TarPacker`, for its reasons."""
        samples, view, limit, without = self.task.samples, self.view, len(self.view), self.without
        kinds, endings, codes, sizes = samples.kinds, self.endings, self.codes, self.sizes
        inline, crcs, padding, expected = self.inline, self.field_crcs, PADDING, self.expected
        offsets = self.offsets
        needs, counts = numbers("q", samples.needs), numbers("H", samples.counts)
        runs, files = numbers("I", samples.runs or b"").tolist(), self.file_of_row
        after, rows = [0], [0]  # bytes and rows before each sample
        for need, count in zip(needs, counts, strict=True):
            after.append(after[-1] + need)
            rows.append(rows[-1] + count)
        used = end = fetched = run = last = 0
        for sample, (key, need, count) in enumerate(zip(self.keys, needs, counts, strict=True)):
            row, end = end, end + count
            if without and sample in without:
                fetched = end
                continue
            if used + need > limit:
                self.flush(used, sample)
                used = 0
            try:
                if need > limit:
                    fetched = end
                    self._stream(key, row, end)
                    continue
                if not used:
                    last = rows[bisect_right(after, after[sample] + limit) - 1]  # what fits this buffer
                at_start, crcs_at_start = used, len(crcs)
                for at in range(row, end):
                    size = sizes[at]
                    start = put_header(view, used, key + endings[codes[at]], size)
                    stop = start + size
                    if at >= fetched:
                        if kinds[at] == SPAN:
                            while runs[run] <= at:
                                run += 1
                            fetched = min(runs[run], last) if not without else at + 1
                            length = offsets[fetched - 1] + sizes[fetched - 1] - offsets[at]
                            self.spans.read(files[at], offsets[at], view[start : start + length])
                        elif kinds[at] == INLINE:
                            view[start:stop] = inline[at]
                    crcs.append(crc32c(view[start:stop]))
                    pad = -size & 511
                    used = stop + pad
                    view[stop:used] = padding[pad]
                if expected and crcs[crcs_at_start:].tolist() != expected[row:end]:
                    for at, crc in enumerate(crcs[crcs_at_start:], row):
                        self.check_crc(at, crc)
            except OSError as error:
                used = at_start
                del crcs[crcs_at_start:]
                fetched = end
                self.leave_out(sample, unreadable(self.spans.path(files[row]), error), streamed=False)
            except Failed as failed:
                if need <= limit:
                    used = at_start
                    del crcs[crcs_at_start:]
                    fetched = end
                self.leave_out(sample, failed, streamed=need > limit)
        self.flush(used, len(self.keys))
        self.write(TRAILER)

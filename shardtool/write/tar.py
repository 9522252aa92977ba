"""Writes a tar shard."""

from __future__ import annotations

from shardtool.fingerprint import crc32c
from shardtool.format.tar import BLOCK, TRAILER, header, put_header
from shardtool.storage.reading import READ_FOLLOWING, READ_PLAIN
from shardtool.values import FILE, INLINE, SPAN
from shardtool.write.packer import Packer, changed, unreadable
from shardtool.write.task import Failed, numbers

PADDING = [bytes(size) for size in range(BLOCK)]


class TarPacker(Packer):
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
        needs, counts, read_file = numbers("q", self.task.samples.needs), self.counts, self.read_file
        used, end = 0, row
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
                        if got != size or fact.st_size != size or fact.st_mtime_ns != mtimes[at]:
                            raise changed(path, size, got, fact)
                    crcs.append(crc32c(payload))
                    if expected:
                        self.check_crc(at, crcs[-1])
                    pad = -size & 511
                    used = stop + pad
                    view[stop:used] = padding[pad]
            except OSError as error:
                used = at_start
                del crcs[crcs_at_start:]
                self.skip(sample, unreadable(path, error), streamed=False)
            except Failed as failed:
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

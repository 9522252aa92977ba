"""Writes a shard of samples that are changed on the way, so that their sizes show only here.

The plan's sizes are estimates, the bound is not: where the next sample would go over it, the shard ends,
and what is left of the task goes back to the parent, which gives it a name after the last planned one.
"""

from __future__ import annotations

import sys
from array import array
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.dataset.payload import content_of
from shardtool.errors import SampleFailed
from shardtool.fetch import FetchFailed, FetchOptions, shown_bytes
from shardtool.fingerprint import crc32c
from shardtool.format import tar, tfrecord
from shardtool.skipped import CHOSEN, Skipped, failures
from shardtool.transform import BadSample, ChangedSample, Condition, transformer
from shardtool.values import SPAN, URL, Number, counted, ends_early, show_size, to_text
from shardtool.wording import option, typed_option
from shardtool.write import packer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.fetch.fetcher import Fetcher
    from shardtool.storage.staging import DurableFile, Sink

    Encoded = tuple[packer.Parts, list[packer.Field]]  # a sample's record, and what is in it

# Samples, and bytes of them, of which a condition is judged at once (docs/decisions/025-what-is-found.md).
_JUDGED, _JUDGED_BYTES = 256, 2**24
_MEDIA = ("image", "audio", "video")
_SHOWN = 80  # characters of a value in a message

fetchers: dict[FetchOptions, Fetcher] = {}  # of this process: connections stay open from shard to shard


def fetcher(options: FetchOptions) -> Fetcher:
    """Return what fetches files by some options, made once a process."""
    if options not in fetchers:
        from shardtool.fetch.fetcher import Fetcher

        fetchers[options] = Fetcher(options)
    return fetchers[options]


def pack_transformed(task: packer.ShardTask, work: packer.TransformWork, report: packer.Report) -> packer.ShardResult:
    """Write a shard of changed samples, staged and durable.

    Raises:
        SampleFailed: A sample cannot be read or changed, or fits in no shard, and is not to be left out.
        OutputFailed: The file cannot be written.
    """

    def pack(file: Sink) -> TransformPacker:
        with closing(TransformPacker(task, work, file.write, report)) as packed:
            packed.run()
            packed.spans.check()
        return packed

    packed, staged = task.folder.write(task.name, pack, None, task.mtime_ns)
    return packed.result(staged)


def measure_samples(task: packer.ShardTask) -> list[int]:
    """Return what the records of each sample would take, in bytes; -1 where it cannot be taken. Writes nothing."""
    if task.work is None:
        return []
    with closing(TransformPacker(task, task.work, packer.no_report, packer.no_report)) as measuring:
        return measuring.measure()


class ReadSample(NamedTuple):
    """A sample that was read and looked at.

    Attributes:
        place: Its place in the task.
        rows: Its rows.
        fields: Its fields, images changed.
        found: What was found: a value for each column of `Transform.found`.
        why_not: Why it cannot be packed, or is not to be; None: it goes on.
    """

    place: int
    rows: range
    fields: Mapping[str, bytes | memoryview]
    found: tuple[object, ...] = ()
    why_not: packer.SourceFailed | BadSample | None = None


class TransformPacker(packer.Packer):
    """Reads a sample whole, changes it, and writes what comes out."""

    def __init__(
        self, task: packer.ShardTask, work: packer.TransformWork, put: packer.Put, report: packer.Report
    ) -> None:
        super().__init__(task, put, report, {})
        self._work, self._change = work, transformer(work.transform)
        of_names = {self.content.fields[code]: kind for code, kind in self.content.numbers.items()}
        self._numbers: dict[bytes, Number] = of_names
        self._records, self._sources = packer.ShardRecords(self.write), array("q")
        self._found: list[tuple[object, ...]] = []
        self._looked_at = self._consumed = self._dropped = self._reported_skips = 0
        self._fetcher: Fetcher | None = None
        self._urls: dict[int, int] = {}  # the rows of URLs, and the place of each among them
        if work.transform.fetch is not None:
            rows = [row for row, kind in enumerate(self.kinds) if kind == URL]
            self._urls = {row: place for place, row in enumerate(rows)}
            self._fetcher = fetcher(work.transform.fetch)
            urls = [to_text(self._path(b"", row)) for row in rows]
            self._fetcher.begin(urls, len(self.keys), lambda: self.report_progress(self._looked_at))

    def close(self) -> None:
        """Close what was opened for reading, and give up what was fetched in vain."""
        super().close()
        if self._fetcher is not None:
            self._fetcher.begin(())

    def more_done(self) -> tuple[int, ...]:
        """Return how many more samples of URLs failed."""
        if self._fetcher is None:
            return ()
        skips = len(failures(self.skipped.values()))
        more, self._reported_skips = skips - self._reported_skips, skips
        return (more,)

    def run(self) -> None:
        """Write samples until all are done or the shard is full, and the end of the file."""
        for sample in self._samples():
            if not self._pack(sample):
                break
            self._consumed = sample.place + 1
            self.report_progress(sample.place + 1)
        self._records.flush()
        if self.task.format == "tar":
            self.write(tar.TRAILER)

    def measure(self) -> list[int]:
        """Return what the records of each sample would take; -1 where it cannot be taken."""
        found = []
        for sample in self._samples():
            try:
                _, encoded = self._encoded(sample)
            except (packer.SourceFailed, BadSample) as error:
                found.append(0 if error.code in CHOSEN else -1)
            else:
                found.append(sum(len(part) for parts, _ in encoded for part in parts))
        return found

    def _samples(self) -> Iterator[ReadSample]:
        """Yield all samples in order; where a condition decides which are taken, some are read ahead of the others."""
        end, block, size, where = 0, list[ReadSample](), 0, self._work.transform.where
        for place, count in enumerate(self.counts):
            self._looked_at = place
            sample = self._read(place, range(end, end + count))
            end += count
            if where is None:
                yield sample
                continue
            block.append(sample)
            size += sum(map(len, sample.fields.values()))
            self.report_progress(place + 1)  # what only waits for others is no stall
            if len(block) == _JUDGED or size > _JUDGED_BYTES or end == len(self.codes):
                yield from self._judged(block, where)
                block, size = [], 0

    def _read(self, place: int, rows: range) -> ReadSample:
        """Return a sample that was looked at, or why that cannot be."""
        try:
            fields = self._fields(self.keys[place], rows)
            return ReadSample(place, rows, *self._change.look(fields, self._held(rows)))
        except (packer.SourceFailed, BadSample) as error:
            return ReadSample(place, rows, {}, why_not=error)

    def _held(self, rows: range) -> str:
        """Return the field that a sample holds: a file of the web; else an image, audio or a video; else the first."""
        if not self._work.transform.found:
            return ""
        names = {row: to_text(self.content.fields[self.codes[row]]) for row in rows}
        return names[min(rows, key=lambda row: (self.kinds[row] != URL, content_of(names[row]) not in _MEDIA))]

    def _judged(self, samples: list[ReadSample], where: Condition) -> Iterator[ReadSample]:
        """Yield samples; to those that the condition does not take, why is added."""
        import pyarrow as pa

        from shardtool.entries.arrow import with_found
        from shardtool.select.query import matching

        found, known = self._work.transform.found, None
        if self._work.known:
            known = pa.ipc.open_stream(self._work.known).read_all().slice(samples[0].place, len(samples))
        table: Any = with_found(known, found, [one.found or (None,) * len(found) for one in samples])
        taken = {*matching(table, where.query, dict(where.classes)).tolist()}
        for at, one in enumerate(samples):
            if one.why_not or at in taken:
                yield one
            else:
                values = [f"{name} is {table.column(name)[at].as_py()!r:.{_SHOWN}}" for name in where.columns]
                why_not = BadSample("not-chosen", ", ".join(values), field=self._held(one.rows))
                yield one._replace(why_not=why_not)

    def _encoded(self, sample: ReadSample) -> tuple[list[ChangedSample], list[Encoded]]:
        """Return what becomes of a sample, and the records of that.

        Raises:
            SourceFailed: It cannot be read.
            BadSample: It cannot be taken, or is not to be.
        """
        if sample.why_not is not None:
            raise sample.why_not
        changed = self._change.finish(self.keys[sample.place], sample.fields)
        self._check_dots(changed)
        return changed, [self._encode(one) for one in changed]

    def _pack(self, sample: ReadSample) -> bool:
        """Write what a sample becomes, or leave it out; return whether there was room for it."""
        key = self.keys[sample.place]
        try:
            changed, encoded = self._encoded(sample)
        except packer.SourceFailed as error:
            self.skip(sample.place, error, streamed=False)
        except BadSample as bad:
            path = self._path_of(key, sample.rows, bad.field)
            self.skip(sample.place, packer.SourceFailed(path, bad.code, bad.message, bad.detail), streamed=False)
        else:
            return self._add(sample, key, changed, encoded)
        return True

    def result(self, staged: DurableFile | None) -> packer.ShardResult:
        """Return the result of the finished shard."""
        content = self._records.content(self._numbers, texts=bool(self._numbers))
        crcs = self._records.crcs.tobytes()
        hashed = packer.digest(content, crcs, ()) if len(self._records) else 0
        made = packer.TransformedSamples(content, self._sources.tobytes(), self._consumed, self._dropped, self._found)
        skipped = tuple(sorted(self.skipped.items()))
        return packer.ShardResult(self.task.shard, staged, self.size, self.crc, crcs, hashed, skipped, made)

    def _path(self, key: bytes, row: int) -> bytes:
        return self.paths[row] if self.paths is not None else key + self.endings[self.codes[row]]

    def _path_of(self, key: bytes, rows: range, field: str) -> bytes:
        """Return the path of one field's file; nothing where it is no file's fault: the key says more."""
        names = self.content.fields
        found = [at for at in rows if field and to_text(names[self.codes[at]]) == field]
        return self._shown_path(key, found[0]) if found else b""

    def _shown_path(self, key: bytes, row: int) -> bytes:
        """Return a path as outputs may have it."""
        path = self._path(key, row)
        return shown_bytes(path) if self.kinds[row] == URL else path

    def _fields(self, key: bytes, rows: range) -> dict[str, bytes | memoryview]:
        return {to_text(self.content.fields[self.codes[row]]): self._payload(key, row) for row in rows}

    def _payload(self, key: bytes, row: int) -> bytes | memoryview:
        """Return the bytes of a row.

        Raises:
            SourceFailed: They cannot be had.
        """
        if self._fetcher is not None and row in self._urls:
            try:
                return self._fetcher.take(self._urls[row])
            except FetchFailed as failed:
                raise packer.SourceFailed(self._shown_path(key, row), failed.code, failed.message) from None
        payload = memoryview(bytearray(self.sizes[row]))
        try:
            self.read_payload(key + self.endings[self.codes[row]], row, payload)
        except OSError as error:
            raise packer.unreadable(self._path(key, row), error) from None
        if self.expected and self.kinds[row] == SPAN:
            self.check_crc(row, crc32c(payload))
        return payload

    def _check_dots(self, changed: list[ChangedSample]) -> None:
        """Check that keys and fields come back from a tar, whose members' names are both with a dot between."""
        if self.task.format != "tar":
            return
        last = typed_option("dots", "last")
        for one in changed:
            dotted = [name for name, _ in one.fields if b"." in name] if self._work.dots == "last" else []
            if self._work.dots == "first" and ends_early(one.key):
                found = f"key '{to_text(one.key)}': a tar's readers end it at its first dot ({last}: at the last)"
            elif dotted:
                found = f"field '{to_text(dotted[0])}': with {last}, it begins behind its last dot"
            else:
                continue
            raise BadSample("map-failed", f"the function of {typed_option('map')} returned the {found}")

    def _encode(self, sample: ChangedSample) -> Encoded:
        """Return a sample's record, and what is in it."""
        fields = [self._field(name, payload) for name, payload in sample.fields]
        return packer.encode_record(self.task.format, sample.key, fields, self._numbers), fields

    def _field(self, name: bytes, payload: bytes | memoryview) -> packer.Field:
        """Return a field as it is stored; of a number, with the text that the stored one gives back."""
        kind = self._numbers.get(name)
        if kind is None:
            return packer.Field(name, len(payload), payload)
        text = bytes(payload)
        if self.task.format == "tar":
            return packer.Field(name, len(text), text, text)
        try:
            stored = tfrecord.encode_number(text, kind)
            text = b"%d" % int(text) if kind == "int64" else text
        except (ValueError, OverflowError):
            raise BadSample("no-number", f"{to_text(name)} is no {kind} any more") from None
        return packer.Field(name, len(text), stored, text)

    def _add(self, sample: ReadSample, key: bytes, changed: list[ChangedSample], encoded: list[Encoded]) -> bool:
        """Write what one sample became; return whether there was room for it."""
        work, sizes = self._work, [sum(map(len, parts)) for parts, _ in encoded]
        size, most = sum(sizes), sys.maxsize if work.max_count is None else work.max_count
        over_format = self.task.format == "tfrecord" and max(sizes, default=0) > tfrecord.RECORD_LIMIT
        if len(changed) > most or over_format or (size > work.room and work.oversize != "alone"):
            self._refuse(sample.place, key, size, len(changed))
            return True
        held = len(self._records)
        if held and (held + len(changed) > most or self._records.size + size > work.room):
            return False
        if not changed:
            self._dropped += 1
        for one, (parts, fields), length in zip(changed, encoded, sizes, strict=True):
            self._sources.append(sample.place)
            self._found.append(sample.found)
            self._records.add(one.key, parts, length, fields)
        return True

    def _refuse(self, place: int, key: bytes, size: int, count: int) -> None:
        """Apply the rule for a sample that fits in no shard, now that its size is known."""
        found = f"becomes {counted(count, 'sample')} of {show_size(size)}, more than a shard may hold"
        if self._work.oversize != "skip":
            bounds = f"{option('max_size')} or {option('max_count')}"
            remedy = f"Raise {bounds}, or leave it out with {option('oversize', 'skip')}."
            raise SampleFailed(to_text(key), found, remedy=remedy)
        self.skipped[place] = Skipped(to_text(key), "", "oversize", found)

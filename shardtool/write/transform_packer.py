"""Packer of shards whose samples are transformed, so that sizes are known only while packing.

The sizes in the plan are estimates, but the size limit is exact: the shard ends before the sample that would exceed
it. The remaining samples go back to the parent, which plans them into shards after the last planned one.
"""

from __future__ import annotations

import sys
from array import array
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.dataset.payload import content_type
from shardtool.errors import SampleFailed
from shardtool.fetch.options import FetchFailed, FetchOptions
from shardtool.fetch.urls import redact_url_bytes
from shardtool.fingerprint import crc32c
from shardtool.format import tar_write, tfrecord_write
from shardtool.messages import cli_option, option_text
from shardtool.names import has_early_dot, to_text
from shardtool.shard_samples import SPAN, URL
from shardtool.skipped import INTENDED_CODES, Skipped, failed_rows
from shardtool.transform.transformer import BadSample, TransformedSample, get_transformer
from shardtool.units import format_size, pluralize
from shardtool.write import packer, shard_records, source_errors, task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.fetch.fetcher import HttpFetcher
    from shardtool.storage.staging import DurableFile, Sink
    from shardtool.transform.transform import ReadCondition
    from shardtool.values import NumberType

    Encoded = tuple[shard_records.Parts, list[shard_records.EncodedField]]  # a sample's record, and what is in it


# Samples, and bytes of them, of which a condition is judged at once (docs/decisions/025-what-is-found.md).
_CONDITION_BATCH_SAMPLES, _CONDITION_BATCH_BYTES = 256, 2**24


_MEDIA_KINDS = ("image", "audio", "video")


_MAX_SHOWN_CHARS = 80  # characters of a value in a message


fetchers: dict[FetchOptions, HttpFetcher] = {}  # of this process: connections stay open from shard to shard


def get_fetcher(options: FetchOptions) -> HttpFetcher:
    """Return what fetches files by some options, made once a process."""
    if options not in fetchers:
        from shardtool.fetch.fetcher import HttpFetcher

        fetchers[options] = HttpFetcher(options)
    return fetchers[options]


def pack_transformed(task: task.ShardTask, work: task.TransformWork, report: packer.Report) -> task.ShardResult:
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


def measure_samples(task: task.ShardTask) -> list[int]:
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
    rejection: source_errors.SourceFailed | BadSample | None = None


class TransformPacker(packer.Packer):
    """Reads a sample whole, changes it, and writes what comes out."""

    def __init__(self, task: task.ShardTask, work: task.TransformWork, put: packer.Put, report: packer.Report) -> None:
        super().__init__(task, put, report, {})
        self._work, self._change = work, get_transformer(work.transform)
        of_names = {self.content.fields[code]: kind for code, kind in self.content.numbers.items()}
        self._numbers: dict[bytes, NumberType] = of_names
        self._records, self._sources = shard_records.ShardRecords(self.write), array("q")
        self._found: list[tuple[object, ...]] = []
        self._looked_at = self._consumed = self._dropped = self._reported_skips = 0
        self._fetcher: HttpFetcher | None = None
        self._urls: dict[int, int] = {}  # the rows of URLs, and the place of each among them
        if work.transform.fetch is not None:
            rows = [row for row, kind in enumerate(self.kinds) if kind == URL]
            self._urls = {row: place for place, row in enumerate(rows)}
            self._fetcher = get_fetcher(work.transform.fetch)
            urls = [to_text(self._path(b"", row)) for row in rows]
            self._fetcher.start(urls, len(self.keys), lambda: self.report_progress(self._looked_at))

    def close(self) -> None:
        """Close what was opened for reading, and give up what was fetched in vain."""
        super().close()
        if self._fetcher is not None:
            self._fetcher.start(())

    def extra_progress(self) -> tuple[int, ...]:
        """Return how many more samples of URLs failed."""
        if self._fetcher is None:
            return ()
        skips = len(failed_rows(self.skipped.values()))
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
            self.write(tar_write.TRAILER)

    def measure(self) -> list[int]:
        """Return what the records of each sample would take; -1 where it cannot be taken."""
        found = []
        for sample in self._samples():
            try:
                _, encoded = self._encoded(sample)
            except (source_errors.SourceFailed, BadSample) as error:
                found.append(0 if error.code in INTENDED_CODES else -1)
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
            if len(block) == _CONDITION_BATCH_SAMPLES or size > _CONDITION_BATCH_BYTES or end == len(self.codes):
                yield from self._apply_condition(block, where)
                block, size = [], 0

    def _read(self, place: int, rows: range) -> ReadSample:
        """Return a sample that was looked at, or why that cannot be."""
        try:
            fields = self._fields(self.keys[place], rows)
            return ReadSample(place, rows, *self._change.change_fields(fields, self._held(rows)))
        except (source_errors.SourceFailed, BadSample) as error:
            return ReadSample(place, rows, {}, rejection=error)

    def _held(self, rows: range) -> str:
        """Return the field that a sample holds: a file of the web; else an image, audio or a video; else the first."""
        if not self._work.transform.found:
            return ""
        names = {row: to_text(self.content.fields[self.codes[row]]) for row in rows}
        return names[min(rows, key=lambda row: (self.kinds[row] != URL, content_type(names[row]) not in _MEDIA_KINDS))]

    def _apply_condition(self, samples: list[ReadSample], where: ReadCondition) -> Iterator[ReadSample]:
        """Yield samples; to those that the condition does not take, why is added."""
        import pyarrow as pa

        from shardtool.entries.metadata_columns import with_measured_columns
        from shardtool.select.query import match_rows

        found, known = self._work.transform.found, None
        if self._work.known:
            known = pa.ipc.open_stream(self._work.known).read_all().slice(samples[0].place, len(samples))
        table: Any = with_measured_columns(known, found, [one.found or (None,) * len(found) for one in samples])
        taken = {*match_rows(table, where.query, dict(where.classes)).tolist()}
        for at, one in enumerate(samples):
            if one.rejection or at in taken:
                yield one
            else:
                values = [f"{name} is {table.column(name)[at].as_py()!r:.{_MAX_SHOWN_CHARS}}" for name in where.columns]
                rejection = BadSample("not-chosen", ", ".join(values), field=self._held(one.rows))
                yield one._replace(rejection=rejection)

    def _encoded(self, sample: ReadSample) -> tuple[list[TransformedSample], list[Encoded]]:
        """Return what becomes of a sample, and the records of that.

        Raises:
            SourceFailed: It cannot be read.
            BadSample: It cannot be taken, or is not to be.
        """
        if sample.rejection is not None:
            raise sample.rejection
        changed = self._change.call_function(self.keys[sample.place], sample.fields)
        self._check_dots(changed)
        return changed, [self._encode(one) for one in changed]

    def _pack(self, sample: ReadSample) -> bool:
        """Write what a sample becomes, or leave it out; return whether there was room for it."""
        key = self.keys[sample.place]
        try:
            changed, encoded = self._encoded(sample)
        except source_errors.SourceFailed as error:
            self.skip(sample.place, error, streamed=False)
        except BadSample as bad:
            path = self._path_of(key, sample.rows, bad.field)
            self.skip(sample.place, source_errors.SourceFailed(path, bad.code, bad.message, bad.detail), streamed=False)
        else:
            return self._add(sample, key, changed, encoded)
        return True

    def result(self, staged: DurableFile | None) -> task.ShardResult:
        """Return the result of the finished shard."""
        content = self._records.content(self._numbers, texts=bool(self._numbers))
        crcs = self._records.crcs.tobytes()
        hashed = task.compute_content_fingerprint(content, crcs, ()) if len(self._records) else 0
        made = task.TransformedSamples(content, self._sources.tobytes(), self._consumed, self._dropped, self._found)
        skipped = tuple(sorted(self.skipped.items()))
        return task.ShardResult(self.task.shard, staged, self.size, self.crc, crcs, hashed, skipped, made)

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
        return redact_url_bytes(path) if self.kinds[row] == URL else path

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
                raise source_errors.SourceFailed(self._shown_path(key, row), failed.code, failed.message) from None
        payload = memoryview(bytearray(self.sizes[row]))
        try:
            self.read_payload(key + self.endings[self.codes[row]], row, payload)
        except OSError as error:
            raise source_errors.read_error(self._path(key, row), error) from None
        if self.expected and self.kinds[row] == SPAN:
            self.check_crc(row, crc32c(payload))
        return payload

    def _check_dots(self, changed: list[TransformedSample]) -> None:
        """Check that keys and fields come back from a tar, whose members' names are both with a dot between."""
        if self.task.format != "tar":
            return
        last = cli_option("dots", "last")
        for one in changed:
            dotted = [name for name, _ in one.fields if b"." in name] if self._work.dots == "last" else []
            if self._work.dots == "first" and has_early_dot(one.key):
                found = f"key '{to_text(one.key)}': a tar's readers end it at its first dot ({last}: at the last)"
            elif dotted:
                found = f"field '{to_text(dotted[0])}': with {last}, it begins behind its last dot"
            else:
                continue
            raise BadSample("map-failed", f"the function of {cli_option('map')} returned the {found}")

    def _encode(self, sample: TransformedSample) -> Encoded:
        """Return a sample's record, and what is in it."""
        fields = [self._field(name, payload) for name, payload in sample.fields]
        return shard_records.encode_record(self.task.format, sample.key, fields, self._numbers), fields

    def _field(self, name: bytes, payload: bytes | memoryview) -> shard_records.EncodedField:
        """Return a field as it is stored; of a number, with the text that the stored one gives back."""
        kind = self._numbers.get(name)
        if kind is None:
            return shard_records.EncodedField(name, len(payload), payload)
        text = bytes(payload)
        if self.task.format == "tar":
            return shard_records.EncodedField(name, len(text), text, text)
        try:
            stored = tfrecord_write.encode_number(text, kind)
            text = b"%d" % int(text) if kind == "int64" else text
        except (ValueError, OverflowError):
            raise BadSample("no-number", f"{to_text(name)} is no {kind} any more") from None
        return shard_records.EncodedField(name, len(text), stored, text)

    def _add(self, sample: ReadSample, key: bytes, changed: list[TransformedSample], encoded: list[Encoded]) -> bool:
        """Write what one sample became; return whether there was room for it."""
        work, sizes = self._work, [sum(map(len, parts)) for parts, _ in encoded]
        size, most = sum(sizes), sys.maxsize if work.max_count is None else work.max_count
        over_format = self.task.format == "tfrecord" and max(sizes, default=0) > tfrecord_write.MAX_RECORD_BYTES
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
        found = f"becomes {pluralize(count, 'sample')} of {format_size(size)}, more than a shard may hold"
        if self._work.oversize != "skip":
            bounds = f"{option_text('max_size')} or {option_text('max_count')}"
            remedy = f"Raise {bounds}, or leave it out with {option_text('oversize', 'skip')}."
            raise SampleFailed(to_text(key), found, remedy=remedy)
        self.skipped[place] = Skipped(to_text(key), "", "oversize", found)

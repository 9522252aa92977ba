"""Pack transformed samples. Their sizes are known only after the transform.

If a sample does not fit in the shard, the parent plans more shards for this sample and all later samples.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.dataset.payload import content_type
from shardtool.errors import SampleFailed, format_list
from shardtool.fetch.options import FetchFailed, FetchOptions, redact_url_bytes
from shardtool.fingerprint import crc32c
from shardtool.format import tar_write, tfrecord_write
from shardtool.messages import cli_option, option_text
from shardtool.names import has_early_dot, to_text
from shardtool.shard_samples import SPAN, URL
from shardtool.skipped import INTENDED_CODES, Skipped, failed_rows
from shardtool.transform.transformer import BadSample, TransformedSample, get_transformer
from shardtool.units import format_size, pluralize
from shardtool.write.packer import Packer, no_report
from shardtool.write.shard_records import EncodedField, ShardRecords, encode_record
from shardtool.write.source_errors import SourceFailed
from shardtool.write.task import ShardResult, ShardTask, TransformedSamples, TransformWork, compute_content_fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.fetch.fetcher import HttpFetcher
    from shardtool.storage.staging import DurableFile, Sink
    from shardtool.transform.transform import ReadCondition
    from shardtool.values import NumberType
    from shardtool.write.packer import Put, Report
    from shardtool.write.shard_records import Parts

    Encoded = tuple[Parts, list[EncodedField]]


# maximum size of a batch that `--where` filters (docs/decisions/025-what-is-found.md)
_CONDITION_BATCH_SAMPLES, _CONDITION_BATCH_BYTES = 256, 2**24

_MEDIA_KINDS = ("image", "audio", "video")

_MAX_SHOWN_CHARS = 80

fetchers: dict[FetchOptions, HttpFetcher] = {}


def _get_fetcher(options: FetchOptions) -> HttpFetcher:
    if options not in fetchers:
        from shardtool.fetch.fetcher import HttpFetcher

        fetchers[options] = HttpFetcher(options)
    return fetchers[options]


def pack_transformed(task: ShardTask, work: TransformWork, report: Report) -> ShardResult:
    """Write a shard of transformed samples to a staged file."""

    def pack(file: Sink) -> _TransformPacker:
        with closing(_TransformPacker(task, work, file.write, report)) as packer:
            packer.run()
            packer.spans.check()
        return packer

    packer, staged = task.folder.write(task.name, pack, None, task.mtime_ns)
    return packer.result(staged)


def measure_samples(task: ShardTask) -> list[int]:
    """Return the size of each source sample's records after the transform, in bytes.

    The value is 0 for samples that the user's options exclude, and -1 for failed samples.
    """
    if task.work is None:
        return []
    with closing(_TransformPacker(task, task.work, no_report, no_report)) as measuring:
        return measuring.measure()


class ReadSample(NamedTuple):
    """A sample that was read and measured.

    Attributes:
        measured: The values of the measured columns, such as the image size.
        rejection: Why the sample is not packed, or None.
    """

    sample_index: int
    rows: range
    fields: Mapping[str, bytes | memoryview]
    measured: tuple[object, ...] = ()
    rejection: SourceFailed | BadSample | None = None


class _TransformPacker(Packer):
    def __init__(self, task: ShardTask, work: TransformWork, put: Put, report: Report) -> None:
        super().__init__(task, put, report, {})
        self._work, self._change = work, get_transformer(work.transform)
        number_types = {self.content.fields[code]: kind for code, kind in self.content.numbers.items()}
        self._numbers: dict[bytes, NumberType] = number_types
        self._records, self._sources = ShardRecords(self.write), array("q")
        self._measured: list[tuple[object, ...]] = []
        self._current_index = self._consumed = self._dropped = self._reported_skips = 0
        self._fetcher: HttpFetcher | None = None
        self._urls: dict[int, int] = {}
        if work.transform.fetch is not None:
            rows = [row for row, kind in enumerate(self.kinds) if kind == URL]
            self._urls = {row: number for number, row in enumerate(rows)}
            self._fetcher = _get_fetcher(work.transform.fetch)
            urls = [to_text(self._path(b"", row)) for row in rows]
            self._fetcher.start(urls, len(self.keys), lambda: self.report_progress(self._current_index))

    def close(self) -> None:
        super().close()
        if self._fetcher is not None:
            self._fetcher.start(())

    def extra_progress(self) -> tuple[int, ...]:
        if self._fetcher is None:
            return ()
        skips = len(failed_rows(self.skipped.values()))
        new_skips, self._reported_skips = skips - self._reported_skips, skips
        return (new_skips,)

    def run(self) -> None:
        for sample in self._read_samples():
            if not self._pack_sample(sample):
                break
            self._consumed = sample.sample_index + 1
            self.report_progress(sample.sample_index + 1)
        self._records.flush()
        if self.task.format == "tar":
            self.write(tar_write.TRAILER)

    def measure(self) -> list[int]:
        sizes = []
        for sample in self._read_samples():
            try:
                _, encoded = self._transform(sample)
            except (SourceFailed, BadSample) as error:
                sizes.append(0 if error.code in INTENDED_CODES else -1)
            else:
                sizes.append(sum(len(part) for parts, _ in encoded for part in parts))
        return sizes

    def _read_samples(self) -> Iterator[ReadSample]:
        end, batch, size, where = 0, list[ReadSample](), 0, self._work.transform.where
        for sample_index, count in enumerate(self.counts):
            self._current_index = sample_index
            sample = self._read(sample_index, range(end, end + count))
            end += count
            if where is None:
                yield sample
                continue
            batch.append(sample)
            size += sum(map(len, sample.fields.values()))
            # report progress, because a silent worker is considered stuck
            self.report_progress(sample_index + 1)
            if len(batch) == _CONDITION_BATCH_SAMPLES or size > _CONDITION_BATCH_BYTES or end == len(self.codes):
                yield from self._apply_condition(batch, where)
                batch, size = [], 0

    def _read(self, sample_index: int, rows: range) -> ReadSample:
        try:
            fields = self._fields(self.keys[sample_index], rows)
            return ReadSample(sample_index, rows, *self._change.change_fields(fields, self._main_field(rows)))
        except (SourceFailed, BadSample) as error:
            return ReadSample(sample_index, rows, {}, rejection=error)

    def _main_field(self, rows: range) -> str:
        if not self._work.transform.measured_columns:
            return ""
        names = {row: to_text(self.content.fields[self.codes[row]]) for row in rows}
        return names[min(rows, key=lambda row: (self.kinds[row] != URL, content_type(names[row]) not in _MEDIA_KINDS))]

    def _apply_condition(self, samples: list[ReadSample], where: ReadCondition) -> Iterator[ReadSample]:
        import pyarrow as pa

        from shardtool.entries.metadata_columns import with_measured_columns
        from shardtool.select.query import match_rows

        measured_columns, known = self._work.transform.measured_columns, None
        if self._work.known_columns:
            known = pa.ipc.open_stream(self._work.known_columns).read_all().slice(samples[0].sample_index, len(samples))
        measured = [sample.measured or (None,) * len(measured_columns) for sample in samples]
        table: Any = with_measured_columns(known, measured_columns, measured)
        matches = {*match_rows(table, where.query, dict(where.classes)).tolist()}
        for position, sample in enumerate(samples):
            if sample.rejection or position in matches:
                yield sample
            else:
                values = [
                    f"{name} is {table.column(name)[position].as_py()!r:.{_MAX_SHOWN_CHARS}}" for name in where.columns
                ]
                rejection = BadSample("not-chosen", ", ".join(values), field=self._main_field(sample.rows))
                yield sample._replace(rejection=rejection)

    def _transform(self, sample: ReadSample) -> tuple[list[TransformedSample], list[Encoded]]:
        if sample.rejection is not None:
            raise sample.rejection
        changed = self._change.call_function(self.keys[sample.sample_index], sample.fields)
        self._check_names(changed)
        return changed, [self._encode(transformed) for transformed in changed]

    def _pack_sample(self, sample: ReadSample) -> bool:
        key = self.keys[sample.sample_index]
        try:
            changed, encoded = self._transform(sample)
        except SourceFailed as error:
            self.skip(sample.sample_index, error, streamed=False)
        except BadSample as error:
            path = self._path_of(key, sample.rows, error.field)
            self.skip(sample.sample_index, SourceFailed(path, error.code, error.message, error.detail), streamed=False)
        else:
            return self._add_sample(sample, key, changed, encoded)
        return True

    def result(self, staged: DurableFile | None) -> ShardResult:
        content = self._records.content(self._numbers, texts=bool(self._numbers))
        crcs = self._records.crcs.tobytes()
        digest = compute_content_fingerprint(content, crcs, ()) if len(self._records) else 0
        samples = TransformedSamples(content, self._sources.tobytes(), self._consumed, self._dropped, self._measured)
        skipped = tuple(sorted(self.skipped.items()))
        return ShardResult(staged, self.size, self.crc, crcs, digest, skipped, samples)

    def _path(self, key: bytes, row: int) -> bytes:
        return self.paths[row] if self.paths is not None else key + self.endings[self.codes[row]]

    def _path_of(self, key: bytes, rows: range, field: str) -> bytes:
        names = self.content.fields
        matching = [row for row in rows if field and to_text(names[self.codes[row]]) == field]
        return self._printable_path(key, matching[0]) if matching else b""

    def _printable_path(self, key: bytes, row: int) -> bytes:
        path = self._path(key, row)
        return redact_url_bytes(path) if self.kinds[row] == URL else path

    def _fields(self, key: bytes, rows: range) -> dict[str, bytes | memoryview]:
        return {to_text(self.content.fields[self.codes[row]]): self._payload(key, row) for row in rows}

    def _payload(self, key: bytes, row: int) -> bytes | memoryview:
        if self._fetcher is not None and row in self._urls:
            try:
                return self._fetcher.take(self._urls[row])
            except FetchFailed as failed:
                raise SourceFailed(self._printable_path(key, row), failed.code, failed.message) from None
        payload = memoryview(bytearray(self.sizes[row]))
        self.read_payload(key + self.endings[self.codes[row]], row, payload)
        if self.expected and self.kinds[row] == SPAN:
            self.check_crc(row, crc32c(payload))
        return payload

    def _check_names(self, changed: list[TransformedSample]) -> None:
        if self.task.format != "tar":
            return
        last_option = cli_option("dots", "last")
        for sample in changed:
            fields = [to_text(name) for name, _ in sample.fields]
            lower = Counter(name.lower() for name in fields)
            if len(lower) < len(fields):
                clashing = [name for name in fields if lower[name.lower()] > 1]
                raise BadSample("field-clash", f"fields that differ only in case: {format_list(clashing)}")
            dotted_fields = [name for name in fields if "." in name] if self._work.dots == "last" else []
            if self._work.dots == "first" and has_early_dot(sample.key):
                rule = f"readers end a key at its first dot (with {last_option}: the last)"
                found = f"key '{to_text(sample.key)}': {rule}"
            elif dotted_fields:
                found = f"field '{dotted_fields[0]}': with {last_option}, a field name cannot contain a dot"
            else:
                continue
            raise BadSample("map-failed", f"the function of {cli_option('map')} returned the {found}")

    def _encode(self, sample: TransformedSample) -> Encoded:
        fields = [self._field(name, payload) for name, payload in sample.fields]
        return encode_record(self.task.format, sample.key, fields, self._numbers), fields

    def _field(self, name: bytes, payload: bytes | memoryview) -> EncodedField:
        kind = self._numbers.get(name)
        if kind is None:
            return EncodedField(name, len(payload), payload)
        text = bytes(payload)
        if self.task.format == "tar":
            return EncodedField(name, len(text), text, text)
        try:
            stored = tfrecord_write.encode_number(text, kind)
            text = b"%d" % int(text) if kind == "int64" else text
        except (ValueError, OverflowError):
            raise BadSample("no-number", f"{to_text(name)} is not a valid {kind} after the transform") from None
        return EncodedField(name, len(text), stored, text)

    def _add_sample(
        self, sample: ReadSample, key: bytes, changed: list[TransformedSample], encoded: list[Encoded]
    ) -> bool:
        work, sizes = self._work, [sum(map(len, parts)) for parts, _ in encoded]
        size = sum(sizes)
        max_count = sys.maxsize if work.max_count is None else work.max_count
        over_format = self.task.format == "tfrecord" and max(sizes, default=0) > tfrecord_write.MAX_RECORD_BYTES
        if len(changed) > max_count or over_format or (size > work.max_bytes and work.oversize != "alone"):
            self._reject_oversize(sample.sample_index, key, size, len(changed))
            return True
        count = len(self._records)
        if count and (count + len(changed) > max_count or self._records.size + size > work.max_bytes):
            return False
        if not changed:
            self._dropped += 1
        for transformed, (parts, fields), length in zip(changed, encoded, sizes, strict=True):
            self._sources.append(sample.sample_index)
            self._measured.append(sample.measured)
            self._records.add(transformed.key, parts, length, fields)
        return True

    def _reject_oversize(self, sample_index: int, key: bytes, size: int, count: int) -> None:
        found = f"becomes {pluralize(count, 'sample')} of {format_size(size)}, more than a shard may contain"
        if self._work.oversize != "skip":
            bounds = f"{option_text('max_size')} or {option_text('max_count')}"
            remedy = f"Raise {bounds}, or skip the sample with {option_text('oversize', 'skip')}."
            raise SampleFailed(to_text(key), found, remedy=remedy)
        self.skipped[sample_index] = Skipped(to_text(key), "", "oversize", found)

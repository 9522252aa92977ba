"""`ShardWriter` writes a program's samples to a dataset, with the same guarantees as `create`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool import names, units
from shardtool.entries.record_sizes import MAX_SAMPLE_BYTES, TRAILER_SIZE
from shardtool.errors import InvalidRequest, OutputExists, SampleFailed, printable, reporting_memory_errors
from shardtool.interop.readers import READERS_BY_PROBLEM
from shardtool.messages import call_text, cli_option, flag_text, option_text
from shardtool.pattern import check_writable, parse_pattern
from shardtool.plan.plan import DEFAULT_MAX_SIZE, rounded_note
from shardtool.plan.shard_bounds import NO_LIMIT
from shardtool.publish import advice, listed_files, parts
from shardtool.request.observer import Notes, Observer, default_observer
from shardtool.request.output_options import readers_for_notes
from shardtool.request.verb_call import documents_options, merge_options
from shardtool.skipped import Skipped
from shardtool.storage.folders import open_folder
from shardtool.storage.remote.store_options import with_options, without_markers
from shardtool.writer.options import WriterKeywords, WriterOptions
from shardtool.writer.output import WriterOutput
from shardtool.writer.sample_encoder import SAMPLE_KEY, EncodedSample, SampleRefused
from shardtool.writer.sample_writer import SampleWriter, ShardBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.values import OutputNames


class ShardWriter(SampleWriter):
    """Writes samples into shards, with sidecars and a dataset file.

    Use a writer in a `with` block, in one thread. If the block raises an exception, no dataset file is written. Full
    shards are kept (except with `overwrite`), and another writer can continue after them with `resume=True`.

    Args:
        pattern: A shard pattern such as `out-{000000..}.tar`. Its extension selects tar or TFRecord.
        options: See `WriterOptions`. Keyword arguments override these options.
        observer: Receives notes.

    Raises:
        InvalidRequest: The request is invalid. Nothing was written.
        OutputExists: The output exists, or another run is writing it. Nothing was changed.
        OutputFailed: The output cannot be written.

    Example:
        ```
        with shardtool.ShardWriter("out-{000000..}.tar", max_size="1GB") as writer:
            writer.write({"__key__": "a/1", "jpg": image_bytes, "cls": 3}, metadata={"split": "train"})
        ```
    """

    @documents_options(WriterOptions)
    def __init__(
        self,
        pattern: OutputNames,
        options: WriterOptions | None = None,
        *,
        observer: Observer | None = None,
        **named: Unpack[WriterKeywords],
    ) -> None:
        """Create a writer."""
        self._options = options = merge_options("ShardWriter", options, named, WriterOptions)
        self._dataset_pattern = dataset_pattern = parse_pattern(with_options(pattern, options.storage_options))
        check_writable(dataset_pattern)
        part = options.part
        self._tag = "" if part is None else parts.make_part_tag(part, options.parts)
        if part is None and options.parts is not None:
            expected = f"the number of this part ({option_text('part')})"
            raise InvalidRequest(option_text("parts"), "no part", expected=expected)
        own_pattern = parts.make_part_pattern(dataset_pattern, self._tag) if self._tag else dataset_pattern
        self._pattern = own_pattern
        has_bound = options.max_size is not None or options.max_count is not None or own_pattern.count == 1
        default = None if has_bound else DEFAULT_MAX_SIZE
        max_size = default if options.max_size is None else units.parse_size(options.max_size)
        max_file_bytes = open_folder(own_pattern.folder).max_file_bytes or NO_LIMIT
        trailer = TRAILER_SIZE[own_pattern.format]
        if max_size is not None and max_size > max_file_bytes:
            expected = f"at most {units.format_size(max_file_bytes)}, the limit of the store"
            raise InvalidRequest(option_text("max_size"), units.format_size(max_size), expected=expected)
        max_bytes = min(NO_LIMIT if max_size is None else max_size, max_file_bytes) - trailer
        max_count = NO_LIMIT if options.max_count is None else options.max_count
        super().__init__(own_pattern.format, options.dots, max_bytes, max_count)
        self._max_sample_bytes = min(MAX_SAMPLE_BYTES[own_pattern.format], max_file_bytes - trailer)
        self._max_regular_sample_bytes = min(max_bytes, self._max_sample_bytes)
        self._notes = Notes(observer or options.observer or default_observer())
        self._skipped: list[Skipped] = []
        self._oversized: list[str] = []
        self._output = WriterOutput(self._dataset_pattern, options, self._columns, self._tag)
        try:
            self._start()
        except BaseException:
            self.abandon()
            raise

    def __repr__(self) -> str:
        return f"<ShardWriter {self._dataset_pattern.text!r}: {units.pluralize(len(self.shards), 'shard')} written>"

    def __reduce__(self) -> str:
        remedy = f"Create a writer in that process, with {option_text('part')}."
        raise InvalidRequest("ShardWriter", "a writer cannot be sent to another process", remedy=remedy)

    @property
    def samples(self) -> int:
        """Number of written samples, including those that `resume` kept."""
        return self._output.totals.samples + (0 if self._shard is None else len(self._shard))

    @property
    def skipped(self) -> int:
        """Number of skipped samples."""
        if self._finished_dataset is not None:
            return self._finished_dataset.skipped
        in_shard = [] if self._shard is None else self._shard.skipped
        return len(self._output.totals.skipped) + len(in_shard) + len(self._skipped)

    @property
    def last_key(self) -> str | None:
        """Key of the last written sample, or None. After a resume, write the samples that follow this key."""
        return self._last_key

    @property
    def shards(self) -> list[str]:
        """Names of the complete shards. With `overwrite`, they are published only at the end."""
        return [entry.name for entry in self._output.totals.shards]

    @property
    def dataset_file(self) -> str:
        """Path of the dataset file. The file exists once the writer is closed."""
        return str(without_markers(self._output.destination.dataset_file))

    @property
    def notes(self) -> list[str]:
        """Notes for the user, complete once the writer is closed."""
        return [*self._notes.texts]

    def _start(self) -> None:
        output, last = self._output, None
        self._finished_dataset = self._find_merged_part() or (
            output.find_finished_dataset() if self._options.resume else None
        )
        if self._finished_dataset is not None:
            output.totals.shards += self._finished_dataset.shards
        elif self._options.resume:
            last = output.reuse_finished_shards(self._encoder, self._notes)
        if self._finished_dataset is None and last is None:
            output.start_journal()
        self._last_shard_bytes = None if last is None else last.size - TRAILER_SIZE[self._pattern.format]
        if output.totals.shards:
            self._last_key = output.totals.shards[-1].last_key
        if self._finished_dataset is None:
            output.start_part()

    def _find_merged_part(self) -> DatasetFile | None:
        if not self._tag:
            return None
        dataset = listed_files.read_existing_dataset(self._output.folder, self._dataset_pattern.dataset_file)
        if dataset is None:
            return None
        shards = tuple(shard for shard in dataset.shards if self._pattern.owns(names.to_local_name(shard.name)))
        if not shards:
            return None
        if not self._options.resume:
            where = self._output.folder.full_path(self._dataset_pattern.dataset_file)
            remedy = "Use another pattern for the writers, or delete that dataset first."
            raise OutputExists(where, f"{self._tag} was merged into this dataset", remedy=remedy)
        return replace(dataset, shards=shards, skipped=0)

    def _refuse(self, sample: Mapping[str, object], refused: SampleRefused) -> None:
        if self._options.on_error == "raise":
            raise refused.error from None
        key = sample.get(SAMPLE_KEY, "") if hasattr(sample, "get") else ""
        message = f"{refused.error.where}: {refused.error.found}"
        self._skipped.append(Skipped(printable(str(key)), "", refused.code, message))

    def _accepts(self, sample: EncodedSample) -> bool:
        if self._finished_dataset is not None:
            raise _finished_error(self._output.destination.dataset_file)
        return sample.size <= self._max_regular_sample_bytes or self._handle_oversize(sample)

    def _handle_oversize(self, sample: EncodedSample) -> bool:
        total, key = sample.size + TRAILER_SIZE[self._pattern.format], names.to_text(sample.key)
        oversize, is_impossible = self._options.oversize, sample.size > self._max_sample_bytes
        if oversize == "skip":
            is_tfrecord = self._pattern.format == "tfrecord"
            limit = "the 2 GiB limit of a TFRecord" if is_tfrecord else "the limit of the store"
            over = limit if is_impossible else cli_option("max_size")
            self._skipped.append(Skipped(key, "", "oversize", f"{total:,} bytes, over {over}"))
            return False
        description = f"{printable(key)} ({units.format_size(total)})"
        if oversize == "error" or is_impossible:
            bound = units.format_size(self._max_bytes + TRAILER_SIZE[self._pattern.format])
            container = "a TFRecord" if is_impossible and self._pattern.format == "tfrecord" else f"a shard of {bound}"
            alone_option = option_text("oversize", "alone")
            remedy = f"Raise {option_text('max_size')}, or use {alone_option} (a shard of its own) or skip."
            error = InvalidRequest(option_text("max_size"), f"larger than {container}: {description}", remedy=remedy)
            raise SampleRefused(error)
        self._oversized.append(description)
        return True

    def _next_shard(self, sample: EncodedSample) -> ShardBuilder:
        number = len(self._output.totals.shards)
        if self._pattern.count is not None and number >= self._pattern.count:
            remedy = "Use an open range such as out-{000000..}.tar, a wider range, or larger shards."
            found = f"the pattern has only {units.pluralize(self._pattern.count, 'name')}, but more shards are needed"
            raise SampleRefused(InvalidRequest(self._pattern.text, found, remedy=remedy))
        if self._last_shard_bytes is not None:
            samples, last_bytes = self._output.totals.shards[-1].samples, self._last_shard_bytes
            # only the last shard of a complete run can have room for another sample
            if last_bytes + sample.size <= self._max_bytes and samples < self._max_count:
                raise _finished_error(self._output.destination.dataset_file)
            self._last_shard_bytes = None
        return ShardBuilder(self._output.folder, self._pattern.shard(number), self._pattern.format)

    def _add(self, sample: EncodedSample, row: Mapping[str, object]) -> None:
        super()._add(sample, row)
        if self._shard is not None and self._skipped:
            self._shard.skipped += self._skipped
            self._skipped = []

    def _publish(self, shard: ShardBuilder) -> None:
        # `shard.skipped` lacks the samples that were skipped after the last sample of the shard, because a resumed
        # program passes these samples to `write` again.
        self._output.add(shard, self._encoder, shard.skipped)
        self._shard = None

    @reporting_memory_errors("the dataset file")
    def _finish(self) -> None:
        output = self._output
        if self._finished_dataset is not None:
            return
        if self._shard is not None:
            self._publish(self._shard)
        output.totals.skipped += self._skipped
        self._skipped = []
        if not output.totals.shards:
            self._finish_empty()
            return
        options = self._options.recorded()
        if self._pattern.format == "tar" and self._encoder.has_dotted_key:
            options["dots"] = "last"
        self._add_notes()
        part = {"part": self._tag.removeprefix("part")} if self._tag else {}
        output.finish(self._encoder, {"options": options, **part})

    def _release(self) -> None:
        self._output.close()

    def _finish_empty(self) -> None:
        output, where = self._output, self._pattern.text
        if skipped := len(output.totals.skipped):
            found = f"none of {skipped:,} samples could be written"
            raise SampleFailed(where, found, remedy=f"Use {option_text('on_error', 'raise')} to see why.")
        if not self._tag:
            raise InvalidRequest(where, "no samples", expected="at least one sample")
        output.finish_empty_part()

    def _add_notes(self) -> None:
        output, shards = self._output, len(self._output.totals.shards)
        destinations = [(output.destination, shards)]
        if self._oversized:
            bound = units.format_size(self._max_bytes + TRAILER_SIZE[self._pattern.format])
            found = f"{len(self._oversized):,} larger than a shard of {bound}: {', '.join(self._oversized[:5])}"
            self._notes.add(f"samples {found}; each gets a shard of its own")
        for name, count in output.rounded_by_field.items():
            self._notes.add(rounded_note(name, count))
        readers, problems = readers_for_notes(self._options.target), output.reader_problems.problems()
        relevant = [problem for problem in problems if not {*readers}.isdisjoint(READERS_BY_PROBLEM[problem.code])]
        self._notes.add(*map(str, relevant))
        sizes = [sum(entry.size for entry in output.totals.shards)]
        self._notes.add(*advice.loader_notes(destinations, sizes), *advice.name_notes(destinations, readers))
        if "huggingface" in readers:
            self._notes.add(*advice.folder_notes(destinations, {}))


def _finished_error(dataset_file: str) -> SampleRefused:
    found = "the earlier run is complete, but this run writes more samples"
    append, overwrite = call_text("create", append=True), flag_text("overwrite")
    remedy = f"Append them with {append}, or replace the dataset with {overwrite}."
    return SampleRefused(InvalidRequest(dataset_file, found, remedy=remedy))

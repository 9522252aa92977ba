"""`ShardWriter`: write the samples of a program as a dataset, one by one, with the guarantees of `create`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool import names, units
from shardtool.entries.record_sizes import MAX_SAMPLE_BYTES, TRAILER_SIZE
from shardtool.errors import (
    InvalidRequest,
    OutputExists,
    SampleFailed,
    printable,
    reporting_memory_errors,
)
from shardtool.interop.readers import READERS_BY_PROBLEM
from shardtool.messages import call_text, cli_option, flag_text, option_text
from shardtool.pattern import (
    check_writable,
    parse_pattern,
)
from shardtool.plan.plan import DEFAULT_MAX_SIZE, rounded_note
from shardtool.plan.shard_bounds import NO_LIMIT
from shardtool.publish import listed_files
from shardtool.request.observer import Notes, Observer
from shardtool.request.output_options import noted_readers
from shardtool.request.verb_call import check_option_names
from shardtool.skipped import Skipped
from shardtool.storage.folders import open_folder
from shardtool.verbs.create import advice
from shardtool.writer.options import WriterKeywords, WriterOptions
from shardtool.writer.output import WriterOutput
from shardtool.writer.parts import EMPTY_SUFFIX, make_part_pattern, make_part_tag
from shardtool.writer.sample_encoder import SAMPLE_KEY, EncodedSample, SampleRefused
from shardtool.writer.sample_writer import SampleWriter
from shardtool.writer.shard_builder import ShardBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.verbs.create.run import OutputNames


class ShardWriter(SampleWriter):
    """Writes samples into shards, with sidecars and a dataset file, as `create` does for the same samples.

    To be used in a `with` block. Leaving it with an exception publishes no dataset file: the shards that were full
    stay, with their sidecars, for another writer with `resume=True`, and nothing else. A writer is for one thread.

    Args:
        pattern: A shard pattern such as `out-{000000..}.tar`; its ending picks tar or TFRecord.
        observer: Gets the notes.
        options: See `WriterOptions`.

    Raises:
        InvalidRequest: The request makes no sense; nothing was written.
        OutputExists: The output is there already, or another run is writing it; nothing was touched.
        OutputFailed: The output cannot be written.

    Example:
        with ShardWriter("out-{000000..}.tar", max_size="1GB") as writer:
            writer.write({"__key__": "a/1", "jpg": image_bytes, "cls": 3}, metadata={"split": "train"})
    """

    def __init__(
        self, pattern: OutputNames, *, observer: Observer | None = None, **options: Unpack[WriterKeywords]
    ) -> None:
        check_option_names("ShardWriter", options, WriterOptions)
        self._options = given = WriterOptions(**options)
        names = parse_pattern(pattern)
        check_writable(names)
        self._whole, self._tag = names, "" if given.part is None else make_part_tag(given.part, given.parts)
        if given.part is not None:
            names = make_part_pattern(names, self._tag)
        elif given.parts is not None:
            raise InvalidRequest(
                option_text("parts"), "no part", expected=f"the number of this one: {option_text('part')}"
            )
        self._pattern = names
        bounded = given.max_size is not None or given.max_count is not None or names.count == 1
        default = None if bounded else DEFAULT_MAX_SIZE
        max_size = default if given.max_size is None else units.parse_size(given.max_size)
        largest, trailer = open_folder(names.folder).largest or NO_LIMIT, TRAILER_SIZE[names.format]
        if max_size is not None and max_size > largest:
            expected = f"at most {units.format_size(largest)}, as one request of a store takes"
            raise InvalidRequest(option_text("max_size"), units.format_size(max_size), expected=expected)
        room = min(NO_LIMIT if max_size is None else max_size, largest) - trailer
        super().__init__(names.format, given.dots, room, NO_LIMIT if given.max_count is None else given.max_count)
        self._max_sample_bytes = min(MAX_SAMPLE_BYTES[names.format], largest - trailer)
        self._limit = min(room, self._max_sample_bytes)
        self._notes = Notes(observer or Observer())
        self._skipped: list[Skipped] = []  # since the last sample of the last shard
        self._alone: list[str] = []
        self._output = WriterOutput(names, given, self._columns)
        try:
            self._start()
        except BaseException:
            self.abandon()
            raise

    def __reduce__(self) -> str:
        remedy = f"Make one there, with {option_text('part')}."
        raise InvalidRequest("ShardWriter", "it cannot be sent to another process", remedy=remedy)

    @property
    def samples(self) -> int:
        """How many samples are written: by this writer, and by those that it resumes."""
        return self._output.totals.samples + (0 if self._shard is None else len(self._shard))

    @property
    def skipped(self) -> int:
        """How many samples were left out; `out.skipped` lists them."""
        return len(self._output.totals.skipped) + len(self._skipped)

    @property
    def last_key(self) -> str | None:
        """The key of the sample that was written last: after it, a writer that resumes goes on. None: there is none."""
        return self._last_key

    @property
    def shards(self) -> list[str]:
        """The names of the shards that are published, or wait for the end of `overwrite`."""
        return [entry.name for entry in self._output.totals.shards]

    @property
    def dataset_file(self) -> str:
        """The path of the dataset file, which is there once the writer has been closed."""
        return self._output.destination.dataset_file

    @property
    def notes(self) -> list[str]:
        """What the user should know; most of it is known once the writer has been closed."""
        return [*self._notes.said]

    def _start(self) -> None:
        """Find out what is there to resume, and start the journal."""
        output, last = self._output, None
        self._done = self._merged() or (output.find_finished_dataset() if self._options.resume else None)
        if self._done is not None:
            output.totals.shards += self._done.shards
        elif self._options.resume:
            last = output.take_back(self._encoder, self._notes)
        if self._done is None and last is None:
            output.start_journal()
        self._full = None if last is None else last.size - TRAILER_SIZE[self._pattern.format]
        if output.totals.shards:
            self._last_key = output.totals.shards[-1].last_key
        if self._tag:
            output.folder.remove([self._pattern.base + EMPTY_SUFFIX])

    def _merged(self) -> DatasetFile | None:
        """Return what is there of a part that was merged already: nothing is to be done for it.

        Raises:
            OutputExists: It is to be written anew, which would damage the merged dataset.
            CorruptShard: The dataset file of the merge is damaged.
        """
        found = listed_files.read_existing_dataset(self._output.folder, self._whole.dataset_file) if self._tag else None
        shards = (
            tuple(one for one in found.shards if self._pattern.owns(names.to_local_name(one.name))) if found else ()
        )
        if found is None or not shards:
            return None
        if not self._options.resume:
            where = self._output.folder.full_path(self._whole.dataset_file)
            remedy = "Give the writers another pattern, or remove that dataset first."
            raise OutputExists(where, f"{self._tag} was merged into this dataset", remedy=remedy)
        return replace(found, shards=shards, skipped=0)

    def _refuse(self, sample: Mapping[str, object], refused: SampleRefused) -> None:
        """Raise what is wrong with a sample, or list it among those that were left out."""
        if self._options.on_error == "raise":
            raise refused.error from None
        key = sample.get(SAMPLE_KEY, "") if hasattr(sample, "get") else ""
        message = f"{refused.error.where}: {refused.error.found}"
        self._skipped.append(Skipped(printable(str(key)), "", refused.code, message))

    def _accepts(self, sample: EncodedSample) -> bool:
        """Return whether a sample gets into a shard, by the rule for those that fit in none; False: it is left out."""
        if self._done is not None:
            raise _finished_error(self._output.destination.dataset_file)
        return sample.size <= self._limit or self._fits_alone(sample)

    def _fits_alone(self, sample: EncodedSample) -> bool:
        """Apply the rule for a sample that fits in no shard; return whether it gets one of its own."""
        total, key = sample.size + TRAILER_SIZE[self._pattern.format], names.to_text(sample.key)
        oversize, never = self._options.oversize, sample.size > self._max_sample_bytes
        if oversize == "skip":
            tfrecord = self._pattern.format == "tfrecord"
            most = "the 2 GiB of a TFRecord" if tfrecord else "what one request of a store takes"
            over = most if never else cli_option("max_size")
            self._skipped.append(Skipped(key, "", "oversize", f"{total:,} bytes, over {over}"))
            return False
        shown = f"{printable(key)} ({units.format_size(total)})"
        if oversize == "error" or never:
            bound = units.format_size(self._room + TRAILER_SIZE[self._pattern.format])
            what = "a TFRecord" if never and self._pattern.format == "tfrecord" else f"a shard of {bound}"
            alone = option_text("oversize", "alone")
            remedy = f"Raise {option_text('max_size')}, or choose {alone} (a shard of its own) or skip."
            error = InvalidRequest(option_text("max_size"), f"larger than {what} may be: {shown}", remedy=remedy)
            raise SampleRefused(error, "oversize")
        self._alone.append(shown)
        return True

    def _next_shard(self, sample: EncodedSample) -> ShardBuilder:
        """Start a shard.

        Raises:
            Refused: The pattern has no name for it, or the shard before has room for the sample.
        """
        number = len(self._output.totals.shards)
        if self._pattern.count is not None and number >= self._pattern.count:
            remedy = "Use an open range such as out-{000000..}.tar, a wider range, or larger shards."
            found = f"{self._pattern.count:,} names, and more samples"
            raise SampleRefused(InvalidRequest(self._pattern.text, found, remedy=remedy), "oversize")
        if self._full is not None:
            samples, full = self._output.totals.shards[-1].samples, self._full
            if full + sample.size <= self._room and samples < self._most:
                raise _finished_error(self._output.destination.dataset_file)
            self._full = None
        return ShardBuilder(self._output.folder, self._pattern.shard(number), self._pattern.format)

    def _publish(self, shard: ShardBuilder) -> None:
        self._output.add(shard, self._encoder, self._skipped)
        self._shard, self._skipped = None, []

    @reporting_memory_errors("the dataset file")
    def _finish(self) -> None:
        """Publish the last shard and the dataset file, and say what the user should know."""
        output = self._output
        if self._done is not None:
            return
        if self._shard is not None:
            self._publish(self._shard)
        output.totals.skipped += self._skipped
        self._skipped = []
        if not output.totals.shards:
            self._finish_empty()
            return
        options = self._options.recorded()
        if self._pattern.format == "tar" and self._encoder.dotted_key:
            options["dots"] = "last"
        self._add_notes()
        part = {"part": self._tag.removeprefix("part")} if self._tag else {}
        output.finish(self._encoder, {"options": options, **part})

    def _release(self) -> None:
        self._output.close()

    def _finish_empty(self) -> None:
        """End without a sample: a part says so, and anything else is a mistake."""
        output, where = self._output, self._pattern.text
        if skipped := len(output.totals.skipped):
            found = f"none of {skipped:,} samples could be written"
            raise SampleFailed(where, found, remedy=f"Run it with {option_text('on_error', 'raise')} to see why.")
        if not self._tag:
            raise InvalidRequest(where, "no samples", expected="one at least")
        if not output.destination.existing:
            output.folder.publish(output.folder.stage_bytes(self._pattern.base + EMPTY_SUFFIX, b""))

    def _add_notes(self) -> None:
        output, shards = self._output, len(self._output.totals.shards)
        both = [(output.destination, shards)]
        if self._alone:
            bound = units.format_size(self._room + TRAILER_SIZE[self._pattern.format])
            found = f"{len(self._alone):,} larger than a shard of {bound} may be: {', '.join(self._alone[:5])}"
            self._notes.add(f"samples {found}; each gets a shard of its own")
        for name, count in output.rounded.items():
            self._notes.add(rounded_note(name, count))
        readers, problems = noted_readers(self._options.target), output.misreadings.problems()
        self._notes.add(*(str(one) for one in problems if not {*readers}.isdisjoint(READERS_BY_PROBLEM[one.code])))
        sizes = [sum(entry.size for entry in output.totals.shards)]
        self._notes.add(*advice.loader_notes(both, sizes), *advice.name_notes(both, readers))
        if "huggingface" in readers:
            self._notes.add(*advice.folder_notes(both, {}))


def _finished_error(dataset_file: str) -> SampleRefused:
    found = "the run that is resumed had ended, and there are more samples now"
    remedy = f"Append them with {call_text('create', if_exists='append')}, or replace it all: {flag_text('overwrite')}."
    return SampleRefused(InvalidRequest(dataset_file, found, remedy=remedy), "oversize")

"""`ShardWriter`: samples of a program become a dataset, one by one, with the promises of `create`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.dataset.shard_index import read_sidecar
from shardtool.entries.sizes import SAMPLE_LIMIT, TRAILER_SIZE
from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    OutputExists,
    SampleFailed,
    memory_for,
    printable,
)
from shardtool.interop.readers import READERS
from shardtool.pattern import check_written, parse_pattern, sidecar_name
from shardtool.plan.order import NO_LIMIT
from shardtool.plan.plan import DEFAULT_MAX_SIZE, rounded_note
from shardtool.publish.publisher import check_old
from shardtool.request.observer import Notes, Observer
from shardtool.skipped import Skipped
from shardtool.storage.folders import open_folder
from shardtool.storage.places import file_crc
from shardtool.values import counted, parse_size, show_size, to_text
from shardtool.verbs.create.result import folder_notes, loader_notes, name_notes
from shardtool.wording import call, flag, option, typed_option
from shardtool.writer.output import (
    EMPTY_SUFFIX,
    JournalEntry,
    Keywords,
    Output,
    merged_part,
    options_of,
    part_pattern,
    part_tag,
)
from shardtool.writer.samples import KEY, OpenShard, Sample, SampleEncoder, SampleRefused, SampleWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.shard_index import ShardFact, ShardIndex
    from shardtool.verbs.create.run import OutputNames


# What an earlier writer has left: the shards that another one goes on after.


def find_done(output: Output) -> DatasetFile | None:
    """Return the dataset that is there whole; None: there is none.

    Raises:
        CorruptShard: It is damaged.
        InvalidRequest: A writer that was to replace it was killed.
    """
    folder, pattern, existing = output.folder, output.pattern, output.destination.existing
    if pattern.dataset_file not in existing:
        return None
    found = output.journal.read()
    if found is not None:
        _check_added(output, found[0])
    return check_old(folder, pattern, existing, folder.read(pattern.dataset_file))


def _check_added(output: Output, asked: Mapping[str, object]) -> None:
    """Refuse to go on after a writer that was to replace a dataset: what is there may be of both."""
    if asked.get("replaces") is True:
        problem = f"a writer that was to replace this dataset ({flag('overwrite')}) did not end"
        raise InvalidRequest(output.destination.dataset_file, problem, remedy=f"Run it again with {flag('overwrite')}.")


def take_back(output: Output, encoder: SampleEncoder, notes: Notes) -> JournalEntry | None:
    """Add the shards that an earlier writer has finished to an output; return what is known of the last one.

    They are those that its journal lists, up to the first that is not as it says, to the byte: a note names it.

    Raises:
        InvalidRequest: It was asked for something else.
        OutputExists: There are shards, and nothing says whose they are.
    """
    noted = _noted(output)
    if noted is None:
        return None
    kept: list[JournalEntry] = []
    for number, one in enumerate(noted):
        name = output.pattern.shard(number)
        sidecar = _sound(output, name, one)
        if sidecar is None or not output.columns.restore(one.columns):
            lost = f"{one.shard} is not what its writer has made: it is written again"
            notes.add(lost if number == len(noted) - 1 else f"{lost}, with all after it")
            break
        data = output.folder.read(sidecar_name(name))
        encoder.take_keys(sidecar.all_keys())
        output.take(sidecar.fact, data, sidecar.tally(), int(one.digest, 16))
        output.totals.skipped += [Skipped(key, "", code, message) for key, code, message in one.skipped]  # type: ignore[arg-type]
        output.rounded.update(one.rounded)
        if output.pattern.format == "tar":
            output.misreadings.add_shard(sidecar)
        kept.append(one)
    if kept:
        encoder.restore(kept[-1].kinds, inline=kept[-1].inline)
    output.journal.start(kept)
    return kept[-1] if kept else None


def _noted(output: Output) -> list[JournalEntry] | None:
    """Return the shards that the journal lists; None: there is no journal, and no shard.

    Raises:
        InvalidRequest: Its writer was asked for something else.
        OutputExists: There are shards, and nothing says whose they are.
    """
    journal = output.journal.read()
    if journal is None:
        if shards := [name for name in output.destination.existing if name.endswith(f".{output.pattern.format}")]:
            found = f"{counted(len(shards), 'shard')}, and no journal of the writer that made them"
            remedy = f"Choose another name, or replace what is there: {flag('overwrite')}."
            raise OutputExists(output.pattern.text, found, expected=output.journal.name, remedy=remedy)
        return None
    asked, noted = journal
    _check_added(output, asked)
    if asked != output.journal.asked:
        named = [f"{name}={value!r}" for name, value in asked.items() if name not in ("version", "replaces")]
        problem = f"a writer that was asked for something else: {', '.join(named)}"
        remedy = f"Give it the same options, or replace what is there with {flag('overwrite')}."
        raise InvalidRequest(output.pattern.text, problem, remedy=remedy)
    return noted


def _sound(output: Output, name: str, noted: JournalEntry) -> ShardIndex | None:
    """Return the sidecar of a shard that is there as the journal says; None where it is not."""
    try:
        same = noted.version and output.folder.version(name) == noted.version
        size, crc = (noted.size, noted.crc) if same else file_crc(output.folder.full_path(name))
        found = read_sidecar(output.folder.read(sidecar_name(name)), name, size)
    except (OSError, CorruptShard):
        return None
    if output.pattern.format == "tar" and found.fingerprint() not in (None, int(noted.digest, 16)):
        return None
    fact: ShardFact = found.fact
    right = (noted.shard, noted.size, noted.crc)
    return found if (fact.name, size, crc) == right and (fact.name, fact.size, fact.crc) == right else None


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

    def __init__(self, pattern: OutputNames, *, observer: Observer | None = None, **options: Unpack[Keywords]) -> None:
        self._options = given = options_of(options)
        names = parse_pattern(pattern)
        check_written(names)
        self._whole, self._tag = names, "" if given.part is None else part_tag(given.part, given.parts)
        if given.part is not None:
            names = part_pattern(names, self._tag)
        elif given.parts is not None:
            raise InvalidRequest(option("parts"), "no part", expected=f"the number of this one: {option('part')}")
        self._pattern = names
        bounded = given.max_size is not None or given.max_count is not None or names.count == 1
        max_size = parse_size(given.max_size) if given.max_size is not None else None if bounded else DEFAULT_MAX_SIZE
        largest, trailer = open_folder(names.folder).largest or NO_LIMIT, TRAILER_SIZE[names.format]
        if max_size is not None and max_size > largest:
            expected = f"at most {show_size(largest)}, as one request of a store takes"
            raise InvalidRequest(option("max_size"), show_size(max_size), expected=expected)
        room = min(NO_LIMIT if max_size is None else max_size, largest) - trailer
        super().__init__(names.format, given.dots, room, NO_LIMIT if given.max_count is None else given.max_count)
        self._never = min(SAMPLE_LIMIT[names.format], largest - trailer)
        self._limit = min(room, self._never)
        self._notes = Notes(observer or Observer())
        self._skipped: list[Skipped] = []  # since the last sample of the last shard
        self._alone: list[str] = []
        self._output = Output(names, given, self._columns)
        try:
            self._start()
        except BaseException:
            self.abandon()
            raise

    def __reduce__(self) -> str:
        raise InvalidRequest(
            "ShardWriter", "it cannot be sent to another process", remedy=f"Make one there, with {option('part')}."
        )

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
        self._done = self._merged() or (find_done(output) if self._options.resume else None)
        if self._done is not None:
            output.totals.shards += self._done.shards
        elif self._options.resume:
            last = take_back(output, self._encoder, self._notes)
        if self._done is None and last is None:
            output.journal.start()
        self._full = None if last is None else last.size - TRAILER_SIZE[self._pattern.format]
        if output.totals.shards:
            self._last_key = output.totals.shards[-1].last_key
        if self._tag:
            output.folder.remove([self._pattern.base + EMPTY_SUFFIX])

    def _merged(self) -> DatasetFile | None:
        """Return what is there of a part that was merged already: nothing is to be done for it.

        Raises:
            OutputExists: It is to be written anew, which would damage the merged dataset.
        """
        found = merged_part(self._output.folder, self._whole, self._pattern) if self._tag else None
        if found is not None and not self._options.resume:
            where = self._output.folder.full_path(self._whole.dataset_file)
            remedy = "Give the writers another pattern, or remove that dataset first."
            raise OutputExists(where, f"{self._tag} was merged into this dataset", remedy=remedy)
        return found

    def _refuse(self, sample: Mapping[str, object], refused: SampleRefused) -> None:
        """Raise what is wrong with a sample, or list it among those that were left out."""
        if self._options.on_error == "raise":
            raise refused.error from None
        key = sample.get(KEY, "") if hasattr(sample, "get") else ""
        message = f"{refused.error.where}: {refused.error.found}"
        self._skipped.append(Skipped(printable(str(key)), "", refused.code, message))

    def _takes(self, sample: Sample) -> bool:
        """Return whether a sample gets into a shard, by the rule for those that fit in none; False: it is left out."""
        if self._done is not None:
            raise _ended(self._output.destination.dataset_file)
        return sample.size <= self._limit or self._fits_alone(sample)

    def _fits_alone(self, sample: Sample) -> bool:
        """Apply the rule for a sample that fits in no shard; return whether it gets one of its own."""
        total, key = sample.size + TRAILER_SIZE[self._pattern.format], to_text(sample.key)
        oversize, never = self._options.oversize, sample.size > self._never
        if oversize == "skip":
            tfrecord = self._pattern.format == "tfrecord"
            most = "the 2 GiB of a TFRecord" if tfrecord else "what one request of a store takes"
            over = most if never else typed_option("max_size")
            self._skipped.append(Skipped(key, "", "oversize", f"{total:,} bytes, over {over}"))
            return False
        shown = f"{printable(key)} ({show_size(total)})"
        if oversize == "error" or never:
            bound = show_size(self._room + TRAILER_SIZE[self._pattern.format])
            what = "a TFRecord" if never and self._pattern.format == "tfrecord" else f"a shard of {bound}"
            alone = option("oversize", "alone")
            remedy = f"Raise {option('max_size')}, or choose {alone} (a shard of its own) or skip."
            error = InvalidRequest(option("max_size"), f"larger than {what} may be: {shown}", remedy=remedy)
            raise SampleRefused(error, "oversize")
        self._alone.append(shown)
        return True

    def _next_shard(self, sample: Sample) -> OpenShard:
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
                raise _ended(self._output.destination.dataset_file)
            self._full = None
        return OpenShard(self._output.folder, self._pattern.shard(number), self._pattern.format)

    def _publish(self, shard: OpenShard) -> None:
        self._output.add(shard, self._encoder, self._skipped)
        self._shard, self._skipped = None, []

    @memory_for("the dataset file")
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
            self._end_empty()
            return
        options = self._options.recorded()
        if self._pattern.format == "tar" and self._encoder.dotted_key:
            options["dots"] = "last"
        made = {"options": options, **({"part": self._tag.removeprefix("part")} if self._tag else {})}
        self._say()
        output.finish(self._encoder, made)

    def _release(self) -> None:
        self._output.close()

    def _end_empty(self) -> None:
        """End without a sample: a part says so, and anything else is a mistake."""
        output, where = self._output, self._pattern.text
        if skipped := len(output.totals.skipped):
            found = f"none of {skipped:,} samples could be written"
            raise SampleFailed(where, found, remedy=f"Run it with {option('on_error', 'raise')} to see why.")
        if not self._tag:
            raise InvalidRequest(where, "no samples", expected="one at least")
        if not output.destination.existing:
            output.folder.publish(output.folder.stage_whole(self._pattern.base + EMPTY_SUFFIX, b""))

    def _say(self) -> None:
        output, shards = self._output, len(self._output.totals.shards)
        both = [(output.destination, shards)]
        if self._alone:
            bound = show_size(self._room + TRAILER_SIZE[self._pattern.format])
            found = f"{len(self._alone):,} larger than a shard of {bound} may be: {', '.join(self._alone[:5])}"
            self._notes.add(f"samples {found}; each gets a shard of its own")
        for name, count in output.rounded.items():
            self._notes.add(rounded_note(name, count))
        readers, problems = {*self._options.readers}, output.misreadings.problems()
        self._notes.add(*(str(one) for one in problems if not readers.isdisjoint(READERS[one.code])))
        sizes = [sum(entry.size for entry in output.totals.shards)]
        self._notes.add(*loader_notes(both, sizes), *name_notes(both, self._options.readers))
        if "huggingface" in self._options.readers:
            self._notes.add(*folder_notes(both, {}))


def _ended(dataset_file: str) -> SampleRefused:
    found = "the run that is resumed had ended, and there are more samples now"
    remedy = f"Append them with {call('create', if_exists='append')}, or replace it all: {flag('overwrite')}."
    return SampleRefused(InvalidRequest(dataset_file, found, remedy=remedy), "oversize")

"""What earlier runs have left, and what goes on with it: shards that a resume keeps, datasets that an append adds to.

All of it is found out before anything is touched. An earlier run is known by its dataset file where it was finished,
otherwise by the sidecars of its finished shards; no shard is read. Sidecars are read one at a time, and of the keys of
either run only hashes are held.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import reduce
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.dataset import shard_index
from shardtool.dataset.dataset_file import agreed_types, features_of, numbers_in, sound_dataset
from shardtool.dataset.find import fact_beside, splits_in
from shardtool.entries.arrow import ipc_stream, without_numbers
from shardtool.entries.classes import joined_classes
from shardtool.entries.entries import Names
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, ShardError, listing, printable
from shardtool.fingerprint import crc32c, show_fingerprint, sum_fingerprints
from shardtool.pattern import sidecar_name
from shardtool.plan.order import random_at
from shardtool.plan.plan import Plan, fingerprint, shard_samples
from shardtool.publish.publisher import Destination, EndedAppend
from shardtool.publish.records import read_listed
from shardtool.request.results import Changes
from shardtool.request.run_record import RunRecord, differing_options
from shardtool.skipped import failures
from shardtool.storage.places import identity
from shardtool.table.columns import among, hashes, places_among
from shardtool.values import (
    SPAN,
    Kind,
    ShardSamples,
    already_exist,
    counted,
    local_name,
    output_text,
    to_bytes,
    to_text,
)
from shardtool.wording import either, option
from shardtool.write.packer import Keep, Todo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile, Feature, ShardEntry
    from shardtool.entries.entries import Entries
    from shardtool.request.options import CreateOptions, ReshardOptions
    from shardtool.skipped import Skipped
    from shardtool.storage.folders import OutputFolder
    from shardtool.verbs.create.run import Output, Run


# Whether a shard that an earlier run has left is kept, compared with its source, or written again.
#
# A shard's modification time is a while before its run listed the source, and its nanoseconds name the source's root.
# So nothing below this root that leads to the shard's files has changed since; and the time is ours, not that of a copy
# of the shard, which would say nothing of when its source was read. Where sizes are to be trusted, times are not
# looked at. Of a source in a store the nanoseconds name the versions of the shard's objects, too.


_CLOCK_SLACK_S = 60  # by how much the clocks of a source's and an output's file systems may differ
_SECOND_NS = 10**9


class ShardPlan(NamedTuple):
    """A shard that is to be there.

    Attributes:
        run: The run.
        plan: The plan that it is in.
        shard: Its number there.
        name: Its name.
        samples: Its samples.
    """

    run: Run
    plan: Plan
    shard: int
    name: str
    samples: ShardSamples

    def fingerprint(self) -> str:
        """Return its plan fingerprint: what goes into it, and what is done to that."""
        work, plan = self.run.identity, self.plan
        if work:
            work += f" {plan.limits.room} {plan.limits.max_count} {self.run.options.oversize}"
            work += " last" if self.run.dots == "last" else ""  # other keys of the function's may be in the way
            if self.run.shuffle is not None:  # of shards: the places of payloads say nothing of what they are
                work += " " + blake2b(self.samples.spans.expected, digest_size=16).hexdigest()
            if (metadata := plan.metadata(self.shard)) is not None:
                work += " " + blake2b(ipc_stream(metadata), digest_size=16).hexdigest()
        return fingerprint(plan.format, self.samples, work)


def mtime_of(run: Run) -> int:
    """Return the modification time of the shards of a run, in nanoseconds."""
    return (int(run.begun) - _CLOCK_SLACK_S) * _SECOND_NS + _stamp(run.entries)


def mtime_of_shard(planned: ShardPlan, mtime_ns: int) -> int:
    """Return that of one of them; of objects, its nanoseconds name their versions too: a store's clock proves little.

    Args:
        planned: The shard.
        mtime_ns: That of all shards of the run.
    """
    if not planned.plan.entries.is_remote:
        return mtime_ns
    seconds, stamp = divmod(mtime_ns, _SECOND_NS)
    return seconds * _SECOND_NS + _nine_digits(planned.samples.mtimes, stamp)


def is_newer(planned: ShardPlan, mtime_ns: int) -> bool:
    """Tell whether a shard's modification time proves that its source has not changed since."""
    of_run = mtime_ns // _SECOND_NS * _SECOND_NS + _stamp(planned.plan.entries)
    return planned.plan.changed_ns(planned.shard) < mtime_ns == mtime_of_shard(planned, of_run)


def decide(planned: ShardPlan, output: Destination) -> tuple[Todo, shard_index.ShardIndex | None]:
    """Return what becomes of a shard, as far as what is there and its sidecar say.

    Returns:
        What a worker is to do, and the index of a shard of changed samples that may be kept; None otherwise.
    """
    there, run, samples = output.existing.get(planned.name), planned.run, planned.samples
    if not output.resumes or there is None:
        return "write", None
    transform, unread = run.transform, run.options.trust == "size"
    if transform is None and there.size != planned.plan.sizes[planned.shard]:
        # Another plan's, or one that left samples out, and would again.
        lost = run.options.on_error == "skip" and there.size < planned.plan.sizes[planned.shard]
        return "compare" if lost else "write", None
    index = _index_of(planned, output) if unread or is_newer(planned, there.mtime_ns) else None
    crc = None if index is None else index.fact.crc
    if index is None or crc is None:
        return "compare" if transform is None else "write", None
    if transform is None:
        crcs = b"" if index.crcs is None else index.crcs.tobytes()
        told = len(crcs) == 2 * len(samples.content.codes) and _tells_content(samples, crcs, unread=unread)
        # Only reading finds numbers that are alone in lists: see `digest`.
        return Keep(crc, crcs, there.size, unread) if told and not samples.content.lists else "compare", None
    again = transform.fetch is not None and transform.fetch.retry_failed
    if again and index.fact.made and failures(index.fact.made.left_out):
        return "write", None
    return Keep(crc, b"", there.size, unread), index


def _index_of(planned: ShardPlan, output: Destination) -> shard_index.ShardIndex | None:
    """Return what the sidecar of a shard says; None: it is of another plan, or damaged.

    Of changed samples it must be as it was written, and nothing may have been left out but what it lists.
    """
    name, size = sidecar_name(planned.name), output.existing[planned.name].size
    changed = planned.run.transform is not None
    try:
        data = output.folder.read(name)
        index = shard_index.read_sidecar(data, name, size, metadata=changed)
    except (OSError, CorruptShard):
        return None
    fact = index.fact
    if (fact.plan, fact.name, fact.size) != (planned.fingerprint(), output_text(planned.name), size):
        return None
    if not changed:
        return index
    with suppress(ShardError):
        if fact.made is not None and len(fact.made.left_out) == fact.made.skipped:
            again = shard_index.encode_table(index.plain_table(), fact, index.version)
            return index if again == data else None  # else no bit flipped in its facts shows
    return None


def new_sizes(run: Run, output: Output) -> list[int]:
    """Return the sizes of the shards that are yet to be written, as planned."""
    existing = output.destination.existing if output.destination.resumes else {}
    loose = run.options.on_error == "skip" or run.transform is not None
    found = []
    for shard in output.own_shards:
        size, there = int(output.plan.sizes[shard]), existing.get(output.shard_name(shard))
        if there is None or (there.size != size and not loose):
            found.append(size)
    return found


def _tells_content(samples: ShardSamples, field_crcs: bytes, *, unread: bool) -> bool:
    """Tell whether payloads are those that are wanted, as far as their checksums do: their places say nothing of that.

    Args:
        samples: What is planned.
        field_crcs: uint32 per field, of the shard that is there.
        unread: Whether payloads without a checksum are taken for right.
    """
    spans = np.frombuffer(samples.kinds, np.uint8) == SPAN
    if not spans.any():
        return True
    if not samples.spans.expected:
        return unread
    wanted = np.frombuffer(samples.spans.expected, np.int64)[spans]
    there = np.frombuffer(field_crcs, np.uint32)[spans]
    return bool(np.all((wanted == there) | (unread & (wanted < 0))))


def _stamp(entries: Entries) -> int:
    """Return nine digits for what the source's path leads to now, such as could be a time's nanoseconds."""
    return _nine_digits((entries.identity or identity(entries.root)).encode())


def _nine_digits(data: bytes, before: int = 0) -> int:
    return crc32c(data, before) % (_SECOND_NS - 1) + 1


_LOOKED_AT = 8  # shards of an earlier run that show whether it had the same plan


def shards_before(output: Destination) -> int | None:
    """Return how many shards a run by hash that is resumed has made, or was to make; None where that is not known."""
    if not output.resumes or output.appends:
        return None
    if (file := _dataset_file(output)) is not None:
        by_hash = file.made.options.get("place") == "hash"
        return (file.appends[0] if file.appends else len(file.shards)) if by_hash else None
    fact = fact_beside(output.folder.full_path(output.pattern.shard(0)))
    return None if fact is None else fact.shards


def find_changes(run: Run) -> Changes | None:
    """Return which samples a run would add and remove; None where no earlier one has left anything.

    What a damaged or missing sidecar said is not known; then the number of samples gives a lower bound.
    """
    before = [(output.destination, *earlier) for output in run.outputs for earlier in _earlier(output.destination)]
    if not before:
        return None
    keys_of_source, orders = hashes(run.entries.keys), [output.plan.order for output in run.outputs]
    planned = np.sort(np.concatenate([keys_of_source if one is None else keys_of_source[one] for one in orders]))
    total = removed = 0
    for there, name, listed in before:
        samples, keys = _packed(run, there, name, listed)
        total, removed = total + samples, removed + int(np.count_nonzero(~among(keys, planned)))
    removed = max(removed, total - len(planned))
    added = len(planned) - (total - removed)
    if run.transform is not None:  # what was left out of a shard that stays is not tried again
        stay = [_as_planned(run, output, shard) for output in run.outputs for shard in output.own_shards]
        added -= sum(len(fact.made.left_out) for fact in stay if fact and fact.made)
    return Changes(samples_added=added, samples_removed=removed, samples_before=total)


def with_planned(changes: Changes, run: Run) -> Changes:
    """Return the same with what would become of shards, as far as sidecars show."""
    planned = []
    for output in run.outputs:
        as_planned = sum(_as_planned(run, output, shard) is not None for shard in output.own_shards)
        planned.append((output, as_planned, [*map(output.shard_name, output.own_shards)]))
    return with_shards(changes, planned)


def with_shards(changes: Changes, shards: Iterable[tuple[Output, int, Sequence[str]]]) -> Changes:
    """Return the same with what becomes of shards: of each dataset, how many are kept, and the names of all."""
    kept = written = removed = 0
    for output, stay, names in shards:
        there = {name for name in output.destination.existing if name.endswith(output.pattern.format)}
        kept, written, removed = kept + stay, written + len(names) - stay, removed + len(there.difference(names))
    return replace(changes, shards_kept=kept, shards_written=written, shards_removed=removed)


def plan_notes(run: Run) -> Iterator[str]:
    """Yield where an earlier run without an end was of another plan, as far as its first shards show."""
    for output in run.outputs:
        existing = output.destination.existing
        left = [shard for shard in output.own_shards[:_LOOKED_AT] if output.shard_name(shard) in existing]
        ended = output.pattern.dataset_file in existing
        if left and not ended and not any(_as_planned(run, output, shard) for shard in left):
            other = "left by an earlier run of other options, or of another source"
            yield f"{output.shard_name(left[0])}: {other}; what it has finished is written again"


def refusal(run: Run, changes: Changes, most: Fraction) -> OutputExists | None:
    """Return why a run would replace a dataset by another; None where it goes on with the one that is there.

    Args:
        run: The run.
        changes: Which samples it would add and remove.
        most: The share of samples that may go without being asked for.
    """

    def refused(output: Output, found: str, expected: str) -> OutputExists:
        overwrite = either(f"choose {option('if_exists', 'resume-overwrite')}", "add --overwrite")
        remedy = f"Nothing was touched. If the source is complete and this is what you want, {overwrite}."
        remedy = f"{option('if_exists', 'resume')} {with_planned(changes, run)}. {remedy}"
        return OutputExists(output.destination.dataset_file, found, expected=expected, remedy=remedy)

    for output in run.outputs:
        file = _dataset_file(output.destination)
        if file is not None and (differing := _differing(file.made, run.record(output))):
            return refused(output, differing, "the options of the first run")
        if file is not None and (renumbered := _renumbered(file.classes, run.entries.values.classes)):
            numbers = option("classes_from", output.destination.dataset_file)
            return refused(output, renumbered, f"the numbers of the first run: {numbers}")
    first = run.outputs[0]
    if lost := splits_gone(run):
        found = f"the source has no sample of {', '.join(map(printable, lost))} any more, of which there are shards"
        return refused(first, found, "all splits of the first run")
    if changes.samples_removed <= most * changes.samples_before:
        return None
    share = changes.samples_removed / changes.samples_before
    gone = f"{changes.samples_removed:,} of {counted(changes.samples_before, 'sample')} ({share:.0%})"
    expected = f"at most {float(100 * most):.4g}% of them ({option('max_removed')})"
    return refused(first, f"{gone} would be removed, for the source has them no more", expected)


def check_same_request(run: Run) -> None:
    """Refuse an update of a dataset whose samples were chosen and named otherwise; bounds of new shards may differ.

    Raises:
        OutputExists: It is such.
    """
    for output in run.outputs:
        old, now = output.destination.old, run.record(output)
        if old is not None and (differing := _differing(old.made, now, of_shards=False)):
            expected = "the options of the first run"
            append = f"{option('if_exists', 'append')} {option('on_duplicate', 'first')}"
            remedy = f"Nothing was touched. {append} adds samples that were chosen or made in another way."
            raise OutputExists(output.destination.dataset_file, differing, expected=expected, remedy=remedy)


def splits_gone(run: Run) -> list[str]:
    """Return the splits that the first run made in this folder, and that this one has no samples for."""
    there = run.outputs[0].destination
    file = _dataset_file(there)
    if file is None:
        return []
    known = {output.split for output in run.outputs}
    made = [other.made for other in splits_in(there.folder.path, file.made).values()]
    return [one.split for one in made if one.split not in known]


def _renumbered(before: Mapping[str, list[str]], now: Mapping[str, list[str]]) -> str:
    """Return which class would get another number; empty: none, though there may be more of them."""
    for field, names in before.items():
        for number, (name, other) in enumerate(zip(names, now.get(field, []), strict=False)):
            if name != other:
                return f"class {number} of {field} would be {printable(other)!r}, and is {printable(name)!r}"
    return ""


def _dataset_file(output: Destination) -> DatasetFile | None:
    """Return what the dataset file said when the run looked; a damaged one is made again: then the sidecars say."""
    return sound_dataset(output.dataset_file) if output.pattern.dataset_file in output.existing else None


def _earlier(output: Destination) -> list[tuple[str, ShardEntry | None]]:
    """Return the shards of the dataset that is there, or those that a run without an end has finished, unlisted."""
    if (file := _dataset_file(output)) is not None:
        return [(local_name(one.name), one) for one in file.shards]
    there = output.existing
    names = (name for name in sorted(there) if name.endswith(output.pattern.format) and sidecar_name(name) in there)
    return [(name, None) for name in names]


def _packed(run: Run, output: Destination, name: str, listed: ShardEntry | None) -> tuple[int, NDArray[np.uint64]]:
    """Return how many samples of the source went into a shard, as far as that is known, and hashes of their keys.

    Where the user's function makes keys, those in the shard say nothing.
    """
    index, keys, known = sidecar_name(name), np.zeros(0, np.uint64), 0 if listed is None else listed.samples
    try:
        data = output.folder.read(index)
        if listed is not None:
            shard_index.check_listed(data, index, listed)
        if run.makes_keys:
            made = shard_index.read_facts(data, index).made
            return 0 if made is None else made.consumed, keys
        size = output.existing[name].size if listed is None else listed.size
        keys = hashes(Names.of(shard_index.read_sidecar(data, index, size, metadata=False).all_keys()))
    except (OSError, CorruptShard):
        return 0 if run.makes_keys else known, keys
    return len(keys), keys


def _as_planned(run: Run, output: Output, shard: int) -> shard_index.ShardFact | None:
    """Return the facts of a shard that is there and was planned just like this; its content may have changed since."""
    name, there = output.shard_name(shard), output.destination
    fact = there.existing.get(name)
    if fact is None or (said := fact_beside(there.folder.full_path(name))) is None:
        return None
    planned = ShardPlan(run, output.plan, shard, name, shard_samples(output.plan, shard))
    return said if said.size == fact.size and said.plan == planned.fingerprint() else None


def _differing(before: RunRecord, now: RunRecord, *, of_shards: bool = True) -> str:
    """Return the options that two runs of `create` or `reshard` do not share; empty: they share all.

    What `index` has made says nothing of the run before it.

    Args:
        before: The first run.
        now: This one.
        of_shards: Whether those count that say how large shards are, and how samples stand in them.
    """
    if before.verb not in ("create", "reshard"):
        return ""
    if before.verb != now.verb:
        return f"`{before.verb}` then, `{now.verb}` now"
    then, asked = (one.options if of_shards else one.choosing for one in (before, now))
    return "; ".join(differing_options(then, asked))


# What `--append` asks of new samples: keys of their own, and fields, columns and classes that go with the old ones.
# And the dataset file of both.


_SHOWN = 5  # keys in a message
_NO_KEY = b"\xff"  # for a NUL in a foreign key: no key of ours has it, for it is no UTF-8


def taken_keys(run: Run) -> Names:
    """Return the keys that new samples cannot have: those of the datasets that are appended to.

    Where this very append may have been killed when all but its end was done, its own samples are not counted.

    Raises:
        CorruptShard: A sidecar of a dataset is damaged.
    """
    found = []
    for output in run.outputs:
        if (old := output.destination.old) is not None:
            shards = old.shards[: _last_alike(output.destination, old, run.record(output))]
            found += [keys_of(read_listed(output.destination.folder, shard)) for shard in shards]
    return Names.parse(b"".join(found))


def begin_append(run: Run) -> None:
    """Decide, for each dataset appended to, whether all keys are new, or whether this same append already finished.

    It may have been killed before its end, or while it went on with the next split; only `--resume` may find it
    `EndedAppend`, and only if the dataset file has it as the last append, made in the same way. Keys that the user's
    function makes are checked when they are known.

    Raises:
        InvalidRequest: A key is taken, in any of the datasets, or `--dots` is not as it was.
        CorruptShard: A sidecar of a dataset is damaged.
    """
    _pass_labels(run)
    new, entries = [], run.entries
    for output in run.outputs:
        destination, found, made = output.destination, output.destination.append, run.record(output)
        if found is None:
            continue
        if found.old.format == "tar" and (before := found.old.made.dots) != made.dots:
            dots = f"keys that end at the {made.dots} dot of members' names"  # readers take one rule per dataset
            expected = f"at the {before}, as those of the dataset"
            remedy = f"`create` has {option('dots', before)}; `reshard` makes one dataset of both."
            raise InvalidRequest(option("if_exists", "append"), dots, expected=expected, remedy=remedy)
        keys = entries.keys if output.which is None else entries.keys.take(output.which)
        first = _last_alike(destination, found.old, made)
        if first is not None and (run.makes_keys or _are_those(keys, destination, found.old, first)):
            output.destination = replace(destination, append=EndedAppend(found.old, found.data, first))
        elif not run.makes_keys:
            new.append(keys)
    for output in run.outputs if new else ():
        if (old := output.destination.old) is not None:
            taken = existing_keys(output.destination.folder, old.shards)
            for keys in new:
                check_new_keys(keys, taken, output.destination.dataset_file)


def _pass_labels(run: Run) -> None:
    """Make no columns of labels that the dataset has as fields alone: a query would take some of its samples for all.

    Versions before had no such columns. Other columns, and those that are asked for, become new ones.
    """
    entries, there = run.entries, [output.destination.old for output in run.outputs if output.destination.old]
    labels = {*entries.values.numbers, *entries.values.classes}.difference(run.options.columns_from)
    before = {name for name in labels for old in there if name in old.fields and name not in old.schema}
    if before and entries.metadata is not None:
        columns = without_numbers(entries.metadata, before)
        run.listed = replace(run.listed, entries=replace(entries, metadata=columns))


def _last_alike(destination: Destination, old: DatasetFile, made: RunRecord) -> int | None:
    """Return the first shard of the last append, if that was made in the same way and may be resumed."""
    if destination.if_exists != "append-resume" or not old.appends:
        return None
    return old.appends[-1] if old.made.appended[-1] == made.as_append_to(old.made) else None


def _are_those(keys: Names, destination: Destination, old: DatasetFile, first: int) -> bool:
    """Tell whether samples are those in the shards from `first` on, and such as are listed as left out."""
    there, ours = hashes(existing_keys(destination.folder, old.shards[first:])), hashes(keys)
    if not len(there) or not among(there, np.sort(ours)).all():
        return False
    skipped = {one.key for one in destination.listed_skipped()}
    return all(printable(keys[at]) in skipped for at in np.flatnonzero(~among(ours, np.sort(there))).tolist())


def check_appended(old: DatasetFile, plan: Plan, options: CreateOptions | ReshardOptions) -> None:
    """Check that fields, columns and classes of planned samples go with those of a dataset, as far as they are known.

    Args:
        old: What is appended to.
        plan: The samples.
        options: What was asked for, by which columns may be left out.

    Raises:
        InvalidRequest: They do not.
    """
    values, metadata, used = plan.entries.values, plan.entries.metadata, _field_counts(plan)
    texts = {name for name in values.inline if values.numbers.get(name) != "int64"}.difference(values.classes)
    for name in old.classes:
        if name in used and name in texts:
            expected = "numbers of classes, as in the dataset"
            remedy = f"{option('classes', (name,))} numbers them, {option('classes_from')} as the dataset file says."
            raise InvalidRequest(f"field {name}", "texts in the new samples", expected=expected, remedy=remedy)
    joined_classes(old.classes, values.classes)
    if old.format == "tfrecord":
        kinds: dict[str, Kind] = {**values.numbers, **values.lists}
        _joined_kinds(old, {name: kinds.get(name, "bytes") for name in used})
    if metadata is None:
        return
    try:
        _joined_schema(old.schema, _types_in_parquet(metadata))
    except InvalidRequest as error:
        from shardtool.source.manifest import META

        name, asked = error.where.removeprefix("column "), [*filter(options.is_given, ("columns_from", "join"))]
        ways = [f"leave out {' and '.join(map(option, asked))}"] if asked else []
        ways = ways or [f"leave it out with {option('meta')}"] * (META in values.inline)
        found = f"{error.found}{_example(plan, name, old.schema[name])}"
        remedy = f"{', or '.join(['Give it that type', 'another name', *ways])}."
        raise InvalidRequest(error.where, found, expected=error.expected, remedy=remedy) from None


def _example(plan: Plan, name: str, kind: str) -> str:
    """Return, for a message, the first planned sample that has no value of a type in a column, and its value."""
    places = range(len(plan.entries)) if plan.order is None else np.sort(plan.order).tolist()
    column = plan.entries.metadata.column(name) if plan.entries.metadata is not None else []
    for place in places:
        try:
            column[place].cast(pa.type_for_alias(kind))
        except (ValueError, TypeError, NotImplementedError):  # a value, or the type, has no such form
            return f", such as {column[place].as_py()!r:.60} of {printable(plan.entries.key(place))!r}"
    return ""


def append_notes(old: DatasetFile, plan: Plan, *, changed: bool) -> Iterator[str]:
    """Yield what the user should know of fields and columns that only some of the samples will have.

    Args:
        old: The dataset that is appended to.
        plan: What is appended.
        changed: Whether fields are changed on the way, so that they are not known yet.
    """
    samples = sum(shard.samples for shard in old.shards)
    if not changed:
        new = _field_counts(plan)
        if added := sorted({*new} - {*old.fields}, key=to_bytes):
            yield f"fields that the {counted(samples, 'sample')} of the dataset do not have: {listing(added)}"
        whole = [name for name, count in old.fields.items() if count == samples]
        if lacking := sorted((name for name in whole if new.get(name, 0) < len(plan)), key=to_bytes):
            yield f"fields that all samples of the dataset have, and not all new ones: {listing(lacking)}"
    columns = [shard_index.SHARD.name, *([] if plan.entries.metadata is None else plan.entries.metadata.column_names)]
    if more := [name for name in columns if name not in old.schema]:
        yield (
            f"columns that the dataset's sidecars do not have: {listing(more)}; who reads all as one table "
            "must ask for them (DuckDB: union_by_name)"
        )


def class_notes(there: Iterable[DatasetFile], entries: Entries) -> Iterator[str]:
    """Yield which classes no dataset that is appended to has, and the numbers that they get."""
    before: dict[str, list[str]] = reduce(joined_classes, (file.classes for file in there), {})
    for name, names in entries.values.classes.items():
        if (known := len(before.get(name, ()))) and names[known:]:
            later = [f"{text!r} is number {number:,}" for number, text in enumerate(names[known:], known)]
            yield f"{counted(len(later), f'label of {name} that the dataset does not have')}: {listing(later)}"


def _types_in_parquet(columns: pa.Table) -> dict[str, str]:
    """Return the types that columns have in a sidecar: Parquet does not keep all of Arrow's."""
    sink = pa.BufferOutputStream()
    pq.write_table(columns.slice(0, 0).replace_schema_metadata(None), sink, store_schema=False)
    return shard_index.types_of(pq.read_schema(pa.BufferReader(sink.getvalue())))


def _field_counts(plan: Plan) -> dict[str, int]:
    """Return how many of the planned samples have each field."""
    entries = plan.entries
    codes = entries.rows.code if plan.order is None else entries.rows.code[entries.rows_of(plan.order)]
    found, counts = np.unique(codes, return_counts=True)
    return {entries.fields[code]: count for code, count in zip(found.tolist(), counts.tolist(), strict=True)}


def existing_keys(folder: OutputFolder, shards: Iterable[ShardEntry]) -> Names:
    """Return the keys of shards in the order of their samples, as the sidecars say.

    Raises:
        CorruptShard: A sidecar is not the one that the dataset file lists, or cannot be read.
    """
    return Names.parse(b"".join([keys_of(read_listed(folder, shard)) for shard in shards]))


def keys_of(index: shard_index.ShardIndex) -> bytes:
    """Return the keys of a shard, a NUL after each."""
    text = np.frombuffer(bytes(index.keys).replace(b"\0", _NO_KEY), np.uint8)
    return np.insert(text, index.key_ends[1:], 0).tobytes()


def check_new_keys(keys: Names, taken: Names, where: str) -> None:
    """Refuse keys that a dataset has already.

    By 64-bit hashes: a table of ten million keys takes gigabytes. Only keys that share a hash are compared.

    Args:
        keys: The keys of the new samples.
        taken: The keys of the dataset.
        where: What the dataset is called.

    Raises:
        InvalidRequest: There are such.
    """
    theirs, ours = hashes(taken), hashes(keys)
    alike = np.flatnonzero(among(ours, np.sort(theirs)))

    def same() -> Iterator[bytes]:
        for at in alike.tolist():
            if any(taken[other] == keys[at] for other in np.flatnonzero(theirs == ours[at]).tolist()):
                yield keys[at]

    found = [printable(key) for key in islice(same(), _SHOWN)]
    if not found:
        return
    number = len(found) if len(found) < _SHOWN else len(alike)
    is_all = number == len(keys)
    what = f"{'all ' if is_all else ''}{already_exist(number, 'key')}: {listing(found, total=number)}"
    remedy = "Was this source appended before?" if is_all else "Give these samples other keys."
    remedy = f"{remedy} {option('on_duplicate', 'first')} appends only those whose keys are new."
    raise InvalidRequest(where, what, expected="new keys", remedy=remedy)


def joined(old: DatasetFile, new: DatasetFile) -> DatasetFile:
    """Return what the dataset file says once new shards have joined those of a dataset.

    Args:
        old: What it said of the dataset.
        new: What is to be said of the new shards alone, but for `skipped` and its checksum, which are of both.

    Raises:
        InvalidRequest: What they say does not go together.
    """
    shards = (*old.shards, *new.shards)
    names = sorted({*old.fields, *new.fields}, key=to_bytes)
    fields = {name: old.fields.get(name, 0) + new.fields.get(name, 0) for name in names}
    features: Mapping[str, Feature] = {}
    if new.format == "tfrecord":
        kinds = _joined_kinds(old, {name: new.features[name].kind for name in new.fields})
        lists = {name for file in (old, new) for name, one in file.features.items() if one.is_list}
        features = features_of(fields, kinds, sum(shard.samples for shard in shards), lists)
    return replace(
        new,
        shards=shards,
        fields=fields,
        field_bytes=old.field_bytes + new.field_bytes,
        schema=_joined_schema(old.schema, new.schema),
        classes=joined_classes(old.classes, new.classes),
        features=features,
        types=agreed_types([(one.types, one.fields) for one in (old, new)]),
        made=old.made.with_append(new.made),
        appends=(*old.appends, len(old.shards)),
        fingerprint=show_fingerprint(sum_fingerprints((old.fingerprint, new.fingerprint))),
    )


def _joined_kinds(old: DatasetFile, new: Mapping[str, Kind]) -> dict[str, Kind]:
    """Return what the features of TFRecords hold. `new`: of the new samples."""
    before = numbers_in(old.features)
    kinds: dict[str, Kind] = {name: before.get(name, "bytes") for name in old.fields}
    for name in sorted(new, key=to_bytes):
        if kinds.setdefault(name, new[name]) != new[name]:
            found = f"{new[name]} in the new samples"
            remedy = "A TFRecord's feature is read as one kind: give it as that kind, or under another name."
            raise InvalidRequest(f"field {name}", found, expected=f"{kinds[name]}, as in the dataset", remedy=remedy)
    return kinds


def _joined_schema(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of both, the old ones first, and their types."""
    schema = dict(old)
    for name, before, kind in shard_index.join_types(schema, new):
        expected = f"{before}, as in the dataset"
        raise InvalidRequest(f"column {name}", f"{kind} in the new samples", expected=expected)
    return schema


# Which samples of a source that grows are new: those whose keys no dataset that is appended to has.
#
# Samples that a dataset lists as left out are not new either: they would fail again, and be listed again, in every run.


_SLACK_NS = 120 * 10**9  # a shard's time is a minute before its run began, and clocks may differ by another
_SHOWN_KEYS = 3  # keys in a note
_KEPT = "the dataset keeps what it has"


def _named(which: NDArray[np.bool_], entries: Entries) -> str:
    places = np.flatnonzero(which)
    keys = [printable(to_text(entries.keys[place])) for place in places[:_SHOWN_KEYS].tolist()]
    return f"{counted(len(places), 'sample')} ({listing(keys, _SHOWN_KEYS, total=len(places))})"


def new_samples(run: Run) -> NDArray[np.bool_]:
    """Tell of each sample of a run whether it is new, compared with all that the datasets appended to hold.

    What the user should know of the others is noted: those whose files have other names, sizes or times than those
    that were packed stay as they are.

    Raises:
        CorruptShard: A sidecar, or the list of what was left out, is damaged.
    """
    entries, destinations = run.entries, [output.destination for output in run.outputs]
    numbers = {name: number for number, name in enumerate(entries.fields)}
    free = [numbers[name] for name in entries.values.inline]  # of any size: a number has other bytes in each format
    keys, marks, written = [], [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for destination in destinations:
        for shard in destination.old.shards if destination.old else ():
            index = read_listed(destination.folder, shard)
            codes = np.array([numbers.setdefault(name, len(numbers)) for name in index.names], np.int64)[index.codes]
            keys.append(keys_of(index))
            marks.append(_marks(codes, index.lengths, index.firsts, free))
            fact = destination.existing[local_name(shard.name)]
            written.append(np.full(len(index), fact.mtime_ns + _SLACK_NS, np.int64))
    place = places_among(Names.parse(b"".join(keys)), entries.keys)
    packed, (there, listed, changed, lost) = np.flatnonzero(place >= 0), np.zeros((4, len(entries)), np.bool_)
    mine = place[packed]
    there[mine] = True
    if len(mine):
        times = entries.rows.changed_ns if entries.is_remote else entries.rows.mtime_ns
        newest = np.maximum.reduceat(times, entries.first[:-1])
        changed[mine[newest[mine] > np.concatenate(written)[packed]]] = True
        if run.transform is None:  # else the sizes and fields in shards say nothing
            now = _marks(entries.rows.code, entries.rows.size, entries.first, free)
            changed[mine[now[mine] != np.concatenate(marks)[packed]]] = True
    rows = [one for output in run.outputs for one in _stay_out(run, output)]
    left_out, failed = {one.key for one in rows}, {one.key for one in failures(rows)}
    for at in np.flatnonzero(~there).tolist() if left_out else ():
        key = printable(to_text(entries.keys[at]))
        listed[at], lost[at] = key in left_out, key in failed
    _note_others(run, (there, listed, changed, lost), gone=len(place) - len(packed))
    new: NDArray[np.bool_] = ~(there | listed)
    return new


def _stay_out(run: Run, output: Output) -> list[Skipped]:
    """Return what a dataset lists as left out, without what another condition did not take: this one may."""
    if (old := output.destination.old) is None:
        return []
    now, runs = run.record(output), (old.made, *old.made.appended)
    judged = run.updates or any((one.source, one.choosing) == (now.source, now.choosing) for one in runs)
    return [one for one in output.destination.listed_skipped() if judged or one.code != "not-chosen"]


def _note_others(run: Run, which: Sequence[NDArray[np.bool_]], *, gone: int) -> None:
    """Note what becomes of samples that are not new; an update takes for granted that what is there stays.

    Args:
        run: The run.
        which: Which samples the datasets have, which they list as left out, which changed since they were packed, and
            which of those listed could not be packed.
        gone: How many samples of the datasets the source has no more.
    """
    entries, (there, listed, changed, lost) = run.entries, which
    if run.updates:
        if gone:
            run.notes.add(f"{counted(gone, 'sample')} not in the source any more; {_KEPT}")
    elif not (there | listed).all() and (count := int(there.sum())):
        run.notes.add(f"{counted(count, 'sample')} left out: the dataset has their keys")
    if lost.any():
        once = f"once mended, {option('if_exists', 'append')} adds them alone"
        run.notes.add(f"{_named(lost, entries)} stay left out, as the dataset lists them: {once}")
    if changed.any():
        run.notes.add(f"{_named(changed, entries)} changed in files, sizes or times since they were packed; {_KEPT}")


def _marks(
    codes: NDArray[np.integer], sizes: NDArray[np.integer], first: NDArray[np.integer], free: list[int]
) -> NDArray[np.uint64]:
    """Return a number for each sample that others have where they have other fields, or files of other sizes.

    Args:
        codes: The field of each row.
        sizes: Its bytes.
        first: Where the rows of each sample start, and where those of the last end.
        free: Fields whose sizes say nothing.
    """
    rows = (codes.astype(np.uint64) << np.uint64(48)) ^ np.where(np.isin(codes, free), 0, sizes).astype(np.uint64)
    total = np.cumsum(np.concatenate((np.zeros(1, np.uint64), random_at(0, rows))))  # of random numbers, modulo 2^64
    marks: NDArray[np.uint64] = np.diff(total[first])
    return marks

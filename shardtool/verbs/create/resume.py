"""What `--resume` would change of what earlier runs have left, found out before anything is touched.

An earlier run is known by its dataset file where it was finished, otherwise by the sidecars of its finished shards.
Sidecars are read one at a time, and of the keys of either run only hashes are held.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, sound_dataset
from shardtool.dataset.find import fact_beside, splits_in
from shardtool.dataset.shard_index import check_listed, encode_table, read_facts, read_sidecar
from shardtool.entries.arrow import ipc_stream
from shardtool.entries.entries import Names
from shardtool.errors import CorruptShard, OutputExists, ShardError, printable
from shardtool.fingerprint import crc32c
from shardtool.pattern import sidecar_name
from shardtool.plan.plan import Plan, fingerprint, shard_samples
from shardtool.request.results import Changes
from shardtool.request.run_record import RunRecord, differing_options
from shardtool.skipped import failures
from shardtool.storage.places import identity
from shardtool.table.columns import among, hashes
from shardtool.values import SPAN, ShardSamples, counted, local_name, output_text
from shardtool.wording import either, option
from shardtool.write.packer import Keep, Todo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from shardtool.dataset.shard_index import ShardFact
    from shardtool.entries.entries import Entries
    from shardtool.publish.publisher import Destination
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


def decide(planned: ShardPlan, output: Destination) -> tuple[Todo, bytes]:
    """Return what becomes of a shard, as far as what is there and its sidecar say.

    Returns:
        What a worker is to do, and the sound sidecar of a shard of changed samples that may be kept; empty otherwise.
    """
    there, run, samples = output.existing.get(planned.name), planned.run, planned.samples
    if not output.resumes or there is None:
        return "write", b""
    size, transform, unread = planned.plan.sizes[planned.shard], run.transform, run.options.trust == "size"
    if transform is None and there.size != size:
        # Another plan's, or one that left samples out, and would again.
        lost = run.options.on_error == "skip" and there.size < size
        return "compare" if lost else "write", b""
    said = _said(planned, output) if unread or is_newer(planned, there.mtime_ns) else None
    if said is None:
        return "compare" if transform is None else "write", b""
    data, fact, crc, crcs = said
    if transform is None:
        if len(crcs) != 2 * len(samples.content.codes) or not _tells_content(samples, crcs, unread=unread):
            return "compare", b""
        sidecar, reads = b"", bool(samples.content.lists)
    else:
        again = transform.fetch is not None and transform.fetch.retry_failed
        if not _is_sound(data, fact, planned.name) or (again and fact.made and failures(fact.made.left_out)):
            return "write", b""
        sidecar, crcs, reads = data, b"", bool(samples.content.lists) and not unread
    # Only reading finds numbers that are alone in lists: see `digest`.
    return "compare" if reads else Keep(crc, crcs, there.size, unread), sidecar


def _said(planned: ShardPlan, output: Destination) -> tuple[bytes, ShardFact, int, bytes] | None:
    """Return the sidecar of a shard, its facts, and the CRCs of the file and of the fields; None: of another plan."""
    index, size = sidecar_name(planned.name), output.existing[planned.name].size
    try:
        data = output.folder.read(index)
        sidecar = read_sidecar(data, index, size, metadata=False)
    except (OSError, CorruptShard):
        return None
    fact, crcs = sidecar.fact, b"" if sidecar.crcs is None else sidecar.crcs.tobytes()
    wanted = planned.fingerprint(), output_text(planned.name), size
    is_it = (fact.plan, fact.name, fact.size) == wanted
    return (data, fact, fact.crc, crcs) if is_it and fact.crc is not None else None


def _is_sound(data: bytes, fact: ShardFact, name: str) -> bool:
    """Tell whether a sidecar of changed samples is as it was written, and whether nothing was left out of them."""
    if fact.made is None or len(fact.made.left_out) != fact.made.skipped:
        return False
    try:
        found = read_sidecar(data, sidecar_name(name), fact.size)
        return encode_table(found.plain_table(), fact, found.version) == data  # else no bit flipped in its facts shows
    except ShardError:
        return False


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
            return refused(output, f"made with other options: {differing}", "the options of the first run")
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
            found, expected = f"made with other options: {differing}", "the options of the first run"
            append = f"{option('if_exists', 'append')} {option('on_duplicate', 'first')}"
            remedy = f"Nothing was touched. {append} adds samples that were chosen or made in another way."
            raise OutputExists(output.destination.dataset_file, found, expected=expected, remedy=remedy)


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
            check_listed(data, index, listed)
        if run.makes_keys:
            made = read_facts(data, index).made
            return 0 if made is None else made.consumed, keys
        size = output.existing[name].size if listed is None else listed.size
        keys = hashes(Names.of(read_sidecar(data, index, size, metadata=False).all_keys()))
    except (OSError, CorruptShard):
        return 0 if run.makes_keys else known, keys
    return len(keys), keys


def _as_planned(run: Run, output: Output, shard: int) -> ShardFact | None:
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
    return ", ".join(differing_options(then, asked))

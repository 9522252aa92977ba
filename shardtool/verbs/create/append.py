"""What `--append` asks of new samples: keys of their own, and fields, columns and classes that go with the old ones.

And the dataset file of both. The old dataset is only read: its dataset file and its sidecars, no shard.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.dataset.dataset_file import DatasetFile, Feature, ShardEntry, agreed_types, features_of, numbers_in
from shardtool.dataset.shard_index import SHARD, ShardIndex, join_types, types_of
from shardtool.entries.arrow import without_numbers
from shardtool.entries.classes import joined_classes
from shardtool.entries.entries import Names
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.fingerprint import show_fingerprint, sum_fingerprints
from shardtool.plan.order import random_at
from shardtool.publish.publisher import Destination, EndedAppend
from shardtool.publish.records import read_listed
from shardtool.skipped import failures
from shardtool.table.columns import among, hashes, places_among
from shardtool.values import Kind, counted, local_name, to_bytes, to_text
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.plan.plan import Plan
    from shardtool.request.options import CreateOptions, ReshardOptions
    from shardtool.request.run_record import RunRecord
    from shardtool.skipped import Skipped
    from shardtool.storage.folders import OutputFolder
    from shardtool.verbs.create.run import Output, Run


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
    columns = [SHARD.name, *([] if plan.entries.metadata is None else plan.entries.metadata.column_names)]
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
    return types_of(pq.read_schema(pa.BufferReader(sink.getvalue())))


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


def keys_of(index: ShardIndex) -> bytes:
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
    what = f"{'all ' if is_all else ''}{counted(number, 'key')} there already: {listing(found, total=number)}"
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
    for name, before, kind in join_types(schema, new):
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

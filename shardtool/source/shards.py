"""Datasets as a source: their samples are chosen and changed, and none is decoded.

A dataset file of ours that lists the shards is found beside them, even where they are not all that it lists: it knows
classes, numbers and checksums that nothing else does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from shardtool.dataset.dataset_file import agreed_types, numbers_in
from shardtool.dataset.find import StoredDataset, check_finished, find_dataset, listed_by, of_glob
from shardtool.dataset.shard_file import SurveyTask, is_packed, survey
from shardtool.entries import arrow
from shardtool.entries.entries import Entries, FieldRows, FieldSpans, FieldValues, Names
from shardtool.errors import CorruptShard, InvalidRequest, listing, printable
from shardtool.fingerprint import sum_fingerprints
from shardtool.pattern import DATASET_SUFFIX
from shardtool.request.texts import pairs
from shardtool.select import names as order
from shardtool.select.fields import check_count, places_beside, put_beside, without_empty
from shardtool.select.names import has_dotted
from shardtool.skipped import Skipped
from shardtool.source import shard_columns
from shardtool.source.base import Listing, Source, check_skipped
from shardtool.source.selecting import chosen, in_order, sampled, with_fields
from shardtool.source.shard_columns import FilesSeen, NumberFields, SourceShard
from shardtool.storage.places import base_name, file_fact, for_each, is_url, join, names_in
from shardtool.table.columns import gather
from shardtool.values import INLINE, NAME_LIMIT, SPAN, SpanFile, counted, numbers_among, output_text, to_bytes, to_text
from shardtool.wording import call, flag, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.execute.pool import Pool
    from shardtool.request.options import ReshardOptions
    from shardtool.request.settings import Observer
    from shardtool.source.base import Texts
    from shardtool.values import Given, Number, ValueType

# The shard source: datasets become `Entries`, in the order in which they are given.
#
# A payload is a SPAN of its shard, and a number of a TFRecord an INLINE text; what a payload's checksum must be comes
# along, for the packer that reads it. Sidecars say where payloads lie, without an object for each; shards without one
# are walked by workers.


_BAD_FIELD = re.compile(r"[\x00-\x1f\x7f-\x9f]|^$")
_SHOWN = 120  # letters of a name in a message
_NOTHING = np.zeros(0, np.int64)
_Number = TypeVar("_Number", bound=np.generic)


def list_datasets(  # noqa: PLR0913 - what is asked of each dataset, by name
    givens: Sequence[Given],
    pool: Pool,
    observer: Observer,
    *,
    to_format: str,
    only: Collection[str] = (),
    without: Collection[str] = (),
    salvage: bool = False,
    as_stored: bool = False,
) -> Listing:
    """Return the samples of datasets, one after the other.

    `recorded` says where keys must end in members' names: `last` where a dataset says so, or a key has a dot in its
    name. The digest is that of all samples, as the dataset files have it.

    Args:
        givens: The datasets: dataset files, patterns, globs, folders, or lists of shards.
        pool: Walks shards that have no sidecar, and reads numbers.
        observer: Gets how many samples were found.
        to_format: What they will be written as: `tar` or `tfrecord`.
        only: The fields that will be taken; empty: all. Others are listed as they lie, and nothing in them is an error.
        without: Fields that will not be taken; nothing in them is an error either.
        salvage: Whether damaged parts of shards without an index, and damaged numbers, are left out.
        as_stored: Whether samples are only looked at: numbers are the bytes that shards have, nothing in a field is an
            error, and what numbers of classes stand for is not asked.

    Raises:
        InvalidRequest: There is no such dataset, or its samples cannot be those of one dataset.
        CorruptShard: A shard, sidecar or dataset file is damaged, or missing.
    """

    def wanted(name: str) -> bool:
        return not as_stored and (not only or name in only) and name not in without

    seen = FilesSeen()
    datasets, shards = open_datasets(givens, seen)
    notes = [note for dataset in datasets for note in _notes(dataset)]
    parts = _listed(shards, seen, pool, observer, salvage=salvage)
    for part in parts:
        _check_rows(part, wanted)
    classes, more = joined_classes(datasets, parts, wanted)
    numbers = shard_columns.find_numbers(parts, wanted, to_format, pool.map, salvage=salvage)
    columns = joined_columns(parts, datasets)
    classes_known = _known_classes(datasets)
    columns, lacking = _without_partial(columns, parts, classes_known)
    notes += [*more, *lacking]
    for part in parts:
        if part.joined:
            notes.append(f"{part.name}: {counted(part.joined, 'sample')} put together of fields that lie apart")
    skipped = tuple(one for part in parts for one in part.skipped)
    damaged = numbers.damaged(parts)
    entries = _entries(parts, numbers, seen)
    types = _types(datasets, numbers)
    entries = replace(entries, values=entries.values._replace(types=types, classes=classes), metadata=columns)
    if damaged:
        skipped += tuple(
            Skipped(entries.key(at), shard, "corrupt", "a number that has not its checksum") for at, shard in damaged
        )
        entries = entries.without([at for at, _ in damaged])
    pa.default_memory_pool().release_unused()  # what all of the sidecars took
    dots = any(shard.stored.dots == "last" for shard in shards) or has_dotted(entries.keys)
    dotted = [repr(printable(name)) for name in entries.fields if "." in name.strip(".") and wanted(name)]
    if dots and dotted and to_format == "tar":
        notes.append(
            f"keys with dots, and fields too ({listing(dotted)}): readers tear such names; "
            f"{flag('portable')} mends keys"
        )
    return Listing(
        entries=entries,
        skipped=skipped,
        name=", ".join(map(_name_of, datasets)),
        notes=(*notes, *numbers.notes),
        recorded={"dots": "last"} if dots else {},
        digest=joined_digest(datasets),
        shards=tuple(shard.name for shard in shards),
        stored=tuple((datasets[shard.dataset], shard.stored) for shard in shards),
        compressed=any(is_packed(shard.path) for shard in shards),
        classes=classes_known,
    )


def _listed(
    shards: list[SourceShard], seen: FilesSeen, pool: Pool, observer: Observer, *, salvage: bool
) -> list[SourceShard]:
    """Return what lies in each shard: as its sidecar says, or a walk finds, which checks the records of TFRecords."""
    parts, walks, with_index = [*shards], list[int](), set[int]()
    for at, found in enumerate(for_each(shard_columns.sidecar_bytes, shards, lambda shard: shard.path)):
        if isinstance(found, CorruptShard):
            raise found
        if found is not None:
            seen.add(shards[at].path, found[0])
            parts[at] = shard_columns.indexed(shards[at], found[1])
            with_index.add(at)
        if found is None or shard_columns.needs_walk(parts[at]):
            walks.append(at)
        else:
            parts[at] = shard_columns.arranged(parts[at])
            observer.listed(len(parts[at].index))
    tasks = [  # behind damage a walk goes on only where no index says what there is
        SurveyTask(
            shards[at].path, shards[at].format == "tfrecord", shards[at].stored.dots, salvage and at not in with_index
        )
        for at in walks
    ]
    pool.check([shard.path for shard in shards])  # also where there is no walk: numbers are read there
    for number, found_there in pool.map(survey, tasks):
        at = walks[number]
        parts[at] = shard_columns.walked(parts[at], found_there, has_index=at in with_index)
        observer.listed(len(parts[at].index))
    return parts


def _types(datasets: Sequence[StoredDataset], numbers: NumberFields) -> dict[str, ValueType]:
    """Return what values were, as far as all datasets say so; numbers alone where texts stand for them."""
    agreed = agreed_types([(one.file.types, one.file.fields) if one.file else ({}, ()) for one in datasets])
    numbered = numbers_among(agreed)
    own = {name: kind for name, kind in agreed.items() if numbered.get(name) == numbers.numbers.get(name)}
    return {**numbers.numbers, **own}


def _check_rows(part: SourceShard, wanted: Callable[[str], bool]) -> None:
    """Check that fields have names, and no sample has one twice."""
    names, codes, owners = part.index.names, part.index.codes, part.index.owners()
    for name in filter(wanted, names):
        if _BAD_FIELD.search(name) or len(to_bytes(name)) > NAME_LIMIT:
            found = f"the field {name[:_SHOWN]!r}, without a name, with control characters in it, or far too long"
            raise InvalidRequest(part.where_first(name), found, remedy="Make the shard anew with other names.")
    twice = np.flatnonzero((codes[1:] == codes[:-1]) & (owners[1:] == owners[:-1]))
    for row in twice.tolist():
        if wanted(name := names[codes[row]]):
            remedy = f"Leave it out with {option('drop_fields', (name,))}, or make the shard anew."
            found = f"the field {name!r} twice"
            raise InvalidRequest(part.where(int(owners[row])), found, expected="each field once", remedy=remedy)


def _entries(parts: list[SourceShard], numbers: NumberFields, seen: FilesSeen) -> Entries:
    """Return the samples of all parts, which are used up by it, without classes and metadata."""
    fields = sorted({name for part in parts for name in part.index.names}, key=to_bytes)
    check_count(parts[0].path if parts else "", fields)
    place = {name: at for at, name in enumerate(fields)}
    files, whole = tuple(part.file for part in parts), _whole(parts)
    names, texts = _keys(parts), numbers.columns(parts)
    counts, rows = [len(part.index) for part in parts], [len(part.index.codes) for part in parts]
    kind, first = np.full(sum(rows), SPAN, np.uint8), np.zeros(sum(counts) + 1, np.int64)
    row = sample = 0
    for at, part in enumerate(parts):
        index, here = part.index, slice(row, row + rows[at])
        first[sample + 1 : sample + 1 + counts[at]] = index.firsts[1:]
        first[sample + 1 : sample + 1 + counts[at]] += row
        codes = np.array([*map(place.get, index.names), 0], np.uint16)[index.codes]
        lengths = _sizes(part, numbers.texts[at], kind[here])
        index = replace(
            index, keys=b"", key_ends=_NOTHING, firsts=_NOTHING, metadata=pa.table({}), codes=codes, lengths=lengths
        )
        parts[at] = replace(part, index=index)
        row, sample = row + rows[at], sample + counts[at]
    inline = kind == INLINE
    offset, expected = _drained(parts, "offsets", rows, np.int64), _drained(parts, "crcs", rows, np.int64)
    offset[inline], expected[inline] = 0, -1
    return Entries(
        root=b"",
        keys=names,
        first=first,
        fields=tuple(fields),
        rows=FieldRows(
            code=_drained(parts, "codes", rows, np.uint16),
            kind=kind,
            size=_drained(parts, "lengths", rows, np.int64),
            mtime_ns=np.broadcast_to(np.int64(0), row),
            changed_ns=np.broadcast_to(np.int64(seen.changed_ns), row),
        ),
        values=FieldValues(texts, lists=numbers.lists),
        spans=FieldSpans(files, np.repeat(np.arange(len(parts), dtype=np.uint32), counts), offset, expected, whole),
        identity=seen.identity,
    )


def _sizes(part: SourceShard, numbers: Mapping[str, Texts], kind: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the sizes of a part's payloads: those of numbers, which are INLINE, are those of their texts.

    Args:
        part: The part.
        numbers: The texts of numbers in it, by field.
        kind: uint8 per row of the part; is set to INLINE for these.
    """
    lengths: NDArray[np.int64] = part.index.lengths.copy() if numbers else part.index.lengths
    for name, texts in numbers.items():
        rows = part.rows_of(name)
        kind[rows], lengths[rows] = INLINE, Names.parse(texts.data).lengths()
    return lengths


def _drained(parts: list[SourceShard], name: str, counts: list[int], kind: type[_Number]) -> NDArray[_Number]:
    """Return a column of all parts as one, -1 for what is not known, and take it from them: memory holds it once."""
    found = np.empty(sum(counts), kind)
    row = 0
    for at, count in enumerate(counts):
        column = getattr(parts[at].index, name)
        found[row : row + count] = -1 if column is None else column
        row += count
        nothing: Any = {name: _NOTHING}
        parts[at] = replace(parts[at], index=replace(parts[at].index, **nothing))
    return found


def _whole(parts: list[SourceShard]) -> NDArray[np.bool_] | None:
    """Return which rows of all parts are all that a list holds; None where none is."""
    if all(part.whole is None for part in parts):
        return None
    return np.concatenate(
        [np.zeros(len(part.index.codes), np.bool_) if part.whole is None else part.whole for part in parts]
    )


def _keys(parts: list[SourceShard]) -> Names:
    """Return the keys of all parts.

    Raises:
        InvalidRequest: One cannot be part of a file's name.
    """
    names, bad = gather(arrow.string_array(bytes(part.index.keys), part.index.key_sizes) for part in parts)
    if len(bad):
        ends = np.cumsum([len(part.index) for part in parts])
        at = int(np.searchsorted(ends, bad[0], side="right"))
        part = parts[at]
        sample = int(bad[0] - ends[at]) + len(part.index)
        found = f"the key {printable(part.key(sample))[:_SHOWN]!r}"
        expected = (
            f"a path such as cat/0001 of at most {NAME_LIMIT:,} bytes, without control characters and parts like `..`"
        )
        raise InvalidRequest(part.path, found, expected=expected, remedy="Make the shard anew with other keys.")
    return names


_CHANGES_CONTENT = ("select_fields", "drop_fields", "rename_fields", "values", "portable", "resize", "encode", "map")
_CHOOSES = ("where", "sample", "per_class", "head")
_ENCODED = "image/encoded"  # what TensorFlow calls an image


class ShardSource(Source):
    """The samples of datasets.

    Samples are chosen and changed in this order: their fields, `join` and `where` (`source/selecting.py`), `sample`,
    duplicates, `sort_by`, `head`.

    Args:
        datasets: One, or a list of them.
        options: What is asked for.
        to_format: The format of the shards that the samples go into.
    """

    by_key = False

    def __init__(self, datasets: Given | Sequence[Given], options: ReshardOptions, to_format: str) -> None:
        given: Any = datasets if isinstance(datasets, Iterable) and not isinstance(datasets, str) else [datasets]
        self._datasets = [dataset for one in given for dataset in of_glob(one)]
        if not self._datasets:
            expected = "a dataset file, a pattern, a folder, or shards"
            raise InvalidRequest("the datasets", "none given", expected=expected)
        self._options, self._format = options, to_format

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """List the shards, in the workers where they have no index; choose fields and samples."""
        options = self._options
        renames = pairs("rename_fields", options.rename_fields)
        without = {*options.drop_fields, *options.classes} - {old for old, _ in renames} - {*options.columns_from}
        only, to_format = options.select_fields and (*options.select_fields, *options.columns_from), self._format
        salvage = options.on_error == "skip"
        found = list_datasets(
            self._datasets, pool, observer, to_format=to_format, only=only, without=without, salvage=salvage
        )
        changed = any(getattr(options, name) for name in (*_CHANGES_CONTENT, *_CHOOSES))
        listed = replace(
            found,
            notes=(*found.notes, *_unchecked(found.entries)),
            recorded={} if options.portable else found.recorded,
            digest=None if changed else found.digest,
        )
        listed = with_fields(listed, options, pool, to_format)
        for given in options.add:
            listed = self._with_beside(listed, given, pool, observer)
        listed = chosen(listed, options, may_lack_values=self.may_lack_values)
        if not len(listed.entries):
            return listed
        # An Example may hold nothing but its key.
        entries, empty = without_empty(listed.entries, listed.where, "no sample has a field", "nothing but its key")
        return replace(listed, entries=entries, skipped=listed.skipped + empty, digest=None) if empty else listed

    def choose(self, listed: Listing, taken: Callable[[], Names | None]) -> Listing:
        """Return the samples that were asked for, in the order that was asked for."""
        options = self._options
        listed = in_order(self._some_of_each(self._without_duplicates(sampled(listed, options), taken())), options)
        if self._format == "tar":
            _check_tar(listed)
        check_skipped(listed.where, listed.skipped, options.on_error, "make the shards anew without them")
        if not len(listed.entries):
            why = f": all {len(listed.skipped):,} were left out" if listed.skipped else ""
            raise InvalidRequest(listed.where, f"no samples{why}", expected="one or more")
        return listed

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column of the sidecars, or one of `key`, `shard`, `size` and `fields`."""
        try:
            return order.column_of(order.table_of(listed.entries, listed.shards), name, listed.where)
        except InvalidRequest as error:
            if name in listed.entries.fields:
                error.remedy = f"{option('columns_from', (name,))} makes a column of the field."
            raise

    def _with_beside(self, listed: Listing, given: str, pool: Pool, observer: Observer) -> Listing:
        """Return the samples with the fields of another dataset, too.

        Raises:
            InvalidRequest: A sample is not in it, and is not to be left out; or both have a field of one name.
        """
        options = self._options
        other = list_datasets([given], pool, observer, to_format=self._format, salvage=options.on_error == "skip")
        if packed := [one.name for one in (listed, other) if one.compressed]:
            found = "compressed shards, which can only be read in sequence"
            raise InvalidRequest(packed[0], found, expected="shards that are not", remedy="`reshard` unpacks them.")
        shards = [to_text(one.path) for one in other.entries.known_spans.files]
        order.resolve_duplicates(other.entries, "error", shards, where=other.name)
        entries, skipped = listed.entries, listed.skipped
        places = places_beside(entries, other.entries, other.name)
        lone, unused = np.flatnonzero(places < 0), len(other.entries) - int(np.count_nonzero(places >= 0))
        if len(lone):
            shown = listing([f"'{printable(entries.keys[at])}'" for at in lone[:3].tolist()], total=len(lone))
            found = f"{len(lone):,} of {counted(len(places), 'sample')} not in {other.name}: {shown}"
            if options.on_error != "skip" or len(lone) == len(places):
                remedy = f"{option('on_error', 'skip')} leaves them out." if len(lone) < len(places) else ""
                raise InvalidRequest(option("add"), found, expected="one of each key", remedy=remedy)
            why = f"not in {other.name}"
            skipped += tuple(Skipped(entries.key(at), "", "incomplete", why) for at in lone.tolist())
            entries, places = entries.take(np.flatnonzero(places >= 0)), places[places >= 0]
        notes = [f"{counted(unused, 'sample')} of {other.name} not used: no such key here"] if unused else []
        return replace(
            listed,
            entries=put_beside(entries, other.entries.take(places)),
            skipped=skipped + other.skipped,
            notes=(*listed.notes, *other.notes, *notes),
            recorded={**listed.recorded, "add": [*listed.recorded.get("add", ()), other.name]},  # type: ignore[misc]
            digest=None,
            shards=(*listed.shards, *other.shards),
            classes={**other.classes, **listed.classes},
        )

    def _some_of_each(self, listed: Listing) -> Listing:
        """Return at most as many samples of each class as `per_class` says."""
        options = self._options
        if options.per_class is None:
            return listed
        from shardtool.select.splits import some_of_each

        column, keys = options.of or "cls", listed.entries.keys
        labels = self.labels(listed, column)
        samples = some_of_each(keys, labels, options.per_class, column=column, seed=options.seed)
        return replace(listed, entries=listed.entries.take(samples))

    def _without_duplicates(self, listed: Listing, taken: Names | None) -> Listing:
        before, asked = listed.entries, self._options.on_duplicate
        # An error says where shards lie, for two may have one name; `out.skipped` must not.
        names = [to_text(one.path) for one in before.known_spans.files] if asked == "error" else listed.shards
        entries, skipped, note = order.resolve_duplicates(before, asked, names, taken, where=listed.where)
        if entries is before:
            return listed
        notes, skipped = (*listed.notes, note) if note else listed.notes, listed.skipped + skipped
        return replace(listed, entries=entries, skipped=skipped, digest=None, notes=notes)


def _check_tar(listed: Listing) -> None:
    """Refuse fields that cannot be the ends of members' names, or that would be read as parts of keys there."""
    entries = listed.entries
    fields = entries.used_fields()
    dotted = [name for name in fields if "." in name]
    if dotted and "dots" in listed.recorded:
        found = f"keys with dots in their last part, and fields with dots: {listing(dotted)}"
        expected = "names that the first dot divides, or the last"
        renamed = {dotted[0]: dotted[0].rpartition(".")[2]}
        remedy = f"Rename them ({option('rename_fields', renamed)}), or use {flag('portable')}."
        raise InvalidRequest(listed.where, found, expected=expected, remedy=remedy)
    bad = [name for name in fields if "/" in name]
    if bad:
        found = f"fields with a slash, which no tar shard can hold: {listing(list(map(repr, bad)))}"
        renamed = {_ENCODED: "jpg"} if _ENCODED in bad else {bad[0]: bad[0].rpartition("/")[2] or "jpg"}
        remedy = f"Rename them ({option('rename_fields', renamed)}), or {option('drop_fields')}."
        raise InvalidRequest(listed.where, found, expected="endings, such as jpg or cls", remedy=remedy)


def _unchecked(entries: Entries) -> list[str]:
    """Return what the user should know of payloads whose damage nothing would show."""
    spans = entries.known_spans
    rows = np.flatnonzero((spans.expected < 0) & (entries.rows.kind == SPAN))
    if not len(rows):
        return []
    shards = int(np.count_nonzero(np.bincount(entries.files_of(rows))))
    what = f"{counted(shards, 'shard')} without checksums, so that damage in them cannot be seen"
    return [f"{what}: {call('index', checksum=True)} adds them"]


# The datasets that are given: which shards each has, and what its dataset file says of them.


def open_datasets(givens: Sequence[Given], seen: FilesSeen) -> tuple[list[StoredDataset], list[SourceShard]]:
    """Return the datasets that are meant, and their shards, which are not listed yet; only dataset files are read.

    Args:
        givens: One for each: its dataset file, a pattern, a glob, a folder, or a list of shards.
        seen: Takes which files these are.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: A dataset file is damaged, or not what is there: a shard is missing, or has another size.
    """
    datasets, shards = list[StoredDataset](), list[SourceShard]()
    for number, given in enumerate(givens):
        found = find_dataset(given).read()
        file = found.file
        if file is not None and found.dataset_file is not None:
            seen.add(found.dataset_file, file_fact(found.dataset_file))
        elif found.dataset_file is None:
            _check_of_one(found)
        of_records: Mapping[str, Number] | None = None
        # What other tools made may have lists of values, whatever was said of it; how these lie only a walk can find.
        if file is not None and file.made.verb != "index" and not any(one.is_list for one in file.features.values()):
            of_records = numbers_in(file.features)
        for stored, fact in zip(found.shards, for_each(shard_columns.stat_shard, found.paths), strict=True):
            seen.add(stored.path, fact)
            if stored.entry is not None and stored.entry.size != fact.st_size:
                found_there, expected = f"{fact.st_size:,} bytes", f"{stored.entry.size:,}, as the dataset file says"
                remedy = "`shardtool verify` shows what is wrong."
                raise CorruptShard(stored.path, found_there, expected=expected, remedy=remedy)
            place = SpanFile(os.fsencode(stored.path), fact.st_size, fact.st_mtime_ns)
            kinds = of_records if (form := stored.format) == "tfrecord" else file.numbers if file else {}
            shards.append(SourceShard(stored, place, form, number, kinds))
        datasets.append(found)
    return datasets, shards


def _notes(dataset: StoredDataset) -> list[str]:
    """Return what the user should know: shards that are not listed, or sidecars of a run that did not end."""
    if dataset.unlisted and dataset.dataset_file:
        name, more = output_text(base_name(dataset.dataset_file)), [*map(_name, dataset.unlisted)]
        return [f"{name} does not list {counted(len(more), 'shard')}, left out: {listing(more)}"]
    if dataset.dataset_file is None:
        try:
            check_finished(dataset)
        except InvalidRequest as error:
            return [f"{error.where}: {error.found}; only these are taken"]
    return []


def _check_of_one(found: StoredDataset) -> None:
    """Refuse shards of several datasets as one: what their numbers of classes stand for would be lost."""
    wanted = {shard.name for shard in found.shards}
    if {*found.folders()} != {found.folder}:
        return
    names = (name for name in names_in(found.folder) if name.endswith(DATASET_SUFFIX))
    some = [name for name in names if wanted & listed_by(join(found.folder, name))]
    if len(some) > 1:
        problem = f"shards of {len(some)} datasets: {listing(some)}"
        remedy = f"Give the datasets one by one, by their dataset files: {' '.join(some[:3])}."
        raise InvalidRequest(found.folder or ".", problem, expected="those of one", remedy=remedy)


def _name(path: str) -> str:
    return output_text(base_name(path))


def _name_of(dataset: StoredDataset) -> str:
    """Return the name of a dataset for people and the dataset file: no folder."""
    if dataset.file is not None:
        return dataset.file.name
    if not isinstance(dataset.given, (str, os.PathLike)):
        names = [*map(_name, dataset.paths)]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    path = os.fspath(dataset.given)
    if is_url(path):
        return printable(base_name(path.rstrip("/")))
    return printable(os.fsencode(os.path.basename(os.path.realpath(path) if os.path.isdir(path) else path)))


# What datasets say of their samples besides payloads, joined: classes, metadata, and the content fingerprint.


def joined_classes(
    datasets: Sequence[StoredDataset], parts: Sequence[SourceShard], wanted: Callable[[str], bool]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return what the numbers of labels stand for, and notes.

    Raises:
        InvalidRequest: It is not the same in all datasets.
    """
    found: dict[str, list[str]] = {}
    having: dict[str, dict[int, None]] = {}  # the datasets that have a field
    for part in parts:
        for name in filter(wanted, part.index.names):
            having.setdefault(name, {})[part.dataset] = None
    notes = []
    for name, places in having.items():
        known = {at: file.classes[name] for at in places if (file := datasets[at].file) and name in file.classes}
        for at, classes in known.items():
            if classes != found.setdefault(name, classes):
                first = _name_of(datasets[next(iter(known))])
                problem = f"other classes in {_name_of(datasets[at])} ({listing(classes)})"
                expected = f"those of {first}: {listing(found[name])}"
                remedy = (
                    f"Number them anew with {option('values', {name: 'COLUMN'})} {option('classes', (name,))}, "
                    f"or leave the field out with {option('drop_fields', (name,))}."
                )
                raise InvalidRequest(f"the field {name!r}", problem, expected=expected, remedy=remedy)
        if known and len(known) < len(places):
            others = [_name_of(datasets[at]) for at in places if at not in known]
            known_of = f"the classes of {name!r} are those of the datasets that name them"
            notes.append(f"{known_of}: {listing(others)} does not")
    return found, notes


def _known_classes(datasets: Sequence[StoredDataset]) -> dict[str, list[str]]:
    """Return what the numbers of labels stand for in all datasets that say it, where that is the same."""
    found: dict[str, list[str]] = {}
    for name, names in ((name, names) for one in datasets if one.file for name, names in one.file.classes.items()):
        found[name] = names if found.setdefault(name, names) == names else []
    return {name: names for name, names in found.items() if names}


def _without_partial(
    columns: pa.Table | None, parts: Sequence[SourceShard], labels: Collection[str]
) -> tuple[pa.Table | None, list[str]]:
    """Return metadata without columns of labels that only some of the samples with such a field have, and notes."""
    notes = []
    for name in sorted({*labels}.intersection(() if columns is None else columns.column_names)):
        lacking = [one for one in parts if name in one.index.names and name not in one.index.metadata.column_names]
        if lacking and columns is not None:
            left = [one for one in columns.column_names if one != name]
            columns = columns.select(left) if left else None
            what = f"column {name!r} left out: {counted(len(lacking), 'shard')} of field {name!r} lack it"
            notes.append(f"{what} ({option('columns_from', (name,))} makes it of the field, for all)")
    return columns, notes


def joined_columns(parts: Sequence[SourceShard], datasets: Sequence[StoredDataset]) -> pa.Table | None:
    """Return the metadata of all parts, null where one has none of a name; None where there is none at all.

    Raises:
        InvalidRequest: Values of one name have types that cannot be one.
    """
    tables = [part.index.metadata for part in parts]
    names = [*dict.fromkeys(name for table in tables for name in table.column_names)]
    if not names:
        return None
    tables = [
        table if table.num_columns else pa.Table.from_arrays([pa.nulls(len(part.index))], [names[0]])
        for table, part in zip(tables, parts, strict=True)
    ]
    try:
        return arrow.compact(pa.concat_tables(tables, promote_options="permissive").select(names))
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise _unlike_columns(names, parts, datasets, error) from None


def _unlike_columns(
    names: Sequence[str], parts: Sequence[SourceShard], datasets: Sequence[StoredDataset], error: pa.ArrowException
) -> InvalidRequest:
    """Return the error of metadata that cannot be one table, of which pyarrow says `error`."""
    for name in names:
        having = [part for part in parts if name in part.index.metadata.column_names]
        columns = [part.index.metadata.select([name]) for part in having]
        try:
            pa.concat_tables(
                columns, promote_options="permissive"
            )  # values, too, may not fit: whole numbers, into floats
        except MemoryError:
            raise
        except pa.ArrowException:
            kinds: dict[str, str] = {}
            for part, column in zip(having, columns, strict=True):
                kinds.setdefault(str(column.schema.types[0]), _name_of(datasets[part.dataset]))
            shown = ", ".join(f"{kind} in {where}" for kind, where in kinds.items())
            remedy = f"Reshard them apart, with {option('join')} to give the column another type."
            return InvalidRequest(f"the column {name!r}", shown, expected="types that can be one", remedy=remedy)
    where = listing([*map(_name_of, datasets)])
    return InvalidRequest(where, f"metadata that cannot be one table: {str(error)[:200]}")


def joined_digest(datasets: Sequence[StoredDataset]) -> int | None:
    """Return the sum of the datasets' fingerprints; None where one is not known to be that of what was listed."""
    files = [dataset.file for dataset in datasets if dataset.file is not None and not dataset.file.part_of]
    for file in files:
        kinds = {*numbers_in(file.features).values()}
        may_map = any("map" in run.options for run in (file.made, *file.made.appended))
        if "float" in kinds or (kinds and may_map):  # it may be that of texts which numbers do not give back
            return None
    return sum_fingerprints(file.fingerprint for file in files) if len(files) == len(datasets) else None

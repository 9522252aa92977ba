"""Datasets as a source: their samples are chosen and changed, and none is decoded.

A dataset file of ours that lists the shards is found beside them, even where they are not all that it lists: it knows
classes, numbers and checksums that nothing else does.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from shardtool.dataset.dataset_file import numbers_in
from shardtool.dataset.find import check_finished, find_dataset, listed_by, of_glob
from shardtool.dataset.shard_file import shard_format
from shardtool.dataset.walk import survey
from shardtool.entries.entries import Entries, FieldRows, FieldSpans, FieldValues
from shardtool.errors import CorruptShard, InvalidRequest, listing, printable
from shardtool.fingerprint import sum_fingerprints
from shardtool.pattern import DATASET_SUFFIX
from shardtool.request.choices import pairs
from shardtool.select import order
from shardtool.skipped import Skipped
from shardtool.source.base import Listing, Source, check_skipped
from shardtool.source.naming import has_dotted
from shardtool.source.selecting import Selection, take_some
from shardtool.source.shard_columns import (
    FilesSeen,
    Shard,
    arranged,
    check_fields,
    find_numbers,
    needs_walk,
    put_together,
    read_sidecar,
    sidecar_bytes,
    stat_shard,
    walked_part,
)
from shardtool.storage.places import base_name, file_fact, for_each, is_url, join, names_in
from shardtool.table import arrays
from shardtool.table import columns as keys
from shardtool.values import INLINE, NAME_LIMIT, SPAN, SpanFile, counted, output_text, to_bytes, to_text
from shardtool.wording import call, flag, option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.dataset.find import StoredDataset
    from shardtool.execute.pool import Pool
    from shardtool.names import Names
    from shardtool.request.options import ReshardOptions
    from shardtool.request.results import Observer
    from shardtool.source.shard_columns import NumberFields, ShardColumns
    from shardtool.storage.open_file import FileFact
    from shardtool.values import Dots, Given

# The shard source: datasets become `Entries`, in the order in which they are given.
#
# A payload is a SPAN of its shard, and a number of a TFRecord an INLINE text; what a payload's checksum must be comes
# along, for the packer that reads it. Sidecars say where payloads lie, without an object for each; shards without one
# are walked by workers.


_BAD_FIELD = re.compile(r"[\x00-\x1f\x7f-\x9f]|^$")
_SHOWN = 120  # letters of a name in a message
_NOTHING = np.zeros(0, np.int64)
_Number = TypeVar("_Number", bound=np.generic)
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class TaskPool(Protocol):
    """Worker processes."""

    def map(self, function: Callable[[_Task], _Result], tasks: Iterable[_Task], /) -> Iterator[tuple[int, _Result]]:
        """Yield (number, result) of each task as it is done."""


class Listener(Protocol):
    """Gets the progress of the listing."""

    def listed(self, samples: int, /) -> None:
        """Take how many more samples were found."""


@dataclass(frozen=True, slots=True)
class DatasetsListing:
    """The samples of datasets.

    Attributes:
        entries: The samples.
        skipped: What the shards hold that is no part of a sample.
        shards: File names.
        dots: Where keys must end in members' names: `last` where a dataset says so, or a key has a dot in its name.
        name: The datasets' names, for the dataset file.
        notes: What the user should know.
        packed: Whether some shards are compressed: their offsets count in what they hold, read in sequence only.
        digest: The content fingerprint of all samples, as the dataset files have it; None where one of them does not.
    """

    entries: Entries
    skipped: tuple[Skipped, ...]
    shards: tuple[str, ...]
    dots: Dots
    name: str
    notes: tuple[str, ...]
    packed: bool
    digest: int | None


def list_datasets(  # noqa: PLR0913 - what is asked of each dataset, by name
    givens: Sequence[Given],
    pool: TaskPool,
    observer: Listener,
    *,
    to_format: str,
    only: Collection[str] = (),
    without: Collection[str] = (),
    salvage: bool = False,
) -> DatasetsListing:
    """Return the samples of datasets, one after the other.

    Args:
        givens: The datasets: dataset files, patterns, globs, folders, or lists of shards.
        pool: Walks shards that have no sidecar, and reads numbers.
        observer: Gets how many samples were found.
        to_format: What they will be written as: `tar` or `tfrecord`.
        only: The fields that will be taken; empty: all. Others are listed as they lie, and nothing in them is an error.
        without: Fields that will not be taken; nothing in them is an error either.
        salvage: Whether damaged parts of shards without an index, and damaged numbers, are left out.

    Raises:
        InvalidRequest: There is no such dataset, or its samples cannot be those of one dataset.
        CorruptShard: A shard, sidecar or dataset file is damaged, or missing.
    """

    def wanted(name: str) -> bool:
        return (not only or name in only) and name not in without

    seen = FilesSeen()
    datasets = open_datasets(givens, seen)
    parts = _read_parts(datasets, seen, pool, observer, salvage=salvage)
    for part in parts:
        _check_rows(part, wanted)
    classes, notes = joined_classes(datasets, parts, wanted)
    numbers = find_numbers(parts, wanted, to_format, pool.map, salvage=salvage)
    columns = joined_columns(parts, datasets)
    shards = [part.shard for part in parts]
    notes += [
        f"{part.shard.name}: {counted(part.joined, 'sample')} put together of fields that lie apart"
        for part in parts
        if part.joined
    ]
    skipped = tuple(one for part in parts for one in part.skipped)
    entries = _entries(parts, numbers, seen)
    entries = replace(entries, values=replace(entries.values, classes=classes), metadata=columns)
    if numbers.damaged:
        entries, lost = _without(entries, numbers.damaged, shards)
        skipped += lost
    pa.default_memory_pool().release_unused()  # what all of the sidecars took
    dots: Dots = "last" if any(shard.dots == "last" for shard in shards) or has_dotted(entries.keys) else "first"
    dotted = [repr(printable(name)) for name in entries.fields if "." in name.strip(".") and wanted(name)]
    if dots == "last" and dotted and to_format == "tar":
        notes.append(
            f"keys with dots, and fields too ({listing(dotted)}): readers tear such names; "
            f"{flag('portable')} mends keys"
        )
    return DatasetsListing(
        entries=entries,
        skipped=skipped,
        shards=tuple(shard.name for shard in shards),
        dots=dots,
        name=", ".join(dataset.name for dataset in datasets),
        notes=(*(note for dataset in datasets for note in dataset.notes), *notes, *numbers.notes),
        packed=any(shard.packed for shard in shards),
        digest=joined_digest(datasets),
    )


def _without(
    entries: Entries, damaged: Mapping[int, NDArray[np.int64]], shards: Sequence[Shard]
) -> tuple[Entries, tuple[Skipped, ...]]:
    """Return the samples without those whose numbers are damaged, given by the place of their shard; and these."""
    file = entries.known_spans.file
    lost = [int(np.searchsorted(file, place)) + at for place, some in sorted(damaged.items()) for at in some.tolist()]
    skipped = (
        Skipped(entries.key(at), shards[int(file[at])].name, "corrupt", "a number that has not its checksum")
        for at in lost
    )
    return entries.take(np.delete(np.arange(len(entries)), lost)), tuple(skipped)


def _read_parts(
    datasets: list[Dataset], seen: FilesSeen, pool: TaskPool, observer: Listener, *, salvage: bool
) -> list[ShardColumns]:
    """Return what lies in each shard: as its sidecar says, or a walk finds."""
    shards = [shard for dataset in datasets for shard in dataset.shards]
    known: dict[int, ShardColumns | None] = {}
    parts: dict[int, ShardColumns] = {}
    for at, (shard, found) in enumerate(zip(shards, _sidecars(shards), strict=True)):
        if isinstance(found, CorruptShard):
            raise found
        part = None
        if found is not None:
            seen.add(shard.path, found[0])
            part = read_sidecar(shard, found[1])
        if part is None or needs_walk(shard, part):
            known[at] = part
        else:
            parts[at] = arranged(part)
            observer.listed(len(part))
    places = [*known]
    for number, walked in pool.map(survey, [shards[at].walk(salvage=salvage and known[at] is None) for at in places]):
        at = places[number]
        parts[at] = walked_part(shards[at], walked, indexed := known.pop(at))
        if indexed is None and walked.format == "tar":
            parts[at] = put_together(parts[at])
        parts[at] = arranged(parts[at])
        observer.listed(len(parts[at]))
    return [parts[at] for at in range(len(shards))]


def _sidecars(shards: Sequence[Shard]) -> Iterator[tuple[FileFact, bytes] | CorruptShard | None]:
    """Yield the sidecar of each shard; many are asked for at once where they lie elsewhere."""
    return for_each(sidecar_bytes, shards, lambda shard: shard.path)


def _check_rows(part: ShardColumns, wanted: Callable[[str], bool]) -> None:
    """Check that fields have names, and no sample has one twice."""
    for name in filter(wanted, part.names):
        if _BAD_FIELD.search(name) or len(to_bytes(name)) > NAME_LIMIT:
            where = part.where(int(part.owners()[np.flatnonzero(part.codes == part.names.index(name))[0]]))
            found = f"the field {name[:_SHOWN]!r}, without a name, with control characters in it, or far too long"
            raise InvalidRequest(where, found, remedy="Make the shard anew with other names.")
    owners = part.owners()
    twice = np.flatnonzero((part.codes[1:] == part.codes[:-1]) & (owners[1:] == owners[:-1]))
    for row in twice.tolist():
        name = part.names[part.codes[row]]
        if wanted(name):
            place = part.where(int(owners[row]))
            remedy = f"Leave it out with {option('drop_fields', (name,))}, or make the shard anew."
            raise InvalidRequest(place, f"the field {name!r} twice", expected="each field once", remedy=remedy)


def _entries(parts: list[ShardColumns], numbers: NumberFields, seen: FilesSeen) -> Entries:
    """Return the samples of all parts, which are used up by it, without classes and metadata."""
    fields = sorted({name for part in parts for name in part.names}, key=to_bytes)
    check_fields(parts[0].shard.path if parts else "", fields)
    place = {name: at for at, name in enumerate(fields)}
    files, counts = tuple(part.shard.file for part in parts), [len(part) for part in parts]
    names, rows = _keys(parts), [len(part.codes) for part in parts]
    kind = np.full(sum(rows), SPAN, np.uint8)
    row = 0
    for at, part in enumerate(parts):
        codes = np.array([*map(place.get, part.names), 0], np.uint16)[part.codes]
        parts[at] = replace(
            _inlined(part, at, numbers, kind[row : row + rows[at]]), codes=codes, names=(), keys=None, columns=None
        )
        row += rows[at]
    inline, whole = kind == INLINE, _whole(parts, rows)
    offset, expected = _drained(parts, "offsets", rows, np.int64), _drained(parts, "crcs", rows, np.int64)
    offset[inline], expected[inline] = 0, -1
    return Entries(
        root=b"",
        keys=names,
        first=np.concatenate((np.zeros(1, np.int64), np.cumsum(_drained(parts, "counts", counts, np.int64)))),
        fields=tuple(fields),
        rows=FieldRows(
            code=_drained(parts, "codes", rows, np.uint16),
            kind=kind,
            size=_drained(parts, "lengths", rows, np.int64),
            mtime_ns=np.broadcast_to(np.int64(0), row),
            changed_ns=np.broadcast_to(np.int64(seen.changed_ns), row),
        ),
        values=FieldValues(numbers.texts, numbers.numbers, numbers.lists),
        spans=FieldSpans(files, np.repeat(np.arange(len(parts), dtype=np.uint32), counts), offset, expected, whole),
        identity=seen.identity,
    )


def _inlined(part: ShardColumns, place: int, numbers: NumberFields, kind: NDArray[np.uint8]) -> ShardColumns:
    """Return a part whose numbers are INLINE: their sizes are those of their texts.

    Args:
        part: The part.
        place: Its place among all.
        numbers: The numbers.
        kind: uint8 per row of the part; is set to INLINE for these.
    """
    fields = {name: found[place] for name, found in numbers.sizes.items() if place in found}
    if not fields:
        return part
    lengths = part.lengths.copy()
    for name, rows in part.rows():
        if name in fields:
            kind[rows], lengths[rows] = INLINE, fields[name]
    return replace(part, lengths=lengths)


def _drained(parts: list[ShardColumns], name: str, counts: list[int], kind: type[_Number]) -> NDArray[_Number]:
    """Return a column of all parts as one, -1 for what is not known, and take it from them: memory holds it once."""
    found = np.empty(sum(counts), kind)
    row = 0
    for at, count in enumerate(counts):
        column = getattr(parts[at], name)
        found[row : row + count] = -1 if column is None else column
        row += count
        nothing: Any = {name: _NOTHING}
        parts[at] = replace(parts[at], **nothing)
    return found


def _whole(parts: list[ShardColumns], rows: list[int]) -> NDArray[np.bool_] | None:
    """Return which rows of all parts are all that a list holds; None where none is."""
    if all(part.whole is None for part in parts):
        return None
    both = zip(parts, rows, strict=True)
    return np.concatenate([np.zeros(count, np.bool_) if part.whole is None else part.whole for part, count in both])


def _keys(parts: list[ShardColumns]) -> Names:
    """Return the keys of all parts.

    Raises:
        InvalidRequest: One cannot be part of a file's name.
    """
    names, bad = keys.gather(part.keys for part in parts)
    for sample in bad.tolist():
        first = 0
        for part in parts:
            if sample < first + len(part):
                found = f"the key {printable(part.key(sample - first))[:_SHOWN]!r}"
                expected = (
                    f"a path such as cat/0001 of at most {NAME_LIMIT:,} bytes, without control characters "
                    "and parts like `..`"
                )
                remedy = "Make the shard anew with other keys."
                raise InvalidRequest(part.shard.path, found, expected=expected, remedy=remedy)
            first += len(part)
    return names


_CHANGES_CONTENT = ("select_fields", "drop_fields", "rename_fields", "values", "portable")
_CHOOSES = ("where", "sample", "head")
_ENCODED = "image/encoded"  # what TensorFlow calls an image


class ShardSource(Source):
    """The samples of datasets.

    Samples are chosen and changed in this order: what `Selection` does, `sample`, duplicates, `sort_by`, `head`.

    Args:
        datasets: One, or a list of them.
        options: What is asked for.
        to_format: The format of the shards that the samples go into.
    """

    asks_for_taken_keys = True

    def __init__(self, datasets: Given | Sequence[Given], options: ReshardOptions, to_format: str) -> None:
        given = [datasets] if isinstance(datasets, (str, os.PathLike)) else [*datasets]
        self._datasets = [dataset for one in given for dataset in of_glob(one)]
        if not self._datasets:
            raise InvalidRequest(
                "the datasets", "none given", expected="a dataset file, a pattern, a folder, or shards"
            )
        self._options, self._format = options, to_format

    @property
    def by_key(self) -> bool:
        """Whether samples stand in the order of their keys, not in that of their shards."""
        return False

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
        recorded = {"dots": "last"} if found.dots == "last" and not options.portable else {}
        changed = any(getattr(options, name) for name in (*_CHANGES_CONTENT, *_CHOOSES))
        notes = (*found.notes, *_unchecked(found.entries))
        digest = None if changed else found.digest
        listed = Listing(found.entries, found.skipped, found.name, notes, recorded, digest, found.shards, found.packed)
        selection = Selection(options, _table, to_format)
        return self._with_fields(selection.chosen(selection.with_fields(listed, pool)))

    def choose(self, listed: Listing, taken: Names | None) -> Listing:
        """Return the samples that were asked for, in the order that was asked for."""
        options = self._options
        listed = self._without_duplicates(self._sampled(listed), taken)
        listed = Selection(options, _table).in_order(listed)
        listed = replace(listed, entries=self._first(listed.entries))
        entries, skipped = listed.entries, listed.skipped
        if self._format == "tar":
            _check_tar(listed)
        check_skipped(listed.name, skipped, options.on_error, "make the shards anew without them")
        if not len(entries):
            why = f": all {len(skipped):,} were left out" if skipped else ""
            raise InvalidRequest(listed.name, f"no samples{why}", expected="one or more")
        return listed

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column of the sidecars, or one of `key`, `shard`, `size` and `fields`."""
        from shardtool.select.order import column_of

        return column_of(_table(listed), name, listed.name)

    def _with_fields(self, listed: Listing) -> Listing:
        """Return the samples that have fields: an Example may hold nothing but its key."""
        from shardtool.select.fields import without_empty

        if not len(listed.entries):
            return listed
        entries, empty = without_empty(listed.entries, listed.name, "no sample has a field", "nothing but its key")
        return replace(listed, entries=entries, skipped=listed.skipped + empty, digest=None) if empty else listed

    def _sampled(self, listed: Listing) -> Listing:

        entries, share = listed.entries, self._options.sample
        if share is None:
            return listed
        samples = order.sample_by_key(entries.keys, share)
        return take_some(listed, samples, option("sample"), f"none of {len(entries):,} samples falls into {share}")

    def _without_duplicates(self, listed: Listing, taken: Names | None) -> Listing:
        from shardtool.select.order import resolve_duplicates

        before, asked = listed.entries, self._options.on_duplicate
        # An error says where shards lie, for two may have one name; `out.skipped` must not.
        names = [to_text(one.path) for one in before.known_spans.files] if asked == "error" else listed.shards
        entries, skipped, note = resolve_duplicates(before, asked, names, taken, where=listed.name)
        if entries is before:
            return listed
        notes, skipped = (*listed.notes, note) if note else listed.notes, listed.skipped + skipped
        return replace(listed, entries=entries, skipped=skipped, digest=None, notes=notes)

    def _first(self, entries: Entries) -> Entries:
        import numpy as np

        head = self._options.head
        return entries if head is None or head >= len(entries) else entries.take(np.arange(head))


def _check_tar(listed: Listing) -> None:
    """Refuse fields that cannot be the ends of members' names, or that would be read as parts of keys there."""
    entries = listed.entries
    fields = [name for name, count in zip(entries.fields, entries.code_counts(), strict=True) if count]
    dotted = [name for name in fields if "." in name]
    if dotted and "dots" in listed.recorded:
        found = f"keys with dots in their last part, and fields with dots: {listing(dotted)}"
        expected = "names that the first dot divides, or the last"
        remedy = (
            f"Rename them ({option('rename_fields', {dotted[0]: dotted[0].rpartition('.')[2]})}), or use "
            f"{flag('portable')}."
        )
        raise InvalidRequest(listed.name, found, expected=expected, remedy=remedy)
    bad = [name for name in fields if "/" in name]
    if bad:
        found = f"fields with a slash, which no tar shard can hold: {listing(list(map(repr, bad)))}"
        renamed = {_ENCODED: "jpg"} if _ENCODED in bad else {bad[0]: bad[0].rpartition("/")[2] or "jpg"}
        remedy = f"Rename them ({option('rename_fields', renamed)}), or {option('drop_fields')}."
        raise InvalidRequest(listed.name, found, expected="endings, such as jpg or cls", remedy=remedy)


def _unchecked(entries: Entries) -> list[str]:
    """Return what the user should know of payloads whose damage nothing would show."""
    import numpy as np

    spans = entries.known_spans
    rows = np.flatnonzero((spans.expected < 0) & (entries.rows.kind == SPAN))
    if not len(rows):
        return []
    shards = int(np.count_nonzero(np.bincount(spans.file[entries.owners(rows)])))
    what = f"{counted(shards, 'shard')} without checksums, so that damage in them cannot be seen"
    return [f"{what}: {call('index', checksum=True)} adds them"]


def _table(listed: Listing) -> pa.Table:
    """Return what a query sees of samples."""
    import numpy as np

    return order.table_of(listed.entries, listed.entries.known_spans.file.astype(np.int32), listed.shards)


_REMEDY = "`shardtool verify` shows what is wrong."


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset that is there.

    Attributes:
        name: For people and the dataset file: no folder.
        file: What its dataset file says of these shards; None where it has none of ours.
        shards: In order.
        notes: What the user should know.
    """

    name: str
    file: DatasetFile | None
    shards: tuple[Shard, ...]
    notes: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether these are all the shards that a dataset file lists."""
        return self.file is not None and not self.file.part_of


def open_datasets(givens: Sequence[Given], seen: FilesSeen) -> list[Dataset]:
    """Return the datasets that are meant, each as its dataset file, a pattern, a glob, a folder, or a list of shards.

    Args:
        givens: One for each.
        seen: Takes which files these are.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: A dataset file is damaged, or not what is there: a shard is missing, or has another size.
    """
    return [_open(given, number, seen) for number, given in enumerate(givens)]


def _open(given: Given, number: int, seen: FilesSeen) -> Dataset:
    found = find_dataset(given)
    path, notes = found.dataset_file, list[str]()
    found = found.read()
    file, shards = found.file, found.paths
    if file is not None and path is not None:
        seen.add(path, file_fact(path))
        if more := [*map(_name, found.unlisted)]:
            name = output_text(base_name(path))
            notes.append(f"{name} does not list {counted(len(more), 'shard')}, left out: {listing(more)}")
    elif path is None:
        _check_of_one(found)
        notes += _unfinished(found)
    entries = [None] * len(shards) if file is None else file.shards
    opened = tuple(
        replace(_shard(one, fact, number, file, entry), index_folder=found.index_folder)
        for one, fact, entry in zip(shards, _facts(shards, seen), entries, strict=True)
    )
    return Dataset(_called(given, found, file), file, opened, tuple(notes))


def _unfinished(found: StoredDataset) -> list[str]:
    """Return what the sidecars of shards without a dataset file say of a run that did not end, as notes."""
    try:
        check_finished(found)
    except InvalidRequest as error:
        return [f"{error.where}: {error.found}; only these are taken"]
    return []


def _facts(shards: Sequence[str], seen: FilesSeen) -> Iterator[FileFact]:
    for path, fact in zip(shards, for_each(stat_shard, shards), strict=True):
        seen.add(path, fact)
        yield fact


def _shard(path: str, fact: FileFact, dataset: int, file: DatasetFile | None, entry: ShardEntry | None) -> Shard:
    place, kind = SpanFile(os.fsencode(path), fact.st_size, fact.st_mtime_ns), shard_format(path)
    if entry is not None and entry.size != place.size:
        expected = f"{entry.size:,}, as the dataset file says"
        raise CorruptShard(path, f"{place.size:,} bytes", expected=expected, remedy=_REMEDY)
    kinds, numbers = None, file.numbers if file else {}
    # What other tools made may have lists of values, whatever was said of it; how these lie only a walk can find.
    if file is not None and file.made.verb != "index" and not any(one.is_list for one in file.features.values()):
        kinds = numbers_in(file.features)
    return Shard(place, _name(path), dataset, kind, entry, file.made.dots if file else "first", kinds, numbers)


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


def _called(given: Given, found: StoredDataset, file: DatasetFile | None) -> str:
    if file is not None:
        return file.name
    if not isinstance(given, (str, os.PathLike)):
        names = [*map(_name, (*found.paths, *found.unlisted))]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    path = os.fspath(given)
    if is_url(path):
        return printable(base_name(path.rstrip("/")))
    return printable(os.fsencode(os.path.basename(os.path.realpath(path) if os.path.isdir(path) else path)))


# What datasets say of their samples besides payloads, joined: classes, metadata, and the content fingerprint.


def joined_classes(
    datasets: Sequence[Dataset], parts: Sequence[ShardColumns], wanted: Callable[[str], bool]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return what the numbers of labels stand for, and notes.

    Raises:
        InvalidRequest: It is not the same in all datasets.
    """
    found: dict[str, list[str]] = {}
    having: dict[str, dict[int, None]] = {}  # the datasets that have a field
    for part in parts:
        for name in filter(wanted, part.names):
            having.setdefault(name, {})[part.shard.dataset] = None
    notes = []
    for name, places in having.items():
        known = {at: file.classes[name] for at in places if (file := datasets[at].file) and name in file.classes}
        for at, classes in known.items():
            if classes != found.setdefault(name, classes):
                first = datasets[next(iter(known))].name
                problem = f"other classes in {datasets[at].name} ({listing(classes)})"
                expected = f"those of {first}: {listing(found[name])}"
                remedy = (
                    f"Number them anew with {option('values', {name: 'COLUMN'})} {option('classes', (name,))}, "
                    f"or leave the field out with {option('drop_fields', (name,))}."
                )
                raise InvalidRequest(f"the field {name!r}", problem, expected=expected, remedy=remedy)
        if known and len(known) < len(places):
            others = [datasets[at].name for at in places if at not in known]
            notes.append(
                f"the classes of {name!r} are those of the datasets that name them: {listing(others)} does not"
            )
    return found, notes


def joined_columns(parts: Sequence[ShardColumns], datasets: Sequence[Dataset]) -> pa.Table | None:
    """Return the metadata of all parts, null where one has none of a name; None where there is none at all.

    Raises:
        InvalidRequest: Values of one name have types that cannot be one.
    """
    names = [*dict.fromkeys(name for part in parts if part.columns is not None for name in part.columns.column_names)]
    if not names:
        return None
    tables = [
        part.columns if part.columns is not None else pa.Table.from_arrays([pa.nulls(len(part))], [names[0]])
        for part in parts
    ]
    try:
        return arrays.compact(pa.concat_tables(tables, promote_options="permissive").select(names))
    except MemoryError:
        raise
    except pa.ArrowException as error:
        for name in names:
            _check_alike(name, parts, datasets)
        where = ", ".join(dataset.name for dataset in datasets)
        raise InvalidRequest(where, f"metadata that cannot be one table: {str(error)[:200]}") from None


def _check_alike(name: str, parts: Sequence[ShardColumns], datasets: Sequence[Dataset]) -> None:
    """Check that the values of a column can be one column."""
    kinds: dict[str, str] = {}
    columns = []
    for part in parts:
        if part.columns is not None and name in part.columns.column_names:
            columns.append(part.columns.select([name]))
            kinds.setdefault(str(columns[-1].schema.types[0]), datasets[part.shard.dataset].name)
            try:
                pa.concat_tables(columns, promote_options="permissive")
            except MemoryError:
                raise
            except pa.ArrowException:
                shown = ", ".join(f"{kind} in {where}" for kind, where in kinds.items())
                expected = "types that can be one"
                remedy = f"Reshard them apart, with {option('join')} to give the column another type."
                raise InvalidRequest(f"the column {name!r}", shown, expected=expected, remedy=remedy) from None


def joined_digest(datasets: Sequence[Dataset]) -> int | None:
    """Return the sum of the datasets' fingerprints; None where one is not known to be that of what was listed."""
    files = [dataset.file for dataset in datasets if dataset.whole and dataset.file is not None]
    if len(files) < len(datasets) or any(map(_from_other_texts, files)):
        return None
    return sum_fingerprints(file.fingerprint for file in files)


def _from_other_texts(file: DatasetFile) -> bool:
    """Tell whether a fingerprint may be that of texts which a TFRecord's numbers do not give back."""
    kinds = {*numbers_in(file.features).values()}
    return "float" in kinds or bool(kinds and any("map" in run.options for run in (file.made, *file.made.appended)))

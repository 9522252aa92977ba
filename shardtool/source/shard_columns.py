"""The shards of datasets, each as columns: what its sidecar says, or what a walk over it found; and their numbers.

A dataset file of ours is the promise of what is there: whatever is not as it says is an error, never a reason to walk,
for only a sidecar has metadata and checksums. No payload is read here, and nothing is trusted that a page or a footer
of a sidecar claims: see `shardtool.dataset.sidecar`.

All TFRecord shards must agree on what a field is. A tar shard holds texts, whatever they stand for, and no lists.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

import numpy as np

from shardtool.dataset.find import sidecar_path
from shardtool.dataset.shard_file import is_packed, unopened
from shardtool.dataset.sidecar import check_listed, check_samples, check_shard, read_bytes
from shardtool.dataset.sidecar import read_sidecar as read_rows
from shardtool.dataset.walk import FeatureConflict, Survey, SurveyTask, walked_text
from shardtool.entries.arrow import numbers, string_array, strings
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, printable, reason
from shardtool.names import Names
from shardtool.pattern import sidecar_name
from shardtool.skipped import Skipped
from shardtool.source.number_text import NumberField, TextTask, read_texts
from shardtool.storage.open_file import open_file
from shardtool.storage.places import file_fact, is_url
from shardtool.values import SpanFile, counted, is_utf8, to_bytes
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.source.number_text import Texts
    from shardtool.storage.open_file import FileFact
    from shardtool.values import Dots, Kind, Number

    _Run = Callable[[Callable[[TextTask], list[Texts]], Iterable[TextTask]], Iterator[tuple[int, list[Texts]]]]

FIELD_LIMIT = 2**16 - 1  # of different fields, and of those in a sample
_WIDE = 2**32
_GET = "Get the file again, or make it anew from its source."


class FilesSeen:
    """The files that were looked at, and the latest time at which one of them changed.

    Attributes:
        changed_ns: The latest time at which anything changed in them or their names, in nanoseconds since 1970.
    """

    def __init__(self) -> None:
        self.changed_ns = 0
        self._hash = blake2b(digest_size=16)

    def add(self, path: str, fact: FileFact) -> None:
        """Take what the file system says of a file, or a server of an object, before it is read.

        No clock is asked about an object: its address and its version tell it from any other.
        """
        if isinstance(fact, os.stat_result):
            self.changed_ns = max(self.changed_ns, fact.st_mtime_ns, fact.st_ctime_ns)
            self._hash.update(b"%d %d " % (fact.st_dev, fact.st_ino))
        else:
            self._hash.update(f"{path} {fact.st_size} {fact.st_mtime_ns} ".encode())

    @property
    def identity(self) -> str:
        """A digest of these files, in their order."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard that is there.

    Attributes:
        file: Where, and what the file system says of it.
        name: Its file name.
        dataset: The place of its dataset among those that were given.
        format: `tar` or `tfrecord`.
        entry: Its entry in a dataset file of ours.
        dots: Where keys end in its members' names.
        kinds: In a TFRecord, field to `int64` or `float`; None: only a walk can find them.
        numbers: In a tar, field to `int64` or `float`, where texts stand for numbers.
        index_folder: Where its sidecar lies; None: beside it.
    """

    file: SpanFile
    name: str
    dataset: int
    format: str
    entry: ShardEntry | None
    dots: Dots
    kinds: Mapping[str, Number] | None
    numbers: Mapping[str, Number]
    index_folder: str | None = None

    @property
    def path(self) -> str:
        """Its path."""
        return os.fsdecode(self.file.path)

    @property
    def packed(self) -> bool:
        """Whether it is compressed."""
        return is_packed(self.path)

    def walk(self, *, salvage: bool = False) -> SurveyTask:
        """Return how to walk it: the records of a TFRecord have checksums of their own, so these are seen to be right.

        Args:
            salvage: Whether to go on behind damage; not where an index says what there is.
        """
        return SurveyTask(self.path, self.format == "tfrecord", self.dots, salvage)


@dataclass(frozen=True, slots=True)
class ShardColumns:
    """The samples of one shard, as columns.

    Attributes:
        shard: The shard.
        keys: One per sample.
        counts: Fields per sample; uint16 once they are arranged.
        names: The field names that `codes` stands for.
        codes: One per field; uint16 once they are arranged.
        offsets: One per field, where its payload starts; uint32 where that is wide enough.
        lengths: One per field, bytes of its payload; of the same type.
        crcs: uint32 per field, the CRC-32C of its bytes; None: unknown.
        kinds: Field to `int64` or `float`: of a TFRecord's numbers.
        unlike: Field to the first feature that is no single value, or of another kind, as far as the shard was walked.
        skipped: What the shard holds that is no part of a sample.
        columns: Metadata, a row per sample; None where there is none.
        whole: bool per field: whether its bytes are all that a list holds; None: none are, as far as was walked.
        joined: How many samples were put together of fields that lie apart.
    """

    shard: Shard
    keys: pa.StringArray
    counts: NDArray[np.integer]
    names: tuple[str, ...]
    codes: NDArray[np.integer]
    offsets: NDArray[np.integer]
    lengths: NDArray[np.integer]
    crcs: NDArray[np.uint32] | None
    kinds: Mapping[str, Number]
    unlike: Mapping[str, FeatureConflict] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    columns: pa.Table | None = None
    whole: NDArray[np.bool_] | None = None
    joined: int = 0

    def __len__(self) -> int:
        return len(self.counts)

    def key(self, sample: int) -> str:
        """Return a sample's key."""
        return str(self.keys[sample].as_py())

    def owners(self) -> NDArray[np.int64]:
        """Return the sample that each row belongs to."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def rows(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield each field with its rows, ascending."""
        order = np.argsort(self.codes, kind="stable")
        ends = np.cumsum(np.bincount(self.codes, minlength=len(self.names)))
        for name, first, last in zip(self.names, [0, *ends.tolist()], ends.tolist(), strict=False):
            yield name, order[first:last]

    def where(self, sample: int) -> str:
        """Name a sample, for messages."""
        return f"{self.shard.path}, {printable(self.key(sample))}"


def stat_shard(path: str) -> FileFact:
    """Return what the file system says of a shard, or the server that it lies on.

    Raises:
        CorruptShard: It is not there, no plain file, or cannot be opened.
    """
    try:
        with open_file(path) as file:
            return file.fact()
    except OSError as error:
        raise unopened(path, error, remedy=_GET) from None


def sidecar_bytes(shard: Shard) -> tuple[FileFact, bytes] | CorruptShard | None:
    """Return the sidecar of a shard, and what the file system says of it; what is wrong; None where it has none."""
    if shard.packed:
        return None
    path = sidecar_path(shard.path, shard.index_folder)
    try:
        return file_fact(path), read_bytes(path)
    except FileNotFoundError:
        if shard.entry is None and (is_url(path) or not os.path.islink(path)):
            return None
        return CorruptShard(path, "no such file", expected=f"the index of {shard.name}", remedy=_remedy())
    except OSError as error:
        found = f"cannot be read: {reason(error)}"
        return CorruptShard(path, found, expected=f"the index of {shard.name}", remedy=_remedy())
    except AccessRefused:
        if shard.entry is None:  # said of what is not there, too, where we may not list
            return None
        raise


def read_sidecar(shard: Shard, data: bytes) -> ShardColumns:
    """Return what the sidecar of a shard says.

    Raises:
        CorruptShard: It is damaged, of another shard, or not the one that the dataset file lists.
    """
    path = sidecar_path(shard.path, shard.index_folder)
    entry, size = shard.entry, shard.file.size
    if entry is not None:
        check_listed(data, path, entry)
    sidecar = read_rows(data, path, size)
    check_shard(sidecar.fact, path, shard.name, size)
    if entry is not None:
        check_samples(sidecar, path, entry)
    columns = sidecar.plain_metadata() if sidecar.metadata.num_columns else None
    keys, kinds = string_array(bytes(sidecar.keys), sidecar.key_sizes), shard.kinds or {}
    places = (sidecar.codes, sidecar.offsets, sidecar.lengths)
    return ShardColumns(shard, keys, sidecar.counts, sidecar.names, *places, sidecar.crcs, kinds, columns=columns)


def needs_walk(shard: Shard, indexed: ShardColumns | None) -> bool:
    """Tell whether a shard must be walked: only so are its payloads' places, checksums or kinds known."""
    return indexed is None or (shard.format == "tfrecord" and shard.kinds is None) or indexed.crcs is None


def walked_part(shard: Shard, found: Survey, indexed: ShardColumns | None) -> ShardColumns:
    """Return what a walk found, with the metadata from its sidecar.

    Raises:
        CorruptShard: The shard is damaged, or is not the one of its sidecar.
    """
    if (error := found.error) is not None:
        if indexed is not None:
            raise error
        remedy = f"{error.remedy} {option('on_error', 'skip')} leaves out what is damaged.".strip()
        raise CorruptShard(error.where, error.problem, offset=error.offset, expected=error.expected, remedy=remedy)
    names = tuple(walked_text(name) for name in found.names)
    part = ShardColumns(
        shard=shard,
        keys=_texts(found.keys),
        counts=np.frombuffer(found.counts, np.uint32).astype(np.int64),
        names=names,
        codes=np.frombuffer(found.codes, np.uint32).astype(np.int64),
        offsets=np.frombuffer(found.offsets, np.int64),
        lengths=np.frombuffer(found.lengths, np.int64),
        crcs=np.frombuffer(found.crcs, np.uint32) if len(found.crcs) == len(found.codes) else None,
        kinds=cast(
            "dict[str, Number]", {n: kind for n, kind in zip(names, found.kinds, strict=True) if kind != "bytes"}
        ),
        unlike={names[code]: one for code, one in found.unlike.items()},
        skipped=tuple(_skipped(shard, found)),
        whole=_whole(found),
    )
    if indexed is None:
        return part
    if not _same(arranged(part), arranged(indexed)):
        remedy = f"{_remedy()} Or move {sidecar_name(shard.name)} away: without it, metadata is lost."
        raise CorruptShard(shard.path, "other samples, offsets or checksums than in its sidecar", remedy=remedy)
    return replace(part, columns=indexed.columns)


def arranged(part: ShardColumns) -> ShardColumns:
    """Return the part with the fields of each sample in the order of the bytes of their names, in little memory.

    Raises:
        InvalidRequest: There are too many different fields, or too many in a sample.
    """
    if len(part) and int(part.counts.max()) > FIELD_LIMIT:
        sample = int(part.counts.argmax())
        found = f"{int(part.counts[sample]):,} fields"
        raise InvalidRequest(part.where(sample), found, expected=f"at most {FIELD_LIMIT:,}")
    used = np.bincount(part.codes, minlength=len(part.names)).tolist()
    kept = sorted({name for name, times in zip(part.names, used, strict=True) if times}, key=to_bytes)
    check_fields(part.shard.path, kept)
    place = {name: at for at, name in enumerate(kept)}
    codes = np.array([*(place.get(name, 0) for name in part.names), 0], np.uint16)[part.codes]
    width = np.uint32 if 0 <= max(part.offsets.max(initial=0), part.lengths.max(initial=0)) < _WIDE else np.int64
    offsets, lengths, crcs, whole = part.offsets.astype(width), part.lengths.astype(width), part.crcs, part.whole
    owners = part.owners()
    if np.any((codes[1:] < codes[:-1]) & (owners[1:] == owners[:-1])):
        order = np.lexsort((codes, owners))
        codes, offsets, lengths = codes[order], offsets[order], lengths[order]
        crcs = None if crcs is None else crcs[order]
        whole = None if whole is None else whole[order]
    part = replace(part, counts=part.counts.astype(np.uint16), names=tuple(kept), crcs=crcs, whole=whole)
    return replace(part, codes=codes, offsets=offsets, lengths=lengths)


def put_together(part: ShardColumns) -> ShardColumns:
    """Return the part of a walked tar with the fields of a sample together, where they lie apart: all of them do.

    So does a plain `tar` of a folder that holds all images, and then all labels. Samples of one key that share a field
    are others than that, and stay as they are.
    """
    keys = part.keys.dictionary_encode()
    if len(keys.dictionary) == len(part):
        return part
    sample = numbers(keys.indices).astype(np.int64)
    owners = sample[part.owners()]
    order = np.lexsort((part.codes, owners))
    codes, owners = part.codes[order], owners[order]
    if np.any((codes[1:] == codes[:-1]) & (owners[1:] == owners[:-1])):
        return part
    return replace(
        part,
        keys=keys.dictionary,
        counts=np.bincount(owners, minlength=len(keys.dictionary)),
        codes=codes,
        offsets=part.offsets[order],
        lengths=part.lengths[order],
        joined=int(np.count_nonzero(np.bincount(sample) > 1)),
    )


def check_fields(where: str, names: Sequence[str]) -> None:
    """Check that there are not more different fields than can be counted.

    Raises:
        InvalidRequest: There are.
    """
    if len(names) > FIELD_LIMIT:
        found = f"{len(names):,} different fields, such as {printable(names[0])!r}"
        raise InvalidRequest(where, found, expected=f"at most {FIELD_LIMIT:,}")


def _whole(found: Survey) -> NDArray[np.bool_] | None:
    """Return which rows are all that a list holds."""
    if not found.whole:
        return None
    whole = np.zeros(len(found.codes), np.bool_)
    whole[np.frombuffer(found.whole, np.uint64).astype(np.int64)] = True
    return whole


def _texts(names: list[bytes]) -> pa.StringArray:
    if not is_utf8(b"\0".join(names)):
        names = [walked_text(name).encode() for name in names]
    return strings(names)


def _skipped(shard: Shard, found: Survey) -> Iterator[Skipped]:
    """Yield what a shard holds besides samples and folders, and what of it was lost."""
    for lost in found.lost:
        yield Skipped("", shard.name, "damaged", str(lost))
    for start, key, why in found.broken:
        yield Skipped(walked_text(key), shard.name, "damaged", f"at {start:,}: {why}")
    for one in found.odd:
        path = f"{shard.name}:{walked_text(one.name)}"
        if one.is_file and one.name:
            yield Skipped("", path, "no-field", "the name has no ending that could name a field")
        elif one.name and not one.name.endswith(b"/"):
            yield Skipped("", path, "special-file", "a link, device or sparse file")


def _same(found: ShardColumns, indexed: ShardColumns) -> bool:
    """Tell whether a walk and an index have the same payloads, offsets and, where both know them, checksums."""
    return bool(
        found.names == indexed.names
        and found.keys.equals(indexed.keys)
        and all(
            np.array_equal(getattr(found, column), getattr(indexed, column))
            for column in ("counts", "codes", "offsets", "lengths")
        )
        and (found.crcs is None or indexed.crcs is None or np.array_equal(found.crcs, indexed.crcs))
    )


def _remedy() -> str:
    return (
        f"`shardtool verify` tells what is wrong, and {either('`verify(repair=True)`', '--repair')} mends what it can."
    )


@dataclass(frozen=True, slots=True)
class NumberFields:
    """The fields that are numbers or lists.

    Attributes:
        numbers: Field to what it is in all shards that have it.
        texts: Field to its text, one per sample of all parts; empty for samples that do not have it, or not as INLINE.
        sizes: Field to int64 arrays, by the place of a part in which its rows are INLINE: bytes of each text.
        lists: Field to what its values are, where not all samples that have it hold just one: none of `numbers`.
        notes: What the user should know.
        damaged: The samples with a number that has not its checksum, by the place of their part, ascending.
    """

    numbers: Mapping[str, Number]
    texts: Mapping[str, Names]
    sizes: Mapping[str, Mapping[int, NDArray[np.int64]]]
    lists: Mapping[str, Kind]
    notes: tuple[str, ...]
    damaged: Mapping[int, NDArray[np.int64]]


def find_numbers(
    parts: Sequence[ShardColumns], wanted: Callable[[str], bool], to_format: str, run: _Run, *, salvage: bool = False
) -> NumberFields:
    """Return which fields are numbers, and read their texts.

    Args:
        parts: The columns of all shards, in order.
        wanted: Whether a field of this name is needed.
        to_format: What the samples will be written as.
        run: Yields (number, result) of a function for each task: `Pool.map`.
        salvage: Whether a damaged number is noted, and no error.

    Raises:
        InvalidRequest: A feature is no single value and what is written is a tar, or shards do not agree on what a
            field is.
        CorruptShard: A number has not its checksum.
    """
    for part in parts:
        _check_alike(part, wanted, to_format)
    having: dict[str, list[ShardColumns]] = {}
    for part in parts:
        for name in filter(wanted, part.names):
            having.setdefault(name, []).append(part)
    stored = {name: kind for name, some in having.items() if (kind := _stored_kind(name, some)) is not None}
    lists = {name: kind for name, kind in stored.items() if _is_list(name, kind, having[name])}
    numbers = {name: kind for name, kind in stored.items() if kind != "bytes" and name not in lists}
    recorded = {name: _recorded_kinds(name, some) for name, some in having.items() if name not in stored}
    maybe = {name: kinds[0] for name, kinds in recorded.items() if len(kinds) == 1 and to_format == "tfrecord"}
    notes = [
        f"{name!r} stays text: it stands for {' and '.join(kinds)} in different datasets"
        for name, kinds in recorded.items()
        if len(kinds) > 1 and to_format == "tfrecord"
    ]
    of_tar = {**numbers, **maybe} if to_format == "tfrecord" else {}
    found = _read(parts, numbers, of_tar, run, salvage=salvage)
    for name in of_tar:
        bad = {at: texts for (field, at), texts in found.items() if field == name and texts.bad}
        if bad and name in numbers:
            raise _no_number(parts[min(bad)], name, bad[min(bad)], numbers[name])
        if bad:
            notes.append(_stays(name, maybe.pop(name), [*bad.values()]))
            found = {key: texts for key, texts in found.items() if key[0] != name}
    sizes: dict[str, dict[int, NDArray[np.int64]]] = {}
    for (name, at), texts in found.items():
        sizes.setdefault(name, {})[at] = Names.parse(texts.data).lengths()
    return NumberFields(
        numbers={**numbers, **maybe} if to_format == "tfrecord" else _agreed(having),
        texts=_columns(sizes, parts, found),
        sizes=sizes,
        lists=lists,
        notes=tuple(notes),
        damaged=_damaged(parts, found),
    )


def _damaged(parts: Sequence[ShardColumns], found: Mapping[tuple[str, int], Texts]) -> dict[int, NDArray[np.int64]]:
    """Return the samples with a damaged number, by the place of their part."""
    samples: dict[int, set[int]] = {}
    for (name, at), texts in found.items():
        if texts.damaged:
            rows = dict(parts[at].rows())[name][texts.damaged]
            samples.setdefault(at, set()).update(parts[at].owners()[rows].tolist())
    return {at: np.array(sorted(some), np.int64) for at, some in samples.items()}


def _check_alike(part: ShardColumns, wanted: Callable[[str], bool], to_format: str) -> None:
    """Check that the values of each field of a part are of one kind, and single where a tar is to hold them."""
    for name, one in part.unlike.items():
        if not wanted(name):
            continue
        if one.kind != _kind(part, name):
            raise _other_kind(part, one.sample, name, one.kind, f"{_kind(part, name)}, as in the samples before it")
        if to_format == "tar":
            lists = [name for name in part.unlike if wanted(name)]
            found = f"the field {name!r} is a list of {one.values:,} {one.kind} values"
            expected = "one: a tar shard holds no lists"
            remedy = f"Write TFRecord shards, or leave lists out with {option('drop_fields', tuple(lists))}."
            raise InvalidRequest(part.where(one.sample), found, expected=expected, remedy=remedy)


def _is_list(name: str, kind: Kind, having: Sequence[ShardColumns]) -> bool:
    """Tell whether some sample has not just one value of a field that these shards have.

    Raises:
        InvalidRequest: They are numbers, and a tar shard has texts of that name.
    """
    first = next((part for part in having if name in part.unlike), None)
    if first is None:
        return False
    for part in having if kind != "bytes" else ():
        if part.shard.format == "tar":
            sample = int(part.owners()[dict(part.rows())[name][0]])
            raise _other_kind(part, sample, name, "text", f"a list of {kind}, as in {first.shard.name}")
    return True


def _kind(part: ShardColumns, name: str) -> Kind:
    return part.kinds.get(name, "bytes")


def _stored_kind(name: str, having: Sequence[ShardColumns]) -> Kind | None:
    """Return what TFRecord shards have in a field that these shards have; None where none of them is a TFRecord."""
    first: ShardColumns | None = None
    for part in having:
        if part.shard.format != "tfrecord":
            continue
        first = first or part
        if _kind(part, name) != _kind(first, name):
            sample = int(part.owners()[dict(part.rows())[name][0]])
            before = f"{_kind(first, name)}, as in {first.shard.name}"
            raise _other_kind(part, sample, name, _kind(part, name), before)
    return None if first is None else _kind(first, name)


def _other_kind(part: ShardColumns, sample: int, name: str, kind: str, expected: str) -> InvalidRequest:
    remedy = f"Reshard them apart, or leave it out with {option('drop_fields', (name,))}."
    return InvalidRequest(part.where(sample), f"the field {name!r} is {kind}", expected=expected, remedy=remedy)


def _recorded_kinds(name: str, having: Sequence[ShardColumns]) -> list[Number]:
    """Return what the texts of a field of tar shards are said to stand for."""
    return sorted({part.shard.numbers[name] for part in having if name in part.shard.numbers})


def _agreed(having: Mapping[str, Sequence[ShardColumns]]) -> dict[str, Number]:
    """Return the fields that are the same kind of number in all shards that have them."""
    found: dict[str, Number] = {}
    for name, parts in having.items():
        kinds: set[Kind] = {
            _kind(part, name) if part.shard.format == "tfrecord" else part.shard.numbers.get(name, "bytes")
            for part in parts
        }
        kind, *others = kinds
        if kind != "bytes" and not others:
            found[name] = kind
    return found


def _read(
    parts: Sequence[ShardColumns],
    numbers: Mapping[str, Number],
    of_tar: Mapping[str, Number],
    run: _Run,
    *,
    salvage: bool,
) -> dict[tuple[str, int], Texts]:
    """Return the texts of each of the fields in each of the parts, by name and place."""
    tasks, places = [], []
    for at, part in enumerate(parts):
        kinds = numbers if part.shard.format == "tfrecord" else of_tar
        if kinds.keys() & {*part.names}:
            fields = tuple(_wanted(part, name, kinds[name], rows) for name, rows in part.rows() if name in kinds)
            tasks.append(TextTask(part.shard.file, part.shard.path, fields, salvage))
            places.append(at)
    return {
        (field.field, places[number]): texts
        for number, results in run(read_texts, tasks)
        for field, texts in zip(tasks[number].wanted, results, strict=True)
    }


def _wanted(part: ShardColumns, name: str, kind: Number, rows: NDArray[np.int64]) -> NumberField:
    crcs = np.full(len(part.codes), -1) if part.crcs is None else part.crcs
    columns = [column[rows].astype(np.int64).tobytes() for column in (part.offsets, part.lengths, crcs)]
    return NumberField(name, kind, part.shard.format == "tfrecord", *columns)


def _no_number(part: ShardColumns, name: str, texts: Texts, kind: str) -> InvalidRequest:
    sample = int(part.owners()[dict(part.rows())[name][texts.first_bad]])
    return _other_kind(part, sample, name, "a text that no such number gives back", f"{kind}, as in TFRecord shards")


def _stays(name: str, kind: str, bad: list[Texts]) -> str:
    count, rounded = sum(texts.bad for texts in bad), sum(texts.rounded for texts in bad)
    if kind == "float" and rounded == count:
        return f"{name!r} stays text: {counted(count, 'value')} would be rounded in TFRecord's 32-bit floats"
    return f"{name!r} stays text: {counted(count, 'value')} would be another text after TFRecord's {kind}"


def _columns(
    names: Collection[str], parts: Sequence[ShardColumns], found: Mapping[tuple[str, int], Texts]
) -> dict[str, Names]:
    """Return a text for each sample of all parts, by field; empty where a sample has none."""
    blocks: dict[str, list[bytes]] = {name: [] for name in names}
    for at, part in enumerate(parts):
        rows = dict(part.rows()) if any((name, at) in found for name in names) else {}
        for name, column in blocks.items():
            texts = found.get((name, at))
            column.append(bytes(len(part)) if texts is None else _spread(texts.data, part, rows[name]))
    return {name: Names.parse(b"".join(column)) for name, column in blocks.items()}


def _spread(texts: bytes, part: ShardColumns, rows: NDArray[np.int64]) -> bytes:
    """Return a text for each sample of a part, a NUL after each, from those of some rows."""
    if len(rows) == len(part):
        return texts
    column = [b"\0"] * len(part)
    for owner, text in zip(part.owners()[rows].tolist(), texts.split(b"\0"), strict=False):  # after the last is nothing
        column[owner] = text + b"\0"
    return b"".join(column)

"""The shards of datasets, each as columns: what its sidecar says, or what a walk over it found; and their numbers.

A dataset file of ours is the promise of what is there: whatever is not as it says is an error, never a reason to walk,
for only a sidecar has metadata and checksums. No payload is read here, and nothing is trusted that a page or a footer
of a sidecar claims: see `shardtool.dataset.shard_index`.

All TFRecord shards must agree on what a field is. A tar shard holds texts, whatever they stand for, and no lists.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardtool.dataset import shard_index
from shardtool.dataset.shard_file import FeatureConflict, Survey, is_packed, unopened, walked_text
from shardtool.entries.entries import Names
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, printable, reason
from shardtool.pattern import sidecar_name
from shardtool.select.fields import check_count
from shardtool.skipped import Skipped
from shardtool.source.base import NumberField, Texts, TextTask, read_texts
from shardtool.storage.places import file_fact, is_url, open_file
from shardtool.values import FIELD_LIMIT, Kind, Number, SpanFile, counted, to_bytes
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.find import StoredShard
    from shardtool.storage.places import FileFact

    _Run = Callable[[Callable[[TextTask], list[Texts]], Iterable[TextTask]], Iterator[tuple[int, list[Texts]]]]

_EMPTY = shard_index.walked_index(Survey("", "tar", 0))
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
class SourceShard:
    """A shard of a source.

    Attributes:
        stored: The shard.
        file: Where, and what the file system says of it.
        format: `tar` or `tfrecord`.
        dataset: The place of its dataset among those that were given.
        kinds: Field to what it holds, where that is no bytes; in a tar, what its texts stand for. None: of a TFRecord,
            of which only a walk can tell.
        index: Where its samples lie, and their metadata; empty before it was listed.
        unlike: Field to the first feature that is no single value, or of another kind, as far as the shard was walked.
        skipped: What the shard holds that is no part of a sample.
        whole: bool per field: whether its bytes are all that a list holds; None: none are, as far as was walked.
        joined: How many samples were put together of fields that lie apart.
    """

    stored: StoredShard
    file: SpanFile
    format: str
    dataset: int
    kinds: Mapping[str, Kind] | None
    index: shard_index.ShardIndex = _EMPTY
    unlike: Mapping[str, FeatureConflict] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    whole: NDArray[np.bool_] | None = None
    joined: int = 0

    @property
    def path(self) -> str:
        """Its path."""
        return self.stored.path

    @property
    def name(self) -> str:
        """Its file name, as outputs have it."""
        return self.stored.name

    def kind(self, field_name: str) -> Kind:
        """Return what a field holds, or what its texts stand for."""
        return (self.kinds or {}).get(field_name, "bytes")

    def rows_of(self, field_name: str) -> NDArray[np.int64]:
        """Return the rows of a field that it has."""
        return np.flatnonzero(self.index.codes == self.index.names.index(field_name))

    def key(self, sample: int) -> str:
        """Return a sample's key."""
        return self.index.keys_of(np.array([sample]))[0]

    def where(self, sample: int) -> str:
        """Name a sample, for messages."""
        return f"{self.path}, {printable(self.key(sample))}"

    def where_first(self, field_name: str) -> str:
        """Name the first sample that has a field, for messages."""
        return self.where_value(field_name, 0)

    def where_value(self, field_name: str, at: int) -> str:
        """Name the sample that has a value of a field, for messages."""
        return self.where(int(np.searchsorted(self.index.firsts, self.rows_of(field_name)[at], side="right")) - 1)


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


def sidecar_bytes(shard: SourceShard) -> tuple[FileFact, bytes] | CorruptShard | None:
    """Return the sidecar of a shard, and what the file system says of it; what is wrong; None where it has none."""
    stored = shard.stored
    if is_packed(stored.path):
        return None
    path = stored.sidecar
    try:
        return file_fact(path), shard_index.read_bytes(path)
    except FileNotFoundError:
        if stored.entry is None and (is_url(path) or not os.path.islink(path)):
            return None
        found = "no such file"
    except OSError as error:
        found = f"cannot be read: {reason(error)}"
    except AccessRefused:
        if stored.entry is None:  # said of what is not there, too, where we may not list
            return None
        raise
    return CorruptShard(path, found, expected=f"the index of {stored.name}", remedy=_remedy())


def indexed(shard: SourceShard, data: bytes) -> SourceShard:
    """Return a shard with what its sidecar says.

    Raises:
        CorruptShard: It is damaged, of another shard, or not the one that the dataset file lists.
    """
    index = shard_index.sidecar_of(data, shard.stored.sidecar, shard.name, shard.file.size, shard.stored.entry)
    return replace(shard, index=replace(index, metadata=index.plain_metadata()))


def needs_walk(shard: SourceShard) -> bool:
    """Tell whether a shard that has an index must be walked: so alone are its checksums or kinds known."""
    return (shard.format == "tfrecord" and shard.kinds is None) or shard.index.crcs is None


def walked(shard: SourceShard, found: Survey, *, has_index: bool) -> SourceShard:
    """Return a shard with what a walk found, with the metadata from its sidecar.

    Raises:
        CorruptShard: The shard is damaged, or is not the one of its sidecar.
    """
    if (error := found.error) is not None:
        if has_index:
            raise error
        remedy = f"{error.remedy} {option('on_error', 'skip')} leaves out what is damaged.".strip()
        raise CorruptShard(error.where, error.problem, offset=error.offset, expected=error.expected, remedy=remedy)
    index = shard_index.walked_index(found)
    unlike = {index.names[code]: one for code, one in found.unlike.items()}
    skipped, kinds = tuple(_skipped(shard.name, found)), index.kinds or shard.kinds
    part = replace(shard, index=index, kinds=kinds, unlike=unlike, skipped=skipped, whole=_whole(found))
    if not has_index:
        return arranged(put_together(part) if found.format == "tar" else part)
    part, before = arranged(part), arranged(shard).index
    if any(shard_index.differences(before, part.index)):
        remedy = f"{_remedy()} Or move {sidecar_name(shard.name)} away: without it, metadata is lost."
        raise CorruptShard(shard.path, "other samples, offsets or checksums than in its sidecar", remedy=remedy)
    return replace(part, index=replace(part.index, metadata=before.metadata))


def arranged(part: SourceShard) -> SourceShard:
    """Return the shard with the fields of each sample in the order of the bytes of their names, in little memory.

    Raises:
        InvalidRequest: There are too many different fields, or too many in a sample.
    """
    index, whole = part.index, part.whole
    counts = index.counts
    if len(index) and int(counts.max()) > FIELD_LIMIT:
        sample = int(counts.argmax())
        many = f"{int(counts[sample]):,} fields"
        raise InvalidRequest(part.where(sample), many, expected=f"at most {FIELD_LIMIT:,}")
    used = np.bincount(index.codes, minlength=len(index.names)).tolist()
    names = sorted({name for name, times in zip(index.names, used, strict=True) if times}, key=to_bytes)
    check_count(part.path, names)
    place = {name: at for at, name in enumerate(names)}
    columns: dict[str, Any] = {
        "codes": np.array([*(place.get(name, 0) for name in index.names), 0], np.uint16)[index.codes],
        "offsets": _narrow(index.offsets), "lengths": _narrow(index.lengths), "crcs": index.crcs, "whole": whole,
    }  # fmt: skip
    owners = index.owners()
    if np.any((columns["codes"][1:] < columns["codes"][:-1]) & (owners[1:] == owners[:-1])):
        order = np.lexsort((columns["codes"], owners))
        columns = {name: None if column is None else column[order] for name, column in columns.items()}
    nothing, whole = np.broadcast_to(np.int64(0), len(index)), columns.pop("whole")
    found = shard_index.ShardIndex(
        keys=index.keys, key_ends=_narrow(index.key_ends), starts=nothing, sizes=nothing, firsts=_narrow(index.firsts),
        names=tuple(names), metadata=index.metadata, **columns,
    )  # fmt: skip
    return replace(part, index=found, whole=whole)


def _narrow(column: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a column of uint32, where its numbers allow that."""
    return column.astype(np.uint32 if 0 <= column.max(initial=0) < _WIDE else np.int64)


def put_together(part: SourceShard) -> SourceShard:
    """Return a walked tar with the fields of a sample together, where they lie apart: all of them do.

    So does a plain `tar` of a folder that holds all images, and then all labels. Samples of one key that share a field
    are others than that, and stay as they are.
    """
    index = part.index
    keys = index.all_keys()
    places = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    if len(places) == len(keys):
        return part
    sample = np.array([places[key] for key in keys])
    owners = sample[index.owners()]
    order = np.lexsort((index.codes, owners))
    codes, owners = index.codes[order], owners[order]
    if np.any((codes[1:] == codes[:-1]) & (owners[1:] == owners[:-1])):
        return part
    counts, sizes = np.bincount(owners, minlength=len(places)), [*map(len, places)]
    key_ends, firsts = shard_index.ends_of(sizes), shard_index.ends_of(counts)
    found = replace(
        index, keys=b"".join(places), key_ends=key_ends, starts=index.starts[: len(places)], firsts=firsts, codes=codes,
        offsets=index.offsets[order], lengths=index.lengths[order],
    )  # fmt: skip
    return replace(part, index=found, joined=int(np.count_nonzero(np.bincount(sample) > 1)))


def _whole(found: Survey) -> NDArray[np.bool_] | None:
    """Return which rows are all that a list holds."""
    if not found.whole:
        return None
    whole = np.zeros(len(found.codes), np.bool_)
    whole[np.frombuffer(found.whole, np.uint64).astype(np.int64)] = True
    return whole


def _skipped(shard: str, found: Survey) -> Iterator[Skipped]:
    """Yield what a shard holds besides samples and folders, and what of it was lost."""
    for lost in found.lost:
        yield Skipped("", shard, "damaged", str(lost))
    for start, key, why in found.broken:
        yield Skipped(walked_text(key), shard, "damaged", f"at {start:,}: {why}")
    for one in found.odd:
        path = f"{shard}:{walked_text(one.name)}"
        if one.is_file and one.name:
            yield Skipped("", path, "no-field", "the name has no ending that could name a field")
        elif one.name and not one.name.endswith(b"/"):
            yield Skipped("", path, "special-file", "a link, device or sparse file")


def _remedy() -> str:
    mends = either("`verify(repair=True)`", "--repair")
    return f"`shardtool verify` tells what is wrong, and {mends} mends what it can."


class NumberFields(NamedTuple):
    """The fields that are numbers or lists.

    Attributes:
        numbers: Field to what it is in all shards that have it.
        texts: For each part, the fields whose rows are INLINE, and the texts of these.
        lists: Field to what its values are, where not all samples that have it hold just one: none of `numbers`.
        notes: What the user should know.
    """

    numbers: Mapping[str, Number]
    texts: Sequence[Mapping[str, Texts]]
    lists: Mapping[str, Kind]
    notes: tuple[str, ...]

    def columns(self, parts: Sequence[SourceShard]) -> dict[str, Names]:
        """Return, by field, a text for each sample of all parts; empty where it is not INLINE."""
        names = dict.fromkeys(name for texts in self.texts for name in texts)
        both = [*zip(parts, self.texts, strict=True)]
        return {name: Names.parse(b"".join([_spread(name, part, texts) for part, texts in both])) for name in names}

    def damaged(self, parts: Sequence[SourceShard]) -> list[tuple[int, str]]:
        """Return the samples, counted over all parts, with a number that has not its checksum; and their shards."""
        lost, first = dict[int, str](), 0
        for part, fields in zip(parts, self.texts, strict=True):
            for name, texts in fields.items():
                if texts.damaged:
                    owners = part.index.owners()[part.rows_of(name)[texts.damaged]]
                    lost.update(dict.fromkeys((first + owners).tolist(), part.name))
            first += len(part.index)
        return sorted(lost.items())


def _spread(name: str, part: SourceShard, texts: Mapping[str, Texts]) -> bytes:
    """Return a text for each sample of a part, a NUL after each, where `texts` has those of a field."""
    if name not in texts:
        return bytes(len(part.index))
    data, rows = texts[name].data, part.rows_of(name)
    if len(rows) == len(part.index):
        return data
    column = [b"\0"] * len(part.index)
    for owner, text in zip(part.index.owners()[rows].tolist(), data.split(b"\0")[:-1], strict=True):
        column[owner] = text + b"\0"
    return b"".join(column)


def find_numbers(
    parts: Sequence[SourceShard], wanted: Callable[[str], bool], to_format: str, run: _Run, *, salvage: bool = False
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
    having: dict[str, list[SourceShard]] = {}
    for part in parts:
        for name in filter(wanted, part.index.names):
            having.setdefault(name, []).append(part)
    stored = {name: kind for name, some in having.items() if (kind := _stored_kind(name, some)) is not None}
    lists = {name: kind for name, kind in stored.items() if _is_list(name, kind, having[name])}
    numbers = {name: kind for name, kind in stored.items() if kind != "bytes" and name not in lists}
    kinds = {name: sorted({part.kind(name) for part in some}) for name, some in having.items()}
    recorded: dict[str, list[Number]] = {
        name: [kind for kind in some if kind != "bytes"] for name, some in kinds.items() if name not in stored
    }
    maybe = {name: kinds[0] for name, kinds in recorded.items() if len(kinds) == 1 and to_format == "tfrecord"}
    notes = [
        f"{name!r} stays text: it stands for {' and '.join(kinds)} in different datasets"
        for name, kinds in recorded.items()
        if len(kinds) > 1 and to_format == "tfrecord"
    ]
    agreed = {name: some[0] for name, some in kinds.items() if len(some) == 1 and some[0] != "bytes"}
    of_tar = {**numbers, **maybe} if to_format == "tfrecord" else {}
    found = _read(parts, numbers, of_tar, run, salvage=salvage)
    for name in of_tar:
        bad = {at: texts[name] for at, texts in enumerate(found) if name in texts and texts[name].bad}
        if bad and name in numbers:
            at, texts = next(iter(bad.items()))
            where = parts[at].where_value(name, texts.first_bad)
            expected = f"{numbers[name]}, as in TFRecord shards"
            raise _other_kind(where, name, "a text that no such number gives back", expected)
        if bad:
            notes.append(_stays(name, maybe.pop(name), [*bad.values()]))
            for fields in found:
                fields.pop(name, None)
    return NumberFields({**numbers, **maybe} if to_format == "tfrecord" else agreed, found, lists, tuple(notes))


def _check_alike(part: SourceShard, wanted: Callable[[str], bool], to_format: str) -> None:
    """Check that the values of each field of a part are of one kind, and single where a tar is to hold them."""
    unlike = {name: one for name, one in part.unlike.items() if wanted(name)}
    for name, one in unlike.items():
        if one.kind != part.kind(name):
            raise _other_kind(part.where(one.sample), name, one.kind, f"{part.kind(name)}, as in the samples before it")
        if to_format == "tar":
            found = f"the field {name!r} is a list of {one.values:,} {one.kind} values"
            remedy = f"Write TFRecord shards, or leave lists out with {option('drop_fields', tuple(unlike))}."
            expected = "one: a tar shard holds no lists"
            raise InvalidRequest(part.where(one.sample), found, expected=expected, remedy=remedy)


def _is_list(name: str, kind: Kind, having: Sequence[SourceShard]) -> bool:
    """Tell whether some sample has not just one value of a field that these shards have.

    Raises:
        InvalidRequest: They are numbers, and a tar shard has texts of that name.
    """
    first = next((part for part in having if name in part.unlike), None)
    if first is None:
        return False
    for part in having if kind != "bytes" else ():
        if part.format == "tar":
            raise _other_kind(part.where_first(name), name, "text", f"a list of {kind}, as in {first.name}")
    return True


def _stored_kind(name: str, having: Sequence[SourceShard]) -> Kind | None:
    """Return what TFRecord shards have in a field that these shards have; None where none of them is a TFRecord."""
    stored = [part for part in having if part.format == "tfrecord"]
    for part in stored:
        if part.kind(name) != (first := stored[0]).kind(name):
            before = f"{first.kind(name)}, as in {first.name}"
            raise _other_kind(part.where_first(name), name, part.kind(name), before)
    return stored[0].kind(name) if stored else None


def _other_kind(where: str, name: str, kind: str, expected: str) -> InvalidRequest:
    remedy = f"Reshard them apart, or leave it out with {option('drop_fields', (name,))}."
    return InvalidRequest(where, f"the field {name!r} is {kind}", expected=expected, remedy=remedy)


def _read(
    parts: Sequence[SourceShard],
    numbers: Mapping[str, Number],
    of_tar: Mapping[str, Number],
    run: _Run,
    *,
    salvage: bool,
) -> list[dict[str, Texts]]:
    """Return, for each part, the texts of each of the fields."""
    tasks, places, found = [], [], [dict[str, Texts]() for _ in parts]
    for at, part in enumerate(parts):
        index, stored = part.index, part.format == "tfrecord"
        kinds, fields = numbers if stored else of_tar, list[NumberField]()
        crcs = np.broadcast_to(-1, len(index.codes)) if index.crcs is None else index.crcs
        for name in filter(kinds.__contains__, index.names):
            rows = part.rows_of(name)
            columns = (one[rows].astype(np.int64).tobytes() for one in (index.offsets, index.lengths, crcs))
            fields.append(NumberField(name, kinds[name], stored, *columns))
        if fields:
            tasks.append(TextTask(part.file, tuple(fields), salvage))
            places.append(at)
    for number, results in run(read_texts, tasks):
        names = [one.field for one in tasks[number].wanted]
        found[places[number]].update(zip(names, results, strict=True))
    return found


def _stays(name: str, kind: str, bad: list[Texts]) -> str:
    count, rounded = sum(texts.bad for texts in bad), sum(texts.rounded for texts in bad)
    if kind == "float" and rounded == count:
        return f"{name!r} stays text: {counted(count, 'value')} would be rounded in TFRecord's 32-bit floats"
    return f"{name!r} stays text: {counted(count, 'value')} would be another text after TFRecord's {kind}"

"""The shard source: datasets become `Entries`, in the order in which they are given.

A payload is a SPAN of its shard, and a number of a TFRecord an INLINE text; what a payload's checksum must be comes
along, for the packer that reads it. Sidecars tell where payloads lie, without an object for each; shards without one
are walked by workers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from shardtool.dataset import feature_kinds
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.sample import INLINE, SPAN, to_bytes
from shardtool.source import buffers, keys
from shardtool.source.datasets import open_datasets
from shardtool.source.entries import Entries
from shardtool.source.numberfields import find_numbers
from shardtool.source.shardparts import (
    Seen,
    arranged,
    check_fields,
    needs_walk,
    read_sidecar,
    walked_part,
)
from shardtool.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.columns import Names
    from shardtool.dataset import DatasetFile
    from shardtool.sample import Dots
    from shardtool.source.datasets import Dataset
    from shardtool.source.numberfields import NumberFields
    from shardtool.source.shardparts import Part

_FINGERPRINT = re.compile(r"b2:([0-9a-f]{64})")
_BAD_FIELD = re.compile(r"[\x00-\x1f\x7f]|^$")
_NOTHING = np.zeros(0, np.int64)
_DOTTED = re.compile(rb"[^/\0]\.[^/\0]*\0")


class Pool(Protocol):
    """Worker processes."""

    def map(self, function: Callable[..., Any], tasks: Iterable[object], /) -> Iterator[tuple[int, Any]]:
        """Yield (number, result) of each task as it is done."""


class Listener(Protocol):
    """Is told how the listing goes on."""

    def listed(self, samples: int, /) -> None:
        """Take how many more samples were found."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The samples of datasets.

    Attributes:
        entries: The samples.
        shard: int32[samples]: the place in `shards` of the shard that each lies in.
        shards: File names.
        dots: Where keys must end in members' names: `last` where a dataset says so, or a key has a dot in its name.
        name: The datasets' names, for the dataset file.
        notes: What the user should know.
        packed: Whether some shards are compressed: their offsets count in what they hold, read in sequence only.
        digest: The content fingerprint of all samples, as the dataset files have it; None where one of them does not.
    """

    entries: Entries
    shard: NDArray[np.int32]
    shards: tuple[str, ...]
    dots: Dots
    name: str
    notes: tuple[str, ...]
    packed: bool
    digest: int | None


def list_datasets(  # noqa: PLR0913 - what there is to say
    givens: Sequence[Any],
    pool: Pool,
    observer: Listener,
    *,
    to_format: str,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Listed:
    """Return the samples of datasets, one after the other.

    Args:
        givens: Each a dataset: a dataset file, a pattern, a glob, a folder, or a list of shards.
        pool: Walks shards that have no sidecar, and reads numbers.
        observer: Is told how many samples were found.
        to_format: What they will be written as: `tar` or `tfrecord`.
        only: The fields that will be taken; empty: all. Others are listed as they lie, and nothing in them is an error.
        without: Fields that will not be taken, likewise.

    Raises:
        InvalidRequest: There is no such dataset, or its samples cannot be those of one dataset.
        CorruptShard: A shard, sidecar or dataset file is damaged, or missing.
    """

    def wanted(name: str) -> bool:
        return (not only or name in only) and name not in without

    seen = Seen()
    datasets = open_datasets(givens, seen)
    parts = _read_parts(datasets, seen, pool, observer)
    for part in parts:
        _check_rows(part, wanted)
    classes, notes = _classes(datasets, parts, wanted)
    numbers = find_numbers(parts, wanted, to_format, pool.map)
    columns = _columns(parts, datasets)
    shards = [part.shard for part in parts]
    counts = [len(part) for part in parts]
    entries = replace(_entries(parts, numbers, seen), classes=classes, columns=columns)
    pa.default_memory_pool().release_unused()  # what all of the sidecars took
    dots: Dots = "last" if any(shard.dots == "last" for shard in shards) or _dotted(entries.keys) else "first"
    dotted = [repr(printable(name)) for name in entries.fields if "." in name.strip(".") and wanted(name)]
    if dots == "last" and dotted and to_format == "tar":
        notes.append(
            f"keys with dots, and fields too ({listing(dotted)}): readers tear such names; --portable mends keys"
        )
    return Listed(
        entries=entries,
        shard=np.repeat(np.arange(len(shards), dtype=np.int32), counts),
        shards=tuple(shard.name for shard in shards),
        dots=dots,
        name=", ".join(dataset.name for dataset in datasets),
        notes=(*(note for dataset in datasets for note in dataset.notes), *notes, *numbers.notes),
        packed=any(shard.packed for shard in shards),
        digest=_digest(datasets),
    )


def _read_parts(datasets: list[Dataset], seen: Seen, pool: Pool, observer: Listener) -> list[Part]:
    """Return what lies in each shard: as its sidecar says, or a walk finds."""
    shards = [shard for dataset in datasets for shard in dataset.shards]
    told: dict[int, Part | None] = {}
    parts: dict[int, Part] = {}
    for at, shard in enumerate(shards):
        part = read_sidecar(shard, seen)
        if part is None or needs_walk(shard, part):
            told[at] = part
        else:
            parts[at] = arranged(part)
            observer.listed(len(part))
    places = [*told]
    for number, found in pool.map(survey, [shards[at].walk for at in places]):
        at = places[number]
        parts[at] = arranged(walked_part(shards[at], found, told.pop(at)))
        observer.listed(len(parts[at]))
    return [parts[at] for at in range(len(shards))]


def _check_rows(part: Part, wanted: Callable[[str], bool]) -> None:
    """See that fields have names, and no sample has one twice."""
    for name in filter(wanted, part.names):
        if _BAD_FIELD.search(name):
            where = part.where(int(part.owners()[np.flatnonzero(part.codes == part.names.index(name))[0]]))
            found = f"the field {name!r}, without a name or with control characters in it"
            raise InvalidRequest(where, found, remedy="Make the shard anew with other names.")
    owners = part.owners()
    twice = np.flatnonzero((part.codes[1:] == part.codes[:-1]) & (owners[1:] == owners[:-1]))
    for row in twice.tolist():
        name = part.names[part.codes[row]]
        if wanted(name):
            raise InvalidRequest(
                part.where(int(owners[row])), f"the field {name!r} twice", expected="each field once",
                remedy=f"Leave it out with --drop-fields {name}, or make the shard anew.",
            )  # fmt: skip


def _entries(parts: list[Part], numbers: NumberFields, seen: Seen) -> Entries:
    """Return the samples of all parts, which are used up by it, without classes and metadata."""
    fields = sorted({name for part in parts for name in part.names}, key=to_bytes)
    check_fields("DATASET", fields)
    place = {name: at for at, name in enumerate(fields)}
    files, counts = tuple(part.shard.file for part in parts), [len(part) for part in parts]
    left_out = tuple(one for part in parts for one in part.left_out)
    names, rows = _keys(parts), [len(part.codes) for part in parts]
    kind = np.full(sum(rows), SPAN, np.uint8)
    row = 0
    for at, part in enumerate(parts):
        codes = np.array([*map(place.get, part.names), 0], np.uint16)[part.codes]
        parts[at] = replace(
            _inlined(part, at, numbers, kind[row : row + rows[at]]), codes=codes, names=(), keys=None, columns=None
        )
        row += rows[at]
    inline = kind == INLINE
    offset, expected = _drained(parts, "offsets", rows, np.int64), _drained(parts, "crcs", rows, np.int64)
    offset[inline], expected[inline] = 0, -1
    return Entries(
        root=b"",
        keys=names,
        first=np.concatenate((np.zeros(1, np.int64), np.cumsum(_drained(parts, "counts", counts, np.int64)))),
        fields=tuple(fields),
        code=_drained(parts, "codes", rows, np.uint16),
        kind=kind,
        size=_drained(parts, "lengths", rows, np.int64),
        mtime_ns=np.broadcast_to(np.int64(0), row),
        changed_ns=np.broadcast_to(np.int64(seen.changed_ns), row),
        left_out=left_out,
        inline=numbers.texts,
        numbers=numbers.numbers,
        offset=offset,
        files=files,
        file=np.repeat(np.arange(len(parts), dtype=np.uint32), counts),
        expected=expected,
        identity=seen.identity,
    )


def _inlined(part: Part, place: int, numbers: NumberFields, kind: NDArray[np.uint8]) -> Part:
    """Return a part whose numbers are INLINE: their sizes are those of their texts.

    Args:
        part: The part.
        place: Its place among all.
        numbers: The numbers.
        kind: uint8 a row of the part; is set to INLINE for these.
    """
    fields = {name: found[place] for name, found in numbers.sizes.items() if place in found}
    if not fields:
        return part
    lengths = part.lengths.copy()
    for name, rows in part.rows():
        if name in fields:
            kind[rows], lengths[rows] = INLINE, fields[name]
    return replace(part, lengths=lengths)


def _drained(parts: list[Part], name: str, counts: list[int], kind: type[Any]) -> NDArray[Any]:
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


def _keys(parts: list[Part]) -> Names:
    """Return the keys of all parts.

    Raises:
        InvalidRequest: One cannot be part of a file's name.
    """
    names, bad = keys.gather(part.keys for part in parts)
    for sample in bad.tolist():
        first = 0
        for part in parts:
            if sample < first + len(part):
                raise InvalidRequest(
                    part.shard.path, f"the key {printable(part.key(sample - first))!r}",
                    expected="a path such as cat/0001, without control characters and parts like `..`",
                    remedy="Make the shard anew with other keys.",
                )  # fmt: skip
            first += len(part)
    return names


def _dotted(names: Names) -> bool:
    """Tell whether the first dot would end a key before its end. One that starts the last part is no such dot."""
    return b"." in names.data and bool(_DOTTED.search(names.data))


def _classes(
    datasets: list[Dataset], parts: list[Part], wanted: Callable[[str], bool]
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
        told = {at: file.classes[name] for at in places if (file := datasets[at].file) and name in file.classes}
        for at, classes in told.items():
            if classes != found.setdefault(name, classes):
                first = datasets[next(iter(told))].name
                raise InvalidRequest(
                    f"the field {name!r}", f"other classes in {datasets[at].name} ({listing(classes)})",
                    expected=f"those of {first}: {listing(found[name])}",
                    remedy=f"Number them anew with --field {name}=COLUMN --classes {name}, or leave the field out with "
                    f"--drop-fields {name}.",
                )  # fmt: skip
        if told and len(told) < len(places):
            others = [datasets[at].name for at in places if at not in told]
            notes.append(
                f"the classes of {name!r} are those of the datasets that name them: {listing(others)} does not"
            )
    return found, notes


def _columns(parts: list[Part], datasets: list[Dataset]) -> Any:
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
        return buffers.compact(pa.concat_tables(tables, promote_options="permissive").select(names))
    except pa.ArrowException as error:
        for name in names:
            _check_alike(name, parts, datasets)
        raise InvalidRequest("DATASET", f"metadata that cannot be one table: {str(error)[:200]}") from None


def _check_alike(name: str, parts: list[Part], datasets: list[Dataset]) -> None:
    """See that the values of a column can be one column."""
    kinds: dict[str, str] = {}
    columns = []
    for part in parts:
        if part.columns is not None and name in part.columns.column_names:
            columns.append(part.columns.select([name]))
            kinds.setdefault(str(columns[-1].schema.types[0]), datasets[part.shard.dataset].name)
            try:
                pa.concat_tables(columns, promote_options="permissive")
            except pa.ArrowException:
                shown = ", ".join(f"{kind} in {where}" for kind, where in kinds.items())
                raise InvalidRequest(
                    f"the column {name!r}", shown, expected="types that can be one",
                    remedy="Reshard them apart, with --join to give the column another type.",
                ) from None  # fmt: skip


def _digest(datasets: list[Dataset]) -> int | None:
    """Return the sum of the datasets' fingerprints; None where one is not known to be that of what was listed."""
    total = 0
    for dataset in datasets:
        file = dataset.file
        match = _FINGERPRINT.fullmatch(file.fingerprint) if file is not None and dataset.whole else None
        if file is None or match is None or _from_other_texts(file):
            return None
        total += int(match[1], 16)
    return total % 2**256


def _from_other_texts(file: DatasetFile) -> bool:
    """Tell whether a fingerprint may be that of texts which a TFRecord's numbers do not give back."""
    kinds = {*feature_kinds(file.features).values()}
    appended = file.made.get("appended")
    runs = [file.made, *(appended if isinstance(appended, list) else ())]
    options = [run.get("options") for run in runs if isinstance(run, dict)]
    return "float" in kinds or bool(kinds and any(isinstance(one, dict) and "map" in one for one in options))

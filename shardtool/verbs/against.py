"""A dataset compared with what it was made from, by key, and its names with what readers make of them.

The source is listed as `create` lists it, with the options that the dataset file recorded; files are read by the
workers. What is recorded is never executed: with `--map`, whose function could make any sample, nothing is compared.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.checksum import crc32c
from shardtool.columns import Names
from shardtool.errors import InvalidRequest, printable
from shardtool.findings import Finding
from shardtool.pattern import parse_pattern
from shardtool.reading import read_small
from shardtool.sample import FILE, INLINE, LINK, SPAN, counted, output_text, to_bytes
from shardtool.storage import READ_FOLLOWING, READ_PLAIN, read_blocks
from shardtool.survey import walked_text
from shardtool.verbs.listing import open_source
from shardtool.verbs.options import CreateOptions
from shardtool.verbs.shardchecks import column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset import DatasetFile
    from shardtool.execute.local import LocalPool
    from shardtool.source.entries import Entries
    from shardtool.survey import Survey
    from shardtool.verbs.verify import Look

_MOST = 100  # findings of a code: the rest tells nothing new, and is counted
_FILES_A_TASK = 1000
_BLOCK = 2**20
_CHANGES = ("resize", "encode")  # options that give payloads another content
_READERS = {
    "dot-in-key": ("webdataset", "wids", "dali", "energon", "huggingface"),
    "space-in-key": ("dali",),
    "meta-key": ("webdataset", "huggingface"),
    "long-name": ("wids", "dali"),
    "upper-case-field": ("webdataset", "dali", "huggingface"),
    "meta-field": ("webdataset",),
    "large-member": ("wids",),
    "missing-field": ("huggingface",),
}


def recorded_options(file: DatasetFile | None) -> CreateOptions:
    """Return the options that a dataset was made with, as far as its dataset file tells.

    Raises:
        InvalidRequest: It tells of something that is no option.
    """
    told = file.made.get("options", {}) if file else {}
    defaults = {one.name: one.default for one in fields(CreateOptions)}
    found: dict[str, Any] = {}
    for name, value in told.items() if isinstance(told, dict) else ():
        if name not in defaults or name in ("workers", "start_method", "if_exists", "root", "allow_outside"):
            raise InvalidRequest(
                "--source", f"the dataset file records {printable(str(name))[:80]!r}", expected="options"
            )
        found[name] = tuple(map(str, value)) if isinstance(value, list) else value
        if not isinstance(value, (str, int, bool, list)):
            raise InvalidRequest("--source", f"the dataset file records {name} as {type(value).__name__}")
    return CreateOptions(**found)


def look_made(look: Look) -> str:
    """Return the verb that made a dataset, as its dataset file tells; empty where it does not."""
    return str(look.file.made.get("verb", "")) if look.file else ""


class Comparison:
    """A dataset and its source.

    Args:
        look: The dataset.
        source: What it was made from.

    Raises:
        InvalidRequest: There is no such source.
    """

    def __init__(self, look: Look, source: Any) -> None:
        self.look = look
        self.options = recorded_options(look.file)
        self.changed = any(getattr(self.options, name) is not None for name in _CHANGES)
        listing = replace(self.options, on_error="skip", map=None)
        outputs = [parse_pattern([os.path.join(look.found.folder, case.name) for case in look.cases])]
        self.source = open_source(source, listing, outputs)

    def run(self, pool: LocalPool) -> None:
        """Compare; tell `look` of what differs."""
        if self.options.map:
            self.look.unchecked.append("the source: --map made the samples, and is not run again")
            return
        entries = self._entries(pool)
        if not self.look.surveys:
            return
        numbers = sorted(self.look.surveys)
        surveys = [self.look.surveys[number] for number in numbers]
        ends = np.cumsum([len(one.keys) for one in surveys])
        theirs = _key_column(entries.keys.data, entries.keys.starts)
        ours = _key_column(*_join([key for one in surveys for key in one.keys]))
        place = pc.index_in(ours, value_set=theirs).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        self._missing(entries, place)
        self._extra(surveys, numbers, ends, place)
        if self.changed:
            self.look.unchecked.append("payloads against the source: --resize or --encode changed them")
            return
        self._compare_fields(entries, surveys, numbers, place, pool)

    def _entries(self, pool: LocalPool) -> Entries:
        """Return the samples of the source that belong into the dataset."""
        entries = self.source.entries(pool, self.look.observer)
        file, dividing = self.look.file, self.options.of_split()
        if dividing is not None and file is not None:
            from shardtool.divide import divide

            values = self.source.column(dividing.reads[1]) if dividing.reads else None
            splits = divide(entries.keys, dividing, values)
            name = file.made.get("split")
            if name not in splits.names:
                raise InvalidRequest("--source", f"no split {printable(str(name))[:80]!r} of it", expected="the source")
            entries = entries.take(splits.samples(splits.names.index(name)))
        if self.options.portable:
            from shardtool.interop.portability import make_portable

            entries = make_portable(entries)
        return entries

    def _add(self, code: str, total: int, findings: Iterator[Finding]) -> None:
        """Note the first of many findings of a code, and count the rest."""
        shown = [one for one, _ in zip(findings, range(_MOST), strict=False)]
        self.look.add(len(self.look.cases), *shown)
        if total > len(shown):
            self.look.counts[code] += total - len(shown)

    @property
    def _name(self) -> str:
        return output_text(os.path.basename(self.look.found.dataset_file or "") or self.look.found.folder or ".")

    def _missing(self, entries: Entries, place: NDArray[np.int64]) -> None:
        there = np.zeros(len(entries), bool)
        there[place[place >= 0]] = True
        left_out = _ledger(self.look)
        lacking = [int(at) for at in np.flatnonzero(~there) if printable(entries.keys[int(at)]) not in left_out]
        found = (
            Finding("source-missing", self._name, "not in the dataset", "a sample, as in the source",
                    key=walked_text(entries.keys[at])) for at in lacking
        )  # fmt: skip
        self._add("source-missing", len(lacking), found)

    def _extra(self, surveys: list[Survey], numbers: list[int], ends: Any, place: NDArray[np.int64]) -> None:
        extra = np.flatnonzero(place < 0).tolist()

        def each() -> Iterator[Finding]:
            for at in extra:
                shard = int((ends <= at).sum())
                row = at - (int(ends[shard - 1]) if shard else 0)
                survey, case = surveys[shard], self.look.cases[numbers[shard]]
                yield Finding("source-extra", case.name, "not in the source", "no such sample", survey.starts[row],
                              walked_text(survey.keys[row]))  # fmt: skip

        self._add("source-extra", len(extra), each())

    def _compare_fields(
        self, entries: Entries, surveys: list[Survey], numbers: list[int], place: NDArray[np.int64], pool: LocalPool
    ) -> None:
        """Compare the fields of samples that both have: their names, lengths and checksums."""
        known: dict[bytes, int] = {}
        for name in [*map(to_bytes, entries.fields), *(name for one in surveys for name in one.names)]:
            known.setdefault(name, len(known))
        theirs = _source_ids(entries, known)
        ours = _dataset_ids(surveys, place, known)
        _, mine, source = np.intersect1d(ours, theirs, return_indices=True)
        present = np.unique(place[place >= 0])
        has = np.isin(theirs // max(1, len(known)), present)
        lacking = np.setdiff1d(np.flatnonzero(has), source)
        self._add("source-missing", len(lacking), (
            Finding("source-missing", self._name, "a field that the dataset does not have", "as in the source",
                    key=walked_text(key), field=field)
            for key, field in (_of_row(entries, int(row)) for row in lacking)
        ))  # fmt: skip
        if look_made(self.look) != "create":
            self.look.unchecked.append("fields that the source does not have: how the dataset was made is not recorded")
            self._compare_payloads(entries, surveys, numbers, (mine, source), pool)
            return
        here = np.flatnonzero(ours >= 0)
        extra = np.setdiff1d(here, mine)
        self._add("source-extra", len(extra), (
            self._finding("source-extra", surveys, numbers, int(row), "a field that the source does not have")
            for row in extra
        ))  # fmt: skip
        self._compare_payloads(entries, surveys, numbers, (mine, source), pool)

    def _compare_payloads(
        self, entries: Entries, surveys: list[Survey], numbers: list[int], rows: tuple[Any, Any], pool: LocalPool
    ) -> None:
        mine, source = rows
        lengths = np.concatenate([column(one.lengths, np.int64) for one in surveys])
        crcs = np.concatenate([column(one.crcs, np.uint32) for one in surveys])
        plain = np.array([name not in entries.numbers or surveys[0].format == "tar" for name in entries.fields], bool)
        if len(plain) and not plain.all():
            self.look.unchecked.append("numbers against the source: TFRecord does not hold their text")
        stays = plain[entries.code[source]] if len(plain) else np.zeros(0, bool)
        mine, source = mine[stays], source[stays]
        differ = lengths[mine] != entries.size[source]
        sums = _source_sums(self.source, entries, source[~differ], pool)
        others = np.zeros(len(mine), bool)
        others[differ] = True
        others[np.flatnonzero(~differ)[sums != crcs[mine[~differ]]]] = True
        bad = np.flatnonzero(others)

        def each() -> Iterator[Finding]:
            for at in bad.tolist():
                size = int(entries.size[source[at]])
                what = f"{int(lengths[mine[at]]):,} bytes" if differ[at] else f"{int(crcs[mine[at]]):08x}"
                expected = f"{size:,}, as the source has" if differ[at] else "the checksum of the source's bytes"
                yield self._finding("source-differs", surveys, numbers, int(mine[at]), what, expected)

        self._add("source-differs", len(bad), each())

    def _finding(  # noqa: PLR0913, PLR0917 - the parts of a finding
        self, code: str, surveys: list[Survey], numbers: list[int], row: int, found: str, expected: str = ""
    ) -> Finding:
        """Return the finding about a field, by its row in all shards."""
        for number, survey in zip(numbers, surveys, strict=True):
            if row < len(survey.codes):
                sample = int(np.searchsorted(np.cumsum(np.frombuffer(survey.counts, np.uint32)), row, "right"))
                return Finding(
                    code, self.look.cases[number].name, found, expected, survey.offsets[row],
                    walked_text(survey.keys[sample]), walked_text(survey.names[survey.codes[row]]),
                )  # fmt: skip
            row -= len(survey.codes)
        raise IndexError(row)


def _source_ids(entries: Entries, known: dict[bytes, int]) -> NDArray[np.int64]:
    codes = np.array([known[to_bytes(name)] for name in entries.fields] or [0], np.int64)
    owners = np.repeat(np.arange(len(entries)), entries.counts())
    return np.asarray(owners * len(known) + codes[entries.code])


def _dataset_ids(surveys: list[Survey], place: NDArray[np.int64], known: dict[bytes, int]) -> NDArray[np.int64]:
    """Return what names each field's row: its sample's place in the source, and its name; -1 where there is none."""
    parts, first = [np.zeros(0, np.int64)], 0
    for survey in surveys:
        codes = np.array([known[name] for name in survey.names] or [0], np.int64)
        counts = column(survey.counts, np.uint32)
        owners = np.repeat(place[first : first + len(counts)], counts)
        rows = column(survey.codes, np.uint32)
        parts.append(np.where(owners < 0, -1, owners * len(known) + codes[rows]))
        first += len(counts)
    return np.asarray(np.concatenate(parts))


def _of_row(entries: Entries, row: int) -> tuple[bytes, str]:
    sample = int(np.searchsorted(entries.first, row, "right")) - 1
    return entries.keys[sample], entries.fields[int(entries.code[row])]


def _join(keys: Sequence[bytes]) -> tuple[bytes, NDArray[np.int64]]:
    lengths = np.array([len(key) + 1 for key in keys], np.int64)
    return b"".join([key + b"\0" for key in keys]), np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _key_column(data: bytes, starts: NDArray[np.int64]) -> Any:
    """Return keys, a NUL after each, as an Arrow array."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(starts)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts) - 1, buffers)


def _ledger(look: Look) -> set[str]:
    """Return the keys that the dataset tells to have left out."""
    if look.file is None or not look.file.skipped or "/" in look.file.name:
        return set()
    keys = set()
    try:
        rows = read_small(os.path.join(look.found.folder, f"{look.file.name}.skipped")).splitlines()
        keys = {str(json.loads(row)["key"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        look.unchecked.append("what was left out: its list cannot be read")
    return keys


@dataclass(frozen=True, slots=True)
class _Files:
    """Files to sum: their paths, and whether each is read through a link."""

    paths: tuple[bytes, ...]
    links: bytes


def sum_files(task: _Files) -> list[int]:
    """Return the CRC-32C of each file; -1 where it cannot be read. Runs in a worker."""
    buffer = memoryview(bytearray(_BLOCK))
    found = []
    for path, link in zip(task.paths, task.links, strict=True):
        crc = 0
        try:
            for got in read_blocks(path, buffer, READ_FOLLOWING if link else READ_PLAIN):
                if isinstance(got, int):
                    crc = crc32c(buffer[:got], crc)
        except OSError:
            crc = -1
        found.append(crc)
    return found


def _source_sums(source: Any, entries: Entries, rows: NDArray[np.int64], pool: LocalPool) -> NDArray[np.int64]:
    """Return the CRC-32C of the payloads of `rows` as the source has them."""
    sums = np.full(len(rows), -1, np.int64)
    kinds = entries.kind[rows]
    files = np.flatnonzero((kinds == FILE) | (kinds == LINK))
    chunks = [files[at : at + _FILES_A_TASK] for at in range(0, len(files), _FILES_A_TASK)]
    tasks = (
        _Files(tuple(entries.root + entries.path(int(rows[at])) for at in chunk), bytes(kinds[chunk] == LINK))
        for chunk in chunks
    )
    for number, found in pool.map(sum_files, tasks):
        sums[chunks[number]] = found
    for at in np.flatnonzero(kinds == INLINE).tolist():
        row = int(rows[at])
        sample = int(np.searchsorted(entries.first, row, "right")) - 1
        sums[at] = crc32c(entries.inline[entries.fields[int(entries.code[row])]].span(sample, sample + 1)[:-1])
    spans = np.flatnonzero(kinds == SPAN)
    if len(spans) and entries.offset is not None:
        sink = _Sums(entries.offset[rows[spans]], entries.size[rows[spans]])
        source.write_binary(sink)
        sums[spans] = sink.sums
    return sums


class _Sums:
    """Takes a spool's bytes in order, and keeps nothing of them but the checksums of spans."""

    def __init__(self, offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        self.sums = np.zeros(len(offsets), np.int64)
        self._order = np.argsort(offsets, kind="stable")
        self._starts, self._ends = offsets[self._order], (offsets + sizes)[self._order]
        self._at = self._next = 0

    def write(self, data: Any) -> None:
        """Take the bytes that follow."""
        view = memoryview(data)
        first, last = self._at, self._at + len(view)
        while self._next < len(self._starts) and self._starts[self._next] < last:
            start, end = int(self._starts[self._next]), int(self._ends[self._next])
            which = self._order[self._next]
            part = view[max(0, start - first) : min(end, last) - first]
            self.sums[which] = crc32c(part, int(self.sums[which]))
            if end > last:
                break
            self._next += 1
        self._at = last


def check_targets(look: Look, targets: Sequence[str]) -> None:
    """Tell `look` of names that a reader gets wrong."""
    from shardtool.interop.portability import misreads

    shards = [survey for _, survey in sorted(look.surveys.items())]
    if any(one.format != "tar" for one in shards):
        look.unchecked.append("names for readers: TFRecord shards have none")
        return
    for one in misreads(_entries_of(shards)):
        readers = [target for target in targets if target in _READERS[one.code]]
        if readers:
            what = f"{one.code}: {counted(one.count, one.what)}, such as '{one.example}'"
            look.add(len(look.cases), Finding("misread", ", ".join(readers), what, one.readers))


def _entries_of(surveys: Sequence[Survey]) -> Entries:
    """Return the samples of shards as a source's would be."""
    from shardtool.source.entries import Entries

    known: dict[bytes, int] = {}
    codes = [np.zeros(0, np.uint16)]
    for survey in surveys:
        here = np.array([known.setdefault(name, len(known)) for name in survey.names] or [0], np.uint16)
        if len(survey.codes):
            codes.append(here[np.frombuffer(survey.codes, np.uint32)])
    counts = np.array([count for survey in surveys for count in survey.counts], np.int64)
    rows = int(counts.sum())
    sizes = np.array([length for survey in surveys for length in survey.lengths], np.int64)
    return Entries(
        root=b"/",
        keys=Names.of([key.replace(b"\0", b"?") for survey in surveys for key in survey.keys]),
        first=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        fields=tuple(walked_text(name) for name in known),
        code=np.concatenate(codes),
        kind=np.full(rows, FILE, np.uint8),
        size=sizes,
        mtime_ns=np.zeros(rows, np.int64),
        changed_ns=np.zeros(rows, np.int64),
    )

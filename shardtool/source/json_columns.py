"""`--columns-from`: the top-level texts, numbers and truths of each sample's JSON field become columns of metadata."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest, listing
from shardtool.select.join import with_columns
from shardtool.skipped import Skipped
from shardtool.source.base import FILES_A_TASK, TASKS, file_tasks, span_tasks
from shardtool.source.json_scalars import LONG_TEXT, read_scalars
from shardtool.table.columns import check_names, check_sidecar_names, no_such
from shardtool.table.open import MemoryTable, read_columns
from shardtool.table.text import read_json_lines
from shardtool.values import INLINE, SPAN, counted, to_text
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.skipped import SkipCode
    from shardtool.source.base import Files, Listing, Spans
    from shardtool.source.json_scalars import Scalars

    Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Found:
    """What workers found in the payloads of a field.

    Attributes:
        lines: A JSON object and a newline for each payload.
        rows: int64, the row of each.
        kinds: For each name, how many of its values are of which kind.
        long: For each name, how many of its values are texts that were left out, for they are far too long.
        failed: The samples whose field cannot be read, by their places.
    """

    lines: bytes
    rows: Rows
    kinds: Mapping[str, Counter[str]]
    long: Counter[str]
    failed: Mapping[int, Skipped]


def with_json_columns(listed: Listing, field: str, pool: Pool) -> Listing:
    """Return the samples with columns from a JSON field; those where it cannot be read are among `skipped`.

    Raises:
        InvalidRequest: There is no such field, or it makes no columns.
        CorruptShard: A shard of the source cannot be read.
    """
    entries, left, notes = listed.entries, listed, list[str]()
    code = entries.fields.index(field) if field in entries.fields else len(entries.fields)
    rows = np.flatnonzero(entries.rows.code == code)
    if not len(rows):
        raise no_such("field", option("columns_from"), field, entries.fields)
    if np.any(entries.rows.kind[rows] == INLINE):
        raise InvalidRequest(option("columns_from"), f"field {field!r} holds numbers", expected="JSON objects")
    if entries.spans is not None and not entries.spans.files:
        problem = "an archive that can only be read in sequence"
        raise InvalidRequest(
            option("columns_from"), problem, expected="a folder, a zip, or a tar that is not compressed"
        )
    found = _read(listed, field, rows, pool)
    if len(found.failed) < len(rows):
        entries, notes = _with_table(entries, field, found)
    if found.failed:
        entries = entries.take(np.setdiff1d(np.arange(len(entries)), np.array([*found.failed])))
        left = replace(listed, skipped=(*listed.skipped, *found.failed.values()), digest=None)
    return replace(left, entries=entries, notes=(*listed.notes, *notes))


def _read(listed: Listing, field: str, rows: Rows, pool: Pool) -> _Found:
    """Return what workers find in a field's payloads."""
    entries = listed.entries
    spans, places = entries.rows.kind[rows] == SPAN, np.arange(len(rows))
    most = min(len(rows) // TASKS + 1, FILES_A_TASK)
    tasks: list[tuple[Rows, Files | Spans]] = [*file_tasks(entries, rows, places[~spans], most=most)]
    if spans.any():
        tasks += span_tasks(entries, rows, places[spans])
    done = dict(pool.map(read_scalars, [task for _, task in tasks]))
    kinds, long, failed = dict[str, Counter[str]](), Counter[str](), dict[int, Skipped]()
    for number, (which, _) in enumerate(tasks):
        long.update(done[number].long)
        for name, counts in done[number].kinds.items():
            kinds.setdefault(name, Counter()).update(counts)
        for at, code, message in _failures(entries, rows[which], done[number]):
            row = int(rows[which[at]])
            sample = int(entries.owners(row))
            failed[sample] = Skipped(entries.key(sample), _path(listed, row), code, f"field {field!r}: {message}")
    lines = b"".join([done.pop(number).lines for number in range(len(tasks))])
    return _Found(lines, rows[np.concatenate([which for which, _ in tasks])], kinds, long, failed)


def _failures(entries: Entries, rows: Rows, scalars: Scalars) -> Iterator[tuple[int, SkipCode, str]]:
    """Yield the places of payloads that cannot be read, or are not those that an index knows, and why."""
    if entries.spans is not None:
        wanted, crcs = entries.spans.expected[rows], np.frombuffer(scalars.crcs, np.uint32)
        differ = np.flatnonzero((wanted >= 0) & (wanted != crcs) & (entries.rows.kind[rows] == SPAN)).tolist()
        yield from ((at, "corrupt", f"the CRC-32C {crcs[at]:08x}, not {wanted[at]:08x}") for at in differ)
        if differ:
            return
    yield from scalars.failed


def _path(listed: Listing, row: int) -> str:
    """Return the file of a payload: of a shard, its name alone."""
    entries = listed.entries
    if entries.spans is None or not listed.shards:
        return to_text(entries.path(row))
    return listed.shards[int(entries.spans.file[int(entries.owners(row))])]


def _with_table(entries: Entries, field: str, found: _Found) -> tuple[Entries, list[str]]:
    """Return the samples with the columns that lines of JSON are, and notes."""
    where, lines = f"field {field!r}", found.lines
    notes = [
        f"{counted(count, 'text')} of more than {LONG_TEXT:,} letters left out: {name!r} of {where}"
        for name, count in found.long.items()
    ]
    mixed = {name: kinds for name, kinds in found.kinds.items() if len(kinds) > 1}
    for name, kinds in mixed.items():
        values = listing([counted(count, kind) for kind, count in sorted(kinds.items())])
        notes.append(f"column {name!r} of {where} is text: it holds {values}")
    if mixed:
        lines = b"".join([_as_text(line, mixed) for line in lines.splitlines(keepends=True)])
    table = MemoryTable(where, ".", read_json_lines(where, lambda: io.BytesIO(lines)))
    names = table.schema.names
    if not names:
        expected = 'objects such as {"label": "dog", "width": 640}'
        raise InvalidRequest(where, "no text, number or truth at the top of any", expected=expected)
    check_names(where, names)
    check_sidecar_names(where, names, remedy=f"make no columns of it ({option('columns_from')})")
    places = np.full(len(entries), -1, np.int64)
    places[entries.owners(found.rows)] = np.arange(len(found.rows))
    entries, replaced = with_columns(entries, table, read_columns(table, names, ()), places)
    return entries, [*notes, *replaced]


def _as_text(line: bytes, names: Collection[str]) -> bytes:
    """Return a line of JSON with some of its values as texts: what they are written as."""
    found = json.loads(line)
    for name, value in found.items():
        if name in names and value is not None and not isinstance(value, str):
            found[name] = json.dumps(value)
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"

"""Add metadata columns made from the JSON field, number or short text of each sample (`--columns-from`)."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import option_text
from shardtool.names import to_text
from shardtool.shard_samples import INLINE
from shardtool.skipped import Skipped
from shardtool.source import base, checksums, json_scalars, read_tasks
from shardtool.table.columns import check_column_names, check_sidecar_names, missing_name_error
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.source.base import Listing

    Rows = NDArray[np.int64]


def add_json_columns(listed: Listing, field: str, pool: Pool) -> Listing:
    """Return the samples with columns from a JSON field; those where it cannot be read are among `skipped`.

    Raises:
        InvalidRequest: There is no such field, or it makes no columns.
        CorruptShard: A shard of the source cannot be read.
    """
    entries, left, notes = listed.entries, listed, list[str]()
    code = entries.fields.index(field) if field in entries.fields else len(entries.fields)
    rows = np.flatnonzero(entries.rows.code == code)
    if not len(rows):
        raise missing_name_error("field", option_text("columns_from"), field, entries.fields)
    if entries.spans is not None and not entries.spans.files:
        problem = "an archive that can only be read in sequence"
        raise InvalidRequest(
            option_text("columns_from"), problem, expected="a folder, a zip, or a tar that is not compressed"
        )
    found, rows, failed = _read_field(listed, field, rows, pool)
    if len(failed) < len(rows):
        entries, notes = _add_lines(entries, field, found, rows)
    if failed:
        entries = entries.without(failed)
        left = replace(listed, skipped=(*listed.skipped, *failed.values()), digest=None)
    return replace(left, entries=entries, notes=(*listed.notes, *notes))


def _read_field(
    listed: Listing, field: str, rows: Rows, pool: Pool
) -> tuple[json_scalars.JsonScalars, Rows, dict[int, Skipped]]:
    """Return what workers find in a field's payloads, the row of each, and the samples whose payload is not read."""
    entries, inline = listed.entries, np.flatnonzero(listed.entries.rows.kind[rows] == INLINE)
    tasks = read_tasks.payload_tasks(
        entries, rows, most=min(len(rows) // base.TASK_COUNT + 1, read_tasks.FILES_PER_TASK)
    )
    done = dict(pool.map(json_scalars.read_scalars, [(field, task) for _, task in tasks]))
    parts = [which for which, _ in tasks]
    if len(inline):
        texts = [*checksums.inline_payloads(entries, rows[inline], as_numbers=False)]
        done[len(parts)] = json_scalars.parse_scalars(field, texts)
        parts.append(inline)
    kinds, long, failed = dict[str, Counter[str]](), Counter[str](), dict[int, Skipped]()
    for number, which in enumerate(parts):
        long.update(done[number].long)
        for name, counts in done[number].kinds.items():
            kinds.setdefault(name, Counter()).update(counts)
        for at, code, message in done[number].failed:
            row = int(rows[which[at]])
            sample = int(entries.owners(row))
            failed[sample] = Skipped(
                entries.key(sample), _payload_path(listed, row), code, f"field {field!r}: {message}"
            )
    lines = b"".join([done.pop(number).lines for number in range(len(parts))])
    return json_scalars.JsonScalars(lines, kinds, long, ()), rows[np.concatenate(parts)], failed


def _payload_path(listed: Listing, row: int) -> str:
    """Return the file of a payload: of a shard, its name alone."""
    entries = listed.entries
    if entries.spans is None or not listed.shards:
        return to_text(entries.path(row))
    return listed.shards[int(entries.file_numbers(np.array([row]))[0])]


def _add_lines(
    entries: SampleTable, field: str, found: json_scalars.JsonScalars, rows: Rows
) -> tuple[SampleTable, list[str]]:
    """Return the samples with the columns that lines of JSON are, one for each of `rows`, and notes."""
    from shardtool.select.join import add_table_columns
    from shardtool.table.base import MemoryTable
    from shardtool.table.json_lines import read_json_lines
    from shardtool.table.open import read_columns

    where, lines = f"field {field!r}", found.lines
    notes = [
        f"{pluralize(count, 'text')} of more than {json_scalars.MAX_TEXT_LENGTH:,} letters left out: {name!r} of {where}"
        for name, count in found.long.items()
    ]
    mixed = {name: kinds for name, kinds in found.kinds.items() if len(kinds) > 1}
    for name, kinds in mixed.items():
        values = format_list([pluralize(count, kind) for kind, count in sorted(kinds.items())])
        notes.append(f"column {name!r} of {where} is text: it holds {values}")
    if mixed:
        lines = b"".join([_values_as_texts(line, mixed) for line in lines.splitlines(keepends=True)])
    table = MemoryTable(where, read_json_lines(where, lambda: io.BytesIO(lines)), where)
    names = table.schema.names
    if not names:
        expected = 'objects such as {"label": "dog", "width": 640}'
        raise InvalidRequest(where, "no text, number or truth in any", expected=f"plain values, or {expected}")
    check_column_names(where, names)
    check_sidecar_names(where, names, remedy=f"make no columns of it ({option_text('columns_from')})")
    places = np.full(len(entries), -1, np.int64)
    places[entries.owners(rows)] = np.arange(len(rows))
    entries, replaced = add_table_columns(entries, table, read_columns(table, names, ()), places)
    return entries, [*notes, *replaced]


def _values_as_texts(line: bytes, names: Collection[str]) -> bytes:
    """Return a line of JSON with some of its values as texts: what they are written as."""
    found = json.loads(line)
    for name, value in found.items():
        if name in names and value is not None and not isinstance(value, str):
            found[name] = json.dumps(value)
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"

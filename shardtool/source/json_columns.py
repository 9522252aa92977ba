"""Add the values of JSON fields as metadata columns (`--columns-from`)."""

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


def add_json_columns(listing: Listing, field: str, pool: Pool) -> Listing:
    """Add the values of a JSON field as metadata columns. Skip samples whose field cannot be read."""
    entries, notes = listing.entries, list[str]()
    code = entries.fields.index(field) if field in entries.fields else len(entries.fields)
    rows = np.flatnonzero(entries.rows.code == code)
    if not len(rows):
        raise missing_name_error("field", option_text("columns_from"), field, entries.fields)
    if entries.spans is not None and not entries.spans.files:
        problem = "an archive that can only be read in sequence"
        expected = "a folder, a zip, or an uncompressed tar"
        raise InvalidRequest(option_text("columns_from"), problem, expected=expected)
    scalars, rows, failed = _read_field(listing, field, rows, pool)
    if len(failed) < len(rows):
        entries, notes = _add_lines(entries, field, scalars, rows)
    if failed:
        entries = entries.without(failed)
        listing = replace(listing, skipped=(*listing.skipped, *failed.values()), digest=None)
    return replace(listing, entries=entries, notes=(*listing.notes, *notes))


def _read_field(
    listing: Listing, field: str, rows: Rows, pool: Pool
) -> tuple[json_scalars.JsonScalars, Rows, dict[int, Skipped]]:
    entries, inline = listing.entries, np.flatnonzero(listing.entries.rows.kind[rows] == INLINE)
    max_files = min(len(rows) // base.TASK_COUNT + 1, read_tasks.FILES_PER_TASK)
    tasks = read_tasks.payload_tasks(entries, rows, max_files=max_files)
    results = dict(pool.map(json_scalars.read_scalars, [(field, task) for _, task in tasks]))
    parts = [indices for indices, _ in tasks]
    if len(inline):
        texts = [*checksums.inline_payloads(entries, rows[inline], as_numbers=False)]
        results[len(parts)] = json_scalars.parse_scalars(field, texts)
        parts.append(inline)
    kinds, long, failed = dict[str, Counter[str]](), Counter[str](), dict[int, Skipped]()
    for number, indices in enumerate(parts):
        long.update(results[number].long)
        for name, counts in results[number].kinds.items():
            kinds.setdefault(name, Counter()).update(counts)
        for index, code, message in results[number].failed:
            row = int(rows[indices[index]])
            sample = int(entries.samples_of(row))
            path = _payload_path(listing, row)
            failed[sample] = Skipped(entries.key(sample), path, code, f"field {field!r}: {message}")
    lines = b"".join([results.pop(number).lines for number in range(len(parts))])
    return json_scalars.JsonScalars(lines, kinds, long, ()), rows[np.concatenate(parts)], failed


def _payload_path(listing: Listing, row: int) -> str:
    entries = listing.entries
    if entries.spans is None or not listing.shards:
        return to_text(entries.path(row))
    return listing.shards[int(entries.file_numbers(np.array([row]))[0])]


def _add_lines(
    entries: SampleTable, field: str, scalars: json_scalars.JsonScalars, rows: Rows
) -> tuple[SampleTable, list[str]]:
    from shardtool.select.join import add_table_columns
    from shardtool.table.base import MemoryTable
    from shardtool.table.json_lines import read_json_lines
    from shardtool.table.open import read_columns

    where, lines = f"field {field!r}", scalars.lines
    limit = f"more than {json_scalars.MAX_TEXT_LENGTH:,} characters"
    long = scalars.long.items()
    notes = [f"{pluralize(count, 'text')} of {limit} ignored: {name!r} of {where}" for name, count in long]
    mixed = {name: kinds for name, kinds in scalars.kinds.items() if len(kinds) > 1}
    for name, kinds in mixed.items():
        values = format_list([pluralize(count, kind) for kind, count in sorted(kinds.items())])
        notes.append(f"column {name!r} of {where} is stored as text, because it mixes {values}")
    if mixed:
        lines = b"".join([_values_as_texts(line, mixed) for line in lines.splitlines(keepends=True)])
    table = MemoryTable(where, read_json_lines(where, lambda: io.BytesIO(lines)), where)
    names = table.schema.names
    if not names:
        expected = 'objects such as {"label": "dog", "width": 640}'
        raise InvalidRequest(where, "no text, number or boolean", expected=f"plain values, or {expected}")
    check_column_names(where, names)
    check_sidecar_names(where, names, remedy=f"do not use it in {option_text('columns_from')}")
    row_of_sample = np.full(len(entries), -1, np.int64)
    row_of_sample[entries.samples_of(rows)] = np.arange(len(rows))
    entries, replaced = add_table_columns(entries, table, read_columns(table, names, ()), row_of_sample)
    return entries, [*notes, *replaced]


def _values_as_texts(line: bytes, names: Collection[str]) -> bytes:
    values = json.loads(line)
    for name, value in values.items():
        if name in names and value is not None and not isinstance(value, str):
            values[name] = json.dumps(value)
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"

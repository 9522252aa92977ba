"""The rows of a plan file store the whole listing of the samples."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.entries.strings import PackedStrings
from shardtool.source import plan_file, plan_request
from tests.made import changed, flat_entries

_FIELDS = ("cls", "jpg", "json")
_NAME = st.binary(min_size=1, max_size=6).map(lambda name: name.replace(b"\0", b"n").replace(b"/", b"s"))
_TIME = st.integers(-(2**63), 2**63 - 1)
_ROW = st.tuples(st.integers(0, 1), st.integers(0, 2**40), _TIME, _TIME)
_SAMPLE = st.tuples(_NAME, st.dictionaries(st.integers(0, 2), _ROW, min_size=1))


@settings(max_examples=25)
@given(samples=st.lists(_SAMPLE, max_size=12), with_paths=st.booleans())
def test_samples_round_trip(samples: list[tuple[bytes, dict[int, Any]]], *, with_paths: bool) -> None:
    """Reading the tables of any samples returns each key, field, number and path."""
    flat = [(code, *row) for _, fields in samples for code, row in sorted(fields.items())]
    entries = flat_entries([key for key, _ in samples], [len(fields) for _, fields in samples], _FIELDS)
    names = ("code", "kind", "size", "mtime_ns", "changed_ns")
    numbers = {name: [row[at] for row in flat] for at, name in enumerate(names)}
    paths = PackedStrings.of([b"a/%d" % at for at in range(len(flat))]) if with_paths else None
    entries = changed(entries, **numbers, paths=paths)
    schema, sink = plan_file.entries_schema(entries, None), io.BytesIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan_file, "_MIN_GROUP_ROWS", 3)  # several row groups
        pq.write_table(
            pa.concat_tables([schema.empty_table(), *plan_file.entries_tables(entries, None)]), sink, row_group_size=3
        )
    with pq.ParquetFile(sink) as file:
        found = plan_file.read_entries(
            file, schema, _FIELDS, entries.values, plan_request.PlanRequest("folder", ("in",))
        )
    assert found.keys.data == entries.keys.data
    assert found.first_rows.tolist() == entries.first_rows.tolist()
    for name in names:
        before, after = getattr(entries.rows, name), getattr(found.rows, name)
        assert (after.dtype, after.tolist()) == (before.dtype, before.tolist())
    assert (None if found.rows.paths is None else found.rows.paths.span(0, len(flat))) == (
        None if paths is None else paths.data
    )
    assert np.array_equal(found.keys.starts, entries.keys.starts)

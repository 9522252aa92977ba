"""Samples of shards as plain values. Convert them to a `SampleTable` and back, for property tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from shardtool.entries.strings import PackedStrings
from shardtool.names import to_bytes
from shardtool.shard_samples import INLINE, SPAN, SpanFile
from tests.made import flat_entries, metadata_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.entries.sample_table import SampleTable

FIELDS = ("cls", "jpg", "json", "seg.png", "Txt", "é", "\udc80")  # the last is not valid UTF-8


class Payload(NamedTuple):
    """The payload of a field.

    Attributes:
        offset: Offset in the shard, different for each field of all samples.
        expected: Expected CRC-32C, or -1 if unknown.
        text: The payload of an INLINE field, or None for a SPAN.
    """

    size: int
    offset: int
    expected: int
    text: bytes | None = None


@dataclass(frozen=True)
class Sample:
    """A sample. `file` is the index of its shard, and `number` is the value of a metadata column."""

    key: str
    fields: dict[str, Payload]
    file: int
    number: int

    @property
    def size(self) -> int:
        """The size of all payloads."""
        return sum(payload.size for payload in self.fields.values())


@st.composite
def sample_lists(draw: st.DrawFn, *, min_count: int = 0, keys: st.SearchStrategy[str] | None = None) -> list[Sample]:
    """Generate samples, some without fields (possible in TFRecords). By default, the keys are unique."""
    samples = []
    for number in range(draw(st.integers(min_count, 10))):
        names = draw(st.lists(st.sampled_from(FIELDS), unique=True, max_size=4))
        texts = [draw(st.none() | st.sampled_from([b"0", b"17", b""])) if name == "cls" else None for name in names]
        fields = {
            name: Payload(draw(st.integers(0, 99)) if text is None else len(text), 100 * number + at, at - 1, text)
            for at, (name, text) in enumerate(zip(names, texts, strict=True))
        }
        key = f"k/{number}" if keys is None else draw(keys)
        samples.append(Sample(key, fields, draw(st.integers(0, 2)), number))
    return samples


def entries_of(samples: Sequence[Sample], fields: Sequence[str] = FIELDS, **more: Any) -> SampleTable:
    """Convert samples to a `SampleTable` with the field names `fields`, which no sample needs to have."""
    rows = [
        (name, payload)
        for sample in samples
        for name, payload in sorted(sample.fields.items(), key=lambda item: to_bytes(item[0]))
    ]
    counts = [len(sample.fields) for sample in samples]

    inline = {}
    if "cls" in fields:
        texts = [sample.fields.get("cls", Payload(0, 0, 0)).text or b"" for sample in samples]
        inline = {
            "inline": {"cls": PackedStrings.of(texts)},
            "numbers": {"cls": "int64"},
            "classes": {"cls": ["cat", "dog"]},
        }
    columns = {"number": pa.array([sample.number for sample in samples], pa.int32())}
    return flat_entries(
        [to_bytes(sample.key) for sample in samples],
        counts,
        fields,
        code=[fields.index(name) for name, _ in rows],
        kind=[SPAN if payload.text is None else INLINE for _, payload in rows],
        size=[payload.size for _, payload in rows],
        mtime_ns=[payload.offset + 1 for _, payload in rows],
        changed_ns=[payload.offset + 2 for _, payload in rows],
        offset=[payload.offset for _, payload in rows],
        files=tuple(SpanFile(b"/in/%d.tar" % at, 10**6, 1) for at in range(3)),
        file=[sample.file for sample in samples],
        crc=[payload.expected for _, payload in rows],
        metadata=pa.table(columns),
        **{**inline, **more},
    )


def samples_of(entries: SampleTable) -> list[Sample]:
    """Convert a `SampleTable` to samples, and check that its columns are consistent."""
    count, rows, spans = len(entries), entries.rows, entries.known_spans
    assert len(entries.first_rows) == count + 1
    assert entries.first_rows.dtype == np.int64
    assert rows.code.dtype == np.uint16
    assert {len(column) for column in (rows.code, rows.kind, rows.size, rows.mtime_ns)} == {int(entries.first_rows[-1])}
    texts = {name: column.span(0, count).split(b"\0") for name, column in entries.values.inline.items()}
    samples = []
    for at, number in enumerate(metadata_of(entries).column("number").to_pylist()):
        fields = {}
        for row in range(int(entries.first_rows[at]), int(entries.first_rows[at + 1])):
            name = entries.fields[rows.code[row]]
            text = texts[name][at] if rows.kind[row] == INLINE else None
            payload = Payload(int(rows.size[row]), int(spans.offset[row]), int(spans.crc[row]), text)
            assert (rows.mtime_ns[row], rows.changed_ns[row]) == (payload.offset + 1, payload.offset + 2)
            assert name not in fields
            fields[name] = payload
        samples.append(Sample(entries.key(at), fields, int(entries.known_spans.file[at]), number))
    assert count == len(samples) == len(entries.known_spans.file)
    return samples

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal

import crc32c
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardtool.entries.record_sizes import RecordColumns, head_and_tail_sizes, sample_sizes
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest
from shardtool.format.tfrecord_write import (
    FRAME_HEAD_BYTES,
    FRAME_TAIL_BYTES,
    MAX_DATA_BYTES,
    FeatureHead,
    encode_number,
    example_head,
    key_feature,
    mask_crc,
    put_frame_head,
    put_frame_tail,
)
from shardtool.pattern import parse_pattern
from shardtool.plan.plan import Plan, make_plan
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.shard_task import build_shard_samples
from shardtool.shard_samples import INLINE, SPAN, SpanFile
from shardtool.storage.staging import Folder
from shardtool.write.task import BUFFER_SIZE, ShardTask
from shardtool.write.tfrecord_packer import TFRecordPacker
from tests import tfrecords
from tests.made import flat_entries
from tests.tfrecords import BYTES, FLOAT, INT64

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.entries.sample_table import SampleTable

Kind = Literal["float", "int64"] | None
Sample = dict[str, bytes]
KINDS: dict[Kind, int] = {None: BYTES, "float": FLOAT, "int64": INT64}
NUMBERS: dict[str, Literal["float", "int64"]] = {"cls": "int64", "Score": "float"}
# sizes close to those at which one of the varints before a payload gets longer
EDGES = sorted({max(0, 2**bits - back) for bits in (0, 7, 14, 21, 28) for back in range(-2, 24)} | {MAX_DATA_BYTES})
NAMES = [b"jpg", b"JPG", b"__key_", b"__key__x", b"seg.png", b"\xc3\xa9", b"n" * 127, b"n" * 128, b"N" * 300]


@pytest.mark.parametrize(("data", "stored"), [(b"123456789", 0xC78AB0E5), (b"", 0xA282EAD8), (bytes(8), 0x07980329)])
def test_checksums_are_masked(data: bytes, stored: int) -> None:
    """A checksum is stored rotated by 15 bits plus a constant."""
    assert mask_crc(crc32c.crc32c(data)) == stored


def test_an_empty_record() -> None:
    """An empty record is the 16 bytes that TensorFlow writes."""
    raw = bytearray(16)
    assert put_frame_tail(raw, put_frame_head(raw, 0, 16), 0) == 16
    assert raw == bytes.fromhex("0000000000000000 29039807 d8ea82a2")


@given(st.integers(0, MAX_DATA_BYTES), st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_frames_are_written_in_place(size: int, crc: int, offset: int) -> None:
    """Head and tail contain the length and checksum of the data, and no other byte is changed."""
    raw = bytearray(b"\xaa" * (offset + 30))
    assert put_frame_head(raw, offset, size + 16) == offset + FRAME_HEAD_BYTES
    length = struct.pack("<Q", size)
    assert raw == b"\xaa" * offset + length + tfrecords.masked(length) + b"\xaa" * 18
    assert put_frame_tail(raw, offset, crc) == offset + FRAME_TAIL_BYTES
    assert raw[offset : offset + 4] == struct.pack("<I", mask_crc(crc))
    assert raw[:offset] + raw[offset + 12 :] == b"\xaa" * (offset + 18)


def _check_head(head: bytes, name: bytes, kind: int, size: int) -> None:
    """Assert that a feature's head is a map entry that lacks only a payload of `size` bytes."""

    def enter(offset: int, tag: int) -> int:
        length, after = tfrecords.read_varint(head, offset + 1)
        assert head[offset] == tag
        assert length == len(head) - after + size
        return after

    offset = enter(0, 0x0A)
    assert head[offset] == 0x0A
    length, offset = tfrecords.read_varint(head, offset + 1)
    assert head[offset : offset + length] == name
    offset = enter(offset + length, 0x12)
    offset = enter(offset, kind << 3 | 2)
    assert enter(offset, 0x0A) == len(head)


@pytest.mark.parametrize("number", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_the_head_of_a_payload_of_any_size(name: bytes, number: Kind) -> None:
    """The bytes before a payload start a map entry with correct lengths."""
    head = FeatureHead(name, number)
    for size in EDGES:
        _check_head(head(size), name, KINDS[number], size)


@pytest.mark.parametrize("number", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_the_head_of_a_list_of_any_size(name: bytes, number: Kind) -> None:
    """The head of a whole list ends before the list's content."""
    head, list_head = FeatureHead(name, number), FeatureHead(name, number, is_list=True)
    for size in EDGES:
        list_size = 1 + len(tfrecords.varint(size)) + size
        assert list_head(list_size) + b"\x0a" + tfrecords.varint(size) == head(size)


@given(st.binary(min_size=1, max_size=400), st.integers(0, MAX_DATA_BYTES))
def test_any_head(name: bytes, size: int) -> None:
    """Heads are correct for any name and size."""
    _check_head(FeatureHead(name)(size), name, BYTES, size)


@pytest.mark.parametrize("size", [size for size in EDGES if size < 2**20])
def test_a_feature_round_trips(size: int) -> None:
    """A head, its payload, and the key's feature are an Example that reads back."""
    key, payload = b"k" * size, bytes(size)
    features = key_feature(key) + FeatureHead(b"jpg")(size) + payload
    record_size = FRAME_HEAD_BYTES + 1 + len(tfrecords.varint(len(features))) + len(features) + FRAME_TAIL_BYTES
    parsed = tfrecords.parse_example(example_head(record_size) + features)
    assert [(feature.name, feature.kind, feature.value) for feature in parsed] == [
        ("__key__", BYTES, key), ("jpg", BYTES, payload),
    ]  # fmt: skip


@given(st.integers(1, MAX_DATA_BYTES - 6))
@example(127)
@example(128)
@example(2**14 - 1)
@example(2**14)
@example(2**21 - 1)
@example(2**21)
@example(2**28 - 1)
@example(2**28)
@example(MAX_DATA_BYTES - 6)
def test_an_example_starts_with_the_length_of_its_features(size: int) -> None:
    """The length at the start of an Example is the record's size without frame, tag and length."""
    length = tfrecords.varint(size)
    assert example_head(FRAME_HEAD_BYTES + 1 + len(length) + size + FRAME_TAIL_BYTES) == b"\x0a" + length


@pytest.mark.parametrize(
    ("text", "number", "encoded"),
    [(b"0", "int64", "00"), (b"7", "int64", "07"), (b"300", "int64", "ac02"), (b"-1", "int64", "ff" * 9 + "01"),
     (b"9223372036854775807", "int64", "ff" * 8 + "7f"), (b"-9223372036854775808", "int64", "80" * 9 + "01"),
     (b"0", "float", "00000000"), (b"1.5", "float", "0000c03f"), (b"-2", "float", "000000c0"),
     (b"0.1", "float", "cdcccc3d"), (b"inf", "float", "0000807f"), (b"nan", "float", "0000c07f"),
     (b"3.4028234663852886e+38", "float", "ffff7f7f")],
)  # fmt: skip
def test_encoded_numbers(text: bytes, number: Literal["float", "int64"], encoded: str) -> None:
    """An integer is a varint, any other number a little-endian 32-bit float."""
    assert encode_number(text, number).hex() == encoded


@given(st.integers(-(2**63), 2**63 - 1), st.floats(width=32, allow_nan=False))
def test_any_number_round_trips(integer: int, real: float) -> None:
    """Any number that fits is read back from its text."""
    raw = tfrecords.example([(b"f", FLOAT, encode_number(b"%r" % real, "float")),
                             (b"i", INT64, encode_number(b"%d" % integer, "int64"))])  # fmt: skip
    read_real, read_integer = (feature.value for feature in tfrecords.parse_example(raw))
    assert struct.pack("<f", read_real) == struct.pack("<f", real)
    assert read_integer == integer


@pytest.mark.parametrize(
    ("text", "number"),
    [(b"", "int64"), (b"1.0", "int64"), (b"dog", "int64"), (b"9223372036854775808", "int64"),
     (b"-9223372036854775809", "int64"), (b"", "float"), (b"dog", "float"), (b"1e39", "float")],
)  # fmt: skip
def test_invalid_numbers_are_rejected(text: bytes, number: Literal["float", "int64"]) -> None:
    """Text that TFRecord cannot store as a number is rejected, and never stored as another number."""
    with pytest.raises((ValueError, OverflowError)):
        encode_number(text, number)


def _payloads(samples: list[tuple[bytes, dict[bytes, int]]]) -> RecordColumns:
    names = sorted({name for _, fields in samples for name in fields})
    rows = [(names.index(name), size) for _, fields in samples for name, size in sorted(fields.items())]
    return RecordColumns(
        keys=PackedStrings.of(key for key, _ in samples),
        first_rows=np.cumsum([0, *(len(fields) for _, fields in samples)]),
        fields=tuple(name.decode() for name in names),
        code=np.array([code for code, _ in rows], np.uint16),
        stored_sizes=np.array([size for _, size in rows], np.int64),
    )


_TEXT_NAMES = st.sampled_from(["jpg", "JPG", "__key_", "__key__x", "Z", "~", "seg.png", "é", "n" * 130]).map(str.encode)
_SIZES = st.sampled_from(EDGES) | st.integers(0, 2**29)
_KEYS = st.sampled_from([1, 100, 115, 127, 128, 20_000]).map(lambda size: b"k" * size)


@given(st.lists(st.tuples(_KEYS, st.dictionaries(_TEXT_NAMES, _SIZES, min_size=1)), min_size=1, max_size=6))
def test_record_sizes_follow_from_names_and_sizes(samples: list[tuple[bytes, dict[bytes, int]]]) -> None:
    """The bytes before and after each payload follow from names and sizes, wherever the key's feature is."""
    payloads = _payloads(samples)
    heads, tails = head_and_tail_sizes("tfrecord", payloads)
    expected: list[tuple[int, int]] = []
    for key, fields in samples:
        features = [(name, len(FeatureHead(name)(size)), size) for name, size in fields.items()]
        entries = sorted([*features, (b"__key__", len(key_feature(key)), 0)])
        length = sum(head + size for _, head, size in entries)
        before, rows = FRAME_HEAD_BYTES + 1 + len(tfrecords.varint(length)), []
        for name, head, _ in entries:
            before += head
            if name != b"__key__":
                rows.append((before, 0))
                before = 0
        rows[-1] = (rows[-1][0], before + FRAME_TAIL_BYTES)
        expected += rows
    assert list(zip(heads.tolist(), tails.tolist(), strict=True)) == expected
    rows_of = np.repeat(np.arange(len(samples)), np.diff(payloads.first_rows))
    totals = np.bincount(rows_of, heads + tails + payloads.stored_sizes)
    assert sample_sizes("tfrecord", payloads).tolist() == totals.astype(np.int64).tolist()


def _entries(samples: dict[str, Sample], spool: Path) -> SampleTable:
    """Return samples whose payloads are in a spool, except number fields, which are in the plan."""
    fields = tuple(sorted({name for sample in samples.values() for name in sample}, key=str.encode))
    rows = [(name, sample[name]) for sample in samples.values() for name in sorted(sample, key=str.encode)]
    sizes = np.array([len(data) for _, data in rows], np.int64)
    spool.write_bytes(b"".join(data for _, data in rows))
    return flat_entries(
        [key.encode() for key in samples],
        [len(sample) for sample in samples.values()],
        fields,
        root=b"/nowhere/",
        code=[fields.index(name) for name, _ in rows],
        kind=[INLINE if name in NUMBERS else SPAN for name, _ in rows],
        size=sizes,
        inline={
            name: PackedStrings.of(sample.get(name, b"") for sample in samples.values())
            for name in NUMBERS
            if name in fields
        },
        numbers={name: number for name, number in NUMBERS.items() if name in fields},
        offset=np.cumsum(sizes) - sizes,
        files=(SpanFile(str(spool).encode(), int(sizes.sum()), -1),),
    )


class _Bytes(bytearray):
    def write(self, data: memoryview | bytes) -> None:
        self.extend(data)


def _written(plan: Plan, shard: int) -> bytes:
    task = ShardTask(
        name="out.tfrecord", format="tfrecord", folder=Folder("/nowhere"),
        samples=build_shard_samples(plan, shard), on_error="raise", mtime_ns=0,
    )  # fmt: skip
    output = _Bytes()
    TFRecordPacker(task, output.write, lambda *_: None, {}).run()
    return bytes(output)


def _encoded(key: str, sample: Sample) -> bytes:
    """Return the record of a sample from an independent encoder."""
    features = [(b"__key__", BYTES, key.encode())]
    for name, data in sample.items():
        number = NUMBERS.get(name)
        if number == "float":
            features.append((name.encode(), FLOAT, struct.pack("<f", float(data))))
        elif number == "int64":
            features.append((name.encode(), INT64, tfrecords.varint(int(data))))
        else:
            features.append((name.encode(), BYTES, data))
    return tfrecords.frame(tfrecords.example(sorted(features)))


_BUFFER = BUFFER_SIZE
_NUMBER_FIELDS = {"cls": st.integers(-(2**63), 2**63 - 1).map(lambda number: b"%d" % number),
                  "Score": st.floats(width=32, allow_nan=False).map(lambda number: b"%r" % number)}  # fmt: skip
_DATA = st.binary(max_size=300) | st.sampled_from([_BUFFER - 100, _BUFFER, 2 * _BUFFER + 9]).map(
    lambda size: b"\x01" * size
)
_SAMPLES = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40),
    st.fixed_dictionaries(
        {"jpg": st.binary(max_size=100)},
        optional={"A": _DATA, "JPG": _DATA, "é.x": _DATA, "zip": _DATA, **_NUMBER_FIELDS},
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@given(samples=_SAMPLES, seed=st.none() | st.integers(0, 9))
def test_a_shard_matches_an_independent_encoder(samples: dict[str, Sample], seed: int | None, tmp_path: Path) -> None:
    """Planned sizes are exact, and each byte matches the specification, for any names, numbers and sizes."""
    plan = make_plan(
        _entries(samples, tmp_path / "spool"), parse_pattern("o-{0..}.tfrecord"), ShardBounds(max_count=2), seed
    )
    keys = list(samples)
    for shard in range(plan.shards):
        raw = _written(plan, shard)
        order = [keys[sample] for sample in plan.sample_numbers(shard).tolist()]
        assert len(raw) == plan.sizes[shard]
        assert raw == b"".join(_encoded(key, samples[key]) for key in order)


@pytest.mark.parametrize("size", [0, 3 * _BUFFER])
def test_numbers_in_samples_of_any_size(size: int, tmp_path: Path) -> None:
    """Samples larger than the writer's buffer also store numbers as numbers, and the key at its position."""
    sample = {"Score": b"-0.5", "Zip": bytes(size), "cls": b"-3", "jpg": b"\xff" * size}
    plan = make_plan(
        _entries({"k": sample, "l": sample}, tmp_path / "spool"), parse_pattern("o.tfrecord"), ShardBounds()
    )
    for key, (_, data) in zip(("k", "l"), tfrecords.records(_written(plan, 0)), strict=True):
        assert [(feature.name, feature.kind, feature.value) for feature in tfrecords.parse_example(data)] == [
            ("Score", FLOAT, -0.5),
            ("Zip", BYTES, bytes(size)),
            ("__key__", BYTES, key.encode()),
            ("cls", INT64, -3),
            ("jpg", BYTES, b"\xff" * size),
        ]


@pytest.mark.parametrize("text", [b"dog", b"9223372036854775808"])
def test_a_label_that_does_not_fit_is_rejected_by_key(text: bytes, tmp_path: Path) -> None:
    """A label that is not a 64-bit number is an error with its key for TFRecord; a tar stores its text."""
    samples = {"good": {"cls": b"1"}, "bad/7": {"cls": text}}
    with pytest.raises(InvalidRequest, match=r"bad/7.*cls"):
        make_plan(_entries(samples, tmp_path / "spool"), parse_pattern("o.tfrecord"), ShardBounds())
    make_plan(_entries(samples, tmp_path / "spool"), parse_pattern("o.tar"), ShardBounds())


def test_a_field_cannot_have_the_keys_name(tmp_path: Path) -> None:
    """A field named `__key__` is rejected."""
    with pytest.raises(InvalidRequest, match="__key__"):
        make_plan(_entries({"k": {"__key__": b"x"}}, tmp_path / "spool"), parse_pattern("o.tfrecord"), ShardBounds())

"""`ShardWriter` writes the same bytes as `create` for the same samples."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardtool
from shardtool import (
    CorruptShard,
    CreateOptions,
    InvalidRequest,
    OutputExists,
    SampleFailed,
    ShardError,
    ShardWriter,
    create,
    verify,
)
from shardtool.fingerprint import crc32c
from tests.helpers import read_tree, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Samples = list[tuple[dict[str, object], dict[str, object]]]

_BYTES: Samples = [
    ({"__key__": f"a/{n:02}", "jpg": b"j" * (n * 300 % 1700), "json": b'{"n": %d}' % n}, {}) for n in range(30)
]


def _write(pattern: Path, samples: Any, **options: Any) -> ShardWriter:
    with ShardWriter(pattern, **options) as writer:
        for sample, metadata in samples:
            writer.write(sample, metadata)
    return writer


def _then_raise(samples: Samples, error: type[BaseException]) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    """Yield samples, then raise."""
    yield from samples
    raise error


def _content_of(folder: Path) -> dict[str, Any]:
    """Return the content of a dataset file, without its run record."""
    content: dict[str, Any] = json.loads((folder / "out.json").read_bytes())
    del content["checksum"], content["shardtool"]["made"]
    return content


def _check_same(ours: Path, theirs: Path) -> None:
    """Check that two folders contain the same dataset, apart from run records."""
    left, right = read_tree(ours), read_tree(theirs)
    assert list(left) == list(right)
    assert [name for name in left if name != "out.json" and left[name] != right[name]] == []
    assert _content_of(ours) == _content_of(theirs)
    assert verify(ours / "out.json").findings == ()


def _table(samples: Samples) -> tuple[pa.Table, dict[str, Any]]:
    """Return samples as a table in memory, and the options with which `create` packs it."""
    columns: dict[str, list[object]] = {"key": [sample["__key__"] for sample, _ in samples]}
    fields = [name for name in samples[0][0] if name not in ("__key__", "json")]
    columns |= {f"f_{name}": [sample[name] for sample, _ in samples] for name in fields}
    columns |= {name: [metadata[name] for _, metadata in samples] for name in samples[0][1]}
    binary = [name for name in fields if isinstance(samples[0][0][name], bytes)]
    return pa.table(columns), {
        "key": "key",
        "bytes": {name: f"f_{name}" for name in binary},
        "field": {name: f"f_{name}" for name in fields if name not in binary},
        "meta": ",".join(samples[0][1]) or "none",
    }


_KEYS = st.text(st.sampled_from("abcü/_-9 "), min_size=1, max_size=8).filter(lambda key: all(key.split("/")))
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
_BOUNDS = st.sampled_from([{}, {"max_count": 2}, {"max_size": 12_000}, {"max_size": 9000, "max_count": 3}])


@pytest.mark.slow
@given(
    keys=st.lists(_KEYS, min_size=1, max_size=9, unique=True),
    data=st.data(),
    bounds=_BOUNDS,
    ending=st.sampled_from(["tar", "tfrecord"]),
)
@settings(max_examples=15)
def test_equals_create_from_a_table(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str], data: st.DataObject, bounds: dict[str, Any], ending: str
) -> None:
    """The same samples give the bytes, sidecars and dataset file that `create` writes for a table."""
    floats = st.floats(allow_nan=False, width=32)
    samples: Samples = []
    for key in keys:
        split = data.draw(_TEXT)
        sample = {
            "__key__": key, "jpg": data.draw(st.binary(min_size=1, max_size=3000)),
            "cls": data.draw(st.integers(-9, 2**62)), "score": data.draw(floats), "txt": data.draw(_TEXT),
            "good.is": data.draw(st.booleans()), "json": {"split": split},
        }  # fmt: skip
        samples.append((sample, {"split": split}))
    ours, theirs = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("theirs")
    table, options = _table(samples)
    result = create(table, theirs / f"out-{{000000..}}.{ending}", CreateOptions(workers=0, **options, **bounds))
    numbers = ("cls", "score", "good.is")  # fields that `create` also stores as columns
    rows = [(sample, {**metadata, **{name: sample[name] for name in numbers}}) for sample, metadata in samples]
    writer = _write(ours / f"out-{{000000..}}.{ending}", rows, **bounds)
    _check_same(ours, theirs)
    assert [note.replace(" (portable=True renames them)", "") for note in result.notes] == writer.notes
    assert writer.last_key == keys[-1]


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
@pytest.mark.parametrize("bounds", [{}, {"max_count": 7}, {"max_size": "20KB"}])
def test_equals_create_from_a_folder(tmp_path: Path, ending: str, bounds: dict[str, Any]) -> None:
    """Samples of bytes give the same dataset as `create` for a folder of such files, also if samples lack fields."""
    samples: Samples = [({name: value for name, value in sample.items() if value}, {}) for sample, _ in _BYTES]
    files = {
        f"{sample['__key__']}.{name}": sample[name] for sample, _ in samples for name in sample if name != "__key__"
    }
    result = create(
        write_tree(tmp_path / "in", files), tmp_path / f"theirs/out-{{000000..}}.{ending}", CreateOptions(**bounds)  # type: ignore[arg-type]
    )  # fmt: skip
    writer = _write(tmp_path / f"ours/out-{{000000..}}.{ending}", samples, **bounds)
    _check_same(tmp_path / "ours", tmp_path / "theirs")
    assert [*result.notes] == writer.notes


def test_metadata_types_widen(tmp_path: Path) -> None:
    """Columns in all sidecars have the types of a table of all rows; integers and floats become floats."""
    rows: list[dict[str, object]] = [
        {"n": 1, "m": None},
        {"n": 2, "m": None},
        {"n": 0.5, "m": "x"},
        {"n": None, "m": "y"},
    ]
    samples: Samples = [({"__key__": f"{at}", "jpg": b"x"}, row) for at, row in enumerate(rows)]
    table, options = _table(samples)
    options = {**options, "meta": "none"}
    create(
        table.drop_columns(["n", "m"]), tmp_path / "theirs/out-{000000..}.tar", CreateOptions(max_count=1, **options)
    )
    _write(tmp_path / "ours/out-{000000..}.tar", samples, max_count=1)
    schema = _content_of(tmp_path / "ours")["shardtool"]["schema"]
    assert (schema["n"], schema["m"]) == ("double", "string")
    assert (tmp_path / "ours/out-000000.tar").read_bytes() == (tmp_path / "theirs/out-000000.tar").read_bytes()
    assert verify(tmp_path / "ours/out.json").findings == ()


_NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize(
    ("first", "fits", "wrong", "message"),
    [
        (1, 2, "x", "a value of the type str; expected numbers"),
        ([1], [1.5], ["a"], r"list<\w+: string>; expected list<\w+: double>"),
        ({"a": 1}, {"b": [2]}, {"a": "x"}, "struct<a: string>; expected struct<a: int64, b: list<item: int64>>"),
        (_NOON, _NOON.astimezone(timezone(timedelta(hours=1))), _NOON.replace(tzinfo=None), r"us\]; .*tz=UTC\], as"),
        (1.5, 2, 2**60, "a column of floats; expected either floats or whole numbers over 2"),
        (2**60, 2, 1.5, "a column of whole numbers over"),
        ("x", None, {1: 2}, "expected text"),
        ({"a": 1}, {}, {1: 2}, "dict key of type str"),
        (1, 2, [3], "of the type list"),
        ("x", "\U0001f600", "a\ud83d", "an unpaired surrogate; expected valid Unicode"),
        (["x"], ["\u00e9"], ["\ud83d"], "surrogates not allowed"),
    ],
)
def test_contradictory_metadata_is_refused(
    tmp_path: Path, cut: int, first: object, fits: object, wrong: object, message: str
) -> None:
    """A value that its column cannot store is refused immediately, also by a resumed writer."""
    pattern = tmp_path / "out-{000000..}.tar"
    sound: Samples = [({"__key__": key, "n": 1}, {"m": value}) for key, value in (("a", first), ("b", fits))]
    with pytest.raises(KeyboardInterrupt):
        _write(pattern, _then_raise(sound, KeyboardInterrupt), max_count=cut)
    with ShardWriter(pattern, max_count=cut, resume=True) as writer:
        for sample, metadata in sound[writer.samples :]:
            writer.write(sample, metadata)
        with pytest.raises(InvalidRequest, match=f"c: metadata 'm': .*{message}"):
            writer.write({"__key__": "c", "n": 1}, {"m": wrong})
        with pytest.raises(InvalidRequest, match="c: metadata of the type list; expected a dict"):
            writer.write({"__key__": "c", "n": 1}, [1])  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"c: metadata 'm.ud83d': an unpaired surrogate"):
            writer.write({"__key__": "c", "n": 1}, {"m\ud83d": 1})
        writer.write({"__key__": "c", "n": 1}, {"m": first})
    assert verify(tmp_path / "out.json").findings == ()


def test_values_are_encoded_by_type_and_extension(tmp_path: Path) -> None:
    """Arrays become npy, images files of the extension, and numbers of NumPy and Python the same text."""
    from PIL import Image

    image = Image.new("RGB", (4, 3), (1, 2, 3))
    sample = {
        "__key__": 7, "npy": np.arange(3), "png": image, "seg.jpg": image, "a": np.float32(0.1), "b": np.int16(3),
        "c": [1, {"x": float("nan")}], "d": bytearray(b"raw"), "e": True,
    }  # fmt: skip
    _write(tmp_path / "out-{000000..}.tar", [(sample, {"w": np.int64(4)})])
    import tarfile

    with tarfile.open(tmp_path / "out-000000.tar") as tar:
        found = {name.removeprefix("7."): tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    assert found["npy"].startswith(b"\x93NUMPY")
    assert (found["png"][1:4], found["seg.jpg"][:2]) == (b"PNG", b"\xff\xd8")
    texts = {name: found[name] for name in "abcde"}
    assert texts == {"a": b"0.1", "b": b"3", "c": b'[1,{"x":null}]', "d": b"raw", "e": b"1"}


_JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | _TEXT, lambda value: st.lists(value, max_size=2))


_SAMPLE = st.fixed_dictionaries({
    "score": st.integers(-4000, 4000).map(lambda number: number / 4), "label": st.integers(-(2**62), 2**62),
    "cls": st.booleans(), "who": _TEXT, "made": st.dictionaries(_TEXT, _JSON, max_size=2), "raw": st.just(b"1"),
})  # fmt: skip


class _Half(float, Enum):
    HALF = 0.5


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (_Half.HALF, b"0.5"),
        (np.void(b"abc"), b"abc"),
        (np.array(b"abc"), b"abc"),
        (np.datetime64("2020-01-02", "ns"), b"2020-01-02T00:00:00"),
        (np.datetime64(1, "ns"), b"1970-01-01T00:00:00.000000001"),
        ({"at": np.datetime64("2020-01-02", "ns")}, b'{"at":"2020-01-02T00:00:00"}'),
    ],
)
def test_values_of_derived_types(tmp_path: Path, value: object, stored: bytes) -> None:
    """Floats with an own representation are stored as numbers, times in nanoseconds as text, and bytes as they are."""
    _write(tmp_path / "out-{0..}.tar", [({"__key__": np.int64(7), "x": value}, {})])
    assert shardtool.open(tmp_path / "out.json")["7"]["x"] == stored


@given(samples=st.lists(_SAMPLE, min_size=1, max_size=8), ending=st.sampled_from(["tar", "tfrecord"]))
@settings(max_examples=8)
def test_decode_returns_the_written_values(
    tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, object]], ending: str
) -> None:
    """`decode()` restores values of fields without an extension, also after `reshard` to another format."""
    folder = tmp_path_factory.mktemp("typed")
    rows: Samples = [({"__key__": f"{number}", **sample}, {}) for number, sample in enumerate(samples)]
    _write(folder / f"out-{{0..}}.{ending}", rows)
    for stored in shardtool.open(folder / "out.json"):
        assert [type(stored[name]) for name in ("who", "made", "raw")] == [bytes] * 3
    other_ending = "tar" if ending == "tfrecord" else "tfrecord"
    shardtool.reshard(folder / "out.json", folder / f"again-{{0..}}.{other_ending}", workers=0)
    for name in ("out", "again"):
        decoded = [*shardtool.open(folder / f"{name}.json").decode()]
        assert [{field: (row[field], type(row[field])) for field in samples[0]} for row in decoded] == [
            {field: (value, type(value)) for field, value in sample.items()} for sample in samples
        ]


def test_a_field_of_several_types(tmp_path: Path) -> None:
    """A type is recorded only if all samples have it: booleans and numbers are numbers, text and bytes are bytes."""
    samples: Samples = [
        ({"__key__": "a", "n": True, "x": "text", "f": 0.5}, {}),
        ({"__key__": "b", "n": 7, "x": b"bytes", "f": 1}, {}),
        ({"__key__": "c", "n": False, "x": {"a": 1}, "f": True}, {}),
    ]
    _write(tmp_path / "out-{0..}.tar", samples, max_count=1)
    found = [list(sample.values())[1:] for sample in shardtool.open(tmp_path / "out.json").decode()]
    assert [[*map(repr, values)] for values in found] == [
        ["0.5", "1", "b'text'"], ["1.0", "7", "b'bytes'"], ["1.0", "0", "b'{\"a\":1}'"]
    ]  # fmt: skip
    assert "types" not in _content_of(tmp_path)["shardtool"]


def test_types_after_an_append_and_from_a_table(tmp_path: Path) -> None:
    """Types are those on which all samples agree, also from a table, a join, a removal or several datasets."""
    table = pa.table({"key": ["a", "b"], "seen": [True, False], "who": ["x", "y"], "n": [1, 2]})
    values = {"seen": "seen", "who": "who", "n": "n"}
    create(table, tmp_path / "out-{0..}.tar", CreateOptions(key="key", field=values, meta="none", workers=0))
    assert _content_of(tmp_path)["shardtool"]["types"] == {"seen": "bool", "who": "text"}
    shardtool.remove(tmp_path / "out.json", where="n == 2")
    assert shardtool.open(tmp_path / "out.json").decode()["a"] == {"__key__": "a", "n": 1, "seen": True, "who": "x"}
    more = pa.table({"key": ["c"], "seen": [False], "who": [5], "n": [3]})
    options = CreateOptions(key="key", field=values, meta="none", workers=0)
    create(more, tmp_path / "more-{0..}.tar", options)
    both = shardtool.open([tmp_path / "out.json", tmp_path / "more.json"]).decode()
    assert [(sample["seen"], sample["who"]) for sample in both] == [(True, b"x"), (False, b"5")]
    create(more, tmp_path / "out-{0..}.tar", replace(options, append=True))
    assert _content_of(tmp_path)["shardtool"]["types"] == {"seen": "bool"}
    assert [sample["who"] for sample in shardtool.open(tmp_path / "out.json").decode()] == [b"x", b"5"]


@pytest.mark.parametrize("kind", ["code", "int64", 5, None])
def test_invalid_types_in_a_dataset_file_are_refused(tmp_path: Path, kind: object) -> None:
    """An unknown type, or the type of an unknown field, is refused."""
    _write(tmp_path / "out-{0..}.tar", [({"__key__": "a", "who": "x"}, {})])
    data = (tmp_path / "out.json").read_bytes()
    for types in ({"who": kind}, {"other": "text"}):
        body = data[:-12].replace(b'"who": "text"', json.dumps(types)[1:-1].encode())
        (tmp_path / "out.json").write_bytes(body + b'%08x"\n}\n' % crc32c(body))
        with pytest.raises(CorruptShard, match="not a valid dataset file"):
            shardtool.open(tmp_path / "out.json")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 3, 3)), r"an array \[2, 3, 3\] of float64; expected uint8"),
        (np.zeros((3, 2, 2), np.uint8), r"an array \[3, 2, 2\] of uint8; expected uint8"),
        (np.zeros((0, 2), np.uint8), r"an array \[0, 2\]"),
        (np.array(3, np.uint8), r"an array \[\] of uint8; expected uint8"),
        (np.zeros((2, 2, 4), np.uint8), "cannot be written as JPEG"),
        (np.zeros((2, 2), np.uint16), "cannot be written as JPEG|cannot store without loss"),
    ],
)
def test_arrays_that_are_no_image_are_refused(tmp_path: Path, value: object, message: str) -> None:
    """Arrays that do not fit the image format are refused; others are restored from a PNG."""
    with pytest.raises(InvalidRequest, match=message):
        _write(tmp_path / "bad-{0..}.tar", [({"__key__": "a", "jpg": value}, {})])
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    _write(tmp_path / "out-{0..}.tar", [({"__key__": "a", "png": pixels, "seg.png": pixels[..., :1]}, {})])
    found = shardtool.open(tmp_path / "out.json").decode({"seg.png": "mask"})[0]
    assert np.array_equal(found["png"], pixels)
    assert np.array_equal(found["seg.png"], pixels[..., 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "ending"), [("I", "webp"), ("F", "gif"), ("I;16", "webp"), ("I", "ppm"), ("I", "png")]
)
def test_no_image_is_clipped(tmp_path: Path, mode: str, ending: str) -> None:
    """An image whose values its format would clip is refused; TIFF and 16-bit grey PNG are accepted."""
    from PIL import Image

    image = Image.fromarray(np.array([[0, 70000]], np.int32) if mode != "I;16" else np.array([[0, 7000]], np.uint16))
    sample = {"__key__": "a", ending: image.convert(mode)}
    with pytest.raises(InvalidRequest, match="cannot store without loss"):
        _write(tmp_path / "bad-{0..}.tar", [(sample, {})])
    deep = Image.fromarray(np.array([[0, 7000]], np.uint16 if ending == "png" else np.int32))
    _write(tmp_path / "out-{0..}.tar", [({"__key__": "a", "tiff": image.convert(mode), "png": deep}, {})])
    found = shardtool.open(tmp_path / "out.json").decode({"tiff": "mask", "png": "mask"})[0]
    assert np.array_equal(found["tiff"], np.asarray(image.convert(mode)))
    assert found["png"].tolist() == [[0, 7000]]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"jpg": b""}, "no key"),
        ({"__key__": "a"}, "no field"),
        ({"__key__": "a/../b", "jpg": b""}, "not a valid name"),
        ({"__key__": "a\n", "jpg": b""}, "control characters"),
        ({"__key__": "b", "j/pg": b""}, "not a valid field name"),
        ({"__key__": "b", "jpg": b"", "JPG": b"", "a": b"1"}, "differ only in case: JPG, jpg"),
        ({"__key__": "first", "jpg": b"", "n": 1}, "a duplicate key"),
        ({"__key__": "b", "jpg": None, "n": 1}, "None"),
        ({"__key__": "b", "jpg": b"", "n": "text"}, "expected an integer, as in earlier samples"),
        ({"__key__": "b", "jpg": b"", "n": 1.5}, "expected an integer, as in earlier samples"),
        ({"__key__": "b", "jpg": b"", "n": 2**63}, "outside int64"),
        ({"__key__": "b", "jpg": np.zeros(3), "n": 1}, r"array \[3\] of float64; expected uint8"),
        ({"__key__": "b", "jpg": object(), "n": 1}, "type object"),
        ({"__key__": "b", "jpg": bytes(9000), "n": 1}, "larger than a shard"),
        ({"__key__": "a.b", "seg.png": b""}, "fields with dots"),
        (
            {"__key__": "b", "jpg": "photos/b.jpg"},
            "field 'jpg': a value of the type str; expected the bytes of an image",
        ),
        ({"__key__": "b", "a.npy": [1, 2]}, "field 'a.npy': a value of the type list; expected a NumPy array"),
        (
            {"__key__": "b", "a.npy": np.float32(1)},
            "field 'a.npy': a value of the type float32; expected a NumPy array",
        ),
        ({"__key__": "b", "f": Decimal("sNaN")}, "field 'f': NaN; expected a number"),
        ({"__key__": "b", "t": pd.NaT}, "field 't': NaT; expected a date or time"),
        ({"__key__": "b", "t": np.timedelta64(1, "ns")}, r"a value of the type timedelta64\[ns\]"),
        (None, "a dict with a key"),
        ({"__key__": "b", **{f"f{n}": b"" for n in range(2**16)}}, "different fields"),
    ],
)
def test_refused_samples(tmp_path: Path, sample: Any, message: str) -> None:
    """Samples that `create` refuses are refused; the writer continues, or lists them with `on_error="skip"`."""
    first = {"__key__": "first", "jpg": b"1", "n": 1}
    writer = ShardWriter(tmp_path / "a/out-{000000..}.tar", max_size=8000)
    writer.write(first)
    with pytest.raises(InvalidRequest, match=message.replace("^", r"\^")) as caught:
        writer.write(sample)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - data from this test
    writer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        writer.write(first)
    assert writer.samples == 1
    options: dict[str, Any] = {"oversize": "skip"} if "larger" in message else {"on_error": "skip"}
    writer = _write(tmp_path / "b/out-{000000..}.tar", [(first, {}), (sample, {})], max_size=8000, **options)
    assert (writer.samples, writer.skipped) == (1, 1)
    assert len((tmp_path / "b/out.skipped").read_bytes().splitlines()) == 1
    assert verify(tmp_path / "b/out.json").findings == ()


@pytest.mark.parametrize("dots", [None, "last"])
@pytest.mark.parametrize("other", [{"__key__": "a.b", "png": b""}, {"__key__": "b", "png": b""}])
def test_dots_in_keys_and_fields(tmp_path: Path, other: dict[str, Any], dots: Any) -> None:
    """A field with a dot is refused in any order if a key ends at its last dot, so a reader finds every name."""
    dotted = {"__key__": "c", "seg.png": b""}
    is_refused = dots == "last" or "." in other["__key__"]
    for number, samples in enumerate(([other, dotted], [dotted, other])):
        folder = tmp_path / str(number)
        writer = _write(folder / "out-{0..}.tar", [(sample, {}) for sample in samples], dots=dots, on_error="skip")
        assert (writer.samples, writer.skipped) == ((1, 1) if is_refused else (2, 0))
        assert verify(folder / "out.json").findings == ()


@pytest.mark.parametrize(
    ("key", "dots", "remedy"),
    [
        ("a", "last", "or use dots='first'."),
        ("a.b", "last", "Rename the fields.$"),
        ("a.b", None, "or use keys without dots."),
    ],
)
def test_dots_remedy(tmp_path: Path, key: str, dots: Any, remedy: str) -> None:
    """The error about fields with dots advises only what helps."""
    with pytest.raises(InvalidRequest, match=remedy), ShardWriter(tmp_path / "out-{0..}.tar", dots=dots) as writer:
        writer.write({"__key__": key, "seg.png": b""})


def test_oversize_alone(tmp_path: Path) -> None:
    """An oversized sample gets its own shard, and no other shard exceeds the limit."""
    samples: Samples = [({"__key__": f"{n}", "jpg": bytes(9000 if n == 2 else 100)}, {}) for n in range(5)]
    writer = _write(tmp_path / "out-{000000..}.tar", samples, max_size=8000, oversize="alone")
    assert [(tmp_path / name).stat().st_size > 8000 for name in writer.shards] == [False, True, False]
    assert "each gets a shard of its own" in writer.notes[0]


def test_repr_shows_the_pattern_and_the_written_shards(tmp_path: Path) -> None:
    """The representation counts published shards."""
    with ShardWriter(tmp_path / "out-{0..}.tar", max_count=1) as writer:
        assert repr(writer) == "<ShardWriter 'out-{0..}.tar': 0 shards written>"
        writer.write({"__key__": "a", "bin": b"1"})
        writer.write({"__key__": "b", "bin": b"2"})
        assert repr(writer) == "<ShardWriter 'out-{0..}.tar': 1 shard written>"
    assert repr(writer) == "<ShardWriter 'out-{0..}.tar': 2 shards written>"


def test_no_samples(tmp_path: Path) -> None:
    """Without samples, or if all were skipped, there is no dataset."""
    with pytest.raises(InvalidRequest, match="no samples"):
        _write(tmp_path / "out-{000000..}.tar", [])
    with pytest.raises(SampleFailed, match="none of 1 samples"):
        _write(tmp_path / "out-{000000..}.tar", [({"__key__": "a"}, {})], on_error="skip")
    assert read_tree(tmp_path) == {}


def test_an_exception_leaves_only_complete_shards(tmp_path: Path) -> None:
    """An exception in the block leaves no dataset file and no partial file; another writer continues."""
    pattern = tmp_path / "out-{000000..}.tar"
    with pytest.raises(ZeroDivisionError):
        _write(pattern, _then_raise(_BYTES[:17], ZeroDivisionError), max_count=7)
    complete = ["out-000000.index", "out-000000.tar", "out-000001.index", "out-000001.tar"]
    assert [name for name in read_tree(tmp_path) if not name.startswith(".")] == complete
    with pytest.raises(OutputExists, match="resume=True"):
        ShardWriter(pattern)
    with pytest.raises(InvalidRequest, match="a writer with other options"):
        ShardWriter(pattern, max_count=8, resume=True)
    with ShardWriter(pattern, max_count=7, resume=True) as writer:
        assert (writer.samples, writer.last_key) == (14, "a/13")
        with pytest.raises(InvalidRequest, match="duplicate key"):
            writer.write(_BYTES[3][0])
        for sample, _ in _BYTES[14:]:
            writer.write(sample)
    _write(tmp_path / "whole/out-{000000..}.tar", _BYTES, max_count=7)
    whole = read_tree(tmp_path / "whole")
    assert {name: data for name, data in read_tree(tmp_path).items() if "/" not in name} == whole


def test_a_resumed_writer_lists_each_skipped_sample_once(tmp_path: Path) -> None:
    """Samples skipped after the last sample of a shard are listed once, because the program writes them again."""
    bad = [f"a/{n:02}" for n in (1, 6, 7, 13)]
    samples = [({**sample, "txt": object()} if sample["__key__"] in bad else sample, row) for sample, row in _BYTES]
    options: Any = {"max_count": 5, "on_error": "skip"}
    pattern = tmp_path / "out-{000000..}.tar"
    with pytest.raises(KeyboardInterrupt):
        _write(pattern, _then_raise(samples[:15], KeyboardInterrupt), **options)
    with ShardWriter(pattern, resume=True, **options) as writer:
        assert (writer.samples, writer.skipped, writer.last_key) == (10, 3, "a/12")
        for sample, row in samples[13:]:
            writer.write(sample, row)
        assert writer.skipped == len(bad)
    with ShardWriter(pattern, resume=True, **options) as writer:  # the dataset is finished
        assert (writer.samples, writer.skipped) == (26, len(bad))
    _write(tmp_path / "whole/out-{000000..}.tar", samples, **options)
    whole = read_tree(tmp_path / "whole")
    assert {name: data for name, data in read_tree(tmp_path).items() if "/" not in name} == whole
    assert [json.loads(row)["key"] for row in whole["out.skipped"].splitlines()] == bad


def _write_or_die(pattern: Path, kill_at: int) -> None:
    """Continue a dataset of 60 samples, and kill this process before one of them."""
    with ShardWriter(pattern, max_size=20_000, resume=True) as writer:
        for n in range(writer.samples, 60):
            if n == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            row = {"n": n, "name": str(n), "took": timedelta(n), "tags": [n]} if n > 20 else {"n": n}
            values = {"seen": n % 2 == 0, "who": str(n), "made": [n] if n < 45 else b"[]"}
            writer.write({"__key__": f"k{n:03}", "jpg": bytes(n * 70), "cls": n, "score": n / 7, **values}, row)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_a_killed_writer_is_resumed_to_the_same_bytes(tmp_path: Path, ending: str) -> None:
    """A killed writer is resumed after its last shard, and writes the same bytes as an uninterrupted writer."""

    def run(pattern: Path, kill_at: int) -> None:
        child = multiprocessing.get_context("fork").Process(target=_write_or_die, args=(pattern, kill_at))
        child.start()
        child.join()
        assert child.exitcode == (-signal.SIGKILL if kill_at < 60 else 0)

    run(tmp_path / f"once/out-{{000000..}}.{ending}", 60)
    again = tmp_path / f"again/out-{{000000..}}.{ending}"
    for at in (37, 50, 60):
        run(again, at)
    assert read_tree(tmp_path / "again") == read_tree(tmp_path / "once")
    assert _content_of(tmp_path / "again")["shardtool"]["types"] == {"seen": "bool", "who": "text"}
    assert verify(tmp_path / "again/out.json").findings == ()


def test_a_damaged_shard_is_written_again(tmp_path: Path) -> None:
    """Shards are reused up to the first one that differs from the journal; a note names it."""
    pattern = tmp_path / "out-{000000..}.tar"
    with pytest.raises(KeyboardInterrupt):
        _write(pattern, _then_raise(_BYTES[:17], KeyboardInterrupt), max_count=5)
    shard = tmp_path / "out-000001.tar"
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)
    with ShardWriter(pattern, max_count=5, resume=True) as writer:
        assert writer.last_key == "a/04"
        assert writer.notes == ["out-000001.tar differs from the journal and is written again, with all later shards"]
        for sample, _ in _BYTES[5:]:
            writer.write(sample)
    assert verify(tmp_path / "out.json").findings == ()


def test_resume_without_a_journal_is_refused(tmp_path: Path) -> None:
    """Resuming is refused without a journal, because another tool may have written the shards."""
    pattern = tmp_path / "out-{000000..}.tar"
    with pytest.raises(KeyboardInterrupt):
        _write(pattern, _then_raise(_BYTES[:17], KeyboardInterrupt), max_count=5)
    (tmp_path / ".out.journal").write_bytes(b"{\n")
    before = read_tree(tmp_path)
    with pytest.raises(OutputExists, match=r"3 shards without the journal .*; expected .out.journal. .*overwrite=True"):
        ShardWriter(pattern, max_count=5, resume=True)
    assert read_tree(tmp_path) == before
    _write(pattern, _BYTES, max_count=5, overwrite=True)
    assert verify(tmp_path / "out.json").samples == 30


def test_a_finished_dataset_is_resumed_without_a_change(tmp_path: Path) -> None:
    """Resuming a finished dataset reports its content and changes nothing; more samples are refused."""
    pattern = tmp_path / "out-{000000..}.tar"
    _write(pattern, _BYTES)
    before = read_tree(tmp_path)
    with ShardWriter(pattern, resume=True) as writer:
        assert (writer.samples, writer.last_key) == (30, "a/29")
        with pytest.raises(InvalidRequest, match="the earlier run is complete"):
            writer.write({"__key__": "new", "jpg": b""})
    assert read_tree(tmp_path) == before


def test_overwrite_keeps_the_old_dataset_until_the_end(tmp_path: Path) -> None:
    """`overwrite` replaces a dataset once the new dataset is complete. After an exception, the old dataset remains."""
    pattern = tmp_path / "out-{000000..}.tar"
    _write(pattern, _BYTES, max_count=4)
    before = read_tree(tmp_path)
    with pytest.raises(ZeroDivisionError):
        _write(pattern, _then_raise(_BYTES, ZeroDivisionError), overwrite=True, max_count=3)
    assert read_tree(tmp_path) == before
    _write(pattern, _BYTES[::-1], overwrite=True, max_count=9)
    assert verify(tmp_path / "out.json").findings == ()
    _write(tmp_path / "other/out-{000000..}.tar", _BYTES[::-1], max_count=9)
    assert {name: data for name, data in read_tree(tmp_path).items() if "/" not in name} == read_tree(
        tmp_path / "other"
    )


def test_an_interrupted_overwrite_is_not_resumed(tmp_path: Path) -> None:
    """Resuming is refused with the reason, because the files can belong to either dataset."""
    pattern = tmp_path / "out-{000000..}.tar"
    writer = ShardWriter(pattern, overwrite=True, max_count=1)
    for sample, _ in _BYTES[:3]:
        writer.write(sample)
    journal = (tmp_path / ".out.journal").read_bytes()
    writer.abandon()
    (tmp_path / ".out.journal").write_bytes(journal)  # as a kill leaves it
    with pytest.raises(InvalidRequest, match=r"was replacing .*Run it again with overwrite=True"):
        ShardWriter(pattern, resume=True, max_count=1)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """While one writer is open, a second writer is refused."""
    pattern = tmp_path / "out-{000000..}.tar"
    writer = ShardWriter(pattern)
    with pytest.raises(OutputExists, match="another run"):
        ShardWriter(pattern)
    writer.abandon()
    assert read_tree(tmp_path) == {}
    _write(pattern, _BYTES)


def test_a_fork_and_a_pickle_are_refused(tmp_path: Path) -> None:
    """A writer belongs to the process that created it."""
    with ShardWriter(tmp_path / "out-{000000..}.tar") as writer:
        writer.write(_BYTES[0][0])
        with pytest.raises(InvalidRequest, match="another process"):
            pickle.dumps(writer)
        child = multiprocessing.get_context("fork").Process(target=_write_in_child, args=(writer,))
        child.start()
        child.join()
        assert child.exitcode == 0
    assert verify(tmp_path / "out.json").samples == 1


def _write_in_child(writer: ShardWriter) -> None:
    try:
        with writer:
            writer.write(_BYTES[1][0])
    except InvalidRequest as error:
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)


def test_too_few_names_are_refused(tmp_path: Path) -> None:
    """A pattern with too few names is refused when they are used up; finished shards are complete."""
    with pytest.raises(InvalidRequest, match="2 names"):
        _write(tmp_path / "out-{000000..000001}.tar", _BYTES, max_count=3)
    assert _write(tmp_path / "one.tar", _BYTES).samples == 30


def test_a_file_instead_of_the_output_folder(tmp_path: Path) -> None:
    """A file with the name of the output folder is an error."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputExists, match="a folder"):
        ShardWriter(tmp_path / "file/out-{000000..}.tar")


def test_invalid_options_are_refused(tmp_path: Path) -> None:
    """Invalid options are refused before anything is written."""
    for options in (
        {"max_siz": 1}, {"max_size": "much"}, {"max_count": 0}, {"on_error": "stop"}, {"oversize": "x"}, {"parts": 2},
        {"resume": True, "overwrite": True}, {"part": 2, "parts": 2}, {"part": "a-b"}, {"part": "a", "parts": 2},
    ):  # fmt: skip
        with pytest.raises(ShardError):
            ShardWriter(tmp_path / "new/out-{000000..}.tar", **options)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_memory_per_sample(tmp_path: Path) -> None:
    """After its shard is published, a sample uses about 100 bytes, however long its key."""
    import tracemalloc

    count = 8000
    with ShardWriter(tmp_path / "out-{000000..}.tar", max_count=1000) as writer:
        writer.write({"__key__": "warm", "jpg": b"x"})
        tracemalloc.start()
        for n in range(count):
            writer.write({"__key__": f"{'long' * 20}{n}", "jpg": b"x"})
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert held < 130 * count + 2**19

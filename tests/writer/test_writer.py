"""Samples of a program become what `create` makes of the same samples."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
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


def _failing(samples: Samples, error: type[BaseException]) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    """Yield samples, and raise."""
    yield from samples
    raise error


def _made(folder: Path) -> dict[str, Any]:
    """Return what a dataset file says, without how it was made."""
    found = json.loads((folder / "out.json").read_bytes())
    del found["checksum"], found["shardtool"]["made"]
    return dict(found)


def _same(ours: Path, theirs: Path) -> None:
    """Check that two folders hold the same dataset, but for how it was made."""
    left, right = read_tree(ours), read_tree(theirs)
    assert list(left) == list(right)
    assert [name for name in left if name != "out.json" and left[name] != right[name]] == []
    assert _made(ours) == _made(theirs)
    assert verify(ours / "out.json").findings == ()


def _table(samples: Samples) -> tuple[pa.Table, dict[str, Any]]:
    """Return samples as a table in memory, and the options by which `create` makes the same of it."""
    columns: dict[str, list[object]] = {"key": [sample["__key__"] for sample, _ in samples]}
    fields = [name for name in samples[0][0] if name not in ("__key__", "json")]
    columns |= {f"f_{name}": [sample[name] for sample, _ in samples] for name in fields}
    columns |= {name: [metadata[name] for _, metadata in samples] for name in samples[0][1]}
    binary = [name for name in fields if isinstance(samples[0][0][name], bytes)]
    return pa.table(columns), {
        "key": "key",
        "binary": {name: f"f_{name}" for name in binary},
        "values": {name: f"f_{name}" for name in fields if name not in binary},
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
def test_same_as_create_of_a_table(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str], data: st.DataObject, bounds: dict[str, Any], ending: str
) -> None:
    """The same samples in the same order give the bytes, sidecars and dataset file of `create` for a table of them."""
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
    result = create(table, theirs / f"out-{{000000..}}.{ending}", CreateOptions(workers=1, **options, **bounds))
    numbers = ("cls", "score", "good.is")  # fields of which `create` makes columns, too
    told = [(sample, {**metadata, **{name: sample[name] for name in numbers}}) for sample, metadata in samples]
    writer = _write(ours / f"out-{{000000..}}.{ending}", told, **bounds)
    _same(ours, theirs)
    assert [note.replace(" (portable=True makes them safe)", "") for note in result.notes] == writer.notes
    assert writer.last_key == keys[-1]


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
@pytest.mark.parametrize("bounds", [{}, {"max_count": 7}, {"max_size": "20KB"}])
def test_same_as_create_of_a_folder(tmp_path: Path, ending: str, bounds: dict[str, Any]) -> None:
    """Bytes under the names of files give what `create` gives for a folder of these, where not all have each field."""
    samples: Samples = [({name: value for name, value in one.items() if value}, {}) for one, _ in _BYTES]
    files = {f"{one['__key__']}.{name}": one[name] for one, _ in samples for name in one if name != "__key__"}
    result = create(
        write_tree(tmp_path / "in", files), tmp_path / f"theirs/out-{{000000..}}.{ending}", CreateOptions(**bounds)  # type: ignore[arg-type]
    )  # fmt: skip
    writer = _write(tmp_path / f"ours/out-{{000000..}}.{ending}", samples, **bounds)
    _same(tmp_path / "ours", tmp_path / "theirs")
    assert [*result.notes] == writer.notes


def test_metadata_whose_type_grows(tmp_path: Path) -> None:
    """Columns have the types of a table of all rows, in all sidecars: whole numbers and floats are floats."""
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
    schema = _made(tmp_path / "ours")["shardtool"]["schema"]
    assert (schema["n"], schema["m"]) == ("double", "string")
    assert (tmp_path / "ours/out-000000.tar").read_bytes() == (tmp_path / "theirs/out-000000.tar").read_bytes()
    assert verify(tmp_path / "ours/out.json").findings == ()


_NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize(
    ("first", "fits", "wrong", "said"),
    [
        (1, 2, "x", "a value of the type str; expected numbers"),
        ([1], [1.5], ["a"], r"list<\w+: string>; expected list<\w+: double>"),
        ({"a": 1}, {"b": [2]}, {"a": "x"}, "struct<a: string>; expected struct<a: int64, b: list<item: int64>>"),
        (_NOON, _NOON.astimezone(timezone(timedelta(hours=1))), _NOON.replace(tzinfo=None), r"us\]; .*tz=UTC\], as"),
        (1.5, 2, 2**60, "a column of floats; expected floats, or whole numbers over 2"),
        (2**60, 2, 1.5, "a column of whole numbers over"),
        ("x", None, {1: 2}, "expected text"),
        ({"a": 1}, {}, {1: 2}, "dict key of type str"),
        (1, 2, [3], "of the type list"),
        ("x", "\U0001f600", "a\ud83d", "half of a surrogate pair; expected text that UTF-8 can hold"),
        (["x"], ["\u00e9"], ["\ud83d"], "surrogates not allowed"),
    ],
)
def test_metadata_that_no_column_holds(
    tmp_path: Path, cut: int, first: object, fits: object, wrong: object, said: str
) -> None:
    """A value that does not go with those of its column is refused at once, in a writer that resumes, too."""
    pattern = tmp_path / "out-{000000..}.tar"
    sound: Samples = [({"__key__": key, "n": 1}, {"m": value}) for key, value in (("a", first), ("b", fits))]
    with pytest.raises(KeyboardInterrupt):
        _write(pattern, _failing(sound, KeyboardInterrupt), max_count=cut)
    with ShardWriter(pattern, max_count=cut, resume=True) as writer:
        for sample, metadata in sound[writer.samples :]:
            writer.write(sample, metadata)
        with pytest.raises(InvalidRequest, match=f"c: metadata 'm': .*{said}"):
            writer.write({"__key__": "c", "n": 1}, {"m": wrong})
        with pytest.raises(InvalidRequest, match="c: metadata of the type list; expected a dict"):
            writer.write({"__key__": "c", "n": 1}, [1])  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"c: metadata 'm.ud83d': half of a surrogate pair"):
            writer.write({"__key__": "c", "n": 1}, {"m\ud83d": 1})
        writer.write({"__key__": "c", "n": 1}, {"m": first})
    assert verify(tmp_path / "out.json").findings == ()


def test_values(tmp_path: Path) -> None:
    """Arrays become npy, images what the ending says, numbers of NumPy and Python the same text."""
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


_JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | _TEXT, lambda one: st.lists(one, max_size=2))


_SAMPLE = st.fixed_dictionaries({
    "score": st.integers(-4000, 4000).map(lambda number: number / 4), "label": st.integers(-(2**62), 2**62),
    "cls": st.booleans(), "who": _TEXT, "made": st.dictionaries(_TEXT, _JSON, max_size=2), "raw": st.just(b"1"),
})  # fmt: skip


@given(sample=_SAMPLE, ending=st.sampled_from(["tar", "tfrecord"]))
@settings(max_examples=25)
def test_values_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, sample: dict[str, object], ending: str
) -> None:
    """`decode()` gives the values of fields whose names tell nothing; of another format, too, made by `reshard`."""
    folder = tmp_path_factory.mktemp("typed")
    _write(folder / f"out-{{0..}}.{ending}", [({"__key__": "a", **sample}, {})])
    stored = shardtool.open(folder / "out.json")[0]
    assert [type(stored[name]) for name in ("who", "made", "raw")] == [bytes] * 3
    other = "tar" if ending == "tfrecord" else "tfrecord"
    shardtool.reshard(folder / "out.json", folder / f"again-{{0..}}.{other}", workers=1)
    for name in ("out", "again"):
        found = shardtool.open(folder / f"{name}.json").decode()[0]
        assert {one: (found[one], type(found[one])) for one in sample} == {
            one: (value, type(value)) for one, value in sample.items()
        }


def test_a_field_of_several_types(tmp_path: Path) -> None:
    """What only some samples hold is not said of a field: truths among numbers are numbers, text among bytes bytes."""
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
    assert "types" not in _made(tmp_path)["shardtool"]


def test_types_after_an_append_and_from_a_table(tmp_path: Path) -> None:
    """Types are those that all samples agree on, also of a table, a join, a removal, and several datasets as one."""
    table = pa.table({"key": ["a", "b"], "seen": [True, False], "who": ["x", "y"], "n": [1, 2]})
    values = {"seen": "seen", "who": "who", "n": "n"}
    create(table, tmp_path / "out-{0..}.tar", CreateOptions(key="key", values=values, meta="none", workers=1))
    assert _made(tmp_path)["shardtool"]["types"] == {"seen": "bool", "who": "text"}
    shardtool.remove(tmp_path / "out.json", where="n == 2")
    assert shardtool.open(tmp_path / "out.json").decode()["a"] == {"__key__": "a", "n": 1, "seen": True, "who": "x"}
    more = pa.table({"key": ["c"], "seen": [False], "who": [5], "n": [3]})
    options = CreateOptions(key="key", values=values, meta="none", workers=1)
    create(more, tmp_path / "more-{0..}.tar", options)
    both = shardtool.open([tmp_path / "out.json", tmp_path / "more.json"]).decode()
    assert [(sample["seen"], sample["who"]) for sample in both] == [(True, b"x"), (False, b"5")]
    create(more, tmp_path / "out-{0..}.tar", replace(options, if_exists="append"))
    assert _made(tmp_path)["shardtool"]["types"] == {"seen": "bool"}
    assert [sample["who"] for sample in shardtool.open(tmp_path / "out.json").decode()] == [b"x", b"5"]


@pytest.mark.parametrize("kind", ["code", "int64", 5, None])
def test_types_that_cannot_be(tmp_path: Path, kind: object) -> None:
    """A dataset file that says another type, or one of a field that there is not, is refused."""
    _write(tmp_path / "out-{0..}.tar", [({"__key__": "a", "who": "x"}, {})])
    data = (tmp_path / "out.json").read_bytes()
    for told in ({"who": kind}, {"other": "text"}):
        body = data[:-12].replace(b'"who": "text"', json.dumps(told)[1:-1].encode())
        (tmp_path / "out.json").write_bytes(body + b'%08x"\n}\n' % crc32c(body))
        with pytest.raises(CorruptShard, match="not a valid dataset file"):
            shardtool.open(tmp_path / "out.json")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros((2, 3, 3)), r"an array \[2, 3, 3\] of float64; expected uint8"),
        (np.zeros((3, 2, 2), np.uint8), r"an array \[3, 2, 2\] of uint8; expected uint8"),
        (np.zeros((0, 2), np.uint8), r"an array \[0, 2\]"),
        (np.zeros((2, 2, 4), np.uint8), "cannot be written as JPEG"),
        (np.zeros((2, 2), np.uint16), "cannot be written as JPEG|would lose values"),
    ],
)
def test_pixels_that_no_image_has(tmp_path: Path, value: object, said: str) -> None:
    """Arrays that are no image of the format are refused by name; others come back from a PNG as they were."""
    with pytest.raises(InvalidRequest, match=said):
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
    """An image whose values its format would clip is refused; as a TIFF it is kept, and so is 16-bit grey as PNG."""
    from PIL import Image

    image = Image.fromarray(np.array([[0, 70000]], np.int32) if mode != "I;16" else np.array([[0, 7000]], np.uint16))
    sample = {"__key__": "a", ending: image.convert(mode)}
    with pytest.raises(InvalidRequest, match="would lose values"):
        _write(tmp_path / "bad-{0..}.tar", [(sample, {})])
    deep = Image.fromarray(np.array([[0, 7000]], np.uint16))
    _write(tmp_path / "out-{0..}.tar", [({"__key__": "a", "tiff": image.convert(mode), "png": deep}, {})])
    found = shardtool.open(tmp_path / "out.json").decode({"tiff": "mask", "png": "mask"})[0]
    assert np.array_equal(found["tiff"], np.asarray(image.convert(mode)))
    assert found["png"].tolist() == [[0, 7000]]


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"jpg": b""}, "no key"),
        ({"__key__": "a"}, "no field"),
        ({"__key__": "a/../b", "jpg": b""}, "no sound name"),
        ({"__key__": "a\n", "jpg": b""}, "control characters"),
        ({"__key__": "b", "j/pg": b""}, "no name for a field"),
        ({"__key__": "b", "jpg": b"", "JPG": b""}, "differ in case"),
        ({"__key__": "first", "jpg": b"", "n": 1}, "a key that an earlier sample"),
        ({"__key__": "b", "jpg": None, "n": 1}, "no value"),
        ({"__key__": "b", "jpg": b"", "n": "text"}, "expected a whole number, as in the samples before"),
        ({"__key__": "b", "jpg": b"", "n": 1.5}, "expected a whole number, as in the samples before"),
        ({"__key__": "b", "jpg": b"", "n": 2**63}, "over 2^63"),
        ({"__key__": "b", "jpg": np.zeros(3), "n": 1}, r"array \[3\] of float64; expected uint8"),
        ({"__key__": "b", "jpg": object(), "n": 1}, "type object"),
        ({"__key__": "b", "jpg": bytes(9000), "n": 1}, "larger than a shard"),
        ({"__key__": "a.b", "seg.png": b""}, "fields with dots"),
        (
            {"__key__": "b", "jpg": "photos/b.jpg"},
            "field 'jpg': a value of the type str; expected the bytes of an image",
        ),
        ({"__key__": "b", "a.npy": [1, 2]}, "field 'a.npy': a value of the type list; expected a NumPy array"),
        (None, "a dict of its key"),
        ({"__key__": "b", **{f"f{n}": b"" for n in range(2**16)}}, "different fields"),
    ],
)
def test_samples_that_are_refused(tmp_path: Path, sample: Any, said: str) -> None:
    """What `create` refuses is refused, by name; the writer goes on without it, or lists it with `on_error="skip"`."""
    first = {"__key__": "first", "jpg": b"1", "n": 1}
    writer = ShardWriter(tmp_path / "a/out-{000000..}.tar", max_size=8000)
    writer.write(first)
    with pytest.raises(InvalidRequest, match=said.replace("^", r"\^")) as caught:
        writer.write(sample)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - of our own
    writer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        writer.write(first)
    assert writer.samples == 1
    options: dict[str, Any] = {"oversize": "skip"} if "larger" in said else {"on_error": "skip"}
    writer = _write(tmp_path / "b/out-{000000..}.tar", [(first, {}), (sample, {})], max_size=8000, **options)
    assert (writer.samples, writer.skipped) == (1, 1)
    assert len((tmp_path / "b/out.skipped").read_bytes().splitlines()) == 1
    assert verify(tmp_path / "b/out.json").findings == ()


def test_oversize_alone(tmp_path: Path) -> None:
    """A sample that fits in no shard gets one of its own, and no other shard is over the bound."""
    samples: Samples = [({"__key__": f"{n}", "jpg": bytes(9000 if n == 2 else 100)}, {}) for n in range(5)]
    writer = _write(tmp_path / "out-{000000..}.tar", samples, max_size=8000, oversize="alone")
    assert [(tmp_path / name).stat().st_size > 8000 for name in writer.shards] == [False, True, False]
    assert "each gets a shard of its own" in writer.notes[0]


def test_no_samples(tmp_path: Path) -> None:
    """Without a sample there is no dataset, and all that were left out are no dataset either."""
    with pytest.raises(InvalidRequest, match="no samples"):
        _write(tmp_path / "out-{000000..}.tar", [])
    with pytest.raises(SampleFailed, match="none of 1 samples"):
        _write(tmp_path / "out-{000000..}.tar", [({"__key__": "a"}, {})], on_error="skip")
    assert read_tree(tmp_path) == {}


def test_an_exception_leaves_whole_shards_only(tmp_path: Path) -> None:
    """Leaving the block with an exception leaves no dataset file and nothing partial; another writer goes on."""
    pattern = tmp_path / "out-{000000..}.tar"
    with pytest.raises(ZeroDivisionError):
        _write(pattern, _failing(_BYTES[:17], ZeroDivisionError), max_count=7)
    left = ["out-000000.index", "out-000000.tar", "out-000001.index", "out-000001.tar"]
    assert [name for name in read_tree(tmp_path) if not name.startswith(".")] == left
    with pytest.raises(OutputExists, match="resume=True"):
        ShardWriter(pattern)
    with pytest.raises(InvalidRequest, match="asked for something else"):
        ShardWriter(pattern, max_count=8, resume=True)
    with ShardWriter(pattern, max_count=7, resume=True) as writer:
        assert (writer.samples, writer.last_key) == (14, "a/13")
        with pytest.raises(InvalidRequest, match="earlier sample"):
            writer.write(_BYTES[3][0])
        for sample, _ in _BYTES[14:]:
            writer.write(sample)
    _write(tmp_path / "whole/out-{000000..}.tar", _BYTES, max_count=7)
    whole = read_tree(tmp_path / "whole")
    assert {name: data for name, data in read_tree(tmp_path).items() if "/" not in name} == whole


def _write_or_die(pattern: Path, kill_at: int) -> None:
    """Go on with a dataset of 60 samples, and kill this process before one of them."""
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
    """A writer that was killed is resumed after its last shard, and what comes out is as if it had not been."""

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
    assert _made(tmp_path / "again")["shardtool"]["types"] == {"seen": "bool", "who": "text"}
    assert verify(tmp_path / "again/out.json").findings == ()


def test_a_damaged_shard_is_written_again(tmp_path: Path) -> None:
    """What a killed writer left is kept up to the first shard that is not as it was, to the byte; a note says so."""
    pattern = tmp_path / "out-{000000..}.tar"
    with pytest.raises(KeyboardInterrupt):
        _write(pattern, _failing(_BYTES[:17], KeyboardInterrupt), max_count=5)
    shard = tmp_path / "out-000001.tar"
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)
    with ShardWriter(pattern, max_count=5, resume=True) as writer:
        assert writer.last_key == "a/04"
        assert writer.notes == [
            "out-000001.tar is not what its writer has made: it is written again, with all after it"
        ]
        for sample, _ in _BYTES[5:]:
            writer.write(sample)
    assert verify(tmp_path / "out.json").findings == ()


def test_no_journal(tmp_path: Path) -> None:
    """To resume where shards lie, and nothing tells who made them, is refused: they may be another tool's."""
    pattern = tmp_path / "out-{000000..}.tar"
    with pytest.raises(KeyboardInterrupt):
        _write(pattern, _failing(_BYTES[:17], KeyboardInterrupt), max_count=5)
    (tmp_path / ".out.writer").write_bytes(b"{\n")
    before = read_tree(tmp_path)
    with pytest.raises(OutputExists, match=r"3 shards, and no journal .*; expected .out.writer. .*overwrite=True"):
        ShardWriter(pattern, max_count=5, resume=True)
    assert read_tree(tmp_path) == before
    _write(pattern, _BYTES, max_count=5, overwrite=True)
    assert verify(tmp_path / "out.json").samples == 30


def test_a_finished_dataset_is_resumed_without_a_change(tmp_path: Path) -> None:
    """To resume what has ended says what is there, and changes nothing; more samples are refused."""
    pattern = tmp_path / "out-{000000..}.tar"
    _write(pattern, _BYTES)
    before = read_tree(tmp_path)
    with ShardWriter(pattern, resume=True) as writer:
        assert (writer.samples, writer.last_key) == (30, "a/29")
        with pytest.raises(InvalidRequest, match="had ended"):
            writer.write({"__key__": "new", "jpg": b""})
    assert read_tree(tmp_path) == before


def test_overwrite_keeps_the_old_dataset_until_the_end(tmp_path: Path) -> None:
    """`overwrite` replaces a dataset once the new one is whole; an exception before that leaves the old one."""
    pattern = tmp_path / "out-{000000..}.tar"
    _write(pattern, _BYTES, max_count=4)
    before = read_tree(tmp_path)
    with pytest.raises(ZeroDivisionError):
        _write(pattern, _failing(_BYTES, ZeroDivisionError), overwrite=True, max_count=3)
    assert read_tree(tmp_path) == before
    _write(pattern, _BYTES[::-1], overwrite=True, max_count=9)
    assert verify(tmp_path / "out.json").findings == ()
    _write(tmp_path / "other/out-{000000..}.tar", _BYTES[::-1], max_count=9)
    assert {name: data for name, data in read_tree(tmp_path).items() if "/" not in name} == read_tree(
        tmp_path / "other"
    )


def test_an_overwrite_that_was_killed_is_not_resumed(tmp_path: Path) -> None:
    """To resume it is refused with its reason, though nothing else was asked for: what is there may be of both."""
    pattern = tmp_path / "out-{000000..}.tar"
    writer = ShardWriter(pattern, overwrite=True, max_count=1)
    for sample, _ in _BYTES[:3]:
        writer.write(sample)
    journal = (tmp_path / ".out.writer").read_bytes()
    writer.abandon()
    (tmp_path / ".out.writer").write_bytes(journal)  # as a kill leaves it
    with pytest.raises(InvalidRequest, match=r"was to replace .*Run it again with overwrite=True"):
        ShardWriter(pattern, resume=True, max_count=1)


def test_two_writers_on_one_pattern(tmp_path: Path) -> None:
    """While one writer is open, a second one is refused; it may come after."""
    pattern = tmp_path / "out-{000000..}.tar"
    writer = ShardWriter(pattern)
    with pytest.raises(OutputExists, match="another run"):
        ShardWriter(pattern)
    writer.abandon()
    assert read_tree(tmp_path) == {}
    _write(pattern, _BYTES)


def test_a_fork_and_a_pickle_are_refused(tmp_path: Path) -> None:
    """A writer belongs to the process that made it."""
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


def test_names_run_out(tmp_path: Path) -> None:
    """A pattern with too few names is refused when they run out; what is written by then is whole."""
    with pytest.raises(InvalidRequest, match="2 names"):
        _write(tmp_path / "out-{000000..000001}.tar", _BYTES, max_count=3)
    assert _write(tmp_path / "one.tar", _BYTES).samples == 30


def test_a_folder_that_refuses(tmp_path: Path) -> None:
    """A file where a folder must be is in the way of the output."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputExists, match="a folder"):
        ShardWriter(tmp_path / "file/out-{000000..}.tar")


def test_wrong_options(tmp_path: Path) -> None:
    """Options that make no sense are refused before anything is written."""
    for options in (
        {"max_siz": 1}, {"max_size": "much"}, {"max_count": 0}, {"on_error": "stop"}, {"oversize": "x"}, {"parts": 2},
        {"resume": True, "overwrite": True}, {"part": 2, "parts": 2}, {"part": "a-b"}, {"part": "a", "parts": 2},
    ):  # fmt: skip
        with pytest.raises(ShardError):
            ShardWriter(tmp_path / "new/out-{000000..}.tar", **options)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_memory_a_sample(tmp_path: Path) -> None:
    """What is kept of a sample, once its shard is published, is a hash: 100 bytes or so, however long its key."""
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

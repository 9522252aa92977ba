"""Laws of TFRecord features that are lists: `reshard` copies them undecoded, and all that is told of them is true."""

from __future__ import annotations

import json
import os
import random
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import CreateOptions, IndexOptions, InvalidRequest, ReshardOptions, create, index, reshard, verify
from shardtool.dataset.sidecar_schema import ShardFacts
from shardtool.dataset.sidecar_write import encode_sidecar, written_index
from shardtool.fingerprint import format_fingerprint
from shardtool.pattern import parse_pattern
from shardtool.plan.plan import make_plan
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.shard_task import build_shard_samples
from shardtool.source.shard_listing import list_datasets
from shardtool.storage.staging import Folder
from shardtool.write.pack_shard import pack_shard
from shardtool.write.task import ShardTask
from tests import tfrecords
from tests.helpers import read_tree, shards, sidecar
from tests.made import changed
from tests.source.test_shard_listing import Count, Here
from tests.tfrecords import BYTES, FLOAT, INT64

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

Example = tuple[str, dict[str, tuple[int, bytes]]]  # a key; and of features, the kind, and what the list holds


def _packed(kind: int, values: Sequence[Any]) -> bytes:
    """Return the payload of packed numbers."""
    if kind == FLOAT:
        return struct.pack(f"<{len(values)}f", *values)
    return b"".join(map(tfrecords.varint, values))


def _inside(kind: int, values: Sequence[Any], form: str = "packed") -> bytes:
    """Return what a list of values holds: numbers `packed`, in `two` packs, or `one` by one."""
    if kind == BYTES:
        return b"".join(map(tfrecords.part, values))
    if form == "one":
        tag = b"\x0d" if kind == FLOAT else b"\x08"
        return b"".join(tag + _packed(kind, [value]) for value in values)
    if form == "two":
        half = len(values) // 2
        return tfrecords.part(_packed(kind, values[:half])) + tfrecords.part(_packed(kind, values[half:]))
    return tfrecords.part(_packed(kind, values)) if values or form == "empty pack" else b""


def _write(path: Path, examples: Sequence[Example]) -> Path:
    """Write a TFRecord shard like another tool: features in the given order, the key last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = []
    for key, fields in examples:
        entries = [tfrecords.feature(name.encode(), kind, inside) for name, (kind, inside) in fields.items()]
        entries.append(tfrecords.feature(b"__key__", BYTES, tfrecords.part(key.encode())))
        records.append(tfrecords.frame(tfrecords.part(b"".join(entries))))
    path.write_bytes(b"".join(records))
    return path


def _read(folder: Path) -> dict[str, dict[str, tuple[int, list[Any]]]]:
    """Return the values of every sample in a folder of TFRecords, by no code of ours."""
    result: dict[str, dict[str, tuple[int, list[Any]]]] = {}
    for path in shards(folder):
        for _, data in tfrecords.records(path.read_bytes()):
            fields = {name: (one.kind, one.values) for name, one in tfrecords.parse_lists(data).items()}
            (key,) = fields.pop("__key__")[1]
            assert isinstance(key, bytes)
            assert key.decode() not in result
            result[key.decode()] = fields
    return result


def _payloads(folder: Path) -> dict[tuple[str, str], bytes]:
    """Return the payload of every feature, by key and name."""
    result: dict[tuple[str, str], bytes] = {}
    for path in shards(folder):
        for _, data in tfrecords.records(path.read_bytes()):
            fields = tfrecords.parse_lists(data)
            key = data[fields["__key__"].start : fields["__key__"].stop].decode()
            result |= {(key, name): data[one.start : one.stop] for name, one in fields.items() if name != "__key__"}
    return result


def _indexed(folder: Path) -> dict[tuple[str, str], bytes]:
    """Return the payload of every field at the offset in the sidecars, after checking its checksum."""
    result = {}
    for path in shards(folder):
        raw = path.read_bytes()
        for row in pq.read_table(folder / sidecar(path.name)).to_pylist():
            for item in row["__fields__"]:
                data = raw[item["offset"] : item["offset"] + item["length"]]
                assert crc32c.crc32c(data) == item["crc32c"]
                result[row["__key__"], item["name"]] = data
    return result


def _told(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "out.json").read_bytes())["shardtool"]
    return told


def _run(source: Any, folder: Path, ending: str = "tfrecord", **options: Any) -> dict[str, Any]:
    """Reshard into `folder`; return what the dataset file tells."""
    reshard(source, f"{folder}/out-{{000..}}.{ending}", ReshardOptions(workers=0, **options))
    return _told(folder)


def _is_sound(folder: Path) -> None:
    report = verify(folder / "out.json")
    assert report.sound, report.findings
    assert _indexed(folder) == _payloads(folder)


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a folder, in memory if possible."""
    memory = "/dev/shm"  # noqa: S108 - only a place for a private folder
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


_NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)
_FLOATS = st.floats(width=32, allow_nan=False)
_FORMS = st.sampled_from(["packed", "one", "two", "empty pack"])
_VALUES = {INT64: _NUMBERS, FLOAT: _FLOATS, BYTES: st.binary(max_size=200)}


@st.composite
def _examples(draw: st.DrawFn) -> list[list[Example]]:
    """Give samples in shards: features that some lack, each of one kind, with any number of values, in any form."""
    kinds = draw(
        st.dictionaries(
            st.sampled_from(["a", "Z", "ids", "box", "__n__", "x" * 130]), st.sampled_from([*_VALUES]), min_size=1
        )
    )
    shapes, sample = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)), 0
    made: list[list[Example]] = []
    for count in shapes:
        made.append([])
        for _ in range(count):
            sample += 1
            fields = {}
            for name, kind in kinds.items():
                if draw(st.integers(0, 5)):
                    values = draw(st.lists(_VALUES[kind], max_size=5) | st.lists(_VALUES[kind], min_size=1, max_size=1))
                    fields[name] = kind, _inside(kind, values, draw(_FORMS))
            made[-1].append((f"k{sample}", {**fields, "t": (BYTES, tfrecords.part(b"%d" % sample))}))
    return made


@settings(max_examples=15)
@given(made=_examples(), method=st.sampled_from(["gather", "scatter"]), shuffle=st.booleans(), most=st.integers(1, 9))
def test_all_values_are_kept(made: list[list[Example]], method: str, most: int, *, shuffle: bool) -> None:
    """Every value of every sample is in the output, undecoded, with correct metadata; a repeated run gives the same."""
    memory = "/dev/shm"  # noqa: S108 - as above
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        folder = Path(name)
        for at, examples in enumerate(made):
            _write(folder / "in" / f"x-{at}.tfrecord", examples)
        told = _run(folder / "in", folder / "a", method=method, shuffle=shuffle, max_count=most)
        assert _read(folder / "a") == _read(folder / "in")
        _is_sound(folder / "a")
        lists = {name for name, spec in told["features"].items() if spec.startswith("tf.io.VarLenFeature")}
        payloads = {at: one for at, one in _payloads(folder / "in").items() if at[1] in lists}
        assert payloads.items() <= _payloads(folder / "a").items()
        samples = _read(folder / "in").values()
        assert lists >= {name for sample in samples for name, (_, values) in sample.items() if len(values) != 1}
        again = _run(folder / "a" / "out.json", folder / "b", max_count=most)
        assert {**again, "made": ""} == {**told, "made": ""}
        assert [path.read_bytes() for path in shards(folder / "b")] == [
            path.read_bytes() for path in shards(folder / "a")
        ]


def _typical(place: Path) -> Path:
    """Write two shards as TFDS might: boxes, token ids, names; a field that only the second shows to be a list."""
    one = [
        ("a", {"ids": (INT64, _inside(INT64, [1, -2, 300])), "box": (FLOAT, _inside(FLOAT, [0.5] * 4)),
               "n": (INT64, _inside(INT64, [7])), "late": (INT64, _inside(INT64, [-7]))}),
        ("b", {"ids": (INT64, _inside(INT64, [5])), "box": (FLOAT, b""), "n": (INT64, _inside(INT64, [8])),
               "names": (BYTES, _inside(BYTES, [b"x", b"", b"z"])), "late": (INT64, _inside(INT64, [2**63 - 1]))}),
    ]  # fmt: skip
    two = [
        (
            "c",
            {"late": (INT64, _inside(INT64, [1, 2], "one")), "names": (BYTES, b""), "n": (INT64, _inside(INT64, [9]))},
        ),
        ("d", {"late": (INT64, b""), "names": (BYTES, _inside(BYTES, [b"only"])), "n": (INT64, _inside(INT64, [0]))}),
    ]
    _write(place / "in" / "x-0.tfrecord", one)
    _write(place / "in" / "x-1.tfrecord", two)
    return place / "in"


SPEC = {
    "__key__": "tf.io.FixedLenFeature([], tf.string)",
    "box": "tf.io.VarLenFeature(tf.float32)",
    "ids": "tf.io.VarLenFeature(tf.int64)",
    "late": "tf.io.VarLenFeature(tf.int64)",
    "n": "tf.io.FixedLenFeature([], tf.int64)",
    "names": "tf.io.VarLenFeature(tf.string)",
}


def test_the_dataset_file_tells_of_lists(place: Path) -> None:
    """`reshard` and `index` write the same `parse_features` for TensorFlow; single numbers stay numbers."""
    source = _typical(place)
    assert _run(source, place / "a")["features"] == SPEC
    index(source, IndexOptions(workers=0))
    (file,) = source.glob("*.json")
    assert json.loads(file.read_bytes())["shardtool"]["features"] == SPEC
    assert _run(file, place / "b")["features"] == SPEC
    assert read_tree(place / "a").keys() == read_tree(place / "b").keys()


def test_the_fingerprint_is_that_of_the_content(place: Path) -> None:
    """A single number counts as its text, a list as stored, for any scan, order, shards and resume."""
    source = _typical(place)
    result = _run(source, place / "a", drop_fields=("box",), max_count=3)["fingerprint"]
    _is_sound(place / "a")
    assert _run(place / "a", place / "b", shuffle=True, method="scatter", max_count=1)["fingerprint"] == result
    for path in shards(place / "a"):
        (place / "bare").mkdir(exist_ok=True)
        (place / "bare" / path.name).write_bytes(path.read_bytes())
    index(place / "bare", IndexOptions(workers=0, checksum=True))
    assert _told(place / "bare")["fingerprint"] == result
    right = read_tree(place / "a")
    (place / "a" / "out.json").unlink()
    shards(place / "a")[1].unlink()
    _run(source, place / "a", drop_fields=("box",), max_count=3, resume=True)
    assert read_tree(place / "a") == right


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gather", "scatter"])
def test_large_lists(method: str, place: Path) -> None:
    """A sample larger than any buffer is streamed: numbers alone, lists, and what follows them are right."""
    chance = random.Random(3)  # noqa: S311 - the same bytes each time
    many = [chance.randrange(-(2**63), -(2**62)) for _ in range(60_000)]  # ten bytes each
    examples: list[Example] = [
        ("a", {"ids": (INT64, _inside(INT64, many)), "one": (INT64, _inside(INT64, [-1])), "z": (BYTES, b"")}),
        ("b", {"ids": (INT64, _inside(INT64, many[:55_000], "one")), "one": (INT64, _inside(INT64, [2**40]))}),
        ("c", {"ids": (INT64, _inside(INT64, [4])), "one": (INT64, _inside(INT64, [3, 4]))}),
        ("d", {"ids": (INT64, b""), "z": (BYTES, _inside(BYTES, [chance.randbytes(300_000)] * 3))}),
    ]
    _write(place / "in" / "x.tfrecord", examples)
    _run(place / "in", place / "out", method=method, shuffle=True, max_count=2)
    assert _payloads(place / "out") == _payloads(place / "in")
    assert _read(place / "out") == _read(place / "in")
    _is_sound(place / "out")


@pytest.mark.parametrize("large", [False, True])
def test_a_changed_list_is_skipped(place: Path, *, large: bool) -> None:
    """A sample whose list differs from the listing is skipped; the fingerprint covers the others."""
    fields = {"a": (INT64, _inside(INT64, [5])), "b": (INT64, _inside(INT64, [6]))}
    names = {f"k{at}": _inside(BYTES, [b"x" * (700_000 if large and at == 2 else at)] * 3) for at in range(3)}
    examples: list[Example] = [(key, fields | {"t": (BYTES, inside)}) for key, inside in names.items()]
    lists = {"a": (INT64, _inside(INT64, [1, 2])), "b": (INT64, b""), "t": (BYTES, _inside(BYTES, [b"y"]))}
    examples.append(("k3", lists))
    _write(place / "in" / "x.tfrecord", examples)
    entries = list_datasets([str(place / "in")], Here(), Count(), to_format="tfrecord").entries
    (bad,) = [row for row in range(6, 9) if entries.fields[entries.rows.code[row]] == "t"]
    expected = entries.known_spans.crc.copy()
    expected[bad] ^= 1
    pattern = parse_pattern(str(place / "out-{000..}.tfrecord"))
    plan = make_plan(changed(entries, crc=expected), pattern, ShardBounds())
    samples, folder = build_shard_samples(plan, 0), Folder(str(place))
    result = pack_shard(ShardTask("out-000.tfrecord", plan.format, folder, samples, "skip", 0), lambda *_: None)
    assert [(at, one.key, one.code) for at, one in result.skipped] == [(2, "k2", "corrupt")]
    _write(place / "right" / "x.tfrecord", [item for item in examples if item[0] != "k2"])
    assert format_fingerprint(result.digest) == _run(place / "right", place / "a")["fingerprint"]
    assert result.staged is not None
    folder.publish(result.staged)
    index = written_index(plan.format, samples.content, None, result.field_crcs, (2,))
    told, _ = encode_sidecar(index, ShardFacts("out-000.tfrecord", result.size, result.crc, ""))
    (place / "out-000.index").write_bytes(told)
    assert _indexed(place) == _payloads(place) == _payloads(place / "a")


def test_a_kept_shard_keeps_its_record(place: Path) -> None:
    """The record of a shard of an earlier run is unchanged."""
    entries = list_datasets([str(_typical(place))], Here(), Count(), to_format="tfrecord").entries
    plan, folder = (
        make_plan(entries, parse_pattern(str(place / "out-{000..}.tfrecord")), ShardBounds()),
        Folder(str(place)),
    )
    task = ShardTask("out-000.tfrecord", plan.format, folder, build_shard_samples(plan, 0), "raise", 0)
    made = pack_shard(task, lambda *_: None)
    assert made.staged is not None
    folder.publish(made.staged)
    assert pack_shard(task._replace(action="compare"), lambda *_: None) == made._replace(staged=None, compared=True)


def test_lists_are_refused_in_tar_shards(place: Path) -> None:
    """The error names shard, field and sample; without these fields, the run works."""
    source = _typical(place)
    with pytest.raises(
        InvalidRequest, match=r"x-0\.tfrecord, a: the field '\w+' is a list.*drop_fields=.*ids"
    ) as found:
        _run(source, place / "a", "tar")
    assert "Write TFRecord shards" in found.value.remedy
    assert _run(source, place / "b", "tar", drop_fields=("ids", "box", "names", "late"))["numbers"] == {"n": "int64"}


def test_kinds_do_not_mix(place: Path) -> None:
    """A field of two kinds is refused, also after a list of the first kind; and so are texts of a tar."""
    fields = [(INT64, _inside(INT64, [1])), (INT64, _inside(INT64, [1, 2])), (FLOAT, _inside(FLOAT, [1.0]))]
    source = _write(place / "x.tfrecord", [(f"k{at}", {"n": one}) for at, one in enumerate(fields)])
    with pytest.raises(InvalidRequest, match="k2: the field 'n' is float; expected int64"):
        _run(source, place / "a")
    table = {"key": ["t"], "n": [3]}
    create(pa.table(table), place / "tar-{0..}.tar", CreateOptions(workers=0, key="key", field=("n=n",)))
    _write(place / "y.tfrecord", [("a", {"n": (INT64, _inside(INT64, [1, 2]))})])
    with pytest.raises(InvalidRequest, match=r"t: the field 'n' is text; expected a list of int64, as in y\.tfrecord"):
        _run([str(place / "y.tfrecord"), str(place / "tar-0.tar")], place / "b")


def test_fields_get_other_names(place: Path) -> None:
    """Lists keep their values under another name, replaced ones are lists no more, and two never become one."""
    source = _typical(place)
    told = _run(source, place / "a", rename_fields=("A=ids",), portable=True)
    assert told["features"]["a"] == SPEC["ids"]
    assert _read(place / "a")["a"]["a"] == _read(source)["a"]["ids"]
    _is_sound(place / "a")
    apart = _write(place / "y.tfrecord", [("a", {"p": (INT64, b"")}), ("b", {"q": (BYTES, b"")})])
    with pytest.raises(InvalidRequest, match="lists"):
        _run(apart, place / "b", rename_fields=("q=p",))
    table = pa.table({"key": [*"abcd"], "ids": [1, 2, 3, 4]})
    told = _run(source, place / "c", join=table, on="key", field=("ids=ids",))
    assert told["features"] == SPEC | {"ids": SPEC["n"]}
    _is_sound(place / "c")


def test_append(place: Path) -> None:
    """Appended values join a list of the same type, or turn a field into a list; other types are refused."""
    source = _typical(place)
    _run(source / "x-0.tfrecord", place / "a")
    assert _told(place / "a")["features"]["late"] == SPEC["n"]
    assert _run(source / "x-1.tfrecord", place / "a", append=True)["features"]["late"] == SPEC["late"]
    assert _read(place / "a") == _read(source)
    _is_sound(place / "a")
    other = _write(place / "y.tfrecord", [("e", {"names": (INT64, _inside(INT64, [1, 2]))})])
    with pytest.raises(InvalidRequest, match="field names: int64 in the new samples; expected bytes"):
        _run(other, place / "a", append=True)


def test_names_that_are_not_utf8(place: Path) -> None:
    """Such names are sorted differently when encoded, and each keeps its bytes."""
    features = [
        (b"\xff", INT64, b"\x08\1\x08\2"),
        (b"a", INT64, b"\x0a\2\3\4"),
        (b"__key__", BYTES, tfrecords.part(b"k")),
    ]
    data = tfrecords.part(b"".join(tfrecords.feature(*item) for item in features))
    (place / "x.tfrecord").write_bytes(tfrecords.frame(data))
    _run(place / "x.tfrecord", place / "out")
    assert _read(place / "out") == {"k": {"%FF": (INT64, [1, 2]), "a": (INT64, [3, 4])}}
    _is_sound(place / "out")


def test_lists_are_not_changed_on_the_way(tmp_path: Path) -> None:
    """A function has no form for a list of values: they are left out first, or the run is refused."""
    boxes = (INT64, _inside(INT64, [1, 2]))
    _write(
        tmp_path / "in" / "a.tfrecord",
        [(f"{at}", {"box": boxes, "txt": (BYTES, _inside(BYTES, [b"x"]))}) for at in "ab"],
    )
    options: dict[str, Any] = {"workers": 0, "map": "tests.mapped:doubled"}
    with pytest.raises(
        InvalidRequest,
        match=r"map: lists of values: box; expected single values\. Drop these fields with drop_fields=\('box',\)",
    ):
        reshard(tmp_path / "in", tmp_path / "o-{0..}.tfrecord", ReshardOptions(**options))
    made = reshard(tmp_path / "in", tmp_path / "o-{0..}.tfrecord", ReshardOptions(drop_fields=("box",), **options))
    assert made.samples == 4

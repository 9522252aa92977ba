"""Laws of `reshard`: with any options, every payload of the source is in the output or reported."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import random
import re
import shutil
import tarfile
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import (
    CorruptShard,
    CreateOptions,
    IndexOptions,
    InvalidRequest,
    Observer,
    OutputExists,
    ReshardOptions,
    SampleFailed,
    ShardError,
    VerifyOptions,
    create,
    export,
    index,
    reshard,
    verify,
)
from shardtool.pack import checks
from tests import tfrecords
from tests.helpers import existing, flip, identity, members, read_tree, shards, sidecar
from tests.stored import contents, skipped, sound
from tests.tfrecords import BYTES, FLOAT, INT64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool import CreateResult
    from tests.stored import Sample

# Forked workers start faster, and never touch what the threads of this process may hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

COUNT = 40
STEM = "out-{000..}"
LABELS = ("dog", "cat", "bee")
SHARES = "train=0.6,val=0.4"

Contents = dict[str, dict[str, bytes]]
Members = list[tuple[str, bytes]]


# Sources: the same samples in either format, and what other tools write.


class Made:
    """Samples, and their tar and TFRecord datasets with seven samples per shard."""

    def __init__(self, folder: Path, rows: dict[str, list[Any]]) -> None:
        self.folder, self.rows = folder, rows
        self._contents: dict[str, Contents] = {}

    @property
    def keys(self) -> list[str]:
        """The keys, in order."""
        return self.rows["key"]

    def file(self, ending: str = "tar") -> Path:
        """Return the dataset file of a format."""
        return self.folder / ending / "out.json"

    def contents(self, ending: str = "tar") -> Contents:
        """Return the samples in shards of a format, in order, read without our code."""
        if ending not in self._contents:
            self._contents[ending] = read(self.file(ending))
        return dict(self._contents[ending])

    def where(self, test: Callable[[dict[str, Any]], object]) -> list[str]:
        """Return the keys of rows that pass a test."""
        rows = [dict(zip(self.rows, values, strict=True)) for values in zip(*self.rows.values(), strict=True)]
        return [row["key"] for row in rows if test(row)]


def _memory() -> Path:
    """Return a new folder, in memory if possible, because syncing shards to a disk is slow."""
    memory = "/dev/shm"  # noqa: S108 - only a place for a private folder
    return Path(tempfile.mkdtemp(prefix="shardtool-reshard-", dir=memory if os.access(memory, os.W_OK) else None))


@pytest.fixture(scope="session")
def room() -> Iterator[Path]:
    """Give a folder for what several tests use."""
    folder = _memory()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a folder of our own."""
    folder = _memory()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def made(room: Path) -> Made:
    """Give samples with a payload, a text, a label and a number, and metadata with gaps."""
    chance, folder = random.Random(5), room / "made"  # noqa: S311 - the same bytes each time
    stems = [f"{'ab'[at % 2]}/{at:03}" for at in range(COUNT)]
    stems[3], stems[8], stems[21] = "ü ñ/é", "n" * 70 + "/" + "m" * 60, "x" * 120
    rows: dict[str, list[Any]] = {
        "key": stems,
        "jpg": [chance.randbytes(chance.choice([0, 1, 511, 512, 513, 4000])) for _ in range(COUNT)],
        "txt": [f"caption of {at}" for at in range(COUNT)],
        "label": [LABELS[at % 3] for at in range(COUNT)],
        "n": [at - 9 for at in range(COUNT)],
        "width": [at * 7 % 23 for at in range(COUNT)],
        "score": [None if at % 9 == 4 else float(at * 13 % 31) / 4 for at in range(COUNT)],
        "group": [f"g{at // 4}" for at in range(COUNT)],
        "part": ["test" if at % 5 == 4 else "train" for at in range(COUNT)],
    }
    for ending in ("tar", "tfrecord"):
        create(
            pa.table(rows), f"{folder}/{ending}/{STEM}.{ending}",
            CreateOptions(
                workers=0, max_count=7, key="key", bytes=("jpg=jpg",), field=("txt=txt", "cls=label", "n=n"),
                classes=("cls",), meta="label,width,score,group,part",
            ),
        )  # fmt: skip
    return Made(folder, rows)


def write_tar(path: Path, members: Sequence[str | tarfile.TarInfo], mode: Any = "w", **more: Any) -> Path:
    """Write a tar like another tool: names with payloads, or members of any kind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, errors="surrogateescape", **more) as out:
        for member in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            data = payload(info.name) if info.isreg() else b""
            info.size, info.mtime, info.uname, info.mode = len(data), 12345, "somebody", 0o755
            out.addfile(info, io.BytesIO(data))
    return path


def payload(name: str) -> bytes:
    """Return what `write_tar` writes for a name."""
    return name.encode("utf-8", "surrogateescape") * 40


def odd(name: str, kind: bytes, to: str = "") -> tarfile.TarInfo:
    """Return a member that is no file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def write_records(path: Path, *examples: Sequence[tuple[bytes, int, bytes]]) -> Path:
    """Write a TFRecord shard."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(tfrecords.frame(tfrecords.example(item)) for item in examples))
    return path


@pytest.fixture(scope="session")
def foreign(room: Path) -> tuple[list[Path], Contents]:
    """Yield a tar, a compressed one and a TFRecord of other tools without index, and their content."""
    folder = room / "foreign"
    stems = [[f"{item}/{at}" for at in range(9)] for item in ("t", "z", "r")]
    names = [[f"{stem}.{field}" for stem in some for field in ("txt", "jpg")] for some in stems]
    examples = [
        [(b"txt", BYTES, payload(f"{stem}.txt")), (b"jpg", BYTES, payload(f"{stem}.jpg")),
         (b"__key__", BYTES, stem.encode())]
        for stem in stems[2]
    ]  # fmt: skip
    files = [
        write_tar(folder / "gnu.tar", names[0], format=tarfile.GNU_FORMAT),
        write_tar(folder / "pax.tar.gz", names[1], "w:gz"),
        write_records(folder / "x.tfrecord", *examples),
    ]
    return files, {stem: {end: payload(f"{stem}.{end}") for end in ("jpg", "txt")} for some in stems for stem in some}


# Runs, and what they leave.


def run(sources: Any, folder: Path, ending: str = "tar", **changes: Any) -> CreateResult:
    """Reshard into a folder, without workers unless `asked` contains another number."""
    pattern, observer = changes.pop("pattern", f"{STEM}.{ending}"), changes.pop("observer", None)
    givens = [str(item) for item in sources] if isinstance(sources, list) else str(sources)
    options = ReshardOptions(**{"workers": 0, **changes})
    return reshard(givens, f"{folder}/{pattern}", options, observer=observer)


def read(dataset_file: Path) -> Contents:
    """Return key to field to content of a dataset, after checking every law of a dataset."""
    return contents(sound(dataset_file))


def samples(folder: Path, name: str = "out") -> list[Sample]:
    """Return the samples of a sound dataset, in order."""
    return [sample for shard in sound(folder / f"{name}.json") for sample in shard]


def keys(folder: Path, name: str = "out") -> list[str]:
    """Return the keys of a sound dataset, in order."""
    return [sample.key for sample in samples(folder, name)]


def is_sound(dataset_file: Path) -> None:
    """See that `verify` finds nothing, and that nothing temporary is left."""
    report = verify(dataset_file, VerifyOptions(workers=0))
    assert report.sound, report.findings
    assert not [name for name in os.listdir(dataset_file.parent) if name.startswith(".")]


def plain(folder: Path) -> list[Members]:
    """Return (name, payload) of the members of each tar, as `tarfile` reads them."""
    result = []
    for path in shards(folder):
        with tarfile.open(path) as tar:
            result.append([(member.name, tar.extractfile(member).read()) for member in tar])  # type: ignore[union-attr]
    return result


def refused(sources: Any, folder: Path, kind: type[ShardError] = InvalidRequest, **options: Any) -> ShardError:
    """Check that a run and a dry run are refused and write nothing; return the error."""
    before = read_tree(folder)
    with pytest.raises(kind) as caught:
        run(sources, folder, **options)
    assert read_tree(folder) == before
    return caught.value


# Content.

ORDERS: list[dict[str, Any]] = [
    {}, {"shuffle": True}, {"shuffle": True, "seed": 7}, {"sort_by": "size"}, {"sort_by": "key", "descending": True},
]  # fmt: skip
BOUNDS: list[dict[str, Any]] = [
    {"max_count": 1}, {"max_count": 9}, {"max_size": 20_000}, {"max_size": 14_000, "max_count": 5}, {},
    {"max_count": 11, "equal_count": True}, {"max_count": 9, "shards_multiple_of": 4},
    {"pattern": "out-{000..004}"}, {"pattern": "out-{000..006}", "equal_count": True},
]  # fmt: skip


def test_compressed_shards_are_not_gathered(foreign: tuple[list[Path], Contents], tmp_path: Path) -> None:
    """What can only be read in sequence is never read at its places: that is refused, and nothing written."""
    with pytest.raises(InvalidRequest, match="method: gather with compressed shards"):
        run(foreign[0], tmp_path, method="gather", pattern=f"{STEM}.tar")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@settings(max_examples=14)
@given(
    ours=st.sampled_from(["tar", "tfrecord", ""]), others=st.booleans(), ending=st.sampled_from(["tar", "tfrecord"]),
    order=st.sampled_from(ORDERS), bounds=st.sampled_from(BOUNDS), workers=st.integers(1, 2),
    method=st.sampled_from(["auto", "gather", "scatter"]), memory=st.sampled_from(["16MB", "1GB"]),
)  # fmt: skip
def test_content_is_kept(  # noqa: PLR0913 - a law over all of them
    *, ours: str, others: bool, ending: str, order: dict[str, Any], bounds: dict[str, Any], workers: int, method: str,
    memory: str, made: Made, foreign: tuple[list[Path], Contents],
) -> None:  # fmt: skip
    """For any number, size, order, format and sources, the output has the source's content, within the bounds."""
    others = others or not ours
    method = "auto" if others and method == "gather" else method  # which cannot be, of compressed shards
    pattern = bounds.get("pattern", STEM)
    options = {**order, **bounds, "workers": workers, "method": method, "memory": memory}
    sources = [*([made.file(ours)] if ours else []), *(foreign[0] if others else [])]
    expected = {**(made.contents(ours) if ours else {}), **(foreign[1] if others else {})}
    with tempfile.TemporaryDirectory(dir=made.folder) as folder:
        out = Path(folder)
        result = run(sources, out, **{**options, "pattern": f"{pattern}.{ending}"})
        actual = sound(out / "out.json", max_size=bounds.get("max_size"), max_count=bounds.get("max_count"))
        is_sound(out / "out.json")
    assert contents(actual) == expected
    assert result.samples == len(expected)
    if not order:
        assert [sample.key for shard in actual for sample in shard] == list(expected)
    if ours and not others:
        assert result.fingerprint == _told(made.file(ours))["fingerprint"]
    counts = [len(shard) for shard in actual]
    if "{000..00" in pattern:
        assert len(actual) == int(pattern[-2]) + 1
    assert len(actual) % bounds.get("shards_multiple_of", 1) == 0
    assert not bounds.get("equal_count") or max(counts) - min(counts) <= 1


def _told(dataset_file: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(dataset_file.read_bytes())["shardtool"]
    return result


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [{"max_size": 12_000}, {"pattern": "out-{000..003}"}], ids=str)
@pytest.mark.parametrize("of", ["tar", "tfrecord"])
def test_the_bounds_of_create_give_its_shards(
    of: str, ending: str, bounds: dict[str, Any], made: Made, place: Path
) -> None:
    """From either format, shards with the same bounds equal those of `create`, with rows and records."""
    pattern = f"{bounds.get('pattern', STEM)}.{ending}"
    bounds = {name: value for name, value in bounds.items() if name != "pattern"}
    options = CreateOptions(
        workers=0, key="key", bytes=("jpg=jpg",), field=("txt=txt", "cls=label", "n=n"),
        classes=("cls",), meta="label,width,score,group,part", **bounds,
    )  # fmt: skip
    create(pa.table(made.rows), f"{place}/a/{pattern}", options)
    run(made.file(of), place / "b", pattern=pattern, **bounds)
    for path in shards(place / "a"):
        assert (place / "b" / path.name).read_bytes() == path.read_bytes()
        rows = [pq.read_table(folder / sidecar(path.name)) for folder in (place / "a", place / "b")]
        assert rows[0].equals(rows[1])
    told = [_told(place / folder / "out.json") for folder in "ab"]
    assert told[1].pop("made")["source"] == "out"
    del told[0]["made"]
    assert told[0] == told[1]


@pytest.mark.parametrize("via", ["tar", "tfrecord"])
def test_there_and_back(via: str, made: Made, place: Path) -> None:
    """Through larger shards of either format and back, the first shards have the same bytes."""
    ending = "tar" if via == "tfrecord" else "tfrecord"
    run(made.file(ending), place / "via", via, max_count=100)
    run(place / "via", place / "back", ending, max_count=7)
    first = {path.name: path.read_bytes() for path in shards(made.file(ending).parent)}
    assert {path.name: path.read_bytes() for path in shards(place / "back")} == first


# The same bytes.

WAYS: list[dict[str, Any]] = [
    {"method": method, "workers": workers, "memory": memory, "start_method": start}
    for method, workers, memory, start in [
        ("gather", 3, "16MB", "fork"), ("scatter", 3, "16MB", "fork"), ("scatter", 1, "16MB", "fork"),
        ("scatter", 2, "1GB", "spawn"), ("auto", 2, "2GB", "auto"),
    ]
]  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "options", "ways"),
    [("tar", {"shuffle": True, "max_count": 6}, WAYS), ("tfrecord", {"shuffle": True, "max_count": 6}, WAYS[:3]),
     ("tar", {"sort_by": "score", "max_size": 15_000}, WAYS[:2]),
     ("tfrecord", {"shuffle": True, "split": SHARES, "pattern": "out-{split}-{000..}", "max_count": 6}, WAYS[:2])],
    ids=["tar", "tfrecord", "sort", "split"],
)  # fmt: skip
def test_the_same_bytes(
    ending: str, options: dict[str, Any], ways: list[dict[str, Any]], made: Made, place: Path
) -> None:
    """Any number of workers, method, memory and way to start gives the same bytes of every file, and no other file."""
    pattern = f"{options.get('pattern', STEM)}.{ending}"
    options = {name: value for name, value in options.items() if name != "pattern"}
    run(made.file(), place / "first", pattern=pattern, method="gather", **options)
    first = read_tree(place / "first")
    temp = place / "temp"
    temp.mkdir()
    for number, way in enumerate(ways):
        more: dict[str, Any] = {"temp_dir": str(temp)} if number % 2 else {}
        run(made.file(), place / str(number), pattern=pattern, **options, **way, **more)
        assert read_tree(place / str(number)) == first, way
    assert os.listdir(temp) == []


def test_locations_do_not_change_bytes(
    made: Made, foreign: tuple[list[Path], Contents], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file depends on the locations of sources and output, or on how they are named."""
    outs = []
    for name in ("a", "b c"):
        copy = place / name / "copy"
        shutil.copytree(made.file().parent, copy)
        monkeypatch.chdir(copy.parent)
        given = ["copy" if name == "a" else str(copy / "out.json"), *map(str, foreign[0])]
        run(given, Path("out" if name == "a" else copy.parent / "out"), shuffle=True, max_count=9)
        outs.append(read_tree(copy.parent / "out"))
    assert outs[0] == outs[1]
    assert str(place).encode() not in b"".join(outs[0].values())


# Choosing samples.

QUERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "label == 'dog' and width > 10": lambda row: row["label"] == "dog" and row["width"] > 10,
    "score > 2": lambda row: row["score"] is not None and row["score"] > 2,
    "score.isna()": lambda row: row["score"] is None,
    "key.str.startswith('a/')": lambda row: row["key"].startswith("a/"),
    "size > 4000": lambda row: len(row["jpg"]) == 4000,
    "fields == 5 and group in ['g0', 'g3']": lambda row: row["group"] in ("g0", "g3"),
}


@pytest.mark.parametrize(("query", "ending"), [(one, ("tar", "tfrecord")[at % 2]) for at, one in enumerate(QUERIES)])
def test_where_is_pythons(query: str, ending: str, made: Made, place: Path) -> None:
    """`--where` takes the samples that Python would, by metadata, key, size and number of fields."""
    run(made.file(ending), place, ending, where=query, max_count=5)
    assert keys(place) == made.where(QUERIES[query]) != []
    every = made.contents(ending)
    assert read(place / "out.json") == {key: every[key] for key in keys(place)}


def test_where_knows_the_shard(made: Made, place: Path) -> None:
    """The column `shard` is the file name of a sample's shard."""
    run(made.file(), place, where="shard == 'out-002.tar'")
    assert keys(place) == made.keys[14:21]


def test_a_share_is_nested_and_stable(made: Made, place: Path) -> None:
    """A smaller share is part of a larger one; the format, the order and other samples change nothing."""
    run(made.file(), place / "half", sample="50%")
    run(made.file("tfrecord"), place / "less", sample=0.2, shuffle=True)
    run(made.file(), place / "some", sample=0.5, where="label != 'dog'")
    half, less = set(keys(place / "half")), set(keys(place / "less"))
    assert less < half < set(made.keys)
    dogs = set(made.where(lambda row: row["label"] == "dog"))
    assert set(keys(place / "some")) == half - dogs
    run(made.file(), place / "all", sample=1)
    assert keys(place / "all") == made.keys


def test_head_is_the_first(made: Made, place: Path) -> None:
    """`--head` selects the first samples of the requested order; a shuffle mixes only these."""
    run(made.file(), place / "a", head=5)
    assert keys(place / "a") == made.keys[:5]
    run(made.file(), place / "b", head=5, sort_by="key", descending=True)
    assert keys(place / "b") == sorted(made.keys, key=str.encode, reverse=True)[:5]
    run(made.file(), place / "c", head=12, shuffle=True)
    assert sorted(keys(place / "c")) == sorted(made.keys[:12]) != keys(place / "c")
    run(made.file(), place / "d", head=1000)
    assert keys(place / "d") == made.keys


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("column", ["score", "width", "label", "key"])
def test_order_is_pythons(column: str, made: Made, place: Path, *, descending: bool) -> None:
    """`--sort-by` is a stable sort; samples without a value come last in both directions."""
    values = dict(zip(made.keys, made.rows[column], strict=True))
    known = [key for key in made.keys if values[key] is not None]
    known.sort(key=lambda key: values[key].encode() if column == "key" else values[key])
    if descending:
        known.sort(key=lambda key: values[key].encode() if column == "key" else values[key], reverse=True)
        stable = sorted((key for key in made.keys if values[key] is not None), key=made.keys.index)
        known = sorted(stable, key=lambda key: values[key].encode() if column == "key" else values[key], reverse=True)
    method = "scatter" if column in ("score", "label") else "gather"
    run(made.file(), place, sort_by=column, descending=descending, method=method, max_count=9)
    assert keys(place) == known + [key for key in made.keys if values[key] is None]


# Fields and metadata.


def test_fields_are_chosen_and_renamed(ending: str, made: Made, place: Path) -> None:
    """Fields stay, go and get other names; their payloads do not change."""
    every = made.contents(ending)
    run(made.file(ending), place / "a", ending, select_fields=("jpg", "txt"), rename_fields=("caption.txt=txt",))
    expected = {key: {"jpg": fields["jpg"], "caption.txt": fields["txt"]} for key, fields in every.items()}
    assert read(place / "a" / "out.json") == expected
    run(made.file(ending), place / "b", ending, drop_fields=("jpg",), rename_fields=("n=cls", "cls=n"), max_count=9)
    expected = {
        key: {"json": fields["json"], "txt": fields["txt"], "cls": fields["n"], "n": fields["cls"]}
        for key, fields in every.items()
    }
    assert read(place / "b" / "out.json") == expected
    told = _told(place / "b" / "out.json")
    assert told["classes"] == {"n": sorted(LABELS)}


def test_samples_that_keep_no_field(place: Path) -> None:
    """A sample that has none of the selected fields is left out, listed, and told of."""
    source = write_tar(place / "in.tar", ["a.jpg", "a.txt", "b.jpg", "c.txt"])
    result = run(source, place / "out", select_fields=("txt",))
    assert read(place / "out" / "out.json") == {key: {"txt": payload(f"{key}.txt")} for key in "ac"}
    assert [(row["key"], row["code"]) for row in skipped(place / "out" / "out.json")] == [("b", "no-field")]
    assert (result.samples, result.skipped) == (2, 1)
    assert "1 sample skipped (no field): b" in result.notes


def test_metadata_that_no_reader_takes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts that many samples share are refused where they would take more memory than a reader gives them."""
    monkeypatch.setattr("shardtool.dataset.sidecar_read._METADATA_SLACK_BYTES", 2**20)  # 32 times that takes a second
    names = [f"{at:03}" for at in range(300)]
    options = CreateOptions(workers=0, field=("cls=cls",), meta="none")
    create(pa.table({"key": names, "cls": range(300)}), f"{place}/in/out-{{000..}}.tfrecord", options)
    short, long = (pa.table({"key": names, "text": ["x" * length] * 300}) for length in (6_000, 20_000))
    source, result = (
        place / "in" / "out.json",
        r"out-000.tfrecord: 6,000,000 bytes of metadata, more than the \d,\d{3},\d{3}",
    )
    for shuffle in (False, True):
        error = refused(source, place / "out", join=long, on="key", ending="tfrecord", shuffle=shuffle)
        assert re.search(result, str(error))
        assert not (place / "out").exists()  # it was refused when it was planned
    with monkeypatch.context() as patch:
        patch.setattr(checks, "max_metadata_bytes", lambda _: 2**40)  # as if no plan could tell
        assert re.search(result, str(refused(source, place / "out", join=long, on="key", ending="tfrecord")))
    run(source, place / "out", "tfrecord", join=short, on="key")
    is_sound(place / "out" / "out.json")


@pytest.mark.parametrize("of", ["tar", "tfrecord"])
def test_labels_are_corrected(of: str, ending: str, made: Made, place: Path) -> None:
    """A joined table's labels are in the shards, numbered, and in the metadata; keys without a match are told of."""
    right = {key: ("emu" if at % 4 == 0 else made.rows["label"][at]) for at, key in enumerate(made.keys)}
    table = {"name": [*made.keys[2:], "nobody"], "label": [*list(right.values())[2:], "x"], "seen": [*range(39)]}
    pq.write_table(pa.table(table), place / "right.parquet")
    result = run(
        made.file(of), place / "out", ending, join=str(place / "right.parquet"), on="name", field=("cls=label",),
        classes=("cls",), max_count=9,
    )  # fmt: skip
    expected = {key: right[key] if at >= 2 else made.rows["label"][at] for at, key in enumerate(made.keys)}
    names = sorted(set(expected.values()))
    actual = samples(place / "out")
    assert {sample.key: names[int(sample.content["cls"])] for sample in actual} == expected
    assert {sample.key: sample.columns["label"] for sample in actual} == expected
    assert [sample.columns["seen"] for sample in actual] == [None, None, *range(38)]
    told = _told(place / "out" / "out.json")
    assert (told["classes"], told["made"]["options"]["join"]) == ({"cls": names}, "right.parquet")
    every = made.contents(of)
    assert [sample.content["jpg"] for sample in actual] == [fields["jpg"] for fields in every.values()]
    assert any("'a/000', 'b/001'" in note for note in result.notes)
    assert any("'nobody'" in note for note in result.notes)
    if ending == "tar":
        stored = dict(member for shard in plain(place / "out") for member in shard)
        assert stored[f"{made.keys[4]}.cls"] == b"%d" % names.index("emu")
    is_sound(place / "out" / "out.json")


# Duplicates.


@pytest.mark.parametrize("rule", ["rename", "first", "last"])
def test_duplicates_of_sources(rule: str, place: Path) -> None:
    """Samples with one key get other names, or one of them stays and the others are listed."""
    for name in "xy":
        write_tar(place / name / "out-0.tar", ["a.jpg", "b.txt"] if name == "x" else ["b.txt", "a.jpg", "a-2.jpg"])
    tars = [place / name / "out-0.tar" for name in "xy"]
    actual = refused(tars, place / "out")
    assert actual.where == "out-0.tar (2 times)"
    assert f"2 keys more than once: 'a' ({tars[0]}, {tars[1]})" in actual.found
    assert "on_duplicate" in actual.remedy
    result = run(tars, place / "out", on_duplicate=rule)
    expected = {"rename": ["a", "b", "b-2", "a-3", "a-2"], "first": ["a", "b", "a-2"], "last": ["b", "a", "a-2"]}
    assert keys(place / "out") == expected[rule]
    lost = [(row["key"], row["code"]) for row in skipped(place / "out" / "out.json")]
    assert lost == ([] if rule == "rename" else [("a", "duplicate"), ("b", "duplicate")])
    assert len([note for note in result.notes if "renamed" in note or "skipped" in note]) == 1
    assert str(place) not in (place / "out" / "out.skipped").read_text() if lost else True
    is_sound(place / "out" / "out.json")


# Splits.


@pytest.mark.slow
def test_splits_are_those_of_create(ending: str, made: Made, place: Path) -> None:
    """A dataset is split like its manifest, by shares, with and without strata and groups."""
    ways: list[dict[str, Any]] = [{}, {"stratify": "label"}, {"group_by": "group"}, {"seed": 3}]
    for number, more in enumerate(ways):
        options: dict[str, Any] = {"split": SHARES, "max_count": 6, "workers": 0, **more}
        create(
            pa.table(made.rows), f"{place}/{number}a/{{split}}-{{000..}}.{ending}",
            CreateOptions(key="key", bytes=("jpg=jpg",), field=("txt=txt", "cls=label", "n=n"), classes=("cls",),
                          meta="label,width,score,group,part", **options),
        )  # fmt: skip
        run(made.file(), place / f"{number}b", pattern=f"{{split}}-{{000..}}.{ending}", **options)
        for path in shards(place / f"{number}a"):
            assert (place / f"{number}b" / path.name).read_bytes() == path.read_bytes(), more
        parts = [samples(place / f"{number}b", name) for name in ("train", "val")]
        assert sorted(sample.key for part in parts for sample in part) == sorted(made.keys)
        for name, part in zip(("train", "val"), parts, strict=True):
            assert {sample.columns["split"] for sample in part} == {name}


@pytest.mark.parametrize("pattern", ["{split}-{000..}.tar", "{split}/out-{000..}.tar"])
@pytest.mark.parametrize("more", [{}, {"shuffle": True, "method": "scatter"}], ids=["order", "scatter"])
def test_a_column_names_the_splits(pattern: str, more: dict[str, Any], made: Made, place: Path) -> None:
    """Splits are the values of a sidecar column, and files or folders have their names."""
    plan = reshard(str(made.file()), f"{place}/{pattern}", ReshardOptions(split_column="part", **more), dry_run=True)
    assert read_tree(place) == {}
    result = run(made.file(), place, pattern=pattern, split_column="part", **more)
    assert sum(shard.samples for shard in plan.planned) == result.samples == COUNT
    for name in ("train", "test"):
        folder, base = (place / name, "out") if "/" in pattern else (place, name)
        expected = made.where(lambda row: row["part"] == name)  # noqa: B023 - called immediately
        assert sorted(keys(folder, base)) == sorted(expected)
        assert (keys(folder, base) == expected) == (not more)
        is_sound(folder / f"{base}.json")


# A sample that fits in no shard.


@pytest.mark.parametrize("choice", ["error", "alone", "skip"])
def test_a_sample_over_the_bound(choice: str, made: Made, place: Path) -> None:
    """A sample larger than the bound is an error by name, alone in its shard, or skipped and listed."""
    records = {sample.key: sample.stop - sample.start for shard in sound(made.file()) for sample in shard}
    large = [key for key, size in records.items() if size + 1024 > 9000]
    assert 0 < len(large) < COUNT
    if choice == "error":
        result = refused(made.file(), place, max_size="9kB")
        assert large[0] in result.found
        assert "oversize" in result.remedy
        return
    run(made.file(), place, max_size="9kB", oversize=choice)
    layout = [[sample.key for sample in shard] for shard in sound(place / "out.json")]
    alone = [shard[0] for shard in layout if shard[0] in large]
    assert [len(shard) for shard in layout if set(shard) & set(large)] == [1] * len(alone)
    lost = [row["key"] for row in skipped(place / "out.json") if row["code"] == "oversize"]
    assert sorted(alone + lost) == sorted(large)
    assert not (lost if choice == "alone" else alone)
    is_sound(place / "out.json")


# Dry runs.


SUBSETS: list[dict[str, Any]] = [
    {}, {"where": "width > 9"}, {"split": SHARES}, {"sample": 0.5}, {"drop_fields": ("jpg",)},
    {"field": ("txt=label",)}, {"portable": True},
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=12)
@given(
    more=st.sampled_from(ORDERS), bounds=st.sampled_from([*BOUNDS, {"oversize": "skip", "max_size": 9000}]),
    ending=st.sampled_from(["tar", "tfrecord"]), extra=st.sampled_from(SUBSETS),
)  # fmt: skip
def test_a_dry_run_predicts_the_output(
    more: dict[str, Any], bounds: dict[str, Any], ending: str, extra: dict[str, Any], made: Made
) -> None:
    """Names, sizes, samples and skipped samples are as predicted; the dry run creates not even a folder."""
    options = {**more, **bounds, **extra, "workers": 0}
    pattern = options.pop("pattern", STEM)
    if "split" in extra:
        pattern = pattern.replace("out-", "{split}-out-")
    with tempfile.TemporaryDirectory(dir=made.folder) as folder:
        out = Path(folder) / "out"
        output = f"{out}/{pattern}.{ending}"
        plan = reshard(str(made.file()), output, ReshardOptions(**options), dry_run=True)
        assert not out.exists()
        result = reshard(str(made.file()), output, ReshardOptions(**options))
        actual = {path.name: path.stat().st_size for path in shards(out)}
        counts = {entry["url"]: entry["nsamples"] for file in out.glob("*.json")
                  for entry in json.loads(file.read_bytes())["shardlist"]}  # fmt: skip
    assert {shard.name: shard.size for shard in plan.planned} == actual
    assert {shard.name: shard.samples for shard in plan.planned} == counts
    assert (plan.dataset_file, plan.skipped) == (result.dataset_file, result.skipped)
    assert plan.notes == result.notes


# Resume and overwrite.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "more"),
    [("tar", {}), ("tar", {"shuffle": True, "method": "scatter"}), ("tfrecord", {"shuffle": True, "method": "gather"})],
    ids=["order", "scatter", "gather"],
)
def test_resume_writes_missing_files(ending: str, more: dict[str, Any], made: Made, place: Path) -> None:
    """Missing, truncated and damaged files are written again with the same bytes; others are not changed."""
    copy = place / "src"
    shutil.copytree(made.file(ending).parent, copy)
    run(copy, place / "out", ending, max_count=6, **more)
    right = read_tree(place / "out")
    assert refused(copy, place / "out", OutputExists, max_count=6, **more).exit_code == 5
    for deleted in (["out.json"], ["out-001.index", "out.json"], [f"out-003.{ending}"], [*right][:5]):
        for name in deleted:
            (place / "out" / name).unlink()
        before, made_again = identity(place / "out"), {"out.json", *map(sidecar, deleted)}
        run(copy, place / "out", ending, max_count=6, resume=True, **more)
        assert read_tree(place / "out") == right
        after = identity(place / "out")
        assert {name: after[name] for name in before if name not in made_again}.items() <= before.items()
    flip(place / "out" / f"out-002.{ending}", 700)
    os.truncate(place / "out" / f"out-004.{ending}", 100)
    result = run(copy, place / "out", ending, max_count=6, resume=True, **more)
    assert (read_tree(place / "out"), result.kept) == (right, 5)
    done = run(copy, place / "out", ending, max_count=6, resume=True, **more)
    assert (read_tree(place / "out"), done.kept) == (right, 7)


def test_resume_takes_in_another_source(made: Made, place: Path) -> None:
    """Of shards that were replaced by others of the same names and sizes, nothing old is kept."""
    first = write_tar(place / "src" / "x.tar", ["a.jpg", "b.jpg", "c.jpg"])
    run(first, place / "out", max_count=1)
    data = first.read_bytes()
    first.write_bytes(data.replace(payload("b.jpg"), payload("B.jpg")))
    run(first, place / "out", max_count=1, resume=True)
    assert read(place / "out" / "out.json")["b"] == {"jpg": payload("B.jpg")}
    assert refused(made.file(), place / "out", OutputExists, max_count=1, resume=True).exit_code == 5
    run(made.file(), place / "out", max_count=1, resume=True, overwrite=True)
    assert keys(place / "out") == made.keys
    is_sound(place / "out" / "out.json")


def test_overwrite_leaves_nothing_stale(made: Made, place: Path) -> None:
    """An older dataset of more shards is replaced whole."""
    run(made.file(), place / "a", max_count=2)
    run(made.file(), place / "a", max_count=9, overwrite=True, shuffle=True)
    run(made.file(), place / "b", max_count=9, shuffle=True)
    assert read_tree(place / "a") == read_tree(place / "b")


# The source is never the output.

OVERLAPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "the same names": ("{d}/out.json", "{d}/out-{{000..}}.tar", {}),
    "as a folder": ("{d}", "{d}/out-{{000..}}.tar", {"max_count": 3}),
    "a shard": ("{d}/out-004.tar", "{d}/out-{{000..}}.tar", {}),
    "a shard onto itself": ("{d}/out-004.tar", "{d}/out-004.tar", {}),
    "a closed range": ("{d}/out-{{004..005}}.tar", "{d}/out-{{000..001}}.tar", {}),
    "through a link": ("{d}", "{link}/out-{{000..}}.tar", {}),
    "from a link": ("{link}", "{d}/out-{{000..}}.tar", {}),
    "another way": ("{d}", "{d}/../d/out-{{000..}}.tar", {}),
    "by a split": ("{d}", "{d}/{{split}}-{{000..}}.tar", {"split": "out=0.5,more=0.5"}),
    "by a split's folder": ("{d}", "{d}/../{{split}}/out-{{000..}}.tar", {"split": "d=0.5,e=0.5"}),
    "by a column": ("{d}", "{d}/../{{split}}/out-{{000..}}.tar", {"split_column": "split"}),
}


@pytest.fixture(scope="module")
def joined(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a dataset that has a column of splits, not to be changed."""
    folder = tmp_path_factory.mktemp("joined")
    table = pa.table({"name": made.keys, "split": ["d" if at % 2 else "e" for at in range(COUNT)]})
    run(made.file(), folder, join=table, on="name", max_count=7)
    return folder


@pytest.mark.parametrize("name", OVERLAPS)
def test_the_source_is_never_the_output(name: str, joined: Path, place: Path) -> None:
    """A run that would write over one of its sources is refused before anything is touched, a dry one too."""
    shutil.copytree(joined, place / "d")
    (place / "link").symlink_to("d")
    source, output, more = OVERLAPS[name]
    given, pattern = (text.format(d=place / "d", link=place / "link") for text in (source, output))
    before, untouched = read_tree(place), identity(place / "d")
    with pytest.raises(OutputExists):
        reshard(given, pattern, ReshardOptions(workers=0, **more))
    for how in ("resume", "overwrite"):
        options = ReshardOptions(workers=0, **existing(how), **more)
        for dry_run in (False, True):
            with pytest.raises(InvalidRequest, match="a shard of the source") as caught:
                reshard(given, pattern, options, dry_run=dry_run)
            assert "Nothing was changed" in caught.value.remedy
    assert (read_tree(place), identity(place / "d")) == (before, untouched)


def test_the_output_may_lie_beside_the_source(made: Made, place: Path) -> None:
    """In one folder, under other names, both datasets are whole, and stay so when the new one is made again."""
    shutil.copytree(made.file().parent, place / "d")
    before = read_tree(place / "d")
    for how in ("error", "overwrite", "resume"):
        run(place / "d" / "out.json", place / "d", pattern="new-{000..}.tar", max_count=9, **existing(how))
        assert read_tree(place / "d").items() >= before.items()
        assert keys(place / "d", "new") == made.keys
        is_sound(place / "d" / "new.json")
        is_sound(place / "d" / "out.json")


# Append.


def _appended(made: Made, place: Path, ending: str, **more: Any) -> Path:
    """Make a dataset of a third of the samples, and append another third; return its dataset file."""
    for number, how in enumerate(("error", "append")):
        query = f"label == '{LABELS[number]}'"
        run(made.file(), place / "out", ending, where=query, max_count=4, **existing(how), **more)
    return place / "out" / "out.json"


def test_append_twice(ending: str, made: Made, place: Path) -> None:
    """New samples become new shards; the old files are the same files, and readers that hold them go on."""
    file = _appended(made, place, ending)
    old, document = identity(file.parent), json.loads(file.read_bytes())
    open_shards = [path.open("rb") for path in shards(file.parent)]
    data = read_tree(file.parent)
    run(made.file("tfrecord"), place / "out", ending, where="label == 'bee'", max_count=4, append=True,
        shuffle=True, method="scatter")  # fmt: skip
    assert {name: fact for name, fact in identity(file.parent).items() if name in old and name != "out.json"} == {
        name: fact for name, fact in old.items() if name != "out.json"
    }
    for shard, entry in zip(open_shards, document["shardlist"], strict=True):
        assert shard.read() == data[entry["url"]]
        shard.close()
    groups = [set(made.where(lambda row, label=label: row["label"] == label)) for label in LABELS]  # type: ignore[misc]
    result = keys(file.parent)
    ends = [0, len(groups[0]), len(groups[0]) + len(groups[1]), COUNT]
    assert [set(result[first:last]) for first, last in pairwise(ends)] == groups
    assert read(file) == {key: made.contents(ending)[key] for key in result}
    assert _told(file)["fingerprint"] == _told(made.file())["fingerprint"]
    is_sound(file)


@pytest.mark.parametrize("rule", ["error", "rename", "first", "last"])
def test_append_what_is_there_in_part(rule: str, made: Made, place: Path) -> None:
    """Keys that the dataset has are refused, get other names, or are left out; nothing of it is rewritten."""
    file = _appended(made, place, "tar")
    before = identity(file.parent)
    options: dict[str, Any] = {"where": "label != 'dog'", "max_count": 9, "append": True}
    if rule in ("error", "last"):
        result = refused(made.file(), place / "out", on_duplicate=rule, **options)
        assert "the existing dataset" in result.found or "appended to" in result.found
        assert identity(file.parent) == before
        return
    run(made.file(), place / "out", on_duplicate=rule, **options)
    cats, bees = (made.where(lambda row, label=label: row["label"] == label) for label in ("cat", "bee"))  # type: ignore[misc]
    late = made.where(lambda row: row["label"] != "dog")
    expected = [f"{key}-2" if key in cats else key for key in late] if rule == "rename" else bees
    assert keys(file.parent)[len(before) // 2 * 0 + 27 :] == expected
    assert [row["key"] for row in skipped(file)] == ([] if rule == "rename" else sorted(cats))
    is_sound(file)


def test_append_nothing_new(made: Made, place: Path) -> None:
    """If the dataset has all samples, nothing changes; a query without a match is still an error."""
    file = _appended(made, place, "tar")
    before = identity(file.parent)
    options: dict[str, Any] = {"append": True, "on_duplicate": "first"}
    result = run(made.file(), place / "out", where="label == 'dog'", **options)
    assert (result.appended and result.appended.samples, identity(file.parent)) == (0, before)
    assert "no sample matches" in refused(made.file(), place / "out", where="label == 'x'", **options).found


def test_append_to_splits(made: Made, place: Path) -> None:
    """Each split of the new samples is appended to the existing one."""
    options: dict[str, Any] = {"split": SHARES, "pattern": "{split}-{000..}.tar", "max_count": 4}
    run(made.file(), place / "at once", **options)
    run(made.file(), place / "out", where="label == 'dog'", **options)
    run(made.file(), place / "out", where="label != 'dog'", append=True, **options)
    for name in ("train", "val"):
        assert set(keys(place / "out", name)) == set(keys(place / "at once", name))
        told = [_told(place / folder / f"{name}.json")["fingerprint"] for folder in ("out", "at once")]
        assert told[0] == told[1]
        is_sound(place / "out" / f"{name}.json")


def test_append_a_dataset_to_itself(made: Made, place: Path) -> None:
    """Existing shards are only read, so they may be the source; with other keys, each sample exists twice."""
    shutil.copytree(made.file().parent, place / "out")
    run(place / "out", place / "out", append=True, on_duplicate="rename", max_count=9)
    assert keys(place / "out") == made.keys + [f"{key}-2" for key in made.keys]
    is_sound(place / "out" / "out.json")


def test_append_does_not_replace_its_source(made: Made, place: Path) -> None:
    """A shard of a killed append is not replaced while it is the source."""
    shutil.copytree(made.file().parent, place / "out")
    write_tar(place / "out" / "out-006.tar", ["new/a.jpg"])
    before = identity(place / "out")
    result = refused(place / "out" / "out-006.tar", place / "out", append=True, resume=True)
    assert (result.where, "a shard of the source" in result.found) == (str(place / "out" / "out-006.tar"), True)
    assert identity(place / "out") == before


def test_append_resumes(made: Made, place: Path) -> None:
    """An append whose dataset file was never replaced goes on, and makes the bytes of an undisturbed one."""
    file = _appended(made, place, "tar")
    right = read_tree(file.parent)
    first = {name: data for name, data in right.items() if name < "out-004"}
    shutil.rmtree(file.parent)
    run(made.file(), place / "out", where="label == 'dog'", max_count=4)
    for name in [name for name in right if "out-004" <= name < "out-006"]:
        (file.parent / name).write_bytes(right[name])
    assert read_tree(file.parent).items() >= first.items()
    options: dict[str, Any] = {"where": "label == 'cat'", "max_count": 4}
    assert "resume" in refused(made.file(), place / "out", OutputExists, append=True, **options).remedy
    run(made.file(), place / "out", append=True, resume=True, **options)
    assert read_tree(file.parent) == right


# Names and other tools.


def test_portable_names(place: Path) -> None:
    """Names become safe for every reader, and the original ones stay in the sidecar, through another reshard too."""
    source = write_tar(place / "in.tar", ["sp ace/Ü.jpg", "n" * 150 + ".jpg", "ok/a.jpg"])
    run(source, place / "a", portable=True)
    run(place / "a", place / "b", "tfrecord", portable=True, max_count=1)
    result = samples(place / "b")
    for key in keys(place / "a") + keys(place / "b"):
        assert key.isascii()
        assert " " not in key
        assert len(key) < 97
    paths = [sample.columns["source_paths"] for sample in result]
    assert paths == [[f"{stem}.jpg"] for stem in ("sp ace/Ü", "n" * 150, "ok/a")]
    is_sound(place / "a" / "out.json")


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_exports_are_those_of_index(ending: str, made: Made, place: Path) -> None:
    """`--export` writes what `index --export` would write for the finished dataset."""
    names = ("wids", "dali-webdataset", "energon") if ending == "tar" else ("dali-tfrecord", "tfrecord")
    options: dict[str, Any] = {"drop_fields": ("n",), "max_count": 9, "shuffle": True}
    result = run(made.file(), place / "a", ending, export=names, **options)
    run(made.file(), place / "b", ending, **options)
    export(place / "b" / "out.json", [name for name in names if name != "wids"])
    a, b = read_tree(place / "a"), read_tree(place / "b")
    assert a.keys() == b.keys()
    assert {name for name in a if a[name] != b[name]} <= {name for name in a if name.endswith("index.sqlite")}
    assert result.exported == names


# What other tools write.


def _foreign(place: Path) -> Iterator[tuple[str, Path, dict[str, Any], Contents | str]]:
    """Yield name, source, options, and the expected contents or error."""
    folder = odd("dir", tarfile.DIRTYPE)
    link = odd("dir/h.jpg", tarfile.LNKTYPE, "dir/a.jpg")
    long = "n" * 300

    def here(*names: str, **also: str) -> Contents:
        result: Contents = {}
        for name in names:
            key, _, field = name.rpartition(".")
            result.setdefault(also.get(key, key), {})[field] = payload(name)
        return result

    def tar(name: str, members: Sequence[Any], mode: str = "w", **more: Any) -> Path:
        return write_tar(place / name, members, mode, **more)

    yield "folders", tar("a.tar", [folder, "dir/a.jpg", "dir/a.txt"]), {}, here("dir/a.jpg", "dir/a.txt")
    dotted = tar("b.tar", ["./a.jpg", "./a.txt", "./b/c.jpg"])
    result = {"a": {"jpg": payload("./a.jpg"), "txt": payload("./a.txt")}, "b/c": {"jpg": payload("./b/c.jpg")}}
    yield "dot slash", dotted, {}, result
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        names = [f"{long}.jpg", f"{long}.txt", "ü/é.jpg"]
        yield f"long names {kind}", tar(f"c{kind}.tar", names, format=kind), {}, here(*names)
    yield "compressed", tar("d.tar.gz", ["a.jpg", "a.txt", "b.jpg"], "w:gz"), {}, here("a.jpg", "a.txt", "b.jpg")
    yield "a link", tar("e.tar", [folder, "dir/a.jpg", link]), {}, "e.tar:dir/h.jpg (a link"
    yield "a link left out", place / "e.tar", {"on_error": "skip"}, here("dir/a.jpg")
    yield "a symbolic link", tar("f.tar", ["a.jpg", odd("b.jpg", tarfile.SYMTYPE, "a.jpg")]), {}, "f.tar:b.jpg (a link"
    yield "no ending", tar("g.tar", ["README", "a.jpg"]), {}, here("a.jpg")
    yield "an empty tar", tar("h.tar", []), {}, "no samples"
    yield (
        "no UTF-8",
        tar("i.tar", ["k\udcff.jpg"], format=tarfile.GNU_FORMAT),
        {},
        {"k%FF": {"jpg": payload("k\udcff.jpg")}},
    )
    yield "upwards", tar("j.tar", ["../a.jpg"]), {}, "'../a'"
    yield "absolute", tar("k.tar", ["/etc/a.jpg"]), {}, "'/etc/a'"
    yield "control characters", tar("l.tar", ["a\nb.jpg"]), {}, r"a\\x0ab"
    apart = ["a.jpg", "b.jpg", "a.txt", "b.txt"]
    yield "apart", tar("m.tar", apart), {}, here(*apart)
    yield "a field twice", tar("n.tar", ["a.jpg", "a.jpg"]), {}, "'jpg' twice"
    yield (
        "empty payloads",
        write_records(place / "o.tfrecord", [(b"__key__", BYTES, b"a"), (b"x", BYTES, b"")]),
        {},
        {"a": {"x": b""}},
    )
    (place / "p.tar").write_bytes(b"no tar" * 1000)
    yield "no tar", place / "p.tar", {}, "not a tar header"
    (place / "q.tar").write_bytes(b"")
    yield "an empty file", place / "q.tar", {}, "0 bytes"
    (place / "r.tfrecord").write_bytes(b"")
    yield "no records", place / "r.tfrecord", {}, "no samples"
    yield (
        "nothing but keys",
        write_records(place / "s.tfrecord", [(b"__key__", BYTES, b"a")]),
        {},
        "no sample has a field",
    )
    some = write_records(
        place / "t.tfrecord", [(b"__key__", BYTES, b"a"), (b"x", BYTES, b"1")], [(b"__key__", BYTES, b"b")]
    )
    yield "a key alone", some, {}, {"a": {"x": b"1"}}
    yield "no key", write_records(place / "u.tfrecord", [(b"x", BYTES, b"1")]), {}, {"u/000000000": {"x": b"1"}}
    lists = write_records(
        place / "v.tfrecord", [(b"__key__", BYTES, b"a"), (b"l", INT64, b"\1\2"), (b"x", BYTES, b"1")]
    )
    yield "a list", lists, {}, "'l'"
    yield "a list that nobody takes", lists, {"drop_fields": ("l",)}, {"a": {"x": b"1"}}
    numbers = [(b"__key__", BYTES, b"a"), (b"f", FLOAT, b"\0\0\0?"), (b"i", INT64, tfrecords.varint(-3))]
    yield "numbers", write_records(place / "w.tfrecord", numbers), {}, {"a": {"f": b"0.5", "i": b"-3"}}


def test_shards_of_other_tools(place: Path) -> None:
    """Every payload of a foreign shard is in the output, in an error, or in the list of skipped samples."""
    for number, (name, source, more, expected) in enumerate(_foreign(place)):
        for method in ("auto", "scatter") if number % 3 == 0 else ("scatter",):
            out = place / f"{number}-{method}"
            if isinstance(expected, str):
                actual = refused(source, out, ShardError, method=method, **more)
                assert expected in str(actual), name
                assert actual.exit_code in (2, 4, 6)
                continue
            result = run(source, out, method=method, **more)
            assert read(out / "out.json") == expected, name
            assert result.skipped == len(skipped(out / "out.json"))
            assert (result.skipped > 0) == (name in ("a link left out", "no ending", "a key alone")), name
            is_sound(out / "out.json")


def test_dots_in_keys(place: Path) -> None:
    """If the dataset file says that keys end at the last dot, they do, in the new dataset too."""
    names = ["scan.2019.01.jpg", "scan.2019.02.jpg"]
    for name in names:
        (place / "in").mkdir(exist_ok=True)
        (place / "in" / name).write_bytes(payload(name))
    create(str(place / "in"), f"{place}/a/{STEM}.tar", CreateOptions(dots="last", workers=0))
    run(place / "a", place / "out")
    assert plain(place / "out") == [[(name, payload(name)) for name in names]]
    assert _told(place / "out" / "out.json")["made"]["options"] == {"dots": "last"}
    assert verify(place / "out" / "out.json").sound


def test_dots_in_keys_that_index_found(place: Path) -> None:
    """What `index --dots last` was told holds for the dataset."""
    write_tar(place / "x-0.tar", ["scan.2019.01.jpg", "scan.2019.02.jpg"])
    index(place / "x-0.tar", IndexOptions(dots="last", workers=0))
    run(place / "x-0.json", place / "out")
    assert verify(place / "x-0.json").sound


# Damage.


def _payloads(folder: Path) -> list[tuple[Path, str, str, int, int]]:
    """Return shard, key, field, offset and length of every payload that is not empty."""
    return [
        (path, row["__key__"], item["name"], item["offset"], item["length"])
        for path in shards(folder)
        for row in pq.read_table(folder / sidecar(path.name)).to_pylist()
        for item in row["__fields__"]
        if item["length"]
    ]


@pytest.mark.slow
@settings(max_examples=14)
@given(
    of=st.sampled_from(["tar", "tfrecord"]), ending=st.sampled_from(["tar", "tfrecord"]), order=st.sampled_from(ORDERS),
    method=st.sampled_from(["gather", "scatter"]), listed=st.booleans(), which=st.integers(0, 10**6),
    at=st.integers(0, 10**6),
)  # fmt: skip
def test_a_flipped_byte_is_never_copied(  # noqa: PLR0913 - a law over all of them
    *, of: str, ending: str, order: dict[str, Any], method: str, listed: bool, which: int, at: int, made: Made
) -> None:
    """A payload that differs from its index is an error by name, or skipped and listed; others are correct."""
    with tempfile.TemporaryDirectory(dir=made.folder) as folder:
        source, out = Path(folder) / "src", Path(folder) / "out"
        shutil.copytree(made.file(of).parent, source)
        if of == "tar" and not listed:
            (source / "out.json").unlink()
        payloads, every = _payloads(source), made.contents(of)
        path, key, field, offset, length = payloads[which % len(payloads)]
        flip(path, offset + at % length)
        options = {**order, "max_count": 4, "method": method}
        with pytest.raises(CorruptShard) as caught:
            run(source, out, ending, **options)
        assert not (out / "out.json").exists()
        if out.exists():
            assert [name for name in os.listdir(out) if name.startswith(".") and name != ".out.journal"] == []
            for name, data in members(*shards(out)):
                stem, end = next((key, name[len(key) + 1 :]) for key in every if name.startswith(f"{key}."))
                assert every[stem][end] == data
        actual = [str(path), repr(field), f"{offset:,}"]
        if "tfrecord" in (of, ending) and field in ("cls", "n"):  # numbers are read to be listed
            assert all(part in str(caught.value) for part in actual)
            return
        assert all(part in str(caught.value) for part in (*actual, key))
        result = run(source, out, ending, on_error="skip", resume=True, **options)
        rows = skipped(out / "out.json")
        assert [(row["key"], row["code"], row["path"]) for row in rows] == [(key, "corrupt", path.name)]
        assert repr(field) in rows[0]["message"]
        assert (result.samples, result.skipped) == (COUNT - 1, 1)
        del every[key]
        assert read(out / "out.json") == every
        is_sound(out / "out.json")


@pytest.mark.slow
def test_a_shard_may_lose_all_its_samples(ending: str, made: Made, place: Path) -> None:
    """A shard without remaining samples is valid, and can be read again."""
    shutil.copytree(made.file().parent, place / "src")
    flip(place / "src" / "out-002.tar", _payloads(place / "src")[70][3])
    run(place / "src", place / "out", ending, on_error="skip", max_count=1)
    run(place / "out", place / "again")
    assert len(read(place / "again" / "out.json")) == COUNT - 1
    is_sound(place / "out" / "out.json")


@settings(max_examples=15)
@given(data=st.data())
def test_any_flipped_byte(data: st.DataObject, made: Made) -> None:
    """For any changed byte in any file of a dataset, the output is that of a valid source, or an error."""
    of = data.draw(st.sampled_from(["tar", "tfrecord"]))
    with tempfile.TemporaryDirectory(dir=made.folder) as folder:
        source = Path(folder) / "src"
        shutil.copytree(made.file(of).parent, source)
        name = sorted(os.listdir(source))[data.draw(st.integers(0, 12))]
        flip(source / name, data.draw(st.integers(0, 10**6)) % (source / name).stat().st_size)
        error = None
        try:
            run(source, Path(folder) / "out", max_count=9)
        except CorruptShard as caught:
            error = caught
        if error is None:
            assert name.endswith((".tar", ".tfrecord")), "all bytes of indexes are covered"
            assert read(Path(folder) / "out" / "out.json") == made.contents(of)
        else:
            assert name in str(error)
            assert not (Path(folder) / "out" / "out.json").exists()


def _cut(folder: Path) -> None:
    os.truncate(folder / "out-002.tar", 3000)


def _lose(folder: Path) -> None:
    (folder / "out-002.tar").unlink()


def _lose_index(folder: Path) -> None:
    (folder / "out-002.index").unlink()


def _link(folder: Path) -> None:
    (folder / "out-002.tar").unlink()
    (folder / "out-002.tar").symlink_to("elsewhere")


def _swap(folder: Path) -> None:
    shutil.copy(folder / "out-001.index", folder / "out-002.index")


def _fifo(folder: Path) -> None:
    _lose(folder)
    os.mkfifo(folder / "out-002.tar")


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (_cut, "out-002.tar"), "missing": (_lose, "out-002.tar"), "a link to nothing": (_link, "out-002.tar"),
    "no index": (_lose_index, "out-002.index"), "another index": (_swap, "out-002.index"),
    "a fifo": (_fifo, "out-002.tar"),
}  # fmt: skip


FORMS = ("{}/out.json", "{}", "{}/out-{{000..}}.tar", "{}/*.tar")


@pytest.mark.parametrize(
    ("name", "given"), [(name, FORMS[(at + more) % 4]) for at, name in enumerate(DAMAGE) for more in (0, 2)]
)
def test_a_source_that_is_not_whole(name: str, given: str, made: Made, place: Path) -> None:
    """A shard that is cut, missing, no file or a link to none, and an index that is missing or another's, is named."""
    shutil.copytree(made.file().parent, place / "src")
    change, message = DAMAGE[name]
    change(place / "src")
    result = refused(given.format(place / "src"), place / "out", ShardError, max_count=3)
    assert isinstance(result, CorruptShard) or (name, given) == ("a fifo", "{}/*.tar"), result
    assert message in str(result)


@pytest.mark.parametrize("method", ["gather", "scatter"])
@pytest.mark.parametrize("change", ["rewritten", "replaced", "cut", "gone"])
def test_a_source_that_changes_meanwhile(change: str, method: str, made: Made, place: Path) -> None:
    """A shard that changed after listing is an error by name, or its samples are skipped and listed."""
    for on_error in ("raise", "skip"):
        source = place / on_error
        shutil.copytree(made.file().parent, source)
        path = source / "out-002.tar"

        class Change(Observer):
            """Changes the shard once all is listed and planned."""

            def _change(self, path: Path = path) -> None:
                data = path.read_bytes()
                if change == "gone":
                    path.unlink()
                elif change == "cut":
                    os.truncate(path, 3000)
                elif change == "replaced":
                    path.unlink()
                    path.write_bytes(data)
                else:
                    path.write_bytes(data[::-1])

            def phase(self, _text: str, _size: int) -> None:
                self._change()

            def start(self, _samples: int, _size: int, _shards: int) -> None:
                if method == "gather":
                    self._change()

        out = place / f"{on_error}-out"
        options: dict[str, Any] = {"shuffle": True, "method": method, "max_count": 6}
        if on_error == "raise":
            with pytest.raises(SampleFailed) as caught:
                run(source, out, observer=Change(), **options)
            assert str(path) in caught.value.where
            assert not (out / "out.json").exists()
            continue
        run(source, out, observer=Change(), on_error="skip", **options)
        lost = {row["key"]: row["code"] for row in skipped(out / "out.json")}
        assert set(lost) == set(made.keys[14:21])
        assert set(lost.values()) == {"vanished" if change == "gone" else "changed"}
        assert set(keys(out)) == set(made.keys) - set(lost)
        is_sound(out / "out.json")


def test_lists_of_skipped_samples_have_no_locations(made: Made, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of skipped samples names shards without their folder."""
    trees = []
    for name in ("a", "b"):
        shutil.copytree(made.file().parent, place / name / "src")
        flip(place / name / "src" / "out-002.tar", _payloads(place / name / "src")[60][3])
        monkeypatch.chdir(place / name)
        given = Path("src") if name == "a" else place / name / "src"
        run(given, place / name / "out", on_error="skip", max_count=6)
        trees.append(read_tree(place / name / "out"))
    assert trees[0] == trees[1]


# Wrong requests.

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "little memory": ({"memory": "1MB"}, "memory", "16 MB"),
    "no size": ({"memory": "much"}, "memory", "500MB"),
    "a share of nothing": ({"sample": 0}, "sample", "0.01"),
    "a share of too much": ({"sample": "120%"}, "sample", "0.01 or 1%"),
    "a share that is none": ({"sample": "some"}, "sample", "0.01 or 1%"),
    "no head": ({"head": 0}, "head", "from 1 to"),
    "two orders": ({"sort_by": "key", "shuffle": True}, "sort_by", "one of them"),
    "no order": ({"descending": True}, "descending", "sort_by"),
    "an unknown order": ({"sort_by": "widht"}, "sort_by", "'width'"),
    "a join without a key": ({"join": pd.DataFrame({"id": ["x"], "n": [1]})}, "no column 'key'", "on"),
    "a key without a join": ({"on": "key"}, "on", "join"),
    "no table": ({"join": "nowhere.csv", "on": "key"}, "nowhere.csv", "a table"),
    "an unknown field": ({"select_fields": ("jpeg",)}, "select_fields", "'jpg'"),
    "a field in both": ({"select_fields": ("jpg",), "drop_fields": ("jpg",)}, "drop_fields", "selected or dropped"),
    "no field": ({"drop_fields": ("jpg", "txt", "cls", "n", "json")}, "drop_fields", "inspect"),
    "two of one name": ({"rename_fields": ("txt=jpg",)}, "rename_fields", "txt"),
    "a readers' name": ({"rename_fields": ("__url__=jpg",)}, "rename_fields", "__url__"),
    "no name": ({"rename_fields": ("jpg",)}, "rename_fields", "NEW=OLD"),
    "no pair": ({"field": ("cls",)}, "field", "FIELD=COLUMN"),
    "an unknown column": ({"field": ("cls=lable",)}, "field", "'label'"),
    "labels of no field": ({"classes": ("cls",)}, "classes", "field"),
    "an unknown name": ({"where": "lable == 'dog'"}, "where", "label"),
    "no query": ({"where": "label =="}, "where", "comparison"),
    "nobody": ({"where": "width > 1000"}, "where", "one sample"),
    "an unknown method": ({"method": "magic"}, "method", "gather"),
    "an unknown rule": ({"on_duplicate": "both"}, "on_duplicate", "rename"),
    "fewer than no workers": ({"workers": -1}, "workers", "from 0 to"),
    "no split in the name": ({"split": SHARES}, "out-", "{split}"),
    "a split for nothing": ({"pattern": "{split}-{000..}.tar"}, "{split}", "split"),
    "strata of nothing": ({"stratify": "label"}, "stratify", "split"),
    "an unknown split": ({"split_column": "prat", "pattern": "{split}-{000..}.tar"}, "prat", "part"),
    "too few names": ({"pattern": "out-{000..001}.tar", "max_count": 7}, "2 names", "open range"),
    "no ending": ({"pattern": "out"}, "no file extension", "out-{000000..}.tar"),
    "a text for fields": ({"select_fields": "no-such"}, "select_fields", "no-such"),
    "another tool's index": ({"export": ("dali-tfrecord",)}, "dali-tfrecord", "energon"),
    "nothing to append to": ({"append": True}, "nothing to append to", "append"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_requests_that_make_no_sense(name: str, made: Made, place: Path) -> None:
    """Invalid requests, also as dry runs, are refused with a fix, and create no folder."""
    options, message, way_out = WRONG[name]
    result = refused(made.file(), place / "out", **options)
    assert (type(result), (place / "out").exists()) == (InvalidRequest, False)
    assert message in str(result)
    assert way_out in f"{result.expected} {result.remedy} {result.found}"
    pattern = options.get("pattern", f"{STEM}.tar")
    more = {name: value for name, value in options.items() if name != "pattern"}
    with pytest.raises(InvalidRequest, match=re.escape(str(result))):
        reshard(str(made.file()), f"{place}/out/{pattern}", ReshardOptions(**{"workers": 0, **more}), dry_run=True)


def test_nothing_given(place: Path) -> None:
    """A missing dataset is an error that lists the accepted forms."""
    with pytest.raises(InvalidRequest, match="none given"):
        reshard([], f"{place}/{STEM}.tar", ReshardOptions())
    for dataset in ("nowhere.json", "nowhere-*.tar", "nowhere-{000..}.tar", str(place)):
        with pytest.raises(InvalidRequest, match="expected"):
            reshard(dataset, f"{place}/{STEM}.tar", ReshardOptions())


def test_compressed_shards_are_read_in_sequence(foreign: tuple[list[Path], Contents], place: Path) -> None:
    """The method `gather` is refused for compressed shards, with the reason."""
    result = refused(foreign[0][1], place / "out", method="gather")
    assert (result.where, "sequence" in result.expected) == ("method", True)


# A shuffle is uniform.


def _strange(order: NDArray[np.int64]) -> float:
    """Return how unlikely an order is as a uniform shuffle, in standard deviations: the most of two measures.

    The correlation of places, and a chi-square of tenths of the source by tenths of the target.
    """
    count = len(order)
    places = np.empty(count, np.int64)
    places[order] = np.arange(count)
    correlation = abs(float(np.corrcoef(np.arange(count), places)[0, 1])) * count**0.5
    cells = np.bincount(np.arange(count) * 10 // count * 10 + places * 10 // count, minlength=100)
    chi_square = float(((cells - count / 100) ** 2 / (count / 100)).sum())
    return float(max(correlation, abs(chi_square - 81) / 162**0.5))


@pytest.fixture(scope="module")
def many(room: Path) -> Path:
    """Give 5,000 samples in 50 shards, whose keys are their places."""
    folder = room / "many"
    table = pa.table({"key": [f"{at:05}" for at in range(5000)], "txt": [f"text {at}" for at in range(5000)]})
    options = CreateOptions(workers=0, max_count=100, key="key", field=("txt=txt",))
    return Path(create(table, f"{folder}/{STEM}.tar", options).dataset_file)


def _order(folder: Path) -> NDArray[np.int64]:
    """Return the source positions of samples in the order of the tars."""
    return np.array([int(name.removesuffix(".txt")) for shard in plain(folder) for name, _ in shard])


@pytest.mark.slow
def test_a_shuffle_is_uniform(many: Path, place: Path) -> None:
    """The position of a sample does not depend on its old one; methods and workers agree, seeds differ."""
    orders = []
    for method, seed in (("gather", 1), ("scatter", 1), ("scatter", 2)):
        out = place / f"{method}{seed}"
        run(many, out, shuffle=True, seed=seed, method=method, max_count=125, workers=2)
        orders.append(_order(out))
        assert sorted(orders[-1].tolist()) == list(range(5000))
        assert _strange(orders[-1]) < 5
    assert np.array_equal(orders[0], orders[1])
    assert abs(float(np.corrcoef(orders[1], orders[2])[0, 1])) * 5000**0.5 < 5


def test_what_is_no_shuffle_is_found_out() -> None:
    """The measures tell a global shuffle from one within shards, of shards, or of both."""
    chance = np.random.default_rng(1)
    shard_size = 100
    within = np.concatenate([chance.permutation(shard_size) + first for first in range(0, 5000, shard_size)])
    of_shards = np.arange(5000).reshape(-1, shard_size)[chance.permutation(50)].ravel()
    both = within.reshape(-1, shard_size)[chance.permutation(50)].ravel()
    for order in (within, of_shards, both):
        assert sorted(order.tolist()) == list(range(5000))
        assert _strange(order) > 20
    assert _strange(chance.permutation(5000)) < 5


# Results and progress.


def test_the_result_describes_the_dataset(made: Made, place: Path) -> None:
    """The result describes the output, and the dataset file the options, without location or workers."""
    result = run(
        [made.file(), place / "x.tar"] if write_tar(place / "x.tar", ["more/x.jpg"]) else [], place / "out",
        max_count=9, where="width > 3", shuffle=True, seed=4, method="scatter", memory="64MB", temp_dir=str(place),
        drop_fields=("n",), workers=2,
    )  # fmt: skip
    told = _told(place / "out" / "out.json")
    assert told["made"]["options"] == {
        "max_count": 9, "where": "width > 3", "shuffle": True, "seed": 4, "drop_fields": ["n"],
    }  # fmt: skip
    assert (told["made"]["verb"], told["made"]["source"]) == ("reshard", "out, x.tar")
    actual = keys(place / "out")
    assert (result.samples, result.shards, result.kept) == (len(actual), len(shards(place / "out")), 0)
    assert result.fingerprint == told["fingerprint"]
    assert result.size == sum(path.stat().st_size for path in shards(place / "out"))
    assert dataclasses.replace(result, seconds=0.0).to_json()["samples"] == len(actual)


class _Told(Observer):
    """Adds up reported progress."""

    def __init__(self) -> None:
        self.found = 0
        self.phases: list[list[int]] = []
        self.notes: list[str] = []

    def listed(self, samples: int) -> None:
        self.found += samples

    def note(self, text: str) -> None:
        self.notes.append(text)

    def phase(self, _text: str, size: int) -> None:
        self.phases.append([0, size, 0, 0, 0, 0])

    def start(self, samples: int, size: int, shards: int) -> None:
        self.phases.append([samples, size, shards, 0, 0, 0])

    def advance(self, samples: int, size: int, shards: int) -> None:
        for at, more in enumerate((samples, size, shards)):
            self.phases[-1][3 + at] += more


def test_progress_adds_up(made: Made, foreign: tuple[list[Path], Contents], place: Path) -> None:
    """Reported progress equals the result, in both passes, and so do the notes."""
    observer = _Told()
    result = run([made.file(), *foreign[0]], place, observer=observer, shuffle=True, max_count=9, workers=2)
    assert observer.found == result.samples == COUNT + 27
    assert len(observer.phases) == 2
    for planned in observer.phases:
        assert planned[:3] == planned[3:]
    assert observer.notes == [*result.notes]


def test_gzip_is_what_it_says(place: Path) -> None:
    """A damaged compressed shard is named, and nothing of it is written."""
    source = write_tar(place / "x.tar.gz", [f"{at}.jpg" for at in range(50)], "w:gz")
    data = bytearray(gzip.compress(gzip.decompress(source.read_bytes())))
    data[len(data) // 2] ^= 255
    source.write_bytes(bytes(data))
    result = refused(source, place / "out", CorruptShard)
    assert "x.tar.gz" in result.where

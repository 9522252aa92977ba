from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardtool import CreateOptions, IndexOptions, create, index
from shardtool.dataset.dataset_file import parse_dataset
from shardtool.dataset.shard_file import CompressedFile
from shardtool.errors import CorruptShard, InvalidRequest, ShardError
from shardtool.execute.local_pool import LocalPool
from shardtool.execute.pool import Pool
from shardtool.names import to_bytes
from shardtool.pattern import sidecar_name
from shardtool.request.create_options import ReshardOptions
from shardtool.request.observer import Observer
from shardtool.shard_samples import INLINE, SPAN
from shardtool.source.number_texts import NumberField, NumberTask, float_text, int_text, read_number_texts
from shardtool.source.shard_listing import list_datasets
from shardtool.verbs.create import reshard
from tests import tfrecords
from tests.helpers import ENVIRONMENT, REPO, flip, members, shards, write_tree
from tests.made import metadata_of
from tests.tfrecords import BYTES, FLOAT, INT64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from shardtool.source.base import Listing

KEYS = st.lists(
    st.sampled_from(
        ["a", "b/c", "b/c.d", "ü", "v1.5/x", "n" * 60 + "/" + "n" * 70, "z" * 40 + "/" + "y" * 90, ".h", "p%20q"]
    ),
    unique=True, max_size=6,
)  # fmt: skip
FIELDS = st.lists(st.sampled_from(["jpg", "cls", "seg.png", "Jpeg", "ü"]), unique=True, min_size=1, max_size=4)
DATA = st.sampled_from([b"", b"x", b"17", bytes(511), bytes(range(256)) * 3])
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}

Samples = list[tuple[str, list[tuple[str, bytes]]]]
Records = list[tuple[str, list[tuple[str, int, list[Any]]]]]


class Here(Pool):
    """A pool in this process; tasks and results are pickled, as between processes."""

    def map(
        self, function: Callable[..., Any], tasks: Iterable[object], progress: Callable[..., None] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield the results in reverse order, because the order is not guaranteed."""
        assert progress is None
        done = [(number, function(_crossed(task))) for number, task in enumerate(tasks)]
        yield from _crossed(done[::-1])


class Asked(Here):
    """A pool that requires `check` before `map`, and records the checked files."""

    asked: tuple[str | bytes, ...] = ()

    def check_access(self, paths: Sequence[str | bytes] = (), *, output: str | None = None, function: str = "") -> None:
        assert (output, function) == (None, "")
        self.asked += tuple(paths)

    def map(
        self, function: Callable[..., Any], tasks: Iterable[object], progress: Callable[..., None] | None = None
    ) -> Iterator[tuple[int, Any]]:
        results = [*super().map(function, tasks, progress)]
        assert self.asked or not results
        yield from results


def _crossed(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - it was ours a moment ago


class Count(Observer):
    """Counts the samples found."""

    found = 0

    def listed(self, samples: int) -> None:
        self.found += samples


def listed(*givens: Any, to: str = "tar", **more: Any) -> Listing:
    """List datasets, and check that the columns fit together."""
    texts = [[str(name) for name in given] if isinstance(given, list) else str(given) for given in givens]
    count = Count()
    listing = list_datasets(texts, Here(), count, to_format=to, **more)
    entries, rows = listing.entries, len(listing.entries.rows.code)
    assert count.found == len(entries) == len(entries.first_rows) - 1 == len(entries.known_spans.file)
    row, spans = entries.rows, entries.known_spans
    columns = row.kind, row.size, row.mtime_ns, row.changed_ns, spans.offset, spans.crc
    assert {len(column) for column in columns} == {rows} == {int(entries.first_rows[-1])}
    kinds = [row.code.dtype, row.kind.dtype, spans.file.dtype]
    assert kinds == [np.uint16, np.uint8, np.uint32]
    assert list(entries.fields) == sorted({*entries.fields}, key=to_bytes)
    owners = np.repeat(np.arange(len(entries)), entries.counts())
    ordered = np.diff(owners * 2**16 + entries.rows.code)
    assert np.all(ordered > 0), "fields of a sample are in the order of their names"
    assert listing.entries.take(np.arange(len(entries))).keys.data == entries.keys.data
    return listing


def contents(listing: Listing) -> Samples:
    """Return the samples' payloads, read at the listed offsets, and check their checksums."""
    entries, texts = listing.entries, {}
    for name, column in entries.values.inline.items():
        texts[name] = column.span(0, len(entries))[:-1].split(b"\0")
        assert len(texts[name]) == len(entries)
    read = [unpacked(os.fsdecode(file.path)) for file in entries.known_spans.files]
    samples = []
    for sample in range(len(entries)):
        fields = []
        for row in range(int(entries.first_rows[sample]), int(entries.first_rows[sample + 1])):
            name, size = entries.fields[entries.rows.code[row]], int(entries.rows.size[row])
            if entries.rows.kind[row] == INLINE:
                data = texts[name][sample]
                assert (len(data), entries.known_spans.crc[row]) == (size, -1)
            else:
                assert entries.rows.kind[row] == SPAN
                data = read[entries.known_spans.file[sample]][int(entries.known_spans.offset[row]) :][:size]
                assert len(data) == size
                assert entries.known_spans.crc[row] in (-1, crc32c.crc32c(data))
            fields.append((name, data))
        samples.append((entries.key(sample), fields))
    return samples


def unpacked(path: str) -> bytes:
    """Return the bytes of a shard, unpacked if it is compressed."""
    if not path.endswith(("gz", "zst")):
        with open(path, "rb") as file:
            return file.read()
    with CompressedFile(path) as file:
        return bytes(file.read(0, 2**30))


def in_order(samples: Samples) -> Samples:
    """Return samples with their fields in byte order."""
    return [(key, sorted(fields, key=lambda field: to_bytes(field[0]))) for key, fields in samples]


def write_tar(path: Path, samples: Samples, mode: Any = "w", **more: Any) -> Path:
    """Write a tar shard as other tools do."""
    with tarfile.open(path, mode, **more) as out:
        for key, fields in samples:
            for name, data in fields:
                info = tarfile.TarInfo(f"{key}.{name}")
                info.size, info.mtime, info.uname = len(data), 12345, "somebody"
                out.addfile(info, io.BytesIO(data))
    return path


def write_records(path: Path, samples: Records) -> Path:
    """Write a TFRecord shard as other tools do: each feature is a list."""
    encode: dict[int, Callable[[Any], bytes]] = {
        BYTES: bytes,
        FLOAT: lambda value: struct.pack("<f", value),
        INT64: tfrecords.varint,
    }
    out = []
    for key, features in samples:
        entries = []
        for name, kind, values in [("__key__", BYTES, [key.encode()]), *features]:
            parts = [encode[kind](value) for value in values]
            packed = kind != BYTES
            body = b"".join(delimited(1, part) for part in ([b"".join(parts)] if packed else parts))
            entries.append(delimited(1, delimited(1, name.encode()) + delimited(2, delimited(kind, body))))
        out.append(tfrecords.frame(delimited(1, b"".join(entries))))
    path.write_bytes(b"".join(out))
    return path


def delimited(number: int, body: bytes) -> bytes:
    """Return a length-delimited field of a message."""
    return tfrecords.varint(number << 3 | 2) + tfrecords.varint(len(body)) + body


def manifest(folder: Path, **columns: Sequence[Any]) -> Path:
    """Write a manifest with one row per sample."""
    count = len(next(iter(columns.values())))
    folder.mkdir(exist_ok=True)
    keys = columns.pop("key", [f"k/{at:04}" for at in range(count)])
    pq.write_table(pa.table({"key": keys, **columns}), folder / "m.parquet")
    return folder / "m.parquet"


def make(source: Path, pattern: Path | str, **options: Any) -> Path:
    """Create a dataset; return its dataset file."""
    return type(source)(create(source, str(pattern), CreateOptions(workers=0, **options)).dataset_file)


def again(dataset: Path, **changes: Any) -> None:
    """Change values in a dataset file, and renew its checksum."""
    dataset.write_bytes(replace(parse_dataset(dataset.read_bytes(), "x"), **changes).encode())


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Create a dataset of the same 7 samples in each format: 3 shards with metadata, a label and numbers."""
    root = tmp_path_factory.mktemp("ours")
    rows: dict[str, Sequence[Any]] = {
        "text": [f"text {at}" for at in range(7)],
        "label": ["dog", "cat", "dog", "cat", "dog", "cat", "emu"],
        "n": [at - 3 for at in range(7)],
        "score": [0.5, 0.1, 1e-5, 1e20, -2.0, 16777216.0, 0.0],
        "list": [[at, at + 1] for at in range(7)],
    }
    source = manifest(root, **rows)
    values = ("txt=text", "cls=label", "n=n", "score=score")
    return {
        ending: make(source, root / f"{ending}-{{0..}}.{ending}", max_count=3, field=values, classes=("cls",))
        for ending in ("tar", "tfrecord")
    }


def copied(dataset: Path, folder: Path) -> Path:
    """Return a copy of a dataset in its own folder."""
    folder.mkdir(exist_ok=True)
    for path in dataset.parent.glob(f"{dataset.stem}*"):
        shutil.copy2(path, folder)
    return folder / dataset.name


def field(samples: Samples, name: str) -> list[bytes | None]:
    """Return a field of each sample."""
    return [dict(fields).get(name) for _, fields in samples]


@settings(max_examples=15)
@given(
    made=st.lists(st.tuples(KEYS, FIELDS, DATA), min_size=1, max_size=3), kind=st.sampled_from([*FORMATS]),
    mode=st.sampled_from(["w", "w:gz"]),
)  # fmt: skip
def test_foreign_tar_shards_are_scanned(
    made: list[tuple[list[str], list[str], bytes]], kind: str, mode: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The samples of other tools' tar shards are listed in order, with their offsets."""
    folder = tmp_path_factory.mktemp("tars")
    expected: Samples = []
    paths = []
    for number, (keys, names, data) in enumerate(made):
        samples: Samples = [(f"{number}{key}", [(name, data + name.encode()) for name in names]) for key in keys]
        expected += samples
        path = folder / f"s-{number}.tar{mode[1:].replace(':', '.')}"
        paths.append(write_tar(path, samples, mode, format=FORMATS[kind]))
    listing = listed(paths)
    expected_fields = [(*split(f"{key}.{name}"), data) for key, fields in expected for name, data in fields]
    listed_fields = [(key, name, data) for key, fields in contents(listing) for name, data in fields]
    assert sorted(listed_fields) == sorted(expected_fields)
    assert (listing.compressed, listing.shards) == (mode == "w:gz", tuple(path.name for path in paths))
    assert listing.entries.known_spans.file.tolist() == sorted(listing.entries.known_spans.file.tolist())
    if not any("." in key.rpartition("/")[2] for key, _ in expected):
        assert contents(listing) == in_order(expected)
        assert not listing.recorded


def split(name: str) -> tuple[str, str]:
    """Return the key and field of a member, by WebDataset's rule."""
    folder, slash, base = name.rpartition("/")
    at = base.index(".", 1)
    return folder + slash + base[:at], base[at + 1 :]


@settings(max_examples=8)
@given(
    keys=KEYS.filter(bool), names=st.lists(st.sampled_from(["jpg", "cls", "ü"]), unique=True, min_size=1), data=DATA,
    ending=st.sampled_from(["tar", "tfrecord"]),
)  # fmt: skip
def test_listing_equals_what_create_packed(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str], names: list[str], data: bytes, ending: str
) -> None:
    """A created dataset is listed as it was packed, with all checksums; a scan finds the same."""
    folder = tmp_path_factory.mktemp("ours")
    samples = in_order([(f"k{key}", [(name, data + name.encode()) for name in names]) for key in keys])
    files = {f"{key}.{name}": data for key, fields in samples for name, data in fields}
    dataset = make(write_tree(folder / "in", files), folder / f"o-{{0..}}.{ending}", max_count=2, dots="last")
    samples.sort(key=lambda sample: to_bytes(sample[0]))
    listing = listed(dataset)
    assert contents(listing) == samples
    assert (listing.recorded, listing.name, listing.notes) == ({"dots": "last"}, "o", ())
    assert listing.digest == int(parse_dataset(dataset.read_bytes(), "o").fingerprint[3:], 16)
    assert np.all(listing.entries.known_spans.crc >= 0)
    for path in [dataset, *folder.glob("*.index")]:
        path.unlink()
    walked = listed(f"{folder}/o-*.{ending}")
    assert walked.digest is None
    if ending == "tfrecord" or not any("." in key.rpartition("/")[2] for key, _ in samples):
        assert contents(walked) == samples


def test_several_datasets_are_concatenated(ours: dict[str, Path], tmp_path: Path) -> None:
    """Datasets of any kind are listed in the given order, samples in the order of shards, each with its shard."""
    foreign = write_tar(tmp_path / "f.tar", [("f/1", [("txt", b"1")]), ("f/0", [("txt", b"0")])])
    copy = copied(ours["tfrecord"], tmp_path / "copy")
    again(copy, name="other")
    first, second = contents(listed(ours["tar"])), contents(listed(foreign))
    listing = listed(copy, foreign, to="tar")
    assert [key for key, _ in contents(listing)] == [key for key, _ in first + second]
    assert contents(listing) == first + second, "numbers are the text that a tar has"
    assert listing.shards == ("tfrecord-0.tfrecord", "tfrecord-1.tfrecord", "tfrecord-2.tfrecord", "f.tar")
    assert listing.entries.known_spans.file.tolist() == [0, 0, 0, 1, 1, 1, 2, 3, 3]
    assert listing.name == "other, f.tar"
    assert (listing.digest, listing.compressed, listing.recorded) == (None, False, {})
    assert [os.path.basename(file.path).decode() for file in listing.entries.known_spans.files] == list(listing.shards)
    assert contents(listed(foreign, copy)) == second + first


@pytest.mark.parametrize("given", ["file", "pattern", "glob", "folder", "list"])
def test_all_notations_of_a_dataset_are_equal(given: str, ending: str, ours: dict[str, Path], tmp_path: Path) -> None:
    """A dataset file, a pattern, a glob, a folder and a list of its shards give the same samples."""
    dataset = copied(ours[ending], tmp_path / "in")
    paths = shards(tmp_path / "in")
    ways: dict[str, Any] = {
        "file": dataset, "pattern": tmp_path / "in" / f"{ending}-{{0..}}.{ending}", "folder": tmp_path / "in",
        "glob": tmp_path / "in" / f"*.{ending}", "list": paths,
    }  # fmt: skip
    listing = listed(ways[given])
    assert contents(listing) == contents(listed(ours[ending]))
    assert listing.entries.values.classes == {"cls": ["cat", "dog", "emu"]}
    assert listing.entries.values.numbers == {"cls": "int64", "n": "int64", "score": "float"}
    assert (listing.name, listing.notes) == (ending, ())
    part = listed(paths[1:2])
    assert contents(part) == contents(listing)[3:6]
    assert part.entries.values.classes == {"cls": ["cat", "dog", "emu"]}
    assert part.digest is None


def test_other_files_are_refused(tmp_path: Path) -> None:
    """Files that are not datasets are refused by name; an empty shard is one."""
    refused: tuple[tuple[Any, str], ...] = (
        ("s4://b/x.tar", "the scheme s4://"),
        (tmp_path / "x.tar", "no such file"),
        ([], "no name"),
    )
    for none, what in refused:
        with pytest.raises(InvalidRequest, match=what):
            listed(none)
    write_tar(tmp_path / "empty.tar", [])
    assert contents(listed(tmp_path / "empty.tar")) == []
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    both = listed(
        tmp_path / "empty.tar", write_tar(tmp_path / "a.tar", [("a", [("x", b"1")])]), tmp_path / "empty.tfrecord"
    )
    assert contents(both) == [("a", [("x", b"1")])]


def test_workers_find_the_same(ours: dict[str, Path], tmp_path: Path) -> None:
    """Worker processes scan and read as this process does, and do not import pandas."""
    write_tar(tmp_path / "a.tar.gz", [(f"{at}", [("txt", b"%d" % at)]) for at in range(50)], "w:gz")
    code = (
        "import sys\n"
        "from shardtool.execute.local_pool import LocalPool\n"
        "pool = LocalPool(2)\n"
        "from shardtool.source.shard_listing import list_datasets\n"
        "from shardtool.request.observer import Observer\n"
        f"givens = [{str(ours['tar'])!r}, {str(tmp_path / 'a.tar.gz')!r}]\n"
        "found = list_datasets(givens, pool, Observer(), to_format='tfrecord')\n"
        "print(len(found.entries), sorted(found.entries.values.numbers), found.compressed, 'pandas' in sys.modules)\n"
        "pool.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, env=ENVIRONMENT, capture_output=True, check=True)
    assert done.stdout.decode() == "57 ['cls', 'n', 'score'] True False\n"


def test_workers_import_nothing_heavy() -> None:
    """Workers import neither NumPy nor pyarrow for uncompressed shards."""
    modules = "shardtool.source.base, shardtool.dataset.shard_file"
    code = f"import sys, {modules}; print(*{{'numpy', 'pyarrow'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, env=ENVIRONMENT, capture_output=True, check=True)
    assert done.stdout == b"\n"


def test_compressed_shards_are_read_in_sequence(ending: str, ours: dict[str, Path], tmp_path: Path) -> None:
    """Compressed shards give the same samples, with offsets into the unpacked data, including numbers."""
    names = []
    for path in shards(ours[ending].parent):
        if path.suffix == f".{ending}":
            names.append(tmp_path / f"{path.name}.gz")
            names[-1].write_bytes(gzip.compress(path.read_bytes()))
    listing = listed(names)
    assert listing.compressed
    assert contents(listing) == contents(listed(ours[ending]))
    large: Records = [
        (f"{at}", [("a", INT64, [at]), ("b", BYTES, [bytes(2**21)]), ("c", INT64, [-at])]) for at in range(3)
    ]
    plain = write_records(tmp_path / "x.tfrecord", large)
    (tmp_path / "x.tfrecord.gz").write_bytes(gzip.compress(plain.read_bytes(), 1))
    assert field(contents(listed([tmp_path / "x.tfrecord.gz"])), "c") == [b"0", b"-1", b"-2"]
    if ending == "tar":
        with pa.CompressedOutputStream(tmp_path / "z.tar.zst", "zstd") as out:
            out.write(shards(ours["tar"].parent)[0].read_bytes())
        assert contents(listed(tmp_path / "z.tar.zst")) == contents(listing)[:3]


def test_other_members_are_skipped(tmp_path: Path) -> None:
    """Members that are not fields are skipped with a reason; folders are ignored."""
    with tarfile.open(tmp_path / "x.tar", "w") as out:
        for name, kind in (("./", tarfile.DIRTYPE), ("./a.jpg", tarfile.REGTYPE), ("./b", tarfile.DIRTYPE),
                           ("README", tarfile.REGTYPE), ("l.jpg", tarfile.SYMTYPE), ("b/c.jpg", tarfile.REGTYPE),
                           ("f.jpg", tarfile.FIFOTYPE)):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type = kind
            out.addfile(info)
    listing = listed(tmp_path / "x.tar")
    assert contents(listing) == [("a", [("jpg", b"")]), ("b/c", [("jpg", b"")])]
    skipped = [(row.path, row.code, row.key) for row in listing.skipped]
    assert skipped == [
        ("x.tar:README", "no-field", ""),
        ("x.tar:l.jpg", "special-file", ""),
        ("x.tar:f.jpg", "special-file", ""),
    ]


def test_changes_affect_time_or_identity(ours: dict[str, Path], tmp_path: Path) -> None:
    """A change of a file that was read changes the time; other files change the identity."""
    dataset = copied(ours["tar"], tmp_path / "in")
    before = listed(dataset).entries
    later = before.rows.changed_ns[0] + 10**12
    for path in (dataset, *sorted(tmp_path.glob("in/*0.*"))):
        fact = path.stat()
        os.utime(path, ns=(later, later))
        listing = listed(dataset).entries
        assert set(listing.rows.changed_ns.tolist()) == {later}
        assert listing.source_identity == before.source_identity
        os.utime(path, ns=(fact.st_atime_ns, fact.st_mtime_ns))
        data = path.read_bytes()
        path.rename(tmp_path / "old")
        path.write_bytes(data)
        assert listed(dataset).entries.source_identity != before.source_identity
        before = listed(dataset).entries
    assert before.root == b""
    assert len(listed(dataset).entries.source_identity) < 50


def test_damaged_files_are_named(ending: str, ours: dict[str, Path], tmp_path: Path) -> None:
    """A flipped bit in a dataset file or sidecar is an error that names it; one in a payload fails its checksum."""
    for number, name in enumerate([f"{ending}.json", f"{ending}-1.index"]):
        for at in (20, -20):
            dataset = copied(ours[ending], tmp_path / f"{number}{at}")
            flip(dataset.parent / name, at)
            with pytest.raises(CorruptShard, match=name) as caught:
                listed(dataset)
            assert caught.value.exit_code == 4
    dataset = copied(ours[ending], tmp_path / "payload")
    before = listed(dataset).entries
    row = int(np.flatnonzero(before.rows.kind == SPAN)[-1])
    flip(dataset.parent / f"{ending}-2.{ending}", int(before.known_spans.offset[row]))
    with pytest.raises(AssertionError):
        contents(listed(dataset))
    if ending == "tfrecord":
        for path in dataset.parent.glob("*.index"):
            path.unlink()
        dataset.unlink()
        with pytest.raises(CorruptShard, match=r"tfrecord-2.*checksum"):
            listed(dataset.parent)


def test_damaged_numbers_are_reported(ours: dict[str, Path], tmp_path: Path) -> None:
    """Numbers are read while listing: a flipped bit in one is an error with its location, in both formats."""
    for ending, to in (("tfrecord", "tar"), ("tfrecord", "tfrecord"), ("tar", "tfrecord")):
        dataset = copied(ours[ending], tmp_path / f"{ending}{to}")
        path = tmp_path / f"{ending}{to}" / f"{ending}-1.{ending}"
        rows = pq.read_table(path.with_suffix(".index")).to_pylist()
        offset = next(entry for entry in rows[1]["__fields__"] if entry["name"] == "n")["offset"]
        flip(path, offset)
        with pytest.raises(CorruptShard, match=rf"{ending}-1.* at {offset:,}.*'n'"):
            listed(dataset, to=to)
        assert len(listed(dataset, to=to, without=["n"]).entries) == 7


def test_a_changed_shard_is_refused(tmp_path: Path) -> None:
    """Numbers are read only from the file that was listed."""
    shard = write_records(tmp_path / "x.tfrecord", [("a", [("n", INT64, [5])])])
    row = listed(shard, without=["n"]).entries
    places = row.known_spans.offset.tobytes(), row.rows.size.tobytes(), np.array([-1]).tobytes()
    wanted = NumberField("n", "int64", is_tfrecord=True, offsets=places[0], lengths=places[1], crcs=places[2])
    assert read_number_texts(NumberTask(row.known_spans.files[0], (wanted,)))[0].data == b"5\0"
    os.utime(shard, ns=(1, 1))
    with pytest.raises(CorruptShard, match="changed while it was read"):
        read_number_texts(NumberTask(row.known_spans.files[0], (wanted,)))


def test_missing_and_different_files_are_refused(ending: str, ours: dict[str, Path], tmp_path: Path) -> None:
    """A missing or different shard or sidecar that a dataset file lists is an error, never a reason to scan."""
    number = itertools.count()

    def changed(change: Callable[[Path], object], what: str, given_as: str = "{dataset}") -> None:
        folder = tmp_path / str(next(number))
        dataset = copied(ours[ending], folder)
        change(folder)
        with pytest.raises(CorruptShard, match=what) as caught:
            listed(given_as.format(dataset=dataset, folder=folder))
        assert caught.value.remedy

    shard, sidecar = f"{ending}-1.{ending}", f"{ending}-1.index"

    def without_shard(folder: Path) -> None:
        (folder / shard).unlink()

    def with_link(folder: Path) -> None:
        (folder / shard).unlink()
        (folder / shard).symlink_to("x")

    def with_fifo(folder: Path) -> None:
        (folder / shard).unlink()
        os.mkfifo(folder / shard)

    changed(without_shard, f"{shard}: cannot be opened: no such file")
    for given_as in (f"{ending}-{{{{0..}}}}.{ending}", f"{ending}-{{{{0..1}}}}.{ending}", f"*.{ending}"):
        changed(without_shard, f"{shard}: cannot be opened: no such file", f"{{folder}}/{given_as}")
    changed(with_link, "a broken link to x")
    changed(with_fifo, "no plain file|not a regular file")
    changed(lambda folder: os.truncate(folder / shard, 600), f"{shard}: 600 bytes")
    changed(lambda folder: (folder / sidecar).unlink(), f"{sidecar}: no such file")
    changed(lambda folder: shutil.copy(folder / f"{ending}-0.index", folder / sidecar), f"{sidecar}: .*as listed")

    def another_count(folder: Path) -> None:
        file = parse_dataset((folder / f"{ending}.json").read_bytes(), "x")
        again(folder / f"{ending}.json", shards=(replace(file.shards[0], samples=4), *file.shards[1:]))

    changed(another_count, f"{ending}-0.index: 3 samples.*4 samples, as listed in the dataset file")


def test_sidecars_without_a_dataset_file_must_match(ours: dict[str, Path], tmp_path: Path) -> None:
    """A sidecar must match its shard's name, size and location; damage is an error."""
    dataset = copied(ours["tar"], tmp_path)
    dataset.unlink()
    whole = listed(f"{tmp_path}/tar-*.tar")
    assert contents(whole) == contents(listed(ours["tar"]))
    assert whole.entries.metadata is not None
    assert (whole.entries.values.classes, whole.entries.values.numbers, whole.digest) == ({}, {}, None)
    index_file = tmp_path / "tar-1.index"
    data = index_file.read_bytes()
    page = data.index(b"\x28\xb5\x2f\xfd") + 8  # where ZSTD starts
    for changed, message in (
        ((tmp_path / "tar-0.index").read_bytes(), "the index of tar-0.tar"),
        (data[:-30], "not a valid sidecar"),
        (data[:page] + bytes([data[page] ^ 1]) + data[page + 1 :], "not a valid sidecar"),
    ):
        index_file.write_bytes(changed)
        with pytest.raises(CorruptShard, match=rf"tar-1\.index.*{message}"):
            listed(tmp_path)
    index_file.unlink()
    index_file.symlink_to("nowhere")
    with pytest.raises(CorruptShard, match=r"tar-1\.index.*no such file"):
        listed(tmp_path)
    index_file.unlink()
    index_file.write_bytes(data)
    (tmp_path / "tar-1.tar").write_bytes((tmp_path / "tar-1.tar").read_bytes() + bytes(512))
    with pytest.raises(CorruptShard, match=r"tar-1\.index"):
        listed(tmp_path)


def _rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write a sidecar with another table and the same metadata."""
    facts = pq.read_metadata(path).metadata
    table = change(pq.read_table(path))
    with pq.ParquetWriter(path, table.schema, store_schema=False, write_page_checksum=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({name: value for name, value in facts.items() if name.startswith(b"shardtool")})


def test_false_sidecars_are_refused(ours: dict[str, Path], tmp_path: Path) -> None:
    """A valid Parquet file with impossible contents, or with other columns, is an error."""
    dataset = copied(ours["tar"], tmp_path)
    dataset.unlink()
    path = tmp_path / "tar-0.index"
    data = path.read_bytes()

    def with_column(name: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Table], pa.Table]:
        def changed(table: pa.Table) -> pa.Table:
            at = table.schema.get_field_index(name)
            kind = table.schema.field(at)
            return table.set_column(at, kind, pa.array(change(table.column(at).to_pylist()), kind.type))

        return changed

    def shifted(rows: list[Any], by: int) -> list[Any]:
        first, *rest = rows[-1]
        return [*rows[:-1], [{**first, "offset": first["offset"] + by}, *rest]]

    for change in (
        with_column("__offset__", lambda values: [value + 10**9 for value in values]),
        with_column("__size__", lambda values: [2**62 for _ in values]),
        with_column("__offset__", lambda values: [0 for _ in values]),
        with_column("__fields__", lambda rows: shifted(rows, 10**6)),
        with_column("__fields__", lambda rows: shifted(rows, -1024)),
        with_column("__size__", lambda values: [value + 512 for value in values]),
        lambda table: table.append_column("__mine__", table.column("n")),
        lambda table: table.append_column("n", table.column("n")),
        lambda table: table.drop(["__size__"]),
    ):
        path.write_bytes(data)
        _rewritten(path, change)
        with pytest.raises(CorruptShard, match=r"tar-0\.index"):
            listed(tmp_path)
    path.write_bytes(data)
    _rewritten(path, lambda table: table)
    assert contents(listed(tmp_path)) == contents(listed(ours["tar"]))


@given(data=st.data())
def test_any_bytes_give_samples_or_corrupt_shard(
    data: st.DataObject, ours: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any bytes in a shard, sidecar or dataset file give samples or an expected error."""
    ending = data.draw(st.sampled_from(["tar", "tfrecord"]))
    dataset = copied(ours[ending], tmp_path_factory.mktemp("any"))
    bare = data.draw(st.booleans())
    if bare:
        dataset.unlink()
    path = data.draw(st.sampled_from([path for path in sorted(dataset.parent.iterdir()) if "-1" not in path.name]))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(1, len(raw)) | st.just(len(raw)))])
    try:
        listed(dataset.parent, to=data.draw(st.sampled_from(["tar", "tfrecord"])))
    except ShardError as error:
        assert isinstance(error, (CorruptShard, InvalidRequest)), error  # noqa: PT017


@pytest.mark.parametrize("checksum", [False, True])
def test_sidecars_of_index_are_checked(ending: str, *, checksum: bool, ours: dict[str, Path], tmp_path: Path) -> None:
    """Sidecars without checksums are compared with a scan; others are used, except for what only a scan can tell."""
    for path in shards(ours[ending].parent):
        if path.suffix == f".{ending}":
            shutil.copy(path, tmp_path)
    index(f"{tmp_path}/*.{ending}", IndexOptions(checksum=checksum, workers=0))
    listing = listed(tmp_path)
    assert contents(listing) == contents(listed(ours[ending]))
    spans = listing.entries.known_spans.crc[listing.entries.rows.kind == SPAN]
    assert np.all((spans >= 0) == (checksum or ending == "tfrecord"))
    path = tmp_path / f"{ending}-0.index"
    valid_bytes = path.read_bytes()
    if checksum and ending == "tar":
        _rewritten(path, lambda table: _row_changed(table, "__key__", lambda key: key + "x"))
        _list_again(tmp_path / f"{ending}.json", path)
        assert contents(listed(tmp_path))[0][0] == "k/0000x"
        return
    for change in (
        lambda table: _row_changed(table, "__key__", lambda key: key[:-1] + "9"),
        lambda table: _row_changed(table, "__fields__", lambda fields: [*fields[:-1], {**fields[-1], "name": "zzz"}]),
        lambda table: _row_changed(table, "__fields__", lambda fields: [*fields[:-1], {**fields[-1], "length": 1}]),
        lambda table: _row_changed(table, "__fields__", lambda fields: fields[:-1]),
        _renamed,
    ):
        path.write_bytes(valid_bytes)
        _rewritten(path, change)
        _list_again(tmp_path / f"{ending}.json", path)
        with pytest.raises(CorruptShard, match=rf"{ending}-0\.{ending}: its samples"):
            listed(tmp_path)


def _row_changed(table: pa.Table, name: str, change: Callable[[Any], Any]) -> pa.Table:
    """Return a table with another value in the first row of a column."""
    at = table.schema.get_field_index(name)
    kind, values = table.schema.field(at), table.column(at).to_pylist()
    return table.set_column(at, kind, pa.array([change(values[0]), *values[1:]], kind.type))


def _renamed(table: pa.Table) -> pa.Table:
    """Return a table with another name for the last field of all samples."""
    at = table.schema.get_field_index("__fields__")
    kind, rows = table.schema.field(at), table.column(at).to_pylist()
    return table.set_column(at, kind, pa.array([[*row[:-1], {**row[-1], "name": "zzz"}] for row in rows], kind.type))


def _list_again(dataset: Path, sidecar: Path) -> None:
    """Update a dataset file for the current sidecar."""
    data = sidecar.read_bytes()
    entries = parse_dataset(dataset.read_bytes(), "x").shards
    recorded: Any = {"sidecar_size": len(data), "sidecar_crc": crc32c.crc32c(data)}
    again(
        dataset,
        shards=tuple(replace(entry, **recorded) if entry.sidecar == sidecar.name else entry for entry in entries),
    )


def test_unlisted_shards_are_excluded(ours: dict[str, Path], tmp_path: Path) -> None:
    """A shard that only a pattern matches is not part of the dataset, with a note."""
    copied(ours["tar"], tmp_path)
    write_tar(tmp_path / "tar-3.tar", [("more", [("txt", b"")])])
    listing = listed(tmp_path / "tar-{0..}.tar")
    assert listing.notes == ("tar.json does not list 1 shard, excluded: tar-3.tar",)
    assert contents(listing) == contents(listed(ours["tar"]))


@pytest.mark.parametrize("key", ["a/../b", "/a", "a//b", "./../x", "a\x01b", "a/\x7f", "..", "a/."])
def test_invalid_keys_are_refused(key: str, tmp_path: Path) -> None:
    """A key that is not a valid path, or leaves the folder, is refused by name."""
    write_tar(tmp_path / "good.tar", [("good", [("txt", b"")])])
    write_records(tmp_path / "x.tfrecord", [("ok", []), (key, [("txt", BYTES, [b""])])])
    with pytest.raises(InvalidRequest, match=r"x\.tfrecord.*the key"):
        listed(tmp_path / "good.tar", tmp_path / "x.tfrecord")


def test_nul_bytes_in_keys_are_refused(tmp_path: Path) -> None:
    """A NUL byte does not end a key; an empty key is invalid."""
    for key in ("a\0b", ""):
        write_records(tmp_path / "x.tfrecord", [(key, [("txt", BYTES, [b""])])])
        with pytest.raises(InvalidRequest, match="the key"):
            listed(tmp_path / "x.tfrecord")


@pytest.mark.parametrize("name", ["", "a\0b", "a\n"])
def test_invalid_fields_are_refused(name: str, tmp_path: Path) -> None:
    """A field with an empty name or control characters is refused with its location."""
    shard = write_records(tmp_path / "x.tfrecord", [("a", []), ("b", [("ok", BYTES, [b""]), (name, BYTES, [b""])])])
    with pytest.raises(InvalidRequest, match=r"x\.tfrecord, b: the field"):
        listed(shard)
    assert len(listed(shard, only=["ok"]).entries) == 2


def test_names_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    """Names that are not valid UTF-8 are percent-encoded, as in an index."""
    with tarfile.open(tmp_path / "x.tar", "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as out:
        for name in ("k\xff.jpg", "k\xff.\xfe", "b%20.jpg"):
            out.addfile(tarfile.TarInfo(name))
    assert [(key, [name for name, _ in fields]) for key, fields in contents(listed(tmp_path / "x.tar"))] == [
        ("k%FF", ["%FE", "jpg"]), ("b%20", ["jpg"]),
    ]  # fmt: skip


def test_repeated_fields_are_refused(tmp_path: Path) -> None:
    """A sample with a field twice is refused, unless the field is dropped."""
    shard = write_tar(tmp_path / "x.tar", [("a", [("jpg", b"1")]), ("b", [("jpg", b"1"), ("txt", b""), ("jpg", b"2")])])
    with pytest.raises(InvalidRequest, match=r"x\.tar, b: the field 'jpg' twice"):
        listed(shard)
    listing = list_datasets([str(shard)], Here(), Observer(), to_format="tar", without=["jpg"])
    assert len(listing.entries) == 2
    write_records(tmp_path / "x.tfrecord", [("a", [("t", BYTES, [b"1"]), ("t", BYTES, [b"2"])])])
    with pytest.raises(InvalidRequest, match="the field 't' twice"):
        listed(tmp_path / "x.tfrecord")


@pytest.mark.slow
def test_the_number_of_fields_is_limited(tmp_path: Path) -> None:
    """Too many fields are refused, for a sample and in total."""
    names = [f"f{at:05}" for at in range(2**16)]
    write_records(tmp_path / "x.tfrecord", [("a", [(name, BYTES, [b""]) for name in names])])
    with pytest.raises(CorruptShard, match=r"a tf\.train\.Example of more than 65,536 features"):
        listed(tmp_path / "x.tfrecord")
    for at, shard_names in enumerate((names[: 2**15], names[2**15 :])):
        write_records(tmp_path / f"{at}.tfrecord", [(f"{at}", [(name, BYTES, [b""]) for name in shard_names])])
    with pytest.raises(InvalidRequest, match=r"65,536 (different )?fields"):
        listed(tmp_path / "0.tfrecord", tmp_path / "1.tfrecord")


@pytest.mark.parametrize(
    ("key", "dots"), [("a", "first"), ("a.b/c", "first"), (".h", "first"), ("x/.h", "first"), ("x/a.b", "last"),
                      ("a.", "last"),
                      ("a..b", "last")]
)  # fmt: skip
def test_keys_with_dots_need_the_last_dot(key: str, dots: str, tmp_path: Path) -> None:
    """A key with a dot in its last part needs `dots=last`, from any source."""
    write_records(tmp_path / "x.tfrecord", [("b", []), (key, [("txt", BYTES, [b""])]), ("c", [])])
    assert listed(tmp_path / "x.tfrecord").recorded.get("dots", "first") == dots


def test_dots_in_both_keys_and_fields_are_noted(tmp_path: Path) -> None:
    """If keys and fields both contain dots, no rule separates them in a tar, and a note reports it."""
    write_records(tmp_path / "x.tfrecord", [("a.b", [("seg.png", BYTES, [b""])])])
    assert any("'seg.png'" in note for note in listed(tmp_path / "x.tfrecord").notes)
    assert not listed(tmp_path / "x.tfrecord", to="tfrecord").notes


@given(st.integers(0, 2**32 - 1) | st.integers(0, 511).map(lambda high: high << 23))
@example(0x0F800000)  # 2**-96: most numbers that round to it are larger
@example(1)
def test_the_text_of_floats(bits: int) -> None:
    """A float becomes the shortest text that restores it, in Python's form; NumPy's text is the same number."""
    data = struct.pack("<I", bits)
    value = np.frombuffer(data, np.float32)[0]
    text = float_text(data)
    assert text is not None
    assert text == repr(float(str(value))).encode()
    if value == value:  # noqa: PLR0124 - not a number
        assert struct.pack("<f", float(text)) == data


@given(st.integers(-(2**63), 2**63 - 1))
def test_the_text_of_whole_numbers(number: int) -> None:
    """An int64 becomes its decimal text; lists and empty features have no text."""
    data = tfrecords.varint(number)
    assert int_text(data) == b"%d" % number
    assert int_text(data + data) is None
    assert int_text(data + b"\x80") is None


def test_numbers_of_tfrecords_equal_the_tar(ours: dict[str, Path], tmp_path: Path) -> None:
    """Numbers become the texts in the tar of the same source, with types from a dataset file or a scan."""
    expected = contents(listed(ours["tar"]))
    for to, given_to in itertools.product(("tar", "tfrecord"), (True, False)):
        dataset = copied(ours["tfrecord"], tmp_path / f"{to}{given_to}")
        if not given_to:
            dataset.unlink()
        listing = listed(dataset.parent, to=to)
        assert contents(listing) == expected
        assert listing.entries.values.numbers == {"cls": "int64", "n": "int64", "score": "float"}
        assert {name: len(column) for name, column in listing.entries.values.inline.items()} == {
            "cls": 7,
            "n": 7,
            "score": 7,
        }


def test_missing_numbers_are_empty(tmp_path: Path) -> None:
    """A sample without a number has an empty text."""
    write_records(tmp_path / "x.tfrecord", [
        ("a", [("n", INT64, [5]), ("t", BYTES, [b"t"])]), ("b", []), ("c", [("t", BYTES, [b"u"])]),
        ("d", [("n", INT64, [-1])]),
    ])  # fmt: skip
    write_tar(tmp_path / "y.tar", [("e", [("t", b"v")])])
    listing = listed(tmp_path / "x.tfrecord", tmp_path / "y.tar")
    assert field(contents(listing), "n") == [b"5", None, None, b"-1", None]
    assert listing.entries.values.inline["n"].span(0, 5) == b"5\0\0\0-1\0\0"


@pytest.mark.parametrize(("kind", "values", "what"), [
    (INT64, [1, 2, 3], "3 int64 values"), (FLOAT, [0.5, 1.5], "2 float values"),
    (BYTES, [b"a", b"b"], "2 bytes values"), (INT64, [], "0 int64 values"), (BYTES, [], "0 bytes values"),
])  # fmt: skip
def test_lists_are_refused_in_tars(kind: int, values: list[Any], what: str, tmp_path: Path) -> None:
    """A feature that is not a single value is refused with shard, field and sample, unless the field is dropped."""
    shard = write_records(
        tmp_path / "x.tfrecord", [("a", [("t", BYTES, [b"1"])]), ("b", [("t", BYTES, [b"2"]), ("l", kind, values)])]
    )
    with pytest.raises(
        InvalidRequest, match=rf"x\.tfrecord, b: the field 'l' is a list of {what}.*drop_fields=\('l',\)"
    ):
        listed(shard)
    for listing in (listed(shard, without=["l"]), listed(shard, only=["t"])):
        assert field(contents(listing), "t") == [b"1", b"2"]
    index(str(shard), IndexOptions(checksum=True, workers=0))  # an index does not record lists
    with pytest.raises(InvalidRequest, match="a list of"):
        listed(tmp_path)


def test_conflicting_types_are_refused(tmp_path: Path) -> None:
    """A field that is a number in one TFRecord and bytes in another is refused with shard, field and sample."""
    one = write_records(tmp_path / "1.tfrecord", [("a", [("n", INT64, [1])])])
    two = write_records(tmp_path / "2.tfrecord", [("b", []), ("c", [("n", BYTES, [b"1"])])])
    three = write_records(tmp_path / "3.tfrecord", [("d", [("n", FLOAT, [1.0])]), ("e", [("n", INT64, [1])])])
    with pytest.raises(
        InvalidRequest, match=r"2\.tfrecord, c: the field 'n' is bytes.*int64, as in 1.tfrecord.*drop_fields=\('n',\)"
    ):
        listed([one, two])
    with pytest.raises(InvalidRequest, match=r"1\.tfrecord, a: the field 'n' is int64.*bytes, as in 2.tfrecord"):
        listed(two, one)
    with pytest.raises(
        InvalidRequest, match=r"3\.tfrecord, e: the field 'n' is int64.*float, as in the samples before it"
    ):
        listed(three)
    assert len(listed(one, two, three, without=["n"]).entries) == 5


def test_texts_become_numbers(ours: dict[str, Path]) -> None:
    """A tar's dataset file lists which texts are numbers; they become numbers in TFRecords, and stay texts in tars."""
    file = parse_dataset(ours["tar"].read_bytes(), "x")
    assert file.numbers == {"cls": "int64", "n": "int64", "score": "float"}
    listing = listed(ours["tar"], to="tfrecord")
    assert listing.entries.values.numbers == file.numbers
    assert sorted(listing.entries.values.inline) == ["cls", "n", "score"]
    assert listing.notes == ()
    same = listed(ours["tar"], to="tar")
    assert same.entries.values.inline == {}
    assert same.entries.values.numbers == file.numbers
    assert contents(listing) == contents(same)


@pytest.mark.parametrize(("kind", "texts", "note"), [
    ("float", ["0.5", "0.123456789", "1.0"], "'x' stays text: 1 value would be rounded to TFRecord's 32-bit floats"),
    ("float", ["0.5", "1", "1.0"], "'x' stays text: 1 value would be rounded"),
    ("float", ["0.5", "", "zero"], "'x' stays text: 2 values would change as TFRecord's float"),
    ("float", ["1e40", "0.5", "nan"], "'x' stays text: 1 value would be rounded"),
    ("int64", ["1", "01", " 2"], "'x' stays text: 2 values would change as TFRecord's int64"),
    ("int64", ["9223372036854775807", "9223372036854775808", "1" * 50], "2 values"),
    ("int64", ["-0", "-1", "+1"], "2 values"),
])  # fmt: skip
def test_texts_that_would_change_stay_texts(kind: str, texts: list[str], note: str, tmp_path: Path) -> None:
    """A field with a text that a TFRecord number would not reproduce stays bytes, with a note."""
    dataset = make(
        write_tree(tmp_path / "in", {f"{at}.x": text.encode() for at, text in enumerate(texts)}),
        tmp_path / "o-{0..}.tar",
    )
    again(dataset, types={"x": kind})
    listing = listed(dataset, to="tfrecord")
    assert note in listing.notes[0]
    assert (listing.entries.values.numbers, listing.entries.values.inline) == ({}, {})
    assert field(contents(listing), "x") == [text.encode() for text in texts]


def test_tar_and_tfrecord_with_the_same_field(ours: dict[str, Path], tmp_path: Path) -> None:
    """In a tar, the field is text. In a TFRecord, a tar's texts become the numbers of the other shard, if possible."""
    expected = contents(listed(ours["tar"]))
    foreign = write_tar(tmp_path / "x.tar", [("x", [("n", b"7")])])
    other = write_tar(tmp_path / "y.tar", [("x", [("n", b"7")]), ("y", [("t", b""), ("n", b"seven")])])
    for numbers in (foreign, other):
        listing = listed(ours["tfrecord"], numbers, to="tar")
        assert contents(listing) == expected + contents(listed(numbers))
        assert listing.entries.values.numbers == {"cls": "int64", "score": "float"}, "no one says so of the other tar"
    for first in ("tar", "tfrecord"):
        listing = listed(ours[first], foreign, to="tfrecord")
        assert contents(listing) == [*expected, ("x", [("n", b"7")])]
        assert listing.entries.values.numbers["n"] == "int64"
    with pytest.raises(InvalidRequest, match=r"y\.tar, y: the field 'n' is text that would change.*int64"):
        listed(ours["tfrecord"], other, to="tfrecord")
    listing = listed(ours["tar"], other, to="tfrecord")
    assert sorted(listing.entries.values.numbers) == ["cls", "score"]
    assert listing.notes[0].startswith("'n' stays text: 1 value")


def test_conflicting_number_types_stay_texts(tmp_path: Path) -> None:
    """If two datasets list different types for a field's texts, they stay texts."""
    paths = []
    for kind in ("int64", "float"):
        source = write_tree(tmp_path / kind, {f"{kind}.x": b"1"})
        paths.append(make(source, tmp_path / f"{kind}-{{0..}}.tar"))
        again(paths[-1], types={"x": kind})
    listing = listed(*paths, to="tfrecord")
    assert listing.entries.values.numbers == {}
    assert listing.notes == ("'x' stays text: it represents float and int64 in different datasets",)
    assert listed(*paths).entries.values.numbers == {}


def test_the_dataset_file_lists_numbers(ours: dict[str, Path], tmp_path: Path) -> None:
    """A dataset file lists number fields only if there are some, and only valid entries are used."""
    document = json.loads(ours["tar"].read_bytes())["shardtool"]
    assert document["numbers"] == {"cls": "int64", "n": "int64", "score": "float"}
    assert "numbers" not in json.loads(ours["tfrecord"].read_bytes())["shardtool"]
    plain = make(write_tree(tmp_path / "in", {"a.txt": b"1"}), tmp_path / "o-{0..}.tar")
    assert "numbers" not in json.loads(plain.read_bytes())["shardtool"]
    file = parse_dataset(ours["tar"].read_bytes(), "x")
    assert parse_dataset(file.encode(), "x") == file
    for wrong in ('{"cls": "int32"}', '{"none": "int64"}', '{"cls": ["int64"]}', '["cls"]', "3"):
        raw = file.encode().replace(b'"numbers": {', b'"numbers": %b, "x": {' % wrong.encode())[:-12]
        with pytest.raises(CorruptShard, match="not a valid dataset file"):
            parse_dataset(raw + b'%08x"\n}\n' % crc32c.crc32c(raw), "x")


def test_index_keeps_number_fields(ours: dict[str, Path], tmp_path: Path) -> None:
    """A recreated dataset file lists the same number fields."""
    dataset = copied(ours["tar"], tmp_path)
    (tmp_path / "tar-0.index").unlink()
    index(dataset, IndexOptions(workers=0))
    assert parse_dataset(dataset.read_bytes(), "x").numbers == parse_dataset(ours["tar"].read_bytes(), "x").numbers


@settings(max_examples=3)
@given(
    floats=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False) | st.just(0.1), min_size=1, max_size=5),
    whole=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=5, max_size=5),
)
def test_formats_round_trip(tmp_path_factory: pytest.TempPathFactory, floats: list[float], whole: list[int]) -> None:
    """A tar resharded to TFRecord equals the TFRecord of the source, and back again; and vice versa."""
    folder = tmp_path_factory.mktemp("both")
    count = len(floats)
    columns: dict[str, Any] = {
        "score": pa.array(floats, pa.float32()), "n": pa.array(whole[:count], pa.int64()),
        "ok": pa.array([number % 2 == 0 for number in whole[:count]]), "text": [f"text {at}" for at in range(count)],
    }  # fmt: skip
    source = manifest(folder, **columns)
    values = ("score=score", "n=n", "ok=ok", "txt=text")
    data = {}
    for ending in ("tar", "tfrecord"):
        make(source, folder / f"{ending}-{{0..}}.{ending}", field=values, max_count=2)
        data[ending] = [path.read_bytes() for path in shards(folder) if path.suffix == f".{ending}"]
    for first, second in (("tar", "tfrecord"), ("tfrecord", "tar")):
        options = ReshardOptions(workers=0, max_count=2)
        other = folder / first
        reshard(folder / f"{first}.json", f"{other}/o-{{0..}}.{second}", options)
        assert [path.read_bytes() for path in shards(other)] == data[second]
        reshard(other / "o.json", f"{other}/back/o-{{0..}}.{first}", options)
        assert [path.read_bytes() for path in shards(other / "back")] == data[first]


def test_metadata_is_kept(ending: str, ours: dict[str, Path]) -> None:
    """The columns of sidecars, including lists, are kept, one row per sample."""
    listing = listed(ours[ending])
    paths = sorted(ours[ending].parent.glob(f"{ending}-*.index"))
    sidecars = pa.concat_tables([pq.read_table(path) for path in paths])
    assert metadata_of(listing.entries).equals(
        sidecars.drop([name for name in sidecars.column_names if name.startswith("__")]).combine_chunks()
    )
    assert metadata_of(listing.entries).num_rows == 7
    assert {column.num_chunks for column in metadata_of(listing.entries).columns} == {1}


def test_metadata_of_several_datasets_is_merged(tmp_path: Path) -> None:
    """Columns are merged; missing values are null, in any order of datasets."""
    tables = [
        {"key": ["a", "b"], "n": pa.array([1, 2], pa.int8()), "s": ["x", "y"]},
        {"key": ["c"], "n": pa.array([2**40], pa.int64()), "t": pa.array([[1, 2]])},
        {"key": ["d"], "s": pa.array([None], pa.null())},
    ]
    paths = []
    for at, table in enumerate(tables):
        source = manifest(tmp_path / str(at), **table)
        paths.append(make(source, tmp_path / f"{at}-{{0..}}.tar", field=("txt=key",)))
    foreign = write_tar(tmp_path / "f.tar", [("f", [("txt", b"")])])
    entries = listed(paths[0], foreign, paths[1], paths[2]).entries
    assert metadata_of(entries).select(["n", "s", "t"]).to_pylist() == [
        {"n": 1, "s": "x", "t": None}, {"n": 2, "s": "y", "t": None}, {"n": None, "s": None, "t": None},
        {"n": 2**40, "s": None, "t": [1, 2]}, {"n": None, "s": None, "t": None},
    ]  # fmt: skip
    assert [str(kind) for kind in metadata_of(entries).select(["n", "s"]).schema.types] == ["int64", "string"]
    assert metadata_of(listed(foreign, paths[0]).entries).column("n").to_pylist() == [None, 1, 2]
    assert listed(foreign).entries.metadata is None


def test_conflicting_metadata_is_refused(tmp_path: Path) -> None:
    """Conflicting types are an error that names column, types and datasets; so are values that would change."""
    paths = {}
    for name, values in (("text", ["1"]), ("whole", pa.array([2**60 + 1])), ("part", [0.5]), ("small", [1])):
        source = manifest(tmp_path / name, key=[name], n=values)
        paths[name] = make(source, tmp_path / f"{name}-{{0..}}.tar", field=("txt=key",))
    with pytest.raises(InvalidRequest, match=r"column 'n': string in text, int64 in whole"):
        listed(paths["text"], paths["whole"])
    with pytest.raises(InvalidRequest, match=r"column 'n': double in part, int64 in whole"):
        listed(paths["part"], paths["whole"])
    assert metadata_of(listed(paths["small"], paths["part"]).entries).column("n").to_pylist() == [1.0, 0.5]


def test_conflicting_classes_are_refused(ours: dict[str, Path], tmp_path: Path) -> None:
    """The same classes stay; others are refused by name, unless the field is dropped."""
    same, other = copied(ours["tar"], tmp_path / "same"), copied(ours["tar"], tmp_path / "other")
    again(other, classes={"cls": ["dog", "cat"]}, name="dogs")
    foreign = write_tar(tmp_path / "f.tar", [("f", [("cls", b"0")])])
    assert listed(ours["tar"], same).entries.values.classes == {"cls": ["cat", "dog", "emu"]}
    with pytest.raises(InvalidRequest, match=r"'cls'.*dogs \(dog, cat\).*tar: cat, dog, emu.*drop_fields=\('cls',\)"):
        listed(ours["tar"], other)
    assert listed(ours["tar"], other, without=["cls"]).entries.values.classes == {}
    listing = listed(ours["tar"], foreign)
    assert listing.entries.values.classes == {"cls": ["cat", "dog", "emu"]}
    assert any("'cls'" in note and "f.tar" in note for note in listing.notes)


def test_fingerprints_are_added(ours: dict[str, Path], tmp_path: Path) -> None:
    """The digest equals that of the same samples in one dataset; if a text may have been rounded, there is none."""
    source = manifest(tmp_path / "in", n=[1, 2, 3], text=["a", "b", "c"])
    second = make(source, tmp_path / "one-{0..}.tfrecord", field=("txt=text", "cls=n"))
    fingerprints = [int(parse_dataset(path.read_bytes(), "x").fingerprint[3:], 16) for path in (ours["tar"], second)]
    assert listed(ours["tar"], second).digest == sum(fingerprints) % 2**256
    assert listed(ours["tfrecord"]).digest is None
    assert listed(ours["tar"], to="tfrecord").digest == fingerprints[0]


def test_members_equal_the_listing(ours: dict[str, Path]) -> None:
    """Other tools read from the shards what is listed."""
    payloads = {f"{key}.{name}": data for key, fields in contents(listed(ours["tar"])) for name, data in fields}
    assert payloads == dict(members(*(path for path in shards(ours["tar"].parent) if path.suffix == ".tar")))
    assert all((ours["tar"].parent / sidecar_name(path.name)).exists() for path in shards(ours["tar"].parent))


def test_nodes_are_checked_before_reading(ours: dict[str, Path]) -> None:
    """Nodes are checked for the shards before numbers are read there, so a missing shard is not reported as damage."""
    pool = Asked()
    list_datasets([str(ours["tfrecord"])], pool, Observer(), to_format="tar")
    assert {*pool.asked} == {str(path) for path in shards(ours["tfrecord"].parent) if path.suffix == ".tfrecord"}


def test_started_workers_find_the_same(ours: dict[str, Path], tmp_path: Path) -> None:
    """Newly started workers find what this process finds."""
    shard = write_tar(tmp_path / "x.tar", [("x", [("n", b"7")])])
    with LocalPool(1, "spawn") as pool:
        listing = list_datasets([str(ours["tfrecord"]), str(shard)], pool, Observer(), to_format="tfrecord")
    assert contents(listing) == contents(listed(ours["tfrecord"], shard, to="tfrecord"))

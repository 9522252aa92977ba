"""`inspect` reports correct facts from the indexes, and no content it reads does harm."""

from __future__ import annotations

import gzip
import io
import json
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import CreateOptions, InspectOptions, ShardError, create, export, inspect
from shardtool.cli.inspect_views import sample_line, sample_text
from shardtool.cli.output import display_width, fit_line
from shardtool.cli.summary_text import summary_text
from shardtool.dataset.find import open_dataset
from shardtool.dataset.payload import feature_numbers
from shardtool.dataset.sidecar_read import parse_sidecar
from shardtool.dataset.stored import StoredShard
from shardtool.verbs.inspect.samples import find_sample, first_samples, iter_keys, view_sample
from tests import tfrecords
from tests.helpers import ENVIRONMENT, PHOTOS, members, read_tree, shards, shell, tool, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.dataset.shard_index import ShardIndex

TABLE = PHOTOS.parent / "photos.csv"
HOSTILE = ("../out", "/absolute", "a/../../out", "a//b", "n" * 300)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, ending: str) -> Path:
    """Return a dataset of 98 photographs with classes, in several shards."""
    folder = tmp_path_factory.mktemp(f"photos-{ending}")
    create(PHOTOS, f"{folder}/out-{{000..}}.{ending}", CreateOptions(max_size="600kB", label_from_folder=True))
    return folder


@pytest.fixture(scope="module")
def tabled(tmp_path_factory: pytest.TempPathFactory, ending: str) -> Path:
    """Return a dataset created from a manifest, with metadata."""
    folder = tmp_path_factory.mktemp(f"tabled-{ending}")
    options = CreateOptions(max_size="1MB", field=("cls=bi", "w=width"), classes=("cls",), probe=True)
    create(TABLE, f"{folder}/out-{{000..}}.{ending}", options)
    return folder


def foreign(dataset: Path, folder: Path) -> Path:
    """Return a folder with the same shards, without sidecars."""
    folder.mkdir()
    for shard in shards(dataset):
        shutil.copy(shard, folder)
    return folder


def payloads(folder: Path) -> dict[str, list[bytes]]:
    """Map fields to payloads, read without shardtool; numbers as text."""
    found: dict[str, list[bytes]] = {}
    for name, data in members(*shards(folder)):
        found.setdefault(name.rpartition("/")[2].partition(".")[2], []).append(data)
    return found


def tar_of(path: Path, files: list[tuple[str, bytes]]) -> Path:
    """Write a tar with `tarfile`, with any member names."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_totals_fields_and_labels_match_the_shards(photos: Path) -> None:
    """Every count and size equals what another reader finds in the shards."""
    summary, held = inspect(photos), payloads(photos)
    assert (summary.samples, summary.shard_sizes.count) == (98, len(shards(photos)))
    assert summary.size == sum(path.stat().st_size for path in shards(photos))
    assert summary.complete is True
    assert summary.problems == ()
    for name in ("jpg", "json"):
        lengths = sorted(map(len, held[name]))
        size = summary.fields[name].size
        assert (size.smallest, size.median, size.largest) == (lengths[0], lengths[49], lengths[-1])
        assert (size.total, summary.fields[name].samples) == (sum(lengths), 98)
    classes = json.loads((photos / "out.json").read_bytes())["shardtool"]["classes"]["cls"]
    numbers = Counter(map(int, held["cls"]))
    assert {(one.name, one.number, one.samples) for one in summary.labels["cls"].values} == {
        (classes[number], number, count) for number, count in numbers.items()
    }
    assert not summary.labels["cls"].sampled
    assert summary.images["jpg"].modes == {"RGB": 70, "L": 28}


def test_labels_are_sorted_by_frequency_and_name(tmp_path: Path) -> None:
    """Labels are sorted by frequency, then by name, with numbers in numeric order."""
    names = [f"c{number}" for number in range(12)]
    rows = [{"key": f"{name}-{at}", "label": name, "n": name[1:]} for name in names for at in range(3)]
    rows.append({"key": "more", "label": "c7", "n": "7"})
    rows.sort(key=lambda row: crc32c.crc32c(row["key"].encode()))  # in no order
    options = CreateOptions(field=("cls=label", "label=n"), classes=("cls",), max_count=5, workers=0, meta="label")
    create(pa.Table.from_pylist(rows), f"{tmp_path}/o-{{0..}}.tar", options)
    found = inspect(tmp_path).labels
    in_order = ["c7", *(name for name in names if name != "c7")]
    assert [one.name for one in found["cls"].values] == in_order
    assert [one.name for one in found["label"].values] == [name[1:] for name in in_order]
    for shard in tmp_path.glob("*.index"):  # then labels are read, and counted one by one
        shard.unlink()
    (tmp_path / "o.json").unlink()
    assert [one.name for one in inspect(tmp_path).labels["label"].values] == [name[1:] for name in in_order]


def test_metadata_columns_replace_reading_shards(tabled: Path, tmp_path: Path) -> None:
    """With metadata, image sizes, splits and labels need no shard; missing shards are reported."""
    whole = inspect(tabled)
    assert whole.images["width, height"].modes == {"RGB": 70, "L": 28}
    assert whole.splits == {"train": 74, "val": 14, "test": 10}
    assert {one.name: one.samples for one in whole.labels["bi"].values} == {"living": 50, "thing": 48}
    assert (whole.columns["width"].smallest, whole.columns["width"].largest) == (144, 532)
    copy = tmp_path / "copy"
    shutil.copytree(tabled, copy)
    for shard in shards(copy):
        shard.unlink()
    bare = inspect(copy / "out.json")
    assert (bare.complete, bare.splits, bare.images) == (False, whole.splits, whole.images)
    assert Counter(one.code for one in bare.problems)["missing-shard"] == len(shards(tabled))


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_shards_without_sidecars_are_scanned(photos: Path, tmp_path: Path, packed: str) -> None:
    """A scan finds the same as the index; compressed shards are read in sequence."""
    folder = foreign(photos, tmp_path / "foreign")
    for shard in shards(folder) if packed else ():
        data = shard.read_bytes()
        packer = gzip.compress(data) if packed == ".gz" else pa.compress(data, codec="zstd", asbytes=True)
        shard.with_name(shard.name + packed).write_bytes(packer)
        shard.unlink()
    ours, theirs = inspect(photos), inspect(folder)
    assert (theirs.complete, theirs.dataset_file, theirs.looked.walked) == (None, None, ours.shard_sizes.count)
    assert theirs.fields == ours.fields
    assert theirs.shard_samples == ours.shard_samples
    assert theirs.images == ours.images
    counts = {one.number: one.samples for one in ours.labels["cls"].values}
    assert {one.number: one.samples for one in theirs.labels["cls"].values} == counts


def test_damage_is_listed_and_the_rest_is_shown(photos: Path, tmp_path: Path) -> None:
    """A missing or damaged sidecar or a truncated shard is a problem, and the exit code is 0."""
    copy = tmp_path / "copy"
    shutil.copytree(photos, copy)
    names = [path.name for path in shards(copy)]
    (copy / "out-000.index").unlink()
    (copy / "out-001.index").write_bytes(b"PAR1" * 500)
    cut = copy / names[2]
    cut.write_bytes(cut.read_bytes()[:-700])
    ran = typed("inspect", copy, "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["complete"], document["looked"]["walked"]) == (0, False, 3)
    codes = {(one["code"], one["where"].rpartition("/")[2]) for one in document["problems"]}
    assert codes >= {
        ("missing-sidecar", "out-000.index"), ("damaged-sidecar", "out-001.index"), ("sidecar-size", "out-001.index"),
        ("shard-size", names[2]), ("damaged-shard", names[2]),
    }  # fmt: skip
    assert f"{names[2]}" in typed("inspect", copy).out


def test_an_unreadable_dataset_is_an_error(photos: Path, tmp_path: Path) -> None:
    """A missing dataset exits with 2; an unreadable one with 4."""
    assert typed("inspect", tmp_path / "nowhere").code == 2
    assert typed("inspect", tmp_path).code == 2
    (tmp_path / "out.json").write_bytes((photos / "out.json").read_bytes())
    assert typed("inspect", tmp_path / "out.json", "--json").code == 4
    (tmp_path / "one.tar").write_bytes(b"no tar" * 1000)
    ran = typed("inspect", tmp_path / "one.tar", "--show", "0", "--json")
    assert (ran.code, json.loads(ran.out)["error"]["code"]) == (4, "corrupt-shard")


def test_the_reason_names_an_unreadable_shard(photos: Path, tmp_path: Path) -> None:
    """If no listed shard can be read, the message names one of them, and not an additional shard."""
    (tmp_path / "out.json").write_bytes((photos / "out.json").read_bytes())
    first = shards(photos)[0]
    for path in shards(photos):
        (tmp_path / path.name).symlink_to("nowhere")
    (tmp_path / f"out-900{first.suffix}").write_bytes(b"")
    with pytest.raises(ShardError, match=f"no shard can be read: .*{first.name}: cannot be opened"):
        inspect(str(tmp_path / f"out-{{000..}}{first.suffix}"))


def test_interleaved_samples_are_reported(tmp_path: Path) -> None:
    """If the fields of a sample are not adjacent, readers see several samples, and `inspect` reports it."""
    shard = tar_of(tmp_path / "x.tar", [("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")])
    summary = inspect(shard)
    assert (summary.samples, [one.code for one in summary.problems]) == (3, ["torn-samples"])


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the dataset file of 140,000 tiny samples in one shard, more than one row group of a sidecar."""
    folder, number = tmp_path_factory.mktemp("many"), range(140_000)
    table = pa.table({
        "key": [f"{at:06}" for at in number], "label": [("ant", "bee")[at % 2] for at in number],
        "place": [f"p{at // 50_000}" for at in number], "w": pa.array(number),
    })  # fmt: skip
    options = CreateOptions(key="key", field=("cls=label",), classes=("cls",), meta="label,place,w", workers=0)
    create(table, f"{folder}/out-{{0..}}.tfrecord", options)
    return folder / "out.json"


@pytest.mark.slow
def test_a_sidecar_of_several_row_groups(many: Path) -> None:
    """A sidecar with several row groups is read completely, and its shard is not scanned."""
    summary = inspect(many)
    assert (summary.samples, summary.problems, summary.looked.walked) == (140_000, (), 0)
    assert [(one.name, one.samples) for one in summary.labels["cls"].values] == [("ant", 70_000), ("bee", 70_000)]
    places = [(one.value, one.samples) for one in summary.columns["place"].values]
    assert places == [("p0", 50_000), ("p1", 50_000), ("p2", 40_000)]
    assert (summary.columns["w"].largest, summary.fields["cls"].size.count) == (139_999, 140_000)
    dataset = open_dataset(many)
    assert [*iter_keys([dataset])] == [f"{at:06}" for at in range(140_000)]
    for number in (0, 131_071, 131_072, 139_999):
        sample = find_sample([dataset], f"{number:06}")
        assert (sample.number, sample.metadata["w"], view_sample(sample).fields[0].value) == (
            number,
            number,
            number % 2,
        )
    assert [one.key for one in first_samples([dataset], 2)] == ["000000", "000001"]
    raw, shard = (many.parent / "out-0.index").read_bytes(), many.parent / "out-0.tfrecord"
    rows = parse_sidecar(raw, "out-0.index", shard.stat().st_size)  # what `verify` and `reshard` go by
    assert rows.all_keys() == [b"%06d" % at for at in range(140_000)]
    assert rows.crcs is not None
    assert len(rows.crcs) == 280_000
    assert (len(rows.offsets), rows.sizes.sum()) == (280_000, shard.stat().st_size)
    assert len(open_dataset(many).shards[0].index()) == 140_000  # what `index` and the page go by
    export(many, ["dali-tfrecord"])
    assert (many.parent / "out-0.idx").read_bytes().count(b"\n") == 140_000


def test_columns_may_differ_between_shards(tmp_path: Path) -> None:
    """A column that some sidecars lack, or whose type differs, is reported as such."""
    columns = [[None, None], [1, 2], [1.5, -2.0], ["a", "b"], [datetime(2020, 1, 1), datetime(2021, 1, 1)], None]  # noqa: DTZ001
    for number, values in enumerate(columns):
        table = {"key": [f"{number}{at}" for at in range(2)], "txt": ["x", "y"], "n": [number, 10 + number]}
        more = {} if values is None else {"w": values}
        create(pa.table(table | more), f"{tmp_path}/one/x-{number}.tar", CreateOptions(field=("txt=txt",), workers=0))
        (tmp_path / "one" / f"x-{number}.json").unlink()
    summary = inspect(tmp_path / "one")
    assert (summary.samples, summary.problems) == (12, ())
    found = summary.columns["w"]
    assert found.type == "int64 or double or string or timestamp[us]"
    assert (found.filled, found.smallest, found.largest, found.mean) == (8, None, None, None)
    found = summary.columns["n"]
    assert (found.type, found.filled, found.smallest, found.largest) == ("int64", 12, 0, 15)
    first = shutil.copytree(tmp_path / "one", tmp_path / "two") / "x-2.tar"
    for path in first.parent.iterdir():
        if path.stem > "x-2":
            path.unlink()
    found = inspect(first.parent).columns["w"]
    assert (found.type, found.smallest, found.largest, found.mean) == ("int64 or double", -2, 2, 0.625)


def test_columns_of_lists(tmp_path: Path) -> None:
    """A list column has counts, lengths and an element type; empty and nested lists, structs and nulls count."""
    columns = {
        "emb": pa.array([[0.5] * 3] * 4, pa.list_(pa.float32(), 3)),
        "tags": pa.array([["a", "b"], [], None, ["c"]]),
        "none": pa.array([[], [], [], []], pa.list_(pa.int32())),
        "boxes": pa.array([[[1, 2]], [], [[], [3]], [[4]] * 5]),
        "place": pa.array([{"x": 1}, None, {"x": None}, {"x": 2}]),
        "null": pa.array([None] * 4, pa.list_(pa.int32())),
    }
    table = pa.table({"key": list("abcd"), "txt": list("pqrs"), **columns})
    options = CreateOptions(field=("txt=txt",), max_count=2, workers=0)
    create(table, tmp_path / "x-{0..}.tar", options)
    summary = inspect(tmp_path / "x.json")
    lengths = {name: summary.columns[name].lengths for name in columns}
    assert {name: summary.columns[name].filled for name in columns} == {
        "emb": 4, "tags": 3, "none": 4, "boxes": 4, "place": 3, "null": 0,
    }  # fmt: skip
    assert {name: one and (one.smallest, one.median, one.largest) for name, one in lengths.items()} == {
        "emb": (3, 3, 3), "tags": (0, 1, 2), "none": (0, 0, 0), "boxes": (0, 2, 5), "place": None, "null": None,
    }  # fmt: skip
    assert [summary.columns[name].element for name in ("emb", "tags", "none", "place")] == [
        "float", "string", "int32", None,
    ]  # fmt: skip
    lines = [" ".join(line.split()) for line in summary_text(summary, 100).splitlines()]
    assert "boxes list of list 4 - lengths 0 to 5, median 2" in lines
    assert "emb list of float 4 - length 3" in lines
    assert json.loads(json.dumps(summary.to_json()))["columns"]["tags"]["lengths"]["total"] == 3
    sample = find_sample([open_dataset(tmp_path / "x.json")], "c")
    assert sample.metadata == {"txt": "r", **{name: values[2].as_py() for name, values in columns.items()}}
    assert "boxes  [[], [3]]" in sample_text(view_sample(sample), 80)


def test_list_columns_may_change_their_type(tmp_path: Path) -> None:
    """A list column in some sidecars counts all values; several element types are all named."""
    columns = [[[1], [2, 3]], [["a"], []], ["x", "y"], [None, None]]
    for number, values in enumerate(columns):
        table = pa.table({"key": [f"{number}{at}" for at in range(2)], "txt": ["x", "y"], "w": values})
        create(table, f"{tmp_path}/x-{number}.tar", CreateOptions(field=("txt=txt",), workers=0))
        (tmp_path / f"x-{number}.json").unlink()
    found = inspect(tmp_path).columns["w"]
    assert (found.filled, found.distinct, found.element, found.values) == (6, None, "int64 or string", ())
    assert found.lengths is not None
    assert (found.lengths.count, found.lengths.total) == (4, 4)


def _command(dataset: Path, name: str, occurrence: int = 0) -> list[str]:
    """Return the command line that `inspect` prints under a name, without the tool."""
    rows = [line[2:].split(None, 1) for line in summary_text(inspect(dataset), 2000).splitlines()]
    found = [row[1] for row in rows if len(row) > 1 and row[0] == name]
    return shlex.split(found[occurrence].partition(": ")[2])


def test_the_creation_is_shown_as_a_command_line(tmp_path: Path) -> None:
    """For each verb and append, `inspect` prints a command line that recreates the dataset."""
    table = "key,label,txt\n" + "".join(f"{at},{'ab'[at % 2]},t{at}\n" for at in range(9))
    write_tree(tmp_path, {"one.csv": table.encode(), "two.csv": b"key,label,txt\nx,b,tx\ny,a,ty\n"})
    asked = ["--field", "cls=label", "--field", "txt=txt", "--classes", "cls"]
    assert typed("create", "one.csv", "one-{0..}.tar", *asked, cwd=tmp_path).code == 0
    assert _command(tmp_path / "one.json", "created") == ["create", "one.csv", *asked]
    assert typed("create", "two.csv", "two-{0..}.tar", *asked, cwd=tmp_path).code == 0
    asked = ["--shuffle", "--where", "label != 'c'", "--sample", "0.9", "--fields", "txt,cls",
             "--fields", "caption=txt"]  # fmt: skip
    sources = ["one.json", "two.json"]
    assert typed("reshard", *sources, "new-{0..}.tar", *asked, cwd=tmp_path).code == 0
    command = _command(tmp_path / "new.json", "created")
    assert (command[:3], sorted(command[3:])) == (["reshard", "one", "two"], sorted(asked))
    (tmp_path / "again").mkdir()
    again = ["reshard", *(f"../{name}.json" for name in command[1:3]), "new-{0..}.tar", *command[3:]]
    assert typed(*again, cwd=tmp_path / "again").code == 0
    assert (tmp_path / "again" / "new.json").read_bytes() == (tmp_path / "new.json").read_bytes()
    create(tmp_path / "two.csv", f"{tmp_path}/one-{{0..}}.tar", CreateOptions(field=("cls=label", "txt=txt"),
           classes=("cls",), append=True, workers=0))  # fmt: skip
    assert _command(tmp_path / "one.json", "appended")[:2] == ["create", "two.csv"]
    assert _command(tmp_path / "one.json", "created")[:2] == ["create", "one.csv"]


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
def test_keys_prints_one_key_per_line(photos: Path, tmp_path: Path) -> None:
    """Every key is printed in dataset order; a closed pipe is not an error."""
    expected = [name.partition(".")[0] for name, _ in members(*shards(photos)) if name.endswith(".jpg")]
    assert typed("inspect", photos, "--keys").out.splitlines() == expected
    assert json.loads(typed("inspect", photos, "--keys", "--json").out) == {"keys": expected}
    assert list(iter_keys([open_dataset(foreign(photos, tmp_path / "f"))])) == expected
    ran = shell(f"$T inspect {photos} --keys | head -n 1", tmp_path)
    assert (ran.code, ran.out, ran.err) == (0, expected[0] + "\n", "")


def test_a_key_is_the_same_with_and_without_a_sidecar(tmp_path: Path) -> None:
    """A key with a per cent sign, as from `--portable`, is the same in a scan and in the sidecar."""
    source = write_tree(tmp_path / "source", {"a b.txt": b"1"})
    create(source, f"{tmp_path}/out-{{0..}}.tar", CreateOptions(portable=True))
    with_index = list(iter_keys([open_dataset(tmp_path / "out.json")]))
    (tmp_path / "out-0.index").unlink()
    assert list(iter_keys([open_dataset(tmp_path / "out.json")])) == with_index == ["a%20b"]


def test_a_sample_is_shown_by_key_or_number(photos: Path) -> None:
    """Key and number select the same sample, whose fields match the source."""
    found = json.loads(typed("inspect", photos, "--show", "cat/cat-0003", "--json").out)["samples"][0]
    again = json.loads(typed("inspect", photos, "--show", str(found["number"]), "--json").out)["samples"][0]
    assert again == found
    fields = found["fields"]
    assert fields["json"]["value"] == json.loads((PHOTOS / "cat/cat-0003.json").read_text())
    assert (fields["cls"]["value"], fields["cls"]["label"]) == (2, "cat")
    size = {name: fields["json"]["value"][name] for name in ("width", "height")}
    assert {name: fields["jpg"]["image"][name] for name in ("width", "height")} == size
    unknown = typed("inspect", photos, "--show", "98")
    assert (unknown.code, "a number below 98" in unknown.err) == (2, True)


def test_a_key_takes_precedence_over_a_number(tmp_path: Path) -> None:
    """`--show 1` selects the sample with the key 1, if there is one."""
    shard = tar_of(tmp_path / "x.tar", [("7.txt", b"zero"), ("8.txt", b"one"), ("1.txt", b"two")])
    dataset = open_dataset(shard)
    assert [find_sample([dataset], key).key for key in ("1", "0", "2", "8")] == ["1", "7", "1", "8"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_key_ranges_limit_the_indexes_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shuffle: bool) -> None:
    """If shards are in key order, finding a sample reads one index; otherwise the sample is still found."""
    write_tree(tmp_path / "in", {f"{at:02}.txt": b"%d" % at for at in range(20)})
    options = CreateOptions(max_count=2, workers=0, shuffle=shuffle)
    create(tmp_path / "in", f"{tmp_path}/x-{{00..}}.tar", options)
    dataset, looked_at = open_dataset(tmp_path / "x.json"), list[str]()
    order = [*iter_keys([dataset])]

    def read(shard: StoredShard, **how: Any) -> ShardIndex:
        looked_at.append(shard.name)
        return index_of(shard, **how)

    index_of = StoredShard.index
    monkeypatch.setattr(StoredShard, "index", read)
    for key in ("00", "13", "19"):
        looked_at.clear()
        found = find_sample([dataset], key)
        assert (found.key, found.number, view_sample(found).fields[0].value) == (key, order.index(key), f"{int(key)}")
        assert len({*looked_at}) == 1 or shuffle
    for missing in ("", "13a", "xx"):
        with pytest.raises(ShardError, match="no such sample"):
            find_sample([dataset], missing)


def test_extract_restores_the_source(photos: Path, tmp_path: Path) -> None:
    """Extracted files equal the source byte for byte; numbers of a TFRecord are text again."""
    ran = typed("inspect", photos, "--head", "98", "--extract", tmp_path / "x")
    assert (ran.code, len(ran.out.splitlines())) == (0, 98)
    expected = {name: data for name, data in read_tree(PHOTOS).items() if name.endswith((".jpg", ".json"))}
    found = read_tree(tmp_path / "x")
    assert {name: data for name, data in found.items() if not name.endswith(".cls")} == expected
    assert found["cat/cat-0001.cls"] == b"2"


def test_extract_replaces_files_only_with_overwrite(tmp_path: Path) -> None:
    """Existing files, folders and links are kept; `--overwrite` replaces files and follows no link."""
    shard = tar_of(tmp_path / "x.tar", [("a/b.txt", b"new")])
    outside, into = write_tree(tmp_path / "outside", {"kept": b"old"}), tmp_path / "into"
    write_tree(into, {"a/b.txt": b"old"})
    refused = typed("inspect", shard, "--show", "0", "--extract", into, "--json")
    assert (refused.code, json.loads(refused.out)["error"]["code"]) == (5, "output-exists")
    assert read_tree(into) == {"a/b.txt": b"old"}
    (into / "a/b.txt").unlink()
    (into / "a/b.txt").symlink_to(outside / "kept")
    assert typed("inspect", shard, "--show", "0", "--extract", into).code == 5
    assert typed("inspect", shard, "--show", "0", "--extract", into, "--overwrite").code == 0
    assert (read_tree(outside), (into / "a/b.txt").is_symlink()) == ({"kept": b"old"}, False)
    shutil.rmtree(into / "a")
    (into / "a").symlink_to(outside)
    assert typed("inspect", shard, "--show", "0", "--extract", into, "--overwrite").code == 5
    assert read_tree(outside) == {"kept": b"old"}


@pytest.mark.parametrize("name", HOSTILE)
def test_extract_never_writes_outside_its_folder(tmp_path: Path, name: str) -> None:
    """A key that leads outside the folder, or is not a file name, is an error, and nothing is written."""
    shard = tar_of(tmp_path / "x.tar", [(f"{name}.txt", b"evil")])
    before = read_tree(tmp_path)
    ran = typed("inspect", shard, "--show", "0", "--extract", tmp_path / "deep" / "into")
    assert ran.code == 4
    assert read_tree(tmp_path) == before


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    """Control characters in keys, fields, texts, JSON and labels are escaped in every view."""
    steer = "\x1b[31m\x9b2J\u202e"
    body = json.dumps({steer: steer}, ensure_ascii=False).encode()
    files = [(f"k{steer}.json", body), (f"k{steer}.txt", steer.encode()), (f"k{steer}.cls", steer.encode())]
    shard = tar_of(tmp_path / "x.tar", [*files, (f"k{steer}.x{steer}", b"1")])
    for words in ([], ["--head", "1"], ["--show", "0"], ["--keys"]):
        ran = typed("inspect", shard, *words)
        assert ran.code == 0
        assert not {"\x1b", "\x9b", "\u202e"} & set(ran.out)


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
@pytest.mark.parametrize("options", [("--show", "1", "--head", "2"), ("--extract", "x"), ("--overwrite",)])
def test_conflicting_options_are_refused(photos: Path, options: tuple[str, ...]) -> None:
    """Conflicting options are a usage error."""
    assert typed("inspect", photos, *options).code == 2


def test_label_counts_are_shown_in_a_narrow_terminal(tmp_path: Path) -> None:
    """The counts follow even very long label names."""
    files = [(f"{at}.cls", b"n" * 50 + b"%d" % (at % 3)) for at in range(12)]
    lines = summary_text(inspect(tar_of(tmp_path / "x.tar", files)), 40).splitlines()
    assert sum("4   33.3%  " in line for line in lines) == 3


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
def test_text_fits_the_terminal(tabled: Path) -> None:
    """No line is wider than the terminal, except the fingerprint, which must be copied whole."""
    summary = inspect(tabled)
    for room in (50, 80, 120):
        lines = summary_text(summary, room).splitlines()
        assert [line for line in lines if display_width(line) > max(room, 66) and "fingerprint" not in line] == []
        for sample in first_samples([open_dataset(tabled)], 3):
            assert display_width(sample_line(view_sample(sample), room)) <= room
            assert max(map(display_width, sample_text(view_sample(sample), room).splitlines())) <= room


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
def test_output_works_in_a_terminal_without_unicode(photos: Path) -> None:
    """Bars and names are written in the encoding of the terminal."""
    ran = tool("inspect", photos, PYTHONIOENCODING="ascii")
    assert (ran.code, ran.out.isascii(), "##" in ran.out) == (0, True, True)


def test_the_seed_decides_which_samples_are_inspected(photos: Path) -> None:
    """The same seed inspects the same samples, at most the requested number."""
    first, again, other = (inspect(photos, InspectOptions(looks=20, seed=seed)).images["jpg"] for seed in (1, 1, 2))
    assert first == again != other
    assert first.images == 20
    assert inspect(photos, InspectOptions(looks=0)).images == {}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
def test_a_damaged_footer_does_not_abort_the_process(photos: Path, tmp_path: Path) -> None:
    """A flipped byte of a sidecar is reported as damage and does not abort pyarrow."""
    data = bytearray((photos / "out-000.index").read_bytes())
    size = int.from_bytes(data[-8:-4], "little")
    shard = shards(photos)[0]
    program = (
        "import sys\nfrom shardtool import InspectOptions, inspect\n"
        "path, shard, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])\n"
        "raw = open(path, 'rb').read()\n"
        "for at in range(first, last, 5):\n"
        "    with open(path, 'wb') as file:\n"
        "        file.write(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1:])\n"
        "    inspect(shard, InspectOptions(looks=0))\n"
    )
    copy = shutil.copy(shard, tmp_path)
    index = tmp_path / "out-000.index"
    index.write_bytes(data)
    command = [sys.executable, "-c", program, str(index), copy, str(len(data) - 8 - size), str(len(data))]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@settings(max_examples=15)
@given(data=st.data())
def test_any_damage_gives_a_result_or_a_shard_error(
    tabled: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """For any changed byte, `inspect` returns a result or raises a `ShardError`."""
    folder = tmp_path_factory.mktemp("damaged") / "copy"
    shutil.copytree(tabled, folder)
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(raw), 9000) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(raw)
    with suppress(ShardError):
        json.dumps(inspect(folder, InspectOptions(looks=10)).to_json(), allow_nan=False)
    with suppress(ShardError):
        for sample in first_samples([open_dataset(folder)], 3):
            json.dumps(view_sample(sample).to_json(), allow_nan=False)
    shutil.rmtree(folder)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_numbers_are_read_packed_or_unpacked(numbers: list[int]) -> None:
    """The numbers of a feature are the same in both encodings of protobuf."""
    packed = b"".join(map(tfrecords.varint, numbers))
    single = b"".join(b"\x08" + tfrecords.varint(number) for number in numbers)
    assert feature_numbers(packed, "int64", len(numbers)) == numbers
    assert feature_numbers(single, "int64", len(numbers)) == numbers or len(numbers) == 1


@given(st.text(), st.integers(4, 60))
def test_a_line_fits_the_given_width(text: str, room: int) -> None:
    """No text is wider than the given columns, or contains a line break."""
    shown: Any = fit_line(text, room)
    assert display_width(shown) <= room
    assert len(shown.splitlines()) <= 1


# Several datasets.


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
def test_several_datasets_are_summarized(photos: Path, tabled: Path) -> None:
    """The summary of several datasets contains each summary unchanged, and sums."""
    both, alone = inspect([photos / "out.json", tabled]), [inspect(photos), inspect(tabled)]
    assert [*both.datasets] == alone
    assert (both.samples, both.size) == (196, sum(one.size for one in alone))
    assert both.shard_sizes.count == sum(one.shard_sizes.count for one in alone)
    assert (both.complete, both.problems) == (True, ())
    ran = typed("inspect", photos, tabled, "--json")
    document = json.loads(ran.out)
    assert document == json.loads(json.dumps(both.to_json()))
    assert document["datasets"] == [json.loads(typed("inspect", one, "--json").out) for one in (photos, tabled)]
    assert "datasets" not in document["datasets"][0]
    text = typed("inspect", photos, tabled).out
    assert text.splitlines()[-1].startswith("2 datasets: 196 samples in ")


@pytest.mark.parametrize(
    "words", [("--html", "-"), ("--contact-sheet", "-"), ("--html", "s3://b/x/"), ("--html", "x/")]
)
@pytest.mark.parametrize("ending", ["tar"], indirect=True)
def test_a_report_is_not_written_to_standard_output(words: tuple[str, str], photos: Path, tmp_path: Path) -> None:
    """A page or contact sheet is written to a local file, not to standard output or a file named `-`."""
    ran = typed("inspect", photos, *words, cwd=tmp_path)
    assert (ran.code, ran.out, [*tmp_path.iterdir()]) == (2, "", [])
    assert ran.err.startswith(f"shardtool: {words[1]}: not a local file name; expected a file name such as report.")


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
def test_samples_of_several_datasets_are_numbered_continuously(photos: Path, tabled: Path, tmp_path: Path) -> None:
    """Keys and numbers continue from dataset to dataset; a contact sheet accepts one dataset only."""
    opened = [open_dataset(photos), open_dataset(tabled)]
    expected = [key for one in opened for key in iter_keys([one])]
    assert list(iter_keys(opened)) == expected
    assert typed("inspect", photos, tabled, "--keys").out.splitlines() == expected
    assert [one.key for one in first_samples(opened, 120)] == expected[:120]
    for number in (0, 97, 98, 195):
        found = find_sample(opened, str(number))
        assert (found.key, found.number) == (expected[number], number)
    assert find_sample(opened, "1004").number == 98 + 3
    ran = typed("inspect", photos, tabled, "--html", tmp_path / "x.html", "--contact-sheet", tmp_path / "x.png")
    assert (ran.code, "2 datasets" in ran.err, [*tmp_path.iterdir()]) == (2, True, [])

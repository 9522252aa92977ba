"""`index` replaces a file only if it was read, is wrong, and the user requests it.

A dataset file above its shards works with every verb, and never refers outside its folder.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtool import (
    CorruptShard,
    CreateOptions,
    ExportOptions,
    IndexOptions,
    InvalidRequest,
    OutputExists,
    VerifyOptions,
    create,
    index,
    inspect,
    reshard,
    verify,
)
from shardtool.dataset.dataset_file import parse_dataset
from shardtool.request.create_options import ReshardOptions
from shardtool.verbs.export import export
from tests.helpers import existing, flip, identity, members, read_tree, shards, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ONE = IndexOptions(workers=0)
READ = IndexOptions(workers=0, checksum=True)


@pytest.fixture(scope="module")
def packed(ending: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a dataset with three shards and metadata in sidecars only, which tests do not change."""
    table = pa.table(
        {"key": [f"k{at}" for at in range(6)], "txt": [f"{at}" * at for at in range(6)], "score": range(6)}
    )
    options = CreateOptions(field=("txt=txt",), meta="score", max_count=2, workers=0)
    folder = tmp_path_factory.mktemp("packed")
    create(table, f"{folder}/x-{{0..}}.{ending}", options)
    return folder


@pytest.fixture
def dataset(packed: Path, tmp_path: Path) -> Path:
    """Return a copy."""
    return shutil.copytree(packed, tmp_path / "ds")


def _scores(folder: Path) -> list[int]:
    return [row["score"] for path in sorted(folder.glob("*.index")) for row in pq.read_table(path).to_pylist()]


def _wids(folder: Path, *urls: str) -> bytes:
    document = {"wids_version": 1, "shardlist": [{"url": url, "nsamples": 2, "md5sum": "0"} for url in urls]}
    write_tree(folder, {"out.json": json.dumps(document).encode()})
    return (folder / "out.json").read_bytes()


def _damage(path: Path) -> None:
    flip(path, 50)


def _of_another_shard(path: Path) -> None:
    shutil.copy(path.parent / "x-0.index", path)


def _with_other_places(path: Path) -> None:
    from shardtool.dataset.sidecar_read import parse_facts
    from shardtool.dataset.sidecar_write import encode_sidecar_table

    data = path.read_bytes()
    table = pq.read_table(path).replace_schema_metadata(None).drop_columns(["__shard__"])
    path.write_bytes(encode_sidecar_table(table.slice(0, 1), parse_facts(data, "x")))


@pytest.mark.parametrize("spoil", [_damage, _of_another_shard, _with_other_places])
@pytest.mark.parametrize("options", [ONE, READ])
def test_a_wrong_sidecar_is_kept(spoil: Callable[[Path], None], options: IndexOptions, dataset: Path) -> None:
    """A wrong sidecar is named and kept; `overwrite` recreates it and lists what is lost."""
    spoil(dataset / "x-1.index")
    before = identity(dataset)
    with pytest.raises(OutputExists, match=r"x-1\.index.*overwrite=True.*loses"):
        index(dataset, options)
    assert identity(dataset) == before
    result = index(dataset, replace(options, overwrite=True))
    assert (result.kept, [note for note in result.notes if "x-1.index" in note and "lost" in note]) == (
        2,
        [*result.notes],
    )
    assert verify(dataset, VerifyOptions(workers=0)).sound


def test_all_wrong_sidecars_are_listed_at_once(dataset: Path) -> None:
    """One message lists all wrong sidecars and the columns that only they contain."""
    _of_another_shard(dataset / "x-1.index")
    _of_another_shard(dataset / "x-2.index")
    with pytest.raises(OutputExists, match=r"x-1\.index .*x-2\.index .*score"):
        index(dataset, ONE)


def test_missing_sidecars_are_written(dataset: Path) -> None:
    """A missing sidecar is written without `overwrite`, even if another one is wrong."""
    (dataset / "x-0.index").unlink()
    _damage(dataset / "x-1.index")
    with pytest.raises(OutputExists):
        index(dataset, ONE)
    assert (dataset / "x-0.index").exists()


def test_lost_columns_of_missing_sidecars_are_named(dataset: Path) -> None:
    """If a missing sidecar is written again, a note names the columns that the shard does not contain."""
    assert not index(dataset, ONE).notes
    (dataset / "x-1.index").unlink()
    (note,) = index(dataset, ONE).notes
    assert note.startswith("x-1.index: written without the columns ")
    assert "score" in note


@pytest.mark.parametrize("name", ["x-1.index", "x.json"])
@pytest.mark.parametrize("options", [ONE, replace(ONE, overwrite=True)])
def test_unreadable_files_are_kept(name: str, options: IndexOptions, dataset: Path) -> None:
    """A FIFO, a folder or a broken link cannot be checked, so it is named and kept, also with `overwrite`."""
    (dataset / name).unlink()
    places: list[Callable[[Path], object]] = [os.mkfifo, os.mkdir, lambda path: os.symlink("nothing", path)]
    for place in places:
        place(dataset / name)
        before = identity(dataset)
        with pytest.raises(OutputExists, match=name):
            index(shards(dataset), options)
        assert identity(dataset) == before
        (dataset / name).rmdir() if (dataset / name).is_dir() else (dataset / name).unlink()


def test_checksums_are_added_and_metadata_is_kept(dataset: Path) -> None:
    """`--checksum` adds checksums to a matching sidecar without `overwrite`, and nothing is lost."""
    from shardtool.dataset.sidecar_read import parse_facts
    from shardtool.dataset.sidecar_schema import SCHEMA_WITHOUT_CRC
    from shardtool.dataset.sidecar_write import encode_sidecar_table

    whole = read_tree(dataset)
    rows = [pq.read_table(path).to_pylist() for path in sorted(dataset.glob("*.index"))]
    for path in dataset.glob("*.index"):
        fact, table = (
            parse_facts(path.read_bytes(), "x"),
            pq.read_table(path).replace_schema_metadata(None).drop_columns(["__shard__"]),
        )
        unread = SCHEMA_WITHOUT_CRC.field("__fields__")
        fields = table.column("__fields__").to_pylist()
        unknown = pa.array([[{**item, "crc32c": None} for item in row] for row in fields], unread.type)
        path.write_bytes(encode_sidecar_table(table.set_column(3, unread, unknown), fact._replace(crc=None)))
    (dataset / "x.json").unlink()
    assert index(dataset, ONE).kept == 3
    assert index(dataset, READ).kept == 0
    assert [pq.read_table(path).to_pylist() for path in sorted(dataset.glob("*.index"))] == rows
    assert {name: data for name, data in read_tree(dataset).items() if name.endswith(".index")} == {
        name: data for name, data in whole.items() if name.endswith(".index")
    }
    assert verify(dataset, VerifyOptions(workers=0)).sound


def test_a_wrong_checksum_in_a_sidecar(dataset: Path) -> None:
    """`--checksum` detects a sidecar whose checksum differs from the payload."""
    from shardtool.dataset.sidecar_read import parse_facts
    from shardtool.dataset.sidecar_schema import SIDECAR_SCHEMA
    from shardtool.dataset.sidecar_write import encode_sidecar_table

    path = dataset / "x-1.index"
    fact, table = (
        parse_facts(path.read_bytes(), "x"),
        pq.read_table(path).replace_schema_metadata(None).drop_columns(["__shard__"]),
    )
    fields = table.column("__fields__").to_pylist()
    fields[0][0]["crc32c"] ^= 1
    column = SIDECAR_SCHEMA.field("__fields__")
    path.write_bytes(encode_sidecar_table(table.set_column(3, column, pa.array(fields, column.type)), fact))
    with pytest.raises(OutputExists, match="checksums of other payloads"):
        index(dataset, READ)


@pytest.mark.parametrize("what", ["damaged", "fewer", "other samples"])
def test_a_wrong_dataset_file_is_kept(what: str, dataset: Path, tmp_path: Path) -> None:
    """A dataset file that is damaged or lists other shards or samples is kept without `overwrite`."""
    path, given = dataset / "x.json", [*map(str, shards(dataset))]
    if what == "damaged":
        flip(path, 300)
    elif what == "fewer":
        given.remove(given[1])
        shards(dataset)[1].unlink()
        (dataset / "x-1.index").unlink()
    else:
        create(write_tree(tmp_path / "in", {"a.txt": b"x" * 3000}), f"{tmp_path}/y/{shards(dataset)[1].name}",
               CreateOptions(workers=0))  # fmt: skip
        for name in (shards(dataset)[1].name, "x-1.index"):
            shutil.copy(tmp_path / "y" / name, dataset / name)
    before = identity(dataset)
    with pytest.raises(OutputExists, match=r"x\.json.*overwrite=True"):
        index(given, ONE)
    assert identity(dataset) == before
    index(given, replace(ONE, overwrite=True))
    assert verify(dataset, VerifyOptions(workers=0)).sound


def test_a_dataset_file_with_more_shards_is_kept(dataset: Path) -> None:
    """A dataset file that lists more existing shards is valid and is kept, also with `overwrite`."""
    before = identity(dataset)
    with pytest.raises(OutputExists, match="1 shard that exist and were not given"):
        index([*map(str, shards(dataset)[:2])], replace(ONE, overwrite=True))
    assert identity(dataset) == before


def test_more_shards_than_the_dataset_file_lists(dataset: Path) -> None:
    """If a pattern matches an unlisted shard, `index` adds it on request, and `inspect` reports it."""
    folder = dataset if dataset.is_dir() else dataset.parent
    first = shards(folder)[0]
    ending = first.suffix
    assert verify(f"{folder}/x-[0-9]{ending}", VerifyOptions(workers=0)).sound  # a glob is no name that is missing
    shutil.copy(first, folder / f"x-9{ending}")
    given = f"{folder}/x-{{0..}}{ending}"
    with pytest.raises(OutputExists, match="overwrite=True"):
        index(given, IndexOptions(workers=0))
    assert [item.code for item in inspect(given).problems] == ["extra-shard"]
    assert index(given, IndexOptions(workers=0, overwrite=True)).shards == len(shards(folder))


def test_a_missing_shard_is_named(dataset: Path) -> None:
    """A listed shard that is missing or not a file is an error; nothing is written."""
    deleted = shards(dataset)[1]
    places: list[Callable[[Path], object]] = [lambda _: None, os.mkdir, os.mkfifo, lambda path: os.symlink("no", path)]
    for own in (True, False):
        if not own:
            (dataset / "x.json").unlink()
            _wids(dataset, *(f"x-{at}{deleted.suffix}" for at in range(3)))
        for place in places:
            shutil.rmtree(deleted) if deleted.is_dir() else deleted.unlink(missing_ok=True)
            place(deleted)
            before = identity(dataset)
            for given in (dataset / ("x.json" if own else "out.json"), *([dataset] if own else [])):
                with pytest.raises(CorruptShard, match=deleted.name):
                    index(given, replace(ONE, overwrite=True))
                assert identity(dataset) == before


@pytest.mark.parametrize("options", [ONE, replace(ONE, overwrite=True)])
def test_sidecars_of_other_shards_are_not_replaced(
    options: IndexOptions, dataset: Path, ending: str, tmp_path: Path
) -> None:
    """Shards whose sidecars would have the names of others are refused, and nothing changes."""
    other = "tar" if ending == "tfrecord" else "tfrecord"
    create(write_tree(tmp_path / "in", {"a.txt": b"x"}), f"{tmp_path}/y/x-0.{other}", CreateOptions(workers=0))
    shutil.copy(tmp_path / "y" / f"x-0.{other}", dataset)
    (dataset / "below").mkdir()
    before = identity(dataset)
    for given in (dataset / f"x-0.{other}", f"{dataset}/x-{{0..}}.{other}", dataset / "x.json"):
        with pytest.raises(OutputExists, match=r"x-0\.t"):
            index(given, options)
        assert identity(dataset) == before
    (dataset / f"x-0.{other}").rename(tmp_path / "ds" / "below" / f"x-0.{other}")
    before = identity(dataset)
    with pytest.raises(OutputExists, match=r"x-0\.t"):
        index(dataset / "below" / f"x-0.{other}", replace(options, output=str(dataset)))
    assert identity(dataset) == before


def test_shards_in_two_folders_are_refused(dataset: Path, tmp_path: Path) -> None:
    """A dataset file cannot list shards in two folders."""
    shutil.copytree(dataset, tmp_path / "dt")
    for path in (*dataset.glob("x*.[ji]*"), *(tmp_path / "dt").glob("x*.[ji]*")):
        path.unlink()
    with pytest.raises(InvalidRequest, match="2 folders"):
        index([shards(dataset)[0], shards(tmp_path / "dt")[1]], ONE)
    assert len(list(dataset.iterdir())) == 3


@pytest.fixture
def above(dataset: Path, tmp_path: Path) -> Path:
    """Return a dataset file and sidecars two folders above their shards."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "deep").mkdir()
    (dataset / "x.json").unlink()
    for path in dataset.glob("*.index"):
        path.unlink()
    dataset.rename(tmp_path / "all" / "deep" / "tars")
    index(tmp_path / "all" / "deep" / "tars", replace(READ, output=str(tmp_path / "all")))
    return tmp_path / "all" / "x.json"


def test_every_verb_finds_shards_in_a_subfolder(above: Path, ending: str, tmp_path: Path) -> None:
    """A dataset file above its shards works with every verb, by file or by folder."""
    tars = above.parent / "deep" / "tars"
    assert sorted(read_tree(above.parent)) == [
        *(f"deep/tars/x-{at}.{ending}" for at in range(3)), *(f"x-{at}.index" for at in range(3)), "x.json"
    ]  # fmt: skip
    before = read_tree(above.parent)
    for given in (above, above.parent):
        assert verify(given, VerifyOptions(workers=0)).sound
        assert verify(given, VerifyOptions(quick=True)).sound
        summary = inspect(given)
        assert (summary.samples, summary.complete, summary.looked.walked) == (6, True, 0)
        assert index(given, READ).kept == 3
        assert read_tree(above.parent) == before
    reshard([above], f"{tmp_path}/new/y-{{0..}}.{ending}", ReshardOptions(workers=0))
    assert members(*shards(tmp_path / "new")) == members(*shards(tars))
    assert verify(tmp_path / "new", VerifyOptions(source=above, workers=0)).sound
    made = export(above, "dali-webdataset" if ending == "tar" else "dali-tfrecord", ExportOptions(workers=0))
    assert len(made.files) == 3
    if ending == "tar":
        export(above, "huggingface", ExportOptions(workers=0))


def test_damage_in_a_subfolder_is_found(above: Path) -> None:
    """Damage, missing and additional shards are found; missing or damaged sidecars are repaired."""
    tars = above.parent / "deep" / "tars"
    whole = read_tree(above.parent)
    for path, fixable in ((above.parent / "x-1.index", True), (shards(tars)[1], False)):
        for spoil in (lambda path: flip(path, 40), lambda path: path.unlink()):
            spoil(path)
            report = verify(above, VerifyOptions(workers=0))
            assert {path.name} == {finding.file for finding in report.findings}
            assert verify(above, VerifyOptions(workers=0, repair=True)).sound == fixable
            write_tree(above.parent, whole)
    shutil.copy(shards(tars)[2], tars / f"x-3{shards(tars)[2].suffix}")
    assert {finding.code for finding in verify(above, VerifyOptions(workers=0)).findings} == {"shard-extra"}


def test_a_dataset_above_its_shards_is_not_replaced(above: Path, ending: str, tmp_path: Path) -> None:
    """`create` neither replaces nor appends to such a dataset, because new shards would be in another folder."""
    source = write_tree(tmp_path / "in", {"new.txt": b"x"})
    before = read_tree(above.parent)
    for if_exists in ("error", "resume", "overwrite", "append"):
        with pytest.raises((OutputExists, InvalidRequest, CorruptShard)):
            create(source, f"{above.parent}/x-{{0..}}.{ending}", CreateOptions(workers=0, **existing(if_exists)))
        assert read_tree(above.parent) == before


@pytest.mark.parametrize("output", ["beside", "ds/below"])
def test_a_dataset_file_lists_only_shards_below_it(output: str, dataset: Path, tmp_path: Path) -> None:
    """A folder that is not above the shards is refused, and not created."""
    with pytest.raises(InvalidRequest, match="does not contain the shards"):
        index(shards(dataset), replace(ONE, output=f"{tmp_path}/{output}"))
    assert not (tmp_path / output).exists()


@pytest.mark.parametrize(
    "folder", ["..", ".", "", "/etc", "deep/../tars", "deep//tars", "deep/tars/", "deep", "a\nb", 5]
)
def test_an_invalid_shards_folder_is_refused(folder: object, above: Path) -> None:
    """A sealed dataset file with a `shards_folder` outside its folder, or of other shards, is refused."""
    from shardtool.fingerprint import crc32c

    data = above.read_bytes().replace(
        b'"shards_folder": "deep/tars"', b'"shards_folder": ' + json.dumps(folder).encode()
    )
    body = data[: -len(b'01234567"\n}\n')]
    above.write_bytes(body + b'%08x"\n}\n' % crc32c(body))
    with pytest.raises(CorruptShard, match=r"x\.json"):
        parse_dataset(above.read_bytes(), "x.json")
    for verb in (inspect, index):
        with pytest.raises((CorruptShard, OutputExists), match=r"x\.json"):
            verb(above)
    assert not verify(above, VerifyOptions(workers=0)).sound


def test_a_linked_folder_outside_is_not_followed(above: Path, tmp_path: Path) -> None:
    """No verb follows a link out of the dataset file's folder; a link inside is accepted."""
    (above.parent / "deep").rename(above.parent / "moved")
    (above.parent / "deep").symlink_to("moved")
    assert verify(above, VerifyOptions(workers=0)).sound
    (above.parent / "moved").rename(tmp_path / "outside")
    (above.parent / "deep").unlink()
    (above.parent / "deep").symlink_to("../outside")
    before = read_tree(tmp_path / "outside")
    for verb in (inspect, index, verify, lambda given: reshard([given], f"{tmp_path}/n/y-{{0..}}.tar"),
                 lambda given: export(given, "wids"), lambda given: export(given, "tfrecord")):  # fmt: skip
        with pytest.raises((CorruptShard, InvalidRequest), match=r"link out of|format"):
            verb(above)
    assert read_tree(tmp_path / "outside") == before


def test_a_wids_index_is_replaced_only_on_request(dataset: Path, tmp_path: Path) -> None:
    """`overwrite` replaces a wids index by one that finds its shards, in a subfolder."""
    (tmp_path / "w").mkdir()
    for path in (dataset / "x.json", *dataset.glob("*.index")):
        path.unlink()
    dataset.rename(tmp_path / "w" / "sub")
    before = _wids(tmp_path / "w", *(f"sub/{path.name}" for path in shards(tmp_path / "w" / "sub")))
    with pytest.raises(OutputExists, match=r"out\.json.*wids.*overwrite=True"):
        index(tmp_path / "w" / "out.json", ONE)
    assert read_tree(tmp_path / "w").keys() == {
        "out.json",
        *(f"sub/{shard.name}" for shard in shards(tmp_path / "w" / "sub")),
    }
    assert (tmp_path / "w" / "out.json").read_bytes() == before
    index(tmp_path / "w" / "out.json", replace(READ, overwrite=True))
    assert verify(tmp_path / "w" / "out.json", VerifyOptions(workers=0)).sound

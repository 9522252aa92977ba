"""Laws of `extract`: the files recreate the same dataset, other files stay, and an interrupted run can continue."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import tarfile
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest, OutputExists, OutputFailed, create, diff, extract, remove, reshard
from shardtool.entries.strings import PackedStrings
from shardtool.storage.staging import Folder, local_folder
from shardtool.verbs.extract import MANIFEST, METADATA, check_file_names
from tests.faults.helpers import settles, start
from tests.helpers import PHOTOS, flip, read_tree, typed, write_tree
from tests.verbs.test_inspect import HOSTILE, tar_of

if TYPE_CHECKING:
    from pathlib import Path

_TREE = {
    "cat/a.jpg": b"\xff\xd8", "cat/a.json": b'{"label": "cat"}', "dog/b c.jpg": b"", "dog/b c.txt": b"x" * 700_000,
    "Ünï/Ï.d.jpg": b"3",
}  # fmt: skip


def _files(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in read_tree(folder).items() if name not in (MANIFEST, METADATA)}


@pytest.mark.parametrize("more", [
    (), ("--label-from-folder",), ("--portable",), ("--dots", "last"), ("--hidden",),
    ("--portable", "--label-from-folder"),
])  # fmt: skip
def test_create_recreates_the_extracted_dataset(tmp_path: Path, ending: str, more: tuple[str, ...]) -> None:
    """The files equal the source, and the returned options recreate the same content, bit for bit."""
    source = write_tree(tmp_path / "source", _TREE)
    made = json.loads(typed("create", source, tmp_path / f"a-{{0..}}.{ending}", *more, "--json").out)
    workers = "0" if more else "2"
    ran = typed("extract", tmp_path / "a.json", tmp_path / "x", "--workers", workers, "--json")
    result = json.loads(ran.out)
    assert (ran.code, result["samples"], result["files"], result["kept"]) == (0, 3, 5, 0)
    assert _files(tmp_path / "x") == _TREE
    again = create(tmp_path / "x", tmp_path / f"b-{{0..}}.{ending}", **result["create"])
    assert again.fingerprint == made["fingerprint"]


_NAMES = st.text("ab.-é", min_size=1, max_size=4).filter(lambda name: name.strip(".") == name)
_TREES = st.dictionaries(st.tuples(_NAMES, _NAMES, st.sampled_from(["jpg", "txt", "x"])), st.binary(max_size=40))


@given(files=_TREES.filter(bool), portable=st.booleans())
def test_any_tree_is_extracted_unchanged(
    tmp_path_factory: pytest.TempPathFactory, files: dict[tuple[str, ...], bytes], *, portable: bool
) -> None:
    """`extract` returns all files that `create` accepts, wherever their names contain dots."""
    folder = tmp_path_factory.mktemp("any")
    tree = {f"{top}/{name}.{field}": data for (top, name, field), data in files.items()}
    made = create(write_tree(folder / "s", tree), folder / "o-{0..}.tar", CreateOptions(dots="last", portable=portable))
    assert extract(made.dataset_file, folder / "x").files == len(tree)
    assert _files(folder / "x") == tree
    shutil.rmtree(folder)


def test_samples_and_fields_can_be_selected(tmp_path: Path) -> None:
    """A query, a key file and a field list select; a field of no sample is an error, and nothing is written."""
    create(PHOTOS, tmp_path / "o-{0..}.tar", CreateOptions(label_from_folder=True))
    data, keys = tmp_path / "o.json", tmp_path / "keys"
    keys.write_text("cat/cat-0001\r\nbrick/brick-0001\n\n", encoding="utf-8")
    assert typed("extract", data, tmp_path / "a", "--keys-from", keys, "--fields", "jpg,cls").code == 0
    expected = {f"{key}.jpg" for key in ("cat/cat-0001", "brick/brick-0001")}
    assert {*_files(tmp_path / "a")} == expected | {name.replace(".jpg", ".cls") for name in expected}
    ran = typed("extract", data, tmp_path / "b", "--where", "key < 'b'", "--dry-run")
    assert (ran.code, ran.out.endswith("nothing was written\n"), (tmp_path / "b").exists()) == (0, True, False)
    part = extract(data, tmp_path / "b", where="cls == 'cat'")
    again = create(tmp_path / "b", tmp_path / "p-{0..}.tar", **part.create)
    assert again.fingerprint == reshard(data, tmp_path / "q-{0..}.tar", where="cls == 'cat'").fingerprint
    assert extract(data, tmp_path / "d", keys_from=["cat/cat-0001"]).samples == 1
    keys.write_text("cat/cat-0001\nmouse\n", encoding="utf-8")
    wrong = (("--keys-from", keys), ("--keys-from", tmp_path / "none"), ("--fields", "png"), ("--where", "key == ''"))
    for words in wrong:
        assert typed("extract", data, tmp_path / "c", *words).code == 2
    ran = typed("extract", data, tmp_path / "c", "--keys", "cat/cat-0001", "cat/cat-0002")
    assert (ran.code, "or shards. Repeat --keys for each key.\n" in ran.err) == (2, True)
    assert not (tmp_path / "c").exists()


def test_numbers_become_text_files(tmp_path: Path, ending: str) -> None:
    """Integer and float fields, which TFRecords store as numbers, are extracted as text, also under new names."""
    (tmp_path / "t.csv").write_text("key,label,score\na,1,0.5\nb,2,1.5\n")
    create(tmp_path / "t.csv", tmp_path / f"o-{{0..}}.{ending}", field=("cls=label", "score=score"), meta="none")
    extract(tmp_path / "o.json", tmp_path / "x")
    assert _files(tmp_path / "x") == {"a.cls": b"1", "a.score": b"0.5", "b.cls": b"2", "b.score": b"1.5"}
    extract(tmp_path / "o.json", tmp_path / "y", fields="points=score,-cls")
    assert _files(tmp_path / "y") == {"a.points": b"0.5", "b.points": b"1.5"}


def test_tables_restore_metadata(tmp_path: Path) -> None:
    """One table is a manifest of the same samples; joining the other restores the metadata."""
    before = create(PHOTOS, tmp_path / "o-{0..}.tar", columns_from=["json"], label_from_folder=True)
    part = extract(before.dataset_file, tmp_path / "x")
    table = pq.read_table(tmp_path / "x" / MANIFEST)
    assert all((tmp_path / "x" / path).is_file() for path in table["path"].to_pylist())
    after = create(tmp_path / "x", tmp_path / "p-{0..}.tar", **part.create)
    assert diff(before.dataset_file, after.dataset_file).same
    again = create(tmp_path / "x" / MANIFEST, tmp_path / "q-{0..}.tar")
    without = reshard(before.dataset_file, tmp_path / "r-{0..}.tar", fields="-cls")
    assert again.fingerprint == without.fingerprint


def test_existing_files_are_kept(tmp_path: Path) -> None:
    """A file with other bytes is an error, a file with the right bytes stays, and no link is followed."""
    shard, into = tar_of(tmp_path / "x.tar", [("a/b.txt", b"new"), ("c.txt", b"1")]), tmp_path / "into"
    outside = write_tree(tmp_path / "outside", {"kept": b"old"})
    for there in ({"a/b.txt": b"older"}, {"a/b.txt": b"old"}):
        write_tree(into, there)
        ran = typed("extract", shard, into, "--json")
        assert (ran.code, json.loads(ran.out)["error"]["code"]) == (5, "output-exists")
        assert read_tree(into)["a/b.txt"] in (b"old", b"older")
    shutil.rmtree(into)
    into.mkdir()
    (into / "a").symlink_to(outside)
    assert typed("extract", shard, into).code == 5
    assert typed("extract", shard, into, "--overwrite").code == 5
    (into / "a").unlink()
    write_tree(into, {"a/b.txt": b"old", "mine": b"mine"})
    assert typed("extract", shard, into, "--overwrite").code == 0
    assert json.loads(typed("extract", shard, into, "--json").out)["kept"] == 2
    assert read_tree(outside) == {"kept": b"old"}
    assert _files(into) == {"a/b.txt": b"new", "c.txt": b"1", "mine": b"mine"}


@pytest.mark.parametrize("name", HOSTILE)
def test_unsafe_keys_are_refused(tmp_path: Path, name: str) -> None:
    """A key that leaves the folder, or is not a file name, is an error before anything is written."""
    shard = tar_of(tmp_path / "x.tar", [("good.txt", b"good"), (f"{name}.txt", b"evil")])
    before = read_tree(tmp_path)
    ran = typed("extract", shard, tmp_path / "deep" / "into")
    assert ran.code == 2
    assert read_tree(tmp_path) == before


def test_conflicting_names_are_refused() -> None:
    """Two fields with the same file name are an error, also by case if the file system ignores case."""
    check_file_names(PackedStrings.of([b"a.jpg", b"A.jpg"]))
    for names, folded in (([b"a.jpg", b"A.jpg"], True), ([b"a.b.c", b"a.b.c"], False)):
        with pytest.raises(InvalidRequest):
            check_file_names(PackedStrings.of(names), folded=folded)


def test_a_store_is_refused_as_folder(tmp_path: Path) -> None:
    """Files are written to a local file system only."""
    shard = tar_of(tmp_path / "x.tar", [("a.txt", b"1")])
    assert typed("extract", shard, "s3://bucket/x").code == 2


def test_a_file_instead_of_the_folder_is_named(tmp_path: Path) -> None:
    """A file, a broken link, a link in the path or an empty name is named, and nothing is written."""
    shard = tar_of(tmp_path / "x.tar", [("a/b.txt", b"1"), ("0.txt", b"2")])
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").symlink_to(tmp_path)
    before = read_tree(tmp_path)
    for words in (("extract", shard), ("inspect", shard, "--head", "1", "--extract")):
        for name, what in (("file", "file: a file"), ("file/x", "file: a file"), ("link", "link: a symbolic link")):
            ran = typed(*words, tmp_path / name)
            assert (ran.code, f"{what}; expected a folder" in ran.err) == (5, True), ran.err
        assert (typed(*words, "").code, typed(*words, "s3://b/x").code) == (2, 2)
    ran = typed("extract", shard, tmp_path / "out")
    assert (ran.code, "out/a: a symbolic link; expected a folder" in ran.err) == (5, True)
    assert read_tree(tmp_path) == before


def test_a_folder_instead_of_a_file_is_named(tmp_path: Path) -> None:
    """`overwrite` does not replace a folder that has the name of a file. The error contains the full path."""
    create(write_tree(tmp_path / "s", {"a/b.jpg": b"x"}), tmp_path / "o-{0..}.tar")
    (tmp_path / "x" / "a" / "b.jpg").mkdir(parents=True)
    with pytest.raises(OutputExists, match="a folder") as refused:
        extract(tmp_path / "o.json", tmp_path / "x", overwrite=True)
    assert refused.value.where == str(tmp_path / "x" / "a" / "b.jpg")


def test_a_name_that_is_file_and_folder_is_refused(tmp_path: Path) -> None:
    """Names that exclude each other are refused before anything is written, also with an empty shard."""
    shard = tar_of(tmp_path / "x.tar", [("a.txt", b"1"), ("a.txt/b/c.txt", b"2")])
    ran = typed("extract", shard, tmp_path / "out")
    assert (ran.code, "a.txt: both a file and a folder" in ran.err) == (2, True)
    ran = typed("extract", tar_of(tmp_path / "empty.tar", []), tmp_path / "out")
    assert (ran.code, "no samples" in ran.err, (tmp_path / "out").exists()) == (2, True, False)


def test_the_manifest_can_name_any_file(tmp_path: Path) -> None:
    """A name with a percent sign, or one that looks encoded, is stored unchanged in the manifest."""
    files = {"a%20b/c.txt": b"1", "100%.txt": b"2", "ü.txt": b"3"}
    create(write_tree(tmp_path / "in", files), tmp_path / "o-{0..}.tar")
    extract(tmp_path / "o.json", tmp_path / "x")
    again = create(tmp_path / "x" / MANIFEST, tmp_path / "p-{0..}.tar")
    assert (again.samples, _files(tmp_path / "x")) == (3, files)


def test_a_second_run_in_one_folder_is_refused(tmp_path: Path) -> None:
    """The second run fails without waiting, and names the first."""
    shard = tar_of(tmp_path / "x.tar", [("a.txt", b"1")])
    (tmp_path / "out").mkdir()
    with local_folder(tmp_path / "out").lock("extract"):
        ran = typed("extract", shard, tmp_path / "out")
    assert (ran.code, "another run is writing into this folder" in ran.err) == (5, True)


def test_too_little_space_is_found_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that do not fit are refused before one is written; existing files need no space again."""
    source = write_tree(tmp_path / "source", {f"{at}.bin": b"x" * 1000 for at in range(4)})
    made = create(source, tmp_path / "o-{0..}.tar", workers=0).dataset_file
    monkeypatch.setattr(Folder, "free_bytes", lambda _: 1500)
    with pytest.raises(OutputFailed, match=r"free, 4\.\S+ kB needed; nothing was extracted\. Free some space"):
        extract(made, tmp_path / "x")
    assert read_tree(tmp_path / "x") == {}
    write_tree(tmp_path / "x", {f"{at}.bin": b"x" * 1000 for at in range(3)})
    assert extract(made, tmp_path / "x").kept == 3


@pytest.mark.parametrize("size", [3, 2_000_000])
def test_a_damaged_payload_leaves_no_file(tmp_path: Path, size: int) -> None:
    """A payload with a wrong checksum is an error that names its sample, and its file does not exist."""
    create(write_tree(tmp_path / "s", {"a.txt": b"x" * size, "b.txt": b"y"}), tmp_path / "o-{0..}.tar")
    flip(tmp_path / "o-0.tar", 512 + size - 1)
    ran = typed("extract", tmp_path / "o.json", tmp_path / "x")
    assert (ran.code, "a: at 512" in ran.err, "txt" in read_tree(tmp_path / "x")) == (4, True, False)
    flip(tmp_path / "o-0.tar", 512 + size - 1)
    assert typed("extract", tmp_path / "o.json", tmp_path / "x").code == 0
    assert _files(tmp_path / "x") == {"a.txt": b"x" * size, "b.txt": b"y"}


def test_advice_for_a_damaged_shard_names_the_verb(tmp_path: Path) -> None:
    """The option that skips damaged samples belongs to `reshard`, not to `extract` or `diff`."""
    os.truncate(tar_of(tmp_path / "s-0.tar", [("a.jpg", b"x")]), 600)
    for words in (("extract", tmp_path / "s-0.tar", tmp_path / "x"), ("diff", tmp_path / "s-0.tar", PHOTOS)):
        ran = typed(*words)
        assert (ran.code, "`shardtool reshard` with --on-error skip" in ran.err) == (4, True), ran


def test_compressed_shards_are_extracted(tmp_path: Path) -> None:
    """Small and large fields of a compressed shard, next to a plain shard, are extracted in any order, also twice."""
    files = [("a.txt", os.urandom(9)), ("a.bin", os.urandom(1_500_000)), ("b.bin", b""), ("b.a", b"1")]
    shard = tar_of(tmp_path / "x.tar", files)
    packed = tmp_path / "y.tar.gz"
    packed.write_bytes(gzip.compress(shard.read_bytes(), 1))
    assert [extract(packed, tmp_path / "x").kept for _ in range(2)] == [0, 4]
    assert _files(tmp_path / "x") == dict(files)
    plain = tar_of(tmp_path / "z.tar", [("c.txt", b"plain")])
    assert extract([packed, plain], tmp_path / "both").files == 5
    assert _files(tmp_path / "both") == {**dict(files), "c.txt": b"plain"}


@pytest.mark.slow
def test_members_that_are_no_fields_are_reported(tmp_path: Path) -> None:
    """Members of a foreign tar that `extract` does not write, such as hard links, are listed in notes."""
    for name in ("a.jpg", "README"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "b.jpg").hardlink_to(tmp_path / "a.jpg")
    with tarfile.open(tmp_path / "s-0.tar", "w") as tar:
        for name in ("a.jpg", "b.jpg", "README"):
            tar.add(tmp_path / name, name)
    notes = "\n".join(extract(tmp_path / "s-0.tar", tmp_path / "x").notes)
    assert "1 file skipped (special-file): " in notes
    assert "s-0.tar:b.jpg" in notes
    assert "s-0.tar:README" in notes


def test_a_killed_run_is_continued(tmp_path: Path) -> None:
    """SIGKILL leaves files and a marker; another command is refused, the same one finishes and deletes the marker."""
    tree = {f"{at % 7}/{at:05}.txt": b"%d" % at * (at % 500) for at in range(3000)} | {"z.bin": bytes(20_000_000)}
    create(write_tree(tmp_path / "s", tree), tmp_path / "o-{0..}.tar", CreateOptions(max_count=500))
    into, mark = tmp_path / "{x}", tmp_path / "{x}" / ".extract.unfinished"
    run = start(tmp_path / "o.json", into, verb="extract")
    assert settles(lambda: len([*into.glob("*/*")]) > 100, step_s=0.001)
    run.signal(signal.SIGKILL, group=True)
    assert run.end().code == -signal.SIGKILL
    assert mark.exists()
    cut = next(item for item in into.glob("*/*.txt") if item.stat().st_size > 1)
    cut.write_bytes(cut.read_bytes()[:1])  # as a kill between two writes of one file leaves it
    assert typed("extract", tmp_path / "o.json", into, "--where", "key > '1'").code == 5
    assert typed("extract", tmp_path / "o.json", into).code == 0
    assert _files(into) == tree


def test_reserved_names_are_refused(tmp_path: Path) -> None:
    """A sample's file never replaces a table, lock or marker of extract."""
    for name in (".manifest.parquet", ".metadata.parquet", ".extract.lock", ".extract.unfinished"):
        write_tree(tmp_path / name / "in", {name: b"mine", "q.txt": b"q"})
        create(tmp_path / name / "in", f"{tmp_path}/{name}/o-{{0..}}.tar", CreateOptions(hidden=True))
        with pytest.raises(InvalidRequest, match="reserved by extract"):
            extract(tmp_path / name / "o.json", tmp_path / name / "files")
        assert not (tmp_path / name / "files").exists()


def test_an_unreadable_table_stays(tmp_path: Path) -> None:
    """A folder or link with the name of the table is reported and stays."""
    dataset = create(write_tree(tmp_path / "in", {"a.txt": b"a"}), tmp_path / "out-{0..}.tar").dataset_file
    for is_link in (False, True):
        table = tmp_path / f"to{is_link}" / MANIFEST
        table.parent.mkdir()
        table.symlink_to("nowhere") if is_link else table.mkdir()
        ran = typed("extract", tmp_path / dataset, table.parent)
        assert (ran.code, "not a table" in ran.err, os.listdir(table.parent)) == (5, True, [MANIFEST])


def test_empty_classes_keep_the_other_numbers(tmp_path: Path) -> None:
    """The returned options keep class numbers if a class was removed, or a split has no sample of it."""
    write_tree(tmp_path / "in", {f"{label}/{number}.txt": b"x" for label in ("cat", "dog") for number in range(4)})
    create(tmp_path / "in", f"{tmp_path}/o-{{0..}}.tar", CreateOptions(label_from_folder=True))
    remove(tmp_path / "o.json", where="key < 'dog'")
    result = extract(tmp_path / "o.json", tmp_path / "files")
    again = create(tmp_path / "files", f"{tmp_path}/again/o-{{0..}}.tar", CreateOptions(**result.create))
    assert again.fingerprint == json.loads((tmp_path / "o.json").read_text())["shardtool"]["fingerprint"]

"""Several folders as one source: files that share a key are one sample, and outputs contain no absolute paths."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import CreateOptions, InvalidRequest, Observer, SampleFailed, VerifyOptions, create, verify
from tests.helpers import flip, members, read_tree, shards, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_IMAGES = {"cat/1.png": b"i1", "cat/2.png": b"i22", "dog/3.png": b"i333", "dog/3.json": b"{}"}
_MASKS = {"cat/1.png": b"m", "cat/2.png": b"mm", "dog/3.png": b"mmm"}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Return folders whose files share keys and extensions."""
    return [write_tree(tmp_path / "images", _IMAGES), write_tree(tmp_path / "masks", _MASKS)]


def _pack(sources: Any, folder: Path, **options: Any) -> dict[str, bytes]:
    """Pack with one worker; return the contents of the shards."""
    create(sources, f"{folder}/out-{{00..}}.tar", CreateOptions(**{"workers": 0, "max_count": 2, **options}))
    return dict(members(*shards(folder)))


def test_files_that_share_a_key_are_one_sample(folders: list[Path], tmp_path: Path) -> None:
    """Every file is packed once; only extensions in two folders are prefixed with the folder's name."""
    packed = _pack(folders, tmp_path / "out")
    expected = {name.replace(".png", ".images.png"): data for name, data in _IMAGES.items()}
    expected |= {name.replace(".png", ".masks.png"): data for name, data in _MASKS.items()}
    assert packed == expected
    assert [*packed] == sorted(packed)
    assert json.loads((tmp_path / "out" / "out.json").read_bytes())["shardtool"]["made"]["source"] == "images,masks"


def test_endings_that_differ_stay_as_they_are(tmp_path: Path) -> None:
    """If no extension is in two folders, fields are the plain extensions."""
    first, second = write_tree(tmp_path / "a", {"x.jpg": b"1"}), write_tree(tmp_path / "b", {"x.png": b"2"})
    assert _pack((first, second), tmp_path / "out") == {"x.jpg": b"1", "x.png": b"2"}


def test_folders_with_the_same_name_use_their_parents(tmp_path: Path) -> None:
    """Folders with the same name are named with their parents."""
    sources = [write_tree(tmp_path / side / "images", {"x.png": side.encode()}) for side in ("left", "right")]
    packed = _pack(sources, tmp_path / "out")
    assert packed == {"x.left_images.png": b"left", "x.right_images.png": b"right"}


def test_bytes_do_not_depend_on_locations(folders: list[Path], tmp_path: Path) -> None:
    """Outputs depend neither on the folders' locations nor on the number of workers."""
    _pack(folders, tmp_path / "here", label_from_folder=True)
    elsewhere = tmp_path / "far" / "away" / "masks"
    shutil.copytree(folders[1], elsewhere)
    _pack([folders[0], elsewhere], tmp_path / "there", label_from_folder=True, workers=2)
    assert read_tree(tmp_path / "here") == read_tree(tmp_path / "there")


def test_labels_queries_and_names_count_below_each_folder(folders: list[Path], tmp_path: Path) -> None:
    """Classes are the folders below each source; queries see paths with the sources' names; names are made portable."""
    packed = _pack(folders, tmp_path / "labels", label_from_folder=True)
    assert [packed[f"{key}.cls"] for key in ("cat/1", "cat/2", "dog/3")] == [b"0", b"0", b"1"]
    packed = _pack(folders, tmp_path / "asked", where="path == 'images/cat/2.png'", exclude=("*.json",))
    assert [*packed] == ["cat/2.images.png", "cat/2.masks.png"]
    packed = _pack(folders, tmp_path / "portable", portable=True)
    assert sorted(packed.values()) == sorted([*_IMAGES.values(), *_MASKS.values()])


def test_incomplete_samples_are_noted(folders: list[Path], tmp_path: Path) -> None:
    """A sample without a file in one folder is packed with a note, or refused or skipped on request."""
    (folders[1] / "cat" / "2.png").unlink()
    plan = create(folders, f"{tmp_path}/plan.tar", CreateOptions(workers=0), dry_run=True)
    expected = "1 sample lacks a file in one folder and was packed without it: cat/2 (1 not in masks; "
    assert any(note.startswith(expected) for note in plan.notes)
    with pytest.raises(SampleFailed, match=r"images/cat/2.png \(no file with its key in masks\)"):
        _pack(folders, tmp_path / "strict", complete=True)
    packed = _pack(folders, tmp_path / "out", complete=True, on_error="skip")
    assert not any(name.startswith("cat/2") for name in packed)
    rows = (tmp_path / "out" / "out.skipped").read_text().splitlines()
    assert [json.loads(row)["code"] for row in rows] == ["incomplete"]


def test_a_failed_file_skips_its_sample(folders: list[Path], tmp_path: Path) -> None:
    """A file that cannot be packed also skips its sample's other files, and is listed with its folder's name."""
    broken = folders[1] / "cat" / "2.png"
    broken.unlink()
    broken.symlink_to("nothing")
    packed = _pack(folders, tmp_path / "out", on_error="skip", label_from_folder=True)
    assert {name.partition(".")[0] for name in packed} == {"cat/1", "dog/3"}
    row = json.loads((tmp_path / "out" / "out.skipped").read_text())
    assert (row["key"], row["path"], row["code"]) == ("cat/2", "masks/cat/2.png", "dangling-link")


@dataclass
class _Removing(Observer):
    """An observer that removes a file when packing starts."""

    path: Path

    def start(self, samples: int, size: int, shards: int) -> None:
        """Remove the file."""
        assert (samples, shards) == (3, 1), size
        self.path.unlink()


def test_a_file_that_vanishes_is_listed_by_its_folder(folders: list[Path], tmp_path: Path) -> None:
    """A file that fails while it is packed is listed below its folder's name, not with an absolute path."""
    options = CreateOptions(workers=0, on_error="skip")
    create(folders, f"{tmp_path}/out.tar", options, observer=_Removing(folders[1] / "cat" / "2.png"))
    row = json.loads((tmp_path / "out.skipped").read_text())
    assert (row["key"], row["path"], row["code"]) == ("cat/2", "masks/cat/2.png", "vanished")


def test_resume_verify_and_repair(folders: list[Path], tmp_path: Path) -> None:
    """A finished run is kept; `verify` finds a changed file, `--resume` repacks it, and a shard is recreated."""
    out = tmp_path / "out"
    _pack(folders, out)
    before = read_tree(out)
    resumed = create(folders, f"{out}/out-{{00..}}.tar", CreateOptions(max_count=2, workers=0, resume=True))
    assert read_tree(out) == before
    assert resumed.to_json()["kept"] == 2
    options = VerifyOptions(source=folders, workers=0)
    assert verify(out, options).sound
    flip(out / "out-01.tar", 600)
    report = verify(out, VerifyOptions(source=folders, workers=0, repair=True))
    assert report.sound
    assert read_tree(out) == before
    (folders[1] / "cat" / "2.png").write_bytes(b"MM")
    assert [(one.code, one.key, one.field) for one in verify(out, options).findings] == [
        ("source-differs", "cat/2", "masks.png")
    ]
    _pack(folders, out, resume=True)
    assert verify(out, options).sound


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["images", "other"], "no key is in two of the folders: images has 'cat/1', other has 'z'"),
        (["images", "empty"], "no files in empty"),
        (["images", "images"], "the same folder as images"),
        (["images", "images/cat"], "is inside images"),
        (["images", "nothing"], "nothing: no such file or folder; expected a folder of samples"),
        (["images", "images/cat/1.png"], "To pack some files of a folder, use --include *.jpg"),
        (
            ["images", "masks.zip"],
            "masks.zip: one of 2 sources, but not a folder; expected one source, or several folders",
        ),
        (["images", "masks.zip"], "Use an archive as the only source."),
    ],
)
def test_unrelated_folders_are_refused(names: list[str], message: str, folders: list[Path], tmp_path: Path) -> None:
    """Folders that share no key or contain each other, and other files, are refused; nothing is written."""
    assert folders
    write_tree(tmp_path / "other", {"z.txt": b""})
    (tmp_path / "empty").mkdir()
    (tmp_path / "masks.zip").touch()
    ran = typed("create", *names, "out.tar", cwd=tmp_path)
    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert not [*tmp_path.glob("out*")]


@pytest.mark.parametrize("source", [None, 5, b"x", [], [None], [{"path": "a.jpg"}], object()])
def test_other_objects_are_refused(source: Any, tmp_path: Path) -> None:
    """An object that is neither paths nor a table is refused, with what is expected."""
    with pytest.raises(
        InvalidRequest, match=r"neither a path nor a table|none given|not a folder.* Rows are packed as a table: py"
    ):
        create(source, tmp_path / "out-{0..}.tar", dry_run=True)


def test_one_folder_is_never_incomplete(folders: list[Path], tmp_path: Path) -> None:
    """`complete` requires several folders, and a list of one folder is that folder."""
    with pytest.raises(InvalidRequest, match="there is only one source"):
        _pack(folders[0], tmp_path / "out", complete=True)
    with pytest.raises(InvalidRequest, match="the source: none given"):
        _pack([], tmp_path / "out")
    assert _pack(folders[1:], tmp_path / "out") == _MASKS


def test_clashing_fields_are_refused(tmp_path: Path) -> None:
    """Files that would be the same field are refused."""
    first = write_tree(tmp_path / "a", {"x.png": b"1", "x.b.png": b"2"})
    second = write_tree(tmp_path / "b", {"x.png": b"3"})
    with pytest.raises(InvalidRequest, match=r"files of two folders with the same field 'b.png'"):
        _pack([first, second], tmp_path / "out")


def test_the_number_of_fields_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fields of all folders count together, so that none gets the code of another."""
    monkeypatch.setattr("shardtool.select.field_rows.MAX_FIELDS", 3)
    first = write_tree(tmp_path / "a", {"x.png": b"1", "x.jpg": b"2"})
    second = write_tree(tmp_path / "b", {"x.txt": b"3", "x.json": b"4"})
    with pytest.raises(InvalidRequest, match="4 different fields"):
        _pack([first, second], tmp_path / "out")
    assert not (tmp_path / "out").exists()

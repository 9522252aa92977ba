"""Unused path columns of a table: media files are never ignored silently."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardtool import CreateOptions, InvalidRequest, create
from shardtool.source.manifest.checks import MAX_CHECKED_ROWS
from shardtool.source.manifest.source import ManifestSource
from shardtool.table.columns import PATH_NAMES
from tests.helpers import members, typed, write_tree
from tests.made import list_manifest, manifest_options

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.processes import Server

_CLIPS = {f"clips/{at}.mp4": b"clip %d" % at for at in range(3)}
_SOUNDS = {f"{at}.wav": b"sound %d" % at for at in range(3)}


def _table(folder: Path, **columns: list[str]) -> Path:
    """Write a table, and files next to it."""
    write_tree(folder, _CLIPS | _SOUNDS)
    rows = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    return folder / "t.csv"


def _notes(table: Any, **options: Any) -> list[str]:
    manifest = ManifestSource(table, manifest_options(**options))
    list_manifest(manifest)
    return [note for note in manifest.notes if "existing files" in note]


def _error(table: Any, **options: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        _notes(table, **options)
    return str(caught.value)


_TEXT = ["one", "two", "three"]


@pytest.mark.parametrize("name", ["movie", "id", "my.file"])
def test_an_unused_path_column_is_an_error(name: str, tmp_path: Path) -> None:
    """The error names the column, and the options that pack the files or keep the paths; both work."""
    table = _table(tmp_path, **{name: [*_CLIPS], "caption": _TEXT})
    ran = typed("create", table, f"{tmp_path}/a-{{0..}}.tar", "--field", "txt=caption")
    assert ran.code == 2, ran
    assert f"column '{name}' holds paths of existing files, such as 'clips/0.mp4', which would not be packed" in ran.err
    assert f"Pack the files: --path {name}. To store the paths as metadata only: --meta {name}." in ran.err
    for option, fields in (("--path", {"mp4", "txt"}), ("--meta", {"json", "txt"})):
        key = ("--key", "caption") if name == "id" and option == "--meta" else ()  # a path can be a key
        ran = typed("create", table, f"{tmp_path}/{option}-{{0..}}.tar", "--field", "txt=caption", option, name, *key)
        assert ran.code == 0, ran
        assert {field.rpartition(".")[2] for field, _ in members(tmp_path / f"{option}-0.tar")} == fields


@pytest.mark.parametrize("name", PATH_NAMES)
def test_usual_names_are_used(name: str, tmp_path: Path) -> None:
    """A column with a usual name, in any case, is the path column, unless an option names another."""
    table = _table(tmp_path, **{name.upper(): [*_CLIPS], "caption": _TEXT})
    create(table, f"{tmp_path}/x-{{0..}}.tar", field=("txt=caption",), meta="none", workers=0)
    clips = {name: data for name, data in members(tmp_path / "x-0.tar") if name.endswith(".mp4")}
    assert clips == _CLIPS


def test_several_path_columns_are_an_error(tmp_path: Path) -> None:
    """A path column with a usual name does not hide another: the error's options pack both."""
    table = _table(tmp_path, video=[*_CLIPS], audio=[*_SOUNDS], caption=_TEXT)
    message = _error(table)
    assert "column 'audio' holds paths of existing files, such as '0.wav', which would not be packed" in message
    assert "Pack the files: path='video' file={'audio.wav': 'audio'}. To store the paths as metadata only" in message
    assert message.endswith("meta='audio,caption'.")
    assert not _notes(table, path="video", file=(("audio.wav", "audio"),))
    assert not _notes(table, meta="audio,caption")
    options = CreateOptions(path="video", file=("audio.wav=audio",), meta="none", workers=0)
    create(table, f"{tmp_path}/x-{{0..}}.tar", options)
    expected = {f"clips/{at}.{name}" for at in range(3) for name in ("mp4", "audio.wav")}
    assert {name for name, _ in members(tmp_path / "x-0.tar")} == expected
    both = _table(tmp_path, first=[*_CLIPS], second=[*_SOUNDS], caption=_TEXT)
    message = _error(both, fields=(("txt", "caption"),))
    assert "columns 'first', 'second' hold paths of existing files" in message
    assert "Pack the files: file={'mp4': 'first'} file={'wav': 'second'}." in message


def test_an_explicit_option_decides(tmp_path: Path) -> None:
    """If an option names path columns, others are metadata, with a note."""
    table = _table(tmp_path, movie=[*_CLIPS], sound=[*_SOUNDS])
    for options in ({"path": "movie"}, {"file": (("mp4", "movie"),)}):
        (note,) = _notes(table, **options)
        assert note.startswith("column 'sound' holds paths of existing files, such as '0.wav', which are not packed (")
        assert "'sound'})" in note


def test_the_same_files_in_two_columns(tmp_path: Path) -> None:
    """Another column with the packed files, in any notation, is not reported."""
    absolute = [str(tmp_path / name) for name in _CLIPS]
    table = _table(tmp_path, path=[*_CLIPS], again=[f"./{name}" for name in _CLIPS], where=absolute)
    assert not _notes(table)


@pytest.mark.parametrize(
    "values",
    [
        ["a cat", "a dog", "clips"],  # a folder is not a file
        ["clips/0.mp4", "none.mp4", "gone.mp4"],  # most are not files
        ["", "", ""],
        ["x" * 5000, "a/\x01/b", "https://example.com/0.mp4"],
    ],
)
def test_other_text_is_metadata(values: list[str], tmp_path: Path) -> None:
    """Text that is mostly not the path of a file is plain metadata, without a note."""
    write_tree(tmp_path, _CLIPS)
    table = pa.table({"note": values, "caption": _TEXT})
    assert not _notes(table, fields=(("txt", "caption"),), root=str(tmp_path))


@pytest.mark.parametrize("meta", ["all", "none", "caption"])
def test_meta_does_not_matter(meta: str, tmp_path: Path) -> None:
    """An unused path column is found whether or not it would be metadata, unless an option names it."""
    table = _table(tmp_path, movie=[*_CLIPS], caption=_TEXT, text=_TEXT)
    assert "column 'movie' holds paths" in _error(table, fields=(("txt", "text"),), meta=meta)
    assert not _notes(table, fields=(("txt", "text"),), meta="movie")


def test_few_files_are_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column takes a bounded number of file checks, few if its first texts are not paths; without `stat`, none."""
    write_tree(tmp_path, {"a.mp4": b""})
    examined, stat = list[str](), os.stat

    def counted(path: Any, *args: Any, **options: Any) -> os.stat_result:
        examined.append(os.fspath(path))
        return stat(path, *args, **options)

    def count(values: list[str]) -> int:
        table = pa.table({"caption": _TEXT * 1000, "note": values})
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", counted)
            examined.clear()
            manifest = ManifestSource(table, manifest_options(fields=(("txt", "caption"),), root=str(tmp_path)))
            try:
                list_manifest(manifest)
            except InvalidRequest as error:
                assert "'note' holds paths" in str(error)  # noqa: PT017 - one of the two
        return sum(str(tmp_path) in path for path in examined)

    assert count(["none"] * 3000) <= 15
    assert 90 <= count(["a.mp4"] * 3000) <= MAX_CHECKED_ROWS + 10


def test_remote_files_take_few_requests(http_files: Server, tmp_path: Path) -> None:
    """Media next to a table on a server are found with a few requests; other text takes none."""
    prefix = http_files.new_prefix()
    _table(http_files.local(prefix), movie=[*_CLIPS], caption=["a.b", "c d", "e"])
    with pytest.raises(InvalidRequest, match="column 'movie' holds paths of existing files"):
        create(f"{prefix}/t.csv", f"{tmp_path}/x-{{0..}}.tar", field=("txt=caption",), workers=0)
    create(f"{prefix}/t.csv", f"{tmp_path}/x-{{0..}}.tar", field=("txt=caption",), meta="movie", workers=0)
    _table(http_files.local(prefix), movie=["no.mp4", "none.mp4", "gone.mp4"], caption=_TEXT)
    create(f"{prefix}/t.csv", f"{tmp_path}/y-{{0..}}.tar", field=("txt=caption",), workers=0)

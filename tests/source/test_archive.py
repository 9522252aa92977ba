"""Archives as sources: a zip or a tar gives the same dataset as the folder that it would unpack to."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import CorruptShard, CreateOptions, InvalidRequest, Observer, SampleFailed, VerifyOptions, create, verify
from tests.helpers import members, read_tree, shards, typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_FILES = {
    "cat/1.png": b"i1", "cat/1.json": b"{}", "cat/2.png": bytes(2_000_000), "dog/3.png": os.urandom(700_000),
    "dog/deep/4.png": b"", "dog/README": b"read me", "dog/ü.png": b"u",
}  # fmt: skip
_JUNK = {"__MACOSX/cat/._1.png": b"j", "cat/.DS_Store": b"j", "cat/.hidden.png": b"h"}
_ENDINGS = (".zip", ".ZIP", "-stored.zip", ".tar", ".tar.gz", ".tar.xz")


def _pack_up(path: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """Write an archive; its name determines its format."""
    if path.suffix.lower() == ".zip":
        method = zipfile.ZIP_STORED if "stored" in path.name else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, data in files:
                archive.writestr(name, data)
        return path
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    data = plain.getvalue()
    if path.suffix != ".tar":
        data = lzma.compress(data) if path.suffix == ".xz" else gzip.compress(data)
    path.write_bytes(data)
    return path


def _pack(source: Any, folder: Path, **options: Any) -> dict[str, bytes]:
    create(source, f"{folder}/out-{{00..}}.tar", CreateOptions(**{"workers": 0, "max_count": 2, **options}))
    return dict(members(*shards(folder)))


@pytest.mark.slow
@pytest.mark.parametrize("ending", _ENDINGS)
def test_the_same_bytes_as_from_the_folder(ending: str, tmp_path: Path) -> None:
    """Shards, sidecars and skipped files equal those of the folder; only the source's name differs."""
    folder = write_tree(tmp_path / "in", {**_FILES, **_JUNK})
    archive = _pack_up(tmp_path / f"in{ending}", [*_JUNK.items(), ("./cat/", b""), *reversed(_FILES.items())])
    options = {"label_from_folder": True, "where": "size != 1", "exclude": ("2.*",)}
    _pack(folder, tmp_path / "a", **options)
    _pack(archive, tmp_path / "b", **options, workers=2)
    ours, theirs = read_tree(tmp_path / "a"), read_tree(tmp_path / "b")
    for tree, name in ((ours, "in"), (theirs, archive.name)):
        assert json.loads(tree.pop("out.json"))["shardtool"]["made"]["source"] == name
    assert theirs == ours
    assert [*(tmp_path / "b").glob(".*")] == []
    assert verify(tmp_path / "b", VerifyOptions(source=archive, workers=0)).sound


@pytest.mark.parametrize("ending", [".zip", ".tar", ".tgz"])
def test_options_apply_to_archives(ending: str, tmp_path: Path) -> None:
    """Formats, transforms, splits and resuming work as for a folder."""
    archive = _pack_up(tmp_path / f"in{ending}", _FILES.items())
    create(archive, f"{tmp_path}/x.tfrecord", CreateOptions(workers=0))
    assert sorted(members(tmp_path / "x.tfrecord")) == sorted((k, v) for k, v in _FILES.items() if "README" not in k)
    packed = _pack(archive, tmp_path / "mapped", map="tests.mapped:doubled")
    assert [*packed.values()].count(_FILES["dog/3.png"]) == 2
    create(archive, f"{tmp_path}/{{split}}.tar", CreateOptions(workers=0, split_from_folder=True))
    assert [name for name, _ in members(tmp_path / "cat.tar")] == ["cat/1.json", "cat/1.png", "cat/2.png"]
    before = _pack(archive, tmp_path / "again")
    assert _pack(archive, tmp_path / "again", resume=True) == before


def test_a_folder_inside_an_archive_can_be_packed(tmp_path: Path) -> None:
    """A path that continues after the archive's names a folder in it; a note suggests it."""
    archive = _pack_up(tmp_path / "in.zip", [(f"top/{name}", data) for name, data in _FILES.items()])
    packed = _pack(archive / "top", tmp_path / "out")
    assert packed == {name: data for name, data in _FILES.items() if "README" not in name}
    ran = typed("create", "in.zip", "x.tar", "--label-from-folder", "--dry-run", cwd=tmp_path)
    assert "all files are in the folder top: pack in.zip/top to use --label-from-folder with its subfolders" in ran.err
    ran = typed("create", "in.zip/none", "x.tar", cwd=tmp_path)
    assert (ran.code, "no samples" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("name", ["../a.png", "/a.png", "a/../../b.png", "a//b.png", "a/./b.png"])
@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_unsafe_member_names_are_refused(name: str, ending: str, tmp_path: Path) -> None:
    """A member name that is not a valid path is refused, or skipped and listed; nothing is written there."""
    archive = _pack_up(tmp_path / f"in{ending}", [(name, b"evil"), ("ok.png", b"ok")])
    with pytest.raises(SampleFailed, match="a name that is not a valid path below a folder"):
        _pack(archive, tmp_path / "out")
    assert _pack(archive, tmp_path / "out", on_error="skip") == {"ok.png": b"ok"}
    assert json.loads((tmp_path / "out" / "out.skipped").read_text())["code"] == "unsafe-name"


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A link in a tar or a zip is refused, or ignored with `--symlinks skip`; its sample is skipped with it."""
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for name, kind in (("a.png", tarfile.SYMTYPE), ("b.png", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        tar.addfile(tarfile.TarInfo("c.png"))
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        link = zipfile.ZipInfo("a.png")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("c.png", "")
    for name in ("in.tar", "in.zip"):
        with pytest.raises(SampleFailed, match=r"a.png \(a link; links in archives are not followed, use --sym"):
            _pack(tmp_path / name, tmp_path / "out")
        assert _pack(tmp_path / name, tmp_path / f"skip {name}", symlinks="skip") == {"c.png": b""}
        assert _pack(tmp_path / name, tmp_path / f"err {name}", on_error="skip") == {"c.png": b""}


def _patched(path: Path, at: int, number: int, form: str = "<L") -> Path:
    """Set a number of the first entry of a zip's directory."""
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, data.index(b"PK\1\2") + at, number)
    path.write_bytes(data)
    return path


def test_invalid_zip_directories_are_refused(tmp_path: Path) -> None:
    """Encrypted members, unsupported methods, impossible sizes and overlapping members are found in the directory."""
    files = [("a.png", b"1" * 500), ("b.png", b"2" * 500)]
    for at, number, problem in ((8, 1, "encrypted"), (10, 14, "unsupported compression method 14")):
        bad = _patched(_pack_up(tmp_path / f"{at}.zip", files), at, number, "<H")
        with pytest.raises(SampleFailed, match=rf"a.png \({problem}\)"):
            _pack(bad, tmp_path / "out")
        assert [*_pack(bad, tmp_path / f"skip{at}", on_error="skip")] == ["b.png"]
    for at, number in ((24, 2**31), (20, 2**31), (42, 2**31)):
        with pytest.raises(CorruptShard, match="a member that claims more bytes than the file has"):
            _pack(_patched(_pack_up(tmp_path / "x.zip", files), at, number), tmp_path / "out")
    second = _pack_up(tmp_path / "x.zip", files).read_bytes().index(b"PK\3\4", 4)
    with pytest.raises(CorruptShard, match="a member header that contradicts the zip directory"):
        _pack(_patched(tmp_path / "x.zip", 42, second), tmp_path / "out")


def _with_extra(names: Sequence[bytes], data: bytes, kernel: bytes, *, described: bool = False) -> bytes:
    """Return a zip whose members' local headers all lead to the same compressed payload."""
    flags, heads, entries = 8 * described, b"", b""
    total = sum(30 + len(name) for name in names)
    for name in names:
        at = len(heads)
        extra = total - at - 30 - len(name)
        numbers = (flags, 8, 0, 0, zlib.crc32(data), len(kernel), len(data), len(name))
        heads += struct.pack("<4s5H3L2H", b"PK\3\4", 20, *numbers, extra) + name
        entries += struct.pack("<4s6H3L5H2L", b"PK\1\2", 788, 20, *numbers, 0, 0, 0, 0, 0o100644 << 16, at) + name
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(names), len(names), len(entries), len(heads + kernel), 0)
    return heads + kernel + entries + end


def test_overlapping_payloads_are_refused(tmp_path: Path) -> None:
    """Payloads are located by their local headers."""
    pack = zlib.compressobj(wbits=-15)
    kernel = pack.compress(b"x" * 1000) + pack.flush()
    archive = tmp_path / "x.zip"
    archive.write_bytes(_with_extra([b"a.png"], b"x" * 1000, kernel))
    assert _pack(archive, tmp_path / "one") == {"a.png": b"x" * 1000}
    for described in (False, True):
        archive.write_bytes(_with_extra([b"a.png", b"b.png"], b"x" * 1000, kernel, described=described))
        with pytest.raises(CorruptShard, match="overlapping members"):
            _pack(archive, tmp_path / "out")


@pytest.mark.parametrize("ending", [".zip", ".tar"])
@pytest.mark.parametrize("depth", [1200, 30_000])
def test_deep_folders_are_packed(ending: str, depth: int, tmp_path: Path) -> None:
    """Members in any number of nested folders are packed, or skipped by name."""
    name = "d/" * depth + "x.png"
    archive = _pack_up(tmp_path / f"in{ending}", [(name, b"1"), ("good.png", b"2")])
    packed = _pack(archive, tmp_path / "out", on_error="skip", max_count=1)
    assert packed == {"good.png": b"2", **({name: b"1"} if depth < 4000 else {})}
    report = verify(tmp_path / "out", VerifyOptions(workers=0))
    assert not [finding for finding in report.findings if finding.code != "key-unsafe"]


def test_a_damaged_member_is_skipped(tmp_path: Path) -> None:
    """A payload with a wrong checksum fails the run, or is skipped; `verify` finds it in a packed dataset."""
    archive = _pack_up(tmp_path / "in-stored.zip", _FILES.items())
    before = _pack(archive, tmp_path / "before")
    data = bytearray(archive.read_bytes())
    data[data.index(_FILES["dog/3.png"]) + 600_000] ^= 1
    archive.write_bytes(data)
    with pytest.raises(SampleFailed, match=r"in-stored.zip:dog/3.png: .*does not match its checksum"):
        _pack(archive, tmp_path / "out")
    before.pop("dog/3.png")
    assert _pack(archive, tmp_path / "skip", on_error="skip") == before
    row = json.loads((tmp_path / "skip" / "out.skipped").read_text().splitlines()[-1])
    assert (row["path"], row["code"]) == ("in-stored.zip:dog/3.png", "unreadable")
    report = verify(tmp_path / "before", VerifyOptions(source=archive, workers=0))
    assert [(finding.code, finding.key) for finding in report.findings] == [("source-differs", "dog/3")]


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_truncated_archives_are_refused(ending: str, tmp_path: Path) -> None:
    """A truncated archive, or a file that is not one, is refused, and nothing is written."""
    archive = _pack_up(tmp_path / f"in{ending}", _FILES.items())
    data = archive.read_bytes()
    for cut in (data[:5000], b"no archive", b""):
        archive.write_bytes(cut)
        with pytest.raises(CorruptShard):
            _pack(archive, tmp_path / "out")
    assert not [*(tmp_path / "out").glob("*")]


def test_repeated_members_are_refused(tmp_path: Path) -> None:
    """Two members of the same name are refused: one would be lost."""
    archive = _pack_up(tmp_path / "in.tar", [("a.png", b"1"), ("a.json", b""), ("./a.png", b"2")])
    with pytest.raises(InvalidRequest, match=r"1 file stored several times: a\.png; expected each file once"):
        _pack(archive, tmp_path / "out")


@dataclass
class _Changing(Observer):
    """An observer that touches an archive after it was listed."""

    path: Path

    def listed(self, samples: int) -> None:
        """Touch the archive."""
        assert samples
        os.utime(self.path, ns=(1, 1))


@pytest.mark.parametrize("ending", [".zip", ".tar", ".tar.gz"])
def test_a_changed_archive_fails_the_run(ending: str, tmp_path: Path) -> None:
    """An archive that changes while it is packed fails the run."""
    archive = _pack_up(tmp_path / f"in{ending}", _FILES.items())
    options = CreateOptions(workers=0, label_from_folder=True)
    with pytest.raises(SampleFailed, match="changed while it was"):
        create(archive, f"{tmp_path}/out.tar", options, observer=_Changing(archive))

"""Laws of `copy`: a file is copied exactly as the dataset file lists it, or not at all; right files are kept."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from shardtool import (
    CopyOptions,
    CorruptShard,
    CreateOptions,
    InvalidRequest,
    Observer,
    OutputExists,
    OutputFailed,
    ReshardOptions,
    copy,
    create,
    export,
    reshard,
    verify,
)
from shardtool.pattern import sidecar_name
from shardtool.storage.files import read_crc
from shardtool.storage.staging import Folder
from tests.helpers import flip, identity, read_tree, shards, typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardtool.values import Trust

FILES = {f"{at:02}.{field}": f"{field}{at}".encode() * (at + 1) for at in range(12) for field in ("txt", "bin")}
OVERWRITE = CopyOptions(overwrite=True)
MADE = CreateOptions(max_count=3, workers=0)


@pytest.fixture(scope="module")
def packed(ending: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a dataset with four shards, a skipped sample, and indexes for other tools."""
    folder = tmp_path_factory.mktemp("packed")
    files = {**FILES, "large.bin": b"x" * 20_000}
    how = CreateOptions(max_count=3, max_size=18_000, oversize="skip", workers=0)
    create(write_tree(folder / "in", files), f"{folder}/out/out-{{000..}}.{ending}", how)
    export(
        folder / "out/out.json", ["dali-webdataset", "energon"] if ending == "tar" else ["dali-tfrecord", "tfrecord"]
    )
    return folder / "out"


@pytest.fixture
def source(packed: Path, tmp_path: Path) -> Path:
    """Return a copy of `packed` that the test may change."""
    return shutil.copytree(packed, tmp_path / "source")


def _dataset(folder: Path, files: dict[str, bytes] = FILES, options: CreateOptions = MADE) -> Path:
    create(write_tree(folder.parent / f"{folder.name}-in", files), f"{folder}/out-{{000..}}.tar", options)
    return folder


def _append(folder: Path, files: dict[str, bytes]) -> None:
    how = CreateOptions(max_count=3, workers=0, append=True)
    create(write_tree(folder.parent / "more", files), f"{folder}/out-{{000..}}.tar", how)


def test_a_copy_has_the_same_bytes_and_times(packed: Path, tmp_path: Path) -> None:
    """Shards, sidecars, the skipped list, valid indexes and the dataset file have the same bytes and times."""
    result = copy(packed, tmp_path / "new/copy")
    assert read_tree(tmp_path / "new/copy") == read_tree(packed)
    (one,) = result.datasets
    assert (one.shards, one.copied, one.kept, one.removed, one.samples) == (4, 4, 0, 0, 12)
    assert one.copied_size == one.size + sum(path.stat().st_size for path in packed.glob("*.index"))
    for path in [*shards(packed), *packed.glob("*.index")]:
        assert (tmp_path / "new/copy" / path.name).stat().st_mtime_ns == path.stat().st_mtime_ns
    assert verify(tmp_path / "new/copy").sound


def test_right_files_are_not_copied_again(packed: Path, tmp_path: Path) -> None:
    """A second copy writes nothing: each file keeps its inode and its times."""
    copy(packed, tmp_path / "copy")
    before = identity(tmp_path / "copy")
    result = copy(packed / "out.json", tmp_path / "copy", OVERWRITE)
    assert (result.datasets[0].copied, result.datasets[0].kept, result.datasets[0].copied_size) == (0, 4, 0)
    assert identity(tmp_path / "copy") == before


@pytest.mark.parametrize("suffix", ["shard", ".index"])
def test_damage_is_not_copied(suffix: str, source: Path, tmp_path: Path) -> None:
    """A flipped bit of a shard or sidecar fails the copy and is located; neither file nor dataset file is copied."""
    path = shards(source)[2] if suffix == "shard" else shards(source)[2].with_suffix(suffix)
    flip(path, -9)
    with pytest.raises(CorruptShard) as caught:
        copy(source, tmp_path / "copy")
    assert caught.value.where == str(path)
    there = read_tree(tmp_path / "copy")
    assert path.name not in there
    assert "out.json" not in there
    assert there.items() <= read_tree(source).items()


@pytest.mark.parametrize("which", ["shard", "sidecar", "skipped"])
def test_a_missing_source_file_is_found_before_writing(which: str, source: Path, tmp_path: Path) -> None:
    """A source with a missing file is refused with the file's name, and nothing is written."""
    last = shards(source)[-1]
    lost = {"shard": last, "sidecar": last.with_suffix(".index"), "skipped": source / "out.skipped"}[which]
    lost.unlink()
    with pytest.raises(CorruptShard, match=lost.name):
        copy(source, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_only_appended_shards_are_copied(tmp_path: Path) -> None:
    """After an append, only the new shards are copied, and existing ones are not changed."""
    source = _dataset(tmp_path / "source")
    copy(source, tmp_path / "copy")
    before = identity(tmp_path / "copy")
    del before["out.json"]
    more = {f"n{at}.txt": b"new" * at for at in range(5)}
    _append(source, more)
    (one,) = copy(source, tmp_path / "copy").datasets
    assert (one.copied, one.kept, one.removed) == (2, 4, 0)
    assert read_tree(tmp_path / "copy") == read_tree(source)
    assert before.items() <= identity(tmp_path / "copy").items()


def test_another_dataset_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    """With `overwrite`, files that only the old dataset lists are deleted, and no other file."""
    source = _dataset(tmp_path / "source", {f"{at}.txt": b"other" * at for at in range(6)})
    goal = _dataset(tmp_path / "copy")
    export(goal / "out.json", "dali-webdataset")
    foreign = {"out-099.tar": b"mine", "notes.txt": b"mine", "out-007.index": b"mine"}
    write_tree(goal, foreign)
    before = read_tree(goal), identity(goal)
    with pytest.raises(OutputExists, match=r"out-000\.tar"):
        copy(source, goal)
    assert (read_tree(goal), identity(goal)) == before
    (planned,) = copy(source, goal, CopyOptions(overwrite=True, dry_run=True)).datasets
    assert (read_tree(goal), identity(goal)) == before
    (one,) = copy(source, goal, OVERWRITE).datasets
    assert planned == one
    assert (one.copied, one.kept, one.removed) == (2, 0, 2)
    assert read_tree(goal) == {**read_tree(source), **foreign}


def test_an_overwrite_that_fails_leaves_the_old_dataset(tmp_path: Path) -> None:
    """All new files are staged before the first old file is deleted."""
    source = _dataset(tmp_path / "source", {f"{at}.txt": b"other" * at for at in range(6)})
    goal = _dataset(tmp_path / "copy")
    before = identity(goal)
    flip(shards(source)[1], 600)
    with pytest.raises(CorruptShard):
        copy(source, goal, OVERWRITE)
    assert identity(goal) == before


def test_unlisted_files_are_not_replaced(packed: Path, tmp_path: Path) -> None:
    """A file with a shard's name and other bytes, which no dataset file lists, stays without `overwrite`."""
    name = shards(packed)[1].name
    write_tree(tmp_path / "copy", {name: b"mine"})
    with pytest.raises(OutputExists, match=name):
        copy(packed, tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == {name: b"mine"}
    copy(packed, tmp_path / "copy", OVERWRITE)
    assert read_tree(tmp_path / "copy") == read_tree(packed)
    write_tree(tmp_path / "other", {"out.json": b"{}"})
    with pytest.raises(OutputExists, match="not a dataset file"):
        copy(packed, tmp_path / "other", OVERWRITE)


def test_a_damaged_copy_is_repaired(packed: Path, tmp_path: Path) -> None:
    """Files that differ from the dataset file there are copied again, and a note names them."""
    copy(packed, tmp_path / "copy")
    first, second, third = shards(tmp_path / "copy")[:3]
    flip(first, -1)
    second.unlink()
    flip(third.with_suffix(".index"), 100)
    result = copy(packed, tmp_path / "copy")
    assert (result.datasets[0].copied, result.datasets[0].kept) == (3, 1)
    assert first.name in result.notes[0]
    assert third.with_suffix(".index").name in result.notes[0]
    assert read_tree(tmp_path / "copy") == read_tree(packed)
    flip(tmp_path / "copy/out.json", 100)
    with pytest.raises(OutputExists, match="damaged"):
        copy(packed, tmp_path / "copy")
    assert copy(packed, tmp_path / "copy", OVERWRITE).datasets[0].kept == 4
    assert read_tree(tmp_path / "copy") == read_tree(packed)


@pytest.mark.parametrize("trust", ["size", "time"])
def test_trusted_shards_are_not_read(
    trust: Trust, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Existing shards are recognised by size or time without reading; another size, time or sidecar is not trusted."""
    options, there = CopyOptions(trust=trust), tmp_path / "copy"
    copy(packed, there)
    read = list[str]()

    def noted(path: str, took: Callable[[int], object]) -> tuple[int, int]:
        read.append(os.path.basename(path))
        return read_crc(path, took)

    monkeypatch.setattr("shardtool.verbs.copy.destination.read_crc", noted)
    names = [path.name for path in shards(there)]
    assert copy(packed, there, options).datasets[0].kept == 4
    assert {*names}.isdisjoint(read)
    with (there / names[0]).open("ab") as shard:
        shard.write(b"x")
    flip(there / sidecar_name(names[1]), 100)
    (there / names[2]).unlink()
    fact = (there / names[3]).stat()
    flip(there / names[3], 100)  # what only reading shows, where the time is the old one
    os.utime(there / names[3], ns=(fact.st_mtime_ns, fact.st_mtime_ns))
    assert copy(packed, there, options).datasets[0].copied == 3
    assert (there / names[3]).read_bytes() != (packed / names[3]).read_bytes()
    os.utime(there / names[3], ns=(fact.st_mtime_ns, fact.st_mtime_ns + 1))
    assert copy(packed, there, options).datasets[0].copied == (trust == "time")
    copy(packed, there)
    assert read_tree(there) == read_tree(packed)


def test_no_link_is_written_through(packed: Path, tmp_path: Path) -> None:
    """A link instead of a file or of the shards' folder is replaced; its target is never written."""
    target = write_tree(tmp_path / "elsewhere", {"file": b"mine"})
    name = shards(packed)[0].name
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / name).symlink_to(target / "file")
    with pytest.raises(OutputExists, match=name):
        copy(packed, tmp_path / "copy")
    copy(packed, tmp_path / "copy", OVERWRITE)
    assert not (tmp_path / "copy" / name).is_symlink()
    assert read_tree(target) == {"file": b"mine"}


def test_a_source_of_links_is_copied_as_files(packed: Path, tmp_path: Path) -> None:
    """Shards that are links, as in content-addressed stores, arrive as regular files."""
    (tmp_path / "links").mkdir()
    for path in packed.iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    copy(tmp_path / "links", tmp_path / "copy")
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))
    assert read_tree(tmp_path / "copy") == read_tree(packed)


def test_a_source_replaced_during_the_copy_fails(tmp_path: Path) -> None:
    """The copy fails with a message about the change, and no dataset file appears."""
    source = _dataset(tmp_path / "source")

    class Changing(Observer):
        def start(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002 - of an observer
            other = CreateOptions(max_count=2, workers=0, overwrite=True)
            create(
                write_tree(tmp_path / "x", {"a.txt": b"1" * 9000, "b.txt": b"2"}), f"{source}/out-{{000..}}.tar", other
            )

    with pytest.raises(CorruptShard, match="changed while it was copied"):
        copy(source, tmp_path / "copy", observer=Changing())
    assert "out.json" not in read_tree(tmp_path / "copy")
    assert copy(source, tmp_path / "new").datasets[0].shards == 1


def test_a_source_that_grows_during_the_copy_arrives_as_at_the_start(tmp_path: Path) -> None:
    """If samples are appended during a copy, the dataset is copied as it was at the start."""
    source = _dataset(tmp_path / "source")
    before = read_tree(source)

    class Growing(Observer):
        def start(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002 - of an observer
            _append(source, {"new.txt": b"new"})

    copy(source, tmp_path / "copy", observer=Growing())
    assert read_tree(tmp_path / "copy") == before


def test_a_full_disk_or_a_file_in_the_way_is_refused(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too little space nothing is written; a file instead of the folder is named."""
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "free_bytes", lambda _: 1000)
        with pytest.raises(OutputFailed, match="nothing was copied"):
            copy(packed, tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == {}
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputExists, match="a file; expected a folder"):
        copy(packed, tmp_path / "file/copy")


def test_a_second_copy_to_one_destination_is_refused(packed: Path, tmp_path: Path) -> None:
    """A second run on the same destination is refused while the first is running."""

    class Second(Observer):
        def start(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002 - of an observer
            with pytest.raises(OutputExists, match="another run"):
                copy(packed, tmp_path / "copy")

    copy(packed, tmp_path / "copy", observer=Second())
    assert read_tree(tmp_path / "copy") == read_tree(packed)


def test_stale_indexes_are_not_copied(tmp_path: Path) -> None:
    """A stale index of another tool is skipped with a note; a file of the user is not an index."""
    source = _dataset(tmp_path / "source")
    export(source / "out.json", ["dali-webdataset", "timm"])
    (source / "out-000.idx").write_bytes((source / "out-001.idx").read_bytes())
    (source / "out-001.json").write_bytes(b"mine")
    result = copy(source, tmp_path / "copy")
    there = read_tree(tmp_path / "copy")
    assert {*read_tree(source)} - {*there} == {"out-000.idx", "out-001.json"}
    assert "out-000.idx" in result.notes[0]
    assert result.datasets[0].indexes == 3


def test_shards_in_a_subfolder_are_copied_there(tmp_path: Path) -> None:
    """Shards in a subfolder arrive in the same subfolder, and are checked there."""
    source = _dataset(tmp_path / "source/shards")
    typed("index", source, "--output", tmp_path / "source", "--checksum")
    for path in source.glob("out*"):
        if path.suffix != ".tar":
            path.unlink()
    shutil.rmtree(tmp_path / "source/shards-in")
    before = read_tree(tmp_path / "source")
    assert copy(tmp_path / "source", tmp_path / "copy").datasets[0].copied == 4
    assert read_tree(tmp_path / "copy") == before
    assert copy(tmp_path / "source", tmp_path / "copy").datasets[0].kept == 4
    assert verify(tmp_path / "copy").sound
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/shards").symlink_to(tmp_path)
    with pytest.raises(OutputExists, match="not a folder"):
        copy(tmp_path / "source", tmp_path / "linked", OVERWRITE)


def test_shards_without_a_checksum_are_compared_by_size(tmp_path: Path) -> None:
    """Without recorded checksums, the size counts; a copied sidecar shows that its shard was copied before."""
    source = _dataset(tmp_path / "source")
    for path in source.glob("*.[ij]*"):
        path.unlink()
    typed("index", source)
    assert copy(source, tmp_path / "copy").datasets[0].copied == 4
    (tmp_path / "copy/out-001.index").unlink()
    assert copy(source, tmp_path / "copy").datasets[0].kept == 3
    assert read_tree(tmp_path / "copy") == read_tree(source)


def test_several_datasets_keep_their_folders(tmp_path: Path) -> None:
    """Splits in one folder arrive in one folder, and datasets of several folders in folders of the same names."""
    how = CreateOptions(split="train=0.5,val=0.5", workers=0)
    create(write_tree(tmp_path / "in", FILES), f"{tmp_path}/splits/{{split}}-{{000..}}.tar", how)
    export(tmp_path / "splits/train.json", "energon")
    assert len(copy(tmp_path / "splits", tmp_path / "copy").datasets) == 2
    assert read_tree(tmp_path / "copy") == read_tree(tmp_path / "splits")
    for name in ("one", "two"):
        _dataset(tmp_path / "both" / name)
        shutil.rmtree(tmp_path / f"both/{name}-in")
    copy(tmp_path / "both", tmp_path / "copies")
    assert read_tree(tmp_path / "copies") == read_tree(tmp_path / "both")


@pytest.mark.parametrize(
    ("given", "where"),
    [("out.json", "."), ("out.json", "new/out-{000..}.tar"), ("out.json", "out.json"), ("out.json", "https://h/x"),
     ("out-001.tar", "new"), ("nothing.json", "new")],
)  # fmt: skip
def test_invalid_requests_are_refused(given: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset onto itself, a file name as the folder, the web as destination, and a part of a dataset are refused."""
    source = _dataset(tmp_path / "source")
    before = read_tree(source)
    monkeypatch.chdir(source)
    with pytest.raises(InvalidRequest):
        copy(given, where)
    assert read_tree(source) == before


def test_shards_of_other_tools_need_an_index(tmp_path: Path) -> None:
    """Without a dataset file nothing can be verified: the message names the command that creates one."""
    source = _dataset(tmp_path / "source")
    (source / "out.json").unlink()
    with pytest.raises(InvalidRequest, match="index"):
        copy(source, tmp_path / "copy")


def test_a_resharded_source_replaces_its_copy(tmp_path: Path) -> None:
    """With `overwrite`, a recreated source with the same names replaces its copy, and old shards are deleted."""
    source = _dataset(tmp_path / "source")
    copy(source, tmp_path / "copy")
    reshard(source, f"{tmp_path}/anew/out-{{000..}}.tar", ReshardOptions(max_count=6, workers=0))
    (one,) = copy(tmp_path / "anew", tmp_path / "copy", OVERWRITE).datasets
    assert (one.copied, one.removed) == (2, 2)
    assert read_tree(tmp_path / "copy") == read_tree(tmp_path / "anew")


def test_copy_on_the_command_line(packed: Path, tmp_path: Path) -> None:
    """Text for people, JSON for programs, and the usual exit codes."""
    ran = typed("copy", packed, tmp_path / "copy", "--dry-run")
    assert (ran.code, ran.out.splitlines()[0].startswith("4 shards to copy, ")) == (0, True)
    assert not (tmp_path / "copy").exists()
    ran = typed("copy", packed / "out.json", tmp_path / "copy", "--workers", "0", "-v")
    told = [line.split(": copied, 3 samples, ")[0] for line in ran.err.splitlines()]
    assert (ran.code, told) == (0, [path.name for path in shards(packed)])
    ran = typed("copy", packed, tmp_path / "copy", "--json")
    result = json.loads(ran.out)
    assert (result["totals"]["kept"], result["totals"]["copied"], result["datasets"][0]["shards"]) == (4, 0, 4)
    flip(tmp_path / "copy/out.json", 50)
    ran = typed("copy", packed, tmp_path / "copy")
    assert (ran.code, "--overwrite" in ran.err) == (5, True)
    assert typed("copy", packed, tmp_path / "copy", "--overwrite", "--quiet").out == ""
    assert typed("copy", tmp_path / "copy", tmp_path / "copy").code == 2

"""`index --export`: index files of other tools, from any dataset file and sidecars."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from array import array
from contextlib import suppress
from hashlib import sha1, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import (
    CorruptShard,
    CreateOptions,
    ExportOptions,
    IndexOptions,
    InvalidRequest,
    OutputExists,
    create,
    export,
    index,
    inspect,
)
from shardtool.dataset.dataset_file import parse_dataset
from shardtool.storage.staging import Folder
from tests import tfrecords
from tests.helpers import existing, flip, identity, members, read_tree, shards, sidecar, typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS = {"tar": ("dali-webdataset", "energon"), "tfrecord": ("dali-tfrecord", "tfrecord")}
_ODD = {
    "x\u3000y/a b.txt": b"1",
    "x\u3000y/a b.bin": b"",
    "%20/é\u2028.txt": b"22",
    "%20/é\u2028.bin": b"x",
    "z.txt": b"3",
    "z.bin": b"4",
}


def _pack(source: Path, folder: Path, ending: str, **options: Any) -> Path:
    """Pack three samples per shard; return the dataset file."""
    changes = CreateOptions(**{"workers": 0, "max_count": 3, **options})
    create(source, f"{folder}/out-{{000..}}.{ending}", changes)
    return folder / "out.json"


def _foreign(folder: Path) -> Path:
    """Create a dataset of a shard with names that only another tool writes, with tabs and newlines; return its file."""
    folder.mkdir()
    with tarfile.open(folder / "out-0.tar", "w") as tar:
        for number, name in enumerate(("x\ty/a b.txt", "x\ty/a b.bin", "v\vw\n.txt")):
            member = tarfile.TarInfo(name)
            member.size = number
            tar.addfile(member, io.BytesIO(b"x" * number))
    return Path(index(f"{folder}/out-{{0..}}.tar", IndexOptions(workers=0)).dataset_file)


@pytest.fixture(scope="session")
def packed_once(small_once: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of four shards of each format, which tests do not change."""
    folders = {ending: tmp_path_factory.mktemp(ending) for ending in ("tar", "tfrecord")}
    return {ending: _pack(small_once, folder, ending).parent for ending, folder in folders.items()}


@pytest.fixture
def packed(packed_once: dict[str, Path], ending: str, tmp_path: Path) -> Path:
    """Return a dataset file."""
    return shutil.copytree(packed_once[ending], tmp_path / "out") / "out.json"


@pytest.fixture
def tars(packed_once: dict[str, Path], tmp_path: Path) -> Path:
    """Return the dataset file of four tars."""
    return shutil.copytree(packed_once["tar"], tmp_path / "out") / "out.json"


def _sign(dataset: Path, document: Any) -> None:
    """Write a dataset file with a valid checksum and any content."""
    document = {name: value for name, value in document.items() if name != "checksum"}
    body = json.dumps(document, indent=2).removesuffix("\n}").encode() + b',\n  "checksum": "crc32c:'
    dataset.write_bytes(body + b'%08x"\n}\n' % crc32c.crc32c(body))


def _update_entry(dataset: Path, at: int) -> None:
    """Update the entry of a sidecar in the dataset file."""
    document = json.loads(dataset.read_bytes())
    index = document["shardlist"][at]["index"]
    raw = (dataset.parent / index["name"]).read_bytes()
    index |= {"size": len(raw), "crc32c": f"{crc32c.crc32c(raw):08x}"}
    _sign(dataset, document)


@pytest.mark.parametrize("tree", ["small", "odd"])
def test_a_tfrecord_index_has_every_record(tree: str, small: Path, tmp_path: Path) -> None:
    """Both kinds of TFRecord index contain offset and size of every record, one per line, in order."""
    source = small if tree == "small" else write_tree(tmp_path / "odd", _ODD)
    dataset = _pack(source, tmp_path / "out", "tfrecord")
    result = export(dataset, ["dali-tfrecord", "tfrecord"])
    for shard in shards(tmp_path / "out"):
        actual = tfrecords.records(shard.read_bytes())
        lines = b"".join(b"%d %d\n" % (offset, len(data) + 16) for offset, data in actual)
        assert shard.with_suffix(".idx").read_bytes() == shard.with_suffix(".tfindex").read_bytes() == lines
    both = [(shard.with_suffix(".idx").name, shard.with_suffix(".tfindex").name) for shard in shards(tmp_path / "out")]
    assert list(result.files) == [name for pair in both for name in pair]


@pytest.mark.parametrize("tree", ["small", "odd", "foreign"])
def test_a_webdataset_index_locates_every_payload(tree: str, small: Path, tmp_path: Path) -> None:
    """Each line has field, offset, length and name of every payload of a sample, without unescaped white space."""
    if tree == "foreign":
        dataset = _foreign(tmp_path / "out")
    else:
        source = small if tree == "small" else write_tree(tmp_path / "odd", _ODD)
        dataset = _pack(source, tmp_path / "out", "tar", label_from_folder=tree == "small")
    export(dataset, "dali-webdataset")
    for shard in shards(tmp_path / "out"):
        raw, result = shard.read_bytes(), []
        head, *lines = shard.with_suffix(".idx").read_bytes().decode().removesuffix("\n").split("\n")
        assert head == f"v1.2 {len(lines)}"
        for line in lines:
            words = line.encode().split()  # at what C++ takes for white space, too
            for field, offset, length, name in zip(*(words[part::4] for part in range(4)), strict=True):
                key = unquote_to_bytes(name).decode().removesuffix(f".{field.decode()}")
                assert int(offset) % 512 == 0
                result.append((f"{key}.{field.decode()}", raw[int(offset) : int(offset) + int(length)]))
        assert result == members(shard)


@pytest.mark.parametrize("tree", ["small", "odd"])
def test_energons_offsets(tree: str, small: Path, tmp_path: Path) -> None:
    """Each index has the offsets of the samples, and of the zero block after the last, as uint64."""
    long = {f"{'d' * 120}/{'n' * 150}.{field}": b"1" for field in ("txt", "bin")}  # a pax header before each
    source = small if tree == "small" else write_tree(tmp_path / "odd", {**_ODD, **long})
    export(_pack(source, tmp_path / "out", "tar"), "energon")
    for shard in shards(tmp_path / "out"):
        with tarfile.open(shard) as tar:
            firsts = {member.name.split(".")[0]: member.offset for member in reversed(tar.getmembers())}
            expected = [*reversed(firsts.values()), tar.offset]
        assert array("Q", shard.with_suffix(".tar.idx").read_bytes()).tolist() == expected


def test_energons_folder(tars: Path) -> None:
    """A dataset without splits is `train`, with the sample count of each shard."""
    assert export(tars, "energon").files[-3:] == tuple(_META)
    info, split, crude = _meta(tars.parent)
    names = {shard.name: 3 for shard in shards(tars.parent)}
    assert json.loads(info) == {"shard_counts": names}
    listed = "".join(f'  - "{name}"\n' for name in names)
    assert split == f'split_parts:\n  "train":\n{listed}  "val": []\n  "test": []\n'
    assert crude == "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


_META = (".nv-meta/dataset.yaml", ".nv-meta/split.yaml", ".nv-meta/.info.json")


def _meta(folder: Path) -> tuple[str, ...]:
    return tuple((folder / name).read_text() for name in reversed(_META))


def _split(small: Path, folder: Path, **options: Any) -> list[Path]:
    changes = CreateOptions(**{"split": "val=0.5,train=0.5", "workers": 0, "max_count": 2, **options})
    create(small, f"{folder}/{{split}}-{{000..}}.tar", changes)
    return [folder / "train.json", folder / "val.json"]


def test_energons_folder_has_all_splits(small: Path, tmp_path: Path) -> None:
    """The splits of one run share a folder, in any order of exports, and `create` writes the same."""
    result = []
    for turn in ((0, 1), (1, 0, 0, 1)):
        datasets = _split(small, tmp_path / f"out{turn[0]}")
        for at in turn:
            export(datasets[at], "energon")
            assert f'"{datasets[at].stem}-000.tar"' in _meta(datasets[at].parent)[1]
        result.append(read_tree(datasets[0].parent))
    _split(small, tmp_path / "made", export=("energon",))
    assert result[0] == result[1] == read_tree(tmp_path / "made")
    info, split, _ = _meta(tmp_path / "made")
    assert list(json.loads(info)["shard_counts"]) == sorted(path.name for path in shards(tmp_path / "made"))
    assert split.index('"train"') < split.index('"train-000.tar"') < split.index('"val"') < split.index('"val-000.tar"')


def test_exports_after_an_append(small: Path, tmp_path: Path) -> None:
    """Indexes cover appended samples, at once or when they are recreated; those of old shards stay."""
    dataset, more = _pack(small, tmp_path / "out", "tar"), tmp_path / "more"
    formats = ["energon", "dali-webdataset", "huggingface"]
    export(dataset, formats)
    before = read_tree(dataset.parent)
    for number in range(2):  # the second time, what is there is older than the last append but one
        write_tree(more, {f"new/{number}{at}.txt": b"%d" % at for at in range(4)})
        options = CreateOptions(append=True, include=(f"new/{number}*",), max_count=3, workers=0)
        create(more, f"{tmp_path}/out/out-{{000..}}.tar", options)
    result = export(dataset, formats)
    names = [shard.name for shard in shards(dataset.parent)]
    assert (len(names), result.kept) == (8, 24)  # all but the Hub's indexes of four shards, for which these are read
    after = read_tree(dataset.parent)
    assert {name for name in before if before[name] != after[name]} == {
        "out.json", ".nv-meta/.info.json", ".nv-meta/split.yaml"
    }  # fmt: skip
    counts = json.loads(after[".nv-meta/.info.json"])["shard_counts"]
    assert counts == dict.fromkeys(names[:4], 3) | dict(zip(names[4:], (3, 1, 3, 1), strict=True))
    assert [line.strip('- "') for line in after[".nv-meta/split.yaml"].decode().splitlines() if ".tar" in line] == names
    for name in names:
        assert {f"{name}.idx", name.replace(".tar", ".idx"), name.replace(".tar", ".json")} <= set(after)
    assert export(dataset, formats).kept == len(result.files)
    (dataset.parent / ".nv-meta" / "split.yaml").write_bytes(b"mine")
    with pytest.raises(OutputExists, match=r"split\.yaml"):
        export(dataset, ["energon"])


def test_energons_folder_after_an_append_to_a_split(small: Path, tmp_path: Path) -> None:
    """Splits of one run remain in one folder after an append to one of them."""
    folder = tmp_path / "out"
    options = CreateOptions(split="train=0.5,val=0.5", workers=0, max_count=3, export=("energon",))
    create(small, f"{folder}/{{split}}-{{000..}}.tar", options)
    old = len(shards(folder))
    more = write_tree(tmp_path / "more", {"new.txt": b"1"})
    create(more, f"{folder}/train-{{000..}}.tar", CreateOptions(append=True, workers=0))
    for name in ("train.json", "val.json"):
        export(folder / name, "energon")
        counts = json.loads((folder / ".nv-meta" / ".info.json").read_bytes())["shard_counts"]
        assert sorted(counts) == [shard.name for shard in shards(folder)]
    assert len(counts) == old + 1
    assert inspect(folder / "train.json").siblings == {"val": "val.json"}


def test_energons_folder_of_another_dataset(small: Path, tmp_path: Path) -> None:
    """Files that cover another dataset are never replaced, and `create` refuses before it writes."""
    export(_pack(small, tmp_path / "out", "tar"), "energon")
    create(small, f"{tmp_path}/out/b-{{000..}}.tar", CreateOptions(workers=0, max_count=3))
    before = read_tree(tmp_path / "out")
    for overwrite in (False, True):
        with pytest.raises(OutputExists, match=r"info\.json.*out-000\.tar.*one folder per dataset"):
            export(tmp_path / "out" / "b.json", "energon", ExportOptions(overwrite=overwrite))
    for if_exists in ("error", "overwrite"):
        options = CreateOptions(workers=0, export=("energon",), **existing(if_exists))
        with pytest.raises(OutputExists, match=r"info\.json.*out-000\.tar"):
            create(small, f"{tmp_path}/out/c-{{000..}}.tar", options)
    assert read_tree(tmp_path / "out") == before
    for path in (tmp_path / "out").glob("out*"):
        path.unlink()
    with pytest.raises(OutputExists, match="overwrite=True"):
        export(tmp_path / "out" / "b.json", "energon")
    export(tmp_path / "out" / "b.json", "energon", ExportOptions(overwrite=True))
    assert "out-" not in "".join(_meta(tmp_path / "out"))


def test_energon_files_changed_by_the_user_are_kept(tars: Path) -> None:
    """A changed split is replaced only with `overwrite`; an existing `dataset.yaml` is kept."""
    export(tars, "energon")
    split, crude = (tars.parent / name for name in (_META[1], _META[0]))
    right = split.read_text()
    crude.write_text("sample_type: mine\n")
    assert export(tars, "energon").kept == 7
    split.write_text(right.replace('"val": []\n', '"val":\n  - "out-003.tar"\n'))
    with pytest.raises(OutputExists, match=r"split\.yaml.*overwrite=True"):
        export(tars, "energon")
    export(tars, "energon", ExportOptions(overwrite=True))
    assert (split.read_text(), crude.read_text()) == (right, "sample_type: mine\n")


@pytest.mark.parametrize(
    "info", [b"", b"[1]", b'{"shard_counts": 7}', b"[" * 100_000, b"\xff", b'{"shard_counts":["\\u0000"]}']
)
def test_an_invalid_energon_info_file(info: bytes, tars: Path) -> None:
    """Any content of energon's `.info.json` is refused, and replaced with `overwrite`."""
    export(tars, "energon")
    before = read_tree(tars.parent)
    (tars.parent / _META[2]).write_bytes(info)
    with pytest.raises(OutputExists, match=r"\.nv-meta/"):
        export(tars, "energon")
    export(tars, "energon", ExportOptions(overwrite=True))
    assert read_tree(tars.parent) == before


@pytest.mark.parametrize("kind", ["link", "file"])
def test_nv_meta_is_not_a_folder(kind: str, tars: Path, tmp_path: Path) -> None:
    """If `.nv-meta` is a link to a folder, or a file, nothing is written."""
    (tmp_path / "elsewhere").mkdir()
    if kind == "link":
        (tars.parent / ".nv-meta").symlink_to(tmp_path / "elsewhere")
    else:
        (tars.parent / ".nv-meta").touch()
    before = sorted(os.listdir(tars.parent))
    with pytest.raises(OutputExists, match="not a folder"):
        export(tars, "energon", ExportOptions(overwrite=True))
    assert (sorted(os.listdir(tars.parent)), os.listdir(tmp_path / "elsewhere")) == (before, [])


@pytest.mark.parametrize("name", ["__a__/b.txt", "a.__x__"])
def test_members_that_energon_ignores_are_refused(name: str, tmp_path: Path) -> None:
    """A member that energon would not read is refused, and nothing is written."""
    files = {"__a__/b.txt": b"1"} if "/" in name else {"__a.__": b"1"}
    dataset = _pack(write_tree(tmp_path / "s", files), tmp_path / "out", "tar")
    before = read_tree(tmp_path / "out")
    with pytest.raises(InvalidRequest, match=r"out-000\.tar.*energon ignores.*portable=True"):
        export(dataset, "energon")
    assert read_tree(tmp_path / "out") == before


def test_a_shard_name_with_a_quote_is_refused_for_energon(small: Path, tmp_path: Path) -> None:
    """Nothing is written."""
    create(small, f'{tmp_path}/out/a"b-{{0..}}.tar', CreateOptions(workers=0))
    before = read_tree(tmp_path / "out")
    with pytest.raises(InvalidRequest, match="without quotes"):
        export(tmp_path / "out" / 'a"b.json', "energon")
    assert read_tree(tmp_path / "out") == before


@pytest.mark.parametrize("tree", ["small", "odd", "large"])
def test_the_hugging_face_index(tree: str, small: Path, tmp_path: Path) -> None:
    """The index has offset and SHA-256 of every member, and the SHA-256 and git blob id of the shard."""
    large = {"l/a.bin": b"abc" * 700_000, "l/a.txt": b"", "l/b.bin": b"x" * (2**20 - 512)}  # over several blocks
    source = small if tree == "small" else write_tree(tmp_path / "s", _ODD if tree == "odd" else large)
    result = export(_pack(source, tmp_path / "out", "tar"), "huggingface", ExportOptions(workers=0))
    assert result.files == (*(path.with_suffix(".json").name for path in shards(tmp_path / "out")), "README.md")
    assert result.notes == ()
    for shard in shards(tmp_path / "out"):
        raw = shard.read_bytes()
        with tarfile.open(shard) as tar:
            files = {
                item.name: {
                    "offset": item.offset_data,
                    "size": item.size,
                    "sha256": sha256(raw[item.offset_data : item.offset_data + item.size]).hexdigest(),
                }
                for item in tar
            }
        assert json.loads(shard.with_suffix(".json").read_bytes()) == {
            "filesize": len(raw),
            "hash": sha1(b"blob %d\0" % len(raw) + raw).hexdigest(),  # noqa: S324 - git's
            "hash_lfs": sha256(raw).hexdigest(),
            "files": files,
        }


def _linked(shard: Path) -> None:
    shard.unlink()
    shard.symlink_to("nothing")


def _piped(shard: Path) -> None:
    shard.unlink()
    os.mkfifo(shard)


SHARD_DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": lambda shard: flip(shard, 700),
    "cut": lambda shard: os.truncate(shard, 5120),
    "missing": lambda shard: shard.unlink(),
    "a link to nothing": _linked,
    "a fifo": _piped,
}


@pytest.mark.parametrize("damage", SHARD_DAMAGE)
def test_hashes_of_a_damaged_shard(damage: str, tars: Path) -> None:
    """If a shard differs from the dataset file, no index with hashes is written for any shard."""
    SHARD_DAMAGE[damage](tars.parent / "out-001.tar")
    before = sorted(os.listdir(tars.parent))
    with pytest.raises(CorruptShard, match=r"out-001\.tar"):
        export(tars, "huggingface", ExportOptions(workers=0))
    assert sorted(os.listdir(tars.parent)) == before


def test_an_index_never_replaces_a_dataset_file(small: Path, tmp_path: Path) -> None:
    """This holds for any dataset file, and `create` refuses before it writes."""
    create(small, f"{tmp_path}/out/out.tar", CreateOptions(workers=0))
    before = read_tree(tmp_path / "out")
    with pytest.raises(InvalidRequest, match=r"the dataset file would both be out\.json; expected .*number"):
        export(tmp_path / "out" / "out.json", "huggingface", ExportOptions(overwrite=True, workers=0))
    assert read_tree(tmp_path / "out") == before
    with pytest.raises(InvalidRequest, match=r"both be new\.json"):
        create(small, f"{tmp_path}/new/new.tar", CreateOptions(workers=0, export=("huggingface",)))
    assert not list((tmp_path / "new").glob("*"))
    create(small, f"{tmp_path}/other/out.tar", CreateOptions(workers=0))
    with pytest.raises(OutputExists, match="a dataset file"):
        export(
            tmp_path / "out" / "out.json",
            "huggingface",
            ExportOptions(output=tmp_path / "other", overwrite=True, workers=0),
        )


def test_wids_reads_the_dataset_file(tars: Path) -> None:
    """Nothing is written for wids, and a note says so."""
    before = identity(tars.parent)
    result = export(tars, "wids")
    assert (result.files, identity(tars.parent)) == ((), before)
    assert "no other file is needed" in result.notes[0]


_ALL = {"tar": ("dali-webdataset", "energon", "huggingface", "wids"), "tfrecord": ("dali-tfrecord", "tfrecord")}


def test_create_exports(small: Path, ending: str, tmp_path: Path) -> None:
    """`create` writes the same indexes as a later `export`, reports them, and records nothing."""
    export(_pack(small, tmp_path / "later", ending), _ALL[ending], ExportOptions(workers=0))
    words = [word for name in _ALL[ending] for word in ("--export", name)]
    output = f"{tmp_path}/out/out-{{000..}}.{ending}"
    ran = typed("create", small, output, "--max-count", "3", *words, "--json")
    assert json.loads(ran.out)["exported"] == list(_ALL[ending])
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "later")
    assert "exported" not in create(small, f"{tmp_path}/plain/o-{{0..}}.tar", CreateOptions(workers=0)).to_json()


def test_create_exports_again(small: Path, tmp_path: Path) -> None:
    """Existing index files are an error before anything is written; `--resume` and `--overwrite` renew them."""
    dataset = _pack(small, tmp_path / "out", "tar", export=("energon", "dali-webdataset"))
    right = read_tree(tmp_path / "out")
    for path in [dataset, *shards(tmp_path / "out"), *(tmp_path / "out").glob("*.index")]:
        path.unlink()
    (tmp_path / "out" / "out-001.idx").write_bytes(b"old")
    before = read_tree(tmp_path / "out")
    with pytest.raises(OutputExists, match=r"7 files with indexes of earlier shards: out-000\.idx"):
        _pack(small, tmp_path / "out", "tar", export=("energon", "dali-webdataset"))
    assert read_tree(tmp_path / "out") == before
    for if_exists in ("resume", "overwrite"):
        (tmp_path / "out" / "out-002.idx").write_bytes(b"old")
        _pack(small, tmp_path / "out", "tar", export=("energon", "dali-webdataset"), **existing(if_exists))
        assert read_tree(tmp_path / "out") == right


@pytest.mark.parametrize(("name", "message"), [("nope", "'nope'"), ("tfrecord", "the shards are tar")])
def test_create_refuses_formats_before_it_writes(name: str, message: str, small: Path, tmp_path: Path) -> None:
    """An unknown format, or one for other shards, is refused before a folder is created, also in a dry run."""
    for dry_run in (False, True):
        with pytest.raises(InvalidRequest, match=message):
            create(small, f"{tmp_path}/out/out-{{0..}}.tar", workers=0, export=(name,), dry_run=dry_run)
    assert not (tmp_path / "out").exists()


def test_names_with_percent_signs_do_not_clash(tmp_path: Path) -> None:
    """A name that looks encoded differs from the encoding of another name."""
    source = write_tree(tmp_path / "s", {"a b.txt": b"1", "a%20b.txt": b"2", "c.x%y": b"3"})
    export(_pack(source, tmp_path / "out", "tar"), "dali-webdataset")
    names = (tmp_path / "out" / "out-000.idx").read_bytes().split()[2:][3::4]
    assert [unquote_to_bytes(name) for name in names] == [b"a b.txt", b"a%20b.txt", b"c.x%y"]
    assert len(set(names)) == 3


def test_a_field_that_dali_cannot_name_is_refused(tmp_path: Path) -> None:
    """DALI's index cannot contain a field name with white space, so nothing is written."""
    dataset = _pack(write_tree(tmp_path / "s", {"a.t t": b"1"}), tmp_path / "out", "tar")
    before = read_tree(tmp_path / "out")
    with pytest.raises(InvalidRequest, match=r"out-000\.tar.*'t t'.*portable=True"):
        export(dataset, "dali-webdataset")
    assert read_tree(tmp_path / "out") == before


def test_identical_files_are_kept(packed: Path, ending: str) -> None:
    """A repeated export changes no file, and deletes temporary files of an interrupted run."""
    first = export(packed, FORMATS[ending])
    before = identity(packed.parent)
    (packed.parent / f".{first.files[0]}.part").write_bytes(b"cut")
    again = export(packed, FORMATS[ending])
    assert (first.kept, again.kept) == (0, len(first.files))
    assert identity(packed.parent) == before


def test_differing_files_are_replaced_only_with_overwrite(packed: Path, ending: str) -> None:
    """A file with other bytes is refused, and no file changes; `overwrite` replaces it."""
    names = export(packed, FORMATS[ending]).files
    right = read_tree(packed.parent)
    (packed.parent / names[-1]).write_bytes(right[names[-1]][::-1])
    (packed.parent / names[0]).unlink()
    before = identity(packed.parent)
    with pytest.raises(OutputExists, match=rf"{names[-1]}.*overwrite"):
        export(packed, FORMATS[ending])
    assert identity(packed.parent) == before
    assert export(packed, FORMATS[ending], ExportOptions(overwrite=True)).kept == len(names) - 2
    assert read_tree(packed.parent) == right


def test_another_folder(packed: Path, ending: str, tmp_path: Path) -> None:
    """`output` creates that folder, and nothing changes next to the shards."""
    before, output = identity(packed.parent), tmp_path / "deep" / "indexes"
    result = export(packed, FORMATS[ending], ExportOptions(output=output))
    assert sorted(read_tree(output)) == sorted(result.files)
    assert identity(packed.parent) == before


def test_a_link_is_replaced_and_not_followed(tars: Path, tmp_path: Path) -> None:
    """The target of a link with the name of an index is neither compared nor overwritten."""
    (tmp_path / "elsewhere").write_bytes(b"mine")
    (tars.parent / "out-000.idx").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputExists, match=r"out-000\.idx"):
        export(tars, "dali-webdataset")
    export(tars, "dali-webdataset", ExportOptions(overwrite=True))
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
    assert not (tars.parent / "out-000.idx").is_symlink()


def test_a_folder_instead_of_an_index_file(tars: Path) -> None:
    """It is refused, and nothing is written."""
    (tars.parent / "out-002.idx").mkdir()
    before = read_tree(tars.parent)
    for overwrite in (False, True):
        with pytest.raises(OutputExists, match=r"out-002\.idx"):
            export(tars, "dali-webdataset", ExportOptions(overwrite=overwrite))
        assert read_tree(tars.parent) == before


def test_one_run_at_a_time(tars: Path) -> None:
    """While another run writes this dataset, nothing is written."""
    with Folder(str(tars.parent)).lock("out"), pytest.raises(OutputExists, match="another run"):
        export(tars, "dali-webdataset")
    assert not list(tars.parent.glob("*.idx"))


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        ([], "no format"),
        (["mds"], "'mds'"),
        (["tfrecord"], "the shards are tar"),
        (["dali-webdataset", "nope"], "nope"),
    ],
)
def test_invalid_formats_are_refused(formats: list[str], message: str, tars: Path) -> None:
    """An unknown format, or one for other shards, is refused with the list of formats."""
    with pytest.raises(InvalidRequest, match=f"{message}.*dali-webdataset"):
        export(tars, formats)
    assert not list(tars.parent.glob("*.idx"))


@pytest.mark.parametrize("name", ["nowhere.json", "nowhere/out.json", "out-000.tar", "", "folder.json"])
def test_only_a_dataset_file_can_be_exported(name: str, tars: Path) -> None:
    """A missing file, or another file name, is an invalid request."""
    (tars.parent / "folder.json").mkdir()
    with pytest.raises(InvalidRequest, match=r"dataset file|out\.json"):
        export(f"{tars.parent}/{name}", "dali-webdataset", ExportOptions(output=tars.parent / "new"))
    assert not (tars.parent / "new").exists()


def test_shards_with_too_few_samples_are_noted(tmp_path: Path) -> None:
    """A shard with fewer samples than a reader needs is noted, and its index is written."""
    source = write_tree(tmp_path / "s", {"a.txt": b"1", "b.txt": b"2", "c.txt": b"3"})
    dataset = _pack(source, tmp_path / "out", "tfrecord", max_count=2)
    assert export(dataset, "dali-tfrecord").notes == ()
    (note,) = export(dataset, "tfrecord").notes
    assert "out-001.tfrecord" in note
    assert "out-000" not in note
    assert len((tmp_path / "out" / "out-001.tfindex").read_bytes().split(b"\n")) == 2


def test_any_flipped_byte_of_the_dataset_file(tars: Path) -> None:
    """A dataset file with any byte flipped, missing or added is `CorruptShard`."""
    raw = tars.read_bytes()
    parse_dataset(raw, "out.json")
    for at in range(len(raw)):
        for damaged in (
            raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :],
            raw[:at] + raw[at + 1 :],
            raw[:at],
            raw + raw[: at + 1],
        ):
            with pytest.raises(CorruptShard, match=r"out\.json"):
                parse_dataset(damaged, "out.json")


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"[" * 100_000, b'{"wids_version": 1}', b"\xff\xfe", b"null"])
def test_a_file_that_is_not_a_dataset_file(text: bytes, tars: Path) -> None:
    """It is `CorruptShard`."""
    tars.write_bytes(text)
    with pytest.raises(CorruptShard, match=r"out\.json"):
        export(tars, "dali-webdataset")


_NO_NAMES = [
    "../out-000.tar",
    "/etc/out-000.tar",
    "a/b.tar",
    "",
    ".",
    "..",
    "a\0b.tar",
    "\ud800.tar",
    "\udcff.tar",
    7,
    None,
]


@pytest.mark.parametrize("name", _NO_NAMES, ids=repr)
@pytest.mark.parametrize("what", ["shard", "sidecar"])
def test_names_cannot_lead_out_of_the_folder(what: str, name: Any, tars: Path, tmp_path: Path) -> None:
    """A name in a dataset file that is not a plain file name is `CorruptShard`; it is neither read nor written."""
    for path in tars.parent.glob("out-000.*"):
        shutil.copy(path, tmp_path)
    document = json.loads(tars.read_bytes())
    shard = document["shardlist"][0]
    if what == "shard":
        shard["url"] = name
    shard["index"]["name"] = name.replace(".tar", ".index") if isinstance(name, str) else name
    _sign(tars, document)
    before = read_tree(tmp_path)
    with pytest.raises(CorruptShard, match=r"out\.json"):
        export(tars, "dali-webdataset")
    assert read_tree(tmp_path) == before


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    result = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return result + [place for name, one in items for place in _places(one, (*path, name))]


@given(data=st.data(), value=_JSON)
def test_any_signed_dataset_file(data: st.DataObject, value: Any, tars: Path) -> None:
    """Any content of a dataset file with a valid checksum gives a result or `CorruptShard`."""
    raw = tars.read_bytes()
    document = json.loads(raw)
    place = data.draw(st.sampled_from(_places(document)))
    holder = document
    for name in place[:-1]:
        holder = holder[name]
    if data.draw(st.booleans()):
        holder[place[-1]] = value
    else:
        del holder[place[-1]]
    _sign(tars, document)
    try:
        with suppress(CorruptShard):
            export(tars, "dali-webdataset")
    finally:
        tars.write_bytes(raw)
        for path in tars.parent.glob("*.idx"):
            path.unlink()


def _swap(folder: Path) -> None:
    (folder / "out-001.index").write_bytes((folder / "out-002.index").read_bytes())


def _lengthen(folder: Path) -> None:
    (folder / "out-001.index").write_bytes((folder / "out-001.index").read_bytes() + b"more")


def _fifo(folder: Path) -> None:
    (folder / "out-001.index").unlink()
    os.mkfifo(folder / "out-001.index")


def _link(folder: Path) -> None:
    (folder / "out-001.index").rename(folder.parent / "moved.index")
    (folder / "out-001.index").symlink_to(folder.parent / "moved.index")


def _folder(folder: Path) -> None:
    (folder / "out-001.index").unlink()
    (folder / "out-001.index").mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda folder: (folder / "out-001.index").unlink(),
    "empty": lambda folder: (folder / "out-001.index").write_bytes(b""),
    "cut": lambda folder: os.truncate(folder / "out-001.index", 700),
    "longer": _lengthen,
    "flipped at the start": lambda folder: flip(folder / "out-001.index", 0),
    "flipped in a page": lambda folder: flip(folder / "out-001.index", 100),
    "flipped in the footer": lambda folder: flip(folder / "out-001.index", -50),
    "another's": _swap,
    "a fifo": _fifo,
    "a link": _link,
    "a folder": _folder,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_sidecar(damage: str, packed: Path, ending: str) -> None:
    """A sidecar that differs from the dataset file is named, and no index file is published."""
    DAMAGE[damage](packed.parent)
    before = sorted(os.listdir(packed.parent))
    with pytest.raises(CorruptShard, match=r"out-001\.index"):
        export(packed, FORMATS[ending])
    assert sorted(os.listdir(packed.parent)) == before


def _rewritten(table: Any, facts: dict[bytes, bytes]) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, store_schema=False, write_page_checksum=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({name.decode(): value.decode() for name, value in facts.items()})
    return sink.getvalue()


def _set(table: Any, name: str, values: Any) -> Any:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(name).with_type(values.type), values)


def _fields_with(table: Any, part: str, change: Callable[[Any], Any]) -> Any:
    lists = table.column("__fields__").combine_chunks()
    fields = lists.flatten()
    parts = [fields.field(at.name) for at in fields.type]
    names = [at.name for at in fields.type]
    parts[names.index(part)] = change(parts[names.index(part)])
    changed = pa.StructArray.from_arrays(parts, fields=list(fields.type))
    return _set(table, "__fields__", pa.ListArray.from_arrays(lists.offsets, changed, type=lists.type))


def _plus(most: int) -> Callable[[Any], Any]:
    return lambda column: pc.add(column, pa.scalar(most, column.type))


def _times_zero(column: Any) -> Any:
    return pc.multiply(column, pa.scalar(0, column.type))


HOSTILE: dict[str, Callable[[Any], Any]] = {
    "rows missing": lambda table: table.slice(1),
    "samples that overlap": lambda table: _set(table, "__size__", _plus(1)(table["__size__"])),
    "samples beyond the end": lambda table: _set(table, "__offset__", _plus(2**40)(table["__offset__"])),
    "samples beyond all numbers": lambda table: _set(table, "__offset__", _plus(2**64 - 2**20)(table["__offset__"])),
    "sizes beyond all numbers": lambda table: _set(table, "__size__", _plus(2**64 - 2**20)(table["__size__"])),
    "fields before their sample": lambda table: _fields_with(table, "offset", _times_zero),
    "fields beyond their sample": lambda table: _fields_with(table, "length", _plus(10_000)),
    "fields beyond all numbers": lambda table: _fields_with(table, "length", _plus(2**64 - 2**20)),
    "no keys": lambda table: table.drop_columns(["__key__"]),
    "no fields": lambda table: table.drop_columns(["__fields__"]),
    "keys that are numbers": lambda table: _set(table, "__key__", table["__offset__"]),
    "keys that are no text": lambda table: _set(
        table, "__key__", pa.array([b"\xff"] * len(table)).view(pa.string()).cast(pa.string())
    ),
    "keys that are missing": lambda table: table.set_column(0, "__key__", pa.nulls(len(table), pa.string())),
    "signed offsets": lambda table: _set(table, "__offset__", table["__offset__"].cast(pa.int64())),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_sidecar(how: str, packed: Path, ending: str) -> None:
    """A sidecar with impossible values is refused, even with valid checksums."""
    path = packed.parent / "out-001.index"
    facts = {name: value for name, value in pq.read_metadata(path).metadata.items() if name.startswith(b"shardtool")}
    path.write_bytes(_rewritten(HOSTILE[how](pq.read_table(path)), facts))
    _update_entry(packed, 1)
    with pytest.raises(CorruptShard, match=r"out-001\.index"):
        export(packed, FORMATS[ending])


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("size", "-5"),
        ("size", "9" * 30),
        ("size", "x"),
        ("shard", "out-000.tar"),
        ("crc32c", "0"),
        ("format_version", "3"),
    ],
)
def test_hostile_facts(fact: str, value: str, tars: Path) -> None:
    """A sidecar whose facts differ from its shard is refused."""
    path = tars.parent / "out-001.index"
    facts = {name: text for name, text in pq.read_metadata(path).metadata.items() if name.startswith(b"shardtool")}
    path.write_bytes(_rewritten(pq.read_table(path), facts | {f"shardtool.{fact}".encode(): value.encode()}))
    _update_entry(tars, 1)
    with pytest.raises(CorruptShard, match=r"out-001\.index"):
        export(tars, "dali-webdataset")


def test_command_line(tars: Path) -> None:
    """The command prints how many files it wrote and where; the JSON has their names."""
    ran = typed("index", "out.json", "--export", "dali-webdataset", cwd=tars.parent)
    assert (ran.code, ran.out, ran.err) == (0, "4 files in .\n", "")
    ran = typed("index", tars, "--export", "dali-webdataset", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == {
        "dataset_file": str(tars),
        "folder": str(tars.parent),
        "formats": ["dali-webdataset"],
        "files": [sidecar(shard.name).replace(".index", ".idx") for shard in shards(tars.parent)],
        "kept": 4,
        "notes": [],
    }
    ran = typed("index", tars, "--export", "dali-webdataset", "--quiet", "--output", tars.parent / "deep")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "prepare", "code", "kind"),
    [
        (["--export", "tfrecord"], lambda _: None, 2, "invalid-request"),
        (["--export", "dali-webdataset"], lambda folder: flip(folder / "out.json", 40), 4, "corrupt-shard"),
        (["--export", "dali-webdataset"], lambda folder: flip(folder / "out-000.index", 40), 4, "corrupt-shard"),
        (["--export", "dali-webdataset"], lambda folder: (folder / "out-000.idx").touch(), 5, "output-exists"),
        (["--export", "dali-webdataset", "--output", "out.json"], lambda _: None, 5, "output-exists"),
        (["--export", "nope"], lambda _: None, 2, "invalid-request"),
    ],
)
def test_command_line_errors(
    words: list[str], prepare: Callable[[Path], object], code: int, kind: str, tars: Path
) -> None:
    """Each error has its exit code and a message on stderr, or with `--json` a document with its code."""
    prepare(tars.parent)
    ran = typed("index", "out.json", *words, cwd=tars.parent)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err
    ran = typed("index", "out.json", *words, "--json", cwd=tars.parent)
    assert (ran.code, ran.err) == (code, "")
    assert (json.loads(ran.out)["error"]["code"], json.loads(ran.out)["error"]["exit_code"]) == (kind, code)

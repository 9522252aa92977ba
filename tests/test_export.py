"""`index --export`: index files of other tools, from a dataset file and its sidecars, whatever these hold."""

from __future__ import annotations

import io
import json
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CorruptShard, CreateOptions, InvalidRequest, OutputExists, create, export
from shardtool.dataset import read_dataset
from shardtool.storage import LocalFolder

from . import tfrecords
from .helpers import flip, identity, members, read_tree, shards, sidecar, tool, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMATS = {"tar": ("dali-webdataset",), "tfrecord": ("dali-tfrecord", "tfrecord")}
_ODD = {
    "x\ty/a b.txt": b"1",
    "x\ty/a b.bin": b"",
    "%20/é\u2028.txt": b"22",
    "%20/é\u2028.bin": b"x",
    "z.txt": b"3",
    "z.bin": b"4",
}


def _made(source: Path, folder: Path, ending: str, **options: Any) -> Path:
    """Pack three samples a shard; return the dataset file."""
    asked = CreateOptions(**{"workers": 1, "max_count": 3, **options})
    create(source, f"{folder}/out-{{000..}}.{ending}", asked)
    return folder / "out.json"


@pytest.fixture
def packed(small: Path, ending: str, tmp_path: Path) -> Path:
    """Give a dataset file."""
    return _made(small, tmp_path / "out", ending)


@pytest.fixture
def tars(small: Path, tmp_path: Path) -> Path:
    """Give the dataset file of four tars."""
    return _made(small, tmp_path / "out", "tar")


def _sign(dataset: Path, document: Any) -> None:
    """Write a dataset file whose checksum is right, whatever it says."""
    document = {name: value for name, value in document.items() if name != "checksum"}
    body = json.dumps(document, indent=2).removesuffix("\n}").encode() + b',\n  "checksum": "crc32c:'
    dataset.write_bytes(body + b'%08x"\n}\n' % crc32c.crc32c(body))


def _list_anew(dataset: Path, at: int) -> None:
    """Have the dataset file list a sidecar as it is now."""
    document = json.loads(dataset.read_bytes())
    index = document["shardlist"][at]["index"]
    raw = (dataset.parent / index["name"]).read_bytes()
    index |= {"size": len(raw), "crc32c": f"{crc32c.crc32c(raw):08x}"}
    _sign(dataset, document)


@pytest.mark.parametrize("tree", ["small", "odd"])
def test_a_tfrecord_index_has_every_record(tree: str, small: Path, tmp_path: Path) -> None:
    """Offset and size of every record stand in both kinds of TFRecord index, a line each, in order."""
    source = small if tree == "small" else write_tree(tmp_path / "odd", _ODD)
    dataset = _made(source, tmp_path / "out", "tfrecord")
    result = export(dataset, ["dali-tfrecord", "tfrecord"])
    for shard in shards(tmp_path / "out"):
        found = tfrecords.records(shard.read_bytes())
        lines = b"".join(b"%d %d\n" % (offset, len(data) + 16) for offset, data in found)
        assert shard.with_suffix(".idx").read_bytes() == shard.with_suffix(".tfindex").read_bytes() == lines
    both = [(shard.with_suffix(".idx").name, shard.with_suffix(".tfindex").name) for shard in shards(tmp_path / "out")]
    assert list(result.files) == [name for pair in both for name in pair]


@pytest.mark.parametrize("tree", ["small", "odd"])
def test_a_webdataset_index_leads_to_every_payload(tree: str, small: Path, tmp_path: Path) -> None:
    """Words that no white space tears apart give field, offset, length and name of every payload, a line a sample."""
    source = small if tree == "small" else write_tree(tmp_path / "odd", _ODD)
    dataset = _made(source, tmp_path / "out", "tar", label_from_folder=tree == "small")
    export(dataset, "dali-webdataset")
    for shard in shards(tmp_path / "out"):
        raw, found = shard.read_bytes(), []
        head, *lines = shard.with_suffix(".idx").read_bytes().decode().removesuffix("\n").split("\n")
        assert head == f"v1.2 {len(lines)}"
        for line in lines:
            words = line.encode().split()  # at what C++ takes for white space, too
            for field, offset, length, name in zip(*(words[part::4] for part in range(4)), strict=True):
                key = unquote_to_bytes(name).decode().removesuffix(f".{field.decode()}")
                assert int(offset) % 512 == 0
                found.append((f"{key}.{field.decode()}", raw[int(offset) : int(offset) + int(length)]))
        assert found == members(shard)


def test_names_with_percent_signs_stay_apart(tmp_path: Path) -> None:
    """A name that looks encoded is not taken for another's encoding."""
    source = write_tree(tmp_path / "s", {"a b.txt": b"1", "a%20b.txt": b"2", "c.x%y": b"3"})
    export(_made(source, tmp_path / "out", "tar"), "dali-webdataset")
    names = (tmp_path / "out" / "out-000.idx").read_bytes().split()[2:][3::4]
    assert [unquote_to_bytes(name) for name in names] == [b"a b.txt", b"a%20b.txt", b"c.x%y"]
    assert len(set(names)) == 3


def test_a_field_that_dali_cannot_name_is_refused(tmp_path: Path) -> None:
    """A field with white space in its name has no place in DALI's index, and nothing is written."""
    dataset = _made(write_tree(tmp_path / "s", {"a.t t": b"1"}), tmp_path / "out", "tar")
    before = read_tree(tmp_path / "out")
    with pytest.raises(InvalidRequest, match=r"out-000\.tar.*'t t'.*--portable"):
        export(dataset, "dali-webdataset")
    assert read_tree(tmp_path / "out") == before


def test_what_is_there_and_the_same_stays(packed: Path, ending: str) -> None:
    """Made again, the files are the same, and none is touched; what a killed run has left is removed."""
    first = export(packed, FORMATS[ending])
    before = identity(packed.parent)
    (packed.parent / f".{first.files[0]}.part").write_bytes(b"cut")
    again = export(packed, FORMATS[ending])
    assert (first.kept, again.kept) == (0, len(first.files))
    assert identity(packed.parent) == before


def test_other_files_are_replaced_only_where_asked(packed: Path, ending: str) -> None:
    """A file of one of the names with other bytes is refused, and no file is touched; `overwrite` replaces it."""
    names = export(packed, FORMATS[ending]).files
    right = read_tree(packed.parent)
    (packed.parent / names[-1]).write_bytes(right[names[-1]][::-1])
    (packed.parent / names[0]).unlink()
    before = identity(packed.parent)
    with pytest.raises(OutputExists, match=rf"{names[-1]}.*--overwrite"):
        export(packed, FORMATS[ending])
    assert identity(packed.parent) == before
    assert export(packed, FORMATS[ending], overwrite=True).kept == len(names) - 2
    assert read_tree(packed.parent) == right


def test_another_folder(packed: Path, ending: str, tmp_path: Path) -> None:
    """With `output`, they lie in that folder, which is made, and nothing changes beside the shards."""
    before, output = identity(packed.parent), tmp_path / "deep" / "indexes"
    result = export(packed, FORMATS[ending], output)
    assert sorted(os.listdir(output)) == sorted(result.files)
    assert identity(packed.parent) == before


def test_a_link_is_replaced_and_not_followed(tars: Path, tmp_path: Path) -> None:
    """Where a link has one of the names, what it leads to is neither taken for it nor overwritten."""
    (tmp_path / "elsewhere").write_bytes(b"mine")
    (tars.parent / "out-000.idx").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputExists, match=r"out-000\.idx"):
        export(tars, "dali-webdataset")
    export(tars, "dali-webdataset", overwrite=True)
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
    assert not (tars.parent / "out-000.idx").is_symlink()


def test_a_folder_in_the_way(tars: Path) -> None:
    """A folder of one of the names is refused, and nothing is written."""
    (tars.parent / "out-002.idx").mkdir()
    before = read_tree(tars.parent)
    for overwrite in (False, True):
        with pytest.raises(OutputExists, match=r"out-002\.idx"):
            export(tars, "dali-webdataset", overwrite=overwrite)
        assert read_tree(tars.parent) == before


def test_one_run_at_a_time(tars: Path) -> None:
    """While another run writes this dataset, nothing is made."""
    with LocalFolder(str(tars.parent)).lock("out"), pytest.raises(OutputExists, match="another run"):
        export(tars, "dali-webdataset")
    assert not list(tars.parent.glob("*.idx"))


@pytest.mark.parametrize(
    ("formats", "found"),
    [([], "no format"), (["wids"], "'wids'"), (["tfrecord"], "these are tar"), (["dali-webdataset", "nope"], "nope")],
)
def test_formats_that_make_no_sense(formats: list[str], found: str, tars: Path) -> None:
    """A format that is unknown, or of other shards, is refused, and the message tells which there are."""
    with pytest.raises(InvalidRequest, match=f"{found}.*dali-webdataset"):
        export(tars, formats)
    assert not list(tars.parent.glob("*.idx"))


@pytest.mark.parametrize("name", ["nowhere.json", "nowhere/out.json", "out-000.tar", "", "folder.json"])
def test_what_is_no_dataset_file(name: str, tars: Path) -> None:
    """What is no file, or no dataset file by its name, is a request that makes no sense."""
    (tars.parent / "folder.json").mkdir()
    with pytest.raises(InvalidRequest, match=r"dataset file|out\.json"):
        export(f"{tars.parent}/{name}", "dali-webdataset", tars.parent / "new")
    assert not (tars.parent / "new").exists()


def test_readers_that_want_more_samples_are_told_of(tmp_path: Path) -> None:
    """A shard that holds fewer samples than a reader's index needs is noted, by name, and its index is made."""
    source = write_tree(tmp_path / "s", {"a.txt": b"1", "b.txt": b"2", "c.txt": b"3"})
    dataset = _made(source, tmp_path / "out", "tfrecord", max_count=2)
    assert export(dataset, "dali-tfrecord").notes == ()
    (note,) = export(dataset, "tfrecord").notes
    assert "out-001.tfrecord" in note
    assert "out-000" not in note
    assert len((tmp_path / "out" / "out-001.tfindex").read_bytes().split(b"\n")) == 2


def test_any_flipped_byte_of_the_dataset_file(tars: Path) -> None:
    """A dataset file with any byte flipped, missing or added is `CorruptShard`, and so is anything else."""
    raw = tars.read_bytes()
    read_dataset(raw, "out.json")
    for at in range(len(raw)):
        for damaged in (
            raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :],
            raw[:at] + raw[at + 1 :],
            raw[:at],
            raw + raw[: at + 1],
        ):
            with pytest.raises(CorruptShard, match=r"out\.json"):
                read_dataset(damaged, "out.json")


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"[" * 100_000, b'{"wids_version": 1}', b"\xff\xfe", b"null"])
def test_what_was_never_a_dataset_file(text: bytes, tars: Path) -> None:
    """A file that is no dataset file of ours is `CorruptShard`."""
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
    """A name in a dataset file that is no plain file name is `CorruptShard`; nothing is read or written by it."""
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
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [place for name, one in items for place in _places(one, (*path, name))]


@given(data=st.data(), value=_JSON)
def test_any_signed_dataset_file(data: st.DataObject, value: Any, tars: Path) -> None:
    """Whatever stands anywhere in a dataset file with a right checksum, the outcome is a result or `CorruptShard`."""
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
    """A sidecar that is not the one that the dataset file lists is named, and no file appears, not even of others."""
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
    """A sidecar that tells of what no shard could hold is refused, though every checksum of it is right."""
    path = packed.parent / "out-001.index"
    facts = {name: value for name, value in pq.read_metadata(path).metadata.items() if name.startswith(b"shardtool")}
    path.write_bytes(_rewritten(HOSTILE[how](pq.read_table(path)), facts))
    _list_anew(packed, 1)
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
        ("format_version", "2"),
    ],
)
def test_hostile_facts(fact: str, value: str, tars: Path) -> None:
    """So is one whose facts are not those of its shard."""
    path = tars.parent / "out-001.index"
    facts = {name: text for name, text in pq.read_metadata(path).metadata.items() if name.startswith(b"shardtool")}
    path.write_bytes(_rewritten(pq.read_table(path), facts | {f"shardtool.{fact}".encode(): value.encode()}))
    _list_anew(tars, 1)
    with pytest.raises(CorruptShard, match=r"out-001\.index"):
        export(tars, "dali-webdataset")


def test_the_command(tars: Path) -> None:
    """The command line says how many files are where; as JSON, their names, too."""
    ran = tool("index", "out.json", "--export", "dali-webdataset", cwd=tars.parent)
    assert (ran.code, ran.out, ran.err) == (0, "4 files in .\n", "")
    ran = tool("index", tars, "--export", "dali-webdataset", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == {
        "dataset_file": str(tars),
        "folder": str(tars.parent),
        "formats": ["dali-webdataset"],
        "files": [sidecar(shard.name).replace(".index", ".idx") for shard in shards(tars.parent)],
        "kept": 4,
        "notes": [],
    }
    ran = tool("index", tars, "--export", "dali-webdataset", "--quiet", "--output", tars.parent / "deep")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "prepare", "code", "kind"),
    [
        (["--export", "tfrecord"], lambda _: None, 2, "invalid-request"),
        (["--export", "dali-webdataset"], lambda folder: flip(folder / "out.json", 40), 4, "corrupt-shard"),
        (["--export", "dali-webdataset"], lambda folder: flip(folder / "out-000.index", 40), 4, "corrupt-shard"),
        (["--export", "dali-webdataset"], lambda folder: (folder / "out-000.idx").touch(), 5, "output-exists"),
        (["--export", "dali-webdataset", "--output", "out.json"], lambda _: None, 7, "output-failed"),
        (["--export", "nope"], lambda _: None, 2, "invalid-request"),
        ([], lambda _: None, 2, "invalid-request"),
    ],
)
def test_the_commands_errors(
    words: list[str], prepare: Callable[[Path], object], code: int, kind: str, tars: Path
) -> None:
    """Each error is its exit code and a message on stderr, or with `--json` a document with its code."""
    prepare(tars.parent)
    ran = tool("index", "out.json", *words, cwd=tars.parent)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err
    ran = tool("index", "out.json", *words, "--json", cwd=tars.parent)
    assert (ran.code, ran.err) == (code, "")
    assert (json.loads(ran.out)["error"]["code"], json.loads(ran.out)["error"]["exit_code"]) == (kind, code)

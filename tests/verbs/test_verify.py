from __future__ import annotations

import io
import json
import os
import random
import shutil
import tarfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import CorruptShard, CreateOptions, Observer, Report, ShardError, VerifyOptions, create, index, verify
from shardtool.dataset.dataset_file import parse_dataset
from shardtool.dataset.sidecar_read import parse_facts, parse_sidecar
from shardtool.dataset.sidecar_schema import ShardFacts
from shardtool.dataset.sidecar_write import encode_sidecar_table
from shardtool.dataset.stored import StoredShard
from shardtool.fingerprint import crc32c
from shardtool.messages import use_cli_names
from shardtool.verbs.verify import examine as verify_examine
from shardtool.verbs.verify import shard_checks
from shardtool.verbs.verify.examine import ExamineTask, examine_shard
from shardtool.verbs.verify.findings import Findings
from shardtool.verbs.verify.verified_dataset import ShardCheck
from tests.helpers import flip, identity, shards, typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def _verify(given_: Any, **options: Any) -> Report:
    """Verify in this process, unless told otherwise."""
    return verify(given_, VerifyOptions(**{"workers": 0, **options}))


def _codes(given_: Any, **options: Any) -> set[str]:
    return set(_verify(given_, **options).counts)


@pytest.fixture(scope="session")
def packed(ending: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a dataset of 12 samples in four shards, not to be changed."""
    folder = tmp_path_factory.mktemp("packed")
    files = {f"{'ab'[at % 2]}/{at:03}.txt": b"%d\n" % at * (40 * at + 1) for at in range(12)}
    files |= {f"{'ab'[at % 2]}/{at:03}.cls": b"%d" % at for at in range(12)}
    source = write_tree(folder / "source", files)
    create(source, f"{folder}/out/out-{{000..}}.{ending}", CreateOptions(max_count=3, workers=0))
    return folder


@pytest.fixture
def dataset(packed: Path, tmp_path: Path) -> Path:
    """Give a copy of it, to be damaged."""
    shutil.copytree(packed / "out", tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def single(ending: str, tmp_path: Path) -> Path:
    """Give a dataset of three samples in one shard: what looks at every place of it is done soon."""
    files = {f"{at}.{field}": b"%d\n" % at * (30 * at + 1) for at in range(3) for field in ("txt", "cls")}
    source = write_tree(tmp_path / "source", files)
    create(source, f"{tmp_path}/out/out-{{000..}}.{ending}", CreateOptions(workers=0))
    return tmp_path / "out"


@pytest.mark.parametrize(
    "options",
    [{}, {"max_count": 4}, {"shuffle": True, "seed": 3, "max_size": "2MB"}, {"label_from_folder": True},
     {"dots": "last"}, {"include": ("*.txt",)}],
)  # fmt: skip
def test_a_created_dataset_has_no_findings(options: dict[str, Any], awkward: Path, ending: str, tmp_path: Path) -> None:
    """Datasets of `create` have no findings at any level, with any number of workers, and match their source."""
    create(awkward, f"{tmp_path}/out-{{000..}}.{ending}", CreateOptions(workers=0, **options))
    file = tmp_path / "out.json"
    for changes in ({}, {"quick": True}, {"source": awkward}, {"workers": 2}):
        report = _verify(file, **changes)
        assert (report.findings, report.counts) == ((), {}), changes
        assert report.samples or changes.get("quick")
    assert _verify(tmp_path).sound


def test_every_kind_of_dataset_has_no_findings(tmp_path: Path) -> None:
    """Datasets with tables, splits, numbers, binary columns, portable names or skipped samples have no findings."""
    table = pa.table({
        "id": [f"{at:03}" for at in range(30)], "label": ["a", "b", "c"] * 10, "score": [at / 7 for at in range(30)],
        "data": [b"x" * at for at in range(30)], "odd %": ["é" * at for at in range(30)],
    })  # fmt: skip
    options: dict[str, Any] = {
        "key": "id", "field": ("cls=label", "score=score"), "classes": ("cls",), "bytes": ("bin=data",), "workers": 0,
    }  # fmt: skip
    for ending in ("tar", "tfrecord"):
        create(table, f"{tmp_path}/{ending}-{{0..}}.{ending}", CreateOptions(max_count=7, **options))
        assert _verify(tmp_path / f"{ending}.json", source=table, decode=True).counts == {}
        create(table, f"{tmp_path}/{{split}}-{ending}-{{0..}}.{ending}", CreateOptions(split="x=0.5,y=0.5", **options))
        assert _verify(tmp_path / f"x-{ending}.json", source=table).counts == {}
    odd = write_tree(tmp_path / "odd", {"A b%.JPG": b"1", "ü.txt": b"2", "no field": b"3", "x" * 120 + ".txt": b"4"})
    create(odd, f"{tmp_path}/p-{{0..}}.tar", CreateOptions(portable=True, workers=0))
    assert _verify(tmp_path / "p.json", source=odd, target=("webdataset", "dali", "wids")).counts == {}


def test_verify_changes_no_file(dataset: Path) -> None:
    """Verifying writes nothing, and changes no file."""
    before = identity(dataset)
    _verify(dataset)
    _verify(dataset, quick=True)
    assert identity(dataset) == before


def _damages(raw: bytes, rng: random.Random, every: int = 1) -> Iterator[bytes]:
    """Yield what one flipped, removed or added byte makes of `raw`, at every so many places."""
    for at in range(0, len(raw), every):
        yield raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]
        yield raw[:at] + raw[at + 1 :]
        yield raw[:at] + bytes([rng.choice([0, raw[at], 32, rng.randrange(256)])]) + raw[at:]
    for added in (b"\0", b"\n", b"x"):
        yield raw + added


def _is_sound(given_: Path) -> bool:
    """Return whether there are no findings; an invalid dataset file may also be an error."""
    try:
        return _verify(given_).sound
    except CorruptShard as error:
        if error.where.endswith("out.json"):
            return False
        raise


def _case(dataset: Path, number: int) -> ShardCheck:
    entry = parse_dataset((dataset / "out.json").read_bytes(), "out.json").shards[number]
    shard = StoredShard(f"{dataset}/{entry.name}", entry=entry)
    return ShardCheck(shard, sidecar_required=True, size=(dataset / entry.name).stat().st_size)


@pytest.mark.slow
def test_any_changed_byte_of_a_shard_is_found(dataset: Path) -> None:
    """Any flipped, removed or added byte of a shard is found; every thirteenth offset is tried, to save time."""
    shard = dataset / _case(dataset, 0).name
    raw, rng = shard.read_bytes(), random.Random(4)  # noqa: S311 - a test
    for damaged in _damages(raw, rng, 13):
        shard.write_bytes(damaged)
        case = _case(dataset, 0)
        _, case.examined = examine_shard(ExamineTask(case.shard))
        assert [*shard_checks.check_shard(case)]


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
def test_any_changed_byte_of_a_sidecar_is_found(dataset: Path) -> None:
    """Any flipped, removed or added byte of a sidecar is found, at every seventh offset. Reading rows is safe."""
    case = _case(dataset, 1)
    path, rng = dataset / case.sidecar, random.Random(5)  # noqa: S311 - a test
    raw = path.read_bytes()
    for number, damaged in enumerate(_damages(raw, rng, 7)):
        path.write_bytes(damaged)
        case = _case(dataset, 1)
        findings = Findings()
        assert shard_checks.read_sidecar(1, case, findings) == damaged
        assert findings.listed
        if number % 20 == 0:
            case.examined = verify_examine.ShardExamination()
            list(shard_checks.check_index(case, None, damaged))


@pytest.mark.slow
def test_any_changed_byte_of_any_file_is_found(single: Path) -> None:
    """This holds for each file including the dataset file, however the dataset is given."""
    rng = random.Random(6)  # noqa: S311 - a test
    for path in sorted(single.iterdir()):
        raw = path.read_bytes()
        for number, damaged in enumerate(_damages(raw, rng, 211)):
            path.write_bytes(damaged)
            given_ = single / "out.json" if number % 2 else single
            assert not _is_sound(given_), (path, number)
        path.write_bytes(raw)
    assert _verify(single).sound


def test_any_truncation_is_found(single: Path) -> None:
    """A file that is truncated at any length is found."""
    for path in sorted(single.iterdir()):
        raw = path.read_bytes()
        for length in range(0, len(raw), 191):
            path.write_bytes(raw[:length])
            assert not _is_sound(single), (path, length)
        path.write_bytes(raw)


def test_damage_is_located(dataset: Path) -> None:
    """A flipped bit in a payload is reported with shard, offset, key and field; in a header with its offset."""
    shard = shards(dataset)[1]
    flip(shard, examined_place(shard))
    findings = {finding.code: finding for finding in _verify(dataset).findings}
    if shard.suffix == ".tar":
        assert {"shard-checksum", "payload-checksum", "fingerprint-differs"} == set(findings)
        one = findings["payload-checksum"]
        assert (one.file, one.key, one.field, one.offset) == (shard.name, "a/006", "txt", examined_place(shard))
    else:
        assert {"shard-checksum", "shard-damaged"} == set(findings)
        assert findings["shard-damaged"].offset is not None


def examined_place(shard: Path) -> int:
    """Return where the payload of the shard's first text starts."""
    row = pq.read_table(shard.with_suffix(".index")).to_pylist()[0]
    return int(next(field["offset"] for field in row["__fields__"] if field["name"] == "txt"))


def _swap(dataset: Path) -> None:
    one, other = shards(dataset)[1:3]
    one.rename(dataset / "third")
    other.rename(one)
    (dataset / "third").rename(other)


def _drop(number: int, suffix: str) -> Callable[[Path], None]:
    return lambda dataset: shards(dataset)[number].with_suffix(suffix or shards(dataset)[number].suffix).unlink()


def _stale(dataset: Path) -> None:
    one, other = (shard.with_suffix(".index") for shard in shards(dataset)[:2])
    shutil.copy(one, other)


def _extra(dataset: Path) -> None:
    shard = shards(dataset)[0]
    shutil.copy(shard, shard.with_stem("out-009"))


def _extra_sidecar(dataset: Path) -> None:
    shutil.copy(dataset / "out-000.index", dataset / "out-017.index")


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (_swap, "shard-size"),
        (_drop(1, ""), "shard-missing"),
        (_drop(3, ""), "shard-missing"),
        (_drop(0, ".index"), "sidecar-missing"),
        (_stale, "sidecar-stale"),
        (_extra, "shard-extra"),
        (_extra_sidecar, "sidecar-extra"),
        (lambda dataset: (dataset / "out.skipped").write_text("{}\n"), "skipped-differs"),
        (lambda dataset: (dataset / "out.json").unlink(), "dataset-file-missing"),
    ],
)
def test_missing_extra_and_swapped_files_are_found(damage: Callable[[Path], None], code: str, dataset: Path) -> None:
    """A missing, extra, swapped or stale file is found by its code, with and without reading shards."""
    damage(dataset)
    assert code in _codes(dataset)
    assert code in _codes(dataset, quick=True)


def test_a_truncated_upload_is_found_by_quick(tmp_path: Path) -> None:
    """Without dataset file and sidecar, `--quick` reports a tar of an odd size; `--resume` replaces it."""
    source = write_tree(tmp_path / "in", {f"{at}.bin": b"x" * 2000 for at in range(4)})
    pattern, folder = f"{tmp_path}/out/x-{{000..}}.tar", tmp_path / "out"
    create(source, pattern, CreateOptions(max_count=2, workers=0))
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        path.unlink()
    (folder / "x-000.tar").write_bytes(whole["x-000.tar"])
    assert "shard-size" not in _codes(folder, quick=True)
    os.truncate(folder / "x-000.tar", 2500)
    assert "shard-size" in _codes(folder, quick=True)
    create(source, pattern, CreateOptions(max_count=2, workers=0, resume=True))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def test_quick_reads_no_shards(dataset: Path) -> None:
    """`quick` checks sizes and sidecars but not the content of shards, and says so in text and JSON."""
    flip(shards(dataset)[1], 600)
    report = _verify(dataset, quick=True)
    assert report.sound
    assert report.to_json()["quick"] is True
    assert "quick" not in _verify(dataset).to_json()
    (unread,) = report.unchecked
    assert unread.startswith(f"the bytes of {len(shards(dataset))} shards, ")
    assert "not checked: the bytes of" in typed("verify", dataset / "out.json", "--quick").out
    flip(dataset / "out-001.index", 50)
    assert "sidecar-checksum" in _codes(dataset, quick=True)


def test_quick_checks_shards_that_share_a_sidecar(tmp_path: Path) -> None:
    """`quick` checks both x.tar and x.tfrecord, although both have the sidecar x.index."""
    tar, record = tmp_path / "x.tar", tmp_path / "x.tfrecord"
    tar.write_bytes(bytes(10_241))
    record.touch()
    for given_ in ([str(tar), str(record)], [str(record), str(tar)]):
        report = _verify(given_, quick=True)
        assert [finding.code for finding in report.findings] == ["shard-size"]
        assert report.unchecked[0].startswith("the bytes of 2 shards, ")


@pytest.mark.parametrize("names", ["out-{0..4..2}", ["out-1", "out-5", "out-10"]])
def test_gaps_in_requested_names_are_valid(names: str | list[str], tmp_path: Path, ending: str) -> None:
    """`create` accepts names with gaps, so `verify` accepts them, too."""
    source = write_tree(tmp_path / "in", {f"{number}.txt": b"x" for number in range(6)})
    output = [f"{tmp_path}/{name}.{ending}" for name in ([names] if isinstance(names, str) else names)]
    create(source, output, CreateOptions(max_count=2))
    assert _codes(tmp_path / "out.json") == set()
    assert _codes(tmp_path / "out.json", source=source) == set()
    (tmp_path / "out.json").unlink()
    index(tmp_path)
    assert _codes(tmp_path / "out.json") == {"numbering-gap"}


def test_gaps_in_the_numbering_are_found(dataset: Path, ending: str) -> None:
    """Without a dataset file, a gap is found; a closed pattern lists all missing shards."""
    for path in [*dataset.glob("*.index"), dataset / "out.json"]:
        path.unlink()
    assert _codes(dataset) == set()
    (dataset / f"out-001.{ending}").unlink()
    (one,) = _verify(dataset).findings
    assert (one.code, one.file) == ("numbering-gap", f"out-001.{ending}")
    report = _verify(f"{dataset}/out-{{000..005}}.{ending}")
    assert [finding.file for finding in report.findings if finding.code == "shard-missing"] == [
        f"out-{at:03}.{ending}" for at in (1, 4, 5)
    ]


def test_one_shard_can_be_verified(dataset: Path) -> None:
    """One named shard is verified against sidecar and dataset file; the other shards are no finding."""
    shard = shards(dataset)[1]
    report = _verify(shard)
    assert (report.counts, report.shards) == ({}, 1)
    assert any("1 of its 4 shards" in text for text in report.unchecked)
    flip(shard, 700)
    assert "shard-checksum" in _codes(shard)


def _foreign(path: Path, names: list[str]) -> None:
    with tarfile.open(path, "w") as out:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 5
            out.addfile(info, io.BytesIO(b"hello"))


def test_shards_without_sidecars_are_checked(tmp_path: Path) -> None:
    """Damage to headers, padding and the end, and duplicate keys, are found without sidecars."""
    _foreign(tmp_path / "x-0.tar", ["./a.jpg", "./a.txt", "./b.jpg"])
    _foreign(tmp_path / "x-1.tar", ["c.jpg"])
    assert _verify(tmp_path).sound
    raw = (tmp_path / "x-0.tar").read_bytes()
    for at, code in (
        (3, "shard-damaged"),
        (1024 + 130, "shard-damaged"),
        (520, "padding-not-zero"),
        (3072 + 900, "shard-damaged"),
    ):
        (tmp_path / "x-0.tar").write_bytes(raw[:at] + b"!" + raw[at + 1 :])
        assert _codes(tmp_path) == {code}, at
    (tmp_path / "x-0.tar").write_bytes(raw)
    _foreign(tmp_path / "x-1.tar", ["c.jpg", "a.txt"])
    (one,) = _verify(tmp_path).findings
    assert (one.code, one.file, one.key) == ("key-duplicate", "x-1.tar", "a")
    _foreign(tmp_path / "x-1.tar", ["c.jpg", "c.jpg", "d.jpg", "e.jpg", "d.txt"])
    assert _codes(tmp_path) == {"field-duplicate", "key-duplicate"}
    _foreign(tmp_path / "x-1.tar", [f"{at}.jpg" for at in range(150) for _ in range(2)])
    report = _verify(tmp_path)
    assert (report.counts, len(report.findings)) == ({"field-duplicate": 150}, 100)


def test_a_wids_index_lists_the_shards(dataset: Path) -> None:
    """A dataset file of wids lists the shards; the report names what it does not record."""
    names = [{"url": shard.name, "nsamples": 3} for shard in shards(dataset)]
    (dataset / "out.json").write_text(json.dumps({"wids_version": 1, "shardlist": names}), encoding="ascii")
    report = _verify(dataset / "out.json")
    assert (report.counts, report.shards) == ({}, 4)
    assert any("wids" in text for text in report.unchecked)


def _reseal(dataset: Path, change: Callable[[Any], None]) -> None:
    """Change a dataset file, and give it the checksum of what it then is."""
    path = dataset / "out.json"
    document = json.loads(path.read_bytes())
    del document["checksum"]
    change(document)
    body = json.dumps(document, indent=2).removesuffix("\n}").encode() + b',\n  "checksum": "crc32c:'
    path.write_bytes(body + b'%08x"\n}\n' % crc32c(body))


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
@pytest.mark.parametrize("url", ["/etc/passwd", "../out-000.tar", "pipe:cat /etc/passwd", "https://example.org/a.tar",
                                 "a\0b.tar", "\x1b[2J.tar"])  # fmt: skip
def test_unsafe_names_in_a_dataset_file_are_not_read(url: str, dataset: Path) -> None:
    """A sealed dataset file that names files elsewhere is refused or reported, and they are not read."""

    def change(document: Any) -> None:
        document["shardlist"][1]["url"] = url

    _reseal(dataset, change)
    ran = typed("verify", dataset / "out.json")
    assert ran.code in (3, 4)
    assert "\x1b" not in ran.out + ran.err
    assert "root:" not in ran.out + ran.err


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path),
                                  lambda path: os.symlink("/etc/passwd", path)])  # fmt: skip
@pytest.mark.parametrize("which", ["out-001", "out-001.index", "out.skipped"])
def test_special_files_are_found_without_waiting(
    make: Callable[[str], None], which: str, dataset: Path, ending: str
) -> None:
    """A FIFO, folder, device or link instead of a file is found, and nothing waits for it."""
    name = which if "." in which else f"{which}.{ending}"
    with suppress(FileNotFoundError):
        (dataset / name).unlink()
    make(str(dataset / name))
    assert not _verify(dataset).sound
    assert not _verify(dataset, quick=True).sound


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["shardlist"][0].update(nsamples=10**18),
        lambda document: document["shardlist"][0].update(filesize=2**70),
        lambda document: document["shardtool"].update(pattern="{a,b}{c,d}" * 40),
        lambda document: document["shardtool"].update(pattern="out-{000..999999999999}.tar"),
        lambda document: document["shardtool"].update(pattern="out-{" + "9" * 5000 + "..}.tar"),
        lambda document: document["shardtool"].update(fingerprint="\x1b[2J"),
        lambda document: document["shardtool"]["fields"].update(jpg=[[]]),
        lambda document: document["shardtool"]["made"].update(options={"map": "os:system", "where": "x" * 10}),
        lambda document: document["shardtool"].update(classes={"cls": {"a": 1}}),
        lambda document: document.update(name="../../etc/x"),
        lambda document: document["shardlist"].append(document["shardlist"][0]),
        lambda document: document["shardlist"].clear(),
    ],
)
def test_any_sealed_dataset_file_is_handled(change: Callable[[Any], None], packed: Path, dataset: Path) -> None:
    """Any content of a sealed dataset file gives findings or a `ShardError`, quickly."""
    _reseal(dataset, change)
    for options in ({}, {"quick": True}, {"source": packed / "source"}, {"decode": True}):
        with suppress(ShardError):
            report = _verify(dataset / "out.json", **options)
            json.dumps(report.to_json())


def _reindex(dataset: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change a sidecar's rows, and seal it and the dataset file again."""
    path = dataset / "out-001.index"
    raw = path.read_bytes()
    table, fact = parse_sidecar(raw, "x", None).plain_table(), parse_facts(raw, "x")
    rows = table.to_pylist()
    change(rows)
    data = encode_sidecar_table(pa.Table.from_pylist(rows, schema=table.schema), fact)
    _replace_sidecar(dataset, data)


def _replace_sidecar(dataset: Path, data: bytes) -> None:
    (dataset / "out-001.index").write_bytes(data)

    def seal(document: Any) -> None:
        document["shardlist"][1]["index"].update(size=len(data), crc32c=f"{crc32c(data):08x}")

    _reseal(dataset, seal)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[0].update(__offset__=2**64 - 1),
        lambda rows: rows[0].update(__size__=2**63),
        lambda rows: rows[1].update(__offset__=rows[0]["__offset__"]),
        lambda rows: rows[0]["__fields__"][0].update(offset=2**40),
        lambda rows: rows[0]["__fields__"][0].update(length=2**40),
        lambda rows: rows[0]["__fields__"][0].update(length=0),
        lambda rows: rows[0]["__fields__"][1].update(name="other"),
        lambda rows: rows[0]["__fields__"].reverse(),
        lambda rows: rows[0]["__fields__"].pop(),
        lambda rows: rows[2].update(__key__="../../etc/passwd"),
        lambda rows: rows[2].update(__key__="\x1b[2J"),
        lambda rows: rows[2].update(__key__=""),
        lambda rows: rows.pop(),
        lambda rows: rows.append(rows[0]),
        lambda rows: rows.reverse(),
        lambda rows: rows.clear(),
    ],
)
def test_a_forged_sidecar_is_found(change: Callable[[list[dict[str, Any]]], None], dataset: Path) -> None:
    """A sidecar that lists other samples than its shard is found, even if all checksums match it."""
    _reindex(dataset, change)
    result = _codes(dataset)
    assert result & {"index-differs", "sidecar-damaged"}
    assert result <= {"index-differs", "sidecar-damaged"}


def test_a_forged_payload_checksum_is_found(dataset: Path) -> None:
    """A sealed sidecar with another payload checksum is found."""
    _reindex(dataset, lambda rows: rows[0]["__fields__"][0].update(crc32c=1))
    (one,) = _verify(dataset).findings
    assert (one.code, one.key, one.expected[:8]) == ("payload-checksum", "a/006", "00000001")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
@pytest.mark.parametrize("what", ["rows", "fields", "key", "names"])
def test_a_decompression_bomb_is_refused(what: str, dataset: Path) -> None:
    """A sidecar of kilobytes that decompresses to gigabytes is refused before decompression."""
    fact = parse_facts((dataset / "out-001.index").read_bytes(), "x")
    schema = parse_sidecar((dataset / "out-001.index").read_bytes(), "x", None).plain_table().schema
    part = {"name": "jpg", "offset": 0, "length": 0, "crc32c": 0}
    rows = {
        "rows": [{"__key__": "k", "__offset__": 0, "__size__": 0, "__fields__": []}] * 200_000,
        "fields": [{"__key__": "k", "__offset__": 0, "__size__": 0, "__fields__": [part] * 200_000}],
        "key": [{"__key__": "k" * 2**25, "__offset__": 0, "__size__": 0, "__fields__": [part]}],
        "names": [{"__key__": "k", "__offset__": 0, "__size__": 0,
                   "__fields__": [{**part, "name": "n" * 2**25}] * 3}],
    }[what]  # fmt: skip
    data = encode_sidecar_table(pa.Table.from_pylist(rows, schema=schema), fact)
    assert len(data) < 2**17
    _replace_sidecar(dataset, data)
    report = _verify(dataset)
    assert "sidecar-damaged" in report.counts


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1PAR1", b"PAR1" + bytes(4) + b"PAR1", b"PAR1" + b"\xff" * 4 + b"PAR1"]
)
def test_a_sidecar_that_is_not_parquet_is_found(data: bytes, dataset: Path) -> None:
    """A file that is not Parquet is a finding."""
    _replace_sidecar(dataset, data)
    assert "sidecar-damaged" in _codes(dataset)


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
@settings(max_examples=15)
@given(st.data())
def test_changed_bytes_of_a_sealed_sidecar_give_findings(
    packed: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A sealed sidecar with changed bytes gives findings, and never an exception."""
    folder = tmp_path_factory.getbasetemp() / f"sealed{packed.name}"
    if not folder.exists():
        shutil.copytree(packed / "out", folder)
    raw = bytearray((packed / "out" / "out-001.index").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    _replace_sidecar(folder, bytes(raw))
    json.dumps(_verify(folder).to_json())


@pytest.mark.parametrize("name", ["../x.jpg", "/etc/x.jpg", "a/../../x.jpg", "a\nb.jpg", "\x1b[2J.jpg", "a.b\x07"])
def test_unsafe_names_in_a_shard_are_found(name: str, tmp_path: Path) -> None:
    """A member that could leave a folder or control a terminal is found, and printed safely."""
    _foreign(tmp_path / "x.tar", ["a.jpg", name])
    assert _codes(tmp_path / "x.tar") == {"key-unsafe"}
    for style in ("text", "json", "junit", "github"):
        ran = typed("verify", tmp_path / "x.tar", "--format", style)
        assert ran.code == 3
        assert not {char for char in ran.out + ran.err if ord(char) < 32 and char != "\n"}


@given(st.binary(max_size=4000))
def test_any_bytes_as_a_shard_give_a_report(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """For any bytes as a shard, the outcome is a report."""
    folder = tmp_path_factory.getbasetemp() / "bytes"
    folder.mkdir(exist_ok=True)
    for name in ("x.tar", "x.tfrecord", "x.tar.gz"):
        (folder / name).write_bytes(data)
        assert _verify(folder / name, decode=True).size == len(data)


def test_undecodable_fields_are_found(sample_data: Path, tmp_path: Path) -> None:
    """Undecodable images, invalid JSON and labels that are not numbers are found with their sample."""
    jpg = next(sample_data.rglob("*.jpg")).read_bytes()
    files = {"good.jpg": jpg, "good.json": b'{"a": 1}', "good.cls": b"3\n"}
    files |= {"cut.jpg": jpg[: len(jpg) // 2], "none.png": b"no image", "bad.json": b'{"a": '}
    files |= {"deep.json": b"[" * 100_000,
"word.cls": b"dog", "huge.cls": b"9" * 5000}  # fmt: skip
    create(write_tree(tmp_path / "in", files), f"{tmp_path}/out-{{0..}}.tar", CreateOptions(workers=0))
    assert _verify(tmp_path / "out.json").sound
    findings = {(finding.code, finding.key) for finding in _verify(tmp_path / "out.json", decode=True).findings}
    assert findings == {("image-bad", "cut"), ("image-bad", "none"), ("json-bad", "bad"), ("json-bad", "deep"),
                     ("number-bad", "word"), ("number-bad", "huge")}  # fmt: skip


def test_changes_of_a_folder_source_are_found(packed: Path, tmp_path: Path) -> None:
    """Missing, extra and different values are reported by key and field, also values of the same length."""
    shutil.copytree(packed, tmp_path / "all")
    source, file = tmp_path / "all" / "source", tmp_path / "all" / "out" / "out.json"
    assert _verify(file, source=source, workers=2).sound
    (source / "b/new.txt").write_bytes(b"new")
    (source / "a/000.txt").unlink()
    (source / "a/000.cls").unlink()
    (source / "a/002.cls").unlink()
    (source / "a/004.jpg").write_bytes(b"added")
    (source / "b/001.txt").write_bytes(b"longer" * 100)
    (source / "b/003.cls").write_bytes(b"7")
    findings = {(finding.code, finding.key, finding.field) for finding in _verify(file, source=source).findings}
    assert findings == {
        ("source-missing", "b/new", ""), ("source-extra", "a/000", ""), ("source-extra", "a/002", "cls"),
        ("source-missing", "a/004", "jpg"), ("source-differs", "b/001", "txt"), ("source-differs", "b/003", "cls"),
    }  # fmt: skip


def test_transformed_payloads_are_not_compared(sample_data: Path, tmp_path: Path) -> None:
    """If the run changed images, keys are compared and payloads reported as not compared; a function is never run."""
    create(sample_data, f"{tmp_path}/out-{{0..}}.tar", CreateOptions(resize=16, workers=2))
    report = _verify(tmp_path / "out.json", source=sample_data)
    assert report.sound
    assert any("resize" in text for text in report.unchecked)
    (source := tmp_path / "source").mkdir()
    report = _verify(tmp_path / "out.json", source=source)
    assert report.counts == {"source-extra": 98}


def test_names_are_checked_for_the_target_reader(tmp_path: Path) -> None:
    """A name that one reader misreads is found for that reader only."""
    source = write_tree(tmp_path / "in", {"a b.JPG": b"1", "c.JPG": b"2"})
    create(source, f"{tmp_path}/out-{{0..}}.tar", CreateOptions(workers=0))
    assert _codes(tmp_path / "out.json", target=("dali", "webdataset")) == {"misread"}
    assert _codes(tmp_path / "out.json", target=("dali",)) == set()


def test_repair_rebuilds_a_sidecar(dataset: Path) -> None:
    """A missing or damaged sidecar is rebuilt from a verified shard; then there are no findings."""
    for damage in (lambda path: path.unlink(), lambda path: flip(path, 60), lambda path: path.write_bytes(b"")):
        damage(dataset / "out-002.index")
        before = identity(dataset)
        report = _verify(dataset, repair=True)
        assert (report.counts, len(report.repaired)) == ({}, 1)
        after = identity(dataset)
        assert {name for name in after if before.get(name) != after[name]} == {"out-002.index", "out.json"}
        assert _verify(dataset).sound


def test_repair_rebuilds_a_sidecar_next_to_damaged_shards(packed: Path, dataset: Path, ending: str) -> None:
    """Shards of the wrong size, and missing ones, do not prevent the repair, and a later repair has their source."""
    expected = {path.name: path.read_bytes() for path in dataset.iterdir()}
    (dataset / f"out-001.{ending}").write_bytes(b"")
    (dataset / f"out-002.{ending}").unlink()
    (dataset / "out-003.index").unlink()
    report = _verify(dataset / "out.json", repair=True)
    assert ("sidecar-missing" in report.counts, report.counts["shard-missing"], len(report.repaired)) == (False, 1, 1)
    assert {path.name for path in dataset.iterdir()} == expected.keys() - {f"out-002.{ending}"}
    assert _verify(dataset / "out.json", repair=True, source=packed / "source").sound
    assert [
        name for name in expected if (dataset / name).read_bytes() != expected[name] and name.endswith(ending)
    ] == []


def test_repair_of_odd_keys(tmp_path: Path) -> None:
    """A rebuilt sidecar has the keys of the shard, for any bytes."""
    source = write_tree(tmp_path / "in", {"a b%.jpg": b"1", "ü%20.jpg": b"2"})
    create(source, f"{tmp_path}/p-{{0..}}.tar", CreateOptions(portable=True, workers=0))
    expected = pq.read_table(tmp_path / "p-0.index").column("__key__")
    (tmp_path / "p-0.index").unlink()
    report = _verify(tmp_path / "p.json", repair=True)
    assert "source_paths" in report.repaired[0]
    assert pq.read_table(tmp_path / "p-0.index").column("__key__") == expected
    assert _verify(tmp_path / "p.json", source=source).sound


def test_repair_of_the_dataset_file(dataset: Path) -> None:
    """A missing or damaged dataset file is rebuilt if each shard matches its sidecar."""
    (dataset / "out.json").unlink()
    assert _verify(dataset, repair=True).sound
    flip(dataset / "out.json", 700)
    assert _verify(dataset, repair=True).sound


def test_repair_of_a_dataset_file_without_shards(dataset: Path) -> None:
    """A damaged dataset file that lists no shards cannot be rebuilt. The report names the commands that recreate it."""
    document = {"__kind__": "wids-shard-index-v1", "shardlist": [{}], "shardtool": {"format_version": 1}}
    (dataset / "out.json").write_text(json.dumps(document))
    report = _verify(dataset / "out.json", repair=True)
    assert (report.counts, report.repaired) == ({"dataset-file-damaged": 1}, ())
    assert "it lists no shards" in "".join(report.unchecked)


def test_repair_keeps_a_dataset_file_that_lost_shards(dataset: Path) -> None:
    """A damaged dataset file is not rebuilt from the shards that it still lists if the folder contains more shards."""
    document = json.loads((dataset / "out.json").read_text())
    del document["shardlist"][-1]
    (dataset / "out.json").write_text(damaged := json.dumps(document, indent=2))
    report = _verify(dataset / "out.json", repair=True)
    assert (report.sound, report.repaired, (dataset / "out.json").read_text()) == (False, (), damaged)
    assert "it does not list out-" in "".join(report.unchecked)


def test_shard_names_that_are_no_strings_are_damage(packed: Path, dataset: Path) -> None:
    """A number in place of a shard name is a finding about the dataset file, not a shard of this name."""
    document = json.loads((dataset / "out.json").read_text())
    document["shardlist"][1]["url"] = 1e308
    (dataset / "out.json").write_text(json.dumps(document, indent=2))
    report = _verify(dataset, repair=True, source=packed / "source")
    assert report.counts["dataset-file-damaged"] == 1
    assert not [finding for finding in report.findings if "1e+308" in finding.file]


def test_repair_from_the_source(packed: Path, dataset: Path, ending: str) -> None:
    """Damaged and missing shards and sidecars are made again, to the bytes that they had."""
    expected = {path.name: path.read_bytes() for path in dataset.iterdir()}
    flip(dataset / f"out-001.{ending}", 700)
    (dataset / f"out-002.{ending}").unlink()
    (dataset / "out-003.index").unlink()
    report = _verify(dataset / "out.json", repair=True, source=packed / "source")
    assert (report.counts, len(report.repaired)) == ({}, 1)
    assert {path.name: path.read_bytes() for path in dataset.iterdir()} == expected


def test_repair_never_makes_it_worse(packed: Path, dataset: Path, ending: str, tmp_path: Path) -> None:
    """Unverified files stay unchanged: without a source, or with a source that gives other bytes."""
    flip(dataset / f"out-001.{ending}", 700)
    other = tmp_path / "other"
    shutil.copytree(packed / "source", other)
    (other / "a/008.txt").write_bytes(b"x" * (other / "a/008.txt").stat().st_size)  # of the same size
    shorter = tmp_path / "shorter"
    shutil.copytree(other, shorter)
    (shorter / "a/008.txt").write_bytes(b"x")
    expected = {path.name: path.read_bytes() for path in dataset.iterdir()}
    for source in (None, other, shorter):
        report = _verify(dataset / "out.json", repair=True, source=source)
        assert not report.sound
        assert report.repaired == ()
        assert any(text.startswith("repair: ") for text in report.unchecked)
        assert {path.name: path.read_bytes() for path in dataset.iterdir()} == expected
    flip(dataset / "out-001.index", 60)
    report = _verify(dataset / "out.json", repair=True)
    assert any("not verified" in text for text in report.unchecked)


def test_repair_without_findings_changes_nothing(dataset: Path) -> None:
    """No file is changed if there are no findings."""
    before = identity(dataset)
    assert _verify(dataset, repair=True).repaired == ()
    assert identity(dataset) == before


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
def test_exit_codes(dataset: Path, tmp_path: Path) -> None:
    """0 without findings, 2 for a missing dataset, 3 for findings, 4 if nothing can be read."""
    assert typed("verify", dataset).code == 0
    assert typed("verify", dataset / "out.json", "--quick", "--quiet").out == ""
    assert typed("verify", *shards(dataset)).code == 0
    assert typed("verify", tmp_path / "none").code == 2
    assert typed("verify", dataset, "--quick", "--decode").code == 2
    assert typed("verify", dataset, "--source", tmp_path / "none").code == 2
    flip(shards(dataset)[0], 200)
    ran = typed("verify", dataset, "--quiet")
    assert (ran.code, ran.err) == (3, "")
    assert "shard-checksum" in ran.out
    (dataset / "out.json").write_bytes(b"{}")
    assert typed("verify", dataset / "out.json").code == 4
    (tmp_path / "x.tar").mkdir()
    (tmp_path / "y.tar").symlink_to("/dev/zero")
    assert typed("verify", tmp_path / "y.tar").code == 2  # a link to a device is no shard


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
def test_json_has_the_findings_of_the_library(dataset: Path) -> None:
    """The report is one JSON document with the same findings as in the library."""
    flip(shards(dataset)[0], 200)
    ran = typed("verify", dataset, "--json")
    document = json.loads(ran.out)
    with use_cli_names():
        report = _verify(dataset).to_json()
    assert document.pop("bytes_per_s") > document.pop("samples_per_s") > 0
    assert {**document, "seconds": 0} == {**report, "seconds": 0}
    assert set(document) == {
        "dataset", "sound", "findings", "counts", "checked", "unchecked", "repaired", "totals", "seconds",
    }  # fmt: skip
    for item in document["findings"]:
        assert set(item) == {"code", "file", "offset", "key", "field", "found", "expected", "remedy"}
    assert json.loads(typed("verify", dataset, "--format", "json").out)["counts"] == document["counts"]


def test_progress_adds_up(dataset: Path) -> None:
    """Progress adds up to all samples, bytes and shards."""

    class Watching(Observer):
        def __init__(self) -> None:
            self.all: list[tuple[int, int, int]] = []
            self.done = [0, 0, 0]

        def start(self, samples: int, size: int, shards: int) -> None:
            self.all.append((samples, size, shards))

        def advance(self, samples: int, size: int, shards: int) -> None:
            self.done = [have + more for have, more in zip(self.done, (samples, size, shards), strict=True)]

    told = Watching()
    verify(dataset, VerifyOptions(workers=2), observer=told)
    assert told.all == [tuple(told.done)]
    assert told.done[::2] == [12, 4]


def test_a_sidecar_without_checksums_is_checked_partly(dataset: Path) -> None:
    """If an index was created without reading payloads, only its recorded values are checked."""
    for path in [*dataset.glob("*.index"), dataset / "out.json"]:
        path.unlink()
    from shardtool.request.dataset_options import IndexOptions
    from shardtool.verbs.index import index

    index(dataset, IndexOptions(workers=0))
    report = _verify(dataset)
    assert report.counts == {}
    assert any("fingerprint" in text for text in report.unchecked)


def test_a_sidecar_of_another_version_is_damaged() -> None:
    """A sidecar of another version or kind is damage, not another error."""
    data = encode_sidecar_table(pa.table({"x": [1]}), ShardFacts("a.tar", 5, 1, ""))
    assert parse_facts(data, "x").size == 5
    facts = pq.read_schema(pa.BufferReader(data)).metadata
    version = next(name for name in facts if name.endswith(b"format_version"))
    for wrong in ({**facts, version: b"99"}, {**facts, version: b"one"}, {}):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"x": [1]}).replace_schema_metadata(wrong), sink)
        with pytest.raises(CorruptShard):
            parse_facts(sink.getvalue().to_pybytes(), "x")


def test_any_changed_byte_of_the_skipped_list_is_found(tmp_path: Path) -> None:
    """The list of skipped samples belongs to the dataset: any flipped byte is found."""
    source = write_tree(tmp_path / "in", {"a.txt": b"a", "NOTES": b"no field"})
    create(source, f"{tmp_path}/out/x-{{0..}}.tar", CreateOptions(workers=0))
    path = tmp_path / "out" / "x.skipped"
    raw = path.read_bytes()
    assert verify(tmp_path / "out" / "x.json").sound
    for at in range(0, len(raw), 9):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        assert [finding.code for finding in verify(tmp_path / "out" / "x.json").findings] == ["skipped-differs"]

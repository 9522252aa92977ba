"""Samples by number, in any order, equal their source; errors name what is damaged."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.read import index_store, open_files, sample_reader
from shardtool.read.catalog import open_catalog
from shardtool.read.options import ReadOptions
from shardtool.read.sample_reader import SampleReader, read_valid
from shardtool.storage import shared_blocks
from tests.helpers import flip, shards, typed
from tests.read.made_data import SAMPLES, Made, make, numbers, write_examples

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = st.lists(st.integers(0, SAMPLES - 1), max_size=80)


@pytest.fixture(scope="module")
def made(ending: str, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A dataset that no test changes."""
    return make(tmp_path_factory.mktemp("fetch"), ending)


@pytest.fixture
def writable(made: Made, tmp_path: Path) -> Made:
    """A copy that a test may damage."""
    return made.copy_to(tmp_path)


@given(asked=ORDERS)
def test_samples_equal_their_source(made: Made, asked: list[int]) -> None:
    """Any numbers, in any order and repeated, return their samples in this order."""
    assert read_valid(made.reader(check=True), numbers(asked)) == [made.samples[at] for at in asked]
    assert [made.reader().read_one(at) for at in asked[:5]] == [made.samples[at] for at in asked[:5]]


@settings(max_examples=10)
@given(asked=ORDERS, fields=st.frozensets(st.sampled_from(["cls", "jpg", "txt", "none"])))
def test_selected_fields(made: Made, asked: list[int], fields: frozenset[str]) -> None:
    """Samples have those of the selected fields that they have, and their key."""
    expected = [{k: v for k, v in made.samples[at].items() if k in {*fields, "__key__"}} for at in asked]
    reader = made.reader()
    assert read_valid(reader.with_options(fields=fields), numbers(asked)) == expected
    assert [reader.with_options(fields=fields).read_one(at) for at in asked[:5]] == expected[:5]


def test_samples_with_equal_fields_are_read_as_columns(ending: str, tmp_path: Path) -> None:
    """They are returned in the requested order, for any number of fields."""
    made = make(tmp_path, ending, even=True)
    asked = [*range(40, 10, -1), *range(50), 7, 7]
    for fields in ({"jpg"}, {"jpg", "txt"}, {"cls", "jpg", "txt"}, set()):
        expected = [{k: v for k, v in made.samples[at].items() if k in fields | {"__key__"}} for at in asked]
        assert read_valid(made.reader().with_options(fields=frozenset(fields)), numbers(asked)) == expected


def test_only_selected_payloads_are_read(writable: Made) -> None:
    """Damage in other fields does not matter."""
    sample, shard, offset = writable.place(70_000)
    flip(shard, offset + 10_000)
    labels = read_valid(writable.reader(check=True, fields=frozenset({"cls"})), numbers(range(SAMPLES)))
    assert [sample["cls"] for sample in labels] == [sample["cls"] for sample in writable.samples]
    with pytest.raises(CorruptShard, match=f"{sample['__key__']}, jpg: the checksum"):
        read_valid(writable.reader(check=True), numbers(range(SAMPLES)))


def test_a_flipped_byte_is_found_by_its_checksum(writable: Made) -> None:
    """With `check`, an error names shard, key, field and offset; or the sample is skipped and counted."""
    sample, shard, offset = writable.place(5_000)
    flip(shard, offset + 17)
    what = rf"{shard}: at {offset:,}: {sample['__key__']}, jpg: the checksum [0-9a-f]{{8}}; expected [0-9a-f]{{8}}"
    with pytest.raises(CorruptShard, match=what) as error:
        read_valid(writable.reader(check=True), numbers(range(SAMPLES)))
    assert pickle.loads(pickle.dumps(error.value)).offset == offset  # noqa: S301 - our own
    assert len(read_valid(writable.reader(), numbers(range(SAMPLES)))) == SAMPLES
    reader = writable.reader(check=True, on_error="skip")
    assert read_valid(reader, numbers(range(SAMPLES))) == [other for other in writable.samples if other is not sample]
    assert (reader.skipped.samples, dict(reader.skipped.shards)) == (1, {str(shard): 1})
    with pytest.raises(CorruptShard, match=what):
        writable.open(check=True, on_error="skip")[writable.samples.index(sample)]


@pytest.mark.parametrize("damage", ["removed", "cut", "stale"])
def test_a_missing_or_changed_shard_is_named(writable: Made, *, damage: str) -> None:
    """A missing, truncated or extended shard is an error, or costs only its own samples."""
    shard = writable.shard(1)
    if damage == "removed":
        shard.unlink()
    else:
        data = shard.read_bytes()
        shard.write_bytes(data[:-2000] if damage == "cut" else data + bytes(1024))
    firsts = writable.reader().catalog.first_samples.tolist()
    with pytest.raises(CorruptShard, match=shard.stem):
        read_valid(writable.reader(), numbers([firsts[1]]))
    reader = writable.reader(on_error="skip")
    rest = writable.samples[: firsts[1]] + writable.samples[firsts[2] :]
    assert read_valid(reader, numbers(range(SAMPLES))) == rest
    assert (reader.skipped.samples, len(reader.skipped.reasons)) == (firsts[2] - firsts[1], 1)


def test_a_shard_truncated_while_open_is_detected(writable: Made) -> None:
    """The error names the sample; samples before the end are still read."""
    reader = writable.reader(on_error="skip")
    all_numbers = numbers(range(SAMPLES))
    assert read_valid(reader, all_numbers) == writable.samples
    with writable.shard(0).open("r+b") as file:
        file.truncate(60_000)
    samples = read_valid(reader, all_numbers)
    assert samples[0] == writable.samples[0]
    assert len(samples) == SAMPLES - reader.skipped.samples
    assert reader.skipped.samples > 0
    assert all("the shard ends" in reason for reason in reader.skipped.reasons)


def test_check_requires_checksums(tmp_path: Path) -> None:
    """Foreign tar shards have no checksums until they are indexed with them, and compressed shards never have any."""
    made = make(tmp_path, "tar")
    for index in (*tmp_path.glob("*.index"), made.path):
        index.unlink()
    reader = SampleReader(open_catalog(str(tmp_path)), ReadOptions(check=True))
    with pytest.raises(InvalidRequest, match="no checksums are known"):
        read_valid(reader, numbers([1, 2]))
    packed = tmp_path / "packed.tar.gz"
    packed.write_bytes(gzip.compress(made.shard(0).read_bytes()))
    reader = SampleReader(open_catalog(str(packed)), ReadOptions(check=True))
    with pytest.raises(InvalidRequest, match=r"packed\.tar\.gz is compressed and has no checksums\. Decompress it"):
        read_valid(reader, numbers([1, 2]))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_shard_without_a_sidecar_is_checked_as_a_whole(writable: Made, on_error: str) -> None:
    """Its checksum is compared with the dataset file."""
    sidecar = writable.shard(1).with_suffix(".index")
    sidecar.unlink()
    everything = numbers(range(SAMPLES))
    reader = writable.reader(check=True, on_error=on_error)
    assert read_valid(reader, everything) == writable.samples
    assert reader.skipped.samples == 0
    offset = writable.shard(1).read_bytes().rfind(writable.samples[int(reader.catalog.first_samples[2]) - 1]["jpg"])  # type: ignore[arg-type]
    flip(writable.shard(1), offset)
    reader = writable.reader(check=True, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(CorruptShard, match=r"the checksum .* as in its dataset file"):
            read_valid(reader, everything)
    else:
        first, last = reader.catalog.first_samples[1:3].tolist()
        assert read_valid(reader, everything) == writable.samples[:first] + writable.samples[last:]


@pytest.mark.parametrize("indexed", [True, False])
def test_foreign_records_become_values_and_lists(tmp_path: Path, *, indexed: bool) -> None:
    """Features are bytes, ints and floats, or lists in all samples if one sample has several values, or none."""
    examples: list[dict[str, list[object]]] = [
        {"a": [b"x"], "i": [3], "f": [0.5], "many": [b"p", b"", b"q"], "ints": [1, -1, 300], "none": []},
        {"a": [b"\n\x01z"], "i": [-7], "f": [2.0], "many": [b"\n\x01z"], "ints": [5], "none": []},
    ]
    write_examples(tmp_path / "x.tfrecord", examples)
    if indexed:
        assert typed("index", tmp_path / "x.tfrecord", "--quiet").code == 0
    reader = SampleReader(open_catalog(str(tmp_path)), ReadOptions())
    expected = [{name: value[0] if len(value) == 1 else value for name, value in one.items()} for one in examples]
    expected[1] |= {"many": [b"\n\x01z"], "ints": [5]}
    samples = read_valid(reader, numbers([1, 0]))
    assert [{k: v for k, v in sample.items() if k != "__key__"} for sample in samples] == expected[::-1]


def test_metadata(tmp_path: Path) -> None:
    """With `metadata`, samples have the sidecar columns; fields take precedence."""
    rows = [{"key": f"k{at}", "file": f"{at}.txt", "width": at * 3, "txt": "column"} for at in range(9)]
    for row in rows:
        (tmp_path / str(row["file"])).write_bytes(str(row["key"]).encode())
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("create", tmp_path / "list.jsonl", tmp_path / "out-{000..}.tar", "--shards", "2", "--quiet")
    ran = typed(*words)
    assert ran.code == 0, ran
    reader = SampleReader(open_catalog(str(tmp_path / "out.json")), ReadOptions(metadata=True))
    samples = read_valid(reader, numbers([8, 0, 4, 1, 2, 3, 5, 6, 7]))
    assert [(sample["__key__"], sample["width"], sample["txt"]) for sample in samples[:2]] == [
        ("k8", 24, b"k8"),
        ("k0", 0, b"k0"),
    ]
    (tmp_path / "out-001.index").unlink()
    reader = SampleReader(open_catalog(str(tmp_path / "out.json")), ReadOptions(metadata=True))
    lost = read_valid(reader, numbers([0, 8]))
    assert [sample["width"] for sample in lost] == [0, None]


def test_threads_and_pickled_readers_agree(made: Made) -> None:
    """Many threads can share a reader; it pickles without open files."""
    reader = made.reader()
    jobs = [numbers([at, SAMPLES - 1 - at, 3]) for at in range(SAMPLES)] * 3
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(partial(read_valid, reader), jobs))
    assert results == [[made.samples[at] for at in job] for job in jobs]
    assert read_valid(pickle.loads(pickle.dumps(reader)), jobs[5]) == results[5]  # noqa: S301 - our own


@pytest.mark.parametrize("shared", [True, False])
def test_single_reads_keep_only_cached_shards_open(
    writable: Made, monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    """Single reads keep no shard or index that the caches have dropped."""
    if not shared:
        monkeypatch.setattr(shared_blocks, "_create_unnamed_file", lambda: None)
    for module, name, value in ((index_store, "_INDEX_CACHE_BYTES", 1), (open_files, "_MAX_OPEN_SHARDS", 1)):
        with monkeypatch.context() as limited:
            limited.setattr(module, name, value)
            reader = writable.reader()
            for number in [*range(SAMPLES), *range(SAMPLES)]:
                assert reader.read_one(number) == writable.samples[number]
                assert len(reader._open_shards) <= 1  # noqa: SLF001
    reader = writable.reader()
    assert [reader.read_one(number) for number in range(SAMPLES)] == writable.samples
    assert len(reader._open_shards) == len(shards(writable.path.parent))  # noqa: SLF001


@pytest.mark.parametrize(("few", "fields"), [(SAMPLES, None), (1, frozenset({"jpg"}))])
def test_large_samples_are_read_on_demand(
    writable: Made, monkeypatch: pytest.MonkeyPatch, few: int, fields: frozenset[str] | None
) -> None:
    """One by one or as columns, with errors in their places."""
    monkeypatch.setattr(sample_reader, "_MAX_SAMPLES_READ_SINGLY", few)
    requested = numbers([*range(SAMPLES - 1, -1, -2), *range(0, SAMPLES, 2)])
    reader = writable.reader().with_options(fields=fields)
    early, late = reader.read(requested), reader.read(requested, on_demand=True)
    cut = writable.shard(1)
    os.truncate(cut, 100_000)
    first, last = (int(at) for at in reader.catalog.first_samples[1:3])
    results = [*zip(requested.tolist(), early, late, strict=True)]
    failed = {number: sample for number, _, sample in results if isinstance(sample, CorruptShard)}
    assert [sample for _, _, sample in results if sample not in failed.values()] == [
        sample for number, sample, _ in results if number not in failed
    ]
    assert failed
    assert all(first <= number < last and one.where == str(cut) for number, one in failed.items())

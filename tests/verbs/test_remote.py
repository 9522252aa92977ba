"""Verbs on datasets behind HTTP produce the same files and reports as on local files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shardtool import (  # fmt: skip
    CorruptShard,
    CreateOptions,
    InspectOptions,
    InvalidRequest,
    OutputExists,
    ReshardOptions,
    ShardError,
    VerifyOptions,
    create,
    extract,
    inspect,
    reshard,
    verify,
)
from shardtool.cli.result_text import render_report
from shardtool.messages import use_cli_names
from shardtool.storage.remote import retry
from shardtool.verbs.extract import MANIFEST
from tests.helpers import flip, read_tree, shards, write_tree
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server


@pytest.fixture(scope="module")
def proxy(http_files: Server, proxies: Callable[[Server], FaultyProxy]) -> FaultyProxy:
    """Give a server that makes faults."""
    return proxies(http_files)


@pytest.fixture(autouse=True)
def _harmless(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.set()
    monkeypatch.setattr(retry, "DEFAULT_POLICY", retry.RetryPolicy(first_wait_s=0.01, max_total_s=5))


@pytest.fixture
def dataset(ending: str, small_once: Path, proxy: FaultyProxy) -> tuple[str, Path]:
    """Give the address of a folder with a dataset of four shards, and the folder that is served."""
    at = proxy.server.new_prefix()
    folder = proxy.server.local(at)
    create(small_once, f"{folder}/x-{{000..}}.{ending}", CreateOptions(max_count=3, workers=0))
    return at, folder


def test_reshard_makes_the_same_bytes(dataset: tuple[str, Path], proxy: FaultyProxy, tmp_path: Path) -> None:
    """Shards of the web give the same bytes as local ones, despite failed requests; a second run changes nothing."""
    at, folder = dataset
    options = ReshardOptions(shuffle=True, seed=1, max_count=5, workers=0)
    reshard(folder / "x.json", f"{tmp_path}/near/y-{{0..}}.tar", options)
    proxy.set(Fault("status", times=None, chance=0.1), Fault("cut", times=None, chance=0.1), seed=5)
    reshard(f"{at}/x.json", f"{tmp_path}/far/y-{{0..}}.tar", options)
    assert read_tree(tmp_path / "far") == read_tree(tmp_path / "near")
    proxy.set()
    result = reshard(f"{at}/x.json", f"{tmp_path}/far/y-{{0..}}.tar", replace(options, resume=True))
    assert result.kept == 3
    assert sum(item.sent for item in proxy.log().asked if ".index" not in item.path and ".json" not in item.path) < 100


def test_extract_writes_the_same_files(ending: str, proxy: FaultyProxy, tmp_path: Path) -> None:
    """Samples of the web, also large ones, give the same files as local ones, despite failed requests."""
    at = proxy.server.new_prefix()
    files = {f"{name}/{number}.txt": name.encode() * number for name in ("a", "b") for number in (0, 1, 2000, 900_000)}
    source = write_tree(tmp_path / "in", files)
    create(source, f"{proxy.server.local(at)}/x-{{000..}}.{ending}", CreateOptions(max_count=3, workers=0))
    proxy.set(Fault("status", times=None, chance=0.1), Fault("cut", times=None, chance=0.1), seed=5)
    made = extract(f"{at}/x.json", tmp_path / "out", workers=2)
    assert (made.samples, made.kept) == (8, 0)
    assert {name: data for name, data in read_tree(tmp_path / "out").items() if name != MANIFEST} == files
    proxy.set()
    assert extract(f"{at}/x.json", tmp_path / "out", workers=2).kept == 8
    assert verify(f"{at}/x.json", source=tmp_path / "out", workers=0).sound
    (tmp_path / "out/a/1.txt").write_bytes(b"z")
    with pytest.raises(OutputExists, match="already exist"):
        extract(f"{at}/x.json", tmp_path / "out", workers=2)


def test_extract_of_a_shard_that_is_damaged_or_changes(
    dataset: tuple[str, Path], proxy: FaultyProxy, tmp_path: Path
) -> None:
    """A payload that differs from the index is not written, and the shard's address is named."""
    at, folder = dataset
    proxy.set(Fault("etag", path="x-002", first=2, times=None))
    with pytest.raises(ShardError, match="x-002"):
        extract(f"{at}/x.json", tmp_path / "one", workers=0)
    proxy.set()
    damaged = shards(folder)[1]
    data = damaged.read_bytes()
    damaged.write_bytes(data.replace(b"a", b"b"))
    with pytest.raises(CorruptShard, match=f"{at}/{damaged.name}"):
        extract(f"{at}/x.json", tmp_path / "two", workers=0)
    damaged.write_bytes(data)
    assert extract(f"{at}/x.json", tmp_path / "two", workers=0).kept


def test_a_shard_that_changes_ends_the_run(dataset: tuple[str, Path], proxy: FaultyProxy, tmp_path: Path) -> None:
    """A shard that is replaced between plan and packing is named, and nothing is written from it."""
    at, _ = dataset
    proxy.set(Fault("etag", path="x-002", first=2, times=None))
    with pytest.raises(ShardError, match="x-002"):
        reshard(f"{at}/x.json", f"{tmp_path}/y-{{0..}}.tar", ReshardOptions(workers=0))
    assert not (tmp_path / "y.json").exists()


def test_verify_reads_every_byte(dataset: tuple[str, Path], proxy: FaultyProxy) -> None:
    """A valid dataset is valid behind HTTP; a flipped bit and missing shards and sidecars are found."""
    at, folder = dataset
    report = verify(f"{at}/x.json", VerifyOptions(workers=0))
    assert (report.sound, report.samples) == (True, 12)
    size = sum(path.stat().st_size for path in shards(folder))
    assert sum(item.sent for item in proxy.log().asked) >= size
    flip(shards(folder)[2], 700)
    shards(folder)[1].unlink()
    (folder / "x-000.index").unlink()
    far, near = (verify(item, VerifyOptions(workers=0)) for item in (f"{at}/x.json", folder / "x.json"))
    assert far.counts == near.counts
    assert {"shard-missing", "shard-checksum", "sidecar-missing"} <= set(far.counts)
    proxy.set(Fault("flip", path="x-003", times=None))
    assert "shard-checksum" in verify(f"{at}/x.json", VerifyOptions(workers=0)).counts


def test_inspect_says_the_same(dataset: tuple[str, Path]) -> None:
    """`inspect` reports the same for a dataset in any location, except for the location."""
    at, folder = dataset
    (folder / "x-001.index").unlink()
    near, far = (inspect(item, InspectOptions()).to_json() for item in (folder / "x.json", f"{at}/x.json"))
    for item in (near, far):
        assert str(item.pop("dataset")).endswith("/x.json")
        item.pop("dataset_file")
    assert str(far).replace(at, str(folder)) == str(near).replace("no such file or directory", "no such object")


def test_a_query_is_shown_nowhere(dataset: tuple[str, Path]) -> None:
    """A token in an address is used for neighbouring files, and appears in no output."""
    at, folder = dataset
    shutil.copy(shards(folder)[0], folder / "copy.tar")
    given = f"{at.replace('//', '//me:sesame@')}/x.json?token=sesame"
    texts = [str(verify(given, VerifyOptions(workers=0)).to_json()), str(inspect(given, InspectOptions()).to_json())]
    assert "sesame" not in "".join(texts)


@pytest.mark.parametrize("ending", ["tar"], indirect=True)
def test_a_plan_is_read_from_the_web(
    dataset: tuple[str, Path], small_once: Path, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """A plan behind HTTP gives the same dataset, despite lost connections; an invalid plan costs one small request."""
    at, folder = dataset
    options = CreateOptions(max_count=3, workers=0)
    create(small_once, f"{tmp_path}/y-{{000..}}.tar", replace(options, plan_only=folder / "plan.parquet"), dry_run=True)
    create(small_once, f"{tmp_path}/here/y-{{000..}}.tar", options)
    for faults in ((), (Fault("cut", path="plan.parquet", first=2, at=100),)):
        proxy.set(*faults)
        there = replace(options, plan=f"{at}/plan.parquet", overwrite=True)
        create(small_once, f"{tmp_path}/there/y-{{000..}}.tar", there)
        assert read_tree(tmp_path / "there") == read_tree(tmp_path / "here")
    (folder / "large").write_bytes(bytes(2**25))
    proxy.set()
    with pytest.raises(CorruptShard, match="not a plan file, or damaged"):
        create(small_once, f"{tmp_path}/other/y-{{000..}}.tar", replace(options, plan=f"{at}/large"))
    assert sum(item.sent for item in proxy.log().asked) < 2**24


def test_advice_for_datasets_of_the_web(dataset: tuple[str, Path]) -> None:
    """No message recommends `--repair` for the web, where it is refused."""
    at, folder = dataset
    flip(shards(folder)[0], 600)
    far, near = (verify(item, VerifyOptions(workers=0)) for item in (f"{at}/x.json", folder / "x.json"))
    with use_cli_names():
        message, of_folder, stored = (
            render_report(item, "text") for item in (far, near, replace(near, dataset="s3://b/p/x.json"))
        )
    assert "Repair it at its origin" in message
    assert "--repair" in of_folder
    assert "Repair it at" not in of_folder
    assert "`shardtool verify s3://b/p/x.json --repair" in stored
    with pytest.raises(InvalidRequest, match="web servers are read-only"):
        verify(f"{at}/x.json", VerifyOptions(workers=0, repair=True))

"""Datasets behind HTTP are found without listing, and no other address is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shardtool import CreateOptions, create
from shardtool.dataset.expand import expand_datasets
from shardtool.dataset.find import find_dataset, open_dataset
from shardtool.dataset.shard_file import ChecksummedFile, CompressedFile, open_shard
from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.fingerprint import crc32c
from tests.helpers import shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server


@pytest.fixture(scope="module")
def dataset(small_once: Path, http_files: Server) -> tuple[str, Path]:
    """Return the address of a folder with a dataset of four shards, and the served folder."""
    url = http_files.new_prefix()
    create(small_once, f"{http_files.local(url)}/x y#-{{000..}}.tar", CreateOptions(max_count=3, workers=0))
    return url, http_files.local(url)


def test_every_way_to_name_a_dataset(dataset: tuple[str, Path]) -> None:
    """A dataset file, a range with an end, and a list of shards name the same shards and dataset file."""
    url, folder = dataset
    names = [path.name.replace(" ", "%20").replace("#", "%23") for path in shards(folder)]
    shard_urls = [f"{url}/{name}" for name in names]
    for argument in (
        f"{url}/x%20y%23.json",
        f"{url}/x%20y%23-{{000..003}}.tar",
        f"{url}/x%20y%23-<000..003>.tar",
        shard_urls,
    ):
        stored = find_dataset(argument)
        assert (list(stored.paths), stored.dataset_file, stored.folder) == (shard_urls, f"{url}/x%20y%23.json", url)
        assert stored.has_own_file
        assert stored.shards[0].sidecar == shard_urls[0].removesuffix(".tar") + ".index"
        assert expand_datasets(argument) == [argument]
    stored_shard = find_dataset(shard_urls[1])
    assert (stored_shard.paths, stored_shard.dataset_file) == ((shard_urls[1],), f"{url}/x%20y%23.json")
    assert [path.rpartition("/")[2] for path in find_dataset(f"{url}/x%20y%23.json?token=1").paths] == [
        f"{name}?token=1" for name in names
    ]


def test_a_dataset_of_one_shard(small_once: Path, http_files: Server) -> None:
    """The dataset file of a single shard is found, and is not used for a shard of a larger dataset."""
    url = http_files.new_prefix()
    create(small_once, f"{http_files.local(url)}/x-{{000..}}.tar", CreateOptions(workers=0))
    assert find_dataset(f"{url}/x-000.tar").dataset_file == f"{url}/x.json"
    assert find_dataset([f"{url}/x-000.tar"]).has_own_file


def test_indexes_are_the_same_as_for_local_files(dataset: tuple[str, Path]) -> None:
    """Sidecars and scans behind HTTP give the same indexes as for local files."""
    url, folder = dataset
    local, remote = open_dataset(folder / "x y#.json"), open_dataset(f"{url}/x%20y%23.json")
    assert local.file == remote.file
    for local_shard, remote_shard in zip(local.shards, remote.shards, strict=True):
        assert local_shard.index().table == remote_shard.index().table
        assert local_shard.read_footer() == remote_shard.read_footer()
        assert local_shard.read_footer() is not None
        (folder / "bare.tar").write_bytes((folder / local_shard.name).read_bytes())
        bare = open_dataset(f"{url}/bare.tar").shards[0]
        scanned = bare.index()
        assert scanned.scan is not None
        assert scanned.problems == ()
        assert scanned.table.column("__key__") == local_shard.index().table.column("__key__")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "cannot be listed"),
        ("/none", "cannot be listed"),
        ("/x%20y%23-{000..}.tar", "without an end"),
        ("/x%20y%23-*.tar", "a glob on the web"),
        ("/none-{00..03}.tar", "no shards match this pattern"),
        ("/none.tar", "no such file"),
        ("/none.json", "no such"),
    ],
)
def test_names_that_require_listing_are_usage_errors(name: str, problem: str, dataset: tuple[str, Path]) -> None:
    """A name that requires a listing of a web folder is a usage error."""
    with pytest.raises(InvalidRequest, match=problem):
        find_dataset(f"{dataset[0]}{name}")


def test_split_patterns_are_rejected_on_the_web() -> None:
    """`{split}` requires a listing, which web servers do not offer."""
    with pytest.raises(InvalidRequest, match="split"):
        expand_datasets("http://127.0.0.1:9/{split}.json")


@pytest.mark.parametrize("url", ["/etc/x.tar", "../x.tar", "a/../../x.tar", "http://127.0.0.1:9/x.tar", "s3://b/x.tar",
                                 "//127.0.0.1:9/x.tar", "file:x.tar"])  # fmt: skip
def test_names_outside_the_folder_are_rejected(
    url: str, http_files: Server, proxies: Callable[[Server], FaultyProxy]
) -> None:
    """A dataset file with names outside its folder is rejected, and no other address is requested."""
    proxy = proxies(http_files)
    folder_url = proxy.server.new_prefix()
    text = json.dumps({"shardlist": [{"url": url, "nsamples": 1}]})
    (proxy.server.local(folder_url) / "out.json").write_text(text, encoding="ascii")
    with pytest.raises(CorruptShard, match="do not lead into its folder"):
        find_dataset(f"{folder_url}/out.json")
    assert {request.path for request in proxy.log().asked} == {f"{folder_url.removeprefix(proxy.server.url)}/out.json"}


def test_shards_have_the_same_bytes_as_local_files(http_files: Server) -> None:
    """A shard behind HTTP has the same bytes as the local file, at any offset, in sequence, and compressed."""
    import gzip

    url = http_files.new_prefix()
    data = bytes(number * 7 % 251 for number in range(50_000)) * 150
    (http_files.local(url) / "x.tar").write_bytes(data)
    (http_files.local(url) / "x.tar.gz").write_bytes(gzip.compress(data, 1))
    with open_shard(f"{url}/x.tar") as shard:
        for offset, length in ((0, 10), (5_000_000, 2_000_000), (7_400_000, 200_000), (3, 70_000)):
            assert shard.read(offset, length) == data[offset : offset + length]
    with ChecksummedFile(f"{url}/x.tar") as summed:
        assert summed.read(3_000_000, 100) == data[3_000_000:3_000_100]
        assert summed.read(5, 7) == data[5:12]
        assert summed.crc() == crc32c(data)
    with CompressedFile(f"{url}/x.tar.gz") as packed:
        assert packed.read(6_000_000, 100_000) == data[6_000_000:6_100_000]


def test_a_missing_shard_is_named(http_files: Server) -> None:
    """The error of a missing shard names it, as for local files."""
    url = http_files.new_prefix()
    for name in ("x.tar", "x.tar.gz"):
        with pytest.raises(CorruptShard, match=f"{url}/{name}: cannot be opened: no such object"):
            open_shard(f"{url}/{name}")

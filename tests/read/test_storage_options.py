"""Storage options of `open`: two stores at once, in threads and other processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import shardtool
from tests.helpers import read_tree
from tests.read.packed import key_of, packed, sample_of
from tests.servers.bucket import SECRET, Bucket, served

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("obstore")
_READ = "import pickle, sys; print(pickle.load(sys.stdin.buffer)[2]['__key__'])"


def _options(bucket: Bucket) -> dict[str, Any]:
    return {"endpoint": bucket.url, "access_key_id": "AKIAMEMORY", "secret_access_key": SECRET, "region": "us-east-1"}


def test_two_stores_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two buckets of one name at two servers are read with their own options, also by threads and other processes."""
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    one, two = Bucket(), Bucket()
    with served(one), served(two):
        for number, bucket in enumerate((one, two)):
            packed(tmp_path / str(number), first=10 * number, count=6)
            bucket.objects = {f"set/{name}": data for name, data in read_tree(tmp_path / str(number)).items()}
        datasets = [shardtool.open("s3://b/set/out.json", storage_options=_options(bucket)) for bucket in (one, two)]
        for number, dataset in enumerate(datasets):
            expected = [sample_of(10 * number + row) for row in range(6)]
            assert [*dataset] == expected
            assert dataset[key_of(10 * number + 1)] == expected[1]
            assert [*dataset.stream(shuffle=False, rank=0, world_size=1)] == expected
            assert "options" not in repr(dataset)
            assert SECRET not in repr(dataset.reader.options)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.map(datasets[1].__getitem__, [3]) == [sample_of(13)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SHARDTOOL_"))}
        environment["AWS_ALLOW_HTTP"] = "true"
        ran = subprocess.run(
            [sys.executable, "-c", _READ], input=pickle.dumps(datasets[1]), env=environment, capture_output=True,
            check=True,
        )  # fmt: skip
        assert ran.stdout.decode().strip() == key_of(12)

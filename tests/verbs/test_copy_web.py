"""Laws of copying from a web server without listings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardtool import CorruptShard, CreateOptions, InvalidRequest, copy, create, export
from tests.helpers import read_tree, write_tree
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a dataset of four shards, one of whose names needs escaping, with indexes for another tool."""
    folder = tmp_path_factory.mktemp("packed")
    files = {f"{at}.txt": bytes([at]) * 3000 for at in range(8)}
    create(write_tree(folder / "in", files), f"{folder}/out/a b#%-{{0..}}.tar", CreateOptions(max_count=2, workers=0))
    export(folder / "out/a b#%.json", "dali-webdataset")
    return folder / "out"


def test_listed_files_are_copied_from_the_web(http_files: Server, packed: Path, tmp_path: Path) -> None:
    """All listed files are copied, and nothing else; existing files are not requested again."""
    prefix = http_files.new_prefix()
    write_tree(http_files.local(prefix), read_tree(packed))
    address = f"{prefix}/a%20b%23%25.json?token=secret"
    copy(address, tmp_path / "copy")
    expected = {name: data for name, data in read_tree(packed).items() if not name.endswith(".idx")}
    assert read_tree(tmp_path / "copy") == expected
    result = copy(address, tmp_path / "copy")
    assert result.datasets[0].kept == 4
    assert "secret" not in str(result)
    with pytest.raises(InvalidRequest):
        copy(packed, prefix)


@pytest.mark.parametrize(
    ("fault", "survived"),
    [(Fault("cut", path="-1.tar"), True), (Fault("flip", path="-1.tar"), True),
     (Fault("flip", path="-1.tar", times=None), False), (Fault("status", status=404, path="-1.tar"), False)],
    ids=["cut", "flip", "flips", "missing"],
)  # fmt: skip
def test_failed_downloads_are_retried(
    fault: Fault, survived: bool, http_files: Server, proxies: Callable[[Server], FaultyProxy], packed: Path,  # noqa: FBT001
    tmp_path: Path,
) -> None:  # fmt: skip
    """A truncated or changed response is requested again; a shard that is always wrong is named and never appears."""
    proxy = proxies(http_files)
    prefix = http_files.new_prefix()
    write_tree(http_files.local(prefix), read_tree(packed))
    source = f"{prefix.replace(http_files.bucket, proxy.server.bucket)}/a%20b%23%25.json"
    proxy.set(fault)
    if survived:
        copy(source, tmp_path / "copy")
        assert "a b#%.json" in read_tree(tmp_path / "copy")
    else:
        with pytest.raises(CorruptShard, match=r"-1\.tar"):
            copy(source, tmp_path / "copy")
        assert {"a b#%-1.tar", "a b#%.json"}.isdisjoint(read_tree(tmp_path / "copy"))

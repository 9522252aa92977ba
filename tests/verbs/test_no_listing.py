"""Roles that may read objects but not list them: named objects are read, and errors say if a listing is required."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool import (
    AccessRefused,
    CorruptShard,
    CreateOptions,
    ReshardOptions,
    VerifyOptions,
    copy,
    create,
    inspect,
    reshard,
    verify,
)
from shardtool.storage.remote import http, store_access
from tests.helpers import flip, read_tree, write_tree
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

_SAID = "<Error><Code>AccessDenied</Code></Error>"
# Without the permission to list, a store also answers 403 for missing objects, which our verbs look for next to shards.
_MISSING = r"README|\.skipped|dataset_info|\.idx|\.nv-meta|/x-000\.json"
_ROW = "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;0&quot;</ETag>"
_FAULTS = [Fault("status", status=403, path=path, times=None, body=_SAID) for path in ("list-type=2", _MISSING)]


@pytest.fixture
def stored(
    http_files: Server, proxies: Callable[[Server], FaultyProxy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[str, Path, FaultyProxy]]:
    """Give the address of a dataset of eight shards in a store that refuses to list, its files, and the server."""
    proxy, at = proxies(http_files), http_files.new_prefix()
    monkeypatch.delenv("SHARDTOOL_ENDPOINT")
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
    for made in (store_access._make_store, http._make_pool):  # noqa: SLF001
        made.cache_clear()
    files = {f"{at}.txt": bytes([at]) * 3000 for at in range(16)}
    folder = http_files.local(at)
    create(write_tree(tmp_path / "in", files), f"{folder}/x-{{000..}}.tar", CreateOptions(max_count=2, workers=0))
    proxy.set(*_FAULTS)
    yield f"s3://{at.rpartition('/')[2]}", folder, proxy
    for made in (store_access._make_store, http._make_pool):  # noqa: SLF001
        made.cache_clear()


def test_what_is_named_needs_no_listing(stored: tuple[str, Path, FaultyProxy], tmp_path: Path) -> None:
    """Every verb that reads, and `open`, takes a dataset file, and a range with its end, from who may not list."""
    at, folder, _ = stored
    for given in (f"{at}/x.json", f"{at}/x-{{000..007}}.tar"):
        for options in (VerifyOptions(workers=0), VerifyOptions(quick=True)):
            report = verify(given, options)
            assert report.sound
            assert any("refuses to list files" in item for item in report.unchecked)
        assert inspect(given).samples == len(shardtool.open(given)) == 16
    result = copy(f"{at}/x.json", tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == read_tree(folder)
    assert "the store denies listing" in " ".join(result.notes)
    assert reshard(f"{at}/x.json", f"{tmp_path}/y-{{0..}}.tar", ReshardOptions(workers=0)).samples == 16
    flip(folder / "x-003.tar", 700)
    assert {*verify(f"{at}/x.json", VerifyOptions(workers=0)).counts} >= {"shard-checksum", "payload-checksum"}
    with (folder / "x-004.tar").open("ab") as shard:
        shard.write(b"x")
    with pytest.raises(CorruptShard, match="x-004"):
        copy(f"{at}/x.json", tmp_path / "other")


@pytest.mark.parametrize("name", ["", "/x-{000..}.tar", "/x-*.tar", "/{split}-{000..}.tar"])
def test_a_required_listing_is_reported(name: str, stored: tuple[str, Path, FaultyProxy], tmp_path: Path) -> None:
    """If a required listing is refused, the error says what to allow or to name instead."""
    at, _, _ = stored
    for ask in (lambda: verify(at + name), lambda: inspect(at + name), lambda: copy(at + name, tmp_path / "copy")):
        with pytest.raises(AccessRefused, match="listing is not allowed") as caught:
            ask()
        assert "s3:ListBucket" in caught.value.expected
        assert "dataset file" in caught.value.remedy
    with pytest.raises(AccessRefused, match="listing is not allowed"):
        create(at, f"{tmp_path}/z-{{0..}}.tar", CreateOptions(workers=0))


@pytest.mark.parametrize("name", ["/x-{000..}.tar", "/x-{000..007}.tar", "/x-*.tar"])
def test_a_dataset_file_without_read_permission(
    name: str, stored: tuple[str, Path, FaultyProxy], tmp_path: Path
) -> None:
    """If a store allows listing only, the refused object is named, and not reported as missing."""
    at, folder, proxy = stored
    rows = [
        f"<Contents><Key>{one}</Key><Size>{len(data)}</Size>{_ROW}</Contents>"
        for one, data in read_tree(folder).items()
    ]
    listing = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>"
    read = Fault("status", status=403, path=r"x[-.]", times=None, body=_SAID)
    proxy.set(Fault("status", status=200, path="list-type=2", times=None, body=listing), read)
    for ask in (lambda: copy(at + name, tmp_path / "copy"), lambda: verify(at + name)):
        with pytest.raises(AccessRefused, match=r"x\.json"):
            ask()

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from shardtool import CreateOptions, InvalidRequest, SampleFailed, create
from shardtool.errors import AccessRefused
from tests.helpers import members, read_tree, write_tree
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

NAMES = ["a b#ü?%25.jpg", "cat/1.jpg", "cat/2.jpg", "cat/empty.jpg"]
OUT = "out-{000..}.tar"


def _place(server: Server) -> tuple[str, Path]:
    """Return a new folder of the server with some files: its URL, and its path."""
    prefix = server.new_prefix()
    local = server.local(prefix)
    write_tree(local, {name: name.encode() * 50 if "empty" not in name else b"" for name in NAMES})
    (local / "m.csv").write_text("path,n\n" + "".join(f'"{name}",{at}\n' for at, name in enumerate(NAMES)))
    return prefix, local


@pytest.mark.parametrize("name", ["m.csv", "m.jsonl.gz", "m.parquet", "m.feather"])
def test_a_remote_manifest_equals_a_local_one(name: str, http_files: Server, tmp_path: Path) -> None:
    """A manifest on the web gives the same bytes; its paths are relative to its URL; no query is kept."""
    prefix, local = _place(http_files)
    table = pa.table({"path": NAMES, "n": [*range(len(NAMES))]})
    pq.write_table(table, local / "m.parquet")
    feather.write_feather(table, local / "m.feather")
    with pa.output_stream(local / "m.jsonl.gz", compression="gzip") as file:
        file.write("".join(f'{{"path":"{path}","n":{at}}}\n' for at, path in enumerate(NAMES)).encode())
    create(f"{prefix}/{name}?token=sesame", str(tmp_path / "web" / OUT))
    create(str(local / name), str(tmp_path / "local" / OUT))
    assert read_tree(tmp_path / "web") == read_tree(tmp_path / "local")
    assert not any(b"sesame" in data for data in read_tree(tmp_path / "web").values())


def test_the_root_can_be_a_url(http_files: Server, tmp_path: Path) -> None:
    """The paths of a local manifest may be relative to a URL."""
    prefix, local = _place(http_files)
    create(str(local / "m.csv"), str(tmp_path / "web" / OUT), CreateOptions(root=prefix, meta="none"))
    assert [name for name, _ in members(tmp_path / "web" / "out-000.tar")] == NAMES


def test_missing_files_are_reported(http_files: Server, tmp_path: Path) -> None:
    """A missing manifest, missing files and paths that leave the root are errors that name them."""
    prefix, local = _place(http_files)
    with pytest.raises(InvalidRequest, match=r"none\.csv: cannot be read: no such object"):
        create(f"{prefix}/none.csv", str(tmp_path / OUT))
    (local / "some.csv").write_text("path\ncat/1.jpg\ngone.jpg\n")
    with pytest.raises(SampleFailed, match=r"gone\.jpg \(no such object, row 2\)"):
        create(f"{prefix}/some.csv", str(tmp_path / OUT))
    for away in ("../up.jpg", "/etc/x.jpg"):
        (local / "away.csv").write_text(f"path\n{away}\n")
        with pytest.raises(InvalidRequest, match="a path that leaves the root"):
            create(f"{prefix}/away.csv", str(tmp_path / OUT), CreateOptions(allow_outside=True))
    (local / "stores.csv").write_text("path\ns3://bucket/x.jpg\n")
    with pytest.raises(InvalidRequest, match=r"a URL, .* contains them, such as root='s3://BUCKET'"):
        create(f"{prefix}/stores.csv", str(tmp_path / OUT))
    assert not list(tmp_path.glob("*.tar"))


def test_changed_files_fail_the_run(
    http_files: Server, proxies: Callable[[Server], FaultyProxy], tmp_path: Path
) -> None:
    """A file with another version when it is packed fails the run, or is skipped with that reason."""
    proxy = proxies(http_files)
    prefix, _ = _place(http_files)
    prefix = prefix.replace(http_files.url, proxy.server.url)
    fault = Fault("etag", path=quote("cat/2.jpg"), first=2, times=None)
    proxy.set(fault)
    with pytest.raises(SampleFailed, match=r"cat/2\.jpg: changed while it was packed: its version \(ETag\) differs"):
        create(f"{prefix}/m.csv", str(tmp_path / OUT), CreateOptions(workers=0))
    proxy.set(fault)
    options = CreateOptions(workers=0, on_error="skip", resume=True)
    result = create(f"{prefix}/m.csv", str(tmp_path / OUT), options)
    assert (result.samples, result.skipped) == (3, 1)


def test_transient_errors_are_retried(
    http_files: Server, proxies: Callable[[Server], FaultyProxy], tmp_path: Path
) -> None:
    """Transient errors are retried, with the same bytes; a denial fails the run at once, without further requests."""
    proxy = proxies(http_files)
    prefix, local = _place(http_files)
    prefix = prefix.replace(http_files.url, proxy.server.url)
    create(str(local / "m.csv"), str(tmp_path / "local" / OUT))
    one = quote("cat/1.jpg")
    proxy.set(Fault("status", path=one, first=1), Fault("cut", path=one, first=2), Fault("reset", path=one, first=1))
    create(f"{prefix}/m.csv", str(tmp_path / "web" / OUT), CreateOptions(workers=0))
    assert read_tree(tmp_path / "web") == read_tree(tmp_path / "local")
    proxy.set(Fault("status", status=403, path=one, times=None))
    with pytest.raises(AccessRefused, match=r"cat/1\.jpg: the server returned 403"):
        create(f"{prefix}/m.csv", str(tmp_path / "no" / OUT), CreateOptions(workers=0))
    assert sum(asked.status == 403 for asked in proxy.log().asked) == 1

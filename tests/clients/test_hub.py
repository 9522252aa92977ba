"""`hf://` with a local server that acts like the Hugging Face Hub, in processes that start with its `HF_ENDPOINT`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

import shardtool
from tests.helpers import PHOTOS, REPO, read_tree
from tests.servers import stores
from tests.servers.faults import Fault, FaultyProxy, behind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.processes import Server

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("huggingface_hub") is None, reason="huggingface_hub is not installed"),
]
TOKEN = "hf_sesame"  # noqa: S105 - of the local server
BLANK = "a folder/b#c %41é"
_OPENED = """
import sys, shardtool
dataset = shardtool.open(sys.argv[1])
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProxy]:
    """Give the Hub behind the proxy: `open` with `main` and `v1`, `closed`, `gated`, and `tree`, without shards."""
    root = tmp_path_factory.mktemp("hub")
    (root / "proxy").mkdir()
    with stores.hub(root) as server, stores.proxy(server, root / "proxy") as port:
        assert server.folder is not None
        main = server.folder / "o" / "open" / "main"
        options = shardtool.CreateOptions(max_size=500_000, label_from_folder=True)
        shardtool.create(PHOTOS, main / "train-{000000..}.tar", options)
        shardtool.export(main / "train.json", ["huggingface"])
        for name in ("open/v1", "closed/main", "gated/main"):
            shutil.copytree(main, server.folder / "o" / name)
        for name, more in (("closed", {}), ("gated", {"gated": True})):
            (server.folder / "o" / f"{name}.json").write_text(json.dumps({"token": TOKEN, **more}))
        shutil.copytree(PHOTOS / "cat", server.folder / "o" / "tree" / "main" / BLANK)
        yield FaultyProxy(behind(server, port))


@pytest.fixture
def server(hub: FaultyProxy) -> Server:
    """Give the Hub as a client sees it, without faults, and nothing counted."""
    hub.set()
    return hub.server


def run(
    server: Server, *words: object, token: str = "", program: tuple[str, ...] = ("-m", "shardtool"), **more: str
) -> Any:
    """Run the tool, or another program, as a user does who has this Hub."""
    env = {**os.environ, **server.environment, "HF_TOKEN": token, **more}
    done = subprocess.run(
        [sys.executable, *program, *map(str, words)], cwd=REPO, env=env, capture_output=True, text=True, check=False
    )
    assert TOKEN not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr or program != ("-m", "shardtool")
    return done


def well(done: Any) -> str:
    """Return what a program printed that succeeded."""
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def folder_of(server: Server, name: str) -> Path:
    """Return the folder with the files of a revision."""
    assert server.folder is not None
    return server.folder / "o" / name


def test_a_dataset(server: Server, tmp_path: Path) -> None:
    """What verbs make of a revision of a repository is what they make of the same files on this machine."""
    there, here = "hf://datasets/o/open@v1/train.json", folder_of(server, "open/v1") / "train.json"
    well(run(server, "verify", there))
    assert json.loads(well(run(server, "inspect", there, "--json")))["samples"] == len(list(PHOTOS.glob("*/*.jpg")))
    asked = shardtool.ReshardOptions(max_count=50, shuffle=True)
    shardtool.reshard(here, tmp_path / "here" / "r-{000..}.tar", asked)
    well(run(server, "reshard", there, tmp_path / "there" / "r-{000..}.tar", "--max-count", 50, "--shuffle"))
    assert read_tree(tmp_path / "there") == read_tree(tmp_path / "here")
    well(run(server, "copy", there, tmp_path / "copy"))
    assert shardtool.diff(tmp_path / "copy" / "train.json", here).same
    well(run(server, "extract", "hf://datasets/o/open", tmp_path / "files"))
    assert (tmp_path / "files" / "cat" / "cat-0001.jpg").read_bytes() == (PHOTOS / "cat" / "cat-0001.jpg").read_bytes()


def test_doctor(server: Server) -> None:
    """`doctor` says what may be listed and read in a repository, and how to get access to a private one."""
    found = json.loads(well(run(server, "doctor", "hf://datasets/o/open", "--json")))
    assert [(one["name"], one["state"]) for one in found["checks"]] == [("list", "ok"), ("read", "ok")]
    ran = run(server, "doctor", "hf://datasets/o/closed")
    assert ran.returncode == 3
    assert "HF_TOKEN" in ran.stdout
    well(run(server, "doctor", "hf://datasets/o/closed", token=TOKEN))


def test_sources(server: Server, tmp_path: Path) -> None:
    """A folder of a repository is a source; so are Parquet files by name, glob or folder."""
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    well(run(server, "create", "hf://datasets/o/tree", tmp_path / "t" / "t-{000..}.tar"))
    shardtool.create(folder_of(server, "tree/main"), tmp_path / "h" / "t-{000..}.tar")
    assert (tmp_path / "t" / "t-000.tar").read_bytes() == (tmp_path / "h" / "t-000.tar").read_bytes()
    well(run(server, "verify", tmp_path / "t" / "t.json", "--source", "hf://datasets/o/tree"))
    data = folder_of(server, "rows/main/data")
    data.mkdir(parents=True)
    for part in range(2):
        images = [{"bytes": bytes([part, row]) * 5000, "path": f"{part}-{row}.jpg"} for row in range(9)]
        pq.write_table(pa.table({"image": images}), data / f"train-0000{part}-of-00002.parquet", row_group_size=4)
    shards: dict[str, Any] = {}
    for name, count in (("data/*.parquet", 18), ("data", 18), ("data/train-00001-of-00002.parquet", 9)):
        out = tmp_path / str(len(shards))
        well(run(server, "create", f"hf://datasets/o/rows/{name}", out / "p-{000..}.tar", "--bytes", "jpg=image"))
        shards[name] = shardtool.open(out / "p.json")
        assert len(shards[name]) == count
        assert shards[name][-1]["jpg"] == bytes([1, 8]) * 5000


def test_storage_options_of_a_call(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """`endpoint` and `token` of one call replace the environment, and unknown names are refused."""
    for name, value in {**server.environment, "HF_TOKEN": "", "HF_ENDPOINT": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    address, options = "hf://datasets/o/closed/train.json", {"endpoint": server.url, "token": TOKEN}
    assert shardtool.verify(address, workers=0, storage_options=options).sound
    assert len(shardtool.open(address, storage_options={"hf://": options})) > 0
    with pytest.raises(shardtool.AccessRefused):
        shardtool.open(address, storage_options={"endpoint": server.url})
    with pytest.raises(shardtool.InvalidRequest, match=r"the option 'tok' of hf://; expected one of .*token"):
        shardtool.open(address, storage_options={"tok": TOKEN})


def test_private_repositories(server: Server, tmp_path: Path) -> None:
    """Private and gated repositories are read with a token that no other host receives; else an error advises."""
    for name in ("closed", "gated"):
        there = f"hf://datasets/o/{name}/train.json"
        refused = run(server, "verify", there)
        assert (refused.returncode, "Set HF_TOKEN" in refused.stderr) == (7, True), refused.stderr
        well(run(server, "verify", there, token=TOKEN))  # the host of large files refuses tokens
        out = tmp_path / name / "c-{000..}.tar"
        refused = run(server, "create", f"hf://datasets/o/{name}", out)
        assert (refused.returncode, "Set HF_TOKEN" in refused.stderr) == (7, True), refused.stderr
    wrong = run(server, "inspect", "hf://datasets/o/closed", token="hf_another")  # noqa: S106
    found = "no such repository, or no access with this token"
    assert (wrong.returncode, found in wrong.stderr) == (7, True), wrong.stderr


def test_who_logs_in_later(server: Server) -> None:
    """A program that was refused is let in once it has a token, and finds a repository that was made meanwhile."""
    later = """
import os, shutil, sys
from shardtool.errors import ShardError
from shardtool.storage.files import list_folder
private, new, source = sys.argv[1:]
for address in (private, new):
    try:
        list_folder(address)
    except ShardError as error:
        print(type(error).__name__)
os.environ["HF_TOKEN"] = "hf_" + "sesame"
print(len(list_folder(private)) > 6)
shutil.copytree(source, new.replace("hf://datasets", source[:source.index("/o/")]) + "/main")
print(len(list_folder(new)) > 6)
"""
    given = ("hf://datasets/o/closed", "hf://datasets/o/later", folder_of(server, "open/v1"))
    said = well(run(server, *given, program=("-c", later)))
    assert said.split() == ["AccessRefused", "AccessRefused", "True", "True"]


def test_shards_alone(server: Server, tmp_path: Path) -> None:
    """Shards of other tools, without sidecars and a dataset file, are found by a pattern or a glob, and read."""
    data = folder_of(server, "bare/main/data")
    data.mkdir(parents=True)
    for shard in folder_of(server, "open/v1").glob("*.tar"):
        shutil.copy(shard, data)
    there = "hf://datasets/o/bare/data"
    for name in ("train-{000000..000005}.tar", "*.tar"):
        well(run(server, "verify", f"{there}/{name}"))
    well(run(server, "reshard", f"{there}/*.tar", tmp_path / "r-{000..}.tar", "--max-count", 40))
    assert len(shardtool.open(tmp_path / "r.json")) == len(list(PHOTOS.glob("*/*.jpg")))
    refused = run(server, "index", f"{there}/*.tar")
    assert (refused.returncode, "hf:// locations are read-only" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("o/none/train.json", 7, "private, gated, or does not exist"),
        ("o/none", 7, "private, gated, or does not exist"),
        ("o/open@v9/train.json", 2, "no such revision"),
        ("o/open@v9", 7, "no such revision"),
        ("o/open/none.json", 2, "no such object"),
        ("o/open/none", 2, "no objects below it"),
        ("o", 2, "not a dataset repository; expected hf://datasets/ORG/NAME"),
    ],
)
def test_what_is_not_there(server: Server, name: str, code: int, said: str) -> None:
    """A repository, revision, file or folder that is not there is named, with what it is that is missing."""
    done = run(server, "inspect", f"hf://datasets/{name}")
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_offline(server: Server) -> None:
    """If huggingface_hub is set to offline mode, the error says so, and no request is sent."""
    for name in ("o/open", "o/open/train.json"):
        done = run(server, "inspect", f"hf://datasets/{name}", HF_HUB_OFFLINE="1")
        assert "Unset HF_HUB_OFFLINE" in done.stderr


def test_bytes_read(hub: FaultyProxy, server: Server) -> None:
    """A sample costs its bytes and those of an index, an epoch each byte once; only ranges are requested."""
    there, data = "hf://datasets/o/open/train.json", folder_of(server, "open/main")
    well(run(server, there, program=("-c", f"{_OPENED}assert dataset[97]['jpg']")))
    asked = [one for one in hub.log().asked if one.path.startswith("/lfs/")]
    assert sum(one.sent for one in asked) < 150_000
    hub.set()
    size = sum(one.stat().st_size for one in data.glob("*.tar"))
    read = f"{_OPENED}assert sum(1 for _ in dataset.stream(shuffle=False)) == 98"
    well(run(server, there, program=("-c", read)))
    asked = [one for one in hub.log().asked if one.path.startswith("/lfs/") and ".tar" in one.path]
    assert sum(one.sent for one in asked) <= size
    assert len(asked) <= 6 * 3


def test_the_hub_is_asked_once(hub: FaultyProxy, server: Server) -> None:
    """For an open file, the Hub is asked once, because it limits requests; its CDN is asked for each range."""
    read = """
import sys
from shardtool.storage.files import files_at
file = files_at(sys.argv[1]).open(sys.argv[1])
assert [len(file.read(at * 30_000, 1000)) for at in range(9)] == [1000] * 9
"""
    well(run(server, "hf://datasets/o/open/train-000000.tar", program=("-c", read)))
    asked = hub.log().asked
    assert len([one for one in asked if "/resolve/" in one.path]) == 1
    assert len(asked) == 1 + 1 + 9
    hub.set(
        Fault("status", path="/lfs/", first=5, status=403)
    )  # the signature has expired: one new signature is requested
    well(run(server, "hf://datasets/o/open/train-000000.tar", program=("-c", read)))
    asked = hub.log().asked
    assert len([one for one in asked if "/resolve/" in one.path]) == 2
    assert len(asked) == 2 + 1 + 9 + 1


def test_faults(hub: FaultyProxy, server: Server, tmp_path: Path) -> None:
    """A busy Hub is asked again after the time it names; a response cut by the CDN is requested again."""
    limited = {"RateLimit": '"resolvers";r=0;t=1', "RateLimit-Policy": '"fixed window";"resolvers";q=500;w=300'}
    hub.set(
        Fault("status", path="/api/", status=503),
        Fault("status", path="resolve/main/train-000001", status=429, headers=limited),
        Fault("cut", path="/lfs/.*train-000002.tar"),
        Fault("reset", path="/lfs/.*train-000003.tar", first=2),
        Fault("status", path="/lfs/.*train-000004.tar", first=2, status=403),  # its signature has expired
    )
    done = run(server, "copy", "hf://datasets/o/open", tmp_path / "copy", "--json")
    assert json.loads(well(done))["retries"] >= 2
    assert {one.fault for one in hub.log().asked} > {"status", "cut"}
    assert shardtool.diff(tmp_path / "copy" / "train.json", folder_of(server, "open/main") / "train.json").same


def test_a_connection_that_is_lost(hub: FaultyProxy, server: Server) -> None:
    """A listing that is cut is requested again; if the server does not answer, the error names its address."""
    hub.set(Fault("refuse", path="/api/", times=4))
    well(run(server, "verify", "--quick", "hf://datasets/o/open"))
    nowhere = run(server, "inspect", "hf://datasets/o/open", "--retry-for", 1, HF_ENDPOINT="http://127.0.0.1:9")
    said = "hf://datasets/o/open: the server cannot be reached"
    assert (nowhere.returncode, said in nowhere.stderr) == (7, True), nowhere.stderr


def test_another_version(server: Server) -> None:
    """A shard replaced by one of the same size during reading is detected; opening it again returns the new one."""
    copy = folder_of(server, "open/v2")
    shutil.copytree(folder_of(server, "open/v1"), copy)
    read = """
import shutil, sys
from pathlib import Path
from shardtool.storage.files import files_at
address, path = sys.argv[1], Path(sys.argv[2])
file = files_at(address).open(address)
before = file.read(0, 1000)
path.write_bytes(bytes(path.stat().st_size))
try:
    file.read(1000, 1000)
except OSError as error:
    print(error.strerror)
assert files_at(address).open(address).read(0, 1000) == bytes(1000) != before
"""
    name = "train-000000.tar"
    said = well(run(server, f"hf://datasets/o/open@v2/{name}", copy / name, program=("-c", read)))
    assert said == "changed while it was read\n"


@pytest.mark.parametrize("streaming", [False, True])
def test_load_dataset_finds_exported_shards(server: Server, tmp_path: Path, *, streaming: bool) -> None:
    """With `--export huggingface`, `load_dataset` finds exactly the shards of a repository."""
    pytest.importorskip("datasets")
    load = """
import sys, datasets
given = dict(split="train", streaming=sys.argv[2] == "True", cache_dir=sys.argv[1])
rows = datasets.load_dataset("o/open", **given).cast_column("jpg", datasets.Image(decode=False))
print([row["__key__"] for row in rows])
"""
    said = well(run(server, tmp_path, streaming, program=("-W", "ignore", "-c", load)))
    here = shardtool.open(folder_of(server, "open/main") / "train.json")
    assert said.splitlines()[-1] == str([sample["__key__"] for sample in here])

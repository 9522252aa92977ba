"""Laws of `--executor ray`: the same bytes as on one machine, also if workers, nodes or the driver fail."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

import shardtool
from shardtool.errors import InvalidRequest, OutputExists, SampleFailed
from tests.helpers import REPO, write_tree
from tests.tied import tied

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray then keeps to the loopback address, here too
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
MAP = "tests.clients.on_nodes:act"
# A command that handles Ctrl-C, also if the tests' process ignores it.
_START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
os.execv(sys.executable, [sys.executable, "-m", "shardtool", *sys.argv[1:]])
"""
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000  # of Linux
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


class Nodes:
    """A cluster: a head with one slot, where drivers connect, and as many nodes as a test asks for."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.each: dict[str, Any] = {
            "num_cpus": 1, "object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1"
        }  # fmt: skip
        head = {**self.each, "include_dashboard": False, "_system_config": _HEALTH}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.others: list[Any] = []

    @property
    def address(self) -> str:
        """Where a driver connects."""
        return str(self.cluster.address)

    def need(self, count: int) -> None:
        """Ensure that `count` live nodes exist in addition to the head."""
        self.others = [one for one in self.others if one.live_processes() and _raylet(one)]
        while len(self.others) < count:
            self.others.append(self.cluster.add_node(**self.each))

    def list_in(self, folder: Path) -> None:
        """List the raylets that a test may kill."""
        (folder / "raylets").write_text(" ".join(str(_raylet(one)) for one in self.others))


def _raylet(node: Any) -> int:
    """Return the process of a node's raylet; 0 if it has exited."""
    found = next(iter(node.all_processes["raylet"])).process
    return 0 if found.poll() is not None else int(found.pid)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Give a cluster of three raylets on this machine, and a connection of this process to it."""
    import ray

    found = Nodes()
    found.need(2)
    ray.init(found.address, log_to_driver=False, logging_level="CRITICAL")
    try:
        yield found
    finally:
        ray.shutdown()
        found.cluster.shutdown()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Yield 24 samples of two fields; one field makes the function of `--map` perform the action `asks`."""
    root = tmp_path / "source"
    root.mkdir()
    for number in range(24):
        (root / f"{number:03}.bin").write_bytes(bytes([number]) * (700 * number))
        (root / f"{number:03}.txt").write_text(f"caption of {number}")
    return root


def asks(source: Path, action: str, *numbers: int) -> Path:
    """Let these samples ask for an action; return the folder of its flags."""
    flags = source.parent / "flags"
    flags.mkdir(exist_ok=True)
    for number in numbers:
        (source / f"{number:03}.do").write_text(f"{action} {flags}")
    return flags


def pack(source: Path, name: str, executor: str = "ray", **options: Any) -> Path:
    """Pack a source with the function of `--map`, and return the folder of the shards."""
    folder = source.parent / name
    asked = shardtool.CreateOptions(max_count=2, map=MAP, executor=executor, **options)  # type: ignore[arg-type]
    shardtool.create(source, folder / "out-{000000..}.tar", asked)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder, hidden ones too."""
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def same_as_here(source: Path, folder: Path) -> None:
    """Check that the folder contains only the shards that one machine writes."""
    for one in source.glob("*.do"):
        one.write_text(" " * one.stat().st_size)  # ask for nothing
    here = pack(source, "here", "local", workers=1)
    assert contents(folder).keys() == contents(here).keys()
    assert {name for name, data in contents(folder).items() if data != contents(here)[name]} <= set()


def tool(*words: object, nodes: Nodes, cwd: Path = REPO) -> subprocess.Popen[str]:
    """Start the command line on a cluster."""
    command = [sys.executable, "-c", _START, *map(str, words), "--executor", "ray", "--address", nodes.address]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=cwd, text=True, **pipes)


@pytest.mark.usefixtures("nodes")
def test_every_verb_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    """create, reshard and index write on a cluster what they write here, and verify finds it sound."""
    folders = {}
    for executor in ("local", "ray"):
        how: dict[str, Any] = {"executor": executor, "workers": 2}
        folder = folders[executor] = tmp_path / executor
        made = shardtool.create(source, folder / "out-{000000..}.tar", shardtool.CreateOptions(max_count=5, **how))
        assert made.samples == 24
        scattered = shardtool.ReshardOptions(max_count=7, shuffle=True, method="scatter", **how)
        shardtool.reshard(folder / "out.json", folder / "other-{000000..}.tfrecord", scattered)
        for one in folder.glob("other*.index"):
            one.unlink()
        (folder / "other.json").unlink()
        shardtool.index(folder / "other-{000000..000003}.tfrecord", shardtool.IndexOptions(checksum=True, **how))
        for name in ("out.json", "other.json"):
            report = shardtool.verify(folder / name, shardtool.VerifyOptions(source=source, **how) if name == "out.json"
                                      else shardtool.VerifyOptions(**how))  # fmt: skip
            assert report.sound, report.findings
    assert contents(folders["local"]) == contents(folders["ray"])


@pytest.mark.usefixtures("nodes")
def test_a_worker_that_dies(source: Path) -> None:
    """Where a worker is killed in the middle of a shard, that shard is written again, and nothing of it stays."""
    flags = asks(source, "kill-worker", 9)
    folder = pack(source, "out")
    assert (flags / "killed").exists()
    same_as_here(source, folder)


def test_a_node_that_is_lost(nodes: Nodes, source: Path) -> None:
    """Where a raylet is killed in mid-run, the tasks of its node run elsewhere."""
    nodes.need(2)
    flags = asks(source, "kill-raylet", *range(24))
    nodes.list_in(flags)
    folder = pack(source, "out")
    assert (flags / "killed").exists()
    same_as_here(source, folder)


@pytest.mark.usefixtures("nodes")
def test_a_worker_that_appeared_dead(source: Path) -> None:
    """An attempt that continues next to its replacement damages neither its file nor the dataset."""
    flags = asks(source, "go-on", 10)
    folder = pack(source, "out")
    assert (flags / "again").exists()
    for one in folder.glob(".*.part"):  # the first attempt may finish last, after the run that would clean up
        one.unlink()
    same_as_here(source, folder)


def test_a_slow_node(nodes: Nodes, source: Path) -> None:
    """A node that takes long gets few tasks, and holds up none but its own."""
    nodes.need(2)
    flags = asks(source, "slow", *range(24))
    nodes.others = nodes.others[:1]
    nodes.list_in(flags)
    folder = pack(source, "out")
    same_as_here(source, folder)


def test_the_raylet_of_the_driver_dies(tmp_path: Path) -> None:
    """If its own raylet is killed, a driver names the node and exits with the code of a machine failure."""
    own = Nodes()
    try:
        source = write_tree(tmp_path / "many", {f"{number:04}.txt": b"x" * 900 for number in range(2000)})
        folder = tmp_path / "out"
        driver = tool("create", source, folder / "out-{000000..}.tar", "--max-count", 1, nodes=own)
        wait_for_shards(driver, folder, 5)
        os.kill(_raylet(own.cluster.head_node), signal.SIGKILL)
        _, said = driver.communicate(timeout=120)
        assert driver.returncode == 7
        assert "its raylet, which connects this process to the cluster, has exited" in said
        assert "--resume" in said
    finally:
        own.cluster.shutdown()


@pytest.mark.parametrize("said", ["Authentication failed: the token is missing", "connection refused by a proxy"])
def test_the_message_of_ray_is_kept(said: str) -> None:
    """Our error contains Ray's reason for a failed connection."""
    from shardtool.execute.ray_pool import unreachable_error

    assert said in unreachable_error("127.0.0.1:1", ConnectionError(said)).found


def test_the_driver_dies(nodes: Nodes, tmp_path: Path) -> None:
    """A driver that is killed leaves what `--resume` finishes to the same bytes; finished shards are kept."""
    files = {f"{number:03}.txt": b"%d\n" % number * 100 for number in range(200)}
    source, folder, here = write_tree(tmp_path / "many", files), tmp_path / "out", tmp_path / "here"
    for one in source.iterdir():
        os.utime(one, (1e9, 1e9))
    words = ["create", source, folder / "out-{000000..}.tar", "--max-count", 1]
    driver = tool(*words, nodes=nodes)
    wait_for_shards(driver, folder, 5)
    driver.kill()
    driver.communicate()
    assert not (folder / "out.json").exists()
    again = tool(*words, "--resume", "--json", nodes=nodes)
    said, _ = again.communicate(timeout=120)
    assert again.returncode == 0
    assert json.loads(said)["kept"] >= 5
    shardtool.create(source, here / "out-{000000..}.tar", shardtool.CreateOptions(max_count=1, workers=1))
    assert contents(folder) == contents(here)


def words_of(said: str) -> list[str]:
    """Return the first sentence of each line of stderr that is no note."""
    return [line.partition(".")[0] for line in said.splitlines() if not line.startswith("note: ")]


def wait_for_shards(driver: subprocess.Popen[str], folder: Path, count: int) -> None:
    """Wait until a driver has published so many shards, five minutes at most."""
    latest = time.monotonic() + 300
    while len([*folder.glob("out-*.tar")]) < count:
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < latest
        time.sleep(0.001)


@pytest.mark.usefixtures("nodes")
def test_an_error_arrives_as_it_is(source: Path) -> None:
    """What a task raises is not tried again: it ends the run, typed, by name, and nothing staged stays."""
    asks(source, "fail", 7)
    with pytest.raises(SampleFailed, match="007"):
        pack(source, "out")
    names = [one.name for one in (source.parent / "out").iterdir()]
    assert not [name for name in names if not name.startswith("out-") and name != ".out.journal"]


def test_the_command_line(nodes: Nodes, source: Path) -> None:
    """Nothing of Ray's reaches the user's terminal, and Ctrl-C ends a run as it does on one machine."""
    flags = asks(source, "wait", 3)
    folder = source.parent / "out"
    words = ["create", source, folder / "out-{000000..}.tar", "--max-count", 2, "--map", MAP]
    first = tool(*words, nodes=nodes)
    wait_for_shards(first, folder, 11)
    with pytest.raises(OutputExists, match="another run is writing this dataset"):
        pack(source, "out", resume=True)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=120)
    assert (first.returncode, words_of(said)) == (130, ["shardtool: interrupted by SIGINT"]), said
    assert [path.name for path in folder.glob(".*")] == [".out.journal"]
    (flags / "go").touch()
    again = tool(*words, "--resume", nodes=nodes)
    out, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert "24 samples in 12 shards" in out
    assert words_of(said) == []
    same_as_here(source, folder)


@contextmanager
def another_view(nodes: Nodes, mounts: dict[Path, Path | None]) -> Iterator[str]:
    """Give the address of a node that sees empty folders, or other files, in place of these."""
    libc, made = ctypes.CDLL(None, use_errno=True), None
    ours = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    try:
        if libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
            pytest.skip("mounts need rights that are missing here")
        for target, other in mounts.items():
            kind, flags = (b"tmpfs", 0) if other is None else (None, _MS_BIND)
            assert libc.mount(os.fsencode(other or "none"), os.fsencode(target), kind, flags, None) == 0
        made = nodes.cluster.add_node(**nodes.each)  # child processes inherit these mounts
    finally:
        libc.unshare(_CLONE_FS)  # from threads that were started meanwhile
        assert libc.setns(ours, _CLONE_NEWNS) == 0
        os.close(ours)
    try:
        yield f"node 127.0.0.1 ({made.node_id[:8]})"
    finally:
        nodes.cluster.remove_node(made)


def test_a_node_that_lacks_something(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without the source, with another folder for the output, or without the module of `--map` is named."""
    hidden, seen = tmp_path / "hidden", tmp_path / "seen"
    for folder in (hidden, seen):
        write_tree(folder / "source", {"a.txt": b"1", "b.txt": b"2"})
    write_tree(hidden / "site-packages", {"installed_here.py": b"def same(sample):\n    return sample\n"})
    monkeypatch.syspath_prepend(str(hidden / "site-packages"))
    source, function = f"{hidden}/source: no such file or directory", "installed_here:same: no module installed_here"
    with another_view(nodes, {hidden: None}) as node:
        importlib.invalidate_caches()  # this process saw no such folder while it started that
        for place, output, name, said in (
            (hidden, seen, None, f"{source}; expected a folder, as here"),
            (
                seen,
                hidden,
                None,
                f"{hidden}: missing, or a different folder; expected the folder that this process writes to",
            ),
            (seen, seen, "installed_here:same", f"{function}; expected the module of this process"),
        ):
            options = shardtool.CreateOptions(executor="ray", map=name)
            with pytest.raises(InvalidRequest) as caught:
                shardtool.create(place / "source", output / "out-{000..}.tar", options)
            assert str(caught.value).startswith(f"{node}: {said}")
            assert not [*output.glob("out*"), *output.glob(".*")]


def test_a_map_that_only_the_driver_has(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the driver's folder works, with its imports, on nodes that cannot see the folder.

    A node with another module of the same name is named.
    """
    ours, theirs, seen = tmp_path / "ours", tmp_path / "theirs", tmp_path / "seen"
    source = write_tree(seen / "source", {f"{number}.txt": b"x" for number in range(24)})
    helper = "import os\n\n\ndef node():\n    return str(os.getppid()).encode() + b' {}'\n"
    mine = "import time\nfrom parts.helper import node\n\n"
    mine += "def mark(sample):\n    time.sleep(0.2)\n    return {**sample, 'n': node()}\n"
    ours.mkdir()
    monkeypatch.syspath_prepend(str(ours))
    nodes.need(1)
    with another_view(nodes, {ours: None}):
        for turn in ("first", "second"):
            write_tree(ours, {"parts/helper.py": helper.format(turn).encode(), "only_here.py": mine.encode()})
            for name in ("only_here", "parts.helper", "parts"):
                monkeypatch.delitem(sys.modules, name, raising=False)
            importlib.invalidate_caches()
            options = shardtool.CreateOptions(executor="ray", map="only_here:mark", max_count=1)
            shardtool.create(source, seen / turn / "o-{000..}.tar", options)
            marks = {sample["n"] for sample in shardtool.open(seen / turn / "o.json")}
            assert len(marks) > 1  # raylets, one of which cannot see the folder
            assert {one.split()[1] for one in marks} == {turn.encode()}
    write_tree(theirs, {"only_here.py": b"def mark(sample):\n    return None\n"})
    with another_view(nodes, {ours: theirs}) as node, pytest.raises(InvalidRequest) as caught:
        shardtool.create(source, seen / "third" / "o-{000..}.tar", options)
    assert str(caught.value).startswith(f"{node}: only_here:mark: a different module only_here")


def test_a_node_with_another_version(nodes: Nodes, source: Path, tmp_path: Path) -> None:
    """A node with another shardtool is named, with both versions, and no task runs."""
    other, version = tmp_path / "values.py", REPO / "shardtool" / "values.py"
    other.write_text(version.read_text().replace(f'__version__ = "{shardtool.__version__}"', '__version__ = "0.0.1"'))
    with another_view(nodes, {version: other}) as node, pytest.raises(InvalidRequest) as caught:
        pack(source, "out")
    assert str(caught.value).startswith(f"{node}: shardtool 0.0.1; expected shardtool {shardtool.__version__}, as here")
    assert not (tmp_path / "out").exists()


def test_no_cluster(tmp_path: Path) -> None:
    """An address that is invalid or does not answer is refused immediately, with advice."""
    command = [sys.executable, "-m", "shardtool", "verify", str(tmp_path), "--executor", "ray", "--address"]
    wanted = {
        "127.0.0.1:1": "no Ray cluster: connection refused. Start one with `ray start`",
        "ray://127.0.0.1:1": "no Ray cluster: connection refused. Start one with `ray start`",
        "head": "not an address; expected auto, ray://host:port or host:port",
    }
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    runs = {address: subprocess.Popen([*command, address], **pipes) for address in wanted}
    for address, run in runs.items():
        out, said = run.communicate(timeout=120)
        assert (run.returncode, out, said.count("\n")) == (2, "", 1)
        assert said.startswith(f"shardtool: --address {address}: {wanted[address]}")


def test_a_cluster_of_its_own(source: Path, tmp_path: Path) -> None:
    """If no cluster is running and none is named, one is started, reported and stopped; `auto` uses a running one.

    Ray looks for a running cluster among all processes, so these are hidden, and in its folder for temporary
    files. That folder contains sockets, whose paths are limited to 107 bytes.
    """
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("other processes cannot be hidden here")
    words = [sys.executable, "-m", "shardtool", "create", str(source), str(tmp_path / "o-{0..}.tar"), "--executor=ray"]
    said = {
        "--workers=1": (0, "starting one on this machine with 1 core, until"),
        "--address=auto": (2, "no Ray cluster at this address"),
    }
    for word, (code, text) in said.items():
        with TemporaryDirectory(prefix="r") as folder:
            room = {**os.environ, "RAY_TMPDIR": folder, "HOME": folder, "PYTHONPATH": str(REPO)}  # its token goes home
            ran = subprocess.run(
                [*alone, *words, word], env=room, capture_output=True, text=True, timeout=180, check=False
            )
        assert (ran.returncode, text in ran.stderr) == (code, True), ran
    assert (tmp_path / "o.json").exists()


_HEAD = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1, object_store_memory=80_000_000,
                  node_ip_address="127.0.0.1", include_dashboard=False))
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@contextmanager
def head(**environment: str) -> Iterator[str]:
    """Yield the address of a cluster with a separate environment."""
    run = subprocess.Popen(
        tied(sys.executable, "-c", _HEAD), env={**os.environ, **environment}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert run.stdout is not None
        yield run.stdout.readline().strip()
    finally:
        run.communicate(timeout=60)


@pytest.mark.parametrize("token", ["", "sesame-of-the-cluster"])
def test_a_token(source: Path, tmp_path: Path, token: str) -> None:
    """A cluster with a token accepts only this token, and one without accepts none; errors say what to do."""
    of_cluster = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
    another = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of-another-cluster"}
    words = [sys.executable, "-m", "shardtool", "create", source, tmp_path / "o-{0..}.tar", "--overwrite"]
    with TemporaryDirectory(prefix="r") as folder, head(HOME=folder, **of_cluster) as address:
        for given, code in (
            (of_cluster, 0),
            (another, 2 if token else 0),
            ({"RAY_AUTH_MODE": "disabled"}, 2 if token else 0),
        ):
            env = {**os.environ, "HOME": folder, **given}
            ran = subprocess.run(
                [*map(str, words), "--executor=ray", f"--address={address}"],
                cwd=REPO, env=env, capture_output=True, text=True, timeout=180, check=False,
            )  # fmt: skip
            assert ran.returncode == code, ran
            assert ("set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in ran.stderr) == (code != 0)
            assert token not in ran.stderr or not token


@pytest.mark.usefixtures("nodes")
def test_an_existing_connection_is_used(source: Path) -> None:
    """A program that is connected to a cluster uses it; another address is refused."""
    with pytest.raises(InvalidRequest, match=r"this process is already connected to a cluster\. Omit the address"):
        pack(source, "out", address="127.0.0.1:6379")

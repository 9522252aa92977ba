"""A signal ends every verb, whatever a server does; a silent or slow server is given up and named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from shardtool import CreateOptions, create
from tests import warm
from tests.faults.helpers import REPO, Run, hidden, settles
from tests.helpers import write_tree
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

_PROMPTLY_S = 5  # promised: 2; a loaded machine gets more
_HEAD = "HTTP/1.1 200 OK\r\nX-Head: "
FAULTS = {
    "stall": Fault("stall", times=None),
    "drip": Fault("drip", times=None),
    "silent": Fault("silent", times=None),
    "head": Fault("raw", times=None, body=_HEAD, to="x"),
    "continue": Fault("raw", times=None, body="", to="HTTP/1.1 100 Continue\r\n\r\n"),
}
VERBS = {
    "copy": ("copy", "{at}/out.json", "{place}/to"),
    "copy-here": ("copy", "{at}/out.json", "{place}/to", "--workers", "0"),
    "verify": ("verify", "{at}/out.json", "--workers", "2"),
    "verify-here": ("verify", "{at}/out.json", "--workers", "0"),
    "inspect": ("inspect", "{at}/out.json", "--read-speed"),
    "reshard": ("reshard", "{at}/out.json", "{place}/to/new-{{0..}}.tar", "--workers", "0"),
    "create": ("create", "{at}/list.csv", "{place}/to/new-{{0..}}.tar", "--workers", "0"),
    "create-workers": ("create", "{at}/list.csv", "{place}/to/new-{{0..}}.tar", "--workers", "2"),
}
_QUICK = ("copy", "verify-here", "create-workers")  # each test of another verb takes half a second


@pytest.fixture(scope="module")
def proxy(http_files: Server, proxies: Callable[[Server], FaultyProxy]) -> FaultyProxy:
    """Return a server that produces faults."""
    return proxies(http_files)


@pytest.fixture
def at(proxy: FaultyProxy, tmp_path: Path) -> str:
    """Return the address of a dataset of six shards, and of a manifest of files."""
    at = proxy.server.new_prefix()
    folder = proxy.server.local(at)
    samples = {f"{number:02}.bin": os.urandom(9000) for number in range(12)}
    source = write_tree(tmp_path / "in", samples)
    create(source, f"{folder}/out-{{000..}}.tar", CreateOptions(max_count=2, workers=1))
    write_tree(folder / "files", samples)
    (folder / "list.csv").write_text("file\n" + "".join(f"files/{name}\n" for name in samples))
    return at


def _run(verb: str, at: str, place: Path, more: tuple[str, ...] = (), **environment: str) -> Run:
    words = [word.format(at=at, place=place) for word in (*VERBS[verb], *more)]
    environment = {"PYTHONPATH": str(REPO), **os.environ, **environment}
    if warm.POSSIBLE:
        return Run(warm.Warm(words, cwd=REPO, env=environment))
    command = [sys.executable, "-m", "shardtool", *words]
    pipe = subprocess.PIPE
    return Run(subprocess.Popen(command, cwd=REPO, env=environment, start_new_session=True, stdout=pipe, stderr=pipe))


def _harm(proxy: FaultyProxy, fault: str) -> None:
    one = FAULTS[fault]
    proxy.set(Fault(**{**one.__dict__, "path": r"\.tar|\.bin"}))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_signal_ends_every_verb(verb: str, fault: str, at: str, proxy: FaultyProxy, tmp_path: Path) -> None:
    """SIGTERM and SIGINT end a verb that waits for a server; the next run is not blocked."""
    place = tmp_path / "place"
    for signum in (signal.SIGTERM, signal.SIGINT):
        _harm(proxy, fault)
        run = _run(verb, at, place)
        assert settles(lambda: any(one.fault for one in proxy.log().asked))
        run.signal(signum)
        begun = time.monotonic()
        assert run.end().code == 128 + signum, run.err
        assert time.monotonic() - begun < _PROMPTLY_S
        assert "Traceback" not in run.err
        assert run.all_gone()
        assert not (place / "to").exists() or not hidden(place / "to")
    proxy.set()
    assert _run(verb, at, place).end().code == 0


@pytest.mark.skipif(not warm.POSSIBLE, reason="signals to threads")
@pytest.mark.parametrize(
    "verb", [verb if verb in _QUICK else pytest.param(verb, marks=pytest.mark.slow) for verb in VERBS]
)
def test_a_signal_to_another_thread_is_handled(verb: str, at: str, proxy: FaultyProxy, tmp_path: Path) -> None:
    """A signal that another thread receives ends the verb, although the main thread sleeps."""
    _harm(proxy, "silent")
    words = [word.format(at=at, place=tmp_path / "place") for word in VERBS[verb]]
    flag = tmp_path / "flag"
    code = f"""
import os, signal, threading, time
from shardtool.cli import main
def take():
    while not os.path.exists({str(flag)!r}):
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=take, daemon=True).start()
main()
"""
    run = Run(warm.Warm(words, code=code, cwd=REPO, env={"PYTHONPATH": str(REPO), **os.environ}))
    assert settles(lambda: any(one.fault for one in proxy.log().asked))
    time.sleep(0.3)  # until it sleeps
    flag.touch()
    assert run.end().code == 128 + signal.SIGTERM, run.err
    assert run.all_gone()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", ["copy", "verify", "verify-here", "create"])
def test_a_server_that_is_too_slow_is_given_up(
    verb: str, fault: str, at: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """A server that is too slow is retried, and then ends the run with a message about the server."""
    _harm(proxy, fault)
    run = _run(verb, at, tmp_path, SHARDTOOL_LEAST_SPEED="1000/0.3", SHARDTOOL_RETRY_FOR="0.6").end()
    assert run.code == 7, run.err
    assert proxy.server.url.removeprefix("http://") in run.err
    assert "too slow" in run.err or "silent" in run.err or "too many headers" in run.err
    assert "Traceback" not in run.err


@pytest.mark.parametrize("verb", ["verify", "verify-here"])
def test_retries_are_shown(verb: str, at: str, proxy: FaultyProxy, tmp_path: Path) -> None:
    """Retries are printed with `-v` and counted in JSON, in any process."""
    proxy.set(Fault("status", path=r"\.tar", times=2))
    run = _run(verb, at, tmp_path, more=("-v", "--json")).end()
    assert run.code == 0, run.err
    assert json.loads(run.out)["retries"] == 2
    assert run.err.count("retry: http://") == 2

"""Run `shardtool` with the test servers, and read the objects in a store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shardtool.storage.remote import address, buckets
from shardtool.storage.remote.objects import RemoteObject
from tests import warm

if TYPE_CHECKING:
    from tests.servers.processes import Server
    from tests.warm import Started

REPO = Path(__file__).resolve().parents[2]
_PATIENCE_S = 120


def start(*words: str | Path, **environment: str) -> Started:
    """Start `shardtool` in a new session. The fixture `use` sets the environment variables of the server."""
    env = {**os.environ, "PYTHONPATH": str(REPO), **environment}
    if warm.POSSIBLE:
        return warm.Warm([*map(str, words)], cwd=Path.cwd(), env=env)
    return subprocess.Popen(
        [sys.executable, "-m", "shardtool", *map(str, words)], env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def said(run: Started, server: Server | None = None) -> tuple[int, str]:
    """Wait for a run, and return exit code and output. Check that the output contains no traceback and no secret."""
    with run:
        both = b"".join(run.communicate(timeout=_PATIENCE_S)).decode()
    assert "Traceback" not in both, both
    check_no_secret(both, server)
    return run.wait(0), both


def tool(*words: str | Path, server: Server | None = None, **environment: str) -> tuple[int, str]:
    """Run `shardtool` and wait, with the arguments of `start`. Return the same values as `said`."""
    return said(start(*words, **environment), server)


def check_no_secret(text: str, server: Server | None) -> None:
    """Check that a text contains no secret of the server and no signed URL."""
    found = [one for one in (*(server.secrets if server else ()), "Signature=", "sig=") if one in text]
    assert not found, text


def stored(folder: str) -> dict[str, bytes]:
    """Return the content of all objects below an address of a store, by relative name."""
    key = address.parse_address(folder).key
    names = [one.key.removeprefix(key).lstrip("/") for one in buckets.list_objects(folder, below=True)]
    blobs = {name: RemoteObject(address.join_address(folder, name)) for name in names}
    return {name: blob.read(0, blob.size) for name, blob in blobs.items()}


def local(folder: Path) -> dict[str, bytes]:
    """Return the content of all files in a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}

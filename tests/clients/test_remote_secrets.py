"""What lets others in is never shown, nor written down: users and passwords of addresses, queries, keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardtool.storage.remote import address, buckets
from tests.clients.packed import PHOTOS
from tests.clients.remote import local, stored, tool
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

pytestmark = pytest.mark.clients
OPTIONS = ("--max-size", "500kB", "--label-from-folder")
PASSWORD, TOKEN = "PASSWORDleak", "TOKENleak"


def _check(text: str, files: dict[str, bytes]) -> None:
    everything = text + b"".join(files.values()).decode("latin-1")
    assert PASSWORD not in everything
    assert TOKEN not in everything


@pytest.fixture
def secret(http_files: Server, proxies: Callable[[Server], FaultyProxy], tmp_path: Path) -> tuple[FaultyProxy, str]:
    """Give a proxy, and the address of a folder of a dataset behind it, with a password."""
    at = http_files.new_prefix()
    code, text = tool("create", PHOTOS, f"{tmp_path}/made/out-{{000000..}}.tar", *OPTIONS)
    assert code == 0, text
    for name, data in local(tmp_path / "made").items():
        (http_files.local(at) / name).write_bytes(data)
    proxy = proxies(http_files)
    return proxy, at.replace(http_files.url, proxy.server.url).replace("http://", f"http://user:{PASSWORD}@")


def test_addresses(secret: tuple[FaultyProxy, str], tmp_path: Path) -> None:
    """An address with a password and a token reads a dataset; no output, and no file that is made from it, has them."""
    _, at = secret
    dataset = f"{at}/out.json?token={TOKEN}"
    for number, words in enumerate(
        (
            ("verify", dataset),
            ("inspect", dataset),
            ("inspect", dataset, "--json"),
            ("copy", dataset, f"{tmp_path}/copied/"),
            ("reshard", dataset, f"{tmp_path}/reshard/re-{{000000..}}.tar"),
        )
    ):
        code, text = tool(*words)
        assert code == 0, (words, text)
        made = [tmp_path / "copied", tmp_path / "reshard"][: max(0, number - 2)]
        _check(text, {str(one): data for folder in made for one, data in local(folder).items()})


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", status=401, times=None),
        Fault("status", status=404, times=None),
        Fault("status", status=418, times=None, body=TOKEN),
        Fault("redirect", to=f"http://user:{PASSWORD}@127.0.0.1:9", times=None),
        Fault("gzip", times=None),
        Fault("etag", path=r"\.tar", times=None),
    ],
    ids=lambda one: f"{one.do}-{one.status}",
)
def test_errors(fault: Fault, secret: tuple[FaultyProxy, str], tmp_path: Path) -> None:
    """No error shows them, also with `-v` and as JSON."""
    proxy, at = secret
    dataset = f"{at}/out.json?token={TOKEN}"
    proxy.set(fault)
    for words in (("-v", "verify", dataset), ("verify", dataset, "--json"), ("copy", dataset, tmp_path / "x")):
        code, text = tool(*words)
        assert code or fault.do == "etag", text
        _check(text, {})


def test_files_of_a_store(moto: Server, use: Callable[[Server], Server]) -> None:
    """Files written from a store to a store contain no key and no signed address."""
    at = use(moto).new_prefix()
    for number in range(5):
        buckets.put_object(address.join_address(f"{at}/tree", f"{number}.jpg"), b"%d" % number)
    code, text = tool("create", f"{at}/tree", f"{at}/out-{{000000..}}.tar", "-v", server=moto)
    assert code == 0, text
    written = b"".join(stored(at).values()).decode("latin-1")
    assert not [one for one in (*moto.secrets, "Signature=", "AKIATEST") if one in written]

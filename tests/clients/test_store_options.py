"""What a store is told of the objects that it keeps: requests that are signed with their headers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from shardtool.storage.places import read_small
from shardtool.storage.remote.blob import connections_to
from shardtool.storage.remote.stores import signed_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.processes import Server

    Reach = Callable[[Server], Server]

pytestmark = pytest.mark.clients


def _ask(address: str, method: str, query: str, body: bytes = b"", **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url, signed = signed_request(address, method, named, query)
    answer = connections_to(url).request(method, url, headers=signed, body=body, retries=False)
    assert answer.status == 200, answer.data
    return answer.data


@pytest.mark.parametrize("profile", [False, True], ids=["environment", "profile"])
@pytest.mark.parametrize("name", ["moto", "rclone"])
def test_an_upload_in_parts_is_signed(
    name: str, *, profile: bool, request: pytest.FixtureRequest, use: Reach, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    """A request with a query and headers is taken by a store that checks signatures, with keys of both kinds."""
    server = use(request.getfixturevalue(name))
    if profile:
        keys = [f"{one.lower()} = {server.environment[one]}" for one in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
        (tmp_path / "config").write_text("\n".join(["[profile p]", *keys]))
        for one in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(one)
        monkeypatch.setenv("AWS_PROFILE", "p")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    address = f"{server.new_prefix()}/a b+#ü!'(*).bin"
    [number] = re.findall(
        r"<UploadId>(.*)</UploadId>", _ask(address, "POST", "uploads", x_amz_storage_class="STANDARD_IA").decode()
    )
    part = _ask(address, "PUT", f"partNumber=1&uploadId={number}", b"the bytes")
    assert part == b""
    listed = _ask(address, "GET", f"uploadId={number}").decode()
    tag = re.findall(r"<ETag>(.*)</ETag>", listed)[0]
    whole = (
        f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    )
    _ask(address, "POST", f"uploadId={number}", whole.encode())
    assert read_small(address) == b"the bytes"

"""Profiles of AWS, as boto3 reads them: keys, the endpoint, and errors if there are no keys."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from shardtool.errors import AccessRefused, InvalidRequest, ShardError
from shardtool.storage.files import list_folder, read_small
from shardtool.storage.remote import http, store_access
from shardtool.storage.remote.http import sign_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers.processes import Server

_NOWHERE = "http://127.0.0.1:9"
pytestmark = pytest.mark.clients
_KEYS = "aws_access_key_id = ID\naws_secret_access_key = SECRET\nregion = eu-west-1"


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str | bytes], None]]:
    """Give a function that writes the configuration of AWS, whose profile `p` is in use; nothing else has keys."""
    for name in [one for one in os.environ if one.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("SHARDTOOL_ENDPOINT", raising=False)
    nowhere = {"AWS_METADATA_ENDPOINT": _NOWHERE, "AWS_EC2_METADATA_DISABLED": "true"}
    nowhere |= {"HTTP_PROXY": _NOWHERE, "HTTPS_PROXY": _NOWHERE, "NO_PROXY": "127.0.0.1"}  # also if the test fails
    files = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    for name, value in {**nowhere, **files, "AWS_PROFILE": "p"}.items():
        monkeypatch.setenv(name, value)

    def write(text: str | bytes) -> None:
        (tmp_path / "config").write_bytes(text.encode() if isinstance(text, str) else text)
        for made in (store_access._make_store, http._make_pool):  # noqa: SLF001
            made.cache_clear()

    yield write
    write("")


@pytest.mark.parametrize(
    ("text", "error", "where"),
    [
        ("[profile other]\nregion = x\n", InvalidRequest, "AWS_PROFILE=p: no such profile"),
        ("no sections\n", AccessRefused, "config: not an AWS configuration file"),
        (b"[profile p]\nregion = \xff\n", AccessRefused, "config: not an AWS configuration file"),
        ("[profile p]\ncredential_process = false secret\n", AccessRefused, "the AWS profile p"),
        ("[profile p]\ncredential_process = /nowhere/secret\n", AccessRefused, "the AWS profile p"),
        ("[profile p]\ncredential_process = echo secret\n", AccessRefused, "the AWS profile p"),
        ("[profile p]\nrole_arn = arn:aws:iam::1:role/secret\nsource_profile = gone\n", AccessRefused, "profile p"),
    ],
)
def test_a_profile_without_keys_is_an_error(
    text: str | bytes, error: type[ShardError], where: str, config: Callable[[str | bytes], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A profile without usable keys is one error, of the request or the machine, before any request."""
    config(text)
    monkeypatch.setenv("AWS_ENDPOINT_URL", _NOWHERE)
    for ask in (list_folder, read_small):
        with pytest.raises(error, match=where) as caught:
            ask("s3://bucket/key")
        assert "secret" not in str(caught.value)
        assert caught.value.exit_code == (2 if error is InvalidRequest else 7)


@pytest.mark.parametrize(
    "text",
    [f"[profile p]\n{_KEYS}\nendpoint_url = HERE\n",
     f"[profile p]\n{_KEYS}\nendpoint_url = {_NOWHERE}\nservices = s\n[services s]\ns3 =\n endpoint_url = HERE\n"],
    ids=["endpoint", "service"],
)  # fmt: skip
def test_the_endpoint_of_a_profile(
    text: str, config: Callable[[str | bytes], None], http_files: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint for S3 in a profile precedes that for all services; the environment precedes both."""
    at = http_files.new_prefix()
    (http_files.local(at) / "x").write_bytes(b"here")
    config(text.replace("HERE", http_files.url))
    assert sign_url("s3://bucket/key", "GET").startswith(f"{http_files.url}/bucket/key?")
    assert read_small(f"s3://{at.rpartition('/')[2]}/x") == b"here"
    config(text.replace("HERE", _NOWHERE))
    monkeypatch.setenv("AWS_ENDPOINT_URL", http_files.url)
    assert read_small(f"s3://{at.rpartition('/')[2]}/x") == b"here"

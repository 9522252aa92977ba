"""Endpoint, region and credentials of a bucket."""

from __future__ import annotations

import os
from urllib.parse import parse_qs, urlsplit

import pytest

from shardtool.errors import AccessRefused, InvalidRequest, redact_secrets
from shardtool.storage.remote.address import display_address, is_source_address, join_address
from shardtool.storage.remote.http import sign_url
from shardtool.storage.remote.store_access import source_address_for, store_for, use_endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:9000",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:x",
        "http://a b",
        "http://me:pw@127.0.0.1",
        "ftp://h",
    ],
)
def test_invalid_endpoints(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid endpoint is refused before obstore receives it, which would panic."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.delenv("SHARDTOOL_ENDPOINT", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(InvalidRequest, match="such as https://") as caught:
        store_for("s3://bucket")
    assert "pw" not in str(caught.value)
    with pytest.raises(InvalidRequest, match="such as https://"):
        use_endpoint(endpoint)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:65535", "https://[::1]:9000/", "https://h.example/below"])
def test_valid_endpoints(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host names, IP addresses, ports and paths are accepted."""
    monkeypatch.setenv("SHARDTOOL_ENDPOINT", "")
    use_endpoint(endpoint)
    assert os.environ["SHARDTOOL_ENDPOINT"] == endpoint


def test_half_of_a_key_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a key pair is refused; the metadata service is not asked for another."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AccessRefused, match="only AWS_ACCESS_KEY_ID is set; expected AWS_SECRET_ACCESS_KEY"):
        store_for("s3://bucket")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Set server and credentials of the destination only."""
    for name in os.environ:
        if name.startswith(("AWS_", "SHARDTOOL_SOURCE_")):
            monkeypatch.delenv(name)
    for name, value in {
        "SHARDTOOL_ENDPOINT": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "OURS", "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_SESSION_TOKEN": "passing", "AWS_REGION": "eu-here-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:7",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return monkeypatch


def _request_target(address: str) -> tuple[str, str, str]:
    """Return server and path, key id and region of a request for an address."""
    url = urlsplit(sign_url(address, "GET"))
    credential = parse_qs(url.query)["X-Amz-Credential"][0].split("/")
    assert ("X-Amz-Security-Token" in url.query) == (credential[0] == "OURS")
    return f"{url.netloc}{url.path}", credential[0], credential[2]


def test_source_with_its_own_server(elsewhere: pytest.MonkeyPatch) -> None:
    """Reads go to the source's server, with the same credentials if it has no own; writes are unchanged."""
    assert source_address_for("s3://b/k", None) == "s3://b/k"
    source = source_address_for("s3://b/k", "http://127.0.0.1:8")
    assert _request_target(source) == ("127.0.0.1:8/b/k", "OURS", "eu-here-1")
    assert _request_target("s3://b/k") == ("127.0.0.1:9/b/k", "OURS", "eu-here-1")
    elsewhere.setenv("SHARDTOOL_SOURCE_AWS_DEFAULT_REGION", "eu-there-1")
    assert _request_target(source) == ("127.0.0.1:8/b/k", "OURS", "eu-there-1")
    elsewhere.setenv("SHARDTOOL_SOURCE_ENDPOINT", "http://127.0.0.1:8")
    assert source_address_for("s3://b/k", None) == source
    assert is_source_address(source)
    assert not is_source_address("s3://b/k")
    assert display_address(source) == redact_secrets(source) == "s3://b/k"
    assert join_address(source, "x").endswith("@b/k/x")
    for location in ("gs://b/k", "az://b/k", "/folder", "https://h/k"):
        assert source_address_for(location, None) == location
        with pytest.raises(InvalidRequest, match="works only with s3:// sources"):
            source_address_for(location, "http://127.0.0.1:8")


def test_source_with_its_own_credentials(elsewhere: pytest.MonkeyPatch) -> None:
    """Credentials of a source replace token, region and server of the destination, too."""
    elsewhere.setenv("SHARDTOOL_SOURCE_AWS_ACCESS_KEY_ID", "THEIRS")
    with pytest.raises(InvalidRequest, match="only one of the two keys is set"):
        source_address_for("s3://b/k", None)
    elsewhere.setenv("SHARDTOOL_SOURCE_AWS_SECRET_ACCESS_KEY", "c")
    assert _request_target(source_address_for("s3://b/k", None)) == (
        "s3.us-east-1.amazonaws.com/b/k",
        "THEIRS",
        "us-east-1",
    )
    elsewhere.setenv("SHARDTOOL_SOURCE_AWS_REGION", "eu-there-1")
    elsewhere.setenv("SHARDTOOL_SOURCE_AWS_ENDPOINT_URL", "http://127.0.0.1:8")
    assert _request_target(source_address_for("s3://b/k", None)) == ("127.0.0.1:8/b/k", "THEIRS", "eu-there-1")
    elsewhere.setenv("AWS_SKIP_SIGNATURE", "true")
    assert _request_target(source_address_for("s3://b/k", None))[1] == "THEIRS"
    assert sign_url("s3://b/k", "GET") == "http://127.0.0.1:9/b/k"
    elsewhere.delenv("AWS_SKIP_SIGNATURE")
    elsewhere.setenv("SHARDTOOL_SOURCE_AWS_SKIP_SIGNATURE", "true")
    assert sign_url(source_address_for("s3://b/k", None), "GET") == "http://127.0.0.1:8/b/k"
    assert _request_target("s3://b/k")[1] == "OURS"


def test_unknown_source_variable(elsewhere: pytest.MonkeyPatch) -> None:
    """The error for a misspelt variable lists the known ones."""
    elsewhere.setenv("SHARDTOOL_SOURCE_ACCESS_KEY_ID", "x")
    with pytest.raises(InvalidRequest, match=r"SHARDTOOL_SOURCE_ACCESS_KEY_ID: .*AWS_ACCESS_KEY_ID"):
        source_address_for("s3://b/k", None)

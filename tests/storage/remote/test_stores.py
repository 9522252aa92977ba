"""Laws of how a bucket is reached."""

from __future__ import annotations

import pytest

from shardtool.errors import AccessRefused, InvalidRequest
from shardtool.storage.remote.stores import endpoint_of_all, store_of, use_endpoint


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
def test_endpoints(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no address of a server is refused, wherever it comes from, before a library that panics has it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.delenv("SHARDTOOL_ENDPOINT", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(InvalidRequest, match="such as https://") as caught:
        store_of("s3://bucket")
    assert "pw" not in str(caught.value)
    with pytest.raises(InvalidRequest, match="such as https://"):
        use_endpoint(endpoint)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:65535", "https://[::1]:9000/", "https://h.example/below"])
def test_good_endpoints(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, addresses of both kinds, ports and paths are taken."""
    monkeypatch.setenv("SHARDTOOL_ENDPOINT", "")
    use_endpoint(endpoint)
    assert endpoint_of_all() == endpoint


def test_half_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a pair of keys is refused by name; the machine's metadata service is not asked for another."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AccessRefused, match="AWS_ACCESS_KEY_ID alone; expected AWS_SECRET_ACCESS_KEY"):
        store_of("s3://bucket")

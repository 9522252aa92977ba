"""Signed URLs for Azure."""

from __future__ import annotations

import base64
from urllib.parse import parse_qs, urlsplit

import pytest

from shardtool.errors import InvalidRequest
from shardtool.storage.remote.http import azure_signed_url

_SECRET = base64.b64encode(b"a secret of the tests").decode()


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_ENDPOINT",
        "SHARDTOOL_ENDPOINT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")


def test_account_key_signs_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """An account key signs the container, for any blob name, with permissions and protocol of the request."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", _SECRET)
    url = urlsplit(azure_signed_url("c", "a b#%20\u00fc.tar", "PUT") or "")
    assert (url.scheme, url.netloc, url.path) == ("https", "acc.blob.core.windows.net", "/c/a%20b%23%2520%C3%BC.tar")
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    assert (query["sp"], query["sr"], query["spr"]) == ("cwt", "c", "https")
    assert len(base64.b64decode(query["sig"])) == 32
    assert _SECRET not in url.query
    monkeypatch.setenv("SHARDTOOL_ENDPOINT", "http://127.0.0.1:1/acc/")
    local = azure_signed_url("c", "k", "GET") or ""
    assert local.startswith("http://127.0.0.1:1/acc/c/k?sp=r&")


def test_sas_token_is_used_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SAS token is appended unchanged; without key and token there is no URL."""
    assert azure_signed_url("c", "k", "GET") is None
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=x%3D")
    assert azure_signed_url("c", "k", "GET") == "https://acc.blob.core.windows.net/c/k?sv=1&sig=x%3D"


def test_invalid_account_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid account key is reported by its variable, without its value."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "not%base64")
    with pytest.raises(InvalidRequest, match="AZURE_STORAGE_ACCOUNT_KEY") as raised:
        azure_signed_url("c", "k", "GET")
    assert "not%base64" not in str(raised.value)

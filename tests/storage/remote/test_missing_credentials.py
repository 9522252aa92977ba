"""Stores without credentials."""

from __future__ import annotations

import json
import os

import pytest

from shardtool.errors import AccessRefused
from shardtool.storage import files

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize("address", ["s3://bucket/key", "az://container/key"])
def test_missing_credentials_are_reported(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials in the environment or on the machine, the error says so immediately."""
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_")):
            monkeypatch.delenv(name)
    for name in ("AWS_METADATA_ENDPOINT", "AZURE_MSI_ENDPOINT", "IDENTITY_ENDPOINT", "SHARDTOOL_ENDPOINT"):
        monkeypatch.setenv(name, NOBODY)  # would be asked for credentials on a cloud machine
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    for ask in (files.list_folder, files.read_small):
        with pytest.raises(AccessRefused, match="no credentials in the environment"):
            ask(address)


_KEY = {"client_email": "a", "private_key_id": "1", "private_key": "secret"}
_PEM = "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("address", "variable", "value"),
    [
        ("gs://b/k", "GOOGLE_SERVICE_ACCOUNT_KEY", '{"private_key": "secret"'),
        ("gs://b/k", "GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(_KEY)),
        ("gs://b/k", "GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps({**_KEY, "private_key": _PEM.format("secretAA")})),
        ("gs://b/k", "GOOGLE_APPLICATION_CREDENTIALS", "/none/secret"),
        ("az://c/k", "AZURE_STORAGE_ACCOUNT_KEY", "!secret"),
        ("az://c/k", "AZURE_STORAGE_SAS_TOKEN", "secret"),
    ],
)
def test_unreadable_credentials_are_reported(
    address: str, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key, key file or token that cannot be decoded is an error of the user, and is not shown."""
    for name in os.environ:
        if name.startswith(("GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv(variable, value)
    with pytest.raises(AccessRefused, match="cannot be read; expected the credentials") as caught:
        files.list_folder(address)
    assert "secret" not in str(caught.value)

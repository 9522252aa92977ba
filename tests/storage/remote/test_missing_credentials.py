"""Stores without credentials."""

from __future__ import annotations

import os

import pytest

from shardtool.errors import AccessRefused
from shardtool.storage import files, lookup

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
    for ask in (lookup.list_folder, files.read_small):
        with pytest.raises(AccessRefused, match="no credentials in the environment"):
            ask(address)

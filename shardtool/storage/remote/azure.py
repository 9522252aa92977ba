"""Addresses in Azure's store, signed with the key of the account for a whole container.

obstore signs a blob by its encoded name, where Azure wants the plain one: any name with a blank, or a letter beyond
ASCII, would be refused. A signature of the container holds no name. Source: Microsoft, "Create a service SAS",
version 2020-12-06 of the string to sign.
"""

from __future__ import annotations

import base64
import hmac
import os
from datetime import datetime, timedelta, timezone
from urllib.parse import quote, urlencode, urlsplit

from shardtool.errors import InvalidRequest

_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_TOKENS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_VERSION = "2022-11-02"
_SLACK = timedelta(minutes=15)  # by which our clock may be ahead
_SIGNED_FOR = timedelta(hours=1)
_PERMISSIONS = {"GET": "r", "HEAD": "r", "PUT": "cw", "DELETE": "d"}


def signed_with_key(endpoint: str, container: str, key: str, method: str) -> str | None:
    """Return the signed address of a blob; None where the environment has neither an account's key nor a token.

    Args:
        endpoint: The server; empty: as the environment has it, or Azure's own.
        container: The container.
        key: The blob's name.
        method: Of HTTP.

    Raises:
        InvalidRequest: The key is none.
    """
    account, token, secret = _first(_ACCOUNTS), _first(_TOKENS), _first(_KEYS)
    if not account or not (token or secret):
        return None
    base = endpoint or _first(_ENDPOINTS) or f"https://{account}.blob.core.windows.net"
    query = token.lstrip("?") if token else _sas(account, secret, container, _PERMISSIONS[method], base)
    return f"{base.rstrip('/')}/{quote(container)}/{quote(key)}?{query}"


def _sas(account: str, secret: str, container: str, permissions: str, base: str) -> str:
    try:
        raw = base64.b64decode(secret, validate=True)
    except ValueError:
        raise InvalidRequest(_KEYS[0], "no key of an account", expected="one in Base64") from None
    now = datetime.now(timezone.utc)
    start, end = (f"{when:%Y-%m-%dT%H:%M:%SZ}" for when in (now - _SLACK, now + _SIGNED_FOR))
    protocols = "https" if urlsplit(base).scheme == "https" else "https,http"
    resource = f"/blob/{account}/{container}"
    text = "\n".join([permissions, start, end, resource, "", "", protocols, _VERSION, "c", *[""] * 7])
    signature = base64.b64encode(hmac.digest(raw, text.encode(), "sha256")).decode()
    return urlencode({
        "sp": permissions, "st": start, "se": end, "spr": protocols, "sv": _VERSION, "sr": "c", "sig": signature,
    })  # fmt: skip


def _first(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")

"""What a store wants to see signed, made without its client.

obstore signs addresses, and no headers; and Azure's only where a name needs no encoding.
"""

from __future__ import annotations

import base64
import hmac
import os
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from shardtool.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

# Requests to S3, signed with their headers.


_AWS_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # which no client writes into `Host`


class AwsKeys(NamedTuple):
    """Who asks S3.

    Attributes:
        access_key: Its name.
        secret: What signs.
        token: Of a session; empty: there is none.
        region: Where the bucket is.
    """

    access_key: str
    secret: str
    token: str
    region: str


def signed_headers(
    method: str, url: str, headers: Mapping[str, str], keys: AwsKeys, now: datetime | None = None
) -> dict[str, str]:
    """Return the headers of a request to S3, with those that sign it; all that are given are signed.

    Args:
        method: Of HTTP.
        url: Where it goes, with its query (`?uploads`).
        headers: What it says of the object. `x-amz-content-sha256` is the checksum of a body that is signed, too.
        keys: Who asks.
        now: When it is sent.

    Source: AWS, "Signature Calculations for the Authorization Header: Transferring Payload in a Single Chunk" (AWS
    Signature Version 4).
    """
    at, when = urlsplit(url), f"{now or datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    given = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD", **headers, "x-amz-date": when}
    if keys.token:
        given["x-amz-security-token"] = keys.token
    host = at.netloc.removesuffix(_AWS_DEFAULT_PORTS[at.scheme])
    lines = {"host": host, **{name.lower(): " ".join(value.split()) for name, value in given.items()}}
    names = ";".join(sorted(lines))
    query = sorted((quote(name, ""), quote(value, "")) for name, value in parse_qsl(at.query, keep_blank_values=True))
    request = "\n".join([
        method, quote(unquote(at.path)) or "/", "&".join(f"{name}={value}" for name, value in query),
        *(f"{name}:{lines[name]}" for name in sorted(lines)), "", names, lines["x-amz-content-sha256"],
    ])  # fmt: skip
    scope = [when[:8], keys.region, "s3", "aws4_request"]
    secret = f"AWS4{keys.secret}".encode()
    for part in scope:
        secret = hmac.digest(secret, part.encode(), "sha256")
    text = "\n".join(["AWS4-HMAC-SHA256", when, "/".join(scope), sha256(request.encode()).hexdigest()])
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    credential = "/".join([keys.access_key, *scope])
    given["Authorization"] = f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={signature}"
    return given


# Addresses in Azure's store, signed with the key of the account for a whole container.
#
# obstore signs a blob by its encoded name, where Azure wants the plain one: any name with a blank, or a letter beyond
# ASCII, would be refused. A signature of the container holds no name. Source: Microsoft, "Create a service SAS",
# version 2020-12-06 of the string to sign.


_AZURE_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_TOKENS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_VERSION = "2022-11-02"
_SLACK = timedelta(minutes=15)  # by which our clock may be ahead
SIGNED_FOR = timedelta(hours=1)
_PERMISSIONS = {"GET": "r", "PUT": "cwt"}  # t: with tags


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
    account, token, secret = _first(_ACCOUNTS), _first(_TOKENS), _first(_AZURE_KEYS)
    if not account or not (token or secret):
        return None
    base = azure_server(endpoint)
    query = token.lstrip("?") if token else _sas(account, secret, container, _PERMISSIONS[method], base)
    return f"{base}/{quote(container)}/{quote(key)}?{query}"


def azure_server(endpoint: str) -> str:
    """Return the address of Azure's server, with the account."""
    return (endpoint or _first(_ENDPOINTS) or f"https://{_first(_ACCOUNTS)}.blob.core.windows.net").rstrip("/")


def _sas(account: str, secret: str, container: str, permissions: str, base: str) -> str:
    try:
        raw = base64.b64decode(secret, validate=True)
    except ValueError:
        raise InvalidRequest(_AZURE_KEYS[0], "no key of an account", expected="one in Base64") from None
    now = datetime.now(timezone.utc)
    start, end = (f"{when:%Y-%m-%dT%H:%M:%SZ}" for when in (now - _SLACK, now + SIGNED_FOR))
    protocols = "https" if urlsplit(base).scheme == "https" else "https,http"
    resource = f"/blob/{account}/{container}"
    text = "\n".join([permissions, start, end, resource, "", "", protocols, _VERSION, "c", *[""] * 7])
    signature = base64.b64encode(hmac.digest(raw, text.encode(), "sha256")).decode()
    return urlencode({
        "sp": permissions, "st": start, "se": end, "spr": protocols, "sv": _VERSION, "sr": "c", "sig": signature,
    })  # fmt: skip


def _first(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")

"""Sign those requests to S3 and Azure that obstore cannot sign.

obstore signs URLs but not headers. For Azure it signs the encoded name where Azure expects the plain name. Azure URLs
are therefore signed for the whole container.

Source: Microsoft, "Create a service SAS", version 2020-12-06 of the string to sign.
"""

from __future__ import annotations

import base64
import hmac
import os
import threading
from datetime import datetime, timedelta, timezone
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from shardtool.errors import AccessRefused, InvalidRequest
from shardtool.storage.remote.address import display_address, is_web, parse_address
from shardtool.storage.remote.failures import obstore_errors
from shardtool.storage.remote.store_access import (
    AZURE_ACCOUNT_VARIABLES,
    AZURE_KEY_VARIABLES,
    AZURE_TOKEN_VARIABLES,
    azure_server,
    first_variable,
    is_anonymous,
    key_pair,
    store_for,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


_AWS_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # clients omit these default ports from the header `Host`


def sign_headers(
    method: str, url: str, headers: Mapping[str, str], keys: Mapping[str, Any], region: str, now: datetime | None = None
) -> dict[str, str]:
    """Return headers for a request to S3, including a signature of all of them.

    `x-amz-content-sha256` is the checksum of a signed body. `keys` are obstore's credentials: `access_key_id`,
    `secret_access_key`, `token`.

    Source: AWS, "Signature Calculations for the Authorization Header: Transferring Payload in a Single Chunk".
    """
    parts, timestamp = urlsplit(url), f"{now or datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    signed = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD", **headers, "x-amz-date": timestamp}
    if keys["token"]:
        signed["x-amz-security-token"] = keys["token"]
    host = parts.netloc.removesuffix(_AWS_DEFAULT_PORTS[parts.scheme])
    lines = {"host": host, **{name.lower(): " ".join(value.split()) for name, value in signed.items()}}
    names = ";".join(sorted(lines))
    query = sorted(
        (quote(name, ""), quote(value, "")) for name, value in parse_qsl(parts.query, keep_blank_values=True)
    )
    request = "\n".join([
        method, quote(unquote(parts.path)) or "/", "&".join(f"{name}={value}" for name, value in query),
        *(f"{name}:{lines[name]}" for name in sorted(lines)), "", names, lines["x-amz-content-sha256"],
    ])  # fmt: skip
    scope = [timestamp[:8], region, "s3", "aws4_request"]
    secret = f"AWS4{keys['secret_access_key']}".encode()
    for part in scope:
        secret = hmac.digest(secret, part.encode(), "sha256")
    text = "\n".join(["AWS4-HMAC-SHA256", timestamp, "/".join(scope), sha256(request.encode()).hexdigest()])
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    credential = "/".join([keys["access_key_id"], *scope])
    signed["Authorization"] = f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={signature}"
    return signed


_SAS_VERSION = "2022-11-02"
_CLOCK_SLACK = timedelta(minutes=15)  # the clock of this machine may be ahead of the server's by this much
SIGNATURE_LIFETIME = timedelta(hours=1)
_SAS_PERMISSIONS = {"GET": "r", "PUT": "cwt"}  # r: read; c, w: create and write; t: write tags


def azure_signed_url(container: str, key: str, method: str) -> str | None:
    """Return a blob's signed URL, or None without account key or SAS token."""
    account, token, secret = (
        first_variable(AZURE_ACCOUNT_VARIABLES),
        first_variable(AZURE_TOKEN_VARIABLES),
        first_variable(AZURE_KEY_VARIABLES),
    )
    if not account or not (token or secret):
        return None
    base = azure_server()
    query = token.lstrip("?") if token else _make_sas(account, secret, container, _SAS_PERMISSIONS[method], base)
    return f"{base}/{quote(container)}/{quote(key)}?{query}"


def _make_sas(account: str, secret: str, container: str, permissions: str, base: str) -> str:
    try:
        raw = base64.b64decode(secret, validate=True)
    except ValueError:
        raise InvalidRequest(
            AZURE_KEY_VARIABLES[0], "not an account key", expected="an account key in Base64"
        ) from None
    now = datetime.now(timezone.utc)
    start, end = (f"{when:%Y-%m-%dT%H:%M:%SZ}" for when in (now - _CLOCK_SLACK, now + SIGNATURE_LIFETIME))
    protocols = "https" if urlsplit(base).scheme == "https" else "https,http"
    resource = f"/blob/{account}/{container}"
    text = "\n".join([permissions, start, end, resource, "", "", protocols, _SAS_VERSION, "c", *[""] * 7])
    signature = base64.b64encode(hmac.digest(raw, text.encode(), "sha256")).decode()
    return urlencode({
        "sp": permissions, "st": start, "se": end, "spr": protocols, "sv": _SAS_VERSION, "sr": "c", "sig": signature,
    })  # fmt: skip


# Held during a fork: if obstore is computing an RSA signature (Google) during a fork, the child aborts.
_SIGNING_LOCK = threading.Lock()


os.register_at_fork(
    before=_SIGNING_LOCK.acquire, after_in_parent=_SIGNING_LOCK.release, after_in_child=_SIGNING_LOCK.release
)


def sign_url(address: str, method: str) -> str:
    """Return the URL for a request; the URL for a store is signed, so it is secret."""
    if is_web(address):
        return address
    parts = parse_address(address)
    if parts.scheme == "az" and not is_anonymous("az") and (url := azure_signed_url(parts.host, parts.key, method)):
        return url
    store, unsigned_url = store_for(address)
    if unsigned_url is not None:
        return f"{unsigned_url}/{quote(parts.key)}"
    import obstore

    # without quoting, obstore truncates the key at the first `#`
    key = quote(parts.key) if parts.scheme == "gs" else parts.key
    with _SIGNING_LOCK, obstore_errors(address):
        return str(obstore.sign(store, cast("Any", method), key, SIGNATURE_LIFETIME))


def sign_put(address: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return URL and headers for writing, with signed `x-amz-` headers."""
    url = sign_url(address, "PUT")
    query = dict(parse_qsl(urlsplit(url).query))
    if "X-Amz-Credential" not in query or not any(name.startswith("x-amz-") for name in headers):
        return url, dict(headers)
    url = url.partition("?")[0]  # use the server that obstore selects
    if payer := query.get("x-amz-request-payer"):
        headers = {**headers, "x-amz-request-payer": payer}
    region = query["X-Amz-Credential"].split("/")[2]
    with _SIGNING_LOCK, obstore_errors(address):
        keys = (store_for(address)[0].credential_provider or partial(key_pair, os.environ))()
    if not (keys["access_key_id"] and keys["secret_access_key"]):
        found = "credentials from a metadata service cannot sign headers"
        expected = "boto3, which provides them"
        raise AccessRefused(display_address(address), found, expected=expected, remedy="pip install boto3")
    return url, sign_headers("PUT", url, headers, keys, region)

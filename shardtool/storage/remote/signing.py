"""Sign requests to S3 and Azure that obstore cannot sign.

obstore signs URLs but not headers. For Azure it signs the encoded name where Azure expects the plain name, so names
with spaces or non-ASCII letters would be refused. Azure URLs are therefore signed for the whole container.

`sign_url` works in a forked child process; no signature may be in progress during a fork, because obstore's RSA
(Google) would end the child.

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
from shardtool.storage.remote.address import (
    display_address,
    is_web,
    parse_address,
)
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


_AWS_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # which no client writes into `Host`


def sign_headers(
    method: str, url: str, headers: Mapping[str, str], keys: Mapping[str, Any], region: str, now: datetime | None = None
) -> dict[str, str]:
    """Return the headers of a request to S3, with those that sign it; all that are given are signed.

    Args:
        method: Of HTTP.
        url: Where it goes, with its query (`?uploads`).
        headers: What it says of the object. `x-amz-content-sha256` is the checksum of a body that is signed, too.
        keys: Who asks, as obstore has it: `access_key_id`, `secret_access_key`, `token`.
        region: Where the bucket is.
        now: When it is sent.

    Source: AWS, "Signature Calculations for the Authorization Header: Transferring Payload in a Single Chunk" (AWS
    Signature Version 4).
    """
    at, when = urlsplit(url), f"{now or datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    given = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD", **headers, "x-amz-date": when}
    if keys["token"]:
        given["x-amz-security-token"] = keys["token"]
    host = at.netloc.removesuffix(_AWS_DEFAULT_PORTS[at.scheme])
    lines = {"host": host, **{name.lower(): " ".join(value.split()) for name, value in given.items()}}
    names = ";".join(sorted(lines))
    query = sorted((quote(name, ""), quote(value, "")) for name, value in parse_qsl(at.query, keep_blank_values=True))
    request = "\n".join([
        method, quote(unquote(at.path)) or "/", "&".join(f"{name}={value}" for name, value in query),
        *(f"{name}:{lines[name]}" for name in sorted(lines)), "", names, lines["x-amz-content-sha256"],
    ])  # fmt: skip
    scope = [when[:8], region, "s3", "aws4_request"]
    secret = f"AWS4{keys['secret_access_key']}".encode()
    for part in scope:
        secret = hmac.digest(secret, part.encode(), "sha256")
    text = "\n".join(["AWS4-HMAC-SHA256", when, "/".join(scope), sha256(request.encode()).hexdigest()])
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    credential = "/".join([keys["access_key_id"], *scope])
    given["Authorization"] = f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={signature}"
    return given


_SAS_VERSION = "2022-11-02"


_CLOCK_SLACK = timedelta(minutes=15)  # by which our clock may be ahead


SIGNATURE_LIFETIME = timedelta(hours=1)


_SAS_PERMISSIONS = {"GET": "r", "PUT": "cwt"}  # t: with tags


def azure_signed_url(container: str, key: str, method: str) -> str | None:
    """Return the signed address of a blob; None where the environment has neither an account's key nor a token.

    Args:
        container: The container.
        key: The blob's name.
        method: Of HTTP.

    Raises:
        InvalidRequest: The key is none.
    """
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
        raise InvalidRequest(AZURE_KEY_VARIABLES[0], "no key of an account", expected="one in Base64") from None
    now = datetime.now(timezone.utc)
    start, end = (f"{when:%Y-%m-%dT%H:%M:%SZ}" for when in (now - _CLOCK_SLACK, now + SIGNATURE_LIFETIME))
    protocols = "https" if urlsplit(base).scheme == "https" else "https,http"
    resource = f"/blob/{account}/{container}"
    text = "\n".join([permissions, start, end, resource, "", "", protocols, _SAS_VERSION, "c", *[""] * 7])
    signature = base64.b64encode(hmac.digest(raw, text.encode(), "sha256")).decode()
    return urlencode({
        "sp": permissions, "st": start, "se": end, "spr": protocols, "sv": _SAS_VERSION, "sr": "c", "sig": signature,
    })  # fmt: skip


# No signature is under way in a process that forks: obstore's RSA (Google) ends a child that finds one half done.
_SIGNING_LOCK = threading.Lock()


os.register_at_fork(
    before=_SIGNING_LOCK.acquire, after_in_parent=_SIGNING_LOCK.release, after_in_child=_SIGNING_LOCK.release
)


def sign_url(address: str, method: str) -> str:
    """Return where a request goes: an address of the web as it is, one of a store signed. It is secret while it lasts.

    Raises:
        AccessRefused: There are no keys.
        InvalidRequest: obstore is not installed, or the key is none that it takes.
    """
    if is_web(address):
        return address
    at = parse_address(address)
    if at.scheme == "az" and not is_anonymous("az") and (url := azure_signed_url(at.host, at.key, method)):
        return url
    store, plain = store_for(address)
    if plain is not None:
        return f"{plain}/{quote(at.key)}"
    import obstore

    key = quote(at.key) if at.scheme == "gs" else at.key  # else a name ends at its first #, and another is signed
    with _SIGNING_LOCK, obstore_errors(address):
        return str(obstore.sign(store, cast("Any", method), key, SIGNATURE_LIFETIME))


def sign_put(address: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return where an object is written, and the headers of that request, signed with what S3 takes no other way.

    Args:
        address: Of the object, in a store.
        headers: What is said of the object, and nothing that is changed on the way.

    Raises:
        AccessRefused: There are no keys, or only such that sign no headers.
        InvalidRequest: obstore is not installed, or the key is none that it takes.
    """
    url = sign_url(address, "PUT")
    asked = dict(parse_qsl(urlsplit(url).query))
    if "X-Amz-Credential" not in asked or not any(name.startswith("x-amz-") for name in headers):
        return url, dict(headers)
    url = url.partition("?")[0]  # whose server and region are obstore's
    if payer := asked.get("x-amz-request-payer"):
        headers = {**headers, "x-amz-request-payer": payer}
    region = asked["X-Amz-Credential"].split("/")[2]
    with _SIGNING_LOCK, obstore_errors(address):
        keys = (store_for(address)[0].credential_provider or partial(key_pair, os.environ))()
    if not (keys["access_key_id"] and keys["secret_access_key"]):
        found, remedy = "keys that come from a server, which obstore keeps to itself", "pip install boto3"
        raise AccessRefused(display_address(address), found, expected="boto3, which gets them, too", remedy=remedy)
    return url, sign_headers("PUT", url, headers, keys, region)

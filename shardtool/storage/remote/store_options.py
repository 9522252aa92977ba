"""Options for written objects and for the requester: `--store-option KEY=VALUE`.

Google's store accepts object options only in requests signed by its client, which cannot sign headers: set them on
the bucket instead.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from shardtool.errors import InvalidRequest
from shardtool.storage.remote.address import (
    parse_address,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


STORE_OPTIONS_VARIABLE = (
    "SHARDTOOL_STORE_OPTIONS"  # an environment variable: so workers have it, too. `KEY=VALUE`, a line each
)


class _StoreOption(NamedTuple):
    """One of them.

    Attributes:
        values: What its values look like.
        expected: The same, in words.
        s3: The header of S3 that says it; empty: there is none.
        az: That of Azure.
        variable: That of the environment, where AWS's own tools have one.
    """

    values: str
    expected: str
    s3: str = ""
    az: str = ""
    variable: str = ""


_ENCRYPTION_HEADER = "x-amz-server-side-encryption"


_STORE_OPTIONS = {
    "sse": _StoreOption(
        "AES256|aws:kms(:dsse)?", "AES256, aws:kms or aws:kms:dsse", _ENCRYPTION_HEADER, "", "AWS_SERVER_SIDE_ENCRYPTION",
    ),
    "sse-kms-key-id": _StoreOption("[!-~]+", "the name of a key", f"{_ENCRYPTION_HEADER}-aws-kms-key-id", "", "AWS_SSE_KMS_KEY_ID"),
    "sse-bucket-key": _StoreOption(
        "true|false", "true or false", f"{_ENCRYPTION_HEADER}-bucket-key-enabled", "", "AWS_SSE_BUCKET_KEY_ENABLED",
    ),
    "storage-class": _StoreOption(
        "(?!(GLACIER|DEEP_ARCHIVE)$)[A-Z0-9_]+",
        "a class that is read at once, such as STANDARD_IA or GLACIER_IR; a lifecycle rule of the bucket archives",
        "x-amz-storage-class", "", "AWS_STORAGE_CLASS",
    ),
    "access-tier": _StoreOption("Hot|Cool|Cold", "Hot, Cool or Cold, which are read at once", "", "x-ms-access-tier"),
    "tags": _StoreOption(
        "[^=&]+=[^=&]*(&[^=&]+=[^=&]*){,9}", "NAME=VALUE&NAME=VALUE, ten at most, encoded as in a URL",
        "x-amz-tagging", "x-ms-tags",
    ),
    "request-payer": _StoreOption("requester", "requester", "x-amz-request-payer", "", "AWS_REQUEST_PAYER"),
}  # fmt: skip


STORE_OPTION_VARIABLES = (STORE_OPTIONS_VARIABLE, *(one.variable for one in _STORE_OPTIONS.values() if one.variable))


_REQUEST_PAYER, _STORAGE_CLASS, _ACCESS_TIER = "request-payer", "storage-class", "access-tier"


def use_store_options(lines: Iterable[str]) -> None:
    """Tell stores more of what is written to them, and who pays, from this process and those it starts.

    Args:
        lines: `KEY=VALUE`.

    Raises:
        InvalidRequest: A key is not known, or a value is none that it takes.
    """
    text = "\n".join(lines)
    _parse_options(text)
    os.environ[STORE_OPTIONS_VARIABLE] = text


@functools.lru_cache(maxsize=8)
def _parse_options(text: str) -> Mapping[str, str]:
    pairs = (line.strip().partition("=") for line in text.splitlines() if line.strip())
    return {key: _check_option(STORE_OPTIONS_VARIABLE, key, value) for key, _, value in pairs}


def _check_option(where: str, key: str, value: str) -> str:
    if key not in _STORE_OPTIONS:
        raise InvalidRequest(where, f"the key {key!r}", expected=f"KEY=VALUE, where KEY is {', '.join(_STORE_OPTIONS)}")
    if not re.fullmatch(_STORE_OPTIONS[key].values, value):
        raise InvalidRequest(where, f"{key}={value}", expected=_STORE_OPTIONS[key].expected)
    return value


def _options_for(scheme: str, keys: Iterable[str] = tuple(_STORE_OPTIONS)) -> dict[str, str]:
    """Return what is asked of a store: what was given, and of S3 what the variables of AWS say."""
    said, given = {}, _parse_options(os.environ.get(STORE_OPTIONS_VARIABLE, ""))
    for key in keys if scheme == "s3" else ():
        if key not in given and (value := os.environ.get(_STORE_OPTIONS[key].variable, "")):
            if key == _REQUEST_PAYER and value.lower() == "false":
                continue
            is_payer = key == _REQUEST_PAYER and value.lower() in ("true", "requester")
            said[key] = _check_option(_STORE_OPTIONS[key].variable, key, "requester" if is_payer else value)
    found = {**said, **{key: value for key, value in given.items() if key in keys}}
    if "sse-kms-key-id" in found and found.setdefault("sse", "aws:kms") == "AES256":
        raise InvalidRequest(STORE_OPTIONS_VARIABLE, "a KMS key, and sse=AES256", expected="sse=aws:kms, or no key")
    return found


def client_config(scheme: str) -> dict[str, str]:
    """Return what obstore's client is to say with each of its own requests, under the names that it has for that.

    Raises:
        InvalidRequest: The environment holds something else.
    """
    names = {key: one.variable for key, one in _STORE_OPTIONS.items() if one.variable and key != _STORAGE_CLASS}
    asked = _options_for(scheme, names) if scheme == "s3" else {}
    return {names[key].removeprefix("AWS_").lower(): value for key, value in asked.items()}


def put_arguments(address: str, *, lasting: bool) -> dict[str, Any]:
    """Return what obstore is to be told of a small object, beside `client_config`: arguments of its `put`.

    Args:
        address: Of the object.
        lasting: Whether it stays: what goes soon belongs into no class that is paid for by the month.
    """
    asked = _options_for(parse_address(address).scheme)
    kinds = [asked[key] for key in (_STORAGE_CLASS, _ACCESS_TIER) if key in asked]
    tags = dict(parse_qsl(asked.get("tags", ""), keep_blank_values=True))
    attributes = {"attributes": {"Storage-Class": kinds[0]}} if kinds and lasting else {}
    return {**attributes, **({"tags": tags} if tags else {})}


def object_headers(address: str) -> dict[str, str]:
    """Return the headers of a request that writes an object, or begins to: what a store is told of it.

    Raises:
        InvalidRequest: The store cannot be told.
    """
    scheme, found = parse_address(address).scheme, {}
    for key, value in _options_for(scheme).items():
        if header := getattr(_STORE_OPTIONS[key], scheme, ""):
            tags = parse_qsl(value, keep_blank_values=True) if key == "tags" else None
            found[header] = value if tags is None else urlencode(tags, quote_via=quote)
        elif key != _REQUEST_PAYER:  # where it is read from may want that
            known = ", ".join(other for other, one in _STORE_OPTIONS.items() if getattr(one, scheme, ""))
            expected = known or "its bucket to say that: by its default storage class, and its default key"
            raise InvalidRequest(f"the store option {key}", f"nothing that {scheme}:// is told", expected=expected)
    return found

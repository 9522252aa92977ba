"""Options for writing objects and for billing the requester (`--store-option KEY=VALUE`).

Options for objects are not supported for Google, which accepts them only in signed headers. obstore signs only URLs.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from shardtool.errors import InvalidRequest
from shardtool.storage.remote.address import parse_address

ENDPOINT_VARIABLE, ANONYMOUS_VARIABLE = "SHARDTOOL_ENDPOINT", "SHARDTOOL_ANONYMOUS"
STORE_OPTIONS_VARIABLE = "SHARDTOOL_STORE_OPTIONS"  # one KEY=VALUE per line


class _StoreOption(NamedTuple):
    values: str
    expected: str
    s3: str = ""
    az: str = ""
    variable: str = ""


_ENCRYPTION_HEADER = "x-amz-server-side-encryption"
_STORE_OPTIONS = {
    "sse": _StoreOption(
        "AES256|aws:kms(:dsse)?", "AES256, aws:kms or aws:kms:dsse",
        _ENCRYPTION_HEADER, "", "AWS_SERVER_SIDE_ENCRYPTION",
    ),
    "sse-kms-key-id": _StoreOption(
        "[!-~]+", "the name of a key", f"{_ENCRYPTION_HEADER}-aws-kms-key-id", "", "AWS_SSE_KMS_KEY_ID",
    ),
    "sse-bucket-key": _StoreOption(
        "true|false", "true or false", f"{_ENCRYPTION_HEADER}-bucket-key-enabled", "", "AWS_SSE_BUCKET_KEY_ENABLED",
    ),
    "storage-class": _StoreOption(
        "(?!(GLACIER|DEEP_ARCHIVE)$)[A-Z0-9_]+",
        "a class with immediate access, such as STANDARD_IA or GLACIER_IR (archive with a lifecycle rule)",
        "x-amz-storage-class", "", "AWS_STORAGE_CLASS",
    ),
    "access-tier": _StoreOption(
        "Hot|Cool|Cold", "Hot, Cool or Cold (Archive cannot be read directly)", "", "x-ms-access-tier",
    ),
    "tags": _StoreOption(
        "[^=&]+=[^=&]*(&[^=&]+=[^=&]*){,9}", "NAME=VALUE&NAME=VALUE, at most ten, URL-encoded",
        "x-amz-tagging", "x-ms-tags",
    ),
    "request-payer": _StoreOption("requester", "requester", "x-amz-request-payer", "", "AWS_REQUEST_PAYER"),
}  # fmt: skip


_VARIABLES = {key: option.variable for key, option in _STORE_OPTIONS.items() if option.variable}
STORE_OPTION_VARIABLES = (STORE_OPTIONS_VARIABLE, *_VARIABLES.values())


_REQUEST_PAYER, _STORAGE_CLASS, _ACCESS_TIER = "request-payer", "storage-class", "access-tier"


def use_store_options(lines: Iterable[str]) -> None:
    """Set store options (`KEY=VALUE`), also for child processes."""
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
    from_aws, own = {}, _parse_options(os.environ.get(STORE_OPTIONS_VARIABLE, ""))
    for key in keys if scheme == "s3" else ():
        if key not in own and (value := os.environ.get(_STORE_OPTIONS[key].variable, "")):
            if key == _REQUEST_PAYER and value.lower() == "false":
                continue
            is_payer = key == _REQUEST_PAYER and value.lower() in ("true", "requester")
            from_aws[key] = _check_option(_STORE_OPTIONS[key].variable, key, "requester" if is_payer else value)
    options = {**from_aws, **{key: value for key, value in own.items() if key in keys}}
    if "sse-kms-key-id" in options and options.setdefault("sse", "aws:kms") == "AES256":
        raise InvalidRequest(STORE_OPTIONS_VARIABLE, "a KMS key, and sse=AES256", expected="sse=aws:kms, or no key")
    return options


def client_config(scheme: str) -> dict[str, str]:
    """Return the store options for S3, under their names in obstore's configuration."""
    keys = [key for key in _VARIABLES if key != _STORAGE_CLASS]
    options = _options_for(scheme, keys) if scheme == "s3" else {}
    return {_VARIABLES[key].removeprefix("AWS_").lower(): value for key, value in options.items()}


def put_arguments(address: str, *, use_storage_class: bool) -> dict[str, Any]:
    """Return the store options as arguments for obstore's `put`."""
    options = _options_for(parse_address(address).scheme)
    classes = [options[key] for key in (_STORAGE_CLASS, _ACCESS_TIER) if key in options]
    tags = dict(parse_qsl(options.get("tags", ""), keep_blank_values=True))
    attributes = {"attributes": {"Storage-Class": classes[0]}} if classes and use_storage_class else {}
    return {**attributes, **({"tags": tags} if tags else {})}


def object_headers(address: str) -> dict[str, str]:
    """Return the store options as headers. Raise `InvalidRequest` for an unsupported option."""
    scheme, headers = parse_address(address).scheme, {}
    for key, value in _options_for(scheme).items():
        if header := getattr(_STORE_OPTIONS[key], scheme, ""):
            tags = parse_qsl(value, keep_blank_values=True) if key == "tags" else None
            headers[header] = value if tags is None else urlencode(tags, quote_via=quote)
        elif key != _REQUEST_PAYER:
            supported = ", ".join(name for name, option in _STORE_OPTIONS.items() if getattr(option, scheme, ""))
            expected = supported or "the default storage class and key of the bucket"
            raise InvalidRequest(f"the store option {key}", f"not supported by {scheme}://", expected=expected)
    return headers

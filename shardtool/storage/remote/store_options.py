"""Options for stores and servers: for all calls (`--store-option KEY=VALUE`) or for one call (`storage_options=`).

Options of objects, such as a storage class, are not supported for Google, because they require signed headers and
obstore signs only URLs.

Each process keeps the options of calls in a dict. An address refers to its options with a marker, as in
`s3://options=KEY@bucket/key`. Messages and results omit markers.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from shardtool.errors import InvalidRequest
from shardtool.storage.remote.address import OPTIONS_MARKER, WEB, check_endpoint, display_address, is_url, parse_address

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
    own = _parse_options(os.environ.get(STORE_OPTIONS_VARIABLE, ""))
    from_aws = {}
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
    """Return the store options for obstore's configuration, under obstore's names. Only S3 has such options."""
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
    """Return the store options as request headers. Raise `InvalidRequest` if the store does not support an option."""
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


HEADERS_VARIABLE = "SHARDTOOL_HTTP_HEADERS"  # one header per line (`Name: value`)
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
_RESERVED_HEADERS = {
    "accept-encoding", "connection", "content-length", "host", "if-match", "range", "transfer-encoding",
}  # fmt: skip
StorageOptions = Mapping[str, Any]  # options by name, or a dict of options for each address prefix

# Only spawned workers get this variable. Each worker deletes it when it imports this module.
SPAWN_VARIABLE = "SHARDTOOL_CALL_OPTIONS"
VARIABLES = {  # environment variables, by scheme and storage option
    "s3": {
        "endpoint": ENDPOINT_VARIABLE, "region": "AWS_REGION", "profile": "AWS_PROFILE",
        "access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN", "anonymous": ANONYMOUS_VARIABLE,
    },
    "gs": {
        "endpoint": ENDPOINT_VARIABLE, "service_account": "GOOGLE_SERVICE_ACCOUNT",
        "service_account_key": "GOOGLE_SERVICE_ACCOUNT_KEY", "anonymous": ANONYMOUS_VARIABLE,
    },
    "az": {
        "endpoint": ENDPOINT_VARIABLE, "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
        "account_key": "AZURE_STORAGE_ACCOUNT_KEY", "sas_token": "AZURE_STORAGE_SAS_TOKEN",
        "anonymous": ANONYMOUS_VARIABLE,
    },
}  # fmt: skip
_WHERE, _HEADERS = "storage_options", "headers"
_MARKER = re.compile(rf"([A-Za-z][A-Za-z0-9+.-]*://){OPTIONS_MARKER}[0-9a-f]{{16}}@")
_options_by_key: dict[str, dict[str, Any]] = {}
if sent_options := os.environ.pop(SPAWN_VARIABLE, ""):
    import json

    _options_by_key |= json.loads(sent_options)


def known_options() -> dict[str, dict[str, Any]]:
    """Return the storage options of all calls, as a dict from KEY (see `Address.marker`) to options."""
    return _options_by_key


def options_in(addresses: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the options of the given addresses, by the keys in their markers."""
    keys = {parse_address(address).marker.removeprefix(OPTIONS_MARKER) for address in addresses if is_url(address)}
    return {key: _options_by_key[key] for key in keys if key in _options_by_key}


def register_options(options: Mapping[str, dict[str, Any]]) -> None:
    """Add the storage options of another process to `known_options`."""
    _options_by_key.update(options)


def options_of(marker: str, address: str) -> dict[str, Any] | None:
    """Return the storage options for a marker, or None if it is not an `options=` marker."""
    if not marker.startswith(OPTIONS_MARKER):
        return None
    if (options := _options_by_key.get(marker.removeprefix(OPTIONS_MARKER))) is None:
        remedy = "Open the dataset in this process, or pickle the whole dataset."
        raise InvalidRequest(display_address(address), "storage options of another process", remedy=remedy)
    return options


def spawn_environment() -> dict[str, str] | None:
    """Return the environment for a spawned worker, or None to inherit this process's environment."""
    if not _options_by_key:
        return None
    import json

    return {**os.environ, SPAWN_VARIABLE: json.dumps(_options_by_key)}


def address_with_options(address: str, options: StorageOptions) -> str:
    """Add a marker for `options` to an address. If no option applies, return the address unchanged."""
    import json
    from hashlib import blake2b

    parts = parse_address(address)
    if not (chosen := _find_call_options(parts.plain_text(), options)):
        return address
    values = _check_options(parts.scheme, chosen)
    key = blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).hexdigest()
    _options_by_key[key] = values
    return parts._replace(marker=f"{OPTIONS_MARKER}{key}").text()


def with_options(values: Any, options: StorageOptions | None) -> Any:
    """Add the marker of `options` to an address, or to all addresses in a list, tuple or dict."""
    if options is None:
        return values
    if not isinstance(options, Mapping):
        raise InvalidRequest(_WHERE, f"a {type(options).__name__}", expected="a dict of settings")
    marked = list[str]()

    def mark(value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(map(mark, value))
        if type(value) is dict:
            return {name: mark(item) for name, item in value.items()}
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
        if not isinstance(text, str) or not is_url(text):
            return value
        marked.append(address_with_options(text, options))
        return marked[-1]

    result = mark(values)
    if options and not any(parse_address(address).marker for address in marked):
        prefixes = [repr(name) for name in options if "://" in str(name)]
        found = f"no argument starts with {' or '.join(prefixes)}" if prefixes else "all paths are local"
        raise InvalidRequest(_WHERE, found, expected="an address such as s3://BUCKET/KEY or https://SERVER/PATH")
    return result


def without_markers(value: Any) -> Any:
    """Remove the markers from all addresses in a string, container or dataclass."""
    from dataclasses import fields, is_dataclass, replace

    if isinstance(value, str):
        return _MARKER.sub(r"\1", value) if OPTIONS_MARKER in value else value
    if type(value) in (list, tuple):
        return type(value)(map(without_markers, value))
    if type(value) is dict:
        return {without_markers(name): without_markers(item) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        attributes = {item.name: getattr(value, item.name) for item in fields(value) if item.init}
        changed = {name: new for name, old in attributes.items() if (new := without_markers(old)) != old}
        return replace(value, **changed) if changed else value
    return value


def _find_call_options(address: str, options: StorageOptions) -> Mapping[str, Any]:
    by_prefix = {name: chosen for name, chosen in options.items() if isinstance(name, str) and "://" in name}
    if not by_prefix:
        return options
    for name, chosen in options.items():
        if name not in by_prefix or not isinstance(chosen, Mapping):
            expected = "only addresses such as 's3://' or 's3://BUCKET/', each with a dict of options"
            raise InvalidRequest(_WHERE, repr(name)[:100], expected=expected)
    matching = [name for name in by_prefix if f"{address}/".startswith(name)]
    return by_prefix[max(matching, key=len)] if matching else {}


def _check_options(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if scheme not in VARIABLES and scheme not in WEB:
        return _check_fsspec_options(scheme, options)
    known = [*VARIABLES[scheme]] if scheme in VARIABLES else [_HEADERS]
    for name, value in options.items():
        if name not in known:
            from difflib import get_close_matches

            similar = get_close_matches(str(name), known, 1)
            remedy = f"Did you mean {similar[0]!r}?" if similar else ""
            found, expected = f"the option {name!r} of {scheme}://", f"one of {', '.join(known)}"
            other = any(name in names for names in (*VARIABLES.values(), [_HEADERS]))
            remedy = f"Give each store its own options: {{'{scheme}://': {{...}}, ...}}." if other else remedy
            raise InvalidRequest(_WHERE, found, expected=expected, remedy=remedy)
        kind = bool if name == "anonymous" else Mapping if name == _HEADERS else str
        if not isinstance(value, kind) or value == "":
            expected = "True or False" if kind is bool else "a dict of strings" if kind is Mapping else "a string"
            found = "an empty string" if value == "" else f"a {type(value).__name__}"
            raise InvalidRequest(f"{_WHERE}[{name!r}]", found, expected=expected)
    if "service_account" in options and not os.path.isfile(options["service_account"]):
        where, expected = f"{_WHERE}['service_account']", "the path of a JSON file with a key"
        raise InvalidRequest(where, f"{options['service_account']}: no such file", expected=expected)
    if "endpoint" in options:
        check_endpoint(str(options["endpoint"]), f"{_WHERE}['endpoint']")
    if scheme in VARIABLES:
        return {VARIABLES[scheme][name]: str(value) for name, value in options.items()}
    if not all(isinstance(text, str) for header in options[_HEADERS].items() for text in header):
        raise InvalidRequest(f"{_WHERE}[{_HEADERS!r}]", "not only strings", expected="a dict of strings")
    lines = [f"{name}: {value}" for name, value in options[_HEADERS].items()]
    return {_HEADERS: parse_headers(lines, f"{_WHERE}[{_HEADERS!r}]")}


def _check_fsspec_options(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    import json
    from inspect import Parameter, signature

    from fsspec import get_filesystem_class

    try:
        json.dumps(dict(options))
        parameters = [*signature(get_filesystem_class(scheme).__init__).parameters.values()][1:]
    except (TypeError, ValueError):
        expected = "texts, numbers, True, False, None, and lists and dicts of these"
        raise InvalidRequest(_WHERE, f"a value for {scheme}:// of another type", expected=expected) from None
    except ImportError:
        return dict(options)
    known = [item.name for item in parameters if item.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    unknown = [name for name in options if name not in known]
    if unknown and (scheme == "hf" or all(item.kind is not Parameter.VAR_KEYWORD for item in parameters)):
        found, expected = f"the option {unknown[0]!r} of {scheme}://", f"one of {', '.join(known)}"
        raise InvalidRequest(_WHERE, found, expected=expected)
    return dict(options)


def parse_headers(lines: Iterable[str], where: str = HEADERS_VARIABLE) -> dict[str, str]:
    """Parse lines such as `Name: value`. Errors do not show values, which may be secret."""
    headers = {}
    for line in lines:
        match = _HEADER.fullmatch(line.strip())
        expected = "a header such as `Authorization: Bearer TOKEN`"
        if match is None:
            raise InvalidRequest(where, "not a header", expected=expected)
        if match[1].lower() in _RESERVED_HEADERS:
            raise InvalidRequest(match[1], "a reserved header", expected=expected)
        headers[match[1].title()] = match[2]
    return headers

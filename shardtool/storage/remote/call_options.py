"""Options for stores and servers that apply to one call (`storage_options=`).

Each process keeps the options in a dict. A marker in an address contains the key of its options, as in
`s3://options=KEY@bucket/key`. Messages and results show addresses without markers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from shardtool.errors import InvalidRequest
from shardtool.storage.remote.address import OPTIONS_MARKER, WEB, check_endpoint, display_address, is_url, parse_address
from shardtool.storage.remote.store_options import ANONYMOUS_VARIABLE, ENDPOINT_VARIABLE

HEADERS_VARIABLE = "SHARDTOOL_HTTP_HEADERS"  # one header per line (`Name: value`)
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
_RESERVED_HEADERS = {
    "accept-encoding", "connection", "content-length", "host", "if-match", "range", "transfer-encoding",
}  # fmt: skip
StorageOptions = Mapping[str, Any]  # options by name, or a dict of options for each address prefix

SPAWN_VARIABLE = "SHARDTOOL_CALL_OPTIONS"  # set only for spawned workers, which delete it
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
_known: dict[str, dict[str, Any]] = {}
if sent_options := os.environ.pop(SPAWN_VARIABLE, ""):
    import json

    _known |= json.loads(sent_options)


def known_options() -> dict[str, dict[str, Any]]:
    """Return all storage options by key, to send them to another process."""
    return _known


def options_in(addresses: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the storage options of these addresses by key."""
    keys = {parse_address(address).marker.removeprefix(OPTIONS_MARKER) for address in addresses if is_url(address)}
    return {key: _known[key] for key in keys if key in _known}


def register_options(options: Mapping[str, dict[str, Any]]) -> None:
    """Add the storage options of another process."""
    _known.update(options)


def options_of(marker: str, address: str) -> dict[str, Any] | None:
    """Return the storage options for a marker, or None if the marker does not refer to options."""
    if not marker.startswith(OPTIONS_MARKER):
        return None
    if (options := _known.get(marker.removeprefix(OPTIONS_MARKER))) is None:
        remedy = "Open the dataset in this process, or pickle the whole dataset."
        raise InvalidRequest(display_address(address), "storage options of another process", remedy=remedy)
    return options


def spawn_environment() -> dict[str, str] | None:
    """Return the environment for a spawned worker, or None for the environment of this process."""
    if not _known:
        return None
    import json

    return {**os.environ, SPAWN_VARIABLE: json.dumps(_known)}


def address_with_options(address: str, options: StorageOptions) -> str:
    """Add a marker for `options` to an address. If no option applies, return the address unchanged."""
    import json
    from hashlib import blake2b

    parts = parse_address(address)
    if not (chosen := _options_for(parts.plain_text(), options)):
        return address
    values = _check_options(parts.scheme, chosen)
    key = blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).hexdigest()
    _known[key] = values
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
        found = f"no argument starts with {' or '.join(prefixes)}" if prefixes else "given for local paths"
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


def _options_for(address: str, options: StorageOptions) -> Mapping[str, Any]:
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
            expected = "True or False" if kind is bool else "a dict of texts" if kind is Mapping else "text"
            found = "an empty text" if value == "" else f"a {type(value).__name__}"
            raise InvalidRequest(f"{_WHERE}[{name!r}]", found, expected=expected)
    if "service_account" in options and not os.path.isfile(options["service_account"]):
        where, expected = f"{_WHERE}['service_account']", "the path of a JSON file with a key"
        raise InvalidRequest(where, f"{options['service_account']}: no such file", expected=expected)
    if "endpoint" in options:
        check_endpoint(str(options["endpoint"]), f"{_WHERE}['endpoint']")
    if scheme in VARIABLES:
        return {VARIABLES[scheme][name]: str(value) for name, value in options.items()}
    if not all(isinstance(text, str) for header in options[_HEADERS].items() for text in header):
        raise InvalidRequest(f"{_WHERE}[{_HEADERS!r}]", "a name or value that is not text", expected="a dict of texts")
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
        if match is None:  # never show the line: it may contain a secret
            raise InvalidRequest(where, "not a header", expected=expected)
        if match[1].lower() in _RESERVED_HEADERS:
            raise InvalidRequest(match[1], "a reserved header", expected=expected)
        headers[match[1].title()] = match[2]
    return headers

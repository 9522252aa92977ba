"""Parse, join and split remote addresses such as `s3://BUCKET/KEY` and `https://HOST/PATH`.

Object keys are not encoded (`s3://b/a b#1.tar`). Paths of web addresses are percent-encoded
(`https://h/a%20b%231.tar`). The query (`?token`) of a folder's web address applies to all files in the folder.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from shardtool.errors import InvalidRequest, redact_secrets

STORES = ("s3", "gs", "az")
WEB = ("http", "https")
SCHEMES = (*STORES, *WEB)
SCHEME_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "wasb": "az", "wasbs": "az"}


INSTALL_COMMANDS = {"hf": "pip install 'shardtool[hf]'"}
SOURCE_PREFIX = "SHARDTOOL_SOURCE_"
# A marker (see `Address`) is one of these prefixes, then a server or a key of `known_options`.
SOURCE_MARKER = "source="
OPTIONS_MARKER = "options="
_PORT_PATTERN = r"(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST_PATTERN = re.compile(rf"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\])(?::{_PORT_PATTERN})?")
_LOCAL_SCHEMES = ("file", "local", "data")
_AFTER_HOST = re.compile("[/?#]")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_HUGGINGFACE = re.compile(rf"hf://(?:{OPTIONS_MARKER}[^/@]*@)?datasets/", re.IGNORECASE)
_MISTYPED_ADDRESS = re.compile(rf"({'|'.join(SCHEMES)}):/?([^/].*)", re.DOTALL | re.IGNORECASE)


class Address(NamedTuple):
    """The parts of an address.

    Attributes:
        host: A bucket, a container, or a server and its port.
        key: Key or path without slash at the start.
        query: A query that starts with `?`, or "".
        marker: `source=SERVER` or `options=KEY` if the address has its own settings, else "".
    """

    scheme: str
    host: str
    key: str
    query: str = ""
    marker: str = ""

    def text(self) -> str:
        """Return the address as a string."""
        marker = f"{self.marker}@" if self.marker else ""
        return f"{self.scheme}://{marker}{self.host}{'/' if self.key or self.query else ''}{self.key}{self.query}"

    def plain_text(self) -> str:
        """Return the address without its marker."""
        return self._replace(marker="").text()


def is_url(text: str) -> bool:
    """Return whether a string is a URL."""
    return _URL.match(text) is not None


def refuse_mistyped_address(path: str) -> None:
    """Raise an error for a path that looks like a mistyped address, such as `s3:/b/k` or `s3:b/k`."""
    if match := _MISTYPED_ADDRESS.match(path):
        intended = display_address(f"{match[1].lower()}://{match[2]}")
        # Show the path as the user typed it, but without secrets.
        typed = intended.replace("://", path[match.end(1) : match.start(2)], 1)
        raise InvalidRequest(
            typed, "looks like a mistyped address", expected="`://` in an address, or `./` before a local path",
            remedy=f"Did you mean {intended}?",
        )  # fmt: skip


def is_web(text: str) -> bool:
    """Return whether an address is http or https."""
    match = _URL.match(text)
    return match is not None and match[1].lower() in WEB


def is_huggingface(text: str) -> bool:
    """Return whether an address is in a Hugging Face dataset."""
    return _HUGGINGFACE.match(text) is not None


def uses_fsspec(text: str) -> bool:
    """Return whether an address is read through fsspec."""
    return parse_address(text).scheme not in SCHEMES and not is_huggingface(text)


def is_source_address(address: str) -> bool:
    """Return whether `source_address_for` added a marker to this address."""
    return parse_address(address).marker.startswith(SOURCE_MARKER)


def parse_address(text: str) -> Address:
    """Split an address into its parts. Raise `InvalidRequest` if it is not valid."""
    match = _URL.match(text)
    scheme, tail = (match[1].lower(), match[2]) if match else ("", text)
    if scheme not in SCHEMES and scheme not in fsspec_schemes():
        raise _unknown_scheme(text, scheme)
    host, _, key = tail.partition("/")
    query = ""
    if scheme in WEB:
        host = _AFTER_HOST.split(tail, maxsplit=1)[0]
        key, separator, query_text = tail[len(host) :].removeprefix("/").partition("#")[0].partition("?")
        query = separator + query_text
        try:
            urlsplit(text)
        except ValueError:
            expected = "a URL such as https://server/path"
            raise InvalidRequest(text, "an invalid server name", expected=expected) from None
    marker = ""
    if host.startswith((SOURCE_MARKER, OPTIONS_MARKER)):
        marker, _, host = host.partition("@")
    if not host:
        raise InvalidRequest(text, "nothing after ://", expected="a bucket" if scheme in STORES else "a server name")
    return Address(scheme, host, key, query, marker)


@functools.cache
def fsspec_schemes() -> frozenset[str]:
    """Return the schemes that are read through fsspec, or an empty set if fsspec is not installed."""
    try:
        from fsspec import available_protocols
    except ImportError:
        return frozenset()
    return frozenset(available_protocols()) - {*SCHEMES, *_LOCAL_SCHEMES}


def _unknown_scheme(text: str, scheme: str) -> InvalidRequest:
    from difflib import get_close_matches

    matches = [SCHEME_ALIASES[scheme]] if scheme in SCHEME_ALIASES else get_close_matches(scheme, SCHEMES, 1, 0.5)
    readable_schemes = ", ".join(sorted(fsspec_schemes()))
    fsspec_advice = "" if readable_schemes else "fsspec reads more schemes: `pip install fsspec`."
    remedy = f"Did you mean {matches[0]}://?" if matches else INSTALL_COMMANDS.get(scheme, fsspec_advice)
    readable = f", or for reading a scheme of fsspec: {readable_schemes}" if readable_schemes else ""
    expected = f"a path, or {'://, '.join(SCHEMES)}://{readable}"
    return InvalidRequest(text, f"the scheme {scheme}://", expected=expected, remedy=remedy)


def display_address(text: str) -> str:
    """Remove the user, password and query from an address."""
    return redact_secrets(text)


def join_address(folder: str, name: str) -> str:
    """Return the address of a file in a folder. `name` is not encoded and may contain slashes."""
    if not name:
        return folder
    parts = parse_address(folder)
    name = quote(name) if parts.scheme in WEB else name
    folder_key = parts.key.rstrip("/")
    return parts._replace(key=f"{folder_key}/{name}" if folder_key else name).text()


def split_address(text: str) -> tuple[str, str]:
    """Return the address of a file's folder, and the decoded file name."""
    parts = parse_address(text)
    folder_key, _, name = parts.key.rpartition("/")
    return parts._replace(key=folder_key).text(), unquote(name) if parts.scheme in WEB else name


def check_endpoint(url: str, where: str) -> None:
    """Raise `InvalidRequest` if a URL does not name a server, or contains a user or a query."""
    parts = parse_address(url) if is_web(url) else None
    if parts is None or not _HOST_PATTERN.fullmatch(parts.host) or parts.query:
        found = "not a server URL" if parts is None else "a URL with a user or a query"
        if parts is not None and "@" not in parts.host and not parts.query:
            found = "not a server name with a port number"
        expected = "a URL such as https://minio.example:9000 (credentials come from the environment)"
        raise InvalidRequest(where, found, expected=expected)

"""Remote addresses: `s3://BUCKET/KEY`, `gs://`, `az://CONTAINER/KEY`, `http(s)://`.

An address is a text, like a path. Store keys are written as they are (`s3://b/a b#1.tar`). Web paths are
percent-encoded, as in a browser (`https://h/a%20b%231.tar`). The query (`?token`) of a web address also applies to
files next to it.
"""

from __future__ import annotations

import difflib
import functools
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from shardtool.errors import InvalidRequest, redact_secrets

STORES = ("s3", "gs", "az")


WEB = ("http", "https")


SCHEMES = (*STORES, *WEB)


SCHEME_ALIASES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfs": "az",
    "abfss": "az",
    "wasb": "az",
    "wasbs": "az",
}  # by others


INSTALL_COMMANDS = {"hf": "pip install 'shardtool[hf]'"}  # that have what reads a scheme


SOURCE_PREFIX, SOURCE_MARKER = (
    "SHARDTOOL_SOURCE_",
    "source=",
)  # before a source's variable, and before its server in an address


_LOCAL_SCHEMES = ("file", "local", "data")


_AFTER_HOST = re.compile("[/?#]")


_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


_NEAR_URL = re.compile(rf"({'|'.join(SCHEMES)}):/?([^/].*)", re.DOTALL | re.IGNORECASE)


class Address(NamedTuple):
    """An address, taken apart.

    Attributes:
        scheme: One of `SCHEMES`, or one that fsspec reads.
        host: The bucket, the container, or the server with its port.
        key: The path in it, without a slash in front; of the web, still percent-encoded.
        query: What follows `?` in an address of the web, with the `?`; else empty.
    """

    scheme: str
    host: str
    key: str
    query: str = ""

    def text(self) -> str:
        """Return it as one text."""
        return f"{self.scheme}://{self.host}{'/' if self.key or self.query else ''}{self.key}{self.query}"


def is_url(text: str) -> bool:
    """Tell whether a text is a URL of any scheme, rather than a path."""
    return _URL.match(text) is not None


def refuse_near_url(path: str) -> None:
    """Refuse a path that is an address but for a slash, `s3:/b/k` or `s3:b/k`: what is put there would be in no store.

    Raises:
        InvalidRequest: It is one.
    """
    if found := _NEAR_URL.match(path):
        meant = f"{found[1].lower()}://{found[2]}"
        raise InvalidRequest(
            path, "neither an address nor a usual path", expected="://, or ./ before a path",
            remedy=f"Did you mean {display_address(meant)}?",
        )  # fmt: skip


def is_web(text: str) -> bool:
    """Tell whether a text is an address of the web."""
    found = _URL.match(text)
    return found is not None and found[1].lower() in WEB


def is_huggingface(text: str) -> bool:
    """Tell whether a text is of a dataset's repository at Hugging Face: its files have addresses of the web."""
    return text[:14].lower() == "hf://datasets/"


def uses_fsspec(text: str) -> bool:
    """Tell whether what an address leads to is read through fsspec."""
    return parse_address(text).scheme not in SCHEMES and not is_huggingface(text)


def is_source_address(address: str) -> bool:
    """Tell whether an address is one of `stores.as_source`."""
    return parse_address(address).host.startswith(SOURCE_MARKER)


def parse_address(text: str) -> Address:
    """Take an address apart.

    Raises:
        InvalidRequest: It is of a scheme that is not known, or names no bucket or server.
    """
    found = _URL.match(text)
    scheme, rest = (found[1].lower(), found[2]) if found else ("", text)
    if scheme not in SCHEMES and scheme not in fsspec_schemes():
        raise _unknown_scheme(text, scheme)
    host, _, key = rest.partition("/")
    query = ""
    if scheme in WEB:
        host = _AFTER_HOST.split(rest, maxsplit=1)[0]
        key, mark, asked = rest[len(host) :].removeprefix("/").partition("#")[0].partition("?")
        query = mark + asked
    if not host:
        raise InvalidRequest(
            text, "nothing behind ://", expected="a bucket" if scheme in STORES else "the name of a server"
        )
    return Address(scheme, host, key, query)


@functools.cache
def fsspec_schemes() -> frozenset[str]:
    """Return the schemes that fsspec reads, where it is installed."""
    try:
        from fsspec import available_protocols
    except ImportError:
        return frozenset()
    return frozenset(available_protocols()) - {*SCHEMES, *_LOCAL_SCHEMES}


def _unknown_scheme(text: str, scheme: str) -> InvalidRequest:
    near = [SCHEME_ALIASES[scheme]] if scheme in SCHEME_ALIASES else difflib.get_close_matches(scheme, SCHEMES, 1, 0.5)
    fsspec = "fsspec reads more of them: `pip install fsspec`." if not fsspec_schemes() else ""
    remedy = INSTALL_COMMANDS.get(scheme, fsspec)
    if near:
        remedy = f"Did you mean {near[0]}://?"
    more = f", or, to read, one of fsspec's: {', '.join(sorted(fsspec_schemes()))}" if fsspec_schemes() else ""
    expected = f"a path, or {'://, '.join(SCHEMES)}://{more}"
    return InvalidRequest(text, f"the scheme {scheme}://", expected=expected, remedy=remedy)


def display_address(text: str) -> str:
    """Return an address without what may be secret: user, password and query."""
    return redact_secrets(text)


def join_address(folder: str, name: str) -> str:
    """Return the address of `name`, plain text that may have slashes, in a folder's address."""
    if not name:
        return folder
    at = parse_address(folder)
    name = quote(name) if at.scheme in WEB else name
    above = at.key.rstrip("/")
    return at._replace(key=f"{above}/{name}" if above else name).text()


def split_address(text: str) -> tuple[str, str]:
    """Return the address of the folder that something lies in, and its plain name: the opposite of `join`."""
    at = parse_address(text)
    above, _, name = at.key.rpartition("/")
    return at._replace(key=above).text(), unquote(name) if at.scheme in WEB else name

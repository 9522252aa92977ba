"""Addresses of what lies elsewhere: `s3://BUCKET/KEY`, `gs://`, `az://CONTAINER/KEY`, `http(s)://`.

Everywhere in the program an address is a text, as paths are; this module takes it apart and puts it together. A key of
a store is written as it is (`s3://b/a b#1.tar`), a path of the web percent-encoded, as in a browser
(`https://h/a%20b%231.tar`); a query (`?token`) of the web stays with what lies beside.
"""

from __future__ import annotations

import base64
import difflib
import functools
import ipaddress
import os
import re
from contextlib import suppress
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from shardtool.errors import InvalidRequest, reason, without_secrets

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

STORES = ("s3", "gs", "az")
WEB = ("http", "https")
SCHEMES = (*STORES, *WEB)
MEANT = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "wasb": "az", "wasbs": "az"}  # by others
EXTRAS = {"hf": "pip install 'shardtool[hf]'"}  # that have what reads a scheme
SOURCE, FROM = "SHARDTOOL_SOURCE_", "source="  # before a source's variable, and before its server in an address
_OF_THIS_MACHINE = ("file", "local", "data")
_AFTER_HOST = re.compile("[/?#]")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_NEAR = re.compile(rf"({'|'.join(SCHEMES)}):/?([^/].*)", re.DOTALL | re.IGNORECASE)


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
    if found := _NEAR.match(path):
        meant = f"{found[1].lower()}://{found[2]}"
        raise InvalidRequest(
            path, "neither an address nor a usual path", expected="://, or ./ before a path",
            remedy=f"Did you mean {shown(meant)}?",
        )  # fmt: skip


def is_web(text: str) -> bool:
    """Tell whether a text is an address of the web."""
    found = _URL.match(text)
    return found is not None and found[1].lower() in WEB


def is_hub(text: str) -> bool:
    """Tell whether a text is of a dataset's repository at Hugging Face: its files have addresses of the web."""
    return text[:14].lower() == "hf://datasets/"


def is_other(text: str) -> bool:
    """Tell whether what an address leads to is read through fsspec."""
    return parse_address(text).scheme not in SCHEMES and not is_hub(text)


def is_source(address: str) -> bool:
    """Tell whether an address is one of `stores.as_source`."""
    return parse_address(address).host.startswith(FROM)


def parse_address(text: str) -> Address:
    """Take an address apart.

    Raises:
        InvalidRequest: It is of a scheme that is not known, or names no bucket or server.
    """
    found = _URL.match(text)
    scheme, rest = (found[1].lower(), found[2]) if found else ("", text)
    if scheme not in SCHEMES and scheme not in other_schemes():
        raise _unknown(text, scheme)
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
def other_schemes() -> frozenset[str]:
    """Return the schemes that fsspec reads, where it is installed."""
    try:
        from fsspec import available_protocols
    except ImportError:
        return frozenset()
    return frozenset(available_protocols()) - {*SCHEMES, *_OF_THIS_MACHINE}


def _unknown(text: str, scheme: str) -> InvalidRequest:
    near = [MEANT[scheme]] if scheme in MEANT else difflib.get_close_matches(scheme, SCHEMES, 1, 0.5)
    fsspec = "fsspec reads more of them: `pip install fsspec`." if not other_schemes() else ""
    remedy = EXTRAS.get(scheme, fsspec)
    if near:
        remedy = f"Did you mean {near[0]}://?"
    more = f", or, to read, one of fsspec's: {', '.join(sorted(other_schemes()))}" if other_schemes() else ""
    expected = f"a path, or {'://, '.join(SCHEMES)}://{more}"
    return InvalidRequest(text, f"the scheme {scheme}://", expected=expected, remedy=remedy)


def shown(text: str) -> str:
    """Return an address without what may be secret: user, password and query."""
    return without_secrets(text)


def join(folder: str, name: str) -> str:
    """Return the address of `name`, plain text that may have slashes, in a folder's address."""
    if not name:
        return folder
    at = parse_address(folder)
    name = quote(name) if at.scheme in WEB else name
    above = at.key.rstrip("/")
    return at._replace(key=f"{above}/{name}" if above else name).text()


def split(text: str) -> tuple[str, str]:
    """Return the address of the folder that something lies in, and its plain name: the opposite of `join`."""
    at = parse_address(text)
    above, _, name = at.key.rpartition("/")
    return at._replace(key=above).text(), unquote(name) if at.scheme in WEB else name


# How servers are reached: by which proxy, whose certificates are trusted, and who we are. One rule for all requests.
#
# obstore lists and writes small objects, urllib3 reads and uploads; each by itself would go by other variables. Source
# of the rule of `NO_PROXY`: reqwest, which obstore is made with.


# `SSL_CERT_FILE` and `SSL_CERT_DIR`, in place of the machine's own, are the affair of both TLS libraries.
_BUNDLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_CERTIFICATES = (".pem", ".crt", ".cer")
_PORTS = {"http": 80, "https": 443}
HEADERS = "SHARDTOOL_HTTP_HEADERS"  # an environment variable, so that workers have it, too: `Name: value`, one a line
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
_OURS = {"accept-encoding", "connection", "content-length", "host", "if-match", "range", "transfer-encoding"}
DECIDING = (
    *_BUNDLES, "SSL_CERT_FILE", "SSL_CERT_DIR",
    *(case(f"{one}_proxy") for one in (*WEB, "all", "no") for case in (str.lower, str.upper)),
)  # fmt: skip


def proxy_of(url: str) -> str | None:
    """Return the address of the proxy that leads to a server; None: it is asked itself.

    Raises:
        InvalidRequest: The environment names one that speaks no HTTP.
    """
    parts = urlsplit(url)
    named = {name.lower(): (name, value) for name, value in sorted(os.environ.items()) if value}  # small letters win
    name, proxy = named.get(f"{parts.scheme}_proxy") or named.get("all_proxy") or ("", "")
    if not proxy or _is_direct(parts.hostname or "", named.get("no_proxy", ("", ""))[1]):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in WEB:
        raise InvalidRequest(name, f"a proxy of {urlsplit(proxy).scheme}://", expected="one of http:// or https://")
    return proxy


def of_proxy(proxy: str) -> dict[str, str]:
    """Return the headers that say who we are, to a proxy whose address has a user."""
    return {"Proxy-Authorization": who} if (who := _basic(proxy)) else {}


def _basic(url: str) -> str:
    parts = urlsplit(url)
    return "" if parts.username is None else _of_user(unquote(parts.username), unquote(parts.password or ""))


def _of_user(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def use_headers(lines: Iterable[str]) -> None:
    """Send more headers to servers of the web, from this process and those it starts.

    Args:
        lines: `Name: value`.

    Raises:
        InvalidRequest: One is no such line, or would change what is asked for.
    """
    lines = list(lines)
    _parsed(lines)
    os.environ[HEADERS] = "\n".join(lines)


def _parsed(lines: Iterable[str]) -> dict[str, str]:
    found = {}
    for line in lines:
        match = _HEADER.fullmatch(line.strip())
        if match is None or match[1].lower() in _OURS:
            what = "a header of our own" if match else "no header"  # which is not shown: it may be secret
            raise InvalidRequest(match[1] if match else HEADERS, what, expected="such as Authorization: Bearer TOKEN")
        found[match[1].title()] = match[2]
    return found


def web_headers(url: str) -> dict[str, str]:
    """Return the headers for a server of the web: what the environment has, the user in its address, or in `.netrc`.

    Raises:
        InvalidRequest: The environment holds no headers.
    """
    found = _parsed(filter(None, os.environ.get(HEADERS, "").splitlines()))
    file = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    if "Authorization" not in found and (who := _basic(url) or _of_netrc(urlsplit(url).hostname or "", file)):
        found["Authorization"] = who
    return found


def without_user(url: str) -> str:
    """Return a URL without its user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else url


def is_same_server(url: str, other: str) -> bool:
    """Tell whether what one server may know is for another: it is the same, or the same by https."""
    one, two = urlsplit(url), urlsplit(other)
    ports = [(part.scheme, part.port or _PORTS[part.scheme]) for part in (one, two)]
    return one.hostname == two.hostname and (ports[0] == ports[1] or ports == [*_PORTS.items()])


@functools.lru_cache(maxsize=64)
def _of_netrc(host: str, path: str) -> str:
    """Return who we are to a server, as a `.netrc` says; empty where it names no such server, or is none."""
    if not os.path.isfile(path):
        return ""
    with suppress(OSError, NetrcParseError, UnicodeDecodeError):
        if found := netrc(path).hosts.get(host):
            return _of_user(found[0], found[2] or "")
    return ""


def _is_direct(host: str, names: str) -> bool:
    """Tell whether the text of `NO_PROXY` has a server: a name, the end of one, an IP address, or a range of them."""
    for name in filter(None, map(str.strip, names.lower().split(","))):
        with suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
        if name == "*" or f".{host}".endswith(f".{name.lstrip('.')}"):
            return True
    return False


def certificates() -> str:
    """Return the certificates (PEM) that are trusted beside the machine's own.

    Raises:
        InvalidRequest: A file that the environment names cannot be read.
    """
    return "\n".join(_read(name, path) for name in _BUNDLES if (path := os.environ.get(name)))


def _read(name: str, path: str) -> str:
    given = Path(path)
    try:
        files = [one for one in sorted(given.iterdir()) if one.suffix in _CERTIFICATES] if given.is_dir() else [given]
        return "\n".join(one.read_text(encoding="ascii", errors="replace") for one in files)
    except OSError as error:
        raise InvalidRequest(f"{name}={path}", reason(error), expected="a file of certificates (PEM)") from None


def tls() -> ssl.SSLContext:
    """Return how urllib3 is to know servers: by itself, it would load the certificates anew for each connection.

    Raises:
        InvalidRequest: A file that the environment names has no certificates, or cannot be read.
    """
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context()
    context.load_default_certs()
    try:
        if texts := certificates():
            context.load_verify_locations(cadata=texts)
    except OSError:  # of ssl
        where = ", ".join(f"{name}={os.environ[name]}" for name in _BUNDLES if os.environ.get(name))
        raise InvalidRequest(where, "no certificates in it", expected="certificates (PEM)") from None
    return context

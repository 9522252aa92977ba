"""Proxies, trusted certificates and HTTP headers, by the same rules for all requests.

obstore lists and writes small objects, urllib3 reads and uploads; by default they read different environment
variables. `SSL_CERT_FILE` and `SSL_CERT_DIR` are read by both TLS libraries.

Source of the `NO_PROXY` rule: reqwest, which obstore uses.
"""

from __future__ import annotations

import base64
import functools
import ipaddress
import os
import re
from contextlib import suppress
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from shardtool.errors import InvalidRequest, os_error_text
from shardtool.storage.remote.address import WEB

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable


# `SSL_CERT_FILE` and `SSL_CERT_DIR`, in place of the machine's own, are the affair of both TLS libraries.
_CA_BUNDLE_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")


_CERTIFICATE_SUFFIXES = (".pem", ".crt", ".cer")


_DEFAULT_PORTS = {"http": 80, "https": 443}


HEADERS_VARIABLE = (
    "SHARDTOOL_HTTP_HEADERS"  # an environment variable, so that workers have it, too: `Name: value`, one a line
)


_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")


_RESERVED_HEADERS = {
    "accept-encoding",
    "connection",
    "content-length",
    "host",
    "if-match",
    "range",
    "transfer-encoding",
}


NETWORK_VARIABLES = (
    *_CA_BUNDLE_VARIABLES, "SSL_CERT_FILE", "SSL_CERT_DIR",
    *(case(f"{one}_proxy") for one in (*WEB, "all", "no") for case in (str.lower, str.upper)),
)  # fmt: skip


def proxy_for(url: str) -> str | None:
    """Return the address of the proxy that leads to a server; None: it is asked itself.

    Raises:
        InvalidRequest: The environment names one that speaks no HTTP.
    """
    parts = urlsplit(url)
    named = {name.lower(): (name, value) for name, value in sorted(os.environ.items()) if value}  # small letters win
    name, proxy = named.get(f"{parts.scheme}_proxy") or named.get("all_proxy") or ("", "")
    if not proxy or _bypasses_proxy(parts.hostname or "", named.get("no_proxy", ("", ""))[1]):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in WEB:
        raise InvalidRequest(name, f"a proxy of {urlsplit(proxy).scheme}://", expected="one of http:// or https://")
    return proxy


def proxy_headers(proxy: str) -> dict[str, str]:
    """Return the headers that say who we are, to a proxy whose address has a user."""
    return {"Proxy-Authorization": who} if (who := _basic_auth(proxy)) else {}


def _basic_auth(url: str) -> str:
    parts = urlsplit(url)
    return "" if parts.username is None else _encode_basic_auth(unquote(parts.username), unquote(parts.password or ""))


def _encode_basic_auth(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def use_headers(lines: Iterable[str]) -> None:
    """Send more headers to servers of the web, from this process and those it starts.

    Args:
        lines: `Name: value`.

    Raises:
        InvalidRequest: One is no such line, or would change what is asked for.
    """
    lines = list(lines)
    _parse_headers(lines)
    os.environ[HEADERS_VARIABLE] = "\n".join(lines)


def _parse_headers(lines: Iterable[str]) -> dict[str, str]:
    found = {}
    for line in lines:
        match = _HEADER.fullmatch(line.strip())
        if match is None or match[1].lower() in _RESERVED_HEADERS:
            what = "a header of our own" if match else "no header"  # which is not shown: it may be secret
            raise InvalidRequest(
                match[1] if match else HEADERS_VARIABLE, what, expected="such as Authorization: Bearer TOKEN"
            )
        found[match[1].title()] = match[2]
    return found


def web_headers(url: str) -> dict[str, str]:
    """Return the headers for a server of the web: what the environment has, the user in its address, or in `.netrc`.

    Raises:
        InvalidRequest: The environment holds no headers.
    """
    found = _parse_headers(filter(None, os.environ.get(HEADERS_VARIABLE, "").splitlines()))
    file = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    if "Authorization" not in found and (who := _basic_auth(url) or _netrc_auth(urlsplit(url).hostname or "", file)):
        found["Authorization"] = who
    return found


def without_user(url: str) -> str:
    """Return a URL without its user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else url


def is_same_server(url: str, other: str) -> bool:
    """Tell whether what one server may know is for another: it is the same, or the same by https."""
    one, two = urlsplit(url), urlsplit(other)
    ports = [(part.scheme, part.port or _DEFAULT_PORTS[part.scheme]) for part in (one, two)]
    return one.hostname == two.hostname and (ports[0] == ports[1] or ports == [*_DEFAULT_PORTS.items()])


@functools.lru_cache(maxsize=64)
def _netrc_auth(host: str, path: str) -> str:
    """Return who we are to a server, as a `.netrc` says; empty where it names no such server, or is none."""
    if not os.path.isfile(path):
        return ""
    with suppress(OSError, NetrcParseError, UnicodeDecodeError):
        if found := netrc(path).hosts.get(host):
            return _encode_basic_auth(found[0], found[2] or "")
    return ""


def _bypasses_proxy(host: str, names: str) -> bool:
    """Tell whether the text of `NO_PROXY` has a server: a name, the end of one, an IP address, or a range of them."""
    for name in filter(None, map(str.strip, names.lower().split(","))):
        with suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
        if name == "*" or f".{host}".endswith(f".{name.lstrip('.')}"):
            return True
    return False


def extra_certificates() -> str:
    """Return the certificates (PEM) that are trusted beside the machine's own.

    Raises:
        InvalidRequest: A file that the environment names cannot be read.
    """
    return "\n".join(_read_certificates(name, path) for name in _CA_BUNDLE_VARIABLES if (path := os.environ.get(name)))


def _read_certificates(name: str, path: str) -> str:
    given = Path(path)
    try:
        files = (
            [one for one in sorted(given.iterdir()) if one.suffix in _CERTIFICATE_SUFFIXES]
            if given.is_dir()
            else [given]
        )
        return "\n".join(one.read_text(encoding="ascii", errors="replace") for one in files)
    except OSError as error:
        raise InvalidRequest(f"{name}={path}", os_error_text(error), expected="a file of certificates (PEM)") from None


def tls_context() -> ssl.SSLContext:
    """Return how urllib3 is to know servers: by itself, it would load the certificates anew for each connection.

    Raises:
        InvalidRequest: A file that the environment names has no certificates, or cannot be read.
    """
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context()
    context.load_default_certs()
    try:
        if texts := extra_certificates():
            context.load_verify_locations(cadata=texts)
    except OSError:  # of ssl
        where = ", ".join(f"{name}={os.environ[name]}" for name in _CA_BUNDLE_VARIABLES if os.environ.get(name))
        raise InvalidRequest(where, "no certificates in it", expected="certificates (PEM)") from None
    return context

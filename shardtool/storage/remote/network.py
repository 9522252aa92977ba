"""How servers are reached: by which proxy, whose certificates are trusted, and who we are. One rule for all requests.

obstore lists and writes small objects, urllib3 reads and uploads; each by itself would go by other variables. Source of
the rule of `NO_PROXY`: reqwest, which obstore is made with.
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
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from shardtool.errors import InvalidRequest, reason

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

# `SSL_CERT_FILE` and `SSL_CERT_DIR`, in place of the machine's own, are the affair of both TLS libraries.
_BUNDLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_CERTIFICATES = (".pem", ".crt", ".cer")
_SCHEMES = ("http", "https")
_PORTS = {"http": 80, "https": 443}
HEADERS = "SHARDTOOL_HTTP_HEADERS"  # an environment variable, so that workers have it, too: `Name: value`, one a line
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
_OURS = {"accept-encoding", "connection", "content-length", "host", "if-match", "range", "transfer-encoding"}
DECIDING = (
    *_BUNDLES, "SSL_CERT_FILE", "SSL_CERT_DIR",
    *(case(f"{one}_proxy") for one in (*_SCHEMES, "all", "no") for case in (str.lower, str.upper)),
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
    if urlsplit(proxy).scheme not in _SCHEMES:
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


def more_certificates() -> str:
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


def tls() -> ssl.SSLContext | None:
    """Return how urllib3 is to know servers; None: as it does by itself.

    Raises:
        InvalidRequest: A file that the environment names has no certificates, or cannot be read.
    """
    if not (texts := more_certificates()):
        return None
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context()
    context.load_default_certs()
    try:
        context.load_verify_locations(cadata=texts)
    except OSError:  # of ssl
        where = ", ".join(f"{name}={os.environ[name]}" for name in _BUNDLES if os.environ.get(name))
        raise InvalidRequest(where, "no certificates in it", expected="certificates (PEM)") from None
    return context


def of_obstore() -> dict[str, Any]:
    """Return the same for obstore, which goes by the variables of proxies itself."""
    more = more_certificates()
    return {"root_certificate": more} if more else {}

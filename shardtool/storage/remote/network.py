"""Find the proxy, certificates and HTTP headers for a server.

urllib3 ignores `NO_PROXY`, so this module applies it like reqwest, the HTTP library of obstore.
"""

from __future__ import annotations

import base64
import functools
import ipaddress
import os
from contextlib import suppress
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from shardtool.errors import InvalidRequest, os_error_text
from shardtool.storage.remote.address import WEB, parse_address
from shardtool.storage.remote.store_options import HEADERS_VARIABLE, options_of, parse_headers

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable


# Python's ssl and obstore read SSL_CERT_FILE and SSL_CERT_DIR themselves.
_CA_BUNDLE_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_CERTIFICATE_SUFFIXES = (".pem", ".crt", ".cer")
_DEFAULT_PORTS = {"http": 80, "https": 443}


NETWORK_VARIABLES = (
    *_CA_BUNDLE_VARIABLES, "SSL_CERT_FILE", "SSL_CERT_DIR",
    *(case(f"{name}_proxy") for name in (*WEB, "all", "no") for case in (str.lower, str.upper)),
)  # fmt: skip


def proxy_for(url: str) -> str | None:
    """Return the URL of the proxy for requests to `url`, or None."""
    parts = urlsplit(url)
    # lower-case names take precedence
    variables = {name.lower(): (name, value) for name, value in sorted(os.environ.items()) if value}
    name, proxy = variables.get(f"{parts.scheme}_proxy") or variables.get("all_proxy") or ("", "")
    if not proxy or _bypasses_proxy(parts.hostname or "", variables.get("no_proxy", ("", ""))[1]):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if (scheme := urlsplit(proxy).scheme) not in WEB:
        raise InvalidRequest(name, f"a proxy with {scheme}://", expected="a proxy with http:// or https://")
    return proxy


def proxy_headers(proxy: str) -> dict[str, str]:
    """Return the authorization header for a proxy."""
    return {"Proxy-Authorization": value} if (value := _basic_auth(proxy)) else {}


def _basic_auth(url: str) -> str:
    parts = urlsplit(url)
    return "" if parts.username is None else _encode_basic_auth(unquote(parts.username), unquote(parts.password or ""))


def _encode_basic_auth(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def use_headers(lines: Iterable[str]) -> None:
    """Send headers (`Name: value`) to web servers, also from child processes."""
    lines = list(lines)
    parse_headers(lines)
    os.environ[HEADERS_VARIABLE] = "\n".join(lines)


def web_headers(url: str) -> dict[str, str]:
    """Return the headers for a web server, from the environment and from the storage options of `url`.

    If there is no `Authorization` header, create one from the user and password in the URL or `.netrc`.
    """
    headers = parse_headers(filter(None, os.environ.get(HEADERS_VARIABLE, "").splitlines()))
    parts = parse_address(url)
    headers |= (options_of(parts.marker, url) or {}).get("headers", {})
    url = parts.plain_text()
    netrc_path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    if "Authorization" not in headers and (
        authorization := _basic_auth(url) or _netrc_auth(urlsplit(url).hostname or "", netrc_path)
    ):
        headers["Authorization"] = authorization
    return headers


def without_user(url: str) -> str:
    """Return a URL without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else url


def is_same_server(url: str, other: str) -> bool:
    """Return whether a request redirected from `url` to `other` may send the same headers.

    Both URLs must have the same server, or `other` must change http to https on the same host, with default ports.
    """
    first, second = urlsplit(url), urlsplit(other)
    ports = [(part.scheme, part.port or _DEFAULT_PORTS[part.scheme]) for part in (first, second)]
    return first.hostname == second.hostname and (ports[0] == ports[1] or ports == [*_DEFAULT_PORTS.items()])


@functools.lru_cache(maxsize=64)
def _netrc_auth(host: str, path: str) -> str:
    if not os.path.isfile(path):
        return ""
    with suppress(OSError, NetrcParseError, UnicodeDecodeError):
        if entry := netrc(path).hosts.get(host):
            return _encode_basic_auth(entry[0], entry[2] or "")
    return ""


def _bypasses_proxy(host: str, names: str) -> bool:
    for name in filter(None, map(str.strip, names.lower().split(","))):
        with suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
        if name == "*" or f".{host}".endswith(f".{name.lstrip('.')}"):
            return True
    return False


def extra_certificates() -> str:
    """Return the trusted certificates that the user added, in PEM format."""
    return "\n".join(_read_certificates(name, path) for name in _CA_BUNDLE_VARIABLES if (path := os.environ.get(name)))


def _read_certificates(name: str, path: str) -> str:
    files = [Path(path)]
    try:
        if files[0].is_dir():
            files = [file for file in sorted(files[0].iterdir()) if file.suffix in _CERTIFICATE_SUFFIXES]
        return "\n".join(file.read_text(encoding="ascii", errors="replace") for file in files)
    except OSError as error:
        raise InvalidRequest(f"{name}={path}", os_error_text(error), expected="a file with PEM certificates") from None


def tls_context() -> ssl.SSLContext:
    """Return a TLS context for all connections, because urllib3 would load the certificates for each one."""
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context()
    context.load_default_certs()
    try:
        if texts := extra_certificates():
            context.load_verify_locations(cadata=texts)
    except OSError:  # OSError includes ssl.SSLError
        where = ", ".join(f"{name}={os.environ[name]}" for name in _CA_BUNDLE_VARIABLES if os.environ.get(name))
        raise InvalidRequest(where, "contains no certificates", expected="PEM certificates") from None
    return context

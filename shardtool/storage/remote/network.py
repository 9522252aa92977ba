"""How servers are reached: by which proxy, and whose certificates are trusted. One rule for both libraries of HTTP.

obstore lists and writes small objects, urllib3 reads and uploads; each by itself would go by other variables. Source of
the rule of `NO_PROXY`: reqwest, which obstore is made with.
"""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from shardtool.errors import InvalidRequest, reason

if TYPE_CHECKING:
    import ssl

# `SSL_CERT_FILE` and `SSL_CERT_DIR`, in place of the machine's own, are the affair of both TLS libraries.
_BUNDLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_CERTIFICATES = (".pem", ".crt", ".cer")
_SCHEMES = ("http", "https")
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
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    from urllib3 import make_headers

    return dict(make_headers(proxy_basic_auth=f"{unquote(parts.username)}:{unquote(parts.password or '')}"))


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
    try:
        paths = [path]
        if os.path.isdir(path):
            paths = [os.path.join(path, one) for one in sorted(os.listdir(path)) if one.endswith(_CERTIFICATES)]
        texts = []
        for one in paths:
            with open(one, encoding="ascii", errors="replace") as file:
                texts.append(file.read())
    except OSError as error:
        raise InvalidRequest(f"{name}={path}", reason(error), expected="a file of certificates (PEM)") from None
    return "\n".join(texts)


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

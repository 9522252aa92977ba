"""Redact secrets in URLs for messages, sidecars and lists.

A URL may contain a password before its host or a signature in its query. `redact_url` removes the user and password,
and the values of parameters whose names suggest a secret.
"""

from __future__ import annotations

import re

from shardtool.names import to_bytes, to_text

MAX_SHOWN_URL_LENGTH = 2048
_REDACTED = "REDACTED"
_USER_INFO = re.compile(r"^(\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]{2})[^/?#\\]*@")
_URL_HOST = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:[/\\]{2}(?:[^/?#\\]*@)?(?:\[([^\]]*)\]|([^/?#\\:]*))")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_SECRET_WORDS = frozenset({
    "accesskey", "apikey", "auth", "authorization", "credential", "credentials", "hmac", "jwt", "key", "keyid", "pass",
    "passwd", "password", "policy", "pwd", "secret", "sid", "session", "sessionid", "sig", "sign", "signature", "token",
})  # fmt: skip


def redact_url(url: str) -> str:
    """Return a URL without user, password, fragment, and values of secret parameters; accepts any text."""
    text = _USER_INFO.sub(r"\1", url).partition("#")[0]
    path, mark, query = text.partition("?")
    if mark:
        path += mark + "&".join(map(_redact_parameter, query.split("&")))
    return path if len(path) <= MAX_SHOWN_URL_LENGTH else f"{path[:MAX_SHOWN_URL_LENGTH]}..."


def redact_url_bytes(url: bytes) -> bytes:
    """Redact a URL given as bytes."""
    return to_bytes(redact_url(to_text(url)))


def url_host(url: str) -> str:
    """Return the host of a URL without its port; empty if it has none."""
    match = _URL_HOST.match(url)
    return (match[1] or match[2] or "").lower() if match else ""


def _redact_parameter(text: str) -> str:
    name, equals, value = text.partition("=")
    words = {word.lower() for word in _WORDS.findall(text.rpartition("=")[0])}  # includes names inside the value
    return f"{name}={_REDACTED}" if equals and value and not words.isdisjoint(_SECRET_WORDS) else text

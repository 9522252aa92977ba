"""URLs of a manifest: which can be fetched, and what of them may be seen. It imports nothing heavy.

A URL may hold secrets: a password before its host, a signature in its query. What goes into messages, sidecars and
lists is `shown_url`: without the first, and without the values of the second as far as their names tell.
"""

from __future__ import annotations

import re

from shardtool.values import to_bytes, to_text

LONGEST = 2048  # letters of a URL that is shown
_HIDDEN = "REDACTED"
_USER = re.compile(r"^(\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]{2})[^/?#\\]*@")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET = frozenset({
    "accesskey", "apikey", "auth", "authorization", "credential", "credentials", "hmac", "jwt", "key", "keyid", "pass",
    "passwd", "password", "policy", "pwd", "secret", "sid", "session", "sessionid", "sig", "sign", "signature", "token",
})  # fmt: skip


def shown_url(url: str) -> str:
    """Return a URL without its user and password, its fragment, and the values of parameters that are secret by name.

    It does not matter whether it is a URL: any text is shown in this way.
    """
    text = _USER.sub(r"\1", url).partition("#")[0]
    path, mark, query = text.partition("?")
    if mark:
        path += mark + "&".join(map(_shown_parameter, query.split("&")))
    return path if len(path) <= LONGEST else f"{path[:LONGEST]}..."


def shown_bytes(url: bytes) -> bytes:
    """Return what is shown of a URL, as bytes."""
    return to_bytes(shown_url(to_text(url)))


def _shown_parameter(text: str) -> str:
    name, equals, value = text.partition("=")
    words = {word.lower() for word in _WORDS.findall(name)}
    return f"{name}={_HIDDEN}" if equals and value and not words.isdisjoint(_SECRET) else text

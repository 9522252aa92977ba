"""Options and errors of downloads, and functions that remove secrets from URLs."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from shardtool.dataclass import dataclass
from shardtool.names import to_bytes, to_text
from shardtool.values import __version__

if TYPE_CHECKING:
    from shardtool.skipped import SkipCode


MAX_BUFFERED_BYTES = 256 * 2**20
USER_AGENT = f"shardtool/{__version__}"

ROBOTS_DIRECTIVES = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Options for downloads.

    Attributes:
        per_host: Maximum concurrent requests per host. Each worker gets its share of this number.
        timeout_s: Maximum seconds to wait for a connection or for data.
        max_time_s: Maximum seconds for a file, including retries.
        robots: Whether to skip a file if its X-Robots-Tag header forbids its use.
        images: Whether files must start with the signature of an image.
        memory: Maximum bytes of downloaded files in memory.
        max_failed: Maximum share of a shard's samples whose downloads may fail.
        retry_failed: Whether a resumed run recreates shards that have failed downloads.
    """

    connections: int = 256
    per_host: int = 16
    timeout_s: float = 10
    max_time_s: float = 60
    max_bytes: int = 100_000_000
    retries: int = 2
    allow_private: bool = False
    robots: bool = True
    user_agent: str = USER_AGENT
    images: bool = False
    memory: int = MAX_BUFFERED_BYTES
    max_failed: Fraction = Fraction(1)
    retry_failed: bool = False

    def identity(self) -> str:
        """Return, as a string, the options that decide whether a file is accepted."""
        return f"fetch {self.max_bytes} {self.robots} {self.images}"


class FetchFailed(Exception):
    """A failed download.

    Attributes:
        message: Explanation for the user, without any part of the URL.
        wait_s: Seconds to wait before a retry, as the server requests.
    """

    def __init__(self, code: SkipCode, message: str, *, is_temporary: bool = False, wait_s: float = 0) -> None:
        super().__init__(message)
        self.code, self.message, self.is_temporary, self.wait_s = code, message, is_temporary, wait_s


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
    """Return a URL without its user, password, fragment and secret parameter values. The URL may be invalid."""
    text = _USER_INFO.sub(r"\1", url).partition("#")[0]
    path, mark, query = text.partition("?")
    if mark:
        path += mark + "&".join(map(_redact_parameter, query.split("&")))
    return path if len(path) <= MAX_SHOWN_URL_LENGTH else f"{path[:MAX_SHOWN_URL_LENGTH]}..."


def redact_url_bytes(url: bytes) -> bytes:
    """Apply `redact_url` to bytes."""
    return to_bytes(redact_url(to_text(url)))


def url_host(url: str) -> str:
    """Return the host of a URL without the port, or "" if there is no host."""
    match = _URL_HOST.match(url)
    return (match[1] or match[2] or "").lower() if match else ""


def _redact_parameter(text: str) -> str:
    name, equals, value = text.partition("=")
    # a value may contain parameters too, so check all names up to the last "="
    words = {word.lower() for word in _WORDS.findall(text.rpartition("=")[0])}
    return f"{name}={_REDACTED}" if equals and value and not words.isdisjoint(_SECRET_WORDS) else text

"""How files are fetched: one value, which travels to workers. It imports nothing heavy; `fetcher` fetches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from shardtool.values import __version__, to_bytes, to_text

if TYPE_CHECKING:
    from shardtool.skipped import SkipCode

MEMORY = 256 * 2**20  # bytes that a worker holds of what is fetched ahead
USER_AGENT = f"shardtool/{__version__}"
DIRECTIVES = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})  # of X-Robots-Tag: not for training


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """The way in which a worker fetches files.

    Attributes:
        connections: How many are fetched at once.
        per_host: How many of these of one host: of all workers where they are asked for, of one in its task.
        timeout_s: Seconds to connect, and to wait for more bytes.
        max_time_s: Seconds that a file may take in all, with redirects and further tries.
        max_bytes: Bytes of a file at most, as sent and as unpacked.
        retries: Further tries after a failure that may pass.
        allow_private: Whether addresses of this machine and of local networks are asked, too.
        robots: Whether the header X-Robots-Tag is obeyed.
        user_agent: What the requests say of who asks.
        images: Whether a file must begin as an image does.
        memory: Bytes that are held of files that are fetched ahead.
        max_failed: The share of a shard's samples that may fail before the run ends.
        retry_failed: Whether a resumed run makes shards again of which samples failed.
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
    memory: int = MEMORY
    max_failed: Fraction = Fraction(1)
    retry_failed: bool = False

    def identity(self) -> str:
        """Return what of it decides which files are taken."""
        return f"fetch {self.max_bytes} {self.robots} {self.images}"


# URLs of a manifest: which can be fetched, and what of them may be seen. It imports nothing heavy.
#
# A URL may hold secrets: a password before its host, a signature in its query. What goes into messages, sidecars and
# lists is `shown_url`: without the first, and without the values of the second as far as their names tell.


LONGEST = 2048  # letters of a URL that is shown
_HIDDEN = "REDACTED"
_USER = re.compile(r"^(\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]{2})[^/?#\\]*@")
_HOST = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:[/\\]{2}(?:[^/?#\\]*@)?(?:\[([^\]]*)\]|([^/?#\\:]*))")
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


def host_of(url: str) -> str:
    """Return the host of a URL, without its port; nothing where it has none."""
    found = _HOST.match(url)
    return (found[1] or found[2] or "").lower() if found else ""


def _shown_parameter(text: str) -> str:
    name, equals, value = text.partition("=")
    words = {word.lower() for word in _WORDS.findall(text.rpartition("=")[0])}  # of names in its value, too
    return f"{name}={_HIDDEN}" if equals and value and not words.isdisjoint(_SECRET) else text


# What a worker tells once a second.


class FetchProgress(NamedTuple):
    """How far a worker is with the files of a shard.

    Attributes:
        worker: The number of its process.
        samples: Those of the shard.
        share: What share of its files was taken and packed.
        took_s: Seconds since it began.
        left_s: Seconds that the rest will take.
        host: For whose files it will wait the longest; empty: packing takes longer.
        done: How many of the shard's files of that host are there, or failed.
        files: How many there are.
        each_s: Seconds that one takes.
    """

    worker: int
    samples: int
    share: float
    took_s: float
    left_s: float
    host: str
    done: int
    files: int
    each_s: float


# Why a URL gave no file.


class FetchFailed(Exception):
    """A URL that gave no file.

    Attributes:
        code: Why, for programs.
        message: For people; no part of the URL is in it.
        may_pass: Whether another try may give the file.
        wait_s: Seconds that the server asks to wait before that.
    """

    def __init__(self, code: SkipCode, message: str, *, may_pass: bool = False, wait_s: float = 0) -> None:
        super().__init__(message)
        self.code, self.message, self.may_pass, self.wait_s = code, message, may_pass, wait_s

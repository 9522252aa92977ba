"""What the proxy is asked to do, and what it says it was asked: the side of the tests."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.servers.processes import Server


@dataclass(frozen=True)
class Fault:
    """Harm done to some requests.

    Attributes:
        do: `status` answers `status`, `headers` and `body` without asking the server; `redirect` sends the client to
            the same path behind `to`; `refuse` resets the connection before anything is sent on, `lost` after the
            server has done what was asked, `upload` in the middle of the client's body, in which `damage` changes one
            bit; `silent` never answers, `hang` only once the server has done it. Of the server's answer `cut` ends
            the body early, `reset` resets it there, `stall` sends no more, `flip` changes one bit, `length` says one
            byte more than there is, `etag` says another ETag, `gzip` compresses unasked. `whole` sends no Range on,
            so that all comes with status 200; `shift` asks for the range one byte on. `drip` sends the rest a byte
            at a time; `raw` answers `body`, whatever it is, and then `to` for ever, if that is any.
        method: A regular expression of the whole method.
        path: One that is searched for in path and query, as sent: escaped.
        first: The first matching request that is harmed, counted from 1.
        times: How many from there on are; None for all.
        chance: Of each of those to be harmed.
        at: The byte of the body at which it happens; by default the middle.
        every_s: Seconds between two pieces of what `drip` and `raw` send.
    """

    do: str
    method: str = ".*"
    path: str = ""
    first: int = 1
    times: int | None = 1
    chance: float = 1.0
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    to: str = ""
    at: int | None = None
    every_s: float = 0.05


@dataclass
class Asked:
    """A request that came.

    Attributes:
        path: With the query, as sent.
        range: The header's value; `""` without one.
        fault: What was done to it; `""` if nothing was.
        status: Of the answer that the client was given; 0 without one.
        sent: Bytes of the body that the client was given.
    """

    method: str
    path: str
    range: str
    fault: str
    status: int = 0
    sent: int = 0


@dataclass(frozen=True)
class Log:
    """What came since faults were set, and how many requests were open at once."""

    asked: list[Asked]
    most: int


@dataclass(frozen=True)
class FaultyProxy:
    """A running proxy.

    Attributes:
        server: The server behind it, as a client sees it through the proxy: with the proxy's address.
    """

    server: Server

    def set(self, *faults: Fault, delay_s: float = 0, bytes_per_s: int = 0, seed: int = 0) -> None:
        """Do this harm from now on, and forget what was counted.

        Args:
            faults: The first one that matches a request harms it.
            delay_s: Added to each request.
            bytes_per_s: What all bodies together are limited to; 0 for no limit.
            seed: Of the faults that have a chance.
        """
        given = {"faults": list(map(asdict, faults)), "delay_s": delay_s, "bytes_per_s": bytes_per_s, "seed": seed}
        self._ask("set", json.dumps(given).encode())

    def log(self) -> Log:
        """Return what came since faults were set."""
        said = json.loads(self._ask("log", None))
        return Log([Asked(**one) for one in said["asked"]], said["most"])

    def _ask(self, what: str, data: bytes | None) -> bytes:
        directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever a test sets
        with directly.open(f"http://127.0.0.1:{self.server.port}/-/{what}", data) as said:
            answer: bytes = said.read()
        return answer


def behind(server: Server, port: int) -> Server:
    """Return a server as a client sees it through the proxy at `port`."""
    old, new = f"127.0.0.1:{server.port}", f"127.0.0.1:{port}"
    environment = {name: value.replace(old, new) for name, value in server.environment.items()}
    url, bucket = (text.replace(old, new) for text in (server.url, server.bucket))
    return replace(server, url=url, bucket=bucket, environment=environment)

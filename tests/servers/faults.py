"""Control the proxy of `tests.servers.proxy`: set the faults that it produces, and read its log."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.servers.processes import Server


@dataclass(frozen=True)
class Fault:
    """A fault applied to some requests.

    Attributes:
        do: The kind of fault.
            The server does not receive the request: `status` answers with `status`, `headers` and `body`. `redirect`
            redirects to the same path on `to`. `raw` sends `body` as it is, and then repeats `to` endlessly if `to` is
            not empty. `refuse` resets the connection. `silent` never answers.
            In the request: `upload` resets the connection during the body. `damage` flips one bit of the body. `whole`
            removes the Range header, so the server sends everything with status 200. `shift` shifts the range by one
            byte.
            After the server has processed the request: `lost` resets the connection. `hang` never answers.
            In the server's response: `cut` ends the body early, `reset` resets the connection, `stall` stops sending,
            and `drip` sends the rest byte by byte. `flip` flips one bit, `length` announces one byte too many, `etag`
            changes the ETag, and `gzip` compresses the body, although the client did not request it.
        method: Regular expression that matches the whole method.
        path: Regular expression that is searched in path and query, which are percent-encoded.
        first: First matching request to which the fault applies, counted from 1.
        times: Number of matching requests to which the fault applies, starting at `first`. None is unlimited.
        chance: Probability that the fault applies to such a request.
        at: Offset in the body at which the fault happens. The default is the middle.
        every_s: Seconds between two pieces sent by `drip` and `raw`.
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
    """A request that the proxy received.

    Attributes:
        path: Path and query, as sent.
        range: Value of the Range header, or "".
        fault: Fault that was applied, or "".
        status: Status of the response to the client; 0 if there was none.
        sent: Bytes of the body sent to the client.
    """

    method: str
    path: str
    range: str
    fault: str
    status: int = 0
    sent: int = 0


@dataclass(frozen=True)
class Log:
    """The requests since the faults were set. `most` is the maximum number of concurrent requests."""

    asked: list[Asked]
    most: int


@dataclass(frozen=True)
class FaultyProxy:
    """A running proxy.

    Attributes:
        server: The server behind the proxy. Its URLs contain the address of the proxy.
    """

    server: Server

    def set(self, *faults: Fault, delay_s: float = 0, bytes_per_s: int = 0, seed: int = 0) -> None:
        """Set faults, and clear the log.

        Args:
            faults: Faults. The first fault that matches a request is applied.
            delay_s: Delay added to each request.
            bytes_per_s: Limit of the total rate of all request and response bodies, or 0 for no limit.
            seed: Seed of the random numbers for `Fault.chance`.
        """
        given = {"faults": list(map(asdict, faults)), "delay_s": delay_s, "bytes_per_s": bytes_per_s, "seed": seed}
        self._ask("set", json.dumps(given).encode())

    def log(self) -> Log:
        """Return the requests since the faults were set."""
        said = json.loads(self._ask("log", None))
        return Log([Asked(**one) for one in said["asked"]], said["most"])

    def _ask(self, what: str, data: bytes | None) -> bytes:
        directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignore HTTP_PROXY of a test
        with directly.open(f"http://127.0.0.1:{self.server.port}/-/{what}", data) as said:
            answer: bytes = said.read()
        return answer


def behind(server: Server, port: int) -> Server:
    """Return a copy of `server` whose URLs and environment lead to the proxy at `port`."""
    old, new = f"127.0.0.1:{server.port}", f"127.0.0.1:{port}"
    environment = {name: value.replace(old, new) for name, value in server.environment.items()}
    url, bucket = (text.replace(old, new) for text in (server.url, server.bucket))
    return replace(server, url=url, bucket=bucket, environment=environment)

"""Control of the faulty proxy from tests: set faults, read the log."""

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
        do: `status` answers with `status`, `headers` and `body` without the server; `redirect` redirects to the same
            path on `to`; `refuse` resets the connection before the request is forwarded, `lost` after the server has
            processed it, `upload` during the request body, of which `damage` flips one bit; `silent` never answers,
            `hang` neither, but the server processes the request. In the server's response, `cut` ends the body early,
            `reset` resets the connection, `stall` stops sending, `flip` flips one bit, `length` announces one byte too
            many, `etag` changes the ETag, `gzip` compresses unrequested. `whole` removes the Range header, so
            everything is sent with status 200; `shift` shifts the range by one byte. `drip` sends the rest byte by
            byte; `raw` answers with `body`, then repeats `to` endlessly if it is not empty.
        method: Regular expression that matches the whole method.
        path: Regular expression to find in path and query, as sent (encoded).
        first: First matching request to which the fault applies, counted from 1.
        times: Number of requests from there on; None for all.
        chance: Probability for each of them.
        at: Byte of the body at which the fault happens; by default the middle.
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
    """A request that arrived.

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
    """Requests since the faults were set, and the maximum number of open requests."""

    asked: list[Asked]
    most: int


@dataclass(frozen=True)
class FaultyProxy:
    """A running proxy.

    Attributes:
        server: The server behind it, with the address of the proxy.
    """

    server: Server

    def set(self, *faults: Fault, delay_s: float = 0, bytes_per_s: int = 0, seed: int = 0) -> None:
        """Set faults, and clear the log.

        Args:
            faults: The first one that matches a request is applied.
            delay_s: Delay added to each request.
            bytes_per_s: Limit for all bodies together; 0 for no limit.
            seed: For faults with a chance.
        """
        given = {"faults": list(map(asdict, faults)), "delay_s": delay_s, "bytes_per_s": bytes_per_s, "seed": seed}
        self._ask("set", json.dumps(given).encode())

    def log(self) -> Log:
        """Return the requests since the faults were set."""
        said = json.loads(self._ask("log", None))
        return Log([Asked(**one) for one in said["asked"]], said["most"])

    def _ask(self, what: str, data: bytes | None) -> bytes:
        directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever a test sets
        with directly.open(f"http://127.0.0.1:{self.server.port}/-/{what}", data) as said:
            answer: bytes = said.read()
        return answer


def behind(server: Server, port: int) -> Server:
    """Return a server with the address of the proxy at `port`."""
    old, new = f"127.0.0.1:{server.port}", f"127.0.0.1:{port}"
    environment = {name: value.replace(old, new) for name, value in server.environment.items()}
    url, bucket = (text.replace(old, new) for text in (server.url, server.bucket))
    return replace(server, url=url, bucket=bucket, environment=environment)

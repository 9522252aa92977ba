"""What a status, or an error of the HTTP library, means for a file."""

from __future__ import annotations

import asyncio
import errno
import socket
from http import HTTPStatus

import aiohttp

from shardtool.errors import OutputFailed, is_out_of_memory
from shardtool.fetch.failure import FetchFailed
from shardtool.skipped import SkipCode, http_code
from shardtool.storage.remote.failures import BUSY, retry_after
from shardtool.wording import option

_Kinds = tuple[type[Exception], ...]
_MEANINGS: tuple[tuple[_Kinds, SkipCode, str, bool], ...] = (  # the first that fits; whether it may pass
    ((aiohttp.InvalidURL,), "bad-url", "a host that is no name and no address", False),
    ((aiohttp.ClientConnectorDNSError,), "no-host", "no address is known for the host", False),
    (
        (aiohttp.ClientSSLError,),
        "bad-certificate",
        "its certificate, or its TLS, is refused",
        False,
    ),
    ((aiohttp.ClientPayloadError,), "cut-short", "the body ended too early", True),
    ((OSError, aiohttp.ServerConnectionError), "no-connection", "no connection, or one that ended early", True),
)


class RefusedAddress(OSError):
    """An address that is not to be asked."""

    def __init__(self) -> None:
        super().__init__("refused: not an address of the public internet")


def failure_of_status(status: int, asked: str) -> FetchFailed:
    """Return the failure that a status other than 200 means; `asked` is its Retry-After."""
    known = {one.value: one.phrase for one in HTTPStatus}
    message = f"the server answered {status} {known.get(status, '')}".rstrip()
    return FetchFailed(http_code(status), message, may_pass=status in BUSY, wait_s=retry_after(asked) or 0)


def failure_of(error: Exception, timeout_s: float) -> FetchFailed:
    """Return the failure that an error of a request means; a lack of memory or of files is raised.

    Args:
        error: An OSError, a ClientError, a ValueError, or a time that was exceeded.
        timeout_s: The limit of time.

    Raises:
        OutputFailed: This process has too many files open.
    """
    if is_out_of_memory(error):
        raise error
    number = getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE):  # of the machine, and no fault of a server
        remedy = f"Raise the limit (ulimit -n), or use fewer {option('connections')}."
        raise OutputFailed("the web", "too many open files", remedy=remedy)
    if isinstance(error, asyncio.TimeoutError):
        return FetchFailed("timeout", f"nothing was heard for {timeout_s:g} s")
    if isinstance(error, OSError) and str(RefusedAddress()) in f"{error} {getattr(error, 'os_error', '')}":
        return FetchFailed("refused-address", "an address of this machine, a local network or no network")
    for kinds, code, message, may_pass in _MEANINGS:
        if isinstance(error, kinds):
            return FetchFailed(code, message, may_pass=may_pass or number == socket.EAI_AGAIN)
    return FetchFailed("bad-response", "an answer that is no HTTP, or has far too long headers")

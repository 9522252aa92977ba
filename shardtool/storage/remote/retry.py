"""Requests are made again when what stopped them may pass: one policy for all of them, and one way to stop them all.

A thread of requests never waits where it cannot be told to stop: it waits in slices of `SLICE_S`, and calls into
libraries that know no slices are made apart, in threads that are left alone when nobody wants what they bring.

Who waits for such a thread waits in slices, too. Python looks for signals, and then the main thread asks for a lock: a
signal that comes between the two does not wake it (seen: one in a hundred, with six threads of requests).
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlsplit

from shardtool.errors import AccessRefused, InvalidRequest, OutputFailed, StoreFailed, printable
from shardtool.storage.remote.address import SOURCE, STORES, is_hub, is_source, parse_address, proxy_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

Result = TypeVar("Result")

RETRY_FOR, LEAST_SPEED = "SHARDTOOL_RETRY_FOR", "SHARDTOOL_LEAST_SPEED"  # environment variables: so workers have them
_SECONDS = "seconds, such as 300"
MOST = 1e9  # of any of these numbers
_AGAIN = "Try again when the server can be reached."
_REACH = "Try again when the server can be reached: is its address right, and no proxy or firewall in the way?"
SLICE_S = 0.2  # between two looks at whether anybody waits


class Policy(NamedTuple):
    """How often, how long, and how slowly.

    Attributes:
        tries: Requests in all, until a first one of this process was answered: an endpoint may be none.
        first_s: Seconds of the first wait, at most; each later one may be twice as long.
        longest_s: Seconds that a wait has at most, but where the server asks for more.
        whole_s: Seconds after which no other request is begun.
        silent_s: The same, until a first request was answered: an endpoint that is none may be silent.
        notice_s: Seconds after which a first request that waits says so.
        least: Bytes a second that must come, or go.
        over_s: Seconds of waiting over which that is counted.
    """

    tries: int = 7
    first_s: float = 0.2
    longest_s: float = 30.0
    whole_s: float = 300.0
    silent_s: float = 60.0
    notice_s: float = 10.0
    least: float = 1000.0
    over_s: float = 60.0


POLICY = Policy()
_answered = threading.Event()  # in this process, or before it was forked
_one_waits = threading.Lock()  # of requests at the same time, one speaks
_of_thread = threading.local()  # what says that its requests are not wanted any more, and its own policy
_ends_at: list[float] = []  # when the last request of this process must have ended, once a signal has come
_told: list[Callable[[object], None]] = []  # who hears what is told: one at most
_counted: list[float] = [0, 0.0]  # requests that were made again, by this process and its workers; seconds of waits


class PassingFailure(Exception):
    """What may pass: a server that is busy or fails, a connection that is lost.

    Attributes:
        found: What happened, without secrets.
        wait_s: Seconds that the server asks for; None: it does not say.
        answered: Whether there is a server, which has said so.
        stalled_s: Seconds without progress, if the request failed because of them.
    """

    def __init__(
        self, found: str, wait_s: float | None = None, *, answered: bool = False, stalled_s: float = 0.0
    ) -> None:
        super().__init__(found)
        self.found, self.wait_s, self.answered, self.stalled_s = found, wait_s, answered, stalled_s


class RequestAgain(NamedTuple):
    """A request that is made again, or the last of several that are.

    Attributes:
        where: Its address, without secrets.
        found: Why.
        attempts: How often it was tried so far.
        wait_s: Seconds until it is made again; of several, all together.
        requests: How many are.
    """

    where: str
    found: str
    attempts: int
    wait_s: float
    requests: int = 1

    def __str__(self) -> str:
        others = f", as are {self.requests - 1:,} more" if self.requests > 1 else ""
        return f"{self.where}: {self.found}; asked again in {self.wait_s / self.requests:.1f} s{others}"


class Remark(NamedTuple):
    """What the user should know while something is waited for."""

    text: str


class Stall(NamedTuple):
    """What has done nothing for a while, and for how long."""

    text: str


class RequestStopped(Exception):
    """Nobody wants what this thread would bring."""


@contextmanager
def until(stop: threading.Event) -> Iterator[None]:
    """Stop the requests of this thread, wherever they are, once an event is set."""
    before = getattr(_of_thread, "stop", None)
    _of_thread.stop = stop
    try:
        yield
    finally:
        _of_thread.stop = before


@contextmanager
def under(policy: Policy) -> Iterator[None]:
    """Have the requests of this thread go by this policy, whatever the environment says."""
    _of_thread.policy = policy
    try:
        yield
    finally:
        del _of_thread.policy


def _policy() -> Policy:
    return getattr(_of_thread, "policy", POLICY)


def end_requests(within_s: float) -> None:
    """Stop all requests of this process, which is about to end; the main thread may give back its locks until then."""
    _ends_at.append(time.monotonic() + within_s)


def check_wanted() -> None:
    """See that this thread is to go on.

    Raises:
        Stopped: It is not.
    """
    stop = getattr(_of_thread, "stop", None)
    if stop is not None and stop.is_set():
        raise RequestStopped
    if _ends_at and (time.monotonic() > _ends_at[0] or threading.current_thread() is not threading.main_thread()):
        raise RequestStopped


def apart(ask: Callable[[], Result]) -> Result:
    """Return what `ask` returns, which cannot be stopped: a thread calls it, and is left alone if this one is stopped.

    Raises:
        Stopped: This thread is.
    """
    from concurrent.futures import Future, wait

    check_wanted()
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, name="shardtool-apart", daemon=True).start()
    while not wait([future], SLICE_S).done:
        check_wanted()
    return future.result()


def waited(future: Future[Result]) -> Future[Result]:
    """Return what a thread works on, once it is done."""
    from concurrent.futures import wait

    while not future.done():
        wait([future], SLICE_S)
    return future


def pause(seconds: float) -> None:
    """Wait.

    Raises:
        Stopped: Nobody waits for this thread.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check_wanted()
        time.sleep(min(left, SLICE_S))


class Attempts:
    """The tries of one request.

    Time without progress counts against the budget across all tries: a server that sends a little each time and then
    stalls is given up, too. The budget recovers while data flows, as fast as it was spent.

    Args:
        where: The address, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where, self._failed, self._began = where, 0, time.monotonic()
        self._moved, self._stalled_s = (
            self._began,
            0.0,
        )  # when data last arrived; seconds without, as of the last failure
        self._waited_s, self._was_begun = 0.0, False

    def later(self, stalled_s: float) -> None:
        """Count waits and stalls, and not the rest of the tries: these may have taken long until they failed."""
        self._waited_s += stalled_s
        self._began, self._was_begun = time.monotonic() - self._waited_s, True

    def progress(self) -> None:
        """Note that something arrived."""
        now = time.monotonic()
        if not self._failed:
            self._stalled_s = max(0.0, self._stalled_s - (now - self._moved))
        self._failed, self._moved, self._began = 0, now, now - self._stalled_s
        _answered.set()

    def failed(self, error: PassingFailure) -> None:
        """Wait, with jitter, until it may be tried again.

        Raises:
            StoreFailed: It was tried for long enough.
        """
        import random

        self._failed += 1
        if error.answered or error.wait_s is not None:
            _answered.set()
        known, whole_s, spent = _answered.is_set(), retry_for(), time.monotonic() - self._began
        policy = _policy()
        left = (whole_s if known else min(whole_s, policy.silent_s)) - spent
        is_counted = not known or (self._was_begun and not error.answered)
        if left <= 0 or (is_counted and self._failed >= policy.tries):
            times = f", {self._failed} times in {spent:,.0f} s" if self._failed > 1 else ""
            found, remedy = f"{error.found}{times}", _AGAIN if known else _REACH
            raise StoreFailed(self._where, found, remedy=remedy) from None
        wait = random.uniform(0, min(policy.longest_s, policy.first_s * 2 ** min(self._failed - 1, 30)))  # noqa: S311 - no secret depends on it
        wait = min(max(wait, error.wait_s or 0), left)
        tell(RequestAgain(self._where, error.found, self._failed, wait))
        self._waited_s += wait
        pause(wait)
        self._stalled_s = time.monotonic() - self._began


def tell(event: object) -> None:
    """Tell who wants to hear what a worker, or this process, has to say while it works; count requests made again."""
    if isinstance(event, RequestAgain):
        _counted[0] += event.requests
        _counted[1] += event.wait_s
    for hear in _told:
        hear(event)


def warn(text: str) -> None:
    """Say what the user should know to who hears what is told, otherwise to the library's log."""
    if _told:
        tell(Remark(text))
        return
    from logging import getLogger

    getLogger("shardtool").warning("%s", text)


def hear(of: Callable[[object], None] | None) -> None:
    """Have `of`, and nothing else, called for each event that is told, in the thread that tells it; None: nothing is.

    Requests that were made again before do not count any more, but for None.
    """
    _told[:] = [] if of is None else [of]
    _counted[:] = _counted if of is None else [0, 0.0]


def asked_again() -> int:
    """Return how many requests this process, and its workers on this machine, have made again."""
    return int(_counted[0])


def retry_totals() -> dict[str, float]:
    """Return how many requests were made again, and the seconds of their waits, all together; empty: none was."""
    return {"retries": asked_again(), "waited_s": round(_counted[1], 3)} if asked_again() else {}


def use_retry_for(text: str) -> None:
    """Ask for so many seconds again for what fails, in this process and in those it starts.

    Raises:
        InvalidRequest: It is no number of seconds.
    """
    _numbers(RETRY_FOR, text, _SECONDS)
    os.environ[RETRY_FOR] = text


def retry_for() -> float:
    """Return for how many seconds what fails is asked for again.

    Raises:
        InvalidRequest: The environment says no number.
    """
    text = "" if hasattr(_of_thread, "policy") else os.environ.get(RETRY_FOR, "")
    return _numbers(RETRY_FOR, text, _SECONDS)[0] if text else _policy().whole_s


def least_speed() -> tuple[float, float]:
    """Return how many bytes a second must come or go, and over how many seconds of waiting that is counted.

    Raises:
        InvalidRequest: The environment says no such numbers.
    """
    text, policy = os.environ.get(LEAST_SPEED, ""), _policy()
    if not text or hasattr(_of_thread, "policy"):
        return policy.least, policy.over_s
    least, *over_s = _numbers(LEAST_SPEED, text, "bytes a second, and over how many seconds: 1000/60")
    return least, (over_s[0] if over_s else policy.over_s)


def _numbers(name: str, text: str, expected: str) -> list[float]:
    try:
        found = [float(part) for part in text.split("/", 1)]
    except ValueError:
        found = []
    if not found or not all(0 <= one <= MOST for one in found):
        raise InvalidRequest(name, repr(text[:40]), expected=expected)
    return found


def retried(where: str, ask: Callable[[], Result]) -> Result:
    """Return what `ask` returns; while it raises `PassingFailure`, wait, with jitter, and call it again.

    Args:
        where: The address, for messages.
        ask: What to do. It must be safe to do twice.

    Raises:
        StoreFailed: It did not pass.
    """
    attempts = Attempts(where)
    with _said_to_wait(where):
        while True:
            try:
                result = ask()
            except PassingFailure as error:
                attempts.failed(error)
            else:
                _answered.set()
                return result


@contextmanager
def _said_to_wait(where: str) -> Iterator[None]:
    """Say that a request has no answer after some seconds, where none had one before."""
    if _answered.is_set() or not _one_waits.acquire(blocking=False):
        yield
        return
    seconds = POLICY.notice_s
    timer = threading.Timer(seconds, warn, (f"{where}: no answer for {seconds:.0f} seconds; still asking",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        _one_waits.release()


# What libraries and servers say that went wrong, as errors of ours.
#
# None of their own messages is shown or chained: they hold signed addresses, keys and passwords (measured: decision
# 017). So each call is made where the address is known, and named by that.


BUSY = (408, 425, 429, 500, 502, 503, 504)
_SILENT = "RequestTimeout"  # of S3, with the status 400: we were silent for too long
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
WRONG_PLACE = "Is it the region, or the endpoint, of the bucket?"
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_ELSEWHERE = ("", "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError",
              "IllegalLocationConstraintException", "PermanentRedirect")  # fmt: skip
_CODE = re.compile(rb"<Code>([A-Za-z]{1,60})</Code>|\(code: ([A-Za-z]{1,60})\)")  # the latter is obstore's
_STATUS = re.compile(r"(?:status(?: code)?|\(code):? (\d{3})|\b(\d{3}) [A-Z][a-z]+")  # in what obstore says
_REGION = re.compile(rb"<Region>([a-z0-9-]{1,40})</Region>")
_DENIED = ("", "AccessDenied", "AuthorizationPermissionMismatch")
SET_CLOCK = "Set the clock of this machine, and have it kept right (NTP)."
OF_KEYS = {  # what stores call it that credentials are none of theirs, or no more, and its cure
    **dict.fromkeys(_EXPIRED, "Get new ones, then run the same command again."),
    "AuthenticationFailed": f"Name the key or token of this very account. {SET_CLOCK}",
    "InvalidAccessKeyId": "Name a key id that this server knows: is it the endpoint of these keys?",
    "InvalidToken": "Set AWS_SESSION_TOKEN to the token that belongs to the key, or unset it.",
    "RequestTimeTooSkewed": SET_CLOCK,
    "SignatureDoesNotMatch": "Name the secret key that belongs to the key id.",
}
# Where a machine of a cloud is asked for keys: the last place in which they are looked for.
_KEYS_ASKED = re.compile(r"token request|/latest/(?:api/token|meta-data)|computeMetadata")
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})")  # so says http.client of a proxy
_PROXIES = "HTTPS_PROXY takes http://USER:PASSWORD@HOST:PORT, and NO_PROXY what goes without; as HTTP_PROXY does."
_SERVER = re.compile(r"https?://([A-Za-z0-9.-]+(?::\d+)?)[/?)]")
_NO_TRUST = re.compile(r"(?:InvalidCertificate|InvalidMessage|AlertReceived|PeerIncompatible)\(\s*(\w+)")  # of rustls
MISSING = {  # by the Hub's X-Error-Code
    "RepoNotFound": "no such repository, or none for this token",
    "RevisionNotFound": "no such revision",
}
_RESET = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")  # of the Hub's RateLimit: seconds until more is allowed
_BAD_KEY = re.compile(r'Path "(.*?)"[: ]', re.DOTALL)
_CHECK = "Check the credentials and the permissions."
_TO_LIST = "permission to list (s3:ListBucket, storage.objects.list, or the role Storage Blob Data Reader)"
_UNLISTED = "Allow that. Who may only read objects names the dataset file, or shards by a range with its end."


@contextmanager
def store_failures(address: str, *, lists: bool = False) -> Iterator[None]:
    """Turn what obstore says, which may hold secrets, into our errors; `lists`: said to one that wants to list."""
    from obstore import exceptions as theirs

    where = shown(address)
    try:
        yield
    except (theirs.NotFoundError, FileNotFoundError):
        raise FileNotFoundError(2, "no such object", where) from None
    except (theirs.AlreadyExistsError, theirs.PreconditionError):
        raise FileExistsError(17, "changed meanwhile, or there already", where) from None
    except (theirs.PermissionDeniedError, theirs.UnauthenticatedError) as error:
        status = _REFUSED[isinstance(error, theirs.PermissionDeniedError)]
        raise _failure(address, status, {}, str(error).encode(), lists=lists) from None
    except theirs.NotSupportedError:
        raise StoreFailed(where, "the store cannot do what is asked") from None
    except theirs.InvalidPathError as error:
        found = f"{key[1]}: " if (key := _BAD_KEY.search(str(error))) else ""
        raise StoreFailed(
            where, f"{found}a name with an empty part, or . or ..", expected="names without `//`, `/./` and `/../`",
            remedy="No tar can hold it, and no listing passes it: rename it, or name prefixes that it does not lie in.",
        ) from None  # fmt: skip
    except theirs.GenericError as error:
        if "Account must be specified" in str(error):
            raise InvalidRequest(where, "no account is named", expected="AZURE_STORAGE_ACCOUNT_NAME") from None
        if _KEYS_ASKED.search(str(error)):
            found = "no credentials in the environment, and this machine gives none"
            raise AccessRefused(where, found, expected="those of the cloud's own tools", remedy=_CHECK) from None
        raise _generic(address, str(error), lists=lists) from None
    except (theirs.BaseError, ValueError, TypeError):
        raise InvalidRequest(where, "no valid address or settings of a store") from None


def _generic(address: str, message: str, *, lists: bool) -> Exception:
    """Return what obstore means by an error of no kind: by words that hold no secret."""
    where, body = shown(address), message.encode()
    found = _STATUS.search(message)
    if found or code_in(body) == "AccessDenied":  # of objects that one request removes, each has a code, and no status
        status = int(found[1] or found[2]) if found else HTTPStatus.FORBIDDEN.value
        if status == HTTPStatus.NOT_FOUND:
            return StoreFailed(where, "there is no such bucket", remedy=_wrong_place(address, body))
        return _failure(address, status, {}, body, lists=lists)
    found = _SERVER.search(message)
    if why := _NO_TRUST.search(message):
        return _untrusted(where, found[1] if found else "the store", why[1])
    return PassingFailure(f"the store cannot be reached{f' ({found[1]})' if found else ''}")


def _untrusted(where: str, server: str, why: str) -> StoreFailed:
    found = f"the certificate of {server} is not trusted{f' ({why})' if why else ''}, or it speaks no TLS"
    remedy = "Name the file of the authority's certificate in AWS_CA_BUNDLE or SSL_CERT_FILE."
    return StoreFailed(where, found, expected="one of an authority that this machine knows", remedy=remedy)


@contextmanager
def writing(address: str) -> Iterator[None]:
    """Say of an object that cannot be written because something is not there, or in its way, what that is."""
    where = shown(address)
    try:
        yield
    except FileNotFoundError:
        bucket = parse_address(address)
        expected, remedy = "a bucket that is there", "Make it first, or check its name and the endpoint."
        raise OutputFailed(where, f"no such bucket: {bucket.host}", expected=expected, remedy=remedy) from None
    except FileExistsError:
        found = "the store refuses: something else is there, or is being done there"
        raise OutputFailed(where, found, remedy="Run the same command again.") from None


def _lost(address: str, error: Exception, url: str) -> PassingFailure | StoreFailed:
    """Return what is said of a request that got no answer, or a part of one; see `answering`."""
    from urllib3 import exceptions

    server, proxy = _server(url), ""
    if isinstance(error, exceptions.ProxyError):
        proxy = f"the proxy {_server(proxy_of(url) or '')}: "
        error = error.original_error
        if (refused := _TUNNEL.match(str(error))) and int(refused[1]) not in BUSY:
            return AccessRefused(shown(address), f"{proxy}it answers {refused[1]}", remedy=_PROXIES)
    if isinstance(error, exceptions.SSLError):
        said = next(filter(None, (getattr(one, "verify_message", "") for one in error.args)), "")
        return _untrusted(shown(address), server, said)
    if isinstance(error, exceptions.LocationValueError):
        return StoreFailed(shown(address), "no valid address")
    passing = {
        exceptions.NameResolutionError: "the name of the server is not known",
        exceptions.NewConnectionError: "the server refuses the connection",
        exceptions.ConnectTimeoutError: "no connection in time",
        exceptions.ReadTimeoutError: "no answer in time",
    }
    found = next((said for kind, said in passing.items() if isinstance(error, kind)), "the connection was lost")
    return PassingFailure(f"{proxy}{found}{'' if not server or server in address else f' ({server})'}")


def _server(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


@contextmanager
def answering(address: str, url: str = "") -> Iterator[None]:
    """Turn what urllib3 says of a request without an answer, or a whole one, into our errors.

    Args:
        address: What was asked for.
        url: Where the request went; empty: it had begun to answer.
    """
    from http.client import HTTPException

    from urllib3.connection import BaseSSLError
    from urllib3.exceptions import HTTPError, ProxyError, SSLError

    try:
        yield
    except HTTPError as error:
        raise _lost(address, error, url) from None
    except BaseSSLError as error:  # a connection without a pool raises it as it is, and what follows
        raise _lost(address, SSLError(error), url) from None
    except OSError as error:
        if not _TUNNEL.match(str(error)):
            raise
        raise _lost(address, ProxyError("", error), url) from None
    except (ValueError, ArithmeticError, HTTPException):
        raise StoreFailed(shown(address), "no valid address, or an answer that is no HTTP") from None


def refusal(address: str, method: str, status: int, headers: Mapping[str, str], body: bytes = b"") -> Exception:
    """Return what an answer of another status than was hoped for means.

    Args:
        address: What was asked for.
        method: How.
        status: That of the answer.
        headers: Those of the answer, by names in any case.
        body: The start of its body, in which stores name what is wrong.
    """
    where = shown(address)
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return FileNotFoundError(2, MISSING.get(headers.get("X-Error-Code", ""), "no such object"), where)
    if status in (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED):
        return FileExistsError(17, "changed meanwhile, or there already", where)
    return _failure(address, status, headers, body, f"permission for {method}")


def _failure(
    address: str, status: int, headers: Mapping[str, str], body: bytes, allowed: str = "", *, lists: bool = False
) -> Exception:
    """Return what an answer means that says of no object what it is: we may not, not now, or not there."""
    where, code = shown(address), code_in(body)
    found = f"the server answers {status} {code}".rstrip()
    if code in _EXPIRED:
        return AccessRefused(where, f"{found}: the credentials are valid no more", remedy=OF_KEYS[code])
    if status in _REFUSED or code in OF_KEYS:
        if is_hub(address):
            return closed(address)
        if lists and code in _DENIED:
            found += ": we may not list what lies there"
            return AccessRefused(where, found, expected=_TO_LIST, remedy=_UNLISTED)
        expected, remedy = ("", OF_KEYS[code]) if code in OF_KEYS else (allowed, _CHECK)
        return AccessRefused(where, f"{found}: not allowed, or not there", expected=expected, remedy=remedy)
    if status in BUSY or code == _SILENT:
        return busy(status, headers)
    elsewhere = code in _ELSEWHERE or str(status).startswith("3")  # a request to a store is signed for one server
    elsewhere &= parse_address(address).scheme in STORES
    remedy = _wrong_place(address, body, headers.get("x-amz-bucket-region", "")) if elsewhere else ""
    remedy = _PROXIES if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED else remedy
    return StoreFailed(where, found, expected="200 or 206", remedy=remedy)


def closed(address: str) -> AccessRefused:
    """Return the error that what fsspec or the Hub has is not for us."""
    if parse_address(address).scheme != "hf":
        return AccessRefused(shown(address), "not allowed", remedy=_CHECK)
    remedy = "Set HF_TOKEN to a token that may read it, or `hf auth login`."
    return AccessRefused(shown(address), "private, gated, or not there", expected="a token of who may", remedy=remedy)


def busy(status: int, headers: Mapping[str, str]) -> PassingFailure:
    """Return the failure that a busy server's answer is, with how long it asks us to wait."""
    wait = headers.get("Retry-After", "") or "".join(_RESET.findall(headers.get("RateLimit", ""))[:1])
    return PassingFailure(f"the server answers {status}", retry_after(wait), answered=True)


def _wrong_place(address: str, body: bytes, region: str = "") -> str:
    """Return the cure of an answer that the bucket lies elsewhere: its region, where the store says that."""
    found = _REGION.search(body)
    region = found[1].decode() if found else region
    name = f"{SOURCE * is_source(address)}AWS_REGION"
    return f"Set {name}={printable(region)}, where the bucket lies." if region else WRONG_PLACE


def code_in(body: bytes) -> str:
    """Return the name of an error in the XML of a store, such as `ExpiredToken`; a plain word holds no secret."""
    found = _CODE.search(body)
    return (found[1] or found[2]).decode() if found else ""


def retry_after(text: str) -> float | None:
    """Return the seconds that a server asks us to wait: a number, or a date."""
    from email.utils import parsedate_to_datetime

    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None

"""What libraries and servers say that went wrong, as errors of ours.

None of their own messages is shown or chained: they hold signed addresses, keys and passwords (measured: decision
017). So each call is made where the address is known, and named by that.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from shardtool.errors import AccessRefused, InvalidRequest, OutputFailed, StoreFailed
from shardtool.storage.remote.address import parse_address, shown
from shardtool.storage.remote.network import proxy_of
from shardtool.storage.remote.retry import PassingFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BUSY = (408, 425, 429, 500, 502, 503, 504)
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
WRONG_PLACE = "Is it the region, or the endpoint, of the bucket?"
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_ELSEWHERE = ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect")
_CODE = re.compile(rb"<Code>([A-Za-z]{1,60})</Code>")
# Where a machine of a cloud is asked for keys: the last place in which they are looked for.
_KEYS_ASKED = re.compile(r"token request|/latest/(?:api/token|meta-data)|computeMetadata")
_SERVER = re.compile(r"https?://([A-Za-z0-9.-]+(?::\d+)?)[/?)]")
_NO_TRUST = re.compile(r"(?:InvalidCertificate|InvalidMessage|AlertReceived|PeerIncompatible)\(\s*(\w+)")  # of rustls
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
    except (theirs.PermissionDeniedError, theirs.UnauthenticatedError):
        raise _refused(where, "the store does not allow it", lists=lists) from None
    except theirs.NotSupportedError:
        raise StoreFailed(where, "the store cannot do what is asked") from None
    except theirs.InvalidPathError as error:
        found = f"{key[1]}: " if (key := _BAD_KEY.search(str(error))) else ""
        raise StoreFailed(
            where, f"{found}a name with an empty part, or . or ..", expected="names without `//`, `/./` and `/../`",
            remedy="No tar can hold it, and no listing passes it: rename it, or name prefixes that it does not lie in.",
        ) from None  # fmt: skip
    except theirs.GenericError as error:
        if _KEYS_ASKED.search(str(error)):
            raise _no_keys(where) from None
        raise _generic(where, str(error), lists=lists) from None
    except (theirs.BaseError, ValueError, TypeError):
        raise InvalidRequest(where, "no valid address or settings of a store") from None


def _no_keys(where: str) -> AccessRefused:
    found = "no credentials in the environment, and this machine gives none"
    return AccessRefused(where, found, expected="those of the cloud's own tools", remedy=_CHECK)


def _refused(where: str, said: str, *, lists: bool) -> AccessRefused:
    if lists:
        return AccessRefused(where, f"{said}: we may not list what lies there", expected=_TO_LIST, remedy=_UNLISTED)
    return AccessRefused(where, said, remedy=_CHECK)


def _generic(where: str, message: str, *, lists: bool) -> PassingFailure | StoreFailed:
    """Return what obstore means by an error of no kind: by words that hold no secret."""
    if found := re.search(r"status(?: code)?:? (\d{3})|\b(\d{3}) [A-Z][a-z]+", message):
        status = int(found[1] or found[2])
        if status in BUSY:
            return PassingFailure(f"the store answers {status}", answered=True)
        code = _code_in(message.encode())
        if code in _EXPIRED:
            return _expired(where, status, code)
        said = f"the store answers {status} {code}".rstrip()
        if status in _REFUSED:
            return _refused(where, said, lists=lists)
        what = "there is no such bucket" if status == HTTPStatus.NOT_FOUND else said
        return StoreFailed(where, what, remedy=WRONG_PLACE)
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
    from urllib3.connection import BaseSSLError
    from urllib3.exceptions import HTTPError, SSLError

    try:
        yield
    except HTTPError as error:
        raise _lost(address, error, url) from None
    except BaseSSLError as error:  # a connection without a pool raises it as it is
        raise _lost(address, SSLError(error), url) from None
    except (ValueError, ArithmeticError, HTTPException):
        raise StoreFailed(shown(address), "no valid address, or an answer that is no HTTP") from None


class Answer(Protocol):
    """What a server has answered."""

    @property
    def status(self) -> int:
        """Its status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers, by names in any case."""


def refusal(address: str, method: str, answer: Answer, body: bytes = b"") -> Exception:
    """Return what an answer of another status than was hoped for means.

    Args:
        address: What was asked for.
        method: How.
        answer: The answer.
        body: The start of its body, in which stores name what is wrong.
    """
    status, where = answer.status, shown(address)
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return FileNotFoundError(2, "no such object", where)
    if status in (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED):
        return FileExistsError(17, "changed meanwhile, or there already", where)
    code = _code_in(body)
    said = f" {code}" if code else ""
    if code in _EXPIRED:
        return _expired(where, status, code)
    if status in _REFUSED:
        found = f"the server answers {status}{said}: not allowed, or not there"
        return AccessRefused(where, found, expected=f"permission for {method}", remedy=_CHECK)
    if status in BUSY:
        wait_s = retry_after(answer.headers.get("Retry-After", ""))
        return PassingFailure(f"the server answers {status}", wait_s, answered=True)
    remedy = WRONG_PLACE if code in _ELSEWHERE else ""
    return StoreFailed(where, f"the server answers {status}{said}", expected="200 or 206", remedy=remedy)


def _expired(where: str, status: int, code: str) -> AccessRefused:
    found = f"the store answers {status} {code}: the credentials are valid no more"
    return AccessRefused(where, found, remedy="Get new ones, then run the same command again.")


def _code_in(body: bytes) -> str:
    """Return the name of an error in the XML of a store, such as `ExpiredToken`; a plain word holds no secret."""
    found = _CODE.search(body)
    return found[1].decode() if found else ""


def retry_after(text: str) -> float | None:
    """Return the seconds that a server asks us to wait: a number, or a date."""
    from email.utils import parsedate_to_datetime

    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None

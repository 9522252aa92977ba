"""Convert failures of obstore, urllib3 and servers to errors of this package.

Messages of libraries are not shown or chained, because they contain signed URLs, keys and passwords
(docs/decisions/017-remote-stores.md). Each call is wrapped where its address is known, and the error names that
address.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shardtool.errors import AccessRefused, InvalidRequest, OutputFailed, StoreFailed, printable
from shardtool.storage.remote.address import (
    SOURCE_PREFIX,
    STORES,
    display_address,
    is_huggingface,
    is_source_address,
    parse_address,
)
from shardtool.storage.remote.network import proxy_for
from shardtool.storage.remote.retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


BUSY_STATUSES = (408, 425, 429, 500, 502, 503, 504)


_CLIENT_TIMEOUT_CODE = "RequestTimeout"  # of S3, with the status 400: we were silent for too long


_DENIED_STATUSES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


WRONG_REGION_ADVICE = "Is it the region, or the endpoint, of the bucket?"


_EXPIRED_CODES = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")


_WRONG_REGION_CODES = ("", "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError",
              "IllegalLocationConstraintException", "PermanentRedirect")  # fmt: skip


_ERROR_CODE = re.compile(rb"<Code>([A-Za-z]{1,60})</Code>|\(code: ([A-Za-z]{1,60})\)")  # the latter is obstore's


_STATUS_TEXT = re.compile(r"(?:status(?: code)?|\(code):? (\d{3})|\b(\d{3}) [A-Z][a-z]+")  # in what obstore says


_REGION_ELEMENT = re.compile(rb"<Region>([a-z0-9-]{1,40})</Region>")


_DENIED_CODES = ("", "AccessDenied", "AuthorizationPermissionMismatch")


CLOCK_ADVICE = "Set the clock of this machine, and have it kept right (NTP)."


CREDENTIAL_ERRORS = {  # what stores call it that credentials are none of theirs, or no more, and its cure
    **dict.fromkeys(_EXPIRED_CODES, "Get new ones, then run the same command again."),
    "AuthenticationFailed": f"Name the key or token of this very account. {CLOCK_ADVICE}",
    "InvalidAccessKeyId": "Name a key id that this server knows: is it the endpoint of these keys?",
    "InvalidToken": "Set AWS_SESSION_TOKEN to the token that belongs to the key, or unset it.",
    "RequestTimeTooSkewed": CLOCK_ADVICE,
    "SignatureDoesNotMatch": "Name the secret key that belongs to the key id.",
}


# Where a machine of a cloud is asked for keys: the last place in which they are looked for.
_CREDENTIAL_REQUEST = re.compile(r"token request|/latest/(?:api/token|meta-data)|computeMetadata")


_TUNNEL_ERROR = re.compile(r"Tunnel connection failed: (\d{3})")  # so says http.client of a proxy


_PROXY_ADVICE = "HTTPS_PROXY takes http://USER:PASSWORD@HOST:PORT, and NO_PROXY what goes without; as HTTP_PROXY does."


_SERVER_URL = re.compile(r"https?://([A-Za-z0-9.-]+(?::\d+)?)[/?)]")


_UNTRUSTED_CERTIFICATE = re.compile(
    r"(?:InvalidCertificate|InvalidMessage|AlertReceived|PeerIncompatible)\(\s*(\w+)"
)  # of rustls


HUGGINGFACE_MISSING = {  # by the Hub's X-Error-Code
    "RepoNotFound": "no such repository, or none for this token",
    "RevisionNotFound": "no such revision",
}


_RATE_LIMIT_RESET = re.compile(
    r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)"
)  # of the Hub's RateLimit: seconds until more is allowed


_INVALID_PATH = re.compile(r'Path "(.*?)"[: ]', re.DOTALL)


_CREDENTIALS_ADVICE = "Check the credentials and the permissions."


_LIST_PERMISSION = "permission to list (s3:ListBucket, storage.objects.list, or the role Storage Blob Data Reader)"


_LIST_ADVICE = "Allow that. Who may only read objects names the dataset file, or shards by a range with its end."


@contextmanager
def obstore_errors(address: str, *, lists: bool = False) -> Iterator[None]:
    """Turn what obstore says, which may hold secrets, into our errors; `lists`: said to one that wants to list."""
    from obstore import exceptions as theirs

    where = display_address(address)
    try:
        yield
    except (theirs.NotFoundError, FileNotFoundError):
        raise FileNotFoundError(2, "no such object", where) from None
    except (theirs.AlreadyExistsError, theirs.PreconditionError):
        raise FileExistsError(17, "changed meanwhile, or there already", where) from None
    except (theirs.PermissionDeniedError, theirs.UnauthenticatedError) as error:
        status = _DENIED_STATUSES[isinstance(error, theirs.PermissionDeniedError)]
        raise _response_error(address, status, {}, str(error).encode(), lists=lists) from None
    except theirs.NotSupportedError:
        raise StoreFailed(where, "the store cannot do what is asked") from None
    except theirs.InvalidPathError as error:
        found = f"{key[1]}: " if (key := _INVALID_PATH.search(str(error))) else ""
        raise StoreFailed(
            where, f"{found}a name with an empty part, or . or ..", expected="names without `//`, `/./` and `/../`",
            remedy="No tar can hold it, and no listing passes it: rename it, or name prefixes that it does not lie in.",
        ) from None  # fmt: skip
    except theirs.GenericError as error:
        if "Account must be specified" in str(error):
            raise InvalidRequest(where, "no account is named", expected="AZURE_STORAGE_ACCOUNT_NAME") from None
        if _CREDENTIAL_REQUEST.search(str(error)):
            found = "no credentials in the environment, and this machine gives none"
            raise AccessRefused(
                where, found, expected="those of the cloud's own tools", remedy=_CREDENTIALS_ADVICE
            ) from None
        raise _generic_error(address, str(error), lists=lists) from None
    except (theirs.BaseError, ValueError, TypeError):
        raise InvalidRequest(where, "no valid address or settings of a store") from None


def _generic_error(address: str, message: str, *, lists: bool) -> Exception:
    """Return what obstore means by an error of no kind: by words that hold no secret."""
    where, body = display_address(address), message.encode()
    found = _STATUS_TEXT.search(message)
    if (
        found or error_code(body) == "AccessDenied"
    ):  # of objects that one request removes, each has a code, and no status
        status = int(found[1] or found[2]) if found else HTTPStatus.FORBIDDEN.value
        if status == HTTPStatus.NOT_FOUND:
            return StoreFailed(where, "there is no such bucket", remedy=_wrong_region_advice(address, body))
        return _response_error(address, status, {}, body, lists=lists)
    found = _SERVER_URL.search(message)
    if why := _UNTRUSTED_CERTIFICATE.search(message):
        return _untrusted_error(where, found[1] if found else "the store", why[1])
    return TransientError(f"the store cannot be reached{f' ({found[1]})' if found else ''}")


def _untrusted_error(where: str, server: str, why: str) -> StoreFailed:
    found = f"the certificate of {server} is not trusted{f' ({why})' if why else ''}, or it speaks no TLS"
    remedy = "Name the file of the authority's certificate in AWS_CA_BUNDLE or SSL_CERT_FILE."
    return StoreFailed(where, found, expected="one of an authority that this machine knows", remedy=remedy)


@contextmanager
def write_conflicts(address: str) -> Iterator[None]:
    """Say of an object that cannot be written because something is not there, or in its way, what that is."""
    where = display_address(address)
    try:
        yield
    except FileNotFoundError:
        bucket = parse_address(address)
        expected, remedy = "a bucket that is there", "Make it first, or check its name and the endpoint."
        raise OutputFailed(where, f"no such bucket: {bucket.host}", expected=expected, remedy=remedy) from None
    except FileExistsError:
        found = "the store refuses: something else is there, or is being done there"
        raise OutputFailed(where, found, remedy="Run the same command again.") from None


def _connection_error(address: str, error: Exception, url: str) -> TransientError | StoreFailed:
    """Return what is said of a request that got no answer, or a part of one; see `urllib3_errors`."""
    from urllib3 import exceptions

    server, proxy = _server_name(url), ""
    if isinstance(error, exceptions.ProxyError):
        proxy = f"the proxy {_server_name(proxy_for(url) or '')}: "
        error = error.original_error
        if (refused := _TUNNEL_ERROR.match(str(error))) and int(refused[1]) not in BUSY_STATUSES:
            return AccessRefused(display_address(address), f"{proxy}it answers {refused[1]}", remedy=_PROXY_ADVICE)
    if isinstance(error, exceptions.SSLError):
        said = next(filter(None, (getattr(one, "verify_message", "") for one in error.args)), "")
        return _untrusted_error(display_address(address), server, said)
    if isinstance(error, exceptions.LocationValueError):
        return StoreFailed(display_address(address), "no valid address")
    passing = {
        exceptions.NameResolutionError: "the name of the server is not known",
        exceptions.NewConnectionError: "the server refuses the connection",
        exceptions.ConnectTimeoutError: "no connection in time",
        exceptions.ReadTimeoutError: "no answer in time",
    }
    found = next((said for kind, said in passing.items() if isinstance(error, kind)), "the connection was lost")
    return TransientError(f"{proxy}{found}{'' if not server or server in address else f' ({server})'}")


def _server_name(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


@contextmanager
def urllib3_errors(address: str, url: str = "") -> Iterator[None]:
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
        raise _connection_error(address, error, url) from None
    except BaseSSLError as error:  # a connection without a pool raises it as it is, and what follows
        raise _connection_error(address, SSLError(error), url) from None
    except OSError as error:
        if not _TUNNEL_ERROR.match(str(error)):
            raise
        raise _connection_error(address, ProxyError("", error), url) from None
    except (ValueError, ArithmeticError, HTTPException):
        raise StoreFailed(display_address(address), "no valid address, or an answer that is no HTTP") from None


def status_error(address: str, method: str, status: int, headers: Mapping[str, str], body: bytes = b"") -> Exception:
    """Return what an answer of another status than was hoped for means.

    Args:
        address: What was asked for.
        method: How.
        status: That of the answer.
        headers: Those of the answer, by names in any case.
        body: The start of its body, in which stores name what is wrong.
    """
    where = display_address(address)
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return FileNotFoundError(2, HUGGINGFACE_MISSING.get(headers.get("X-Error-Code", ""), "no such object"), where)
    if status in (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED):
        return FileExistsError(17, "changed meanwhile, or there already", where)
    return _response_error(address, status, headers, body, f"permission for {method}")


def _response_error(
    address: str, status: int, headers: Mapping[str, str], body: bytes, allowed: str = "", *, lists: bool = False
) -> Exception:
    """Return what an answer means that says of no object what it is: we may not, not now, or not there."""
    where, code = display_address(address), error_code(body)
    found = f"the server answers {status} {code}".rstrip()
    if code in _EXPIRED_CODES:
        return AccessRefused(where, f"{found}: the credentials are valid no more", remedy=CREDENTIAL_ERRORS[code])
    if status in _DENIED_STATUSES or code in CREDENTIAL_ERRORS:
        if is_huggingface(address):
            return private_error(address)
        if lists and code in _DENIED_CODES:
            found += ": we may not list what lies there"
            return AccessRefused(where, found, expected=_LIST_PERMISSION, remedy=_LIST_ADVICE)
        expected, remedy = (
            ("", CREDENTIAL_ERRORS[code]) if code in CREDENTIAL_ERRORS else (allowed, _CREDENTIALS_ADVICE)
        )
        return AccessRefused(where, f"{found}: not allowed, or not there", expected=expected, remedy=remedy)
    if status in BUSY_STATUSES or code == _CLIENT_TIMEOUT_CODE:
        return busy_error(status, headers)
    elsewhere = code in _WRONG_REGION_CODES or str(status).startswith(
        "3"
    )  # a request to a store is signed for one server
    elsewhere &= parse_address(address).scheme in STORES
    remedy = _wrong_region_advice(address, body, headers.get("x-amz-bucket-region", "")) if elsewhere else ""
    remedy = _PROXY_ADVICE if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED else remedy
    return StoreFailed(where, found, expected="200 or 206", remedy=remedy)


def private_error(address: str) -> AccessRefused:
    """Return the error that what fsspec or the Hub has is not for us."""
    if parse_address(address).scheme != "hf":
        return AccessRefused(display_address(address), "not allowed", remedy=_CREDENTIALS_ADVICE)
    remedy = "Set HF_TOKEN to a token that may read it, or `hf auth login`."
    return AccessRefused(
        display_address(address), "private, gated, or not there", expected="a token of who may", remedy=remedy
    )


def busy_error(status: int, headers: Mapping[str, str]) -> TransientError:
    """Return the failure that a busy server's answer is, with how long it asks us to wait."""
    wait = headers.get("Retry-After", "") or "".join(_RATE_LIMIT_RESET.findall(headers.get("RateLimit", ""))[:1])
    return TransientError(f"the server answers {status}", retry_after(wait), answered=True)


def _wrong_region_advice(address: str, body: bytes, region: str = "") -> str:
    """Return the cure of an answer that the bucket lies elsewhere: its region, where the store says that."""
    found = _REGION_ELEMENT.search(body)
    region = found[1].decode() if found else region
    name = f"{SOURCE_PREFIX * is_source_address(address)}AWS_REGION"
    return f"Set {name}={printable(region)}, where the bucket lies." if region else WRONG_REGION_ADVICE


def error_code(body: bytes) -> str:
    """Return the name of an error in the XML of a store, such as `ExpiredToken`; a plain word holds no secret."""
    found = _ERROR_CODE.search(body)
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

"""Convert errors from obstore, urllib3 and servers to errors of shardtool.

Messages of these libraries are neither shown nor chained, because they can contain signed URLs, keys and passwords
(docs/decisions/017-remote-stores.md).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
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

BUSY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_CLIENT_TIMEOUT_CODE = "RequestTimeout"  # S3 sends this code with status 400 if a client sends nothing for some time
DENIED_STATUSES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
WRONG_REGION_ADVICE = "Check the name, the region and the endpoint of the bucket."
_EXPIRED_CODES = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_WRONG_REGION_CODES = ("", "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError",
              "IllegalLocationConstraintException", "PermanentRedirect")  # fmt: skip


# matches the XML from a store, or a message from obstore
_ERROR_CODE = re.compile(rb"<Code>([A-Za-z]{1,60})</Code>|\(code: ([A-Za-z]{1,60})\)")
_STATUS_TEXT = re.compile(r"(?:status(?: code)?|\(code):? (\d{3})|\b(\d{3}) [A-Z][a-z]+")
_REGION_ELEMENT = re.compile(rb"<Region>([a-z0-9-]{1,40})</Region>")
_DENIED_CODES = ("", "AccessDenied", "AuthorizationPermissionMismatch")
CLOCK_ADVICE = "Set the clock of this machine (NTP)."
ADVICE_BY_CODE = {
    **dict.fromkeys(_EXPIRED_CODES, "Get new credentials, then run the same command again."),
    "AuthenticationFailed": f"Use the key or token of this account. {CLOCK_ADVICE}",
    "InvalidAccessKeyId": "Use a key id that this server knows, and check the endpoint.",
    "InvalidToken": "Set AWS_SESSION_TOKEN to the token that belongs to the key, or unset it.",
    "RequestTimeTooSkewed": CLOCK_ADVICE,
    "SignatureDoesNotMatch": "Use the secret key that belongs to the key id.",
}


_CREDENTIAL_PROBLEM_PATTERNS = {
    # matches requests to a cloud machine's metadata service, where libraries look last for credentials
    "no credentials in the environment or from this machine":
        re.compile(r"token request|/latest/(?:api/token|meta-data)|computeMetadata"),
    "the key, key file or token cannot be read":
        re.compile(r"service account file|reading pem file|Invalid RSA key|Invalid Access Key|SAS query pair"),
}  # fmt: skip
_TUNNEL_ERROR = re.compile(r"Tunnel connection failed: (\d{3})")
_PROXY_ADVICE = (
    "Set HTTPS_PROXY or HTTP_PROXY to http://USER:PASSWORD@HOST:PORT, or list servers to reach directly in NO_PROXY."
)


_SERVER_URL = re.compile(r"https?://([A-Za-z0-9.-]+(?::\d+)?)[/?)]")


_UNTRUSTED_CERTIFICATE = re.compile(r"(?:InvalidCertificate|InvalidMessage|AlertReceived|PeerIncompatible)\(\s*(\w+)")
HUGGINGFACE_MISSING = {  # maps the Hub's X-Error-Code header to an error message
    "RepoNotFound": "no such repository, or no access with this token",
    "RevisionNotFound": "no such revision",
}


_RATE_LIMIT_RESET = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
_INVALID_PATH = re.compile(r'Path "(.*?)"[: ]', re.DOTALL)
_CREDENTIALS_ADVICE = "Check the credentials and the permissions."
_LIST_PERMISSION = "permission to list (s3:ListBucket, storage.objects.list, or the role Storage Blob Data Reader)"
_LIST_ADVICE = "Grant it, or name the dataset file or a closed range of shards, which need no listing."


@contextmanager
def obstore_errors(address: str, *, is_listing: bool = False) -> Iterator[None]:
    """Convert exceptions from obstore to `FileNotFoundError`, `FileExistsError` or an error of shardtool."""
    from obstore import exceptions

    where = display_address(address)
    try:
        yield
    except (exceptions.NotFoundError, FileNotFoundError):
        raise FileNotFoundError(2, "no such object", where) from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise FileExistsError(17, "changed by another program, or already exists", where) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        status = DENIED_STATUSES[isinstance(error, exceptions.PermissionDeniedError)]
        raise _response_error(address, status, {}, str(error).encode(), is_listing=is_listing) from None
    except exceptions.NotSupportedError:
        raise StoreFailed(where, "the store does not support this request") from None
    except exceptions.InvalidPathError as error:
        name = f"{key[1]}: " if (key := _INVALID_PATH.search(str(error))) else ""
        raise StoreFailed(
            where, f"{name}a name with an empty, `.` or `..` component",
            expected="names without `//`, `/./` and `/../`",
            remedy="Such objects cannot be listed or packed: rename the object, or use prefixes that exclude it.",
        ) from None  # fmt: skip
    except exceptions.GenericError as error:
        if "Account must be specified" in str(error):
            raise InvalidRequest(where, "no account name", expected="AZURE_STORAGE_ACCOUNT_NAME") from None
        raise _generic_error(address, str(error), is_listing=is_listing) from None
    except (exceptions.BaseError, ValueError, TypeError):
        raise InvalidRequest(where, "invalid address or store settings") from None


def _generic_error(address: str, message: str, *, is_listing: bool) -> Exception:
    where, body = display_address(address), message.encode()
    if found := next((found for found, pattern in _CREDENTIAL_PROBLEM_PATTERNS.items() if pattern.search(message)), ""):
        expected = "the credentials of the cloud's own tools"
        return AccessRefused(where, found, expected=expected, remedy=_CREDENTIALS_ADVICE)
    match = _STATUS_TEXT.search(message)
    # If a request deletes many objects, the error for a single object contains a code but no status.
    if match or error_code(body) == "AccessDenied":
        status = int(match[1] or match[2]) if match else HTTPStatus.FORBIDDEN.value
        if status == HTTPStatus.NOT_FOUND:
            return StoreFailed(where, "no such bucket", remedy=_wrong_region_advice(address, body))
        return _response_error(address, status, {}, body, is_listing=is_listing)
    match = _SERVER_URL.search(message)
    if reason := _UNTRUSTED_CERTIFICATE.search(message):
        return _untrusted_error(where, match[1] if match else "the store", reason[1])
    return TransientError(f"the store cannot be reached{f' ({match[1]})' if match else ''}")


def _untrusted_error(where: str, server: str, reason: str) -> StoreFailed:
    detail = f" ({reason})" if reason else ""
    found = f"the certificate of {server} is not trusted{detail}, or the server does not use TLS"
    remedy = "Set AWS_CA_BUNDLE or SSL_CERT_FILE to the certificate file of the authority."
    return StoreFailed(where, found, expected="a certificate of an authority that this machine trusts", remedy=remedy)


@contextmanager
def write_errors(address: str) -> Iterator[None]:
    """Raise `OutputFailed` if the bucket is missing, or if a write in the `with` block conflicts with another write."""
    where = display_address(address)
    try:
        yield
    except FileNotFoundError:
        bucket = parse_address(address)
        expected, remedy = "an existing bucket", "Create the bucket, or check its name and the endpoint."
        raise OutputFailed(where, f"no such bucket: {bucket.host}", expected=expected, remedy=remedy) from None
    except FileExistsError:
        found = "the store reports a conflict: another object exists, or another write is in progress"
        raise OutputFailed(where, found, remedy="Run the same command again.") from None


def _connection_error(address: str, error: Exception, url: str) -> TransientError | StoreFailed:
    from urllib3 import exceptions

    server, proxy = _server_name(url), ""
    if isinstance(error, exceptions.ProxyError):
        proxy = f"the proxy {_server_name(proxy_for(url) or '')}: "
        error = error.original_error
        if (refusal := _TUNNEL_ERROR.match(str(error))) and int(refusal[1]) not in BUSY_STATUSES:
            return AccessRefused(display_address(address), f"{proxy}status {refusal[1]}", remedy=_PROXY_ADVICE)
    if isinstance(error, exceptions.SSLError):
        reason = next(filter(None, (getattr(arg, "verify_message", "") for arg in error.args)), "")
        return _untrusted_error(display_address(address), server, reason)
    if isinstance(error, exceptions.LocationValueError):
        return StoreFailed(display_address(address), "invalid address")
    messages = {
        exceptions.NameResolutionError: "the name of the server cannot be resolved",
        exceptions.NewConnectionError: "the server refused the connection",
        exceptions.ConnectTimeoutError: "the connection timed out",
        exceptions.ReadTimeoutError: "the response timed out",
    }
    found = next((text for kind, text in messages.items() if isinstance(error, kind)), "the connection was lost")
    return TransientError(f"{proxy}{found}{'' if not server or server in address else f' ({server})'}")


def _server_name(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


@contextmanager
def urllib3_errors(address: str, url: str = "") -> Iterator[None]:
    """Convert exceptions from urllib3 to errors of shardtool.

    `url` is the requested URL, or "" while a response is read. Error messages contain the server of
    `url` and, if the proxy failed, the proxy.
    """
    from http.client import HTTPException

    from urllib3.connection import BaseSSLError
    from urllib3.exceptions import HTTPError, ProxyError, SSLError

    try:
        yield
    except HTTPError as error:
        raise _connection_error(address, error, url) from None
    except BaseSSLError as error:
        raise _connection_error(address, SSLError(error), url) from None
    except OSError as error:
        if not _TUNNEL_ERROR.match(str(error)):
            raise
        raise _connection_error(address, ProxyError("", error), url) from None
    except (ValueError, ArithmeticError, HTTPException):
        raise StoreFailed(display_address(address), "invalid address, or the response is not valid HTTP") from None


def status_error(address: str, method: str, status: int, headers: Mapping[str, str], body: bytes = b"") -> Exception:
    """Return the error for a response with an unexpected status. `body` is the start of the response body."""
    where = display_address(address)
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return FileNotFoundError(2, HUGGINGFACE_MISSING.get(headers.get("X-Error-Code", ""), "no such object"), where)
    if status in (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED):
        return FileExistsError(17, "changed by another program, or already exists", where)
    return _response_error(address, status, headers, body, f"permission for {method}")


def _response_error(
    address: str, status: int, headers: Mapping[str, str], body: bytes, permission: str = "",
    *, is_listing: bool = False,
) -> Exception:  # fmt: skip
    where, code = display_address(address), error_code(body)
    found = f"the server returned {status} {code}".rstrip()
    if code in _EXPIRED_CODES:
        return AccessRefused(where, f"{found}: the credentials have expired", remedy=ADVICE_BY_CODE[code])
    if status in DENIED_STATUSES or code in ADVICE_BY_CODE:
        if is_huggingface(address):
            return private_error(address)
        if is_listing and code in _DENIED_CODES:
            found += ": listing is not allowed"
            return AccessRefused(where, found, expected=_LIST_PERMISSION, remedy=_LIST_ADVICE)
        expected = "" if code in ADVICE_BY_CODE else permission
        remedy = ADVICE_BY_CODE.get(code, _CREDENTIALS_ADVICE)
        return AccessRefused(where, f"{found}: access denied, or no such object", expected=expected, remedy=remedy)
    if status in BUSY_STATUSES or code == _CLIENT_TIMEOUT_CODE:
        return busy_error(status, headers)
    # A signature is valid for only one server, so a redirect from a store is an error.
    is_wrong_server = status < HTTPStatus.INTERNAL_SERVER_ERROR and parse_address(address).scheme in STORES
    is_wrong_server &= code in _WRONG_REGION_CODES or str(status).startswith("3")
    remedy = _wrong_region_advice(address, body, headers.get("x-amz-bucket-region", "")) if is_wrong_server else ""
    remedy = _PROXY_ADVICE if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED else remedy
    return StoreFailed(where, found, expected="status 200 or 206", remedy=remedy)


def private_error(address: str) -> AccessRefused:
    """Return the error for a file that requires permission."""
    if parse_address(address).scheme != "hf":
        return AccessRefused(display_address(address), "access denied", remedy=_CREDENTIALS_ADVICE)
    found, expected = "private, gated, or does not exist", "a token with read access"
    remedy = "Set HF_TOKEN to a token with read access, or run `hf auth login`."
    return AccessRefused(display_address(address), found, expected=expected, remedy=remedy)


def busy_error(status: int, headers: Mapping[str, str]) -> TransientError:
    """Return the error for a temporarily busy server."""
    wait = headers.get("Retry-After", "") or "".join(_RATE_LIMIT_RESET.findall(headers.get("RateLimit", ""))[:1])
    return TransientError(f"the server returned {status}", retry_after(wait), has_response=True)


def _wrong_region_advice(address: str, body: bytes, region: str = "") -> str:
    match = _REGION_ELEMENT.search(body)
    region = match[1].decode() if match else region
    # environment variables for the store of a source have this prefix
    prefix = SOURCE_PREFIX if is_source_address(address) else ""
    return f"Set {prefix}AWS_REGION={printable(region)}, the region of the bucket." if region else WRONG_REGION_ADVICE


def error_code(body: bytes) -> str:
    """Return the error code in a store's response, such as `ExpiredToken`, or ""."""
    match = _ERROR_CODE.search(body)
    return (match[1] or match[2]).decode() if match else ""


def retry_after(text: str) -> float | None:
    """Return how many seconds a Retry-After header asks to wait, or None if it is invalid."""
    from email.utils import parsedate_to_datetime

    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None

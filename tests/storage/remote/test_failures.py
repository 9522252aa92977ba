"""Errors for responses of stores."""

from __future__ import annotations

import pytest

from shardtool.errors import AccessRefused, InvalidRequest, OutputFailed, StoreFailed
from shardtool.storage.remote.failures import obstore_errors, status_error, write_errors
from shardtool.storage.remote.retry import TransientError


def _error_for(status: int, code: str = "") -> Exception:
    body = f"<Error><Code>{code}</Code><Message>key AKIASECRET</Message></Error>".encode() if code else b""
    return status_error("s3://bucket/key", "PUT", status, {}, body)


@pytest.mark.parametrize(
    ("status", "code", "kind", "found"),
    [
        (400, "ExpiredToken", AccessRefused, "400 ExpiredToken: the credentials have expired"),
        (403, "RequestExpired", AccessRefused, "have expired"),
        (403, "SignatureDoesNotMatch", AccessRefused, "403 SignatureDoesNotMatch: access denied"),
        (401, "", AccessRefused, "401: access denied"),
        (400, "AuthorizationHeaderMalformed", StoreFailed, "Check the name, the region"),
        (400, "", StoreFailed, "returned 400"),
        (503, "SlowDown", TransientError, "503"),
        (400, "RequestTimeout", TransientError, "400"),
        (404, "NoSuchBucket", FileNotFoundError, "no such object"),
        (412, "PreconditionFailed", FileExistsError, "changed by another program"),
    ],
)
def test_status_error(status: int, code: str, kind: type[Exception], found: str) -> None:
    """A response becomes an error of the right class, with the store's error code and nothing else from the body."""
    error = _error_for(status, code)
    assert type(error) is kind
    assert found in str(error)
    assert "AKIASECRET" not in str(error)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("DeleteObjects request failed for key k: Access Denied (code: AccessDenied)", AccessRefused),
        ("Bulk delete request failed for key k: no permission (code: 403)", AccessRefused),
        ("Bulk delete request failed for key k: busy (code: 503)", TransientError),
        ("Error performing PUT http://h/k - Server returned non-2xx status code: 403 Forbidden", AccessRefused),
        ("Error performing PUT http://h/k - HTTP error: error sending request", TransientError),
        ("Account must be specified", InvalidRequest),
    ],
)
def test_obstore_errors(message: str, kind: type[Exception]) -> None:
    """A refusal is recognised in obstore's messages about one object or many."""
    from obstore.exceptions import GenericError

    with pytest.raises(kind), obstore_errors("az://c/k"):
        raise GenericError(message)


@pytest.mark.parametrize(
    ("status", "code"), [(400, "EntityTooLarge"), (400, "InvalidStorageClass"), (400, "NotImplemented"), (507, "")]
)
def test_no_region_advice_for_other_codes(status: int, code: str) -> None:
    """Errors that are unrelated to region and endpoint, such as a full store, get no advice about them."""
    found = f"the server returned {status} {code}".rstrip()
    assert str(_error_for(status, code)) == f"s3://bucket/key: {found}; expected status 200 or 206"


@pytest.mark.parametrize(("at", "name"), [("b", "Set AWS_REGION"), ("source=@b", "Set SHARDTOOL_SOURCE_AWS_REGION")])
def test_region_advice_names_the_variable(at: str, name: str) -> None:
    """The advice names the region and its variable, which differs for a source."""
    from obstore.exceptions import GenericError

    error = status_error(f"s3://{at}/k", "GET", 301, {"x-amz-bucket-region": "eu-1"})
    assert f"{name}=eu-1, the region of the bucket" in str(error)
    body = "<Error><Code>PermanentRedirect</Code><Region>eu-1</Region></Error>"
    with pytest.raises(StoreFailed, match=f"{name}=eu-1"), obstore_errors(f"s3://{at}/k"):
        raise GenericError(f"Server returned non-2xx status code: 301 Moved Permanently: {body}")


def test_write_errors() -> None:
    """If an object cannot be written because the bucket is missing, the error names the bucket."""
    with pytest.raises(OutputFailed, match="no such bucket: bucket"), write_errors("s3://bucket/key"):
        raise _error_for(404)
    with pytest.raises(OutputFailed, match="another object exists"), write_errors("s3://bucket/key"):
        raise _error_for(409)

"""Laws of what an answer of a store means."""

from __future__ import annotations

import pytest

from shardtool.errors import AccessRefused, InvalidRequest, OutputFailed, StoreFailed
from shardtool.storage.remote.failures import obstore_errors, status_error, write_conflicts
from shardtool.storage.remote.retry import TransientError


def _said(status: int, code: str = "") -> Exception:
    body = f"<Error><Code>{code}</Code><Message>key AKIASECRET</Message></Error>".encode() if code else b""
    return status_error("s3://bucket/key", "PUT", status, {}, body)


@pytest.mark.parametrize(
    ("status", "code", "kind", "found"),
    [
        (400, "ExpiredToken", AccessRefused, "400 ExpiredToken: the credentials are valid no more"),
        (403, "RequestExpired", AccessRefused, "valid no more"),
        (403, "SignatureDoesNotMatch", AccessRefused, "403 SignatureDoesNotMatch: not allowed"),
        (401, "", AccessRefused, "401: not allowed"),
        (400, "AuthorizationHeaderMalformed", StoreFailed, "Is it the region"),
        (400, "", StoreFailed, "answers 400"),
        (503, "SlowDown", TransientError, "503"),
        (400, "RequestTimeout", TransientError, "400"),
        (404, "NoSuchBucket", FileNotFoundError, "no such object"),
        (412, "PreconditionFailed", FileExistsError, "changed meanwhile"),
    ],
)
def test_answers(status: int, code: str, kind: type[Exception], found: str) -> None:
    """An answer becomes an error of its kind, with the store's own word, and with nothing else that it says."""
    error = _said(status, code)
    assert type(error) is kind
    assert found in str(error)
    assert "AKIASECRET" not in str(error)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("DeleteObjects request failed for key k: Access Denied (code: AccessDenied)", AccessRefused),
        ("Bulk delete request failed for key k: no permission (code: 403)", AccessRefused),
        ("Bulk delete request failed for key k: busy (code: 503)", TransientError),
        ("Error performing PUT http://h/k - Server returned non-2xx status code: 403 Forbidden", AccessRefused),
        ("Error performing PUT http://h/k - HTTP error: error sending request", TransientError),
        ("Account must be specified", InvalidRequest),
    ],
)
def test_what_obstore_says(said: str, kind: type[Exception]) -> None:
    """A refusal is known in what obstore says of one object and of many that are removed at once."""
    from obstore.exceptions import GenericError

    with pytest.raises(kind), obstore_errors("az://c/k"):
        raise GenericError(said)


@pytest.mark.parametrize("code", ["EntityTooLarge", "InvalidStorageClass", "NotImplemented"])
def test_no_wrong_cure(code: str) -> None:
    """What a store calls something else is no matter of the region, or of the endpoint."""
    assert str(_said(400, code)) == f"s3://bucket/key: the server answers 400 {code}; expected 200 or 206"


@pytest.mark.parametrize(("at", "name"), [("b", "Set AWS_REGION"), ("source=@b", "Set SHARDTOOL_SOURCE_AWS_REGION")])
def test_a_bucket_of_another_region(at: str, name: str) -> None:
    """The cure names the variable that says it: a source has its own."""
    from obstore.exceptions import GenericError

    error = status_error(f"s3://{at}/k", "GET", 301, {"x-amz-bucket-region": "eu-1"})
    assert f"{name}=eu-1, where the bucket lies" in str(error)
    body = "<Error><Code>PermanentRedirect</Code><Region>eu-1</Region></Error>"
    with pytest.raises(StoreFailed, match=f"{name}=eu-1"), obstore_errors(f"s3://{at}/k"):
        raise GenericError(f"Server returned non-2xx status code: 301 Moved Permanently: {body}")


def test_writing() -> None:
    """What is missing where something is written is the bucket, and it is named."""
    with pytest.raises(OutputFailed, match="no such bucket: bucket"), write_conflicts("s3://bucket/key"):
        raise _said(404)
    with pytest.raises(OutputFailed, match="something else is there"), write_conflicts("s3://bucket/key"):
        raise _said(409)

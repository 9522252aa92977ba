"""Signed headers for S3."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import pytest

from shardtool.storage.remote.http import sign_headers, sign_put

_KEYS = {
    "access_key_id": "AKIAIOSFODNN7EXAMPLE",
    "secret_access_key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "token": None,
}
_THEN = datetime(2013, 5, 24, tzinfo=timezone.utc)
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_HOST = "https://examplebucket.s3.amazonaws.com"


@pytest.mark.parametrize(
    ("method", "path", "headers", "names", "signature"),
    [
        (
            "GET", "/test.txt", {"Range": "bytes=0-9", "x-amz-content-sha256": _EMPTY},
            "host;range;x-amz-content-sha256;x-amz-date",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT", "/test$file.text",
            {
                "Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY",
                "x-amz-content-sha256": "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
            },
            "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET", "/?lifecycle", {"x-amz-content-sha256": _EMPTY}, "host;x-amz-content-sha256;x-amz-date",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET", "/?max-keys=2&prefix=J", {"x-amz-content-sha256": _EMPTY}, "host;x-amz-content-sha256;x-amz-date",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)  # fmt: skip
def test_examples_of_the_aws_documentation(
    method: str, path: str, headers: dict[str, str], names: str, signature: str
) -> None:
    """The examples in the AWS documentation get the documented signatures."""
    signed = sign_headers(method, _HOST + path, headers, _KEYS, "us-east-1", _THEN)
    assert signed["Authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        f"SignedHeaders={names},Signature={signature}"
    )
    assert signed.items() >= headers.items()
    assert signed["x-amz-date"] == "20130524T000000Z"


def test_default_port_is_not_signed() -> None:
    """The default port of a scheme is not signed, because clients omit it from `Host`."""
    assert sign_headers("GET", "https://h:443/k", {}, _KEYS, "us-east-1", _THEN) == sign_headers(
        "GET", "https://h/k", {}, _KEYS, "us-east-1", _THEN
    )
    ports = {
        sign_headers("GET", f"http://h{port}/k", {}, _KEYS, "us-east-1", _THEN)["Authorization"]
        for port in ("", ":443")
    }
    assert len(ports) == 2


def test_sign_put_uses_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sign_put` uses credentials, region and server of the environment; the URL contains no secret."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for name, value in {
        "SHARDTOOL_ENDPOINT": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "hidden",
        "AWS_SESSION_TOKEN": "passing", "AWS_REGION": "eu-north-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    url, headers = sign_put("s3://b/a b#ü.tar", {"x-amz-tagging": "a=b"})
    assert url == "http://127.0.0.1:9/b/a%20b%23%C3%BC.tar"
    assert headers["x-amz-security-token"] == "passing"
    assert re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=AKIA/[0-9]{8}/eu-north-1/s3/aws4_request,SignedHeaders=host;"
        r"x-amz-content-sha256;x-amz-date;x-amz-security-token;x-amz-tagging,Signature=[0-9a-f]{64}",
        headers["Authorization"],
    )
    assert "hidden" not in str(headers)

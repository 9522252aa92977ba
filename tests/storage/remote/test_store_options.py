"""Store options."""

from __future__ import annotations

import pytest

from shardtool.errors import InvalidRequest
from shardtool.storage.folders import open_folder
from shardtool.storage.remote.store_options import client_config, object_headers, put_arguments, use_store_options


@pytest.fixture(autouse=True)
def _no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDTOOL_STORE_OPTIONS", "")
    for name in (
        "SERVER_SIDE_ENCRYPTION",
        "SSE_KMS_KEY_ID",
        "SSE_BUCKET_KEY_ENABLED",
        "STORAGE_CLASS",
        "REQUEST_PAYER",
    ):
        monkeypatch.delenv(f"AWS_{name}", raising=False)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("storage_class=STANDARD_IA", "the key 'storage_class'"),
        ("sse", "sse="),
        ("", ""),
        ("sse=sse-c", "sse=sse-c"),
        ("storage-class=GLACIER", "immediate access"),
        ("storage-class=DEEP_ARCHIVE", "lifecycle rule"),
        ("access-tier=Archive", "access-tier=Archive"),
        ("tags=a", "NAME=VALUE"),
        ("tags=" + "&".join(f"n{number}=v" for number in range(11)), "at most ten"),
        ("sse-kms-key-id=a\tb", "the name of a key"),
        ("request-payer=true", "expected requester"),
    ],
)
def test_invalid_store_options(line: str, found: str) -> None:
    """The error for an unknown key lists the known ones, and for a value the valid ones; no option is set."""
    if not line:
        use_store_options([line])
        return
    with pytest.raises(InvalidRequest, match=found) as caught:
        use_store_options(["tags=a=b", line])
    if "the key" in found:
        assert "sse, sse-kms-key-id, sse-bucket-key, storage-class, access-tier, tags, request-payer" in str(
            caught.value
        )
    assert object_headers("s3://b/k") == {}


def test_aws_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS variables apply to uploads and to obstore's requests; `--store-option` overrides them."""
    for name, value in {
        "SERVER_SIDE_ENCRYPTION": "AES256", "STORAGE_CLASS": "ONEZONE_IA", "REQUEST_PAYER": "True",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    use_store_options(["sse=aws:kms", "sse-kms-key-id=alias/k", "sse-bucket-key=true"])
    assert object_headers("s3://b/k") == {
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": "alias/k",
        "x-amz-server-side-encryption-bucket-key-enabled": "true",
        "x-amz-storage-class": "ONEZONE_IA",
        "x-amz-request-payer": "requester",
    }
    assert client_config("s3") == {
        "server_side_encryption": "aws:kms", "sse_kms_key_id": "alias/k", "sse_bucket_key_enabled": "true",
        "request_payer": "requester",
    }  # fmt: skip
    assert client_config("gs") == client_config("az") == {}
    monkeypatch.setenv("AWS_STORAGE_CLASS", "GLACIER")
    with pytest.raises(InvalidRequest, match="AWS_STORAGE_CLASS: storage-class=GLACIER"):
        open_folder("s3://b/p")
    assert client_config("s3")["sse_kms_key_id"] == "alias/k"  # reading needs no storage class


def test_kms_key_implies_kms_encryption() -> None:
    """A KMS key alone selects KMS encryption; with AES256 it is refused."""
    use_store_options(["sse-kms-key-id=k"])
    assert object_headers("s3://b/k")["x-amz-server-side-encryption"] == "aws:kms"
    use_store_options(["sse-kms-key-id=k", "sse=AES256"])
    with pytest.raises(InvalidRequest, match="a KMS key, and sse=AES256"):
        open_folder("s3://b/p")


def test_tags_are_encoded_once() -> None:
    """Tags are given URL-encoded and sent the same way. Locks get tags, but no storage class."""
    use_store_options(["tags=team=a%26b c&größe=&x=y+z", "storage-class=STANDARD_IA"])
    assert object_headers("s3://b/k")["x-amz-tagging"] == "team=a%26b%20c&gr%C3%B6%C3%9Fe=&x=y%20z"
    tags = {"team": "a&b c", "größe": "", "x": "y z"}
    assert put_arguments("s3://b/k", use_storage_class=False) == {"tags": tags}
    assert put_arguments("s3://b/k", use_storage_class=True) == {
        "tags": tags,
        "attributes": {"Storage-Class": "STANDARD_IA"},
    }


@pytest.mark.parametrize(
    ("line", "address", "found"),
    [
        ("sse=AES256", "gs://b/p", "not supported by gs://; expected .*default storage class"),
        ("tags=a=b", "gs://b/p", "not supported by gs://"),
        ("storage-class=STANDARD_IA", "az://c/p", "expected access-tier, tags"),
        ("access-tier=Cool", "s3://b/p", "expected sse, "),
    ],
)
def test_unsupported_options_are_refused(line: str, address: str, found: str) -> None:
    """An option that the store does not support is refused before anything is written."""
    use_store_options([line])
    with pytest.raises(InvalidRequest, match=found):
        open_folder(address)


def test_request_payer_is_ignored_for_other_destinations() -> None:
    """`request-payer` is for the source in S3, so it is accepted for any destination."""
    use_store_options(["request-payer=requester"])
    for address in ("gs://b/p", "az://c/p"):
        assert "requester" not in object_headers(address).values()


def test_request_payer_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_REQUEST_PAYER can be false, as for other tools; other values are refused."""
    monkeypatch.setenv("AWS_REQUEST_PAYER", "false")
    assert client_config("s3") == {}
    monkeypatch.setenv("AWS_REQUEST_PAYER", "perhaps")
    with pytest.raises(InvalidRequest, match=r"AWS_REQUEST_PAYER: .*expected requester"):
        client_config("s3")

"""Laws of what stores are told of objects."""

from __future__ import annotations

import pytest

from shardtool.errors import InvalidRequest
from shardtool.storage.folders import open_folder
from shardtool.storage.remote.store_options import client_config, object_headers, put_arguments, use_store_options


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("storage-class=GLACIER", "read at once"),
        ("storage-class=DEEP_ARCHIVE", "lifecycle rule"),
        ("access-tier=Archive", "access-tier=Archive"),
        ("tags=a", "NAME=VALUE"),
        ("tags=" + "&".join(f"n{number}=v" for number in range(11)), "ten at most"),
        ("sse-kms-key-id=a\tb", "the name of a key"),
        ("request-payer=true", "expected requester"),
    ],
)
def test_what_no_store_takes(line: str, found: str) -> None:
    """A key that is not known is named beside those that are; a value beside what it may be; and nothing is taken."""
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


def test_variables_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of AWS mean the same for shards, which we upload, as for what its client writes; options win."""
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
    assert client_config("s3")["sse_kms_key_id"] == "alias/k"  # who only reads needs no class


def test_a_key_means_its_kind_of_encryption() -> None:
    """A KMS key is taken where it stands alone, and not beside an encryption that has none."""
    use_store_options(["sse-kms-key-id=k"])
    assert object_headers("s3://b/k")["x-amz-server-side-encryption"] == "aws:kms"
    use_store_options(["sse-kms-key-id=k", "sse=AES256"])
    with pytest.raises(InvalidRequest, match="a KMS key, and sse=AES256"):
        open_folder("s3://b/p")


def test_tags_are_encoded_once() -> None:
    """Tags are given as in a URL, and sent so, whatever is in them; a lock has them, and no class paid by the month."""
    use_store_options(["tags=team=a%26b c&größe=&x=y+z", "storage-class=STANDARD_IA"])
    assert object_headers("s3://b/k")["x-amz-tagging"] == "team=a%26b%20c&gr%C3%B6%C3%9Fe=&x=y%20z"
    tags = {"team": "a&b c", "größe": "", "x": "y z"}
    assert put_arguments("s3://b/k", lasting=False) == {"tags": tags}
    assert put_arguments("s3://b/k", lasting=True) == {"tags": tags, "attributes": {"Storage-Class": "STANDARD_IA"}}


@pytest.mark.parametrize(
    ("line", "address", "found"),
    [
        ("sse=AES256", "gs://b/p", "nothing that gs:// is told; expected its bucket.*default storage class"),
        ("tags=a=b", "gs://b/p", "nothing that gs:// is told"),
        ("storage-class=STANDARD_IA", "az://c/p", "expected access-tier, tags"),
        ("access-tier=Cool", "s3://b/p", "expected sse, "),
    ],
)
def test_what_this_store_is_not_told(line: str, address: str, found: str) -> None:
    """What a store cannot be told is refused, by its name and with what can be done, before anything is written."""
    use_store_options([line])
    with pytest.raises(InvalidRequest, match=found):
        open_folder(address)


def test_who_pays_for_reading_may_be_of_another_store() -> None:
    """A copy from S3 that its reader pays for may go anywhere."""
    use_store_options(["request-payer=requester"])
    for address in ("gs://b/p", "az://c/p"):
        assert "requester" not in object_headers(address).values()


def test_who_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable may say no, as it may to other tools; what it cannot mean is refused."""
    monkeypatch.setenv("AWS_REQUEST_PAYER", "false")
    assert client_config("s3") == {}
    monkeypatch.setenv("AWS_REQUEST_PAYER", "perhaps")
    with pytest.raises(InvalidRequest, match=r"AWS_REQUEST_PAYER: .*expected requester"):
        client_config("s3")

"""What a store is told of the objects that it keeps: requests that are signed with their headers."""

from __future__ import annotations

import random
import threading
from datetime import datetime, timezone
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import pytest

from shardtool import ShardWriter, copy, use_store_options
from shardtool.errors import AccessRefused
from shardtool.storage import files, paths
from shardtool.storage.files import read_small
from shardtool.storage.remote.buckets import delete_objects, put_object
from shardtool.storage.remote.http import connections_for, sign_headers, sign_put, sign_url
from shardtool.storage.remote.upload import upload
from tests.clients.remote import tool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.clients.packed import Packed
    from tests.servers.processes import Server

    Reach = Callable[[Server], Server]

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("profile", [False, True], ids=["environment", "profile"])
@pytest.mark.parametrize("name", ["moto", "rclone"])
def test_what_is_said_of_an_object_is_signed(
    name: str, *, profile: bool, request: pytest.FixtureRequest, use: Reach, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    """A request with headers of S3 is taken by a store that checks signatures, with keys of both kinds."""
    server = use(request.getfixturevalue(name))
    if profile:
        keys = [f"{one.lower()} = {server.environment[one]}" for one in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
        (tmp_path / "config").write_text("\n".join(["[profile p]", *keys]))
        for one in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(one)
        monkeypatch.setenv("AWS_PROFILE", "p")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    address = f"{server.new_prefix()}/a b+#ü!'(*).bin"
    url, headers = sign_put(address, {"x-amz-storage-class": "STANDARD_IA"})
    assert "Authorization" in headers
    answer = connections_for(url).request("PUT", url, headers=headers, body=b"the bytes", retries=False)
    assert answer.status == 200, answer.data
    assert read_small(address) == b"the bytes"


def _heads(server: Server, prefix: str) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Return the headers of all objects below a prefix, and their tags, as boto3 has them."""
    import boto3

    client = boto3.client("s3", endpoint_url=server.url)
    bucket, _, below = prefix.removeprefix("s3://").partition("/")
    found = {}
    for one in client.list_objects_v2(Bucket=bucket, Prefix=below)["Contents"]:
        head = client.head_object(Bucket=bucket, Key=one["Key"])["ResponseMetadata"]["HTTPHeaders"]
        tags = client.get_object_tagging(Bucket=bucket, Key=one["Key"])["TagSet"]
        found[one["Key"].rpartition("/")[2]] = head, {tag["Key"]: tag["Value"] for tag in tags}
    return found


_KEY = "arn:aws:kms:us-east-1:123456789012:key/abcd"
_TOLD = ["storage-class=STANDARD_IA", "sse=aws:kms", f"sse-kms-key-id={_KEY}", "tags=team=a%20b&run=7"]


def test_objects_have_the_requested_properties(moto: Server, use: Reach, tmp_path: Path) -> None:
    """Shards, sidecars and the dataset file have the storage class, encryption and tags, also after a resumed run."""
    server, prefix = use(moto), moto.new_prefix()
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("x" * 2000)
    words = ["create", str(tmp_path), f"{prefix}/out-{{000000..}}.tar", "--max-count", "8", "--workers", "2"]
    code, text = tool(*words, *(word for one in _TOLD for word in ("--store-option", one)), server=server)
    assert code == 0, text
    heads = _heads(server, prefix)
    _check(heads, 7)
    delete_objects(prefix, [f"{prefix.removeprefix('s3://moto/')}/out-000001.tar"])
    code, text = tool(*words, "--resume", server=server, SHARDTOOL_STORE_OPTIONS="\n".join(_TOLD))
    assert code == 0, text
    assert _heads(server, prefix).keys() == heads.keys()
    _check(_heads(server, prefix), 7)
    assert tool("verify", f"{prefix}/out.json", server=server)[0] == 0


def test_objects_of_a_writer_have_the_requested_properties(
    moto: Server, use: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects that a `ShardWriter` uploads have the same properties."""
    server, prefix = use(moto), moto.new_prefix()
    monkeypatch.setenv("SHARDTOOL_STORE_OPTIONS", "")
    use_store_options(_TOLD)
    with ShardWriter(f"{prefix}/out-{{000000..}}.tar", max_count=2) as writer:
        for number in range(3):
            writer.write({"__key__": str(number), "txt": "x"})
    _check(_heads(server, prefix), 5)


def _check(heads: dict[str, tuple[dict[str, str], dict[str, str]]], count: int) -> None:
    assert len(heads) == count
    for head, tags in heads.values():
        assert head["x-amz-storage-class"] == "STANDARD_IA"
        assert head["x-amz-server-side-encryption"] == "aws:kms"
        assert head["x-amz-server-side-encryption-aws-kms-key-id"] == _KEY
        assert tags == {"team": "a b", "run": "7"}


def test_tiers_and_tags_of_azure(
    azurite: Server, use: Reach, monkeypatch: pytest.MonkeyPatch, one_shard: Packed
) -> None:
    """Small and large blobs of a dataset have the requested tier and tags."""
    server = use(azurite)
    prefix = server.new_prefix()
    monkeypatch.setenv("SHARDTOOL_STORE_OPTIONS", "access-tier=Cool\ntags=team=a%20b&run=7")
    copy(str(one_shard.folder / "out.json"), prefix)
    for name in files.list_folder(prefix):
        url = sign_url(paths.join(prefix, name), "GET")
        answer = connections_for(url).request("HEAD", url)
        assert answer.headers["x-ms-access-tier"] == "Cool", name
        assert answer.headers["x-ms-tag-count"] == "2", name


_LETTERS = "ab/ +%#?&=~._-!'()*$,:;@\\\"<>é日"


@pytest.mark.parametrize("seed", range(100))
def test_botocore_signs_the_same(seed: int) -> None:
    """For any key and query, the signature equals that of botocore."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    drawn = random.Random(seed)  # noqa: S311 - no secret
    key, *values = ("".join(drawn.choices(_LETTERS, k=drawn.randrange(1, 20))) for _ in range(4))
    query = dict(zip(("uploads", "uploadId", "prefix"), ["", *values[1:]], strict=True))
    url = f"http://127.0.0.1:9000/b/{quote(key)}?{urlencode(query, quote_via=quote)}"
    headers = {"x-amz-tagging": "a=b%20c", "x-amz-storage-class": "STANDARD_IA", "Content-Type": "a/b"}
    token = drawn.choice(["", "token/+="])
    theirs = AWSRequest("PUT", url, headers=dict(headers))
    S3SigV4Auth(Credentials("ID", "SECRET", token or None), "s3", "eu-x").add_auth(theirs)
    when = datetime.strptime(theirs.context["timestamp"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    body = {"x-amz-content-sha256": theirs.headers["X-Amz-Content-SHA256"]}
    keys = {"access_key_id": "ID", "secret_access_key": "SECRET", "token": token}
    ours = sign_headers("PUT", url, {**headers, **body}, keys, "eu-x", when)
    assert (
        ours["Authorization"].partition("Signature=")[2] == theirs.headers["Authorization"].partition("Signature=")[2]
    )


@pytest.mark.parametrize("name", ["moto", "rclone"])
def test_properties_are_signed(
    name: str, request: pytest.FixtureRequest, use: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Properties of an object are part of the signature: a wrong secret is refused by stores that check signatures."""
    server = use(request.getfixturevalue(name))
    monkeypatch.setenv("SHARDTOOL_STORE_OPTIONS", "\n".join(_TOLD))
    address = f"{server.new_prefix()}/a b+#ü!'(*).bin"
    upload(address, 1, lambda file: file.write(b"x"))
    assert read_small(address) == b"x"
    if name == "rclone":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        with pytest.raises(AccessRefused):
            upload(address, 1, lambda file: file.write(b"y"))


class _Payers(BaseHTTPRequestHandler):
    """A store of one object, which records whether each request states who pays."""

    protocol_version, said = "HTTP/1.1", list[tuple[str, bool]]()

    def _answer(self, body: bytes = b"") -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        kind = "list" if "list-type" in self.path else self.command
        pays = "x-amz-request-payer=requester" in self.path or self.headers.get("x-amz-request-payer") == "requester"
        self.said.append((kind, pays))
        body = b"<ListBucketResult></ListBucketResult>" if kind == "list" else b"x" if kind == "GET" else b""
        self.send_response(200)
        self.send_header("ETag", f'"{md5(b"x", usedforsecurity=False).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = _answer  # noqa: N815 - their names

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_requester_pays_is_sent_with_each_request(moto: Server, use: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the option, all reads, listings and writes state that the requester pays; without it, none does."""
    use(moto)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Payers) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{http.server_port}")
        for pays in (False, True):
            monkeypatch.setenv("SHARDTOOL_STORE_OPTIONS", "request-payer=requester" if pays else "")
            _Payers.said.clear()
            assert read_small("s3://b/k") == b"x"
            assert files.list_folder("s3://b/p") == []
            upload("s3://b/k", 1, lambda file: file.write(b"x"))
            put_object("s3://b/k", b"x")
            assert {kind for kind, _ in _Payers.said} == {"GET", "list", "PUT"}
            assert {said for _, said in _Payers.said} == {pays}
        http.shutdown()

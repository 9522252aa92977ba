"""Ask a store to copy its own objects, so that no data passes through this machine.

One conditional request copies one object. If the store refuses or fails, the caller reads and writes the object
instead. Some stores report a CRC-32C of the copy: Google always, S3 on request.

Source: "CopyObject" of the S3 API; "Copy Blob From URL" and "Put Blob From URL" of Azure.
"""

from __future__ import annotations

import base64
import re
from contextlib import closing
from urllib.parse import quote

from shardtool.errors import StoreFailed
from shardtool.storage.remote import failures, retry
from shardtool.storage.remote.address import (
    STORES,
    display_address,
    is_source_address,
    is_url,
    parse_address,
)
from shardtool.storage.remote.buckets import copy_in_bucket
from shardtool.storage.remote.connections import connections_for
from shardtool.storage.remote.objects import RemoteObject, object_crc
from shardtool.storage.remote.signing import sign_put, sign_url
from shardtool.storage.remote.store_options import object_headers
from shardtool.storage.remote.upload import MAX_ANSWER_BYTES

_MAX_SYNC_COPY_BYTES = 2**28  # bytes of a blob that "Copy Blob From URL" takes at most


_MIN_COPY_BYTES_PER_S = 10**7  # bytes a second that are copied, while a store is silent


_COPY_RETRY_S = 30.0  # after a silence, in which it is asked again: no longer, for another way is there


_CRC_ELEMENT = re.compile(rb"<ChecksumCRC32C>([A-Za-z0-9+/]{6}==)</ChecksumCRC32C>")


class NotCopied(Exception):
    """A store has not made a copy; as a text, why it will make none of others either, or nothing where it may."""


def can_copy_inside(source: str, where: str) -> bool:
    """Tell whether one store has two places, and can be asked to copy from the one to the other."""
    if not (is_url(source) and is_url(where)) or is_source_address(source):
        return False
    one, other = parse_address(source), parse_address(where)
    return one.scheme == other.scheme in STORES and (one.scheme != "gs" or one.host == other.host)


def copy_in_store(source: str, where: str, size: int, crc: int) -> int | None:
    """Have a store copy an object; return the CRC-32C that it says of the copy, or None where it says none.

    Args:
        source: The object, in the store of `where`.
        where: The copy, which takes the place of what is there.
        size: Bytes that the object should have.
        crc: CRC-32C that it should have: where the store knows another before, nothing is copied.

    Raises:
        NotCopied: It has not.
    """
    least, speed_window_s = retry.min_speed()
    speed_window_s = max(speed_window_s, size / _MIN_COPY_BYTES_PER_S)
    policy = retry.RetryPolicy(
        max_total_s=min(retry.retry_for(), speed_window_s + _COPY_RETRY_S), least=least, speed_window_s=speed_window_s
    )
    try:
        with retry.with_policy(policy):
            if parse_address(source).scheme != "gs":
                return retry.with_retries(display_address(where), lambda: _request_copy(source, where, size))
            if object_crc(source) == crc:
                copy_in_bucket(source, where)
                return object_crc(where)
    except StoreFailed as error:
        raise NotCopied(error.found) from None
    except OSError:  # it is not there, or another one by now
        pass
    raise NotCopied


def _request_copy(source: str, where: str, size: int) -> int | None:
    blob = RemoteObject(source)
    if blob.size != size:
        raise NotCopied
    url, headers = sign_put(where, _copy_headers(source, where, blob))
    with failures.urllib3_errors(where, url):
        answer = connections_for(url).request(
            "PUT", url, headers=headers, preload_content=False, redirect=False, retries=False
        )
        with closing(answer):
            body = answer.read(MAX_ANSWER_BYTES)
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - of HTTP
        raise failures.status_error(where, "PUT", answer.status, answer.headers, body)
    if b"<Error>" in body:  # S3 says that it copies before it has
        raise NotCopied
    found = _CRC_ELEMENT.search(body)
    return int.from_bytes(base64.b64decode(found[1]), "big") if found else None


def _copy_headers(source: str, where: str, blob: RemoteObject) -> dict[str, str]:
    at, told = parse_address(source), object_headers(where)
    if at.scheme == "az":
        how = {"x-ms-requires-sync": "true"} if blob.size <= _MAX_SYNC_COPY_BYTES else {"x-ms-blob-type": "BlockBlob"}
        return {"x-ms-copy-source": sign_url(source, "GET"), "x-ms-source-if-match": blob.version, **how, **told}
    if "x-amz-tagging" in told:
        told["x-amz-tagging-directive"] = "REPLACE"  # only here: R2 knows nothing of it
    return {
        "x-amz-copy-source": quote(f"/{at.host}/{at.key}"), "x-amz-copy-source-if-match": blob.version,
        "x-amz-checksum-algorithm": "CRC32C", "x-amz-metadata-directive": "REPLACE",
        "Content-Type": "application/octet-stream", **told,
    }  # fmt: skip

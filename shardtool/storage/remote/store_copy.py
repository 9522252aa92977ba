"""Ask a store to copy its own objects.

Google reports the CRC-32C of the copy, and S3 reports it on request.

Source: "CopyObject" of the S3 API, and "Copy Blob From URL" and "Put Blob From URL" of Azure.
"""

from __future__ import annotations

import base64
import re
from contextlib import closing
from urllib.parse import quote

from shardtool.errors import StoreFailed
from shardtool.storage.remote import failures, retry
from shardtool.storage.remote.address import STORES, is_source_address, is_url, parse_address
from shardtool.storage.remote.buckets import copy_in_bucket
from shardtool.storage.remote.http import MAX_RESPONSE_BYTES, connections_for, sign_put, sign_url
from shardtool.storage.remote.objects import REMOTE, RemoteObject
from shardtool.storage.remote.store_options import object_headers

_MAX_SYNC_COPY_BYTES = 2**28
# The timeout of a copy assumes this speed, because a store sends nothing during a copy.
_MIN_COPY_BYTES_PER_S = 10**7
# Retry a copy only this long, because the caller can copy the object itself.
_COPY_RETRY_S = 30.0
_CRC_ELEMENT = re.compile(rb"<ChecksumCRC32C>([A-Za-z0-9+/]{6}==)</ChecksumCRC32C>")


class NotCopied(Exception):
    """The store made no copy. If the store refuses all copies, the text of the exception is the reason."""


def can_copy_inside(source: str, target: str) -> bool:
    """Return whether a store can copy an object from `source` to `target`.

    Both addresses must be in the same kind of store with the same settings and, for Google, in the same bucket.
    """
    if not (is_url(source) and is_url(target)) or is_source_address(source):
        return False
    source_parts, target_parts = parse_address(source), parse_address(target)
    if source_parts.marker != target_parts.marker or source_parts.scheme != target_parts.scheme:
        return False
    return source_parts.scheme in STORES and (source_parts.scheme != "gs" or source_parts.host == target_parts.host)


def copy_in_store(source: str, target: str, size: int, crc: int) -> int | None:
    """Ask a store to copy an object, replacing an existing `target`.

    Return the CRC-32C of the copy if the store reports it, else None.

    Raises:
        NotCopied: The store made no copy, or `source` does not have `size` bytes (for Google: the checksum `crc`).
    """
    min_bytes_per_s, speed_window_s = retry.min_speed()
    speed_window_s = max(speed_window_s, size / _MIN_COPY_BYTES_PER_S)
    policy = retry.RetryPolicy(
        max_total_s=min(retry.retry_for(), speed_window_s + _COPY_RETRY_S), min_bytes_per_s=min_bytes_per_s,
        speed_window_s=speed_window_s,
    )  # fmt: skip
    try:
        with retry.with_policy(policy):
            if parse_address(source).scheme != "gs":
                return retry.with_retries(target, lambda: _request_copy(source, target, size))
            if REMOTE.crc(source) == crc:
                copy_in_bucket(source, target)
                return REMOTE.crc(target)
    except StoreFailed as error:
        raise NotCopied(error.found) from None
    except OSError:
        pass
    raise NotCopied


def _request_copy(source: str, target: str, size: int) -> int | None:
    source_object = RemoteObject(source)
    if source_object.size != size:
        raise NotCopied
    url, headers = sign_put(target, _copy_headers(source, target, source_object))
    with failures.urllib3_errors(target, url):
        response = connections_for(url).request(
            "PUT", url, headers=headers, preload_content=False, redirect=False, retries=False
        )
        with closing(response):
            body = response.read(MAX_RESPONSE_BYTES)
    if not 200 <= response.status < 300:  # noqa: PLR2004 - HTTP success
        raise failures.status_error(target, "PUT", response.status, response.headers, body)
    if b"<Error>" in body:  # S3 can report an error after status 200
        raise NotCopied
    match = _CRC_ELEMENT.search(body)
    return int.from_bytes(base64.b64decode(match[1]), "big") if match else None


def _copy_headers(source: str, target: str, source_object: RemoteObject) -> dict[str, str]:
    parts, options = parse_address(source), object_headers(target)
    if parts.scheme == "az":
        is_small = source_object.size <= _MAX_SYNC_COPY_BYTES
        mode = {"x-ms-requires-sync": "true"} if is_small else {"x-ms-blob-type": "BlockBlob"}
        copy = {"x-ms-copy-source": sign_url(source, "GET"), "x-ms-source-if-match": source_object.version}
        return {**copy, **mode, **options}
    if "x-amz-tagging" in options:
        # send this header only with tags, because R2 does not support it
        options["x-amz-tagging-directive"] = "REPLACE"
    return {
        "x-amz-copy-source": quote(f"/{parts.host}/{parts.key}"), "x-amz-copy-source-if-match": source_object.version,
        "x-amz-checksum-algorithm": "CRC32C", "x-amz-metadata-directive": "REPLACE",
        "Content-Type": "application/octet-stream", **options,
    }  # fmt: skip

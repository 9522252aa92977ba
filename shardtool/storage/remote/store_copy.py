"""Copies that a store makes of its own objects: no byte of them comes through this machine.

Strategy: one request for an object, on the condition that it is the one that was looked at, made again as any other is.
Where it is refused, or does not pass, the caller reads and writes the object instead. What a store says of a copy is a
CRC-32C where it has one: Google's always, S3 where it is asked to take it. Sources: "CopyObject" of the S3 API,
"Copy Blob From URL" and "Put Blob From URL" of Azure's.
"""

from __future__ import annotations

import base64
import re
from contextlib import closing
from urllib.parse import quote

from shardtool.errors import StoreFailed
from shardtool.storage.remote.address import STORES, is_source, is_url, parse_address, shown
from shardtool.storage.remote.blob import Blob, connections_to, stored_crc
from shardtool.storage.remote.retry import Policy, answering, least_speed, refusal, retried, retry_for, under
from shardtool.storage.remote.stores import copy_in_bucket, object_headers, signed, signed_request

_SMALL = 2**28  # bytes of a blob that "Copy Blob From URL" takes at most
_ANSWER = 65536
_SLOWEST = 10**7  # bytes a second that are copied, while a store is silent
_MORE_S = 30.0  # after a silence, in which it is asked again: no longer, for another way is there
_CRC = re.compile(rb"<ChecksumCRC32C>([A-Za-z0-9+/]{6}==)</ChecksumCRC32C>")


class NotCopied(Exception):
    """A store has not made a copy; as a text, why it will make none of others either, or nothing where it may."""


def is_one_store(source: str, where: str) -> bool:
    """Tell whether one store has two places, and can be asked to copy from the one to the other."""
    if not (is_url(source) and is_url(where)) or is_source(source):
        return False
    one, other = parse_address(source), parse_address(where)
    return one.scheme == other.scheme in STORES and (one.scheme != "gs" or one.host == other.host)


def store_copy(source: str, where: str, size: int, crc: int) -> int | None:
    """Have a store copy an object; return the CRC-32C that it says of the copy, or None where it says none.

    Args:
        source: The object, in the store of `where`.
        where: The copy, which takes the place of what is there.
        size: Bytes that the object should have.
        crc: CRC-32C that it should have: where the store knows another before, nothing is copied.

    Raises:
        NotCopied: It has not.
    """
    least, over_s = least_speed()
    over_s = max(over_s, size / _SLOWEST)
    policy = Policy(whole_s=min(retry_for(), over_s + _MORE_S), least=least, over_s=over_s)
    try:
        with under(policy):
            if parse_address(source).scheme != "gs":
                return retried(shown(where), lambda: _asked_for_copy(source, where, size))
            if stored_crc(source) == crc:
                copy_in_bucket(source, where)
                return stored_crc(where)
    except StoreFailed as error:
        raise NotCopied(error.found) from None
    except OSError:  # it is not there, or another one by now
        pass
    raise NotCopied


def _asked_for_copy(source: str, where: str, size: int) -> int | None:
    blob = Blob(source)
    if blob.size != size:
        raise NotCopied
    url, headers = signed_request(where, "PUT", _headers(source, where, blob))
    with answering(where, url):
        answer = connections_to(url).request(
            "PUT", url, headers=headers, preload_content=False, redirect=False, retries=False
        )
        with closing(answer):
            body = answer.read(_ANSWER)
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - of HTTP
        raise refusal(where, "PUT", answer.status, answer.headers, body)
    if b"<Error>" in body:  # S3 says that it copies before it has
        raise NotCopied
    found = _CRC.search(body)
    return int.from_bytes(base64.b64decode(found[1]), "big") if found else None


def _headers(source: str, where: str, blob: Blob) -> dict[str, str]:
    at, told = parse_address(source), object_headers(where)
    if at.scheme == "az":
        how = {"x-ms-requires-sync": "true"} if blob.size <= _SMALL else {"x-ms-blob-type": "BlockBlob"}
        return {"x-ms-copy-source": signed(source, "GET"), "x-ms-source-if-match": blob.version, **how, **told}
    if "x-amz-tagging" in told:
        told["x-amz-tagging-directive"] = "REPLACE"  # only here: R2 knows nothing of it
    return {
        "x-amz-copy-source": quote(f"/{at.host}/{at.key}"), "x-amz-copy-source-if-match": blob.version,
        "x-amz-checksum-algorithm": "CRC32C", "x-amz-metadata-directive": "REPLACE",
        "Content-Type": "application/octet-stream", **told,
    }  # fmt: skip

"""Azure's signatures of names that need escaping, which obstore 0.12 gets wrong: it signs the escaped name.

Source: "Create a service SAS" of Azure's documentation, version 2020-12-06 and later: the name is signed as it is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

if TYPE_CHECKING:
    from shardtool.storage.remote.address import Address

_ACCOUNT = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")  # the variables that obstore reads, too
_KEY = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_UNUSED_BEFORE_VERSION = 3  # identifier, IP range, protocol
_UNUSED_AT_THE_END = 7  # snapshot, encryption scope, five headers


def signed_name(url: str, at: Address) -> str:
    """Return what obstore has signed with the right signature; as it is, where the account's key is not known.

    Args:
        url: What obstore returned: right but for the signature.
        at: What is signed.
    """
    account, key = (next(filter(None, map(os.environ.get, names)), "") for names in (_ACCOUNT, _KEY))
    if not key:
        return url
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    before = [query["sp"], query.get("st", ""), query["se"], f"/blob/{account}/{at.host}/{at.key}"]
    after = [query["sv"], query["sr"], *[""] * _UNUSED_AT_THE_END]
    text = "\n".join([*before, *[""] * _UNUSED_BEFORE_VERSION, *after])
    digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    return parts._replace(query=urlencode({**query, "sig": base64.b64encode(digest).decode()})).geturl()

"""Laws of what a store says of an object that it has taken."""

from __future__ import annotations

import base64
import hashlib

import pytest

from shardtool.storage.remote.upload import stored_md5

_MD5 = hashlib.md5(b"abc", usedforsecurity=False)
_HEX, _BASE64 = _MD5.hexdigest(), base64.b64encode(_MD5.digest()).decode()


@pytest.mark.parametrize(
    ("headers", "md5"),
    [
        ({"ETag": f'"{_HEX}"'}, _HEX),
        ({"ETag": _HEX}, _HEX),
        ({"ETag": f'"{_HEX}-3"'}, None),
        ({"ETag": '"0x8DE29D1C7B3A2F0"', "Content-MD5": _BASE64}, _HEX),
        ({"ETag": '"0x8DE29D1C7B3A2F0"'}, None),
        ({"ETag": '"CKih16GjycICEAE="', "x-goog-hash": f"crc32c=4waSgw==,md5={_BASE64}"}, _HEX),
        ({"ETag": '"CKih16GjycICEAE="', "x-goog-hash": f"crc32c=4waSgw==, md5={_BASE64}"}, _HEX),
        ({"x-goog-hash": "crc32c=4waSgw=="}, None),
        ({"Content-MD5": "?"}, None),
        ({}, None),
    ],
)
def test_md5(headers: dict[str, str], md5: str | None) -> None:
    """The MD5 is found in the header of each store, and nothing that only looks alike is taken for it."""
    assert stored_md5(headers) == md5

"""Which addresses are public."""

from __future__ import annotations

import pytest

from shardtool.fetch.addresses import is_public

_PRIVATE = (
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",  # noqa: S104
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::", "::1", "fe80::1",
    "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "::ffff:10.0.0.1", "::ffff:7f00:1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::1",
)  # fmt: skip
_PUBLIC = ("8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1")


@pytest.mark.parametrize("address", _PRIVATE)
def test_others_are_not(address: str) -> None:
    """Loopback, local, link-local, shared, multicast and reserved addresses are none, nor what leads to them."""
    assert not is_public(address)


@pytest.mark.parametrize("address", _PUBLIC)
def test_public_ones(address: str) -> None:
    """Addresses of the internet are public, in either form."""
    assert is_public(address)

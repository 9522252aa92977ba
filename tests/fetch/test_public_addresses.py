"""Which addresses are public."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.fetch.client import is_public

_PRIVATE = (
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",  # noqa: S104
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::", "::1", "fe80::1",
    "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "::ffff:10.0.0.1", "::ffff:7f00:1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::1",
    # What Pythons do not agree on, and what only clouds know.
    "192.0.0.8", "192.0.0.10", "192.0.0.192", "192.88.99.1", "168.63.129.16", "100.100.100.200", "198.51.100.1",
    "203.0.113.1", "fd00:ec2::254", "3fff::1", "3fff:fff:ffff::1", "2001::1", "2001:0:808:808::f7f7:f7f7", "2001:1::1",
    "2001:20::1", "64:ff9b:1::808:808", "100::1", "5f00::1", "4000::1", "::8.8.8.8", "::ffff:0:8.8.8.8",
    "::ffff:168.63.129.16", "64:ff9b::c000:c0", "2002:a83f:8110::1", "2002:c058:6301::",
)  # fmt: skip
_PUBLIC = (
    "8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1",
    "192.0.1.1", "168.63.129.17", "100.128.0.1", "172.32.0.1", "192.31.196.1", "223.255.255.255", "2001:200::1",
    "2001:4860:4860::8888", "2a00:1450::1", "3ffe::1",
)  # fmt: skip


@pytest.mark.parametrize("address", _PRIVATE)
def test_special_addresses_are_not_public(address: str) -> None:
    """Loopback, local, link-local, shared, multicast, reserved and embedding addresses are not public."""
    assert not is_public(address)


@pytest.mark.parametrize("address", _PUBLIC)
def test_internet_addresses_are_public(address: str) -> None:
    """Internet addresses are public, in IPv4 and IPv6."""
    assert is_public(address)


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_public_addresses_agree_with_python(address: IPv4Address | IPv6Address) -> None:
    """Where the table differs from this Python, it refuses more, never less."""
    assert address.is_global or not is_public(str(address)) or _holds_another(address)


def _holds_another(address: IPv4Address | IPv6Address) -> bool:
    """Tell whether an address is a form of an IPv4 one, which older Pythons judge as they judge the form."""
    return isinstance(address, IPv6Address) and bool(address.ipv4_mapped or address.sixtofour)


@pytest.mark.parametrize("form", ["::ffff:{0:x}:{1:x}", "64:ff9b::{0:x}:{1:x}", "2002:{0:x}:{1:x}::7"])
@given(address=st.ip_addresses(v=4))
def test_embedded_ipv4_addresses(form: str, address: IPv4Address) -> None:
    """An IPv6 address that embeds an IPv4 address is public if the latter is."""
    inside = form.format(int(address) >> 16, int(address) & 0xFFFF)
    assert is_public(inside) == is_public(str(address))

"""Which addresses are public: others are those of this machine, of local networks and of clouds' own services."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")
_LOW_32 = 2**32 - 1


def is_public(address: str) -> bool:
    """Tell whether an IP address is of the public internet; an IPv6 address that stands for an IPv4 one is that."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and (inner := _inner(found)) is not None:
        found = inner
    if isinstance(found, IPv6Address) and found.is_site_local:
        return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that packets to an IPv6 address go to in the end."""
    if address in _NAT64:
        return IPv4Address(int(address) & _LOW_32)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour

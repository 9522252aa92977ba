"""Distinguish public IP addresses from private ones: this machine, local networks, cloud metadata services.

This module defines its own tables, because `ipaddress.is_global` differs between Python versions. All special-purpose
ranges are refused, including the few public anycast addresses in these ranges.

Source: IANA's special-purpose address registries for IPv4 and IPv6 (RFC 6890, RFC 8190; with 3fff::/20 of RFC 9637),
RFC 5771 (multicast), RFC 4291 (2000::/3 is all global unicast IPv6), RFC 6052 (NAT64), RFC 3056 (6to4).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_REFUSED_NETWORKS = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # "this network"
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's platform services, in no registry
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.0.2.0/24",  # documentation, like 198.51.100.0 and 203.0.113.0
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # network benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved and broadcast
    )
]

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_REFUSED_IPV6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))  # protocols, documentation
_EMBEDDED_IPV4 = (  # IPv6 ranges that embed an IPv4 address, and the bit offset of this address
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)

_LOW_32 = 2**32 - 1


def is_public(address: str) -> bool:
    """Check whether an IP address, or the IPv4 address embedded in it, is public."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        shift = next((shift for network, shift in _EMBEDDED_IPV4 if ip in network), None)
        if shift is None:
            return ip in _GLOBAL_UNICAST and not any(ip in network for network in _REFUSED_IPV6)
        ip = IPv4Address(int(ip) >> shift & _LOW_32)
    return not any(ip in network for network in _REFUSED_NETWORKS)

"""Tell public IP addresses from private ones: this machine, local networks, cloud metadata services.

`ipaddress.is_global` differs between versions of Python, so the tables are our own. All special-purpose ranges are
refused, including the few reachable anycast addresses in them.

Source: IANA's special-purpose address registries for IPv4 and IPv6 (RFC 6890, RFC 8190; with 3fff::/20 of RFC
9637),
RFC 5771 (multicast), RFC 4291 (2000::/3 is all global unicast IPv6), RFC 6052 (NAT64), RFC 3056 (6to4).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_REFUSED_NETWORKS = [
    IPv4Network(one)
    for one in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by the customers of a provider; Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # in no registry: Azure's services for its machines
        "169.254.0.0/16",  # of a link; the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # of protocols; Oracle's metadata
        "192.0.2.0/24",  # documentation, as are 198.51.100.0 and 203.0.113.0
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # tests of networks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]


_GLOBAL_UNICAST = IPv6Network("2000::/3")


_REFUSED_IPV6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))  # protocols, documentation


_EMBEDDED_IPV4 = (  # of IPv6, and by how many bits the IPv4 address that packets go to in the end is shifted
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)


_LOW_32 = 2**32 - 1


def is_public(address: str) -> bool:
    """Tell whether an IP address is of the public internet; an IPv6 address that stands for an IPv4 one is that."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        shift = next((shift for network, shift in _EMBEDDED_IPV4 if found in network), None)
        if shift is None:
            return found in _GLOBAL_UNICAST and not any(found in network for network in _REFUSED_IPV6)
        found = IPv4Address(int(found) >> shift & _LOW_32)
    return not any(found in network for network in _REFUSED_NETWORKS)

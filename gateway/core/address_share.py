"""Names the share of a client address in what addresses have in equal parts. Pure."""

from __future__ import annotations

import ipaddress


def share_of(host: str) -> str:
    """Return the name of the share of the peer at this address: for IPv6, its /64 network.

    One host may choose any address of its /64. Addresses of one link have no network of their own.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback or address.is_link_local:
        return host
    return f"{ipaddress.IPv6Address(int(address) >> 64 << 64)}/64"

"""The memory of the members of all loaded groups, with a share for each client address. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gateway.core.address_share import share_of


class GroupMemory:
    """Bytes of members and their assignments, by the address of each member's client.

    An address may grow while it has at most as many bytes as are free. So one address gets half of
    the memory, each of three gets a quarter, and some is always free for the next one. A member
    counts until its session ends, up to 30 minutes after its client has left. A fixed share for
    each address would be too small for one that many honest clients have in common, or too large
    for many hostile ones. Groups are not evicted instead: their members would have to rejoin.
    IPv6 addresses of one /64 count as one, because one host can use all of them.
    """

    __slots__ = ("_by_share", "bytes_max", "size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0  # the bytes of all members of loaded groups
        # The part of each share (`share_of`) in `size_bytes`. No value is 0.
        self._by_share: Counter[str] = Counter()

    def refused_share(self, growth: Mapping[str, int]) -> str | None:
        """Return the name of an address or network that may not grow so, or None if all may.

        `growth` is the change of each address's bytes. An address that does not grow is admitted.
        """
        free = self.bytes_max - self.size_bytes - sum(growth.values())
        by_share: Counter[str] = Counter()
        for host, more in growth.items():
            by_share[_share(host)] += more
        for share, more in by_share.items():
            if more > 0 and self._by_share[share] + more > free:
                return share
        return None

    def change(self, changes: Mapping[str, int]) -> None:
        """Add these bytes to the addresses; negative ones are returned."""
        for host, more in changes.items():
            self.size_bytes += more
            share = _share(host)
            left = self._by_share[share] + more
            assert left >= 0
            if left:
                self._by_share[share] = left
            else:
                del self._by_share[share]


def _share(host: str) -> str:
    """Return the share of a host as members have it, with a slash before the address."""
    return share_of(host.removeprefix("/"))

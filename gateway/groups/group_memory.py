"""The memory of the members of all loaded groups, with a share for each client address. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class GroupMemory:
    """Bytes of members and their assignments, by the address of each member's client.

    An address may grow while it has at most as many bytes as are free. So one address gets half of
    the memory, each of three gets a quarter, and some is always free for the next one. A member
    counts until its session ends, up to 30 minutes after its client has left. A fixed share for
    each address would be too small for one that many honest clients have in common, or too large
    for many hostile ones. Groups are not evicted instead: their members would have to rejoin.
    """

    __slots__ = ("_by_host", "bytes_max", "size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0  # the bytes of all members of loaded groups
        # The part of each address in `size_bytes`. No value is 0.
        self._by_host: Counter[str] = Counter()

    def refused_host(self, growth: Mapping[str, int]) -> str | None:
        """Return an address that may not grow so, or None if all may.

        `growth` is the change of each address's bytes. An address that does not grow is admitted.
        """
        free = self.bytes_max - self.size_bytes - sum(growth.values())
        for host, more in growth.items():
            if more > 0 and self._by_host[host] + more > free:
                return host
        return None

    def change(self, changes: Mapping[str, int]) -> None:
        """Add these bytes to the addresses; negative ones are returned."""
        for host, more in changes.items():
            self.size_bytes += more
            left = self._by_host[host] + more
            assert left >= 0
            if left:
                self._by_host[host] = left
            else:
                del self._by_host[host]

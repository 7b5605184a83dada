"""The lease of an owner: most of its session, from the time that ZooKeeper's leader confirmed.

ZooKeeper expires a session no earlier than its timeout after it last heard of it, and no broker
takes over before. `ledger.adapters.zookeeper.session_proof` tells which answers prove that the
leader heard of the session; pings do not. In a healthy cluster, the proof is between a quarter and
two fifths of a session old, so a broker whose ZooKeeper falls silent stops answering after about
half a session. The last tenth of the session allows for clocks that run at different speeds.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.ports.clock import Clock

LEASE_SHARE = 0.9


class Lease:
    """The lease of this broker. A call returns True while the broker may answer as an owner.

    `confirmed_s` returns the monotonic time from which the session timeout counts at the earliest.
    `session_ms` returns the session timeout that the server grants now.
    """

    __slots__ = ("_clock", "_confirmed_s", "_session_ms")

    def __init__(
        self, clock: Clock, confirmed_s: Callable[[], float], session_ms: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._confirmed_s = confirmed_s
        self._session_ms = session_ms

    def __call__(self) -> bool:
        return self._clock.monotonic_s() < self.until_s

    @property
    def until_s(self) -> float:
        return self._confirmed_s() + self._session_ms() / 1000 * LEASE_SHARE

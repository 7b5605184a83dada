"""The lease of an owner: two thirds of its session, from the last answered request.

ZooKeeper expires a session no earlier than its timeout after the last request that it received. No
broker takes over before the session expires, and an answered request was certainly received after
it was sent. The last third of the session allows for clocks that run at different speeds.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.ports.clock import Clock

LEASE_SHARE = 2 / 3


class Lease:
    """The lease of this broker. A call returns True while the broker may answer as an owner.

    `answered_s` returns the send time of the last answered ping or request. `session_ms` returns
    the session timeout that the server grants now.
    """

    __slots__ = ("_answered_s", "_clock", "_session_ms")

    def __init__(
        self, clock: Clock, answered_s: Callable[[], float], session_ms: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._answered_s = answered_s
        self._session_ms = session_ms

    def __call__(self) -> bool:
        return self._clock.monotonic_s() < self.until_s

    @property
    def until_s(self) -> float:
        return self._answered_s() + self._session_ms() / 1000 * LEASE_SHARE

"""How long an owner may answer as one: until two thirds of its session after it was last heard.

ZooKeeper ends a session no earlier than its timeout after the last request that it had from it,
and whatever was answered had been sent before that. Nobody takes over before, so who answers
only within two thirds has the last third for clocks that run at different speeds.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.ports.clock import Clock

LEASE_SHARE = 2 / 3


class Lease:
    """`answered_s` is when the last answered ping or request was sent, `session_ms` what the
    server grants now. All on the monotonic clock."""

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

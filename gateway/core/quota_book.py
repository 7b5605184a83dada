"""What clients have used of their quotas: one rate or one bucket for all that share a limit. Pure.

The memory has a bound, however many client ids there are. What was not used for a whole window
equals a new rate, and is dropped first; beyond that, what was used longest ago.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import nsmallest
from typing import Final, Generic, Protocol, TypeVar

from gateway.core.quota_precedence import ClientLimits, Limit, Sharers
from gateway.core.quota_rates import QuotaWindow, SampledRate, TokenBucket

KEPT_MAX: Final = 20_000
"""Rates of one limit that are kept. Each takes at most about 700 bytes."""

_DROPPED_SHARE: Final = 4  # a quarter of the places is freed at once


class _Used(Protocol):
    @property
    def used_ms(self) -> int: ...


_KeyT = TypeVar("_KeyT", bound=Hashable)
_UsedT = TypeVar("_UsedT", bound=_Used)


class Kept(Generic[_KeyT, _UsedT]):
    """Rates or buckets by those that share them, at most `count_max`."""

    def __init__(self, count_max: int = KEPT_MAX) -> None:
        self._kept: dict[_KeyT, _UsedT] = {}
        self._count_max = count_max

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: _KeyT) -> _UsedT | None:
        return self._kept.get(key)

    def add(self, key: _KeyT, new: _UsedT, old_ms: int) -> _UsedT:
        """Keep one more. What was not used since `old_ms` goes first if there is no room."""
        if len(self._kept) >= self._count_max:
            self._make_room(old_ms)
        self._kept[key] = new
        return new

    def clear(self) -> None:
        self._kept.clear()

    def _make_room(self, old_ms: int) -> None:
        self._kept = {key: each for key, each in self._kept.items() if each.used_ms > old_ms}
        surplus = len(self._kept) - self._count_max * (_DROPPED_SHARE - 1) // _DROPPED_SHARE
        if surplus > 0:
            oldest = nsmallest(surplus, self._kept.items(), key=lambda item: item[1].used_ms)
            for key, _ in oldest:
                del self._kept[key]


class RateBook:
    """The rates of the clients that have a limit of one kind."""

    def __init__(self, window: QuotaWindow, kept_max: int = KEPT_MAX) -> None:
        self.window = window
        self.limits = ClientLimits()
        self._rates: Kept[Sharers, SampledRate] = Kept(kept_max)

    def __len__(self) -> int:
        return len(self._rates)

    def use(self, limits: ClientLimits) -> None:
        """Decide by these limits from now on. Rates go on."""
        self.limits = limits
        if not limits:
            self._rates.clear()

    def record(self, user: str, client: str | None, value: float, now_ms: int) -> int:
        """Count a value. Returns the milliseconds for which the client has to wait, or 0."""
        limit = self.limits.find(user, client)
        if limit is None:
            return 0
        rate = self._rate(limit, now_ms)
        rate.record(self.window, value, now_ms)
        return rate.throttle_ms(self.window, limit.value, now_ms)

    def add(self, user: str, client: str | None, value: float, now_ms: int) -> None:
        """Count a value without a decision. It counts at the next one; a negative one is undone."""
        limit = self.limits.find(user, client)
        if limit is not None:
            self._rate(limit, now_ms).record(self.window, value, now_ms)

    def value_max(self, user: str, client: str | None) -> float | None:
        """Return the largest value for which the client need not wait, or None without a limit."""
        limit = self.limits.find(user, client)
        if limit is None:
            return None
        return limit.value * (self.window.samples - 1) * (self.window.sample_ms / 1000)

    def _rate(self, limit: Limit, now_ms: int) -> SampledRate:
        known = self._rates.get(limit.sharers)
        if known is not None:
            return known
        return self._rates.add(limit.sharers, SampledRate(), now_ms - self.window.all_ms)


class Mutations:
    """The quota of one request that creates or deletes partitions.

    A strict one refuses once no token is left. Another one only makes the client wait.
    """

    __slots__ = ("_bucket", "_is_strict", "_limit", "_throttle_ms", "_throttled_at_ms", "_window")

    def __init__(
        self, bucket: TokenBucket, window: QuotaWindow, limit: float, *, is_strict: bool
    ) -> None:
        self._bucket = bucket
        self._window = window
        self._limit = limit
        self._is_strict = is_strict
        # The time to wait as the last partitions were counted, and when that was.
        self._throttle_ms = self._throttled_at_ms = 0

    def take(self, partitions: int, now_ms: int) -> bool:
        """Count partitions. Returns False if they may not be created or deleted now."""
        if self._is_strict and self._wait(now_ms):
            return False
        self._bucket.take(self._window, self._limit, partitions, now_ms)
        if not self._is_strict:
            self._wait(now_ms)
        return True

    def throttle_ms(self, now_ms: int) -> int:
        """Return the milliseconds for which the client still has to wait, or 0."""
        return max(0, self._throttle_ms - (now_ms - self._throttled_at_ms))

    def _wait(self, now_ms: int) -> bool:
        throttle_ms = self._bucket.throttle_ms(self._window, self._limit, now_ms)
        if throttle_ms:
            self._throttle_ms, self._throttled_at_ms = throttle_ms, now_ms
        return throttle_ms > 0


class MutationBook:
    """The buckets of the clients that have a `controller_mutation_rate`."""

    def __init__(self, window: QuotaWindow, kept_max: int = KEPT_MAX) -> None:
        self.window = window
        self.limits = ClientLimits()
        self._buckets: Kept[Sharers, TokenBucket] = Kept(kept_max)

    def use(self, limits: ClientLimits) -> None:
        """Decide by these limits from now on. Buckets go on."""
        self.limits = limits
        if not limits:
            self._buckets.clear()

    def begin(
        self, user: str, client: str | None, now_ms: int, *, is_strict: bool
    ) -> Mutations | None:
        """Return the quota of one request, or None if its client has no limit."""
        limit = self.limits.find(user, client)
        if limit is None:
            return None
        bucket = self._buckets.get(limit.sharers)
        if bucket is None:
            bucket = self._buckets.add(limit.sharers, TokenBucket(), now_ms - self.window.all_ms)
        return Mutations(bucket, self.window, limit.value, is_strict=is_strict)


class AddressBook:
    """The rates at which addresses open connections."""

    def __init__(self, window: QuotaWindow, kept_max: int = KEPT_MAX) -> None:
        self.window = window
        # By address; that of all other addresses by None.
        self.limits: dict[str | None, float] = {}
        self._rates: Kept[str, SampledRate] = Kept(kept_max)

    def use(self, limits: dict[str | None, float]) -> None:
        """Decide by these limits from now on. Rates go on."""
        self.limits = limits
        if not limits:
            self._rates.clear()

    def record(self, address: str, now_ms: int) -> int:
        """Count a connection. Returns the milliseconds to wait if it is refused, or 0.

        A refused connection does not count. The time is at most one sample, as in Kafka.
        """
        limit = self.limits.get(address, self.limits.get(None))
        if limit is None:
            return 0
        rate = self._rates.get(address)
        if rate is None:
            rate = self._rates.add(address, SampledRate(), now_ms - self.window.all_ms)
        rate.record(self.window, 1.0, now_ms)
        wait_ms = min(rate.throttle_ms(self.window, limit, now_ms), self.window.sample_ms)
        if wait_ms:
            rate.record(self.window, -1.0, now_ms)
        return wait_ms

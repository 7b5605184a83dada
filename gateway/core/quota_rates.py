"""The arithmetic of quotas: rates over samples, buckets of tokens, and how long clients wait. Pure.

A rate is a sum over samples of fixed length, of which the newest one is not complete. All numbers
are those that Kafka's classes compute, bit by bit, as `tests/gateway/test_quota_rates.py` shows.
Source: Kafka, SampledStat, Rate, TokenBucket and QuotaUtils.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

INT_MAX: Final = 2**31 - 1


class QuotaWindow(NamedTuple):
    """How many samples a rate has, and how long each one is."""

    samples: int = 11  # Kafka: quota.window.num
    sample_ms: int = 1_000  # Kafka: quota.window.size.seconds

    @property
    def all_ms(self) -> int:
        """The age at which a sample no longer counts."""
        return self.samples * self.sample_ms


class SampledRate:
    """Values by the time at which they were recorded, in up to `samples` + 1 samples.

    The last sample may overlap the window. A rate that recorded nothing for `QuotaWindow.all_ms`
    equals a new one.
    """

    __slots__ = ("_at", "_last_ms", "_start_ms", "_values", "used_ms")

    def __init__(self) -> None:
        self.used_ms = 0  # the time of the newest value
        self._at = 0  # the place of the newest sample in the lists
        # Of each sample: when it began, when it last changed, and the sum of its values.
        self._start_ms: list[int] = []
        self._last_ms: list[int] = []
        self._values: list[float] = []

    def record(self, window: QuotaWindow, value: float, now_ms: int) -> None:
        """Add a value, which is negative to take back an earlier one."""
        at = self._at
        if not self._values:
            self._begin(at, now_ms)
        elif now_ms - self._start_ms[at] >= window.sample_ms:
            at = self._at = (at + 1) % (window.samples + 1)
            self._begin(at, now_ms)
        self._values[at] += value
        self._last_ms[at] = self.used_ms = now_ms

    def rate(self, window: QuotaWindow, now_ms: int) -> float:
        """Return the values per second."""
        self._forget_old(window, now_ms)
        total = 0.0
        for value in self._values:  # `sum` of a later Python rounds in another way
            total += value
        return total / (self._elapsed_ms(window, now_ms) / 1000.0)

    def throttle_ms(self, window: QuotaWindow, bound: float, now_ms: int) -> int:
        """Return how long nothing may be recorded until the rate is `bound`, or 0 if it is less.

        With the rate O over a window of W, the delay X solves O * W / (W + X) = `bound`.
        """
        rate = self.rate(window, now_ms)
        if rate <= bound:
            return 0
        elapsed_ms = self._elapsed_ms(window, now_ms)
        return bounded_ms((rate - bound) / bound * elapsed_ms if bound else math.inf)

    def _begin(self, at: int, now_ms: int) -> None:
        if at >= len(self._values):
            self._start_ms.append(now_ms)
            self._last_ms.append(now_ms)
            self._values.append(0.0)
        else:
            self._start_ms[at] = self._last_ms[at] = now_ms
            self._values[at] = 0.0

    def _forget_old(self, window: QuotaWindow, now_ms: int) -> None:
        oldest_ms = now_ms - window.all_ms
        for at, last_ms in enumerate(self._last_ms):
            if last_ms <= oldest_ms:
                self._begin(at, now_ms)

    def _elapsed_ms(self, window: QuotaWindow, now_ms: int) -> int:
        """Return the time over which the samples are spread: at least all but one of them."""
        elapsed_ms = now_ms - min(self._start_ms, default=now_ms)
        missing = window.samples - 1 - elapsed_ms // window.sample_ms
        if missing > 0:
            elapsed_ms += missing * window.sample_ms
        return max(elapsed_ms, 1)


class TokenBucket:
    """Tokens that arrive at a constant rate, up to a burst. There may be less than none."""

    __slots__ = ("_tokens", "used_ms")

    def __init__(self) -> None:
        self._tokens = 0.0
        self.used_ms = 0  # of the clock; a new bucket is full at its first use

    def tokens(self, window: QuotaWindow, rate: float, now_ms: int) -> float:
        """Return the tokens that are there now. They arrive at `rate` tokens a second."""
        burst = _burst(window, rate)
        arrived = rate * ((now_ms - self.used_ms) / 1000.0)
        self._tokens = min(burst, self._tokens + arrived)
        self.used_ms = now_ms
        return self._tokens

    def take(self, window: QuotaWindow, rate: float, count: float, now_ms: int) -> None:
        """Take tokens, also those that are not there."""
        left = self.tokens(window, rate, now_ms) - count
        self._tokens = min(_burst(window, rate), left)

    def throttle_ms(self, window: QuotaWindow, rate: float, now_ms: int) -> int:
        """Return how long it takes until no token is owed, or 0."""
        tokens = self.tokens(window, rate, now_ms)
        return bounded_ms(-tokens / rate * 1000) if tokens < 0 else 0


def _burst(window: QuotaWindow, rate: float) -> float:
    return window.samples * (window.sample_ms / 1000.0) * rate


def bounded_ms(value: float) -> int:
    """Return whole milliseconds that fit into a reply. Halves are rounded up; NaN is 0.

    Kafka cuts a longer time to its low 32 bits, so that it may not wait at all.
    """
    if math.isnan(value) or value <= 0:
        return 0
    if value >= INT_MAX:
        return INT_MAX
    whole = math.floor(value)
    return whole + (value - whole >= 0.5)

"""Bookies that have failed or lagged of late, and for how long they are avoided.

Pure: time is an argument, in seconds. A bookie is quarantined after some failures in a row, or
when it is many times slower than the others; for a time that doubles whenever it is caught again
and halves with each good period. When the time is up it is on probation: used like any other,
but the first failure brings it back.
Source: LogDevice, outlier detection of readers (seed 002); BookKeeper, `BookieWatcherImpl.java`.
"""

from __future__ import annotations

from collections.abc import Collection

from ledger.ids import BookieId

_LATENCY_WEIGHT = 1 / 16
"""Of each new sample in the moving average."""

_SAMPLES_MIN = 16
_OTHERS_MIN = 2
"""So many samples, and so many other bookies with as many, before one is called slow."""

_NONE: frozenset[BookieId] = frozenset()


class _Record:
    """What is known of one bookie."""

    __slots__ = (
        "duration_s",
        "failures",
        "good_since_s",
        "latency_s",
        "samples",
        "slow",
        "until_s",
    )

    def __init__(self) -> None:
        self.failures = 0  # in a row
        self.samples = 0
        self.latency_s = 0.0  # moving average of `samples`
        self.until_s = 0.0  # quarantined so long
        self.duration_s = 0.0  # of its last quarantine; 0: neither that nor on probation
        self.good_since_s = 0.0
        self.slow = False  # caught for lagging, not for failing


class Quarantine:
    """Fed with the outcome of every request; asked whom to avoid. Time never goes back."""

    __slots__ = (
        "_failures_max",
        "_first_s",
        "_longest_s",
        "_over_at_s",
        "_records",
        "_slow_factor",
        "_slow_s_min",
    )

    def __init__(
        self,
        *,
        failures_max: int,
        first_s: float,
        longest_s: float,
        slow_factor: float,
        slow_s_min: float,
    ) -> None:
        """`failures_max` in a row put a bookie in for `first_s`, later up to `longest_s`; so does
        a mean latency over `slow_factor` times that of the others and over `slow_s_min`."""
        assert failures_max >= 1
        assert 0 < first_s <= longest_s
        assert slow_factor > 1
        self._failures_max = failures_max
        self._first_s = first_s
        self._longest_s = longest_s
        self._slow_factor = slow_factor
        self._slow_s_min = slow_s_min
        self._records: dict[BookieId, _Record] = {}
        self._over_at_s = 0.0  # every quarantine is over then

    def on_result(self, bookie: BookieId, ok: bool, seconds: float | None, now_s: float) -> None:
        """A request ended. `ok`: the bookie did its work, whatever it answered; `seconds` it
        took, None when that says nothing about the bookie."""
        record = self._records.get(bookie)
        if record is None:
            record = self._records[bookie] = _Record()
        if now_s < record.until_s:
            return  # asked for want of others; it is judged again when its time is up
        if not ok:
            record.failures += 1
            if record.failures >= self._failures_max or record.duration_s > 0:
                self._put_in(record, now_s, slow=False)
            return
        record.failures = 0
        if seconds is not None:
            record.samples += 1
            weight = _LATENCY_WEIGHT if record.samples >= _SAMPLES_MIN else 1 / record.samples
            record.latency_s += weight * (seconds - record.latency_s)
            if record.latency_s > self._slow_s_min and self._is_outlier(record):
                self._put_in(record, now_s, slow=True)
                return
        if record.duration_s > 0 and now_s - record.good_since_s >= record.duration_s:
            record.good_since_s = now_s
            record.duration_s /= 2
            if record.duration_s < self._first_s:
                record.duration_s = 0.0

    def suspects(self, now_s: float) -> frozenset[BookieId]:
        """All that are quarantined now: to be asked last."""
        if now_s >= self._over_at_s:
            return _NONE
        return frozenset(b for b, record in self._records.items() if now_s < record.until_s)

    def avoid(self, now_s: float, bookies: Collection[BookieId], keep: int) -> frozenset[BookieId]:
        """Those of `bookies` to place nothing new on: the worst suspects, never more than a third
        of `bookies`, and never so many that fewer than `keep` are left."""
        suspects = self.suspects(now_s).intersection(bookies)
        if not suspects:
            return _NONE
        count = max(0, min(len(bookies) // 3, len(bookies) - keep))
        # One that fails is worse than a slow one; then the one with more to go.
        worst = sorted(
            suspects,
            key=lambda bookie: (
                self._records[bookie].slow,
                -self._records[bookie].until_s,
                bookie,
            ),
        )
        return frozenset(worst[:count])

    def _put_in(self, record: _Record, now_s: float, *, slow: bool) -> None:
        longer_s = max(self._first_s, 2 * record.duration_s)
        record.duration_s = min(longer_s, self._longest_s)
        record.until_s = record.good_since_s = now_s + record.duration_s
        record.slow = slow
        record.failures = record.samples = 0  # measured anew afterwards
        self._over_at_s = max(self._over_at_s, record.until_s)

    def _is_outlier(self, record: _Record) -> bool:
        """Much slower than the others, as far as so few samples tell."""
        if record.samples < _SAMPLES_MIN:
            return False
        others = sorted(
            other.latency_s
            for other in self._records.values()
            if other is not record and other.samples >= _SAMPLES_MIN
        )
        if len(others) < _OTHERS_MIN:
            return False
        return record.latency_s > self._slow_factor * others[len(others) // 2]

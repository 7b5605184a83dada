"""Bookies that have recently failed or lagged, and for how long they are avoided.

Pure: time is an argument, in seconds. A bookie is quarantined after some failures in a row, or
if it is many times slower than the others. The duration doubles each time it is quarantined again
and halves with each good period. After a quarantine the bookie is on probation: it is used like
any other, but its first failure quarantines it again.
Source: LogDevice, outlier detection of readers (seed 002); BookKeeper, `BookieWatcherImpl.java`.
"""

from __future__ import annotations

from collections.abc import Collection

from ledger.ids import BookieId

_LATENCY_WEIGHT = 1 / 16
"""Weight of each new sample in the moving average."""

_SAMPLES_MIN = 16
_OTHERS_MIN = 2
"""A bookie is called slow after `_SAMPLES_MIN` samples, if `_OTHERS_MIN` others have as many."""

_NONE: frozenset[BookieId] = frozenset()


class _Record:
    """The recent outcomes of one bookie, and its quarantine."""

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
        # Failures in a row. A success or a quarantine resets it.
        self.failures = 0
        # The count of latencies in `latency_s`. A quarantine resets it.
        self.samples = 0
        # Moving average of the latencies; the plain mean of the first few.
        self.latency_s = 0.0
        # The quarantine ends at this time; results before it are ignored.
        self.until_s = 0.0
        # Duration of the last quarantine, or 0 if neither quarantined nor on probation.
        self.duration_s = 0.0
        # Start of the present good period on probation. After `duration_s`, the duration halves.
        self.good_since_s = 0.0
        # True if the last quarantine was for latency, not for failures.
        self.slow = False


class Quarantine:
    """The outcomes of all requests by bookie, and the bookies to avoid. Time never goes back."""

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
        """Quarantine a bookie for `first_s` after `failures_max` failures in a row.

        A bookie is also quarantined if its mean latency is above `slow_s_min` and `slow_factor`
        times the median of the others. Repeated quarantines take up to `longest_s`.
        """
        assert failures_max >= 1
        assert 0 < first_s <= longest_s
        assert slow_factor > 1
        self._failures_max = failures_max
        self._first_s = first_s
        self._longest_s = longest_s
        self._slow_factor = slow_factor
        self._slow_s_min = slow_s_min
        # Every bookie that had a request. Records are never dropped: bookies are few.
        self._records: dict[BookieId, _Record] = {}
        # The end of the last quarantine, so that `suspects` is cheap when there is none.
        self._over_at_s = 0.0

    def on_result(self, bookie: BookieId, ok: bool, seconds: float | None, now_s: float) -> None:
        """Count the outcome of a request. `ok` is True if the bookie did its work.

        `seconds` is the latency, or None if it is no measure of the bookie.
        """
        record = self._records.get(bookie)
        if record is None:
            record = self._records[bookie] = _Record()
        if now_s < record.until_s:
            return  # used for lack of others: its quarantine does not change
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
        """Return all quarantined bookies. Readers ask them last."""
        if now_s >= self._over_at_s:
            return _NONE
        return frozenset(b for b, record in self._records.items() if now_s < record.until_s)

    def avoid(self, now_s: float, bookies: Collection[BookieId], keep: int) -> frozenset[BookieId]:
        """Return those of `bookies` that should get no new entries: the worst suspects.

        At most a third of `bookies` is returned, and at least `keep` bookies are left.
        """
        suspects = self.suspects(now_s).intersection(bookies)
        if not suspects:
            return _NONE
        count = max(0, min(len(bookies) // 3, len(bookies) - keep))
        # A failing bookie is worse than a slow one. Of two equal ones, the longer quarantine is
        # worse.
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
        record.failures = record.samples = 0
        self._over_at_s = max(self._over_at_s, record.until_s)

    def _is_outlier(self, record: _Record) -> bool:
        """True if the bookie is much slower than the median of the others, given enough samples."""
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

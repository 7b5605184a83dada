"""The greylist of one process: bookies that fail or lag behind the others, and for how long.

    requests ─▶ failures in a row ─┐
    samples  ─▶ outliers           ├─▶ greylist ─▶ order of reads, placement of new entries
                                   ┘

Pure: time is an argument, in seconds. A bookie fails after some failures in a row. It is slow if
its latest samples lie far above the averages of the others, each within its class of size. A bookie
that leaves the greylist is on probation: it is measured again. Until a whole window of its answers
is good, a slow one is still asked last, and only probes measure it. A failing bookie is worse than
a slow one, which answers after all.
Source: LogDevice, `ClientReadStreamFailureDetector` and `OutlierDetection.h` (seed 002);
BookKeeper, `BookieWatcherImpl.java`. Decision 0017 tells what differs from LogDevice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from math import sqrt
from typing import NamedTuple

from ledger.core.latency import LatencySamples, SampleClass, SampleKind, class_of
from ledger.ids import BookieId

DEVIATIONS = 5.0
"""How many deviations of the others' averages an outlier lies above their mean. LogDevice's."""

DECREASE_RATE = 0.25
"""Seconds of the next duration, or units of the margin, that a good second takes off."""

OTHERS_MIN = 2
"""An outlier needs this many others to compare with, or all others of a smaller cluster."""

SAMPLES_MIN = 3
"""Samples without which another bookie says nothing about a suspect."""

PROBE_EVERY = 64
"""One request in this many may be sent to another bookie too."""

PROBES_MAX = 12
"""Most probes in a row on a suspicion. `PROBE_EVERY` requests or `PROBE_EVERY_S` earn one more."""

PROBE_EVERY_S = 1.0
"""A suspicion that probes did not confirm is checked again after `PROBES_MAX` times this.

Requests alone would earn probes too slowly: the suspect makes them rare.
"""

_NONE: frozenset[BookieId] = frozenset()


class SlowDetection(Enum):
    """What the process does about slow bookies."""

    DISABLED = "disabled"  # takes no samples
    OBSERVE_ONLY = "observe-only"  # reports slow bookies, and sends the same requests as without
    ENABLED = "enabled"  # avoids slow bookies, and compares replicas with each other


class Reason(Enum):
    """Why a bookie is greylisted."""

    FAILING = "failing"
    SLOW = "slow"


class Greylisted(NamedTuple):
    """One entry of the greylist."""

    bookie: BookieId
    reason: Reason
    since_s: float
    until_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """The settings of a greylist."""

    detection: SlowDetection
    failures_max: int  # failures in a row after which a bookie is greylisted
    failing_s: float  # duration of the first time as failing, which doubles with each further one
    failing_s_max: float
    margin: float  # an outlier is slower than the others' mean by more than this many times it
    slow_s_min: float  # a bookie faster than this never counts as slow
    slow_s: float  # duration of the first time as slow, which doubles with each further one
    slow_s_max: float
    average_s: float  # how long a sample counts in the averages

    def __post_init__(self) -> None:
        assert self.failures_max >= 1
        assert 0 < self.failing_s <= self.failing_s_max
        assert self.margin > 0
        assert self.slow_s_min > 0
        assert 0 < self.slow_s <= self.slow_s_max
        assert self.average_s > 0


class _Failing:
    """The failures of one bookie."""

    __slots__ = ("duration_s", "failures", "good_since_s", "since_s", "until_s")

    def __init__(self) -> None:
        # Failures in a row. A success, and being greylisted, reset it.
        self.failures = 0
        # The bookie is greylisted in this interval. Results before its end are ignored.
        self.since_s = self.until_s = 0.0
        # Duration of the last time, or 0 if neither greylisted nor on probation.
        self.duration_s = 0.0
        # Start of the present good period on probation. After `duration_s`, the duration halves.
        self.good_since_s = 0.0


class _Slow:
    """The latency of one bookie."""

    __slots__ = (
        "budget",
        "classes",
        "earned_at_s",
        "good_s",
        "good_since_s",
        "may_probe",
        "next_s",
        "probed",
        "requests",
        "since_s",
        "suspect",
        "until_s",
        "why",
    )

    def __init__(self, next_s: float) -> None:
        # The bookie is greylisted in this interval. Samples before its end are ignored.
        self.since_s = self.until_s = 0.0
        # What made the bookie an outlier, for people. Empty before the first time.
        self.why = ""
        # The classes in which the bookie had samples before it was greylisted last.
        self.classes: frozenset[SampleClass] = frozenset()
        # Duration of the next time, before the good seconds since the last one are subtracted.
        self.next_s = next_s
        # The first and the last good sample since the bookie was greylisted last; the first is
        # None before there is one.
        self.good_since_s: float | None = None
        self.good_s = 0.0
        # Kinds whose latest sample lay above the threshold, or which are to be measured anew.
        self.suspect: set[SampleKind] = set()
        # Probes left to confirm a suspicion, up to `PROBES_MAX`. Requests to the bookie earn more,
        # and so does time, up to the latest of them, once they are used up.
        self.budget = float(PROBES_MAX)
        self.earned_at_s = 0.0
        # False from the last probe of the budget on, until the budget is whole again: only many
        # probes in a row prove something.
        self.may_probe = True
        # Requests of each kind to this bookie, for the probe of one in `PROBE_EVERY`. A count for
        # all bookies could fall in step with the requests: always on a speculative one.
        self.requests = dict.fromkeys(SampleKind, 0)
        # When each other bookie was probed last for this one, as a number of a request.
        self.probed: dict[BookieId, int] = {}


def find_outliers(
    values: Mapping[BookieId, float], *, margin: float, at_least_s: float, outliers_max: int
) -> tuple[frozenset[BookieId], float]:
    """Return the bookies far above the rest, and the mean of the rest.

    The most outliers that fit are returned: each lies above the threshold that follows from the
    rest, and the rest lies below it. Source: LogDevice, `OutlierDetection::findOutliers`.
    """
    ordered = sorted(values, key=lambda name: (-values[name], name))
    center = 0.0
    for count in range(min(outliers_max, len(ordered) - 1), 0, -1):
        rest = [values[name] for name in ordered[count:]]
        center = sum(rest) / len(rest)
        deviation = sqrt(sum((value - center) ** 2 for value in rest) / len(rest))
        threshold = max(center * (1 + margin) + DEVIATIONS * deviation, at_least_s)
        if values[ordered[count - 1]] > threshold >= rest[0]:
            return frozenset(ordered[:count]), center
    return _NONE, center


class Greylist:
    """The outcomes of all requests by bookie, and the bookies to avoid. Time never goes back."""

    __slots__ = (
        "_failing",
        "_gone_since_s",
        "_margin",
        "_margin_since_s",
        "_over_at_s",
        "_returning",
        "_rules",
        "_samples",
        "_slow",
        "catches",
    )

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        # Every bookie with a result, or a sample, until `forget_gone` drops it.
        self._failing: dict[BookieId, _Failing] = {}
        self._slow: dict[BookieId, _Slow] = {}
        # Since when bookies with a record are gone. Replaced by each `forget_gone`.
        self._gone_since_s: dict[BookieId, float] = {}
        # The samples of each class, by bookie. Being greylisted clears those of the bookie.
        self._samples: dict[SampleClass, dict[BookieId, LatencySamples]] = {}
        # The margin after the last catch, and the time of it. Each catch doubles the margin, and
        # each second since then takes `DECREASE_RATE` off it, down to the one of the rules.
        self._margin = rules.margin
        self._margin_since_s = 0.0
        # The end of the last time in the greylist, so that `suspects` is cheap when it is empty.
        self._over_at_s = 0.0
        # Bookies that were found slow, and not measured again since then, by kind of request.
        self._returning: dict[SampleKind, set[BookieId]] = {kind: set() for kind in SampleKind}
        # How often a bookie was found slow. Only rises.
        self.catches = 0

    def forget_gone(self, present: Collection[BookieId], now_s: float) -> None:
        """Drop the records of bookies that are gone for as long as a sample counts.

        `present` are the bookies that exist. Every call counts as one look at them.
        """
        gone = (self._failing.keys() | self._slow.keys()).difference(present)
        self._gone_since_s = {name: self._gone_since_s.get(name, now_s) for name in gone}
        for name, since_s in list(self._gone_since_s.items()):
            if now_s - since_s >= self._rules.average_s:
                self._forget(name)

    def _forget(self, bookie: BookieId) -> None:
        for records in (self._failing, self._slow, self._gone_since_s, *self._samples.values()):
            records.pop(bookie, None)
        for returning in self._returning.values():
            returning.discard(bookie)
        for record in self._slow.values():
            record.probed.pop(bookie, None)

    # -- failures ------------------------------------------------------------------------------

    def on_result(self, bookie: BookieId, ok: bool, now_s: float) -> None:
        """Count the outcome of a request. `ok` is True if the bookie did its work."""
        record = self._failing.get(bookie)
        if record is None:
            record = self._failing[bookie] = _Failing()
        if now_s < record.until_s:
            return  # used for lack of others: the greylist does not change
        if not ok:
            record.failures += 1
            if record.failures >= self._rules.failures_max or record.duration_s > 0:
                self._put_failing(record, now_s)
            return
        record.failures = 0
        if record.duration_s > 0 and now_s - record.good_since_s >= record.duration_s:
            record.good_since_s = now_s
            record.duration_s /= 2
            if record.duration_s < self._rules.failing_s:
                record.duration_s = 0.0

    def _put_failing(self, record: _Failing, now_s: float) -> None:
        longer_s = max(self._rules.failing_s, 2 * record.duration_s)
        record.duration_s = min(longer_s, self._rules.failing_s_max)
        record.since_s = now_s
        record.until_s = record.good_since_s = now_s + record.duration_s
        record.failures = 0
        self._over_at_s = max(self._over_at_s, record.until_s)

    # -- latency -------------------------------------------------------------------------------

    def on_sample(
        self,
        bookie: BookieId,
        kind: SampleKind,
        size: int,
        seconds: float,
        now_s: float,
        beside: Collection[BookieId] = (),
    ) -> bool:
        """Count the latency of an answer of `size` bytes. Bookies `beside` got the same request.

        Returns True if the bookie may be an outlier: pass the same sample to `judge`.
        """
        if self._rules.detection is SlowDetection.DISABLED:
            return False
        record = self._slow_of(bookie)
        if now_s < record.until_s:
            return False  # used for lack of others
        which = class_of(kind, size)
        by_bookie = self._samples.setdefault(which, {})
        samples = by_bookie.get(bookie)
        if samples is None:
            samples = by_bookie[bookie] = LatencySamples(self._rules.average_s)
        samples.add(seconds, now_s, beside)
        if seconds >= self._rules.slow_s_min:
            return True
        self._on_good(bookie, kind, samples, now_s)
        return False

    def judge(
        self,
        bookie: BookieId,
        kind: SampleKind,
        size: int,
        now_s: float,
        replicas: Collection[BookieId],
    ) -> None:
        """Greylist the bookie if it is an outlier after its latest sample.

        `replicas` are the bookies that hold the entry, this one among them.
        """
        record = self._slow_of(bookie)
        which = class_of(kind, size)
        samples = self._samples[which][bookie]
        if not self._is_suspect(bookie, which, now_s):
            self._on_good(bookie, kind, samples, now_s)
            return
        record.suspect.add(kind)
        if not samples.full:
            return
        values = self._others(bookie, which, samples.began_s, now_s)
        can_answer = set(replicas).difference(self.suspects(now_s), (bookie,))
        # Two were needed to find it slow the first time. Now each request has one to compare with.
        needed = 1 if bookie in self._returning[kind] else min(OTHERS_MIN, len(can_answer))
        if not values or len(values) < needed:
            return  # it stays suspect, so probes ask the others
        values[bookie] = samples.present_s
        outliers, center_s = self._outliers(values, which, now_s)
        if bookie in outliers:
            why = f"{which}: {values[bookie] * 1e3:.0f} ms, the others {center_s * 1e3:.1f} ms"
            self._put_slow(bookie, record, why, now_s)

    def _slow_of(self, bookie: BookieId) -> _Slow:
        record = self._slow.get(bookie)
        if record is None:
            record = self._slow[bookie] = _Slow(self._rules.slow_s)
        return record

    def _on_good(
        self, bookie: BookieId, kind: SampleKind, samples: LatencySamples, now_s: float
    ) -> None:
        record = self._slow[bookie]
        if record.good_since_s is None:
            record.good_since_s = now_s
        record.good_s = now_s
        if record.suspect and (not record.why or samples.full):  # probation needs a full window
            record.suspect.discard(kind)
            self._returning[kind].discard(bookie)

    def _is_suspect(self, bookie: BookieId, which: SampleClass, now_s: float) -> bool:
        """Return whether the latest sample is an outlier, as far as others are known."""
        by_bookie = self._samples[which]
        latest_s = by_bookie[bookie].latest_s
        values = {
            name: samples.average_s(now_s)
            for name, samples in by_bookie.items()
            if name != bookie and samples.count(now_s) > 0
        }
        # The mean of those that are no outliers is at least the lowest average.
        if not values or latest_s <= min(values.values()) * (1 + self._rules.margin):
            return False
        values[bookie] = latest_s
        return bookie in self._outliers(values, which, now_s)[0]

    def _outliers(
        self, values: Mapping[BookieId, float], which: SampleClass, now_s: float
    ) -> tuple[frozenset[BookieId], float]:
        """Return the outliers, so that at most half of the bookies are greylisted, rounded up."""
        left = self._left(which, now_s)
        return find_outliers(
            values,
            margin=self._margin_at(now_s),
            at_least_s=self._rules.slow_s_min,
            outliers_max=(len(values) + left + 1) // 2 - left,
        )

    def _left(self, which: SampleClass, now_s: float) -> int:
        """Return how many bookies were greylisted out of this class, and still are."""
        return sum(now_s < one.until_s and which in one.classes for one in self._slow.values())

    def _others(
        self, bookie: BookieId, which: SampleClass, began_s: float, now_s: float
    ) -> dict[BookieId, float]:
        """Return what to compare a suspect with, by bookie.

        Only bookies count that got some of the same requests since the suspect's slow answers
        began. Load of this process, and entries that no bookie has in memory, slow down all of
        them. Of the average and those answers the higher one counts. Without probes, requests of
        the same class must do.
        """
        beside = bookie if self._rules.detection is SlowDetection.ENABLED else None
        return {
            name: max(samples.average_s(now_s), lately_s)
            for name, samples in self._samples[which].items()
            if name != bookie
            and samples.count(now_s) >= SAMPLES_MIN
            and (lately_s := samples.mean_since(began_s, beside)) is not None
        }

    def _put_slow(self, bookie: BookieId, record: _Slow, why: str, now_s: float) -> None:
        good_s = 0.0 if record.good_since_s is None else record.good_s - record.good_since_s
        rules = self._rules
        duration_s = max(rules.slow_s, record.next_s - DECREASE_RATE * good_s)
        record.next_s = min(2 * duration_s, rules.slow_s_max)
        record.since_s, record.until_s = now_s, now_s + duration_s
        record.why = why
        record.good_since_s = None
        record.suspect = set(SampleKind)  # measured anew, once the time is over
        record.budget, record.may_probe = float(PROBES_MAX), True
        # Its samples would no longer be normal ones, for itself nor for the others.
        record.classes = frozenset(
            which for which, one in self._samples.items() if one.pop(bookie, None) is not None
        )
        self._margin, self._margin_since_s = 2 * self._margin_at(now_s), now_s
        self.catches += 1
        if rules.detection is SlowDetection.ENABLED:
            self._over_at_s = max(self._over_at_s, record.until_s)
            for returning in self._returning.values():
                returning.add(bookie)

    def _margin_at(self, now_s: float) -> float:
        lower = self._margin - DECREASE_RATE * (now_s - self._margin_since_s)
        return max(self._rules.margin, lower)

    # -- probes --------------------------------------------------------------------------------

    def choose_probe(
        self, bookie: BookieId, kind: SampleKind, replicas: Collection[BookieId], now_s: float
    ) -> BookieId | None:
        """Return a replica that gets this request to `bookie` too, or None. Call it per request.

        Without a comparison no bookie is ever found slow. So one request in `PROBE_EVERY` is sent
        twice while too few others were measured, and a suspicion is checked at once. At the tail a
        single poll is no sample, so one in `PROBE_EVERY` is always sent twice. Requests are sent to
        replicas on probation too.
        """
        if self._rules.detection is not SlowDetection.ENABLED:
            return None
        record = self._slow_of(bookie)
        record.requests[kind] += 1
        _earn_probes(record, now_s)
        chosen = self._choose_compared(record, bookie, kind, replicas, now_s)
        if chosen is None and self._returning[kind]:
            chosen = self._choose_returning(bookie, kind, replicas, now_s)
        return chosen

    def _choose_compared(
        self,
        record: _Slow,
        bookie: BookieId,
        kind: SampleKind,
        replicas: Collection[BookieId],
        now_s: float,
    ) -> BookieId | None:
        """Choose a replica to compare `bookie` with, if that is due."""
        in_turn = record.requests[kind] % PROBE_EVERY == 0
        due = in_turn and self._lacks_samples(bookie, kind, len(replicas), now_s)
        if not due and not (record.may_probe and kind in record.suspect):
            return None
        suspects = self.suspects(now_s)
        if bookie in suspects:
            return None
        others = [name for name in replicas if name != bookie and name not in suspects]
        if not others:
            return None
        if not due:
            record.budget -= 1
        other = min(others, key=lambda name: record.probed.get(name, 0))
        record.probed[other] = sum(record.requests.values())
        return other

    def _choose_returning(
        self, bookie: BookieId, kind: SampleKind, replicas: Collection[BookieId], now_s: float
    ) -> BookieId | None:
        """Choose a replica on probation, to measure it again beside `bookie`."""
        suspects = self.suspects(now_s)
        for name in replicas:
            if name == bookie or name not in self._returning[kind] or name in suspects:
                continue
            record = self._slow[name]
            _earn_probes(record, now_s)
            if record.may_probe:
                record.budget -= 1
                return name
        return None

    def _lacks_samples(
        self, bookie: BookieId, kind: SampleKind, replicas: int, now_s: float
    ) -> bool:
        if kind is SampleKind.TAIL:
            return True
        for which, by_bookie in self._samples.items():
            own = by_bookie.get(bookie)
            if which.kind is not kind or own is None or not own.count(now_s):
                continue
            known = self._left(which, now_s) + sum(
                one.count(now_s) >= SAMPLES_MIN for one in by_bookie.values() if one is not own
            )
            if known < min(OTHERS_MIN, replicas - 1):
                return True
        return False

    # -- what follows --------------------------------------------------------------------------

    def suspects(self, now_s: float) -> frozenset[BookieId]:
        """Return all greylisted bookies, except those that are only observed."""
        if now_s >= self._over_at_s:
            return _NONE
        return self._failing_at(now_s) | self._slow_at(now_s)

    def _failing_at(self, now_s: float) -> frozenset[BookieId]:
        return frozenset(name for name, one in self._failing.items() if now_s < one.until_s)

    def _slow_at(self, now_s: float) -> frozenset[BookieId]:
        if self._rules.detection is not SlowDetection.ENABLED:
            return _NONE
        return frozenset(name for name, one in self._slow.items() if now_s < one.until_s)

    def asks_all_alike(self, now_s: float, kind: SampleKind) -> bool:
        """Return whether there is certainly no bookie that requests of this kind ask last."""
        return now_s >= self._over_at_s and not self._returning[kind]

    def ask_last(
        self,
        bookies: Collection[BookieId],
        down: Collection[BookieId],
        now_s: float,
        most: int,
        kind: SampleKind,
    ) -> frozenset[BookieId]:
        """Return those of a write set that readers ask after the others.

        At most `most` of them are down, greylisted or, for being slow, on probation together. To
        make room, the slow bookies leave that were greylisted first. Source: LogDevice,
        `ClientReadStreamScd::updateFailureDetectorWorkingSet`.
        """
        if self.asks_all_alike(now_s, kind):
            return _NONE
        failing = self._failing_at(now_s).intersection(bookies)
        slow = self._slow_at(now_s).union(self._returning[kind])
        slow = slow.intersection(bookies).difference(failing, down)
        room = max(0, most - len(failing.union(down).intersection(bookies)))
        newest_first = sorted(slow, key=lambda name: (-self._slow[name].since_s, name))
        return failing.union(newest_first[:room])

    def avoid(self, now_s: float, bookies: Collection[BookieId], keep: int) -> frozenset[BookieId]:
        """Return those of `bookies` that should get no new entries: the worst suspects.

        At most a third of `bookies` is returned, and at least `keep` bookies are left.
        """
        failing = self._failing_at(now_s)
        suspects = self.suspects(now_s).intersection(bookies)
        if not suspects:
            return _NONE
        count = max(0, min(len(bookies) // 3, len(bookies) - keep))

        def badness(name: BookieId) -> tuple[bool, float, BookieId]:
            """Put failing bookies first, then those with the most time left."""
            until_s = self._failing[name].until_s if name in failing else self._slow[name].until_s
            return name not in failing, -until_s, name

        return frozenset(sorted(suspects, key=badness)[:count])

    def entries(self, now_s: float) -> list[Greylisted]:
        """Return the greylist by bookie, with slow bookies that are only observed."""
        found = [
            Greylisted(
                name,
                Reason.FAILING,
                one.since_s,
                one.until_s,
                f"{self._rules.failures_max} requests in a row failed, or one on probation",
            )
            for name, one in self._failing.items()
            if now_s < one.until_s
        ]
        found += [
            Greylisted(name, Reason.SLOW, one.since_s, one.until_s, one.why)
            for name, one in self._slow.items()
            if now_s < one.until_s
        ]
        return sorted(found, key=lambda one: (one.bookie, one.reason.value))


def _earn_probes(record: _Slow, now_s: float) -> None:
    """Add to the budget for one more request, and for time once the budget is used up."""
    earned = 1 / PROBE_EVERY
    if not record.may_probe:  # else rare requests would earn all of their probes
        earned = max(earned, (now_s - record.earned_at_s) / PROBE_EVERY_S)
    record.budget = min(record.budget + earned, PROBES_MAX)
    record.earned_at_s = now_s
    record.may_probe = record.budget >= (1 if record.may_probe else PROBES_MAX)

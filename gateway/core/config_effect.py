"""What the settings of a topic do to the segments that it has now. Pure.

    oldest ──── completed ──── newest completed ──── in progress
      goes by retention          stays                 rolls by segment.bytes or segment.ms

Retention removes completed segments from the oldest on, and ends at the first that is due by
neither time nor size. The newest completed segment with an entry stays, because the next offset
follows from its end. Times count from the completion of a segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

NO_LIMIT: Final = -1

TOPIC_KEYS_WITH_EFFECT: Final = frozenset(
    {
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "control.record.interval.ms",
        "control.record.policy",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "gateway.loss.delivery",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.ms",
    }
)
"""The settings of a topic that a gateway reads. The others are stored and shown only."""

BROKER_KEYS_WITH_EFFECT: Final = frozenset(
    {
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
    }
)
"""Settings of brokers that act at once, besides the defaults of `TOPIC_KEYS_WITH_EFFECT`."""


class Subject(StrEnum):
    """The subject that a setting acts on."""

    removal = "removal"  # of old segments
    roll = "roll"  # of the segment in progress
    cleaning = "cleaning"  # of compacted partitions
    truncated = "truncated"  # segments that are truncated and not yet deleted
    writes = "writes"  # new batches
    reads = "reads"  # what consumers receive


_SUBJECTS: Final = {
    "retention.ms": Subject.removal,
    "retention.bytes": Subject.removal,
    "segment.ms": Subject.roll,
    "segment.bytes": Subject.roll,
    "cleanup.policy": Subject.cleaning,
    "min.cleanable.dirty.ratio": Subject.cleaning,
    "min.compaction.lag.ms": Subject.cleaning,
    "max.compaction.lag.ms": Subject.cleaning,
    "delete.retention.ms": Subject.cleaning,
    "file.delete.delay.ms": Subject.truncated,
    "gateway.loss.delivery": Subject.reads,
    "control.record.policy": Subject.reads,
    "control.record.interval.ms": Subject.reads,
}


def subject_of(key: str) -> Subject | None:
    """Return what a setting of a topic acts on, None if it has no effect."""
    if key not in TOPIC_KEYS_WITH_EFFECT:
        return None
    return _SUBJECTS.get(key, Subject.writes)


class SegmentFacts(NamedTuple):
    """One segment as its metadata describe it, in ms since the epoch and in bytes."""

    number: int
    ledger: int
    first_offset: int
    end_offset: int | None  # behind its last record; None while it is in progress
    size_bytes: int | None  # of one copy; None while it is in progress, or if it is unknown
    created_ms: int | None
    completed_ms: int | None  # None while it is in progress
    truncated: bool = False
    empty: bool = False  # completed without an entry
    copies: int = 1  # bookies that store each entry

    @property
    def completed(self) -> bool:
        return self.completed_ms is not None


class Retention(NamedTuple):
    """The settings that remove segments. -1 is no limit."""

    ms: int
    bytes: int
    deletes: bool  # whether cleanup.policy has `delete`


class Fate(StrEnum):
    """What retention does to a segment."""

    now = "goes now"
    later = "goes later"
    kept = "stays"
    newest = "stays: newest completed"
    open = "in progress"
    truncated = "truncated"


class Removal(NamedTuple):
    """What retention does to one segment, and why."""

    segment: SegmentFacts
    fate: Fate
    by: str | None = None  # the setting that removes it
    at_ms: int | None = None  # the earliest time at which it goes; None if it is unknown
    more_bytes: int | None = None  # it goes sooner after so many more bytes; None: no limit

    def text(self, now_ms: int) -> str:
        """Return the fate in a few words."""
        if self.fate is Fate.now:
            return f"goes now by {self.by}"
        if self.fate is not Fate.later:
            return self.fate.value
        parts: list[str] = []
        if self.at_ms is not None:
            parts.append(f"goes in {show_ms(self.at_ms - now_ms)} by retention.ms")
        if self.more_bytes is not None:
            parts.append(f"goes after {self.more_bytes:,} more bytes by retention.bytes")
        return ", or ".join(parts)


def removals(
    segments: Sequence[SegmentFacts], rules: Retention, now_ms: int, open_bytes: int
) -> list[Removal]:
    """Return what retention does to each segment, from the oldest on.

    `open_bytes` are those of the segment in progress. A segment without a known size counts as 0.
    Source: `SegmentTable.expired`, which decides; a test compares the two.
    """
    newest = max((at for at, each in enumerate(segments) if _has_entries(each)), default=0)
    left = sum(_size(each, open_bytes) for each in segments if not each.truncated)
    due_ms, found = now_ms, list[Removal]()
    for at, segment in enumerate(segments):
        if not segment.completed:
            found.append(Removal(segment, Fate.open))
            continue
        if segment.truncated:
            found.append(Removal(segment, Fate.truncated))
            continue
        left -= _size(segment, open_bytes)
        if at >= newest:
            found.append(Removal(segment, Fate.newest))
            continue
        one = _removal(segment, rules, left, due_ms, now_ms)
        if one.fate is Fate.later and one.at_ms is not None:
            due_ms = max(due_ms, one.at_ms)
        elif one.fate is not Fate.now:
            due_ms = _NEVER_MS
        found.append(one)
    return found


_NEVER_MS: Final = 2**62


def _removal(
    segment: SegmentFacts, rules: Retention, left: int, due_ms: int, now_ms: int
) -> Removal:
    """Return the fate of a segment. No segment goes before the older ones, at `due_ms`."""
    if not rules.deletes or (rules.ms < 0 and rules.bytes < 0):
        return Removal(segment, Fate.kept)
    assert segment.completed_ms is not None
    by_size = 0 <= rules.bytes <= left
    at_ms = segment.completed_ms + rules.ms if rules.ms >= 0 else _NEVER_MS
    if due_ms <= now_ms and (by_size or at_ms <= now_ms):
        by = "retention.ms" if at_ms <= now_ms else "retention.bytes"
        return Removal(segment, Fate.now, by, now_ms)
    goes_ms = max(due_ms, now_ms if by_size else at_ms)
    more = None if rules.bytes < 0 else max(0, rules.bytes - left)
    if goes_ms >= _NEVER_MS and more is None:
        return Removal(segment, Fate.kept)
    by = "retention.ms" if rules.ms >= 0 else "retention.bytes"
    return Removal(segment, Fate.later, by, goes_ms if goes_ms < _NEVER_MS else None, more)


def _has_entries(segment: SegmentFacts) -> bool:
    return segment.completed and not segment.empty


def _size(segment: SegmentFacts, open_bytes: int) -> int:
    return (segment.size_bytes or 0) if segment.completed else open_bytes


def removal_texts(found: Sequence[Removal], rules: Retention, now_ms: int) -> Iterator[str]:
    """Yield sentences on what retention does to the segments of one partition."""
    if not rules.deletes:
        yield "nothing is removed: cleanup.policy has no delete"
        return
    if rules.ms < 0 and rules.bytes < 0:
        yield "nothing is removed: neither retention.ms nor retention.bytes has a limit"
        return
    going = [each for each in found if each.fate is Fate.now]
    if going:
        size = sum(each.segment.size_bytes or 0 for each in going)
        yield f"{_count(len(going), 'segment')} with {size:,} bytes go now"
    following = next((each for each in found if each.fate is Fate.later), None)
    if following is not None:
        yield f"segment {following.segment.number} is the next: it {following.text(now_ms)}"
    elif not going:
        yield "no completed segment can go: the newest stays, and one in progress never goes"


class RollRules(NamedTuple):
    """The settings that end a segment in progress."""

    ms: int
    bytes: int
    jitter_ms_max: int  # what a gateway may add to `ms`


def open_bytes(segments: Sequence[SegmentFacts], stored_bytes: int | None) -> int:
    """Return the bytes of the segment in progress, from those of all copies of all segments."""
    if not segments or segments[-1].completed or stored_bytes is None:
        return 0
    known = sum((each.size_bytes or 0) * each.copies for each in segments)
    return max(0, stored_bytes - known) // segments[-1].copies


def roll_text(
    segment: SegmentFacts | None, rules: RollRules, now_ms: int, open_bytes: int, end: int | None
) -> str:
    """Return when the segment in progress is completed, in a sentence. `end` is the log's."""
    if segment is None:
        return "no segment is in progress: the next record begins one"
    if end is not None and end <= segment.first_offset:
        return f"segment {segment.number} has no records, and rolls only with some"
    left = max(0, rules.bytes - open_bytes)
    by_bytes = f"after {left:,} more bytes (segment.bytes)" if left else "with the next record"
    if segment.created_ms is None:
        return f"segment {segment.number} rolls {by_bytes}"
    due_ms = segment.created_ms + rules.ms - now_ms
    when = "now" if due_ms <= 0 else f"in {show_ms(due_ms)}"
    spread = f" to {show_ms(max(0, due_ms + rules.jitter_ms_max))}" if rules.jitter_ms_max else ""
    return f"segment {segment.number} rolls {when}{spread} (segment.ms), or {by_bytes}"


def cleaning_text(ratio: float, dirty_bytes: int, ratio_min: float, policy_compacts: bool) -> str:
    """Return how dirty a compacted partition is, in a sentence."""
    if not policy_compacts:
        return "nothing is compacted: cleanup.policy has no compact"
    due = "it is cleaned next" if ratio > ratio_min else f"it is cleaned above {ratio_min:.0%}"
    return f"{ratio:.0%} of its completed segments is dirty ({dirty_bytes:,} bytes): {due}"


_UNITS_MS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def show_ms(duration_ms: int) -> str:
    """Return a duration in its two largest units, such as `2 d 3 h`. Below 0 it is `0 s`."""
    left, parts = max(0, duration_ms), list[str]()
    if 0 < left < 1_000:
        return f"{left} ms"
    for unit_ms, name in _UNITS_MS:
        count, left = divmod(left, unit_ms)
        if count and len(parts) < 2:
            parts.append(f"{count} {name}")
        elif parts:
            break
    return " ".join(parts) or "0 s"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

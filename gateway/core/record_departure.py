"""When a record leaves its partition, and why an earlier one left. Pure.

Retention removes whole segments, oldest first, by the rules of `SegmentTable.expired`: a segment is
old once `retention.ms` has passed since it was closed, and surplus once the segments behind it have
`retention.bytes`. The newest closed segment with records always stays, as does the open one. So
every time here is the earliest one, and every number of bytes the smallest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
COMPACTION: Final = "compaction"
TRUNCATION: Final = "truncation"
_UNLIMITED: Final = -1


class TopicRules(NamedTuple):
    """The settings of a topic that remove records."""

    deletes: bool  # cleanup.policy has "delete"
    compacts: bool  # cleanup.policy has "compact"
    retention_ms: int  # -1: no limit
    retention_bytes: int  # -1: no limit
    segment_ms: int
    compaction_lag_ms: int  # min.compaction.lag.ms
    tombstone_ms: int  # delete.retention.ms


class SegmentFacts(NamedTuple):
    """The segment of a record, as far as its removal depends on it."""

    closed_ms: int | None  # the latest closing of it and of the segments before; None: it is open
    newest: bool  # no closed segment behind it has a record
    later_bytes: int | None  # bytes of the segments behind it; None if they were not counted


class RecordFacts(NamedTuple):
    """The record, as far as its removal depends on it."""

    has_key: bool
    tombstone: bool  # no value
    marker: bool  # the end of a transaction
    timestamp_max: int  # of its batch


class Departure(NamedTuple):
    """One way by which a record may leave."""

    by: str
    applies: bool  # False if the settings rule it out
    earliest_ms: int | None  # not before this time; None if no time is known
    bytes_to_come: int | None  # not before at least so many bytes are written behind it
    condition: str  # what has to happen besides, or why it never happens


def read_rules(settings: Mapping[str, str | None]) -> TopicRules:
    """Return the rules of a topic from its settings, as Kafka names them."""

    def number(name: str, default: int) -> int:
        text = settings.get(name)
        return default if text is None else int(text)

    policies = (settings.get("cleanup.policy") or "delete").replace(" ", "").split(",")
    return TopicRules(
        deletes="delete" in policies,
        compacts="compact" in policies,
        retention_ms=number(RETENTION_MS, _UNLIMITED),
        retention_bytes=number(RETENTION_BYTES, _UNLIMITED),
        segment_ms=number("segment.ms", 0),
        compaction_lag_ms=number("min.compaction.lag.ms", 0),
        tombstone_ms=number("delete.retention.ms", 0),
    )


def departures(
    rules: TopicRules, segment: SegmentFacts, record: RecordFacts, now_ms: int
) -> list[Departure]:
    """Return all ways by which the record may leave, in a fixed order."""
    return [
        _by_time(rules, segment, now_ms),
        _by_size(rules, segment),
        _by_compaction(rules, segment, record, now_ms),
        Departure(TRUNCATION, True, None, None, "only by DeleteRecords (`gateway topic truncate`)"),
    ]


def _by_time(rules: TopicRules, segment: SegmentFacts, now_ms: int) -> Departure:
    if not rules.deletes or rules.retention_ms < 0:
        return _never(RETENTION_MS, rules)
    since_ms = now_ms if segment.closed_ms is None else segment.closed_ms
    earliest_ms = max(since_ms + rules.retention_ms, now_ms)
    return Departure(RETENTION_MS, True, earliest_ms, None, _removable(segment))


def _by_size(rules: TopicRules, segment: SegmentFacts) -> Departure:
    if not rules.deletes or rules.retention_bytes < 0:
        return _never(RETENTION_BYTES, rules)
    later = segment.later_bytes
    left = None if later is None else max(rules.retention_bytes - later, 0)
    return Departure(RETENTION_BYTES, True, None, left, _removable(segment))


def _by_compaction(
    rules: TopicRules, segment: SegmentFacts, record: RecordFacts, now_ms: int
) -> Departure:
    if not rules.compacts:
        return Departure(COMPACTION, False, None, None, "cleanup.policy is not compact")
    earliest_ms = now_ms
    if rules.compaction_lag_ms > 0:
        earliest_ms = max(now_ms, record.timestamp_max + rules.compaction_lag_ms)
    if record.marker:
        condition = "once its transaction has no record left, and delete.retention.ms after that"
        return Departure(COMPACTION, True, earliest_ms, None, condition)
    if not record.has_key:
        return Departure(COMPACTION, False, None, None, "the record has no key")
    condition = "once its key has a newer record in a closed segment"
    if record.tombstone:
        condition = "a tombstone: delete.retention.ms after its first cleaning, or " + condition
    elif segment.closed_ms is None or segment.newest:
        condition += ", and a later segment is closed"
    return Departure(COMPACTION, True, earliest_ms, None, condition)


def _never(by: str, rules: TopicRules) -> Departure:
    why = f"{by} is -1" if rules.deletes else "cleanup.policy is not delete"
    return Departure(by, False, None, None, why)


def _removable(segment: SegmentFacts) -> str:
    if segment.closed_ms is None:
        return "once its segment and a later one are closed"
    return "once a later segment is closed" if segment.newest else ""


class StartFacts(NamedTuple):
    """The start of a partition, as far as it shows why the records before it left."""

    listed: bool  # the segment of the deleted offset is still listed
    inside: bool  # the start lies inside a segment, or a listed segment was truncated
    oldest_began_ms: int | None  # when the oldest segment began; None if that is unknown
    bytes_left: int | None  # of all segments from the start on; None if they were not counted


def cause_of_deletion(rules: TopicRules, start: StartFacts, now_ms: int) -> str | None:
    """Return what deleted an offset below the start, or None if that is not known.

    Retention removes a segment from the list at once. So only a truncation leaves it listed. Of the
    removed ones a cause is named if, by the present settings, no other one can have removed them:
    they were closed when the oldest segment began, and retention never goes below its bytes.
    """
    if start.listed:
        return TRUNCATION
    possible: list[str] = []
    if start.inside:
        possible.append(TRUNCATION)
    if rules.deletes and rules.retention_ms >= 0:
        began_ms = start.oldest_began_ms
        if began_ms is None or began_ms + rules.retention_ms <= now_ms:
            possible.append(RETENTION_MS)
    if rules.deletes and rules.retention_bytes >= 0:
        left = start.bytes_left
        if left is None or left >= rules.retention_bytes:
            possible.append(RETENTION_BYTES)
    return possible[0] if len(possible) == 1 else None

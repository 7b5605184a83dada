"""Explains a setting of a topic: what it does, and to which segments as they are now.

The segments are those of the ledger tier. Apache Kafka's brokers do not show theirs, so there the
effect is not known, and the value, the origin and the meaning are the server's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.admin import configs
from gateway.admin.cleaning import topic_cleaning
from gateway.admin.client import AdminClient
from gateway.admin.segments import from_storage, read_segments
from gateway.admin.topic_figures import offsets_at, stored_sizes
from gateway.admin.topics import LATEST, Row, describe_topic
from gateway.core.config_effect import (
    Removal,
    Retention,
    RollRules,
    SegmentFacts,
    Subject,
    cleaning_text,
    open_bytes,
    removal_texts,
    removals,
    roll_text,
    subject_of,
)

_JITTER = (
    20  # a gateway adds up to a twentieth of segment.ms, so that not all segments roll at once
)
_OUT_OF_REACH = "the segments are not within reach: the gateway's ledgers cannot be read from here"
_PLAIN = {
    Subject.writes: "acts on new records; no stored segment changes",
    Subject.reads: "acts on what consumers receive; no stored segment changes",
}


class _Log(NamedTuple):
    """One partition: its segments, the bytes of the one in progress, and its end."""

    partition: int
    segments: Sequence[SegmentFacts]
    open_bytes: int
    end: int | None


async def explain_topic(client: AdminClient, name: str, key: str, now_ms: int) -> Row:
    """Return a setting with its effect: sentences by partition, and rows of segments."""
    rows = {row["key"]: row for row in await configs.describe(client, configs.topic(name), None)}
    if key not in rows:
        raise configs.unknown_key(key, list(rows), configs.topic(name))
    values = {each: row["value"] for each, row in rows.items()}
    found: Row = {"topic": name, **rows[key], "effect": [], "segments": []}
    if found["has_effect"] is None:
        return found
    if not found["has_effect"]:
        found["effect"].append(_effect(None, "none: this server stores it and shows it only"))
        return found
    await _add_effect(client, found, values, now_ms)
    return found


def _effect(partition: int | None, text: str) -> Row:
    return {"partition": partition, "text": text}


async def _add_effect(
    client: AdminClient, found: Row, values: Mapping[str, Any], now_ms: int
) -> None:
    subject, effect = subject_of(found["key"]), found["effect"]
    if subject is not None and subject in _PLAIN:
        effect.append(_effect(None, _PLAIN[subject]))
        return
    if subject is Subject.cleaning:
        effect += await _cleaning(client, found["topic"], values)
        return
    logs = await _logs(client, found["topic"])
    if logs is None:
        effect.append(_effect(None, _OUT_OF_REACH))
        return
    for log in logs:
        fates = removals(log.segments, _retention(values), now_ms, log.open_bytes)
        if subject is Subject.removal:
            effect += [
                _effect(log.partition, text)
                for text in removal_texts(fates, _retention(values), now_ms)
            ]
        elif subject is Subject.roll:
            effect.append(_effect(log.partition, _roll(log, values, now_ms)))
        else:
            effect.append(_effect(log.partition, _truncated(log)))
        found["segments"] += [_segment_row(log, each, now_ms) for each in fates]


def _retention(values: Mapping[str, Any]) -> Retention:
    deletes = "delete" in (values["cleanup.policy"] or "")
    return Retention(int(values["retention.ms"]), int(values["retention.bytes"]), deletes)


def _roll(log: _Log, values: Mapping[str, Any], now_ms: int) -> str:
    segment_ms = int(values["segment.ms"])
    if "compact" in (values["cleanup.policy"] or ""):
        segment_ms = min(segment_ms, int(values["max.compaction.lag.ms"]))
    rules = RollRules(segment_ms, int(values["segment.bytes"]), segment_ms // _JITTER)
    newest = log.segments[-1] if log.segments else None
    in_progress = None if newest is None or newest.completed else newest
    return roll_text(in_progress, rules, now_ms, log.open_bytes, log.end)


def _truncated(log: _Log) -> str:
    waiting = [str(each.number) for each in log.segments if each.truncated]
    if not waiting:
        return "no truncated segment waits for its deletion"
    return f"truncated and deleted after the delay: segment {', '.join(waiting)}"


def _segment_row(log: _Log, found: Removal, now_ms: int) -> Row:
    segment = found.segment
    since_ms = segment.completed_ms or segment.created_ms
    return {
        "partition": log.partition,
        "segment": segment.number,
        "ledger": segment.ledger,
        "first_offset": segment.first_offset,
        "end_offset": segment.end_offset if segment.completed else log.end,
        "size_bytes": segment.size_bytes if segment.completed else log.open_bytes,
        "age_s": None if since_ms is None else max(0, now_ms - since_ms) // 1000,
        "fate": found.text(now_ms),
    }


async def _logs(client: AdminClient, name: str) -> list[_Log] | None:
    """Return the partitions with their segments; None if these are not within reach."""
    topic = await describe_topic(client, name)
    indexes = [row["partition"] for row in topic["partitions"]]
    topic_id = str(topic["topic_id"])
    segments = await from_storage(client, lambda storage: read_segments(storage, topic_id, indexes))
    if segments is None:
        return None
    places = [(name, index) for index in indexes]
    sizes = await stored_sizes(client, places)
    ends = await offsets_at(client, places, LATEST)
    return [
        _Log(index, found, open_bytes(found, sizes.get((name, index))), ends.get((name, index)))
        for index in indexes
        if (found := segments.get(index)) is not None
    ]


async def _cleaning(client: AdminClient, name: str, values: Mapping[str, Any]) -> list[Row]:
    ratio_min = float(values["min.cleanable.dirty.ratio"])
    if "compact" not in (values["cleanup.policy"] or ""):
        return [_effect(None, cleaning_text(0.0, 0, ratio_min, False))]
    found = await topic_cleaning(client, name)
    if not found.rows:
        return [_effect(None, "no gateway has looked at the partitions of this topic yet")]
    return [
        _effect(
            int(row["partition"]),
            cleaning_text(row["cleanable_ratio"], row["dirty_bytes"], ratio_min, True),
        )
        for row in found.rows
    ]

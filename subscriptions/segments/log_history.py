"""The history of a subscriber, read from its closed segments and the open one in order."""

from __future__ import annotations

from ledger.errors import NoNode, NoSuchLedger
from ledger.ids import LedgerId
from ledger.ports.metadata import MetadataStore
from ledger.streams.plain_log import PlainLogs
from subscriptions.records_pb2 import Subscription as SubscriptionRecord
from subscriptions.segments.in_steps import check_offsets, decode_records
from subscriptions.segments.log_node import decode_node, is_log_node
from subscriptions.segments.log_read import read_subscription
from subscriptions.segments.segment_records import (
    SegmentRecord,
    SubscriptionState,
    decode_committed,
)
from subscriptions.store import OffsetChange, SubscriptionHistory

_Timed = tuple[int, SegmentRecord]
_ATTEMPTS_MAX = 5


async def read_history(
    metadata: MetadataStore, logs: PlainLogs, path: str, *, native: bool
) -> SubscriptionHistory:
    """Read the history of a subscriber. Raises CorruptFormat, MetadataUnavailable, EntryUnknown."""
    history: _HistoryBuilder | None = None
    for _ in range(_ATTEMPTS_MAX):
        try:
            node = await metadata.get(path)
        except NoNode:
            return SubscriptionHistory(0, {}, b"", [])
        if not is_log_node(node.data):
            break
        record = decode_node(node.data, path)
        history, whole = await _read_segments(logs, record, path)
        if whole or await metadata.get(path) == node:
            break  # else its owner copied a segment into the next one meanwhile
    if history is None:
        found = await read_subscription(metadata, logs, path, native=native)
        since_ms = max((each.commit_time_ms for each in found.offsets.values()), default=0)
        return SubscriptionHistory(since_ms, found.offsets, found.note, [])
    return SubscriptionHistory(
        history.since_ms,
        await check_offsets(history.base, path),
        history.base.note,
        history.changes,
    )


class _HistoryBuilder:
    """A history built from segments in order, beginning with the first that holds records."""

    def __init__(self, path: str) -> None:
        self._path = path
        # The time of the first record, -1 until one is added.
        self.since_ms = -1
        # The state at `since_ms`: of the snapshot, then of the first segment's base records.
        self.base = SubscriptionState()
        # The same, with all later records: it has the offsets that a transaction commits.
        self._last = SubscriptionState()
        # All later records, with times that never decrease.
        self.changes: list[OffsetChange] = []

    def add(self, timed: list[_Timed], snapshot: list[_Timed]) -> None:
        if timed and self.since_ms < 0:
            self.since_ms = timed[0][0]
            for record in (*(each for _, each in snapshot), *(r for _, r in timed if r.base)):
                self.base.apply(record)
                self._last.apply(record)
        for at_ms, record in timed:
            if not record.base:
                self._add(at_ms, record)

    def _add(self, at_ms: int, record: SegmentRecord) -> None:
        at_ms = max(at_ms, self.changes[-1].time_ms if self.changes else self.since_ms)
        if record.commits is not None:
            ended = self._last.end(record.producer_id, commits=record.commits)
            self.changes += [
                OffsetChange(at_ms, key, decode_committed(key, body, self._path))
                for key, body in ended
            ]
            return
        self._last.apply(record)
        # A pending offset is no commit, and notes with keys are no part of the history.
        if record.producer_id < 0 and record.note_key is None:
            self.changes.append(self._change(at_ms, record))

    def _change(self, at_ms: int, record: SegmentRecord) -> OffsetChange:
        if record.key is None:
            return OffsetChange(at_ms, None, note=record.note)
        if record.body is None:
            return OffsetChange(at_ms, record.key)
        return OffsetChange(
            at_ms, record.key, decode_committed(record.key, record.body, self._path)
        )


async def _read_segments(
    logs: PlainLogs, record: SubscriptionRecord, path: str
) -> tuple[_HistoryBuilder | None, bool]:
    """Read the segments that the node names. Returns None if none of them holds a record.

    Returns also if every segment was there.
    """
    whole = True
    segments = [
        (past.segment_id, past.snapshot_id if past.HasField("snapshot_id") else None)
        for past in record.past_segments
    ]
    if record.HasField("segment_id"):
        snapshot = record.snapshot_id if record.HasField("snapshot_id") else None
        segments.append((record.segment_id, snapshot))
    builder = _HistoryBuilder(path)
    for segment, snapshot in segments:
        try:
            base: list[_Timed] = []
            if snapshot is not None and builder.since_ms < 0:
                base = await _read_log(logs, LedgerId(snapshot), path)
            builder.add(await _read_log(logs, LedgerId(segment), path), base)
        except NoSuchLedger:
            builder = _HistoryBuilder(path)  # it has expired: the history begins after it
            whole = False
    return (None if builder.since_ms < 0 else builder), whole


async def _read_log(logs: PlainLogs, ledger: LedgerId, path: str) -> list[_Timed]:
    where = f"{path}: ledger {ledger}"
    found: list[_Timed] = []
    whole = 0
    stored = await logs.read(ledger)
    for each, record in zip(stored, await decode_records(stored, where), strict=True):
        found.append((each.time_ms, record))
        if not record.more:
            whole = len(found)
    return found[:whole]

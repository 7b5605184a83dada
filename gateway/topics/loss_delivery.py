"""Turns a lost range of a log into what Kafka clients receive, and records where readers wait.

    not accepted, or accepted with `stop` ─▶ EntryLost: KAFKA_STORAGE_ERROR
    accepted, `skip`                      ─▶ batches without records, which move consumers on
    accepted, `marker`                    ─▶ one record at the last offset of the range

An entry that a bookie may still return gets KAFKA_STORAGE_ERROR too, and its reader waits.

A read that fails costs requests to all bookies of the entry, and seconds if one of them is
silent. So fetches of a blocked offset get the last error, and one task repeats the read meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import takewhile
from typing import NamedTuple, Protocol

from gateway.core.blocked_reads import AT_END, BlockedRead, BlockedReads
from gateway.topics.configs import LossMode, TopicConfig
from gateway.topics.partition_warnings import PartitionWarnings
from gateway.wire.lost_batches import empty_batches, marker_batch
from ledger.errors import LedgerError
from ledger.ports.clock import Clock
from ledger.streams.accepted_losses import EntryAwaited, EntryLost, LostRange, StreamLosses
from ledger.streams.tail_cache import StoredRecord
from ledger.tasks import start_once

_EMPTY_BATCHES_MAX = 16
"""Most empty batches for one range in one read. They cover 2^35 offsets."""

_REPEAT_S = 0.25
"""Pause between two reads of a blocked offset, if clients ask for it all the time."""

_ANY_TIMESTAMP = -1  # that of a record without a timestamp
_TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999


class LostLog(Protocol):
    """The part of a stream that the delivery of its losses needs."""

    @property
    def end_sequence_id(self) -> int: ...

    @property
    def accepted_losses(self) -> StreamLosses: ...

    def epoch_at(self, sequence_id: int) -> int: ...

    def read(self, sequence_id: int, bytes_max: int) -> Awaitable[list[StoredRecord]]: ...

    def find_timestamp(self, timestamp: int, first: int = 0) -> Awaitable[StoredRecord | None]: ...


class _Failure(NamedTuple):
    """A read of a blocked offset that failed."""

    error: LedgerError
    losses: StreamLosses  # those that were accepted before: with others, the read is repeated
    ended_s: float


class LossDelivery:
    """The losses of one partition as its readers meet them."""

    __slots__ = (
        "_clock",
        "_config",
        "_failures",
        "_log",
        "_measuring",
        "_repeating",
        "_stream",
        "_warned",
        "blocked",
    )

    def __init__(
        self,
        stream: LostLog,
        config: Callable[[], TopicConfig],
        log: PartitionWarnings,
        clock: Clock,
    ) -> None:
        self._stream = stream
        self._config = config
        self._log = log
        self._clock = clock
        # The offsets at which readers wait.
        self.blocked = BlockedReads()
        # The last failed read of each blocked offset, without those that `stop` ended.
        self._failures: dict[int, _Failure] = {}
        # The tasks that repeat failed reads, by offset. A task leaves when it ends.
        self._repeating: dict[int, asyncio.Task[None]] = {}
        # True once a loss was logged, until a reader passes one or no reader waits at one.
        self._warned = False
        # Finds the end of a loss that is not accepted. None while no such search runs.
        self._measuring: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Cancel the search for the end of a loss, and repeated reads."""
        tasks = [*self._repeating.values()]
        if self._measuring is not None:
            tasks.append(self._measuring)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- reads --------------------------------------------------------------------------------

    def deliver(self, records: list[StoredRecord], offset: int) -> list[StoredRecord]:
        """Return the result of a read at `offset` with batches in the place of lost ranges.

        Raises EntryLost if the read begins in a lost range at which the topic stops its readers.
        """
        for record in records:
            if record.lost is not None:
                records = self._deliver_lost(records, offset)
                break
        if self.blocked and records:
            self._on_read(offset, records[-1].end_sequence_id)
        return records

    def deliver_cached(
        self, records: list[StoredRecord] | None, offset: int
    ) -> list[StoredRecord] | None:
        """Return the same as `deliver`, or None if `records` is None or a read would raise."""
        if records is None:
            return None
        try:
            return self.deliver(records, offset)
        except EntryLost:
            return None

    def on_failed(self, offset: int, error: LedgerError) -> None:
        """Record a read at `offset` that failed, if its entry is lost or may be."""
        now_s = self._clock.monotonic_s()
        if isinstance(error, EntryAwaited):
            self.blocked.on_failed(offset, now_s, lost=False, waits_for=error.bookies)
            self._remember(offset, error, now_s)
        elif isinstance(error, _Stopped):
            self.blocked.on_failed(offset, now_s, lost=True, stopped=True)
        elif isinstance(error, EntryLost):
            known = self.blocked.any_lost(now_s)
            new = self.blocked.on_failed(offset, now_s, lost=True)
            self._remember(offset, error, now_s)
            if not (self._warned and known):
                self._warned = True
                self._log.warn_of_loss(offset, error)
            if new and self._measuring is None:
                self._measuring = start_once(
                    "the search for the end of a loss", self._measure(offset), expected=LedgerError
                )

    def _remember(self, offset: int, error: LedgerError, now_s: float) -> None:
        """Keep the error for the next fetches. Those of offsets without readers are dropped."""
        self._failures[offset] = _Failure(error, self._stream.accepted_losses, now_s)
        for gone in [at for at in self._failures if at not in self.blocked]:
            del self._failures[gone]

    def known_failure(self, offset: int) -> LedgerError | None:
        """Return why readers are blocked at `offset`, or None if the entry is to be read.

        Repeats the read in a task of its own, unless that was done just before.
        """
        failure = self._failures.get(offset)
        if failure is None:
            return None
        now_s = self._clock.monotonic_s()
        asked = self.blocked.on_asked(offset, now_s)
        if not asked or failure.losses is not self._stream.accepted_losses:
            del self._failures[offset]
            return None
        if offset not in self._repeating and now_s - failure.ended_s >= _REPEAT_S:
            task = start_once("a repeated read", self._repeat(offset), expected=LedgerError)
            self._repeating[offset] = task
            task.add_done_callback(lambda _: self._repeating.pop(offset, None))
        return failure.error

    async def _repeat(self, offset: int) -> None:
        """Read a blocked offset once more. If there is another result, fetches read again."""
        try:
            await self._stream.read(offset, 1)
        except (EntryLost, EntryAwaited) as error:
            self.on_failed(offset, error)
            return
        except LedgerError:
            self._failures.pop(offset, None)
            raise
        self._failures.pop(offset, None)
        self._on_read(offset, offset + 1)

    def on_open_failed(self, error: LedgerError) -> None:
        """Record that the log cannot be opened, if a part of it is lost or may be."""
        now_s = self._clock.monotonic_s()
        if isinstance(error, EntryLost):
            self.blocked.on_failed(AT_END, now_s, lost=True)
        elif isinstance(error, EntryAwaited):
            self.blocked.on_failed(AT_END, now_s, lost=False, waits_for=error.bookies)

    def on_opened(self) -> None:
        """Record that the end of the log is known."""
        self.blocked.on_read(AT_END, AT_END + 1)

    def places(self, start: int) -> list[BlockedRead]:
        """Return the offsets from `start` on at which readers wait, and `AT_END`."""
        return self.blocked.places(start, self._clock.monotonic_s()) if self.blocked else []

    def readers_blocked(self, duration_s: float) -> int:
        """Return how many readers have waited for at least `duration_s` seconds."""
        if not self.blocked:
            return 0
        return self.blocked.readers_blocked(duration_s, self._clock.monotonic_s())

    def _on_read(self, first: int, end: int) -> None:
        if self.blocked.on_read(first, end):
            self._warned = False

    async def _measure(self, offset: int) -> None:
        """Find the first readable record behind a loss that is not accepted, or the end."""
        try:
            end = self._stream.end_sequence_id
            record = await self._stream.find_timestamp(_ANY_TIMESTAMP, offset + 1)
            self.blocked.know_following(offset, end if record is None else record.sequence_id)
        finally:
            self._measuring = None

    # -- lost ranges --------------------------------------------------------------------------

    def _deliver_lost(self, records: list[StoredRecord], offset: int) -> list[StoredRecord]:
        """Replace the lost ranges, or leave out all from the first one on."""
        mode = self._config().loss_mode
        if mode is LossMode.STOP:
            readable = list(takewhile(lambda record: record.lost is None, records))
            if not readable:
                assert records[0].lost is not None
                raise _stopped(records[0].lost)
            return readable
        shown: list[StoredRecord] = []
        for record in records:
            if record.lost is None:
                shown.append(record)
                continue
            batches = self._batches(record, max(offset, record.sequence_id), mode)
            shown.append(batches)
            if batches.end_sequence_id < record.end_sequence_id:
                break  # the rest of a very long range, and what follows it, is for the next read
        return shown

    def _batches(self, record: StoredRecord, offset: int, mode: LossMode) -> StoredRecord:
        lost = record.lost
        assert lost is not None
        first, last = record.sequence_id, record.end_sequence_id - 1
        epoch = self._stream.epoch_at(first)
        if mode is LossMode.MARKER:
            batch = marker_batch(last, epoch, describe(lost))
            return record._replace(size_bytes=len(batch), data=(batch,), lost=None)
        data, end = empty_batches(first, last, offset, epoch, _EMPTY_BATCHES_MAX)
        return record._replace(
            end_sequence_id=end, size_bytes=sum(map(len, data)), data=tuple(data), lost=None
        )


class _Stopped(EntryLost):
    """The loss was accepted, but `gateway.loss.delivery=stop` keeps its readers there."""


def _stopped(lost: LostRange) -> _Stopped:
    evidence = lost.evidence
    return _Stopped(
        f"offsets {lost.offsets.first} to {lost.offsets.last} are lost (ledger {evidence.ledger}); "
        "gateway.loss.delivery of the topic is stop",
        evidence.ledger,
        lost.first,
        evidence.copies,
    )


def describe(lost: LostRange) -> bytes:
    """Return the value of the header `gateway.loss`, in JSON."""
    acceptance = lost.evidence.acceptance
    assert acceptance is not None
    seconds, ms = divmod(min(max(acceptance.at_ms, 0), _TIME_MS_MAX), 1000)
    accepted_at = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"
    return json.dumps(
        {
            "type": "DATALOSS",
            "first": lost.offsets.first,
            "last": lost.offsets.last,
            "ledger": lost.evidence.ledger,
            "entries": [lost.first, lost.last],
            "accepted_at": accepted_at,
        },
        separators=(",", ":"),
    ).encode()

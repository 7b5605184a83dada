"""Reads partitions by Fetch, from one offset to another, or for ever.

`ranges` finds the offsets; `PartitionReader` reads them with one task and one connection for each
leader. Each task keeps one response waiting while the last one is printed, so the server, the
network and this process work at the same time, and the memory is bounded. A leader that moves, or a
server that is away, is looked up again for `retry_s` seconds since the last response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.admin.client import (
    LEADER_MOVED,
    AdminClient,
    AdminError,
    Broker,
    Place,
    Unreachable,
)
from gateway.admin.consume_batches import Batch, DamagedBatch, split
from gateway.admin.consume_bounds import Bound, LogRange, OutOfRange, below, limits, past
from gateway.admin.topics import EARLIEST, LATEST
from gateway.wire.client_link import Link
from gateway.wire.fetch_request import fetch_fields
from gateway.wire.list_offsets_request import list_offsets_fields
from ledger.tasks import start_once

_FETCH, _LIST_OFFSETS = 1, 2
_FETCH_VERSION_MAX = 12  # later ones have ids in place of names
_WAIT_MS: Final = 500
_RESPONSE_BYTES: Final = 2 * 1024 * 1024  # of all leaders together
_RESPONSE_BYTES_MIN: Final = 256 * 1024
_CONNECT_S_MAX, _ANSWER_S_MAX = 5.0, 30.0
_PAUSE_S: Final = 0.2
_OUT_OF_RANGE: Final = "offset_out_of_range"
_CORRUPT: Final = "corrupt_message"
_PASSING: Final = LEADER_MOVED | {
    "replica_not_available",
    "broker_not_available",
    "network_exception",
    "kafka_storage_error",
    "unknown_topic_or_partition",  # a leader that has just started
}
"""Error codes of Fetch that are retried."""


class Chunk(NamedTuple):
    """The batches of one partition in one response, and the offsets of them to show."""

    place: Place
    batches: Sequence[Batch]
    aborted: Sequence[tuple[int, int]]
    first: int
    end: int | None


def name_of(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def damaged(place: Place, error: DamagedBatch) -> AdminError:
    """Return the error of a batch that cannot be read."""
    message = f"{name_of(place)}@{error.offset}: the batch is damaged: {error}"
    return AdminError(message, "CORRUPT_MESSAGE")


async def ranges(
    client: AdminClient, places: Sequence[Place], start: Bound, stop: Bound, *, committed: bool
) -> dict[Place, LogRange]:
    """Return the offsets to read in each partition. Raises AdminError."""
    firsts = await _offsets(client, places, EARLIEST, committed=committed)
    ends = await _offsets(client, places, LATEST, committed=committed)
    times: dict[Bound, Mapping[Place, int]] = {}
    for bound in {start, stop}:
        if bound.kind == "time":
            times[bound] = await _offsets(client, places, bound.number, committed=committed)
    found: dict[Place, LogRange] = {}
    for place in places:
        at_times = {bound: at[place] for bound, at in times.items() if at[place] >= 0}
        log = LogRange(firsts[place], max(firsts[place], ends[place]))
        try:
            found[place] = limits(start, stop, log, at_times)
        except OutOfRange as error:
            raise AdminError(f"{name_of(place)}: {error}", "OFFSET_OUT_OF_RANGE") from None
    return found


async def _offsets(
    client: AdminClient, places: Sequence[Place], timestamp: int, *, committed: bool
) -> dict[Place, int]:
    """Return the offset of each partition at `timestamp`. Raises AdminError if one has none."""

    def fields(topics: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        return list_offsets_fields(topics, timestamp, committed=committed)

    found = await client.at_leaders_or_errors(places, _LIST_OFFSETS, fields)
    for place in places:
        if place not in found:
            raise AdminError(f"{name_of(place)} has no leader that answers", "LEADER_NOT_AVAILABLE")
        code = found[place].error_code
        if code.value:
            raise AdminError(f"{name_of(place)}: {code.name.upper()}", code.name.upper())
    return {place: each.offset for place, each in found.items()}


class _Cursor:
    """A partition that is being read."""

    __slots__ = ("end", "failed_s", "next", "peer", "place", "stalled_s")

    def __init__(self, place: Place, first: int, end: int | None) -> None:
        self.place = place
        # The offset to request next. `end` is the one behind the last, None to read for ever.
        self.next = first
        self.end = end
        # Since when requests fail, in the time of the loop. None if the last one had no error.
        self.failed_s: float | None = None
        # Since when the leader returns no records before the end. None once it returned some.
        self.stalled_s: float | None = None
        # The address of the broker that replied last. None before the first response.
        self.peer: str | None = None

    @property
    def done(self) -> bool:
        return self.end is not None and self.next >= self.end


class _PastLog(Exception):
    """The answer to an offset that the log does not have, or has no more."""

    def __init__(self, place: Place, offset: int) -> None:
        super().__init__(name_of(place))
        self.place, self.offset = place, offset


class PartitionReader:
    """Reads these partitions; those that are at their end already are left out."""

    def __init__(
        self,
        client: AdminClient,
        found: Mapping[Place, LogRange],
        *,
        committed: bool,
        follow: bool,
        retry_s: float,
        response_bytes: int = _RESPONSE_BYTES,
    ) -> None:
        self._client = client
        self._committed = committed
        self._follow = follow
        self._retry_s = retry_s
        cursors = [
            _Cursor(place, first, None if follow else end) for place, (first, end) in found.items()
        ]
        # The partitions without a task that reads them.
        self._waiting: list[_Cursor] = [cursor for cursor in cursors if not cursor.done]
        # One response of one leader waits here; None is the end.
        self._queue: asyncio.Queue[Chunk | None] = asyncio.Queue(1)
        # The error that ended the reading, for the reader of the queue.
        self._fault: Exception | None = None
        # The tasks that read, one or more for each leader.
        self._tasks: set[asyncio.Task[list[_Cursor]]] = set()
        # Bytes that the responses of all leaders may have together, and those of one leader.
        self._response_bytes = response_bytes
        self._bytes_max = response_bytes

    @property
    def idle(self) -> bool:
        """True if no response waits to be printed."""
        return self._queue.empty()

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield what arrives, in the order of offsets in each partition.

        Raises Unreachable and AdminError, once what arrived before the error was yielded.
        """
        supervisor = start_once("reading", self._supervise())
        try:
            while (chunk := await self._queue.get()) is not None:
                yield chunk
            if self._fault is not None:
                raise self._fault
        finally:
            supervisor.cancel()
            await asyncio.wait([supervisor])

    async def _supervise(self) -> None:
        """Read to the end, or to an error, and queue the end behind all that arrived before."""
        try:
            await self._read_all()
        except _PastLog as past_log:
            self._fault = await self._out_of_range(past_log)
        except Exception as error:  # noqa: BLE001  the reader of the queue raises it
            self._fault = error
        await self._queue.put(None)

    async def _out_of_range(self, found: _PastLog) -> Exception:
        """Return the error of an offset that the log has no more, with the range that it has."""
        place, offset = found.place, found.offset
        try:
            firsts = await _offsets(self._client, [place], EARLIEST, committed=False)
            ends = await _offsets(self._client, [place], LATEST, committed=False)
        except (Unreachable, AdminError) as error:
            return error
        log = LogRange(firsts[place], ends[place])
        reason = below(offset, log) if offset < log.first else past(offset, log)
        return AdminError(f"{name_of(place)}: {reason}", _OUT_OF_RANGE.upper())

    async def _read_all(self) -> None:
        try:
            while self._waiting or self._tasks:
                await self._assign()
                if self._tasks:
                    await self._await_some()
                elif self._waiting:
                    await asyncio.sleep(_PAUSE_S)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _await_some(self) -> None:
        pause_s = _PAUSE_S if self._waiting else None
        done, _ = await asyncio.wait(
            self._tasks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            self._tasks.discard(task)
            self._waiting += task.result()
        if done and self._waiting:
            await asyncio.sleep(_PAUSE_S)

    async def _assign(self) -> None:
        """Start a task for each leader of the partitions that have none."""
        if not self._waiting:
            return
        waiting = self._waiting
        self._waiting = []
        try:
            leaders = await self._leaders(waiting)
        except Unreachable as error:
            self._retry(waiting, error)
            self._waiting = waiting
            return
        led: dict[Broker, list[_Cursor]] = {}
        for cursor in waiting:
            leader = leaders.get(cursor.place)
            if leader is None:
                name = name_of(cursor.place)
                self._retry([cursor], AdminError(f"{name} has no leader", "LEADER_NOT_AVAILABLE"))
                self._waiting.append(cursor)
            else:
                led.setdefault(leader, []).append(cursor)
        count = len(led) + len(self._tasks)
        self._bytes_max = max(_RESPONSE_BYTES_MIN, self._response_bytes // max(count, 1))
        for leader, cursors in led.items():
            work = self._read(leader, cursors)
            self._tasks.add(
                start_once("fetching", work, expected=(Unreachable, AdminError, _PastLog))
            )

    async def _leaders(self, cursors: Sequence[_Cursor]) -> dict[Place, Broker]:
        answer = await self._client.metadata(sorted({cursor.place[0] for cursor in cursors}))
        brokers = {
            each.node_id: Broker(each.node_id, each.host, each.port) for each in answer.brokers
        }
        return {
            (topic.name, each.partition_index): brokers[each.leader_id]
            for topic in answer.topics
            for each in topic.partitions
            if each.leader_id in brokers
        }

    def _retry(self, cursors: Sequence[_Cursor], error: Exception) -> None:
        """Note a failure of these partitions. Raises it if the time for retries is up."""
        now_s = asyncio.get_running_loop().time()
        for cursor in cursors:
            if cursor.failed_s is None:
                cursor.failed_s = now_s
            elif now_s - cursor.failed_s >= self._retry_s:
                raise self._went_away(cursor.peer) if _was_there(cursor, error) else error

    def _went_away(self, peer: str | None) -> Unreachable:
        within = f"did not come back within {self._retry_s:g} s"
        return Unreachable(f"the server at {peer} went away, and {within}")

    def _stall(self, cursors: Sequence[_Cursor]) -> None:
        """Note that these partitions got no record. Raises AdminError once that takes too long."""
        now_s = asyncio.get_running_loop().time()
        for cursor in cursors:
            if cursor.stalled_s is None:
                cursor.stalled_s = now_s
            elif now_s - cursor.stalled_s >= self._retry_s:
                raise _stalled(cursor)

    async def _read(self, leader: Broker, cursors: list[_Cursor]) -> list[_Cursor]:
        """Read these partitions to their end. Returns those that this broker does not lead."""
        security = self._client.security
        link = Link(*self._client.place_of(leader), _ANSWER_S_MAX, security=security)
        lost: list[_Cursor] = []
        try:
            await link.open(_CONNECT_S_MAX)
            while cursors:
                answer = await link.send(_FETCH, self._fields(cursors), _FETCH_VERSION_MAX)
                for cursor in cursors:
                    cursor.peer = link.peer
                lost += await self._take(answer, cursors)
                cursors[:] = [each for each in cursors if not each.done and each not in lost]
        except Unreachable as error:
            self._retry(cursors, error)
            lost += cursors
        finally:
            await link.close()
        return lost

    def _fields(self, cursors: Sequence[_Cursor]) -> dict[str, Any]:
        return fetch_fields(
            ((*cursor.place, cursor.next) for cursor in cursors),
            partition_bytes_max=self._bytes_max,
            bytes_max=self._bytes_max,
            bytes_min=1,
            wait_ms=_WAIT_MS,
            committed=self._committed,
        )

    async def _take(self, answer: Any, cursors: list[_Cursor]) -> list[_Cursor]:
        """Hand over what one response brought. Returns the partitions to be looked up again.

        The partitions that brought records are requested last the next time.
        """
        by_place = {cursor.place: cursor for cursor in cursors}
        lost: list[_Cursor] = []
        served = False
        for topic in getattr(answer, "responses", ()):
            for each in topic.partitions:
                cursor = by_place.get((topic.topic, each.partition_index))
                if cursor is None:
                    continue
                if each.error_code.value:
                    self._refused(cursor, each)
                    lost.append(cursor)
                    continue
                cursor.failed_s = None
                if each.records:
                    served = await self._hand_over(cursor, each) or served
                    cursors.remove(cursor)
                    cursors.append(cursor)
        if served:
            for cursor in cursors:
                cursor.stalled_s = None
        elif not self._follow:
            self._stall([each for each in cursors if each not in lost])
        return lost

    def _refused(self, cursor: _Cursor, each: Any) -> None:
        """Note the error of a partition. Raises it unless a retry may help."""
        code, name = each.error_code.name, name_of(cursor.place)
        if code == _OUT_OF_RANGE:
            raise _PastLog(cursor.place, cursor.next)
        if code == _CORRUPT:
            raise damaged(cursor.place, DamagedBatch(cursor.next, "the server reports it"))
        error = AdminError(f"{name}: {code.upper()}", code.upper())
        if code not in _PASSING:
            raise error
        self._retry([cursor], error)

    async def _hand_over(self, cursor: _Cursor, each: Any) -> bool:
        """Queue the batches of a partition. Returns True if there are any from its offset on."""
        batches: list[Batch] = []
        fault: DamagedBatch | None = None
        try:
            for batch in split(each.records, cursor.next):
                batches.append(batch)
        except DamagedBatch as error:
            fault = error
        first = cursor.next
        if batches:
            cursor.next = max(first, batches[-1].last_offset + 1)
            aborted = [
                (one.producer_id, one.first_offset) for one in each.aborted_transactions or ()
            ]
            await self._queue.put(Chunk(cursor.place, batches, aborted, first, cursor.end))
        if fault is not None:
            raise damaged(cursor.place, fault)
        return cursor.next > first


def _was_there(cursor: _Cursor, error: Exception) -> bool:
    """Return True if the broker replied before, and this error is the lack of a reply."""
    return isinstance(error, Unreachable) and cursor.peer is not None


def _stalled(cursor: _Cursor) -> AdminError:
    message = f"{name_of(cursor.place)}: the server returns no record from offset {cursor.next} on"
    return AdminError(f"{message}, although the log ends at {cursor.end}", "TIMED_OUT")

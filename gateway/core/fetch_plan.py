"""Decides the response to a Fetch: its contents, the reads that it needs, when to send it. Pure.

A fetch is planned in passes over its partitions, in the order of its session. Each partition takes
from the bytes that earlier partitions have left of the response:

    restart ─▶ needs_read ─┬▶ no: decided without records (an error, at the end, no room)
                           └▶ yes: the caller reads, from memory or from disk ─▶ add_records
                                   the caller cannot read ─▶ refuse

After a pass, `complete` is True if the response may be sent before the client's time is over.
While the fetch waits, a changed partition is decided anew by itself: `add` or `reconsider`, then as
above. The cost depends only on the partitions that are decided, because totals are updated.
Source: Kafka, ReplicaManager.readFromLog and DelayedFetch.tryComplete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from gateway.core.fetch_session import FetchPartition

OPEN_S_MIN = 0.5
"""Opening a partition may take at least this time, even if the client waits for less."""

_NONE = ErrorCode.none
_AHEAD = ErrorCode.offset_not_available


class SizedRecord(Protocol):
    """The size and the end of one stored record, which is a batch of user records."""

    @property
    def end_sequence_id(self) -> int:
        """The sequence id after the last user record."""
        ...

    @property
    def size_bytes(self) -> int: ...


LogT = TypeVar("LogT")
"""The log of a partition; a plan never looks into it."""

RecordT = TypeVar("RecordT", bound=SizedRecord)
"""A record as a read of a log returns it. A plan never looks at its data."""


class LogReadResult(Generic[LogT, RecordT]):
    """One partition of one fetch: the request, the log that serves it, and the response.

    Source: Kafka, LogReadResult and FetchPartitionStatus.
    """

    __slots__ = (
        "aborted",
        "asked",
        "diverging",
        "error",
        "is_decided",
        "log",
        "more",
        "preferred_replica",
        "records",
        "size_bytes",
    )

    def __init__(self, asked: FetchPartition) -> None:
        self.asked = asked
        # The log that serves the request, kept in all passes until it is closed. None before the
        # first pass, and while no log here serves the request.
        self.log: LogT | None = None
        # True from a decision of the current pass until the next pass.
        self.is_decided = False
        # The decision of the current pass. These are also the values of an undecided result.
        self.error = _NONE
        self.records: Sequence[RecordT] = ()
        # Producer id and first offset of each aborted transaction with offsets of `records`.
        self.aborted: Sequence[tuple[int, int]] = ()
        self.size_bytes = 0  # bytes in `records`
        self.more = False  # True if the log holds records that the response does not contain
        self.preferred_replica = -1  # broker that the client should read from, -1 if none
        # The epoch of the client's last record, or the one before, and its end in this log, if the
        # client's log is another one.
        self.diverging: tuple[int, int] | None = None

    def clear(self) -> None:
        """Return to the state before any decision; the log stays."""
        self.error = _NONE
        self.records = self.aborted = ()
        self.size_bytes = 0
        self.more = False
        self.preferred_replica = -1
        self.diverging = None


class FetchPlan(Generic[LogT, RecordT]):
    """The passes of one Fetch request over `partitions`, which are those that do not rest.

    The response is sent at once if it has `min_bytes` of records, and otherwise after `wait_s`
    seconds. It never exceeds `bytes_max` by much.
    """

    __slots__ = (
        "_bytes_left",
        "_bytes_max",
        "_min_bytes",
        "_size_bytes",
        "_urgent",
        "_wait_s",
        "decided",
        "dropped",
        "results",
        "timed_out",
    )

    def __init__(
        self, partitions: Iterable[FetchPartition], min_bytes: int, bytes_max: int, wait_s: float
    ) -> None:
        self._min_bytes = min_bytes
        self._bytes_max = bytes_max
        self._wait_s = wait_s
        # The partitions to decide, in the order of the session. Only `add` changes this list.
        self.results: list[LogReadResult[LogT, RecordT]] = [
            LogReadResult(each) for each in partitions
        ]
        # True once the client has waited for `wait_s`.
        self.timed_out = wait_s == 0
        # The results that this pass has decided, in the order of the response. This is the order of
        # `results`, except that partitions that had to be opened come last.
        self.decided: list[LogReadResult[LogT, RecordT]] = []
        # True if the records of this pass were dropped, so that only their sizes are known.
        self.dropped = False
        # The bytes that later partitions of this pass may add to the response. The value is 0 or
        # less once a partition did not fit, so that no records are read without being sent.
        self._bytes_left = bytes_max
        # The total of `size_bytes` of the decided results.
        self._size_bytes = 0
        # True once a decided result completes the response, because waiting cannot improve this
        # result.
        self._urgent = False

    def restart(self) -> None:
        """Begin a new pass, in which nothing is decided."""
        for result in self.decided:
            result.clear()
            result.is_decided = False
        self.decided = []
        self.dropped = False
        self._bytes_left = self._bytes_max
        self._size_bytes = 0
        self._urgent = False

    def drop_records(self) -> None:
        """Keep only the sizes of the records while the fetch waits. A response needs a new pass."""
        self.dropped = True
        for result in self.decided:
            result.records = ()

    def add(self, partition: FetchPartition) -> LogReadResult[LogT, RecordT]:
        """Add a partition that rested until now. Decide it next."""
        result: LogReadResult[LogT, RecordT] = LogReadResult(partition)
        self.results.append(result)
        return result

    def reconsider(self, result: LogReadResult[LogT, RecordT]) -> None:
        """Take back the decision on one partition of a pass that did not complete the fetch.

        Decide it next. The decisions on other partitions stay.
        """
        assert not self.complete
        self._bytes_left += result.size_bytes
        self._size_bytes -= result.size_bytes
        result.clear()

    def limit(self, bytes_max: int) -> None:
        """Let the undecided results of this pass add at most `bytes_max` bytes."""
        self._bytes_left = min(self._bytes_left, bytes_max)

    # -- deciding -----------------------------------------------------------------------------

    def _decide(self, result: LogReadResult[LogT, RecordT]) -> None:
        if not result.is_decided:
            result.is_decided = True
            self.decided.append(result)

    def refuse(
        self, result: LogReadResult[LogT, RecordT], error: ErrorCode, *, urgent: bool = True
    ) -> None:
        """Decide to answer the partition with an error and no records.

        An error that is not `urgent` does not end the wait of the fetch: the client knows it.
        """
        result.error = error
        self._decide(result)
        if urgent and error is not _AHEAD:
            self._urgent = True

    def needs_read(
        self,
        result: LogReadResult[LogT, RecordT],
        start: int,
        end: int,
        epoch: int,
        is_follower: bool = False,
        preferred_replica: int = -1,
        stable: int | None = None,
    ) -> bool:
        """Return True if records must be read, up to `read_bytes_max`; otherwise decide the result.

        `start`, `end` and `epoch` are the log's start offset, high watermark and leader epoch at
        this broker. The values of a follower may be behind the leader's. Nothing is read from
        `stable` on, the last stable offset for a reader of committed records.
        """
        asked = result.asked
        offset, asked_epoch = asked.fetch_offset, asked.leader_epoch
        if asked_epoch != epoch and asked_epoch >= 0:
            fenced = asked_epoch < epoch
            self.refuse(
                result,
                ErrorCode.fenced_leader_epoch if fenced else ErrorCode.unknown_leader_epoch,
            )
        elif not start <= offset <= end:
            ahead = is_follower and offset > end
            self.refuse(result, _AHEAD if ahead else ErrorCode.offset_out_of_range)
        elif preferred_replica >= 0:
            result.preferred_replica = preferred_replica
            self._decide(result)
            self._urgent = True
        elif offset >= (end if stable is None else stable):
            self._decide(result)
        elif self._bytes_left <= 0 and self._size_bytes:
            self._decide(result)
            self._leave_for_later(result)
        else:
            return True
        return False

    def diverges(
        self,
        result: LogReadResult[LogT, RecordT],
        start: int,
        end: tuple[int, int] | None,
        is_follower: bool = False,
    ) -> bool:
        """Decide the result if the client's log differs from this one. Returns False otherwise.

        `end` is the epoch of the client's last record, or the one before, and its end in this log,
        whose start is `start`. The client truncates its log to there. A follower may lag behind
        what the client read elsewhere, so its end is no divergence. Source: Kafka,
        Partition.readRecords.
        """
        asked = result.asked
        if end is None or asked.fetch_offset < start:
            self.refuse(result, ErrorCode.offset_out_of_range)
            return True
        epoch, end_offset = end
        behind = end_offset < asked.fetch_offset
        if epoch >= asked.last_fetched_epoch and (is_follower or not behind):
            return False
        result.diverging = end
        self._decide(result)
        self._urgent = True
        return True

    @property
    def bytes_left(self) -> int:
        """The bytes that the undecided results of this pass may add to the response."""
        return self._bytes_left

    def read_bytes_max(self, asked: FetchPartition) -> int:
        """Return how many bytes to read for a partition; the first batch may be larger."""
        return min(asked.bytes_max, self._bytes_left)

    def add_records(
        self, result: LogReadResult[LogT, RecordT], records: Sequence[RecordT], end: int
    ) -> None:
        """Decide that the partition is answered with these records, if the response has room.

        The first batch of the first non-empty partition is sent whatever its size. Later batches
        must fit. `end` is the current high watermark.
        """
        self._decide(result)
        if not records:
            return
        if self._size_bytes and records[0].size_bytes > self._bytes_left:
            self._leave_for_later(result)
            return
        size = 0
        for record in records:  # a loop is faster than `sum` for a few records
            size += record.size_bytes
        result.records = records
        result.size_bytes = size
        self._bytes_left -= size
        self._size_bytes += size
        if records[-1].end_sequence_id < end:
            result.more = self._urgent = True

    def revoke(self, result: LogReadResult[LogT, RecordT], error: ErrorCode) -> None:
        """Replace the decision by an error, for a partition lost while other partitions
        were read.
        """
        result.clear()
        result.error = error
        self._urgent = True

    def _leave_for_later(self, result: LogReadResult[LogT, RecordT]) -> None:
        """Send no records of this or any later partition, because the response has no room."""
        result.more = self._urgent = True
        self._bytes_left = 0

    # -- after a pass -------------------------------------------------------------------------

    @property
    def undecided(self) -> list[LogReadResult[LogT, RecordT]]:
        """The undecided results, if all decisions so far were made in order."""
        return self.results[len(self.decided) :]

    @property
    def complete(self) -> bool:
        """True if the response may be sent before the client's time is over.

        The response then has enough bytes, or a result that waiting would not improve. Such a
        result is an error, a preferred replica, or a log with more records than the response takes.
        So a reader far behind never waits. Kafka's brokers also answer reads of an older segment at
        once (DelayedFetch).
        """
        return self._urgent or self._size_bytes >= self._min_bytes

    @property
    def size_bytes(self) -> int:
        """The bytes of all records that the pass has decided to send."""
        return self._size_bytes

    @property
    def room_bytes(self) -> int:
        """How many bytes the undecided results may add, by their own limits and by the plan's."""
        left = self._bytes_left
        room = 0
        for result in self.undecided:
            room += result.asked.bytes_max
            if room >= left:
                return max(left, 0)
        return room

    @property
    def opening_wait_s(self) -> float:
        """The longest time for which partitions being opened may delay the response."""
        if self.decided and self.complete:
            return 0.0
        return max(self._wait_s, OPEN_S_MIN)

    def error_of(self, result: LogReadResult[LogT, RecordT]) -> ErrorCode:
        """Return the error to send.

        An offset past a follower's end is an error only once the client's time is over. Before
        that, the client should retry, because the leader may have returned this offset.
        """
        if result.error is _AHEAD and not self.timed_out:
            return _NONE
        return result.error

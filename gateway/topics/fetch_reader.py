"""Reads the partitions of one Fetch, from memory or from disk, as its plan decides.

Source: Kafka, ReplicaManager.readFromLog.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from gateway.core.address_share import share_of
from gateway.core.fetch_plan import FetchPlan, LogReadResult
from gateway.core.fetch_session import FetchPartition, FetchSession
from gateway.core.partition_transactions import AbortedTransaction
from gateway.errors import partition_code
from gateway.topics.partition import Partition
from gateway.topics.partitions import Partitions
from gateway.topics.reads_ahead import ReadsAhead, within
from gateway.topics.replica import ReadablePartition, ReplicaPartition
from gateway.topics.reply_memory import UNCOUNTED_BYTES, ReplyMemory, ReservedReply
from ledger.errors import LedgerError
from ledger.ids import Buffer
from ledger.streams.read_cursor import compact
from ledger.streams.read_turns import READER
from ledger.streams.tail_cache import StoredRecord

_NOT_LEADER = ErrorCode.not_leader_or_follower

FetchResult = LogReadResult[ReadablePartition, StoredRecord]
PartitionsPlan = FetchPlan[ReadablePartition, StoredRecord]
OpenErrors = dict[ReadablePartition, ErrorCode]

SLOW_READ_S = 1.0
"""A read that failed after this time met a silent bookie. The fetch does not wait for another."""

PARTITIONS_PER_TURN = 250
"""After this many partitions of one request, other requests have their turn."""


class FetchReader:
    """The logs of one fetch, and the reader that fills the fetch's plan with their records.

    A log is kept until it is closed. If no log was found for a partition, each pass looks it up
    again. Memory for records is taken before they are read from disk, and passes to the reply.
    """

    __slots__ = (
        "_elsewhere",
        "_host",
        "_may_read",
        "_memory",
        "_partitions",
        "_rack",
        "_reserved_bytes",
        "_results",
        "_session",
        "_silence",
        "_watching",
        "committed",
        "listener",
        "plan",
    )

    def __init__(
        self,
        partitions: Partitions,
        memory: ReplyMemory,
        session: FetchSession,
        plan: PartitionsPlan,
        rack: str,
        host: str = "",
    ) -> None:
        """Create the reader. `rack` is the client's rack, or "" if the request has none.

        Clients at different addresses, `host`, have memory and cold reads in turn.
        """
        self._host = host
        self._partitions = partitions
        self._memory = memory
        # Bytes of `_memory` that are taken for the records of the plan, until the next pass,
        # `reply` or `release`. They include the bytes of records yet to be read while `_may_read`.
        self._reserved_bytes = 0
        self._may_read = False
        # True once a read of the fetch waited in vain for a silent bookie. Never reset.
        self._silence = False
        self._session = session
        self._rack = rack
        # True if the client is in another rack, so that another broker may be closer to it.
        self._elsewhere = bool(rack) and rack != partitions.rack
        self.plan = plan
        # The listener by which the client connected. Set before the first pass.
        self.listener = ""
        # True for a reader of committed records only. Set before the first pass.
        self.committed = False
        # The results of the plan by partition. Empty until the fetch waits or a partition is added.
        self._results: dict[FetchPartition, FetchResult] = {}
        # True while the logs of the plan notify the session, including logs that are looked up
        # later.
        self._watching = False

    def watch(self) -> None:
        """Let every log of the plan notify its partition of changes, until the response."""
        self._watching = True
        self._results = {result.asked: result for result in self.plan.results}
        for result in self.plan.results:
            log = result.log
            if log is None:
                self._look_up(result)
            else:
                result.asked.watch(log)

    def can_rest(self, result: FetchResult) -> bool:
        """Return True if the result stays as it is until the log of the partition notifies.

        A follower is looked at in each response, because a watched follower never becomes idle.
        """
        log = result.log
        return (
            log is not None
            and not log.is_follower
            and not log.closed
            and not self._elsewhere
            and not result.error
            and not result.more
            and result.preferred_replica < 0
            and result.diverging is None
            and result.asked.fetch_offset == log.high_watermark
            and (not self.committed or log.stable_offset == log.high_watermark)
        )

    # -- passes -------------------------------------------------------------------------------

    def restart(self) -> None:
        """Begin a new pass, over all partitions of the session if the lease is over."""
        self.plan.restart()
        self.release()
        if not self._partitions.cluster.lease_held():
            self._session.wake_all()
            for partition in self._session.due():
                self.add(partition)

    def add(self, partition: FetchPartition) -> FetchResult | None:
        """Add a partition that rested. Returns None if the plan has it already."""
        if not self._results:
            self._results = {result.asked: result for result in self.plan.results}
        if partition in self._results:
            return None
        result = self._results[partition] = self.plan.add(partition)
        return result

    def plan_changed(self, partition: FetchPartition) -> bool:
        """Decide a partition whose log changed. Returns False if a new pass is necessary."""
        if not self._partitions.cluster.lease_held():
            return False
        result = self.add(partition)
        if result is None:
            result = self._results[partition]
            self.plan.reconsider(result)
        return self._plan_from_memory(result)

    def leave_for_later(self) -> None:
        """Answer partitions that changed during the pass without records."""
        for result in self.plan.undecided:
            if self._log_for(result) is not None:
                self.plan.add_records(result, (), 0)

    def plan_from_memory(self) -> bool:
        """Decide the rest of the pass. Returns False if memory cannot serve a partition.

        Decisions before that partition are kept: records read ahead are returned only once.
        """
        return all(map(self._plan_from_memory, self.plan.undecided))

    def _plan_from_memory(self, result: FetchResult) -> bool:
        """Decide one partition. Returns False if memory cannot serve it."""
        log = self._log_for(result)
        if log is None:
            return True
        if not log.readable:
            return False
        if self._needs_read(result, log):
            plan, asked = self.plan, result.asked
            records = log.read_cached(asked.fetch_offset, plan.read_bytes_max(asked))
            if records is None:
                return self._refuse_blocked(result, log)
            if not self.committed:
                plan.add_records(result, records, log.high_watermark)
                return True
            return self._add_committed(result, log, records)
        return True

    def _add_committed(
        self, result: FetchResult, log: ReadablePartition, records: list[StoredRecord]
    ) -> bool:
        """Add records up to the last stable offset. Returns False if their list must be read."""
        stable = _committed_end(log)
        records = _below(records, stable)
        if records:
            aborted = log.aborted_cached(result.asked.fetch_offset, records[-1].end_sequence_id)
            if aborted is None:
                return False
            result.aborted = _named(aborted)
        self.plan.add_records(result, records, stable)
        return True

    def _refuse_blocked(self, result: FetchResult, log: ReadablePartition) -> bool:
        """Answer a partition whose readers are blocked at the offset. Returns False otherwise."""
        error = log.losses.known_failure(result.asked.fetch_offset)
        if error is None:
            return False
        self.plan.refuse(result, partition_code(error), urgent=False)
        return True

    async def plan_from_disk(self) -> None:
        """Decide the rest of the pass, from disk where memory does not have the records.

        Partitions that must be opened come last, so that a failed opening delays little. The pass
        waits once for all openings, and not at all if other partitions complete the fetch.
        """
        READER.set(share_of(self._host))
        try:
            await self._plan_from_disk(self.plan)
        finally:
            self._correct()

    async def _plan_from_disk(self, plan: PartitionsPlan) -> None:
        readable: list[FetchResult] = []
        unopened: list[FetchResult] = []
        for seen, result in enumerate(plan.undecided, 1):
            if seen % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
            log = result.log
            if log is None or log.closed:
                log, _ = self._look_up(result)
            must_open = log is not None and log.serves_fetches and not log.readable
            (unopened if must_open else readable).append(result)
        await self._read_each(readable, {})
        if unopened:
            self._correct()  # the memory is not needed while partitions are being opened
            logs = [result.log for result in unopened if result.log is not None]
            await self._read_each(unopened, await _open(logs, plan.opening_wait_s))
        for result in plan.decided:
            log = result.log
            # This broker lost the partition while others were read.
            if log is not None and not log.serves_fetches:
                plan.revoke(result, _NOT_LEADER)
        if not self._partitions.cluster.lease_held():
            self._refuse_resting()

    # -- memory -------------------------------------------------------------------------------

    async def _reserve(self) -> bool:
        """Take the memory for the reads of this pass, whose response is smaller if little is free.

        Returns False if there is none while the plan has records: it does not wait with those.
        """
        if self._may_read:
            return True
        offered = self._memory.offer(self.plan.room_bytes)
        if not self.plan.size_bytes:
            await self._memory.take(offered, share_of(self._host))
        elif not self._memory.try_take(offered):
            self.plan.limit(0)
            return False
        self._reserved_bytes += offered
        self._may_read = True
        self.plan.limit(offered)
        return True

    def _correct(self) -> None:
        """Replace the reservation for reads by the size of the records that the plan has."""
        if self._may_read:
            self._may_read = False
            reserved, self._reserved_bytes = self._reserved_bytes, self.plan.size_bytes
            self._memory.correct(reserved, self._reserved_bytes)

    def try_reserve(self) -> bool:
        """Take the memory of records that were in memory already. Returns False if it is used up.

        Few records cost nothing, because they are in use elsewhere.
        """
        size = self.plan.size_bytes
        if size > UNCOUNTED_BYTES:
            if not self._memory.try_take(size):
                return False
            self._reserved_bytes = size
        return True

    def reply(self, buffers: list[Buffer]) -> list[Buffer]:
        """Return the buffers of the response, with the memory that is taken for them."""
        reserved, self._reserved_bytes = self._reserved_bytes, 0
        return ReservedReply(buffers, reserved, self._memory) if reserved else buffers

    def drop_records(self) -> None:
        """Keep neither records nor memory while the fetch waits for more."""
        self.plan.drop_records()
        self.release()

    def release(self) -> None:
        """Return the memory that is taken, because the records are dropped."""
        self._may_read = False
        reserved, self._reserved_bytes = self._reserved_bytes, 0
        if reserved:
            self._memory.give(reserved)

    def _refuse_resting(self) -> None:
        """Refuse the partitions that rest, because another broker may lead them by now."""
        self._session.wake_all()
        for partition in self._session.due():
            result = self.add(partition)
            if result is not None and self._log_for(result) is not None:  # a follower
                self.plan.add_records(result, (), 0)

    def _look_up(self, result: FetchResult) -> tuple[ReadablePartition | None, ErrorCode]:
        asked = result.asked
        log, error = self._partitions.find_for_fetch(asked.topic, asked.partition, self._rack)
        result.log = log
        if log is not None and self._watching:
            asked.watch(log)
        return log, error

    def _log_for(self, result: FetchResult) -> ReadablePartition | None:
        """Return the log that serves the result. Without a log, refuse the result and return None.

        A closed log is looked up again, because a new log may serve the partition by now.
        """
        log, error = result.log, _NOT_LEADER
        if log is None or log.closed:
            log, error = self._look_up(result)
        if log is not None:
            if log.serves_fetches:
                return log
            error = _NOT_LEADER
        self.plan.refuse(result, error)
        return None

    def _needs_read(self, result: FetchResult, log: ReadablePartition) -> bool:
        if result.asked.last_fetched_epoch >= 0 and self._diverges(result, log):
            return False
        stable = _committed_end(log) if self.committed else None
        if stable is not None and isinstance(log, ReplicaPartition):
            hidden = log.hidden_outcome(result.asked.fetch_offset)
            if hidden is not None:
                # Not at once: the leader may send the client here again, and a snapshot may come.
                self.plan.refuse(result, partition_code(hidden), urgent=False)
                return False
        preferred = -1
        if self._elsewhere and not (self.committed and _hides_outcomes(log)):
            asked = result.asked
            preferred = self._partitions.preferred_read_replica(
                asked.topic, asked.partition, self._rack, self.listener
            )
        return self.plan.needs_read(
            result,
            log.log_start_offset,
            log.high_watermark,
            log.leader_epoch,
            log.is_follower,
            preferred,
            stable,
        )

    def _diverges(self, result: FetchResult, log: ReadablePartition) -> bool:
        """Decide the result if the client's log differs from this one. Returns False otherwise."""
        asked = result.asked
        if asked.leader_epoch >= 0 and asked.leader_epoch != log.leader_epoch:
            return False  # the plan refuses the epoch
        try:
            end = log.epoch_end(asked.last_fetched_epoch)
        except LedgerError as error:
            self.plan.refuse(result, partition_code(error))
            return True
        return self.plan.diverges(result, log.log_start_offset, end, log.is_follower)

    async def _read_each(self, results: list[FetchResult], refused: OpenErrors) -> None:
        """Decide these results in order. `refused` has the errors of logs that failed to open.

        While one is read, so are those behind it that the response will have room for.
        """
        later = deque(results)
        with ReadsAhead() as ahead:
            for seen, result in enumerate(results, 1):
                if seen % PARTITIONS_PER_TURN == 0:
                    await asyncio.sleep(0)
                if later and later[0] is result:
                    later.popleft()
                log = self._log_for(result)
                if log is None:
                    continue
                if not log.readable:
                    self.plan.refuse(result, refused.get(log, _NOT_LEADER))
                elif self._needs_read(result, log):
                    await self._read(result, log, ahead, later)

    def _start_ahead(self, own_max: int, ahead: ReadsAhead, later: deque[FetchResult]) -> None:
        """Begin to read partitions behind the present one, of which `own_max` bytes are read.

        Only those that will have room for all that they ask for, so no record is read in vain.
        """
        left = self.plan.bytes_left - own_max
        while later and not ahead.full and ahead.bytes_max + later[0].asked.bytes_max <= left:
            result = later.popleft()
            log, asked = result.log, result.asked
            bytes_max = asked.bytes_max
            if log is None or bytes_max <= 0 or not self._will_read(result, log):
                continue
            if not self.committed:
                ready = log.read_cached(asked.fetch_offset, bytes_max)
                if ready is not None:
                    ahead.put((result, log), (ready, log.high_watermark), bytes_max)
                    continue
            ahead.start((result, log), self._records_of(result, log, bytes_max), bytes_max)

    def _will_read(self, result: FetchResult, log: ReadablePartition) -> bool:
        """Return whether the result will need a read, as far as that is known before its turn."""
        asked = result.asked
        epoch = asked.leader_epoch
        if log.closed or not log.readable or not log.serves_fetches or self._elsewhere:
            return False
        if asked.last_fetched_epoch >= 0 or (epoch >= 0 and epoch != log.leader_epoch):
            return False
        end = _committed_end(log) if self.committed else log.high_watermark
        return (
            log.log_start_offset <= asked.fetch_offset < end
            and log.losses.known_failure(asked.fetch_offset) is None
        )

    async def _records_of(
        self, result: FetchResult, log: ReadablePartition, bytes_max: int
    ) -> tuple[list[StoredRecord], int]:
        """Read the records of one partition, and the offset at which its reader ends."""
        if self.committed:
            return await self._read_committed(result, log, bytes_max)
        records = await log.read(result.asked.fetch_offset, bytes_max)
        return records, log.high_watermark

    async def _read(
        self,
        result: FetchResult,
        log: ReadablePartition,
        ahead: ReadsAhead,
        later: deque[FetchResult],
    ) -> None:
        plan, asked = self.plan, result.asked
        if self._refuse_blocked(result, log):
            return
        if self._silence:
            cached = log.read_cached(asked.fetch_offset, plan.read_bytes_max(asked))
            if not self.committed:
                plan.add_records(result, cached or (), log.high_watermark)
            elif not self._add_committed(result, log, cached or []):
                plan.add_records(result, (), _committed_end(log))
            return
        loop = asyncio.get_running_loop()
        if not await self._reserve() and not self._needs_read(result, log):
            return
        began_s = loop.time()
        try:
            # Not what was read of an earlier log of the name, whose topic may have been deleted.
            begun = await ahead.take((result, log))
            bytes_max = plan.read_bytes_max(asked)
            if begun is None:
                self._start_ahead(bytes_max, ahead, later)
                records, end = await self._records_of(result, log, bytes_max)
            else:
                records, end = within(begun[0], bytes_max), begun[1]
        except LedgerError as error:
            plan.refuse(result, partition_code(error))
            self._silence |= loop.time() - began_s >= SLOW_READ_S
        else:
            plan.add_records(result, compact(records), end)

    async def _read_committed(
        self, result: FetchResult, log: ReadablePartition, bytes_max: int
    ) -> tuple[list[StoredRecord], int]:
        """Read up to the last stable offset, and the aborted transactions of the same records.

        If a segment was cleaned meanwhile, both are read again: of a transaction that the cleaner
        dropped, there is no marker that ends it.
        """
        asked = result.asked
        while True:
            rewrites = log.rewrites
            records = await log.read(asked.fetch_offset, bytes_max)
            end = _committed_end(log)
            records = _below(records, end)
            aborted: list[AbortedTransaction] = []
            if records:
                aborted = await log.aborted(asked.fetch_offset, records[-1].end_sequence_id)
            if rewrites == log.rewrites:
                result.aborted = _named(aborted)
                return records, end


def _committed_end(log: ReadablePartition) -> int:
    """Return the offset at which a reader of committed records ends."""
    return log.read_committed_end() if isinstance(log, ReplicaPartition) else log.stable_offset


def _hides_outcomes(log: ReadablePartition) -> bool:
    """Return whether replicas cannot know all outcomes of the newest segment: a part was lost.

    Otherwise the leader and a replica would send a reader to each other.
    """
    if not isinstance(log, Partition) or not log.stream.segments:
        return False
    newest = log.stream.segments[-1].number
    return any(each.segment >= newest for each in log.stream.accepted_losses.ranges)


def _below(records: list[StoredRecord], stable: int) -> list[StoredRecord]:
    """Return the records that end at or below the last stable offset."""
    while records and records[-1].end_sequence_id > stable:
        records = records[:-1]
    return records


def _named(aborted: Iterable[AbortedTransaction]) -> list[tuple[int, int]]:
    """Return the producer id and the first offset of each, as Fetch returns them."""
    return [(one.producer_id, one.first_offset) for one in aborted]


async def _open(logs: Iterable[ReadablePartition], wait_s: float) -> OpenErrors:
    """Open the logs, for up to `wait_s` seconds. Return the error code of each failure.

    The remaining logs continue to open, for the client's next fetch.
    """
    opening = {asyncio.ensure_future(log.ensure_readable()): log for log in logs}
    try:
        done, _ = await asyncio.wait(opening, timeout=wait_s)
    finally:
        for task in opening:
            task.cancel()
    refused: OpenErrors = {}
    for task in done:
        error = task.exception()
        if isinstance(error, LedgerError):
            refused[opening[task]] = partition_code(error)
        elif error is not None:
            raise error
    return refused

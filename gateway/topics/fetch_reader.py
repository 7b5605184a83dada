"""Reads the partitions of one Fetch, from memory or from disk, as its plan decides.

Source: Kafka, ReplicaManager.readFromLog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from gateway.core.fetch_plan import FetchPlan, LogReadResult
from gateway.errors import partition_code
from gateway.topics.partition import FetchWaiter
from gateway.topics.partitions import Partitions, ReadablePartition
from ledger.errors import LedgerError
from ledger.streams.tail_cache import StoredRecord

_NOT_LEADER = ErrorCode.not_leader_or_follower

FetchResult = LogReadResult[ReadablePartition, StoredRecord]
PartitionsPlan = FetchPlan[ReadablePartition, StoredRecord]
OpenErrors = dict[ReadablePartition, ErrorCode]


class FetchReader:
    """The logs of one fetch, and the reader that fills the fetch's plan with their records.

    A log is kept until it is closed. If no log was found for a partition, each pass looks it up
    again.
    """

    __slots__ = ("_elsewhere", "_partitions", "_rack", "_waiter", "_watched", "plan")

    def __init__(self, partitions: Partitions, plan: PartitionsPlan, rack: str) -> None:
        """Create the reader. `rack` is the client's rack, or "" if the request has none."""
        self._partitions = partitions
        self._rack = rack
        # True if the client is in another rack, so that another broker may be closer to it.
        self._elsewhere = bool(rack) and rack != partitions.rack
        self.plan = plan
        # The waiter that every log of the plan notifies, including logs that are looked up later.
        self._waiter: FetchWaiter | None = None
        # The logs at which the waiter is registered, including closed ones. Empty without a waiter.
        self._watched: list[ReadablePartition] = []

    def watch(self, waiter: FetchWaiter) -> None:
        """Notify `waiter` of changes of every log, until `unwatch`."""
        self._waiter = waiter
        for result in self.plan.results:
            log = result.log
            if log is None:
                self._look_up(result)
            else:
                self._watch_log(log, waiter)

    def unwatch(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            for log in self._watched:
                log.remove_waiter(waiter)
            self._watched.clear()

    def _watch_log(self, log: ReadablePartition, waiter: FetchWaiter) -> None:
        log.add_waiter(waiter)
        self._watched.append(log)

    def plan_from_memory(self) -> bool:
        """Decide the rest of the pass. Returns False if memory cannot serve a partition.

        Decisions before that partition are kept: records read ahead are returned only once.
        """
        plan = self.plan
        for result in plan.undecided:
            log = self._log_for(result)
            if log is None:
                continue
            if not log.readable:
                return False
            if not self._needs_read(result, log):
                continue
            asked = result.asked
            records = log.read_cached(asked.fetch_offset, plan.read_bytes_max(asked))
            if records is None:
                return False
            plan.add_records(result, records, log.high_watermark)
        return True

    async def plan_from_disk(self) -> None:
        """Decide the rest of the pass, from disk where memory does not have the records.

        Partitions that must be opened come last, so that a failed opening delays little. The pass
        waits once for all openings, and not at all if other partitions complete the fetch.
        """
        plan = self.plan
        readable: list[FetchResult] = []
        unopened: list[FetchResult] = []
        for result in plan.undecided:
            log = result.log
            if log is None or log.closed:
                log, _ = self._look_up(result)
            must_open = log is not None and log.serves_fetches and not log.readable
            (unopened if must_open else readable).append(result)
        await self._read_each(readable, {})
        if unopened:
            logs = [result.log for result in unopened if result.log is not None]
            await self._read_each(unopened, await _open(logs, plan.opening_wait_s))
        for result in plan.decided:
            log = result.log
            # This broker lost the partition while others were read.
            if log is not None and not log.serves_fetches:
                plan.revoke(result, _NOT_LEADER)

    def _look_up(self, result: FetchResult) -> tuple[ReadablePartition | None, ErrorCode]:
        asked = result.asked
        log, error = self._partitions.find_for_fetch(asked.topic, asked.partition, self._rack)
        result.log = log
        if log is not None and self._waiter is not None:
            self._watch_log(log, self._waiter)
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
        preferred = -1
        if self._elsewhere:
            asked = result.asked
            preferred = self._partitions.preferred_read_replica(
                asked.topic, asked.partition, self._rack
            )
        return self.plan.needs_read(
            result,
            log.log_start_offset,
            log.high_watermark,
            log.leader_epoch,
            log.is_follower,
            preferred,
        )

    async def _read_each(self, results: list[FetchResult], refused: OpenErrors) -> None:
        """Decide these results in order. `refused` has the errors of logs that failed to open."""
        for result in results:
            log = self._log_for(result)
            if log is None:
                continue
            if not log.readable:
                self.plan.refuse(result, refused.get(log, _NOT_LEADER))
            elif self._needs_read(result, log):
                await self._read(result, log)

    async def _read(self, result: FetchResult, log: ReadablePartition) -> None:
        plan, asked = self.plan, result.asked
        try:
            records = await log.read(asked.fetch_offset, plan.read_bytes_max(asked))
        except LedgerError as error:
            plan.refuse(result, partition_code(error))
        else:
            plan.add_records(result, records, log.high_watermark)


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

"""The triggers of a streaming query: where each one begins and ends, and its tasks.

    look        once per trigger, at the ends of all partitions      `latest`
    plan        slices of what the look saw                          `tasks`

A plan asks only whether the topics still exist, and otherwise looks again. It also looks if it has
seen less than the batch covers: after a restart Spark first asks for the tasks of a stored batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.pipelines.direct.checkpoint import StreamOffsets
from gateway.pipelines.direct.losses import report_loss
from gateway.pipelines.direct.offsets import (
    OpenSources,
    PartitionSources,
    clamp_to_logs,
    end_offsets,
    report_recreated,
    start_offsets,
    topic_ids,
    wait_until_known,
)
from gateway.pipelines.direct.options import Options
from gateway.pipelines.direct.pruning import PushedFilters, limit_trigger
from gateway.pipelines.direct.tasks import SliceTask, plan_tasks
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition


class Triggers:
    """The triggers of one query. Used by one task at a time; the caller closes the sources."""

    def __init__(self, sources: PartitionSources, options: Options) -> None:
        self._sources = sources
        self._options = options
        # All partitions as of the last look. None before the first one.
        self._seen: OpenSources | None = None
        # True from a look for `initial` or `end_now` until the trigger that follows at once.
        self._unused = False
        # The offsets at which a query without a checkpoint begins. Determined once.
        self._first: StreamOffsets | None = None
        # The offsets at which the next trigger begins: the end of the last planned batch.
        self._next: StreamOffsets | None = None
        # The offsets beyond which the query does not read: its ending offsets, determined by its
        # first trigger, or what is available to Trigger.AvailableNow. None if it has no end.
        self._last: StreamOffsets | None = None

    async def initial(self) -> StreamOffsets:
        """Return the offsets at which a query without a checkpoint begins."""
        if self._first is None:
            first = await self._initial(await self._look())
            self._unused = True
            return first
        return self._first

    async def _initial(self, sources: OpenSources) -> StreamOffsets:
        if self._first is None:
            begin = await start_offsets(sources, self._options)
            self._first = StreamOffsets(begin, topic_ids(sources))
        return self._first

    async def end_now(self) -> None:
        """End the query at what is available now, or at its ending offsets if they are lower."""
        sources = await self._look()
        await self._find_last(sources)
        if self._last is None:
            self._last = StreamOffsets(_ends(sources), topic_ids(sources))
        self._unused = True

    def seen(self) -> StreamOffsets | None:
        """Return the ends of all partitions as of the last look, or None before the first one."""
        sources = self._seen
        return None if sources is None else StreamOffsets(_ends(sources), topic_ids(sources))

    async def latest(self, start: StreamOffsets | None, limit: int | None) -> StreamOffsets:
        """Return the end of the next trigger, of at most about `limit` offsets.

        `start` is where the trigger begins, if Spark says so.
        """
        sources = self._seen
        if sources is None or not self._unused:
            sources = await self._look()
        self._unused = False
        stored = start or self._next or await self._initial(sources)
        await self._wait_until_known(stored, sources)
        begin = self._starts(stored, sources)
        await self._find_last(sources)
        end = self._trigger_ends(begin, sources)
        if limit is not None:
            losses = {partition: source.scan.losses for partition, source in sources.items()}
            end = limit_trigger(limit, begin, end, losses)
        return StreamOffsets(end, topic_ids(sources))

    async def tasks(self, start: StreamOffsets, end: StreamOffsets) -> list[SliceTask]:
        """Plan a batch. Spark passes `end` twice when a query continues from its checkpoint."""
        self._next = end
        if start == end:
            return []
        sources = self._seen
        known = sources is not None and _covers(sources, end)
        if sources is None or not known or not await self._sources.topics_exist():
            sources = await self._look()
            await self._wait_until_known(end, sources, decided=True)
        begin = self._starts(start, sources)
        # A topic recreated since the batch was planned has lost these records.
        recreated = report_recreated(end, sources, self._options.fail_on_data_loss)
        ended = {
            partition: at
            for partition, at in end.offsets.items()
            if partition in sources and partition.topic not in recreated
        }
        self._check_end(ended, sources)
        ranges = [
            OffsetRange(*partition, begin[partition], at)
            for partition, at in ended.items()
            if begin[partition] < at
        ]
        return await plan_tasks(ranges, sources, self._options.slice_bytes, PushedFilters())

    async def _look(self) -> OpenSources:
        self._seen, self._unused = None, False
        self._seen = await self._sources.refresh()
        return self._seen

    async def _find_last(self, sources: OpenSources) -> None:
        if self._last is None and self._options.ending is not None:
            last = await end_offsets(sources, self._options)
            self._last = StreamOffsets(last, topic_ids(sources))

    def _trigger_ends(
        self, begin: Mapping[TopicPartition, int], sources: OpenSources
    ) -> dict[TopicPartition, int]:
        """Return the current ends of all partitions, limited to those of the query, if any."""
        # A checkpoint of a read that is not committed may be past what is committed now.
        now = {p: max(at, begin[p]) for p, at in _ends(sources).items()}
        if self._last is None:
            return now
        recreated = self._last.recreated(topic_ids(sources))
        last = {p: at for p, at in self._last.offsets.items() if p.topic not in recreated}
        return {p: max(at, min(now[p], last.get(p, at))) for p, at in begin.items()}

    def _starts(self, stored: StreamOffsets, sources: OpenSources) -> dict[TopicPartition, int]:
        """Return the offset at which each partition continues, and report lost records.

        A partition added later begins at 0, and a recreated topic at its first offset.
        """
        fail = self._options.fail_on_data_loss
        recreated = report_recreated(stored, sources, fail)
        gone = [
            OffsetRange(*p, at, at + 1)
            for p, at in stored.offsets.items()
            if p not in sources and p.topic not in recreated
        ]
        if gone:
            report_loss(gone, "the partitions no longer exist", fail)
        begin = {
            partition: source.scan.start_sequence_id
            if partition.topic in recreated
            else stored.offsets.get(partition, 0)
            for partition, source in sources.items()
        }
        return clamp_to_logs(begin, sources, fail)

    async def _wait_until_known(
        self, stored: StreamOffsets, sources: OpenSources, *, decided: bool = False
    ) -> None:
        """Wait until this reader sees the stored offsets.

        Offsets of recreated topics are skipped.
        """
        recreated = stored.recreated(topic_ids(sources))
        mine = {
            partition: at
            for partition, at in stored.offsets.items()
            if partition.topic not in recreated
        }
        await wait_until_known(sources, mine, decided=decided)

    def _check_end(self, ended: dict[TopicPartition, int], sources: OpenSources) -> None:
        """Report a loss if a log has become shorter, and lower its entry in `ended`.

        Raises JobError if the outcome of transactions in the batch is open.
        """
        for partition, end in ended.items():
            now = sources[partition].scan.end_sequence_id
            committed = sources[partition].committed
            if committed is not None and committed.stable_offset < end <= now:
                raise JobError(
                    f"{partition} can be read up to {committed.stable_offset}, and the batch was"
                    f" planned up to {end}: {committed.undecided}",
                    "OPEN_TRANSACTION",
                )
            if now < end:
                lost = [OffsetRange(*partition, now, end)]
                report_loss(lost, "beyond the end of the log", self._options.fail_on_data_loss)
                ended[partition] = now


def _ends(sources: OpenSources) -> dict[TopicPartition, int]:
    return {partition: source.end for partition, source in sources.items()}


def _covers(sources: OpenSources, end: StreamOffsets) -> bool:
    """Return whether the look saw these topics, and their records up to `end`."""
    return not end.recreated(topic_ids(sources)) and all(
        partition in sources and sources[partition].end >= at
        for partition, at in end.offsets.items()
    )

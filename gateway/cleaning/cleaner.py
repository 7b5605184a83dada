"""The schedule of a gateway's cleaner: one partition at a time, the dirtiest first.

A failed round is repeated later, after a growing pause, and other partitions go on meanwhile. A
batch that cannot be read makes its partition uncleanable until this gateway leads it again.
Source: Kafka, LogCleaner and LogCleanerManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from gateway.cleaning.report import NOTHING, CleaningReport, Progress
from gateway.cleaning.settings import CleanerSettings
from gateway.core.cleaning_choice import NEVER_MS, IoPace, LogSegment, cleanable
from gateway.core.cleaning_results import PoisonedBatch
from gateway.core.topic_names import is_internal
from gateway.features.features import Features
from gateway.log import logger
from gateway.topics.catalog import Catalog
from gateway.topics.configs import TopicConfig
from gateway.topics.partition import Partition
from gateway.topics.partitions import Partitions
from ledger.errors import LedgerError
from ledger.ports.clock import Clock
from ledger.streams.listed_stream import Segment
from ledger.tasks import report as report_failure
from ledger.tasks import start_restarting

if TYPE_CHECKING:
    from gateway.cleaning.process import CleanerProcess

_PARTITIONS_PER_TURN = 50
_FIRST_TIMES_PER_LOOK = 16  # batches of one partition that are read to learn their time
_IDLE_S_MAX = 60.0  # without work, after which the process ends: its start takes 0.25 s
_PAUSE_S_FIRST, _PAUSE_S_MAX = 15.0, 600.0


class Cleaner:
    """The cleaner of one gateway. Call `start` once, and `stop` before the partitions close."""

    def __init__(
        self,
        catalog: Catalog,
        partitions: Partitions,
        features: Features,
        clock: Clock,
        settings: Callable[[], CleanerSettings],
    ) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._features = features
        self._clock = clock
        self._settings = settings
        # Made by the first round: many gateways have no compacted topic.
        self.process: CleanerProcess | None = None
        self._pace = IoPace()
        # The reports of compacted partitions that this broker leads, since the last look.
        self._reports: dict[Partition, CleaningReport] = {}
        # When the last round ended.
        self._worked_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = start_restarting("the cleaner of compacted topics", self._run)

    async def stop(self) -> None:
        """End a round that runs, and the process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end_process()

    async def _end_process(self) -> None:
        if self.process is not None:
            await self.process.stop()

    def reports(self) -> Iterator[CleaningReport]:
        """Yield the reports of the compacted partitions that this broker leads."""
        for partition, each in self._reports.items():
            if not partition.closed:
                yield each

    async def _run(self) -> None:
        while True:
            if await self.clean_once():
                await asyncio.sleep(0)  # a round that finds nothing to do may not have waited
                continue
            if self._clock.monotonic_s() - self._worked_s >= _IDLE_S_MAX:
                await self._end_process()
            await asyncio.sleep(self._settings().backoff_ms / 1000)

    async def clean_once(self) -> bool:
        """Run one round for the dirtiest log that is due. Return False if none is."""
        await self._look()
        found = self._dirtiest()
        if found is None:
            return False
        if not self._features.writes_new_forms:
            self._features.begin_new_forms()
            return False
        try:
            await self._clean(*found)
        finally:
            self._worked_s = self._clock.monotonic_s()
        return True

    # -- choosing -----------------------------------------------------------------------------

    async def _look(self) -> None:
        """Bring the reports up to date."""
        seen: set[Partition] = set()
        for number, (topic, index, partition) in enumerate(list(self._partitions.served()), 1):
            if number % _PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
            config = self._config_of(topic, partition)
            if config is None or not isinstance(partition, Partition):
                continue
            seen.add(partition)
            each = self._reports.setdefault(partition, CleaningReport(topic, index))
            try:
                await self._look_at(partition, each, config)
                each.look_error = None
            except LedgerError as error:
                each.look_error = str(error)
            except Exception as error:  # noqa: BLE001  other partitions must be cleaned all the same
                report_failure(f"the look at {partition.name}", error)
                each.look_error, each.cleanable = f"{type(error).__name__}: {error}", NOTHING
        for partition in self._reports.keys() - seen:
            del self._reports[partition]

    def _config_of(self, name: str, partition: object) -> TopicConfig | None:
        """Return the configs of a partition that this broker leads and may clean, or None."""
        if not isinstance(partition, Partition) or is_internal(name):
            return None
        topic = self._catalog.by_name(name)
        if topic is None or not partition.readable or not partition.is_leader:
            return None
        config = self._catalog.config(topic)
        return config if config.compacts else None

    async def _look_at(
        self, partition: Partition, each: CleaningReport, config: TopicConfig
    ) -> None:
        stream = partition.stream
        segments = stream.cleanable_segments()
        dirty = [s.start_sequence_id for s in segments if not _is_clean(s)]
        await self._learn_first_times(partition, each, dirty, config)
        facts = [self._facts(partition, each, segment) for segment in segments]
        now_ms = self._clock.now_ms()
        each.cleanable = cleanable(facts, partition.stable_offset, now_ms, config.cleaning)
        each.dirty_bytes = sum(fact.size_bytes for fact in facts if not fact.cleaned)
        each.oldest_dirty_ms = each.first_times.get(self._first_dirty(partition, facts))

    def _facts(self, partition: Partition, each: CleaningReport, segment: Segment) -> LogSegment:
        stream = partition.stream
        return LogSegment(
            segment.start_sequence_id,
            segment.end_sequence_id,
            stream.segment_bytes(segment),
            _is_clean(segment),
            stream.segment_timestamp_max(segment),
            each.first_times.get(segment.start_sequence_id),
        )

    def _first_dirty(self, partition: Partition, facts: Sequence[LogSegment]) -> int:
        dirty = next((fact.start for fact in facts if not fact.cleaned), None)
        if dirty is not None:
            return dirty
        return facts[-1].end if facts else partition.log_start_offset

    async def _learn_first_times(
        self, partition: Partition, each: CleaningReport, dirty: list[int], config: TopicConfig
    ) -> None:
        """Read the times of the first batches of dirty segments, each once.

        Only the oldest one is needed unless records must be cleaned in time.
        """
        segments = partition.stream.cleanable_segments()
        behind = segments[-1].end_sequence_id if segments else partition.log_start_offset
        wanted = dirty if config.cleaning.lag_ms_max != NEVER_MS else dirty[:1]
        wanted = wanted or [behind]
        known = each.first_times
        each.first_times = {start: known[start] for start in wanted if start in known}
        missing = [start for start in wanted if start not in known]
        for start in missing[:_FIRST_TIMES_PER_LOOK]:
            if start < partition.high_watermark:
                at = max(start, partition.log_start_offset)
                records = await partition.stream.read(at, 1)
                each.first_times[start] = records[0].timestamp_max

    def _dirtiest(self) -> tuple[Partition, CleaningReport, TopicConfig] | None:
        """Return the due log with the largest dirty share."""
        now_s = self._clock.monotonic_s()
        due: list[tuple[float, Partition, CleaningReport, TopicConfig]] = []
        for partition, each in self._reports.items():
            config = self._config_of(each.topic, partition)
            if config is None or each.uncleanable or each.not_before_s > now_s:
                continue
            if each.cleanable.is_due(config.cleaning):
                due.append((each.cleanable.ratio, partition, each, config))
        return max(due, key=lambda one: one[0])[1:] if due else None

    # -- cleaning -----------------------------------------------------------------------------

    async def _clean(self, partition: Partition, each: CleaningReport, config: TopicConfig) -> None:
        from gateway.cleaning.process import CleanerProcess
        from gateway.cleaning.round import LogRound, RoundEnded

        progress = each.progress = Progress()
        process = self.process = self.process or CleanerProcess()
        work = LogRound(
            partition,
            process,
            self._pace,
            self._settings,
            self._clock,
            progress,
            lambda: self._config_of(each.topic, partition) is not None,
        )
        try:
            await process.start()
            await work.run(each.cleanable.end, config.delete_retention_ms)
            await work.merge(config.segment_bytes)
        except RoundEnded:
            each.round_error = None
        except PoisonedBatch as poisoned:
            each.uncleanable, each.round_error = True, str(poisoned)
            logger().error(
                "a partition is not cleaned any more, because a batch cannot be read",
                topic=each.topic,
                partition=each.partition,
                reason=each.round_error,
            )
        except (LedgerError, OSError) as error:
            self._failed(partition, each, error)
        except Exception as error:  # noqa: BLE001  other partitions must be cleaned all the same
            report_failure(f"the cleaning of {partition.name}", error)
            self._failed(partition, each, error)
        else:
            process.succeeded()
            each.round_error, each.pause_s = None, 0.0
            each.cleaned_ms, each.last = self._clock.now_ms(), progress
        finally:
            each.progress = None

    def _failed(self, partition: Partition, each: CleaningReport, error: Exception) -> None:
        """Let the partition rest after a failed round, and longer after each further one."""
        each.round_error = f"{type(error).__name__}: {error}"
        each.pause_s = min(max(2 * each.pause_s, _PAUSE_S_FIRST), _PAUSE_S_MAX)
        each.not_before_s = self._clock.monotonic_s() + each.pause_s
        if partition.is_leader:
            logger().warning(
                "a partition was not cleaned; it is tried again",
                topic=each.topic,
                partition=each.partition,
                reason=each.round_error,
            )


def _is_clean(segment: Segment) -> bool:
    """True if a segment was cleaned, or if its owner died before it had a record."""
    return segment.cleaned or segment.start_sequence_id == segment.end_sequence_id

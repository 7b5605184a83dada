"""The replay job: archived records into a topic, unchanged and in order, exactly once.

The job decides once which records to replay and where, and stores this plan as its state. Any later
run continues the plan from the end of the target. Concurrent runs do no harm: they write the same
records with the same sequences. Records that are archived later get a plan of their own, which is
stored once the plan before it is complete.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gateway.pipelines.archives.port import Archive, ignore_step
from gateway.pipelines.replays.encode import CODECS
from gateway.pipelines.replays.model import ReplayedPartition, ReplayReport, ReplayRequest
from gateway.pipelines.replays.plan import (
    PartitionPlan,
    ReplayChunk,
    ReplayPlan,
    Selection,
    join_ranges,
    next_chunk,
    select_ranges,
    subtract_ranges,
)
from gateway.pipelines.replays.plan_store import PlanStore, StoredPlan
from gateway.pipelines.replays.selected import measure, one_task_each, read_selected
from gateway.pipelines.replays.target import (
    ReplayTarget,
    check_empty,
    check_ends,
    check_target,
    create_if_missing,
    describe_target,
    new_producer_id,
)
from gateway.pipelines.replays.task import RESULT, SendOptions, chunk_writer, new_writer
from gateway.pipelines.replays.transactional_write import TransactionalWrite
from gateway.pipelines.replays.transactional_writer import transaction_writer
from gateway.pipelines.replays.transactions import FAILED, ReplayTransactions
from gateway.pipelines.replays.writer import WriterLimits, check_topic_id
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import KafkaServers
from gateway.pipelines.shared.partitions import OffsetRange
from gateway.pipelines.shared.session import session_settings
from gateway.pipelines.shared.spark_errors import translate_spark_errors
from gateway.pipelines.shared.topics import Topics
from ledger.adapters.system.clock import SystemClock
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_RETRY_S = 1.0
_RETRIED = frozenset({"UNREACHABLE", "NO_LEADER", "COORDINATOR_LOAD_IN_PROGRESS"})
"""Errors after which a request is repeated. The writers of the tasks retry on their own."""
_RETRIED_WHOLE = frozenset({"SPARK_FAILED", "FILE_SYSTEM", FAILED})
"""Errors after which the replay continues from the end of the target: a store may be away.

A transactional one continues behind its last committed transaction.
"""
_BATCH_BYTES = 512 * 1024
# Share of the topic's limit that is used, because compression may enlarge a batch
_BATCH_ROOM = 0.9
_ARROW_ROWS_MAX = 10_000  # Spark's default of maxRecordsPerBatch
_ARROW_BYTES = 16 * 1024 * 1024
OFFSETS_AT_ONCE = 250_000
"""Offsets of a partition per chunk. The limit bounds a task's sort for topics of any size."""
_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


class ReplayWatcher:
    """Receiver of a replay's progress. This base class ignores all reports."""

    def on_planned(self, plan: ReplayPlan, written: int) -> None:
        """Report the plan, and the number of its records that the target already has."""

    def on_retry(self, error: JobError, wait_s: float) -> None: ...

    def run(self, work: Callable[[], T]) -> T:
        """Run `work`, which may take long, and return its result."""
        return work()


def replay(
    spark: SparkSession,
    archive: Archive,
    bootstrap: KafkaServers,
    request: ReplayRequest,
    plans: PlanStore,
    *,
    watcher: ReplayWatcher | None = None,
    clock: Clock | None = None,
    offsets_at_once: int = OFFSETS_AT_ONCE,
    at_step: Callable[[str], None] = ignore_step,
) -> ReplayReport:
    """Write all requested records to the target, once each, in order. Raises JobError.

    `plans` contains the state. A new replay begins if it contains no plan. `offsets_at_once` is the
    number of offsets per partition in a chunk. `at_step` is called between the requests of a
    transaction.
    """
    job = _ReplayRun(
        spark,
        archive,
        bootstrap,
        request,
        watcher or ReplayWatcher(),
        clock or SystemClock(),
        at_step,
    )
    return job.retry(lambda: job.run(plans, offsets_at_once))


def check_other_topic(archived: str | None, bootstrap: KafkaServers, topic: str) -> None:
    """Raise JobError if the topic of this name is the archived topic itself, by its id."""
    try:
        now = Topics(bootstrap).describe(topic).topic_id
    except JobError as error:
        if error.code != "UNKNOWN_TOPIC_OR_PARTITION":
            raise
        return
    if now is not None and now == archived:
        raise JobError(
            f"topic {topic!r} is the archived topic itself and would hold its records twice; use"
            f" --to-topic OTHER, or --to-topic {topic} to confirm",
            "SAME_TOPIC",
        )


class _ReplayRun:
    """One run of a replay. The run retries transient errors."""

    def __init__(
        self,
        spark: SparkSession,
        archive: Archive,
        bootstrap: KafkaServers,
        request: ReplayRequest,
        watcher: ReplayWatcher,
        clock: Clock,
        at_step: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._at_step = at_step
        self._archive = archive
        self._bootstrap = bootstrap
        self._request = request
        self._watcher = watcher
        self._clock = clock
        self._topics = Topics(bootstrap)
        # The ranges whose records were compared with the archive's log in this run.
        self._proved: tuple[OffsetRange, ...] = ()
        # The number of records in their files that were archived without sums.
        self.unproved = 0
        # True once the plans were read and the target was described. Before, no error is retried.
        self._answered = False
        # The number of steps of progress: proofs, plans, and records that were written.
        self._steps = 0
        # The records that the target had when this run first looked, by the number of the plan and
        # the partition.
        self._present: dict[tuple[int, int], int] = {}
        # The records that this run has written, by the number of the plan.
        self._written: dict[int, int] = {}
        # True if an earlier run had stored a plan. None until the first look.
        self._resumed: bool | None = None

    def run(self, plans: PlanStore, offsets_at_once: int) -> ReplayReport:
        """Write what the target does not have yet. May be called again after a failure."""
        request = self._request
        stored = plans.last()
        if self._resumed is None:
            self._resumed = stored is not None
        plan = self.begin(plans) if stored is None else self.load(stored)
        rows = self.write(plan, offsets_at_once)
        while request.extend and (later := self.extend(plans, plan)) is not None:
            plan = later
            rows = self.write(plan, offsets_at_once)
        return ReplayReport(
            request.topic,
            request.target,
            plans.name,
            self._resumed,
            rows,
            sum(self._written.values()),
            plan.number,
            plan.earlier,
            beyond=sum(each.length for each in self.beyond(plan)),
            unproved=self.unproved,
        )

    def begin(self, plans: PlanStore) -> ReplayPlan:
        """Store the first plan, or load the one that a concurrent run stored first."""
        try:
            plan = self._first_plan()
        except JobError as error:
            # A concurrent run may have stored its plan and written records.
            stored = plans.last() if error.code == "TARGET_NOT_EMPTY" else None
            if stored is None:
                raise
            return self.load(stored)
        return self._store(plans, plan)

    def load(self, stored: StoredPlan) -> ReplayPlan:
        """Decode a stored plan. Raises JobError if the plan belongs to another replay."""
        plan = ReplayPlan.decode(stored.data, stored.where)
        if plan.asked != self._request.line():
            raise JobError(
                f"{stored.where} is the state of another replay ({plan.asked}); use another"
                " --state",
                "OTHER_REPLAY",
            )
        now = self._source_id()
        if plan.source_id and now and plan.source_id != now:
            raise JobError(
                f"{stored.where} is the state of a replay of another topic {self._request.topic!r}"
                f" (its id is {plan.source_id}, not {now}); use another --state",
                "OTHER_REPLAY",
            )
        return plan

    def extend(self, plans: PlanStore, done: ReplayPlan) -> ReplayPlan | None:
        """Store a plan for the records beyond `done`, all of whose records are written.

        Returns None if the archive has no more records.
        """
        ranges = self.beyond(done)
        if not ranges:
            return None
        self._check_continues(done, self._retry(self._describe_target))
        return self._store(plans, self._plan(ranges, done))

    def beyond(self, plan: ReplayPlan) -> tuple[OffsetRange, ...]:
        """Return the archived ranges that no plan covers. Named offsets are all in the plan."""
        if self._request.offsets is not None:
            return ()
        return subtract_ranges(self._archived(), plan.covered)

    def _store(self, plans: PlanStore, plan: ReplayPlan) -> ReplayPlan:
        plans.put_if_absent(plan.number, plan.encode())
        self._on_step()
        # Read the plan back, because a concurrent run may have stored its plan first.
        stored = plans.last()
        assert stored is not None, "plans are never removed"
        return self.load(stored)

    def _archived(self) -> tuple[OffsetRange, ...]:
        return select_ranges(self._request.topic, self._archive.ranges(), self._request.offsets)

    def _check_continues(self, done: ReplayPlan | None, target: ReplayTarget) -> None:
        """Raise JobError unless the target holds exactly what the plans up to `done` wrote."""
        if done is not None:
            check_topic_id(done, target.topic_id or None)
            # The markers of transactions take offsets, too.
            check_ends(target, done.ends_after, self._request.append or self._request.transactional)
        elif not self._request.append:
            check_empty(target)

    def _first_plan(self) -> ReplayPlan:
        request = self._request
        ranges = self._archived()
        if request.create:
            known = [p.partition for p in self._archive.state().ends if p.topic == request.topic]
            known += [each.partition for each in ranges]
            create_if_missing(self._topics, request.target, max(known) + 1)
        # Check the target before the scan, which takes long.
        self._check_continues(None, self._describe_target())
        return self._plan(ranges, None)

    def _plan(self, ranges: tuple[OffsetRange, ...], done: ReplayPlan | None) -> ReplayPlan:
        """Decide which records of `ranges` to write and where, and obtain a producer id.

        The plan continues after `done`, or is the first one.
        """
        request = self._request
        self._prove(ranges)
        selection = Selection(request.topic, ranges, request.start_ms, request.end_ms)
        extents = translate_spark_errors(lambda: measure(self._spark, self._archive, selection))
        target = self._retry(self._describe_target)
        self._check_continues(done, target)  # again: the base offsets are those of this look
        check_target(
            target,
            max((row.partition for row in extents), default=-1) + 1,
            max((self._clock.now_ms() - row.oldest_ms for row in extents), default=0),
        )
        producer = self._retry(lambda: new_producer_id(self._bootstrap))
        return ReplayPlan(
            asked=request.line(),
            selection=selection,
            target=request.target,
            topic_id=target.topic_id,
            producer_id=producer.number,
            producer_epoch=producer.epoch,
            record_bytes_max=max((row.record_bytes_max for row in extents), default=0),
            partitions=tuple(
                PartitionPlan(
                    row.partition, target.ends[row.partition], row.records, row.first, row.last
                )
                for row in extents
            ),
            source_id=self._source_id(),
            target_ends=tuple(target.ends[each] for each in sorted(target.ends)),
            covered=join_ranges(done.covered if done else (), ranges),
            number=done.number + 1 if done else 1,
            earlier=done.earlier + done.records if done else 0,
        )

    def _source_id(self) -> str:
        return self._archive.state().topic_ids.get(self._request.topic, "")

    def write(self, plan: ReplayPlan, offsets_at_once: int) -> tuple[ReplayedPartition, ...]:
        """Write all records of the plan that the target does not have yet."""
        target = self._retry(self._describe_target)
        room = int(target.batch_bytes_max * _BATCH_ROOM)
        sending = SendOptions(
            self._bootstrap,
            CODECS[self._request.codec],
            min(_BATCH_BYTES, room),
            WriterLimits(self._request.stall_s_max),
        )
        check_topic_id(plan, target.topic_id or None)
        if self._request.transactional:
            return self._write_transactions(plan, sending, offsets_at_once)
        present = {
            each.partition: _records_present(plan, each, sending)
            # An end at or below the base offset needs no look at the last batch. The writers of
            # the tasks check it again.
            if target.ends.get(each.partition, 0) > each.base_offset
            else 0
            for each in plan.partitions
        }
        if sum(present.values()) < plan.records:
            self._prove(plan.selection.ranges)
        self._watcher.on_planned(plan, sum(present.values()))
        # The records that failed attempts of this run have written, by partition.
        before = {
            each: count - self._present.setdefault((plan.number, each), count)
            for each, count in present.items()
        }
        self._on_written(plan, sum(before.values()))
        writing = _ChunkedWrite(
            self._spark,
            self._archive,
            plan,
            sending,
            offsets_at_once,
            lambda written: self._on_written(plan, sum(before.values()) + written),
        )
        self._watcher.run(lambda: translate_spark_errors(lambda: writing.run(present)))
        return tuple(
            _replayed(each, before[each.partition], writing.done.get(each.partition))
            for each in plan.partitions
        )

    def _write_transactions(
        self, plan: ReplayPlan, sending: SendOptions, offsets_at_once: int
    ) -> tuple[ReplayedPartition, ...]:
        name = f"gateway-replay-{self._request.digest()}-{plan.producer_id}"
        writing = TransactionalWrite(
            plan,
            self._bootstrap,
            ReplayTransactions(self._bootstrap, name, self._at_step),
            lambda chunks, run: write_chunks(
                self._spark,
                self._archive,
                plan,
                chunks,
                transaction_writer(plan, sending, run, chunks),
            ),
            offsets_at_once,
        )
        present = writing.begin()
        if sum(present.values()) < plan.records:
            self._prove(plan.selection.ranges)
        self._watcher.on_planned(plan, sum(present.values()))
        before = {
            each: count - self._present.setdefault((plan.number, each), count)
            for each, count in present.items()
        }

        def written() -> dict[int, int]:
            now = writing.positions
            return {each: before[each] + now[each].number - present[each] for each in present}

        on_chunk = lambda: self._on_written(plan, sum(written().values()))  # noqa: E731
        on_chunk()
        self._watcher.run(lambda: translate_spark_errors(lambda: writing.run(on_chunk)))
        ends = self._retry(self._describe_target).ends
        counts = written()
        return tuple(
            ReplayedPartition(
                each.partition,
                each.count,
                counts[each.partition],
                each.base_offset,
                ends[each.partition],
                1,
            )
            for each in plan.partitions
        )

    def _prove(self, ranges: tuple[OffsetRange, ...]) -> None:
        """Raise JobError unless the archive holds what its log says, once for the same ranges."""
        if ranges == self._proved:
            return
        topics = [self._request.topic]
        proof = translate_spark_errors(lambda: self._archive.verify(topics, ranges))
        proof.expect_intact("the archive")
        self._proved, self.unproved = ranges, proof.unproved_rows
        self._on_step()

    def _describe_target(self) -> ReplayTarget:
        target = describe_target(self._topics, self._bootstrap, self._request.target)
        self._answered = True
        return target

    def _on_step(self) -> None:
        self._steps += 1

    def _on_written(self, plan: ReplayPlan, records: int) -> None:
        """Note how many records of the plan this run has written."""
        if records > self._written.get(plan.number, 0):
            self._written[plan.number] = records
            self._on_step()

    def retry(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which continues where it failed.

        Retries while the archive's store may be away, until `stall_s_max` seconds pass without
        progress.
        """
        return self._retry(lambda: translate_spark_errors(work), _RETRIED_WHOLE)

    def _retry(self, work: Callable[[], T], codes: Collection[str] = _RETRIED) -> T:
        """Return the result of `work`. Retries errors with these codes."""
        failing_since_s, steps = None, self._steps
        while True:
            try:
                return work()
            except JobError as error:
                now_s = self._clock.monotonic_s()
                if failing_since_s is None or steps != self._steps:
                    failing_since_s, steps = now_s, self._steps
                late = now_s - failing_since_s > self._request.stall_s_max
                if not self._answered or error.code not in codes or late:
                    raise
                self._watcher.on_retry(error, _RETRY_S)
            time.sleep(_RETRY_S)


# --- writing ----------------------------------------------------------------------------------


def _records_present(plan: ReplayPlan, partition: PartitionPlan, sending: SendOptions) -> int:
    """Return how many records of the partition the target already has."""
    writer = new_writer(plan, partition, sending)
    try:
        return writer.find_next_record()
    finally:
        writer.close()


class _WrittenSoFar(NamedTuple):
    """The progress of one partition in this run."""

    written: int = 0
    looks: int = 1

    def plus(self, row: Any) -> _WrittenSoFar:
        """Add a result row. The first lookup of each chunk is expected and not counted."""
        return _WrittenSoFar(self.written + row["written"], self.looks + row["looks"] - 1)


class _ChunkedWrite:
    """A parallel write of all partitions, one chunk of each at a time. `done` is the progress.

    After each chunk of all partitions it calls `on_chunk` with the records written so far.
    """

    def __init__(
        self,
        spark: SparkSession,
        archive: Archive,
        plan: ReplayPlan,
        sending: SendOptions,
        offsets_at_once: int,
        on_chunk: Callable[[int], None],
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._plan = plan
        self._sending = sending
        self._offsets_at_once = offsets_at_once
        self._on_chunk = on_chunk
        self._ranges = plan.selection.by_partition()
        self.done: dict[int, _WrittenSoFar] = {}

    def run(self, present: Mapping[int, int]) -> None:
        """Write all chunks. `present` is the number of records that each partition already has."""
        left = [each for each in self._plan.partitions if present[each.partition] < each.count]
        chunks = [
            self._chunk(each, each.first + present[each.partition], present[each.partition])
            if each.dense
            # A sparse partition is read from its start, to count its records.
            else self._chunk(each, each.first, 0)
            for each in left
        ]
        while chunks:
            work = chunk_writer(self._plan, self._sending, chunks)
            rows = write_chunks(self._spark, self._archive, self._plan, chunks, work)
            _raise_failures(rows, left, chunks)
            numbers = {each.partition: each.number for each in chunks}
            for row in rows:
                partition = row["partition"]
                self.done[partition] = self.done.get(partition, _WrittenSoFar()).plus(row)
                numbers[partition] = row["number"]
            self._on_chunk(sum(each.written for each in self.done.values()))
            ends = {each.partition: each.end for each in chunks if not each.last}
            chunks = [
                self._chunk(each, ends[each.partition], numbers[each.partition])
                for each in left
                if each.partition in ends
            ]

    def _chunk(self, partition: PartitionPlan, offset: int, number: int) -> ReplayChunk:
        ranges = self._ranges[partition.partition]
        return next_chunk(ranges, partition, offset, number, self._offsets_at_once)


def write_chunks(
    spark: SparkSession,
    archive: Archive,
    plan: ReplayPlan,
    chunks: Sequence[ReplayChunk],
    work: Callable[[Any], Any],
) -> list[Any]:
    """Write the chunks by `work`. Returns one row of `RESULT` per partition, even on failure."""
    selection = plan.selection
    ranges = selection.by_partition()
    within = [
        each._replace(start=max(each.start, one.first), end=min(each.end, one.end))
        for one in chunks
        for each in ranges[one.partition]
        if each.start < one.end and one.first < each.end
    ]
    records = read_selected(spark, archive, selection, within).select(
        "partition", "offset", "timestamp", "key", "value", "headers"
    )
    spread = one_task_each(spark, records, [each.partition for each in chunks])
    ordered = spread.sortWithinPartitions("partition", "offset")
    record_bytes = max(1, plan.record_bytes_max)
    arrow_rows = max(1, min(_ARROW_ROWS_MAX, _ARROW_BYTES // record_bytes))
    with session_settings(spark, {_ARROW_ROWS: str(arrow_rows)}):
        # The driver receives one row per partition.
        rows = ordered.mapInArrow(work, RESULT).collect()
    # The frames of a chunk refer to each other. Until Python collects them, the JVM keeps their
    # plans and shuffles.
    gc.collect()
    return rows


def _raise_failures(
    rows: Sequence[Any], left: Sequence[PartitionPlan], chunks: Sequence[ReplayChunk]
) -> None:
    failed = sorted((row["partition"], row["error"], row["code"]) for row in rows if row["code"])
    if failed:
        _, error, code = failed[0]
        more = f" (and {len(failed) - 1} partitions more)" if len(failed) > 1 else ""
        raise JobError(f"{error}{more}", code)
    dense = {each.partition for each in left if each.dense}
    wanted = {each.partition for each in chunks if each.last or each.partition in dense}
    missing = wanted - {row["partition"] for row in rows}
    if missing:
        raise JobError(
            f"partitions {sorted(missing)}: records that the archive had when the replay began are"
            " missing",
            "SOURCE_CHANGED",
        )


def _replayed(
    partition: PartitionPlan, before: int, done: _WrittenSoFar | None
) -> ReplayedPartition:
    written, looks = done or _WrittenSoFar()
    return ReplayedPartition(
        partition.partition,
        partition.count,
        before + written,
        partition.base_offset,
        partition.end_offset,
        looks,
    )

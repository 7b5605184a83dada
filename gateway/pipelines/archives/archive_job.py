"""The archive job: each round commits the offsets after the archived ones, exactly once.

Only the archive stores the progress; the job keeps no state. Therefore reruns, crashes and
concurrent jobs need no special treatment: the job that commits second reads the archive again.

Topics do not depend on each other. A topic that cannot be archived is set aside with the reason,
and the others are archived. If a round fails and the error names no topic, the job runs a round of
each topic alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gateway.pipelines.archives.archive_model import (
    EARLIEST,
    LATEST,
    ArchiveReport,
    ArchiveRequest,
    ArchiveWatcher,
)
from gateway.pipelines.archives.lives import base_name, find_life, life_name
from gateway.pipelines.archives.observed import observe, observed
from gateway.pipelines.archives.pacing import CommitPacer
from gateway.pipelines.archives.port import (
    ACCEPTED,
    Archive,
    ArchiveState,
    Holes,
)
from gateway.pipelines.archives.rounds import ArchiveRound, GoneRange, RoundInput, next_round
from gateway.pipelines.shared.accepted_losses import (
    AcceptedRanges,
    LossesUnknown,
    read_accepted,
)
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import KafkaServers
from gateway.pipelines.shared.kafka_source import Isolation, read_ranges
from gateway.pipelines.shared.partitions import COLUMNS, OffsetRange, TopicPartition
from gateway.pipelines.shared.spark_errors import translate_spark_errors
from gateway.pipelines.shared.topics import (
    OffsetBounds,
    Topics,
    choose_topics,
    no_topic,
)
from ledger.adapters.system.clock import SystemClock
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_OFFSETS_PER_TASK = 250_000
"""Offsets per task. The limit bounds a task's sort for topics of any size, without small files."""
_PAUSE_S = 0.2
"""How often a waiting job checks whether it should stop."""
_RETRY_S = 1.0
_RETRIED = frozenset(
    {
        "UNREACHABLE",
        "NO_LEADER",
        "SPARK_FAILED",
        "FILE_SYSTEM",
        "LOSSES_UNKNOWN",
        "TOPIC_CHANGED",
        "UNKNOWN_TOPIC",
        "UNKNOWN_TOPIC_OR_PARTITION",
    }
)
_OF_ONE_TOPIC = frozenset(
    {
        *(_RETRIED - {"UNREACHABLE", "FILE_SYSTEM"}),
        "WRONG_RECORDS",
        "SPARK_REFUSED",
        "CORRUPT_METADATA",
        "TIMESTAMP_OUT_OF_RANGE",
        "TOPIC_AUTHORIZATION_FAILED",
    }
)
"""Codes of errors that one topic may cause, though the error may not name it."""
_FAILED_AGAIN_S = 300.0
"""How long a job that follows its topics leaves out a topic whose round failed."""
_COMPACT_EVERY = 20
"""Number of commits between two compactions, in a job that follows its topics."""


class _Selection(NamedTuple):
    """The topics of a round, by their names in the archive: see `lives`."""

    topics: dict[str, str]
    """The name of each topic in Kafka."""
    ids: dict[str, str]
    """The known topic ids."""
    refused: dict[str, JobError]
    """The topics that are left out, by their names in Kafka."""

    def to_archive(self, partitions: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
        """Replace the names in Kafka by the names in the archive."""
        lives = {topic: life for life, topic in self.topics.items()}
        return {each._replace(topic=lives[each.topic]): of for each, of in partitions.items()}


class ArchiveJob:
    """One archive job. `report` contains its progress."""

    def __init__(
        self,
        spark: SparkSession,
        archive: Archive,
        bootstrap: KafkaServers,
        request: ArchiveRequest,
        *,
        watcher: ArchiveWatcher | None = None,
        clock: Clock | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare a job. The job polls `stop` between rounds and while it waits."""
        self._spark = spark
        self._archive = archive
        self._bootstrap = bootstrap
        self._topics = Topics(bootstrap)
        self._request = request
        self._watcher = watcher or ArchiveWatcher()
        self._clock = clock or SystemClock()
        self._stop = stop
        # Whether the cluster has answered a request. Before the first answer, no error is retried.
        self._answered = False
        # The offset at which each partition ends, in a job that does not follow its topics. Filled
        # when a partition is first seen.
        self._targets: dict[TopicPartition, int] = {}
        self._follows = False
        # The topics of the current round, by their names in Kafka.
        self._current: list[str] = []
        # The topics whose own rounds failed, with the error and the time of the next attempt.
        self._failed: dict[str, tuple[JobError, float]] = {}
        # The records that Spark cannot represent, as far as rounds have met them.
        self._unrepresentable: dict[TopicPartition, list[GoneRange]] = {}
        self._pacer = CommitPacer(request.commit_bytes, request.commit_s)
        # The bytes of keys and values that the last round has read.
        self._bytes_read = 0
        # A round whose commit was sent and not answered.
        self._unanswered: ArchiveRound | None = None
        self.report = ArchiveReport()

    def run(self) -> ArchiveReport:
        """Archive up to the current ends of the topics, unless `stop` ends the job earlier."""
        while not self._stop() and self._step():
            pass
        self._compact()
        return self.report

    def follow(self) -> ArchiveReport:
        """Archive new records every `interval_s`, until `stop` ends the job."""
        self._follows = True
        compacted_at = 0
        while not self._stop():
            worked = self._step()
            if self.report.commits >= compacted_at + _COMPACT_EVERY:
                self._compact()
                compacted_at = self.report.commits
            if not worked:
                self._wait(self._request.interval_s)
        self._compact()
        return self.report

    def _compact(self) -> None:
        if self._request.file_bytes:
            size = self._request.file_bytes
            self.report.add_compacted(self._retry(lambda: self._archive.compact(size)))

    # --- topics apart ---------------------------------------------------------------------------

    def _step(self) -> bool:
        """Run one round. Returns False if there is nothing to archive."""
        self._current = []
        try:
            return self._retry(self._round)
        except JobError as error:
            if error.code not in _OF_ONE_TOPIC or not self._current:
                raise
            self._one_by_one(self._current, error)
            return True

    def _one_by_one(self, topics: list[str], cause: JobError) -> None:
        """Run a round of each topic and set aside those that fail.

        Raises `cause` if no topic failed and nothing was archived.
        """
        commits, failed = self.report.commits, 0
        if len(topics) == 1:
            self._fail(topics[0], cause)
            return
        for topic in topics:
            try:
                self._retry(lambda topic=topic: self._round(topic))
            except JobError as error:
                if error.code not in _OF_ONE_TOPIC:
                    raise
                self._fail(topic, error)
                failed += 1
        if not failed and self.report.commits == commits:
            raise cause

    def _fail(self, topic: str, error: JobError) -> None:
        again_s = self._now_s() + _FAILED_AGAIN_S if self._follows else float("inf")
        self._failed[topic] = error, again_s
        self._set_aside(topic, error)

    def _set_aside(self, topic: str, error: JobError) -> None:
        before = self.report.set_aside.get(topic)
        self.report.set_aside[topic] = error
        if before is not None and before.code == error.code:
            return
        if before is not None:
            self._watcher.on_recovered(topic, before)
        self._watcher.on_set_aside(topic, error)

    # --- one round ------------------------------------------------------------------------------

    def _round(self, only: str = "") -> bool:
        """Run one round, of the topic `only` if it is set. Returns False if nothing is to do.

        If another job committed first, this round adds nothing. The next round reads the archive
        again.
        """
        request = self._request
        state = self._archive.state()
        self._count_unanswered(state)
        selection = self._select(state.topic_ids, only)
        self._current = list(selection.topics.values())
        if not self._current:
            self._report_refused(selection.refused, only)
            return False
        bounds = self._bounds(selection)
        sparse = self._sparse(selection)
        plan = next_round(
            RoundInput(
                state,
                bounds,
                self._pacer.limit(request.offsets_per_round_max),
                self._clock.now_ms(),
                self._starts(selection, state, bounds),
                self._targets,
                self._gone(selection, sparse),
                {each for each, topic in selection.topics.items() if topic in request.accept_loss},
            )
        )
        refused = {base_name(topic): error for topic, error in plan.refused.items()}
        self._report_refused({**selection.refused, **refused}, only)
        left = _offsets_left(state, bounds, self._targets, plan.refused)
        self._watcher.on_planned(left)
        if not plan.ranges:
            return False
        if self._follows and plan.offsets and not self._pacer.is_due(left, self._now_s()):
            return False
        self._unanswered = plan
        if self._append(plan, selection, sparse, state):
            self._count(plan)
        self._unanswered = None
        return True

    def _count(self, plan: ArchiveRound) -> None:
        self._pacer.on_committed(plan.offsets, self._bytes_read)
        self.report.add(plan)
        self._watcher.on_committed(plan)

    def _count_unanswered(self, state: ArchiveState) -> None:
        """Count the last round if its commit is there although it was not answered."""
        plan, self._unanswered = self._unanswered, None
        if plan and all(state.ends.get(each.topic_partition) == each.end for each in plan.ranges):
            self._count(plan)

    def _append(
        self,
        plan: ArchiveRound,
        selection: _Selection,
        sparse: frozenset[str],
        state: ArchiveState,
    ) -> bool:
        """Read the records and add them. Returns False if nothing was added."""
        try:
            try:
                return self._read_and_add(plan, selection, sparse, state, exactly=False)
            except _Inexact:
                return self._read_and_add(plan, selection, sparse, state, exactly=True)
        except JobError as error:
            if error.code != "TIMESTAMP_OUT_OF_RANGE":
                raise
            # The following rounds stop before the records that Spark cannot represent.
            if not self._find_unrepresentable(plan, selection):
                raise
            return False

    def _read_and_add(
        self,
        plan: ArchiveRound,
        selection: _Selection,
        sparse: frozenset[str],
        state: ArchiveState,
        *,
        exactly: bool,
    ) -> bool:
        ids = {
            selection.topics[each]: selection.ids[each]
            for each in plan.topics
            if each in selection.ids
        }
        self._confirm(ids)
        self._bytes_read = 0
        if not plan.offsets:
            nothing = self._spark.createDataFrame([], COLUMNS)
            commit = plan.commit(selection.ids, sparse, lambda: self._confirm(ids))
            return self._archive.append(nothing, commit, state)
        records, watch = observe(self._records(plan, selection, exactly))

        def confirm() -> None:
            self._confirm(ids)
            found = observed(watch)
            if found.doubtful and not exactly:
                raise _Inexact
            self._bytes_read = found.bytes

        commit = plan.commit(
            selection.ids, sparse, confirm, lambda ranges: self._holes(ranges, selection)
        )
        return translate_spark_errors(lambda: self._archive.append(records, commit, state))

    def _holes(self, ranges: Iterable[OffsetRange], selection: _Selection) -> Holes:
        """Prove which offsets of these ranges are markers, or records that were aborted."""
        # Imported here because it needs numpy.
        from gateway.pipelines.archives.holes import find_holes, sum_holes

        asked = [each._replace(topic=selection.topics[each.topic]) for each in ranges]
        isolation = self._request.isolation
        holes = find_holes(self._spark, self._bootstrap, asked, isolation)
        return selection.to_archive(sum_holes(holes))

    def _find_unrepresentable(self, plan: ArchiveRound, selection: _Selection) -> bool:
        """Find the records of the round that Spark cannot represent. Returns False for none."""
        # Imported here because it needs numpy.
        from gateway.pipelines.archives.exact_read import (
            find_unrepresentable,
            merge_unrepresentable,
        )

        ranges = _in_kafka(plan, selection)
        found = find_unrepresentable(self._bootstrap, ranges, self._request.isolation)
        for each in merge_unrepresentable(found):
            (partition,) = selection.to_archive({each.range.topic_partition: None})
            self._unrepresentable.setdefault(partition, []).append(each)
        return bool(found)

    def _select(self, archived: Mapping[str, str], only: str) -> _Selection:
        """Find the topics to archive now, with their names in the archive."""
        request = self._request
        listed = self._topics.listed()
        chosen = choose_topics(listed, request.topics, request.pattern)
        if not chosen.found and not chosen.missing:
            raise no_topic()
        self._answered = True
        found = _Selection({}, {}, self._topics.why_missing(chosen.missing))
        now_s = self._now_s()
        for topic in chosen.found:
            failed, again_s = self._failed.get(topic, (None, 0.0))
            if failed is not None and now_s < again_s:
                found.refused[topic] = failed
                continue
            self._failed.pop(topic, None)
            if only and topic != only:
                continue
            topic_id = listed[topic].topic_id
            life = find_life(archived, topic, topic_id)
            if life is None and topic_id is not None and topic in request.accept_loss:
                life = life_name(topic, topic_id)
            if life is None:
                found.refused[topic] = _made_anew(topic, archived[topic], topic_id)
                continue
            found.topics[life] = topic
            if topic_id is not None:
                found.ids[life] = topic_id
        return found

    def _report_refused(self, refused: Mapping[str, JobError], only: str) -> None:
        if not only:  # this round looked at all topics, so the others have recovered
            for topic in self.report.set_aside.keys() - refused.keys():
                self._watcher.on_recovered(topic, self.report.set_aside.pop(topic))
        for topic, error in refused.items():
            self._set_aside(topic, error)

    def _confirm(self, ids: Mapping[str, str]) -> None:
        """Raise JobError if a broker has another topic id than the round was planned with.

        Called before and after the records are read: if the ids are the same, all records belong to
        them, because a topic id is never used again. All brokers are asked, because one of them may
        still serve a deleted topic, or name its id, after another one serves the new topic.
        """
        for answer in self._topics.ids_at_brokers(ids):
            for topic, topic_id in ids.items():
                if answer.get(topic) != topic_id:
                    raise JobError(
                        f"topic {topic!r} was deleted or recreated while it was read; nothing was"
                        " archived of this round",
                        "TOPIC_CHANGED",
                    )

    def _bounds(self, selection: _Selection) -> dict[TopicPartition, OffsetBounds]:
        committed = self._request.isolation is Isolation.read_committed
        found = self._topics.bounds(selection.topics.values(), committed=committed)
        bounds = selection.to_archive(found)
        if not self._follows:
            for partition, each in bounds.items():
                self._targets.setdefault(partition, each.latest)
        return bounds

    def _sparse(self, selection: _Selection) -> frozenset[str]:
        """Return the topics in which offsets without a record are accepted."""
        if self._request.allow_gaps:
            return frozenset(selection.topics)
        policies = self._topics.setting(selection.topics.values(), "cleanup.policy")
        return frozenset(
            life for life, topic in selection.topics.items() if "compact" in policies.get(topic, "")
        )

    def _gone(
        self, selection: _Selection, sparse: Collection[str]
    ) -> dict[TopicPartition, list[GoneRange]]:
        """Return the offsets that cannot be archived."""
        accepted = self._accepted(selection.topics.values(), sparse)
        gone = {
            partition: [GoneRange(each, ACCEPTED) for each in ranges]
            for partition, ranges in selection.to_archive(accepted).items()
        }
        for partition, records in self._unrepresentable.items():
            together = [*gone.get(partition, ()), *records]
            gone[partition] = sorted(together, key=lambda each: each.range.start)
        return gone

    def _accepted(self, names: Iterable[str], sparse: Collection[str]) -> AcceptedRanges:
        """Return the accepted losses of the topics. Raises JobError.

        If they are unknown, a topic whose offsets are dense needs none: the archive refuses its
        missing records.
        """
        try:
            return read_accepted(self._bootstrap, names, self._request.metadata)
        except LossesUnknown:
            if sparse:
                raise
            return {}

    def _starts(
        self,
        selection: _Selection,
        state: ArchiveState,
        bounds: Mapping[TopicPartition, OffsetBounds],
    ) -> dict[TopicPartition, int]:
        """Return the first offset to archive for each partition of new topics.

        Omitted partitions, such as those added later, begin at their first available offset. So do
        later lives of a topic.
        """
        known = {base_name(partition.topic) for partition in state.ends}
        new = [topic for topic in selection.topics.values() if topic not in known]
        start = self._request.start
        if start == EARLIEST or not new:
            return {}
        latest = {
            partition: each.latest for partition, each in bounds.items() if partition.topic in new
        }
        if start == LATEST:
            return latest
        found = self._topics.at_time(new, int(start))
        return {
            partition: end if (at := found.get(partition)) is None else at
            for partition, end in latest.items()
        }

    def _records(self, plan: ArchiveRound, selection: _Selection, exactly: bool) -> DataFrame:
        """Read the records of a round, by this project's own reader if `exactly` is set."""
        isolation = self._request.isolation
        ranges = _in_kafka(plan, selection)
        if exactly:
            from gateway.pipelines.archives.exact_read import read_exactly

            records = read_exactly(
                self._spark, self._bootstrap, ranges, isolation, _OFFSETS_PER_TASK
            )
        else:
            options = {"kafka.isolation.level": str(isolation)}
            tasks = -(-plan.offsets // _OFFSETS_PER_TASK)
            if tasks > len(ranges):
                options["minPartitions"] = str(tasks)
            records = read_ranges(self._spark, self._bootstrap, ranges, options)
        return rename_topics(records, {selection.topics[each]: each for each in plan.topics})

    def _now_s(self) -> float:
        return self._clock.monotonic_s()

    # --- retries --------------------------------------------------------------------------------

    def _retry(self, work: Callable[[], T]) -> T:
        """Return the result of `work`. Retries transient errors for up to `timeout_s` seconds."""
        failing_since_s: float | None = None
        while True:
            try:
                return translate_spark_errors(work)
            except JobError as error:
                now_s = self._now_s()
                since_s = failing_since_s = now_s if failing_since_s is None else failing_since_s
                transient = self._answered and error.code in _RETRIED and not self._stop()
                if not transient or now_s - since_s > self._request.timeout_s:
                    raise
                self._watcher.on_retry(error, _RETRY_S)
            self._wait(_RETRY_S)

    def _wait(self, wait_s: float) -> None:
        """Wait for `wait_s` seconds, or until the job should stop."""
        until_s = self._now_s() + wait_s
        while not self._stop() and (left_s := until_s - self._now_s()) > 0:
            time.sleep(min(_PAUSE_S, left_s))


class _Inexact(Exception):
    """Spark's source may have changed records: see `Observed`."""


def _in_kafka(plan: ArchiveRound, selection: _Selection) -> list[OffsetRange]:
    """Return the ranges to read, with the names of the topics in Kafka."""
    return [
        each._replace(topic=selection.topics[each.topic]) for each in plan.ranges if each.length
    ]


def rename_topics(records: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """Replace the names of topics in the column `topic`."""
    from pyspark.sql.functions import col, lit, when

    topic = col("topic")
    for old, new in names.items():
        if old != new:
            topic = when(col("topic") == old, lit(new)).otherwise(topic)
    return records.withColumn("topic", topic)


def _made_anew(topic: str, before: str, now: str | None) -> JobError:
    return JobError(
        f"topic {topic!r} was deleted and recreated: its id is {now}, but {before} in the archive;"
        f" to archive it beside the records of the old topic, use --accept-loss {topic}, or archive"
        " it to another location (--to)",
        "TOPIC_MADE_ANEW",
    )


def _offsets_left(
    state: ArchiveState,
    bounds: Mapping[TopicPartition, OffsetBounds],
    targets: Mapping[TopicPartition, int],
    refused: Collection[str],
) -> int:
    return sum(
        max(0, targets.get(partition, each.latest) - state.ends.get(partition, each.earliest))
        for partition, each in bounds.items()
        if partition.topic not in refused
    )

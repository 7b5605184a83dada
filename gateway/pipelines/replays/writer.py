"""One partition of a replay, written in order, once each, through the deaths of servers.

After each failure the leader is looked for, and the target's end tells which record is next: all
records before it are this replay's own, which the batch before the end proves (its producer id and
sequence). What is sent twice is recognised by the server; at most five batches are under way, as
many as it remembers. The first after a look goes alone: a server that knows nothing of the producer
takes any sequence, so none but the right one may ever reach it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.admin.client import parse_bootstrap
from gateway.pipelines.replays.blocking_connection import BlockingConnection
from gateway.pipelines.replays.encode import Encoder, RecordRows
from gateway.pipelines.replays.plan import SEQUENCE_MAX, PartitionPlan, ReplayPlan
from gateway.pipelines.shared.errors import JobError
from gateway.wire import batches
from gateway.wire.client_link import Unreachable

_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA = 0, 1, 2, 3
_METADATA_MAX, _FETCH_MAX = 12, 16
_IN_FLIGHT_MAX = 5  # Kafka: as many batches of a producer as a server recognises again
_LATEST = -1
_RETRY_S, _RETRY_S_MAX = 0.05, 2.0
_PRODUCE_MS_MAX = 30_000
_SEQUENCES = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.duplicate_sequence_number,
        ErrorCode.unknown_producer_id,
    }
)
"""Somebody else of this replay was quicker, or the server forgot: the end tells."""


class WriterLimits(NamedTuple):
    """`stall_s_max`: how long without progress before it is given up."""

    stall_s_max: float = 120.0
    answer_s_max: float = 30.0


class _LookupNeeded(Exception):
    """The server, or the place in the target, has to be found anew."""


class _InFlight(NamedTuple):
    first: int
    end: int


class PartitionWriter:
    """Writes one partition; `started_at` is the number of the first record that it had to write.

    Raises JobError or AdminError anywhere.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        partition: PartitionPlan,
        bootstrap: str,
        encoder: Encoder,
        limits: WriterLimits,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._part = partition
        self._servers = parse_bootstrap(bootstrap)
        self._encoder = encoder
        self._limits = limits
        self._pause = pause
        self._connection: BlockingConnection | None = None
        self._held: deque[RecordRows] = deque()
        self._flights: deque[_InFlight] = deque()
        self._acked = 0
        self._posted = 0
        self._room = 1
        self._progress_s = time.monotonic()
        self.started_at: int | None = None
        self.looks = 0

    @property
    def place(self) -> str:
        return f"{self._plan.target}-{self._part.partition}"

    @property
    def written(self) -> int:
        """Records that are there now and were not when this began."""
        return 0 if self.started_at is None else self._acked - self.started_at

    def find_place(self) -> int:
        """The number of the next record, by the target's end: all before it are there."""
        self._again(None)
        return self._acked

    def write(self, source: Iterable[RecordRows], last: bool = True) -> int:
        """All records of `source`, which comes in order and may begin before the place, are there.

        Returns the number after that of its last record. `last`: it is the end of the partition's
        plan, or this raises.
        """
        if self.started_at is None:
            self.find_place()
        index = self._acked
        for rows in source:
            if rows.first > max(index, self._posted):
                raise JobError(
                    f"{self.place}: ended further on a moment ago: it lost records", "TARGET_LOST"
                )
            index = rows.end
            if index <= self._acked:
                continue
            self._held.append(rows)
            try:
                self._post_rows(rows)
            except (_LookupNeeded, Unreachable) as error:
                self._again(error)
        while self._flights:
            try:
                self._take()
            except (_LookupNeeded, Unreachable) as error:
                self._again(error)
        if last and max(index, self._acked) != self._part.count:
            raise JobError(
                f"{self.place}: the archive had {self._part.count} records when the replay began"
                f" and has {index} now",
                "SOURCE_CHANGED",
            )
        return index

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # sending

    def _post_rows(self, rows: RecordRows) -> None:
        start = max(rows.first, self._posted)
        if start >= rows.end:
            return
        assert start == self._posted, "records are given in order"
        for end, data in self._encoder.batches(rows, start, SEQUENCE_MAX):
            while len(self._flights) >= self._room:
                self._take()
            self._post(_InFlight(self._posted, end), data)

    def _post(self, flight: _InFlight, data: bytes) -> None:
        connection = self._connection
        assert connection is not None
        part = {"index": self._part.partition, "records": data}
        topic = {**self._named("name"), "partition_data": [part]}
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": _PRODUCE_MS_MAX,
            "topic_data": [topic],
        }
        connection.post(_PRODUCE, fields)
        self._flights.append(flight)
        self._posted = flight.end

    def _named(self, field: str) -> dict[str, Any]:
        """By name in old versions, by id in new ones: a topic made anew is not the one meant."""
        topic_id = self._plan.topic_id
        return {field: self._plan.target, "topic_id": UUID(topic_id) if topic_id else None}

    def _take(self) -> None:
        """The answer to the oldest batch under way."""
        connection = self._connection
        assert connection is not None
        answer = connection.take()
        flight = self._flights.popleft()
        ((produced,),) = (topic.partition_responses for topic in answer.responses)
        if produced.error_code is not ErrorCode.none:
            self._refused(produced, flight)
        if produced.base_offset < 0:
            raise _LookupNeeded(f"{self.place}: the server did not say where the batch is")
        if produced.base_offset != self._part.base_offset + flight.first:
            self._foreign(produced.base_offset)
        self._on_durable(flight.end)
        self._room = _IN_FLIGHT_MAX

    def _on_durable(self, end: int) -> None:
        if end > self._acked:
            self._acked = end
            self._progress_s = time.monotonic()
        while self._held and self._held[0].end <= self._acked:
            self._held.popleft()

    def _refused(self, produced: Any, flight: _InFlight) -> NoReturn:
        code = produced.error_code
        said = getattr(produced, "error_message", None)
        message = f"{self.place}: {code.name.upper()}{': ' + said if said else ''}"
        if code.retriable or code in _SEQUENCES:
            raise _LookupNeeded(message)
        if code in (ErrorCode.message_too_large, ErrorCode.record_list_too_large):
            message += "; raise the topic's max.message.bytes and start the same replay again"
        raise JobError(f"{message} (record {flight.first} of the replay)", code.name.upper())

    # finding the place

    def _again(self, error: Exception | None) -> None:
        """The place was looked up, and all that is held beyond it is under way again."""
        wait_s = _RETRY_S
        while True:
            if error is not None:
                self._stalled(error, wait_s)
                self._pause(wait_s)
                wait_s = min(2 * wait_s, _RETRY_S_MAX)
            before = self._acked
            try:
                self._look()
                for rows in list(self._held):
                    self._post_rows(rows)
                return
            except (_LookupNeeded, Unreachable) as again:
                error = again
            if self._acked > before:
                wait_s = _RETRY_S

    def _stalled(self, error: Exception, wait_s: float) -> None:
        if time.monotonic() + wait_s - self._progress_s > self._limits.stall_s_max:
            raise JobError(
                f"{self.place}: nothing could be written for {self._limits.stall_s_max:g} s"
                f" ({error}); the same command goes on where this one stopped",
                "UNREACHABLE" if isinstance(error, Unreachable) else "STALLED",
            ) from error

    def _look(self) -> None:
        self.close()
        self._flights.clear()
        self._room = 1
        self.looks += 1
        self._connection = self._leader()
        end = self._end_offset()
        self._check_ours(min(end, self._part.end_offset))
        found = min(end, self._part.end_offset) - self._part.base_offset
        if found < self._acked:
            raise JobError(
                f"{self.place}: ends at {end}, but records up to"
                f" {self._part.base_offset + self._acked} had been acknowledged: it lost them",
                "TARGET_LOST",
            )
        if self.started_at is None:
            self.started_at = found
        self._posted = found
        self._on_durable(found)

    def _leader(self) -> BlockingConnection:
        """A connection to who leads the partition now."""
        fault: Exception | None = None
        for host, port in self._servers:
            try:
                return self._leader_by(BlockingConnection(host, port, self._limits.answer_s_max))
            except (Unreachable, _LookupNeeded) as error:
                fault = error
        assert fault is not None
        raise fault

    def _leader_by(self, asked: BlockingConnection) -> BlockingConnection:
        """Who that server names; `asked` is closed unless it is the one."""
        keep = False
        try:
            topics = [{"name": self._plan.target, "topic_id": None}]
            fields = {"topics": topics, "allow_auto_topic_creation": False}
            answer = asked.ask(_METADATA, fields, _METADATA_MAX)
            (topic,) = answer.topics
            if topic.error_code is not ErrorCode.none:
                raise _LookupNeeded(f"{self._plan.target}: {topic.error_code.name.upper()}")
            check_topic_id(self._plan, getattr(topic, "topic_id", None))
            brokers = {each.node_id: each for each in answer.brokers}
            leaders = {each.partition_index: each.leader_id for each in topic.partitions}
            leader = brokers.get(leaders.get(self._part.partition, -1))
            if leader is None:
                raise _LookupNeeded(f"{self.place}: nobody leads it now")
            keep = asked.peer == f"{leader.host}:{leader.port}"
            if keep:
                return asked
            return BlockingConnection(leader.host, leader.port, self._limits.answer_s_max)
        finally:
            if not keep:
                asked.close()

    def _end_offset(self) -> int:
        part = {
            "partition_index": self._part.partition,
            "current_leader_epoch": -1,
            "timestamp": _LATEST,
        }
        topic = {"name": self._plan.target, "partitions": [part]}
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [topic]}
        assert self._connection is not None
        answer = self._connection.ask(_LIST_OFFSETS, fields)
        ((found,),) = (each.partitions for each in answer.topics)
        if found.error_code is not ErrorCode.none:
            raise _LookupNeeded(f"{self.place}: {found.error_code.name.upper()}")
        if found.offset < self._part.base_offset:
            raise JobError(
                f"{self.place}: ends at {found.offset} and ended at {self._part.base_offset} when"
                " the replay began: it lost records",
                "TARGET_LOST",
            )
        return int(found.offset)

    def _check_ours(self, end: int) -> None:
        """Nobody else has written between the base offset and `end`.

        Our batches are taken only one after the other, so if the last one stands where its
        sequence says, all between are ours.
        """
        if end == self._part.base_offset:
            return
        header = self._batch_at(end - 1)
        ours = (self._plan.producer_id, self._plan.producer_epoch)
        index = header.base_offset - self._part.base_offset
        if (header.producer_id, header.producer_epoch) != ours or (
            header.base_sequence != self._part.sequence(index)
        ):
            self._foreign(end - 1)

    def _batch_at(self, offset: int) -> batches.BatchHeader:
        part = {
            "partition": self._part.partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1,
        }
        fields = {
            "replica_id": -1,
            "max_wait": 1000,
            "min_bytes": 1,
            "max_bytes": 1,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{**self._named("topic"), "partitions": [part]}],
            "forgotten_topics_data": [],
            "rack_id": "",
            "cluster_id": None,
        }
        assert self._connection is not None
        answer = self._connection.ask(_FETCH, fields, _FETCH_MAX)
        if answer.error_code is not ErrorCode.none:
            raise _LookupNeeded(f"{self.place}: {answer.error_code.name.upper()}")
        ((found,),) = (each.partitions for each in answer.responses)
        if found.error_code is ErrorCode.offset_out_of_range:
            raise JobError(
                f"{self.place}: offset {offset}, the last of this replay, has been deleted there"
                " (retention or truncation), so nothing can tell what it wrote",
                "TARGET_LOST",
            )
        if found.error_code is not ErrorCode.none or not found.records:
            raise _LookupNeeded(f"{self.place}: offset {offset}: {found.error_code.name.upper()}")
        return batches.read_header(found.records)

    def _foreign(self, offset: int) -> NoReturn:
        raise JobError(
            f"{self.place}: somebody else has written there since the replay began (offset"
            f" {offset} is not the replay's); replay into a topic that nobody else writes to",
            "FOREIGN_WRITES",
        )


def check_topic_id(plan: ReplayPlan, topic_id: object) -> None:
    """Raises JobError when the target is another topic of the same name by now."""
    if topic_id is None or not plan.topic_id or str(topic_id) == plan.topic_id:
        return
    raise JobError(
        f"topic {plan.target!r} was deleted and made anew since the replay began; give another"
        " --state to replay into it from the start",
        "NEW_TOPIC",
    )

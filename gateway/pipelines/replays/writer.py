"""Writes one partition of a replay, in order and exactly once, across server failures.

After each failure the writer locates the leader again. The end offset of the target then shows the
number of the next record. All records before it must belong to this replay. The producer id and the
sequence of the last batch prove this.

The server recognises repeated batches. At most five are in flight, because the server remembers
five batches of a producer. The first batch after a failure is sent alone. A server without state of
the producer accepts any sequence, so the first sequence that it receives must be the right one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.admin.client_settings import ClientSettings
from gateway.pipelines.replays.blocking_connection import BlockingConnection
from gateway.pipelines.replays.encode import Encoder, RecordRows
from gateway.pipelines.replays.plan import SEQUENCE_MAX, PartitionPlan, ReplayPlan
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import KafkaServers, link_security, settings_of
from gateway.wire import batches
from gateway.wire.client_link import Unreachable, is_refusal

_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA = 0, 1, 2, 3
_METADATA_MAX, _FETCH_MAX = 12, 16
_IN_FLIGHT_MAX = 5  # Kafka: the number of batches of a producer that a server remembers
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
"""Error codes after which the end offset is looked up again.

Another run of this replay was faster, or the server lost the state of the producer.
"""


class WriterLimits(NamedTuple):
    """The time limits of a writer, which retries for `stall_s_max` seconds without progress."""

    stall_s_max: float = 120.0
    answer_s_max: float = 30.0


class LookupNeeded(Exception):
    """An error after which the leader and the target's end offset must be looked up again."""


class _InFlight(NamedTuple):
    first: int
    end: int


class PartitionWriter:
    """The writer of one partition. Any method may raise JobError or AdminError."""

    def __init__(
        self,
        plan: ReplayPlan,
        partition: PartitionPlan,
        bootstrap: KafkaServers,
        encoder: Encoder,
        limits: WriterLimits,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._partition = partition
        self._settings = settings_of(bootstrap)
        self._encoder = encoder
        self._limits = limits
        self._pause = pause
        # The connection to the partition's leader. None before the first lookup and after `close`.
        self._connection: BlockingConnection | None = None
        # Rows with records that are not durable yet, in order. All are sent again after a lookup.
        self._unacked: deque[RecordRows] = deque()
        # Batches in flight on this connection, in order. Never more than `_window`.
        self._in_flight: deque[_InFlight] = deque()
        # The number after the last durable record. Never decreases, and never exceeds `_sent`.
        self._acked = 0
        # The number after the last record sent. A lookup sets it back to `_acked`.
        self._sent = 0
        # The maximum number of batches in flight: 1 until the first reply on a connection, then
        # `_IN_FLIGHT_MAX`.
        self._window = 1
        # The time at which `_acked` last increased.
        self._progress_s = time.monotonic()
        # The number of the first record that this writer had to write. Set by the first lookup.
        self.started_at: int | None = None
        # The number of lookups of the leader and the end offset.
        self.looks = 0

    @property
    def _name(self) -> str:
        return f"{self._plan.target}-{self._partition.partition}"

    @property
    def written(self) -> int:
        """The number of records that became durable since the first lookup."""
        return 0 if self.started_at is None else self._acked - self.started_at

    def find_next_record(self) -> int:
        """Return the number of the next record, derived from the target's end offset.

        The target has all records before it.
        """
        self._reconnect(None)
        return self._acked

    def write(self, source: Iterable[RecordRows], last: bool = True) -> int:
        """Write all records of `source`, in order. `source` may begin before the next record.

        Returns the number after the last record of `source`. With `last`, raises JobError unless
        the partition's plan ends there.
        """
        if self.started_at is None:
            self.find_next_record()
        index = self._acked
        for rows in source:
            if rows.first > max(index, self._sent):
                raise JobError(
                    f"{self._name}: its end went back: the target lost records", "TARGET_LOST"
                )
            index = rows.end
            if index <= self._acked:
                continue
            self._unacked.append(rows)
            try:
                self._post_rows(rows)
            except (LookupNeeded, Unreachable) as error:
                self._reconnect(error)
        while self._in_flight:
            try:
                self._take_reply()
            except (LookupNeeded, Unreachable) as error:
                self._reconnect(error)
        if last and max(index, self._acked) != self._partition.count:
            raise JobError(
                f"{self._name}: the archive had {self._partition.count} records when the replay"
                f" began and has {index} now",
                "SOURCE_CHANGED",
            )
        return index

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- sending --------------------------------------------------------------------------------

    def _post_rows(self, rows: RecordRows) -> None:
        start = max(rows.first, self._sent)
        if start >= rows.end:
            return
        assert start == self._sent, "records must arrive in order"
        for end, data in self._encoder.batches(rows, start, SEQUENCE_MAX):
            while len(self._in_flight) >= self._window:
                self._take_reply()
            self._post(_InFlight(self._sent, end), data)

    def _post(self, flight: _InFlight, data: bytes) -> None:
        connection = self._connection
        assert connection is not None
        part = {"index": self._partition.partition, "records": data}
        topic = {**self._topic_fields("name"), "partition_data": [part]}
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": _PRODUCE_MS_MAX,
            "topic_data": [topic],
        }
        connection.post(_PRODUCE, fields)
        self._in_flight.append(flight)
        self._sent = flight.end

    def _topic_fields(self, field: str) -> dict[str, Any]:
        """Return the field that identifies the target by name (old versions) or id (new ones).

        The id of a topic never matches a recreated topic.
        """
        topic_id = self._plan.topic_id
        return {field: self._plan.target, "topic_id": UUID(topic_id) if topic_id else None}

    def _take_reply(self) -> None:
        """Take the reply to the oldest batch in flight."""
        connection = self._connection
        assert connection is not None
        answer = connection.take()
        flight = self._in_flight.popleft()
        ((produced,),) = (topic.partition_responses for topic in answer.responses)
        if produced.error_code is not ErrorCode.none:
            self._raise_refused(produced, flight)
        if produced.base_offset < 0:
            raise LookupNeeded(f"{self._name}: the reply has no base offset")
        if produced.base_offset != self._partition.base_offset + flight.first:
            self._raise_foreign(produced.base_offset)
        self._on_durable(flight.end)
        self._window = _IN_FLIGHT_MAX

    def _on_durable(self, end: int) -> None:
        if end > self._acked:
            self._acked = end
            self._progress_s = time.monotonic()
        while self._unacked and self._unacked[0].end <= self._acked:
            self._unacked.popleft()

    def _raise_refused(self, produced: Any, flight: _InFlight) -> NoReturn:
        code = produced.error_code
        detail = getattr(produced, "error_message", None)
        message = f"{self._name}: {code.name.upper()}{': ' + detail if detail else ''}"
        if code.retriable or code in _SEQUENCES:
            raise LookupNeeded(message)
        if code in (ErrorCode.message_too_large, ErrorCode.record_list_too_large):
            message += "; raise the topic's max.message.bytes and run the same replay again"
        raise JobError(f"{message} (record {flight.first} of the replay)", code.name.upper())

    # --- looking up -----------------------------------------------------------------------------

    def _reconnect(self, error: Exception | None) -> None:
        """Look up the next record and send all unacknowledged rows again, with retries."""
        wait_s = _RETRY_S
        while True:
            if error is not None:
                self._check_progress(error, wait_s)
                self._pause(wait_s)
                wait_s = min(2 * wait_s, _RETRY_S_MAX)
            before = self._acked
            try:
                self._locate()
                for rows in list(self._unacked):
                    self._post_rows(rows)
                return
            except (LookupNeeded, Unreachable) as again:
                error = again
            if self._acked > before:
                wait_s = _RETRY_S

    def _check_progress(self, error: Exception, wait_s: float) -> None:
        """Raise JobError if another wait would exceed the time limit without progress."""
        if time.monotonic() + wait_s - self._progress_s > self._limits.stall_s_max:
            raise JobError(
                f"{self._name}: no record could be written for {self._limits.stall_s_max:g} s"
                f" ({error}); run the same command again to continue",
                "UNREACHABLE" if isinstance(error, Unreachable) else "STALLED",
            ) from error

    def _locate(self) -> None:
        """Connect to the leader and derive the next record from the leader's end offset."""
        self.close()
        self._in_flight.clear()
        self._window = 1
        self.looks += 1
        self._connection = find_leader(
            self._settings, self._plan, self._partition.partition, self._limits.answer_s_max
        )
        end = self._end_offset()
        self._check_last_batch(min(end, self._partition.end_offset))
        found = min(end, self._partition.end_offset) - self._partition.base_offset
        if found < self._acked:
            raise JobError(
                f"{self._name}: ends at {end}, but records up to"
                f" {self._partition.base_offset + self._acked} were acknowledged: the target lost"
                " records",
                "TARGET_LOST",
            )
        if self.started_at is None:
            self.started_at = found
        self._sent = found
        self._on_durable(found)

    def _end_offset(self) -> int:
        part = {
            "partition_index": self._partition.partition,
            "current_leader_epoch": -1,
            "timestamp": _LATEST,
        }
        topic = {"name": self._plan.target, "partitions": [part]}
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [topic]}
        assert self._connection is not None
        answer = self._connection.ask(_LIST_OFFSETS, fields)
        ((found,),) = (each.partitions for each in answer.topics)
        check(found.error_code, self._name)
        if found.offset < self._partition.base_offset:
            raise JobError(
                f"{self._name}: ends at {found.offset}, but ended at"
                f" {self._partition.base_offset} when the replay began: the target lost records",
                "TARGET_LOST",
            )
        return int(found.offset)

    def _check_last_batch(self, end: int) -> None:
        """Raise JobError if another client has written between the base offset and `end`.

        The server accepts batches of this producer only in sequence. If the last batch has the
        sequence that its offset implies, all records before it belong to this replay.
        """
        if end == self._partition.base_offset:
            return
        header = self._batch_at(end - 1)
        ours = (self._plan.producer_id, self._plan.producer_epoch)
        index = header.base_offset - self._partition.base_offset
        if (header.producer_id, header.producer_epoch) != ours or (
            header.base_sequence != self._partition.sequence(index)
        ):
            self._raise_foreign(end - 1)

    def _batch_at(self, offset: int) -> batches.BatchHeader:
        part = {
            "partition": self._partition.partition,
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
            "topics": [{**self._topic_fields("topic"), "partitions": [part]}],
            "forgotten_topics_data": [],
            "rack_id": "",
            "cluster_id": None,
        }
        assert self._connection is not None
        answer = self._connection.ask(_FETCH, fields, _FETCH_MAX)
        check(answer.error_code, self._name)
        ((found,),) = (each.partitions for each in answer.responses)
        if found.error_code is ErrorCode.offset_out_of_range:
            raise JobError(
                f"{self._name}: offset {offset}, the last of this replay, was deleted (by retention"
                " or truncation), so its progress is unknown",
                "TARGET_LOST",
            )
        check(found.error_code, f"{self._name}: offset {offset}")
        if not found.records:
            raise LookupNeeded(f"{self._name}: offset {offset}: the reply has no records")
        return batches.read_header(found.records)

    def _raise_foreign(self, offset: int) -> NoReturn:
        raise JobError(
            f"{self._name}: another producer has written since the replay began (offset {offset} is"
            " not the replay's); replay into a topic without other producers",
            "FOREIGN_WRITES",
        )


def check(code: ErrorCode, about: str) -> None:
    """Raise JobError if this code of a lookup denies a right, LookupNeeded if it is another error.

    A lookup is repeated while it may succeed.
    """
    name = code.name.upper()
    if is_refusal(name):
        raise JobError(f"{about}: {name}", name)
    if code is not ErrorCode.none:
        raise LookupNeeded(f"{about}: {name}")


def check_topic_id(plan: ReplayPlan, topic_id: object) -> None:
    """Raise JobError if the target was recreated under the same name."""
    if topic_id is None or not plan.topic_id or str(topic_id) == plan.topic_id:
        return
    raise JobError(
        f"topic {plan.target!r} was deleted and recreated since the replay began; use another"
        " --state to replay into it from the start",
        "NEW_TOPIC",
    )


def find_leader(
    settings: ClientSettings, plan: ReplayPlan, partition: int, answer_s_max: float
) -> BlockingConnection:
    """Return a connection to the current leader.

    Raises LookupNeeded, Unreachable, AdminError or JobError.
    """
    security = link_security(settings)

    def connect(host: str, port: int) -> BlockingConnection:
        return BlockingConnection(host, port, answer_s_max, security)

    fault: Exception | None = None
    for host, port in settings.servers:
        try:
            return _leader_from(connect(host, port), connect, plan, partition)
        except (Unreachable, LookupNeeded) as error:
            fault = error
    assert fault is not None
    raise fault


def _leader_from(
    asked: BlockingConnection,
    connect: Callable[[str, int], BlockingConnection],
    plan: ReplayPlan,
    partition: int,
) -> BlockingConnection:
    """Connect to the leader that `asked` names. Closes `asked` unless it is the leader."""
    keep = False
    try:
        topics = [{"name": plan.target, "topic_id": None}]
        fields = {"topics": topics, "allow_auto_topic_creation": False}
        answer = asked.ask(_METADATA, fields, _METADATA_MAX)
        (topic,) = answer.topics
        check(topic.error_code, plan.target)
        check_topic_id(plan, getattr(topic, "topic_id", None))
        brokers = {each.node_id: each for each in answer.brokers}
        leaders = {each.partition_index: each.leader_id for each in topic.partitions}
        leader = brokers.get(leaders.get(partition, -1))
        if leader is None:
            raise LookupNeeded(f"{plan.target}-{partition}: it has no leader now")
        keep = asked.peer == f"{leader.host}:{leader.port}"
        if keep:
            return asked
        return connect(leader.host, leader.port)
    finally:
        if not keep:
            asked.close()

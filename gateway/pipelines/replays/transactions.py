"""The transactions of a replay: one for each chunk, with the position after it.

    begin       fences every earlier run, and waits until its open transaction has ended
    positions   where the last committed transaction ended
    open        names the partitions, before tasks write to them
    commit      stores the positions in the same transaction, and ends it

The positions are offsets of a group that no consumer uses, so they are committed or dropped with
the records. The protocol is that of clients up to Kafka 3.9 (transaction version 1): the epoch
changes only at `begin`, and sequences continue from one transaction to the next.
Source: Kafka, TransactionManager; KIP-98, KIP-447.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from gateway.admin.client import AdminClient
from gateway.admin.topics import LATEST, offsets
from gateway.pipelines.archives.exact_read import fetch_all
from gateway.pipelines.archives.port import ignore_step
from gateway.pipelines.replays.target import ProducerId
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import KafkaServers
from gateway.pipelines.shared.kafka_source import Isolation
from gateway.pipelines.shared.partitions import OffsetRange
from gateway.pipelines.shared.topics import run_admin
from gateway.wire import batches

_OFFSET_FETCH, _INIT_PRODUCER_ID, _ADD_PARTITIONS, _ADD_OFFSETS = 9, 22, 24, 25
_END, _OFFSET_COMMIT = 26, 28
_OFFSET_FETCH_MAX, _INIT_MAX, _ADD_MAX, _END_MAX, _OFFSET_COMMIT_MAX = 7, 4, 3, 3, 3
_GROUP, _TRANSACTION = 0, 1  # key types of FindCoordinator
TIMEOUT_MS = 300_000
"""The time after which the coordinator aborts a transaction: of a run that died, or is too slow."""
_RETRY_S, _RETRY_S_MAX = 0.05, 60.0
_FENCED = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_id_mapping,
    }
)
_WAITS = frozenset({ErrorCode.concurrent_transactions, ErrorCode.unstable_offset_commit})
_AWAY = frozenset(
    {"UNREACHABLE", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"}
)
FAILED = "TRANSACTION_FAILED"
"""The code of an error after which the replay continues behind the last committed transaction."""

Codes = Callable[[Any], Iterable[ErrorCode]]


class Position(NamedTuple):
    """The number of a partition's next record, and the archived offset from which it is read."""

    number: int
    source: int


class ReplayTransactions:
    """The transactions of one plan. Any method may raise JobError."""

    def __init__(
        self, bootstrap: KafkaServers, name: str, at_step: Callable[[str], None] = ignore_step
    ) -> None:
        """`name` is the transactional id, and the group of the positions.

        `at_step` is called between the requests of a transaction.
        """
        self._bootstrap = bootstrap
        self.name = name
        self.at_step = at_step

    def begin(self) -> ProducerId:
        """Return the producer id of this run. All earlier runs of the plan are fenced."""
        fields = {
            "transactional_id": self.name,
            "transaction_timeout": TIMEOUT_MS,
            "transaction_timeout_ms": TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = self._ask(_INIT_PRODUCER_ID, fields, _INIT_MAX, _own_code)
        return ProducerId(answer.producer_id, answer.producer_epoch)

    def positions(self, topic: str, partitions: Iterable[int]) -> dict[int, Position]:
        """Return the positions of the last committed transaction, without others."""
        asked = {"name": topic, "partition_indexes": list(partitions)}
        fields = {"group_id": self.name, "topics": [asked], "require_stable": True}

        def codes(answer: Any) -> Iterable[ErrorCode]:
            parts = (each.error_code for topic in answer.topics for each in topic.partitions)
            return [answer.error_code, *parts]

        answer = self._ask(_OFFSET_FETCH, fields, _OFFSET_FETCH_MAX, codes, _GROUP)
        return {
            each.partition_index: Position(each.committed_offset, _source_of(each.metadata))
            for topic in answer.topics
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    def open(self, producer: ProducerId, topic: str, partitions: Iterable[int]) -> None:
        """Begin a transaction in these partitions."""
        fields = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": producer.number,
            "v3_and_below_producer_epoch": producer.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}],
        }

        def codes(answer: Any) -> Iterable[ErrorCode]:
            topics = answer.results_by_topic_v3_and_below
            return [
                each.partition_error_code for one in topics for each in one.results_by_partition
            ]

        self._ask(_ADD_PARTITIONS, fields, _ADD_MAX, codes)
        self.at_step("opened")

    def commit(self, producer: ProducerId, topic: str, positions: Mapping[int, Position]) -> None:
        """Commit the open transaction, with these positions.

        If it raises, the transaction may be committed or not: `begin` and `positions` tell.
        """
        self._ask(_ADD_OFFSETS, self._fields(producer, group_id=self.name), _ADD_MAX, _own_code)
        parts = [
            {
                "partition_index": partition,
                "committed_offset": each.number,
                "committed_leader_epoch": -1,
                "committed_metadata": str(each.source),
            }
            for partition, each in sorted(positions.items())
        ]
        fields = self._fields(
            producer,
            group_id=self.name,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": topic, "partitions": parts}],
        )

        def codes(answer: Any) -> Iterable[ErrorCode]:
            return [each.error_code for topic in answer.topics for each in topic.partitions]

        self._ask(_OFFSET_COMMIT, fields, _OFFSET_COMMIT_MAX, codes, _GROUP)
        self.at_step("positions")
        self._ask(_END, self._fields(producer, committed=True), _END_MAX, _own_code)
        self.at_step("committed")

    def abort(self, producer: ProducerId) -> None:
        """Abort the open transaction, so that no reader waits for it."""
        self._ask(_END, self._fields(producer, committed=False), _END_MAX, _own_code)

    def _fields(self, producer: ProducerId, **more: Any) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": producer.number,
            "producer_epoch": producer.epoch,
            **more,
        }

    def _ask(
        self,
        key: int,
        fields: dict[str, Any],
        version_max: int,
        codes: Codes,
        key_type: int = _TRANSACTION,
    ) -> Any:
        """Ask the coordinator until it has an answer, for up to a minute."""

        async def work(client: AdminClient) -> Any:
            return await _until_settled(
                lambda: client.at_coordinator(
                    self.name,
                    key,
                    lambda _: fields,
                    codes,
                    version_max=version_max,
                    key_type=key_type,
                ),
                codes,
            )

        try:
            answer = run_admin(self._bootstrap, work)
        except JobError as error:
            if error.code not in _AWAY:
                raise
            raise JobError(f"{self.name}: {error}", FAILED) from error
        for code in codes(answer):
            if code is not ErrorCode.none:
                raise refused(self.name, code)
        return answer


async def _until_settled(ask: Callable[[], Awaitable[Any]], codes: Codes) -> Any:
    end_s = asyncio.get_running_loop().time() + _RETRY_S_MAX
    while True:
        answer = await ask()
        late = asyncio.get_running_loop().time() > end_s
        if late or not _WAITS.intersection(codes(answer)):
            return answer
        await asyncio.sleep(_RETRY_S)


def _own_code(answer: Any) -> Iterable[ErrorCode]:
    return [answer.error_code]


def refused(name: str, code: ErrorCode) -> JobError:
    """Return the error for a refused request of a transaction."""
    if code in _FENCED:
        return JobError(
            f"{name}: {code.name.upper()}: another run of this replay has begun, or a transaction"
            f" took more than {TIMEOUT_MS // 1000} s; run the same command again to continue",
            "FENCED",
        )
    again = code.retriable or code in _WAITS
    return JobError(f"{name}: {code.name.upper()}", FAILED if again else code.name.upper())


def _source_of(metadata: str | None) -> int:
    try:
        return int(metadata or "")
    except ValueError:
        raise JobError(f"the position {metadata!r} is not one of a replay", "BAD_STATE") from None


def check_nothing_written(bootstrap: KafkaServers, topic: str, begins: Mapping[int, int]) -> None:
    """Raise JobError if a partition has a committed record at or behind its offset in `begins`.

    Called if a plan has no position: it has not begun, or its positions have expired.
    """

    async def work(client: AdminClient) -> OffsetRange | None:
        ends = await offsets(client, {topic: list(begins)}, LATEST, committed=True)
        for partition, begin in sorted(begins.items()):
            end = ends.get((topic, partition))
            if end is None:
                raise JobError(f"{topic}-{partition}: its end is unknown now; retry", "NO_LEADER")
            whole = OffsetRange(topic, partition, begin, end)
            if await _has_records(client, whole):
                return whole
        return None

    found = run_admin(bootstrap, work)
    if found is not None:
        raise JobError(
            f"{topic}-{found.partition}: records were written from offset {found.start} on, and no"
            " position of this replay was found: its positions have expired, or another producer"
            " has written; use another --state, and another topic or --append",
            "POSITION_LOST",
        )


async def _has_records(client: AdminClient, whole: OffsetRange) -> bool:
    """Return whether a committed record has one of these offsets."""
    async for some in fetch_all(client, whole, Isolation.read_committed):
        headers = map(batches.read_header, some.committed)
        if any(not each.attributes & batches.CONTROL for each in headers):
            return True
    return False

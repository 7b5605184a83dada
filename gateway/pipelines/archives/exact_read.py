"""Reads of a topic by Fetch requests, with this project's own decoder, for what Spark cannot read.

Spark's Kafka source fails at a record whose timestamp it cannot represent, and does not name the
record. It also replaces invalid bytes in the keys of headers. These reads name such records, and
keep the bytes. They are slower, and only used for ranges that need them.

Source: Kafka, CompletedFetch, for the batches of aborted transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.admin.client import AdminClient, Broker, Unreachable
from gateway.pipelines.archives.port import UNREPRESENTABLE
from gateway.pipelines.archives.rounds import GoneRange
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import KafkaServers
from gateway.pipelines.shared.kafka_source import Isolation
from gateway.pipelines.shared.partitions import COLUMNS, OffsetRange, TopicPartition
from gateway.pipelines.shared.refusals import refusals_named
from gateway.pipelines.shared.topics import run_admin
from gateway.wire import batches
from gateway.wire.client_link import is_refusal
from ledger.errors import CorruptFormat

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FETCH, _FETCH_VERSION_MAX = 1, 12  # later versions name topics by their ids
_FETCH_BYTES = 4 * 1024 * 1024
_WAIT_MS = 1000
TASK_COLUMNS = "topic STRING, partition INT, start BIGINT, end BIGINT"
_RETRIES_MAX = 10
_RETRY_S = 1.0


class Unrepresentable(NamedTuple):
    """A record that Spark cannot represent, with its timestamp."""

    partition: TopicPartition
    offset: int
    timestamp_ms: int


def find_unrepresentable(
    bootstrap: KafkaServers, ranges: Iterable[OffsetRange], isolation: Isolation
) -> list[Unrepresentable]:
    """Return the records of these ranges that Spark cannot represent, in order.

    Memory does not depend on the size of the ranges. Raises JobError.
    """
    found: list[Unrepresentable] = []

    async def work(client: AdminClient) -> None:
        from gateway.pipelines.direct.decode import Decoder

        for each in ranges:

            def take(offset: int, timestamp_ms: int, at: OffsetRange = each) -> None:
                found.append(Unrepresentable(at.topic_partition, offset, timestamp_ms))

            decoder = Decoder(*each.topic_partition, False, take)
            async for some in fetch_batches(client, each, isolation):
                for _ in decoder.decode(some, each.start, each.end):
                    pass

    try:
        run_admin(bootstrap, work)
    except CorruptFormat as error:
        raise JobError(str(error), "WRONG_RECORDS") from error
    return found


def read_exactly(
    spark: SparkSession,
    bootstrap: KafkaServers,
    ranges: Iterable[OffsetRange],
    isolation: Isolation,
    offsets_per_task: int,
) -> DataFrame:
    """Read these ranges with the columns of `COLUMNS`. The keys of headers keep their bytes.

    A query fails if Spark cannot represent a record.
    """
    frame = tasks_of(spark, ranges, offsets_per_task)

    def read(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with refusals_named():
            for some in given:
                for row in some.to_pylist():
                    yield from _read(bootstrap, OffsetRange(**row), isolation)

    return frame.mapInArrow(read, COLUMNS)


def tasks_of(
    spark: SparkSession, ranges: Iterable[OffsetRange], offsets_per_task: int
) -> DataFrame:
    """Return a frame of `TASK_COLUMNS` with one row and one task for each part of the ranges."""
    tasks = [
        each._replace(start=start, end=min(start + offsets_per_task, each.end))
        for each in ranges
        for start in range(each.start, each.end, offsets_per_task)
    ]
    spread = spark.sparkContext.parallelize(tasks, len(tasks))
    return spark.createDataFrame(spread, TASK_COLUMNS)


def _read(
    bootstrap: KafkaServers, wanted: OffsetRange, isolation: Isolation
) -> Iterator[pa.RecordBatch]:
    from gateway.pipelines.direct.decode import Decoder

    decoder = Decoder(*wanted.topic_partition, include_headers=True)
    with asyncio.Runner() as runner:
        client = AdminClient(bootstrap)
        runner.run(client.__aenter__())
        try:
            found = fetch_batches(client, wanted, isolation)
            while some := runner.run(_following(found)):
                yield from decoder.decode(some, wanted.start, wanted.end)
        finally:
            runner.run(client.__aexit__(None, None, None))


async def _following(found: AsyncIterator[list[bytes]]) -> list[bytes]:
    """Return the following batches that are not empty, or an empty list at the end."""
    async for some in found:
        if some:
            return some
    return []


def merge_unrepresentable(found: Iterable[Unrepresentable]) -> list[GoneRange]:
    """Return the ranges of these records, which are in order. Adjacent records share a range."""
    merged: list[list[Unrepresentable]] = []
    for each in found:
        last = merged[-1][-1] if merged else None
        if last is not None and (last.partition, last.offset + 1) == each[:2]:
            merged[-1].append(each)
        else:
            merged.append([each])
    return [_gone(each) for each in merged]


def _gone(records: list[Unrepresentable]) -> GoneRange:
    lowest = min(each.timestamp_ms for each in records)
    highest = max(each.timestamp_ms for each in records)
    span = f"{lowest} ms" if lowest == highest else f"{lowest} ms to {highest} ms"
    first, last = records[0], records[-1]
    return GoneRange(
        OffsetRange(*first.partition, first.offset, last.offset + 1),
        f"{UNREPRESENTABLE}: timestamp {span}",
    )


async def fetch_batches(
    client: AdminClient, wanted: OffsetRange, isolation: Isolation
) -> AsyncIterator[list[bytes]]:
    """Yield the batches that hold the range, without those of aborted transactions."""
    async for each in fetch_all(client, wanted, isolation):
        yield each.committed


async def fetch_all(
    client: AdminClient, wanted: OffsetRange, isolation: Isolation
) -> AsyncIterator[Fetched]:
    """Yield the replies that hold the range.

    A request that fails is repeated, to the leader of that moment, up to `_RETRIES_MAX` times. One
    that is refused for want of a right is not.
    """
    at, retries = wanted.start, 0
    leader: Broker | None = None
    while at < wanted.end:
        try:
            leader = leader or await _leader(client, wanted.topic_partition)
            found = await _fetch(client, leader, wanted._replace(start=at), isolation)
        except (JobError, Unreachable) as error:
            refused = isinstance(error, JobError) and is_refusal(error.code)
            if refused or retries == _RETRIES_MAX:
                raise
            leader, retries = None, retries + 1
            await asyncio.sleep(_RETRY_S)
            continue
        at, retries = found.end, 0
        yield found


class Fetched(NamedTuple):
    """The batches of a reply, without those of aborted transactions, and the offset after them.

    `holes` are the first and the end offset of each batch that holds no record for this reader.
    """

    committed: list[bytes]
    holes: list[tuple[int, int]]
    end: int


async def _fetch(
    client: AdminClient, leader: Broker, wanted: OffsetRange, isolation: Isolation
) -> Fetched:
    answer = await client.at_broker(
        leader, _FETCH, lambda _: _fields(wanted, isolation), _FETCH_VERSION_MAX
    )
    ((found,),) = (each.partitions for each in answer.responses)
    at = wanted.start
    if found.error_code.value:
        raise _fault(f"{wanted.topic_partition}: offset {at}", found.error_code)
    whole = [each for each in split_batches(found.records or b"") if _last(each) >= at]
    if not whole:
        raise JobError(f"{wanted.topic_partition}: no record at offset {at}", "NO_LEADER")
    return Fetched(*sort_out(whole, found.aborted_transactions or ()), _last(whole[-1]) + 1)


async def _leader(client: AdminClient, partition: TopicPartition) -> Broker:
    answer = await client.metadata([partition.topic])
    brokers = {each.node_id: Broker(each.node_id, each.host, each.port) for each in answer.brokers}
    for topic in answer.topics:
        if is_refusal(topic.error_code.name.upper()):
            raise _fault(str(partition), topic.error_code)
        for each in topic.partitions:
            if each.partition_index == partition.partition and each.leader_id in brokers:
                return brokers[each.leader_id]
    raise JobError(f"{partition}: it has no leader now; retry", "NO_LEADER")


def _fault(about: str, code: Any) -> JobError:
    """Return the error for this code of Kafka: of a refusal its own, of others one to retry."""
    own = code.name.upper()
    return JobError(f"{about}: {code.name}", own if is_refusal(own) else "NO_LEADER")


def _fields(wanted: OffsetRange, isolation: Isolation) -> dict[str, Any]:
    part = {
        "partition": wanted.partition,
        "current_leader_epoch": -1,
        "fetch_offset": wanted.start,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": _FETCH_BYTES,
    }
    return {
        "replica_id": -1,
        "max_wait": _WAIT_MS,
        "min_bytes": 1,
        "max_bytes": _FETCH_BYTES,
        "isolation_level": int(isolation is Isolation.read_committed),
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": wanted.topic, "partitions": [part]}],
        "forgotten_topics_data": [],
        "rack_id": "",
        "cluster_id": None,
    }


def split_batches(data: bytes) -> Iterator[bytes]:
    """Yield the whole batches of a reply. The last one may be cut off."""
    at = 0
    while len(data) - at >= batches.HEADER_BYTES:
        size = int.from_bytes(data[at + 8 : at + 12], "big") + batches.LENGTH_OVERHEAD
        if size <= batches.HEADER_BYTES or at + size > len(data):
            return
        yield data[at : at + size]
        at += size


def _last(batch: bytes) -> int:
    header = batches.read_header(batch)
    return header.base_offset + header.last_offset_delta


def sort_out(
    found: list[bytes], aborted: Iterable[Any]
) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Leave out the batches of aborted transactions, and those that a compaction has emptied.

    Returns the others, and the bounds of aborted and of control batches.
    """
    begins = sorted((each.first_offset, each.producer_id) for each in aborted)
    open_ids: set[int] = set()
    kept: list[bytes] = []
    holes: list[tuple[int, int]] = []
    for batch in found:
        header = batches.read_header(batch)
        while begins and begins[0][0] <= _last(batch):
            open_ids.add(begins.pop(0)[1])
        control = header.attributes & batches.CONTROL != 0
        aborts = header.attributes & batches.TRANSACTIONAL and header.producer_id in open_ids
        if control:  # ends the transaction of its producer
            open_ids.discard(header.producer_id)
        if control or aborts:
            holes.append((header.base_offset, _last(batch) + 1))
        if header.records and (control or not aborts):
            kept.append(batch)
    return kept, holes

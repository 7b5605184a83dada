"""Goal: the hand-packed Produce and Fetch responses have the bytes of Kafka's schemas.

Method: Hypothesis draws responses; the same response, built from kio's classes and encoded by kio,
must have the same bytes in every version.
"""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i32Timedelta

from gateway.wire.fetch_reply import PartitionFetched, encode_fetch
from gateway.wire.list_offsets_reply import PartitionOffset, encode_list_offsets
from gateway.wire.node_endpoints import NodeEndpoint
from gateway.wire.produce_reply import PartitionProduced, encode_produce

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
ERRORS = st.sampled_from([int(code) for code in ErrorCode])
TIMES_MS = st.just(-1) | st.integers(0, 4_000_000_000_000)
# Kafka's topic ids are never zero; kio writes no id (None) as zeros.
TOPIC_IDS = st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number))
TEXTS = st.text(max_size=300)
NAMES = st.text(max_size=249)

RECORDS = st.lists(st.binary(min_size=1, max_size=200), max_size=4)
EPOCHS = st.none() | st.tuples(INT32, INT64)
LEADERS = st.none() | st.tuples(INT32, INT32)
RECORD_ERRORS = st.lists(st.tuples(INT32, TEXTS), max_size=3)
MESSAGES = st.none() | TEXTS
PRODUCED = st.builds(
    PartitionProduced, INT32, ERRORS, INT64, TIMES_MS, INT64, MESSAGES, LEADERS, RECORD_ERRORS
)
NODES = st.lists(st.builds(NodeEndpoint, INT32, TEXTS, INT32, st.none() | TEXTS), max_size=3)


@st.composite
def fetched(draw):
    records = draw(RECORDS)
    return PartitionFetched(
        index=draw(INT32),
        error_code=draw(ERRORS),
        high_watermark=draw(INT64),
        last_stable_offset=draw(INT64),
        log_start_offset=draw(INT64),
        records=records,
        records_bytes=sum(map(len, records)),
        preferred_read_replica=draw(INT32),
        aborted=draw(st.none() | st.lists(st.tuples(INT64, INT64), max_size=3)),
        diverging_epoch=draw(EPOCHS),
        current_leader=draw(LEADERS),
    )


def topics(partition, by_id):
    return st.lists(
        st.tuples(TOPIC_IDS if by_id else NAMES, st.lists(partition, max_size=4)), max_size=3
    )


def kio_bytes(correlation_id, response):
    """Encode the response with kio, header included."""
    out = io.BytesIO()
    header = type(response).__header_schema__
    entity_writer(header)(out, header(correlation_id=correlation_id))
    entity_writer(type(response))(out, response)
    return out.getvalue()


def built(entity, **values):
    """Build an instance of a kio class from those of `values` that this version has."""
    return entity(**{k: v for k, v in values.items() if k in entity.__slots__})


def throttle(ms):
    return i32Timedelta.parse(timedelta(milliseconds=ms))


def kio_nodes(module, nodes):
    if not hasattr(module, "NodeEndpoint"):
        return ()
    return tuple(module.NodeEndpoint(**node._asdict()) for node in nodes)


def kio_produce(version, answered, throttle_ms, nodes=()):
    response = load_response_schema(0, version)
    module = __import__(response.__module__, fromlist=["*"])

    def partition(p):
        time_ms = p.log_append_time_ms
        tags = {}
        if version >= 10 and p.current_leader is not None:
            leader_id, epoch = p.current_leader
            tags["current_leader"] = module.LeaderIdAndEpoch(
                leader_id=leader_id, leader_epoch=epoch
            )
        return built(
            module.PartitionProduceResponse,
            index=p.index,
            error_code=ErrorCode(p.error_code),
            base_offset=p.base_offset,
            log_append_time=None
            if time_ms == -1
            else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms),
            log_start_offset=p.log_start_offset,
            record_errors=tuple(
                module.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=why)
                for at, why in (p.record_errors if version >= 8 else ())
            ),
            error_message=p.error_message,
            **tags,
        )

    return built(
        response,
        responses=tuple(
            built(
                module.TopicProduceResponse,
                name=topic,
                topic_id=topic,
                partition_responses=tuple(map(partition, partitions)),
            )
            for topic, partitions in answered
        ),
        throttle_time=throttle(throttle_ms),
        node_endpoints=kio_nodes(module, nodes),
    )


def kio_fetch(version, answered, throttle_ms, error_code, session_id, nodes=()):
    response = load_response_schema(1, version)
    module = __import__(response.__module__, fromlist=["*"])

    def partition(p):
        tags = {}
        if version >= 12 and p.diverging_epoch is not None:
            epoch, end_offset = p.diverging_epoch
            tags["diverging_epoch"] = module.EpochEndOffset(epoch=epoch, end_offset=end_offset)
        if version >= 12 and p.current_leader is not None:
            leader_id, epoch = p.current_leader
            tags["current_leader"] = module.LeaderIdAndEpoch(
                leader_id=leader_id, leader_epoch=epoch
            )
        return built(
            module.PartitionData,
            partition_index=p.index,
            error_code=ErrorCode(p.error_code),
            high_watermark=p.high_watermark,
            last_stable_offset=p.last_stable_offset,
            log_start_offset=p.log_start_offset,
            aborted_transactions=None
            if p.aborted is None
            else tuple(
                module.AbortedTransaction(producer_id=pid, first_offset=first)
                for pid, first in p.aborted
            ),
            preferred_read_replica=p.preferred_read_replica,
            records=b"".join(p.records),
            **tags,
        )

    return built(
        response,
        throttle_time=throttle(throttle_ms),
        error_code=ErrorCode(error_code),
        session_id=session_id,
        node_endpoints=kio_nodes(module, nodes),
        responses=tuple(
            built(
                module.FetchableTopicResponse,
                topic=topic,
                topic_id=topic,
                partitions=tuple(map(partition, partitions)),
            )
            for topic, partitions in answered
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", range(3, 14))
@settings(deadline=None)
@given(data=st.data(), correlation_id=INT32, throttle_ms=st.integers(0, 2**31 - 1))
def test_a_produce_answer_is_what_kio_writes(version, data, correlation_id, throttle_ms):
    answered = data.draw(topics(PRODUCED, by_id=version >= 13))
    nodes = data.draw(NODES)
    expected = kio_bytes(correlation_id, kio_produce(version, answered, throttle_ms, nodes))
    assert encode_produce(version, correlation_id, answered, throttle_ms, nodes) == expected


@pytest.mark.parametrize("version", range(3, 14))
def test_the_answer_for_one_partition_is_what_kio_writes(version):
    topic = UUID(int=7) if version >= 13 else "orders"
    answered = [(topic, [PartitionProduced(2, 0, 42, -1, 7)])]
    for _ in range(2):  # the second time with the cached prefix
        expected = kio_bytes(5, kio_produce(version, answered, 0))
        assert encode_produce(version, 5, answered) == expected


@pytest.mark.slow
@pytest.mark.parametrize("version", range(4, 19))
@settings(deadline=None)
@given(
    data=st.data(),
    correlation_id=INT32,
    throttle_ms=st.integers(0, 2**31 - 1),
    error_code=ERRORS,
    session_id=INT32,
)
def test_a_fetch_answer_is_what_kio_writes(
    version, data, correlation_id, throttle_ms, error_code, session_id
):
    answered = data.draw(topics(fetched(), by_id=version >= 13))
    nodes = data.draw(NODES)
    buffers = encode_fetch(
        version,
        correlation_id,
        answered,
        throttle_ms=throttle_ms,
        error_code=error_code,
        session_id=session_id,
        nodes=nodes,
    )
    response = kio_fetch(version, answered, throttle_ms, error_code, session_id, nodes)
    assert b"".join(buffers) == kio_bytes(correlation_id, response)


def test_record_buffers_are_passed_on_and_never_joined():
    records = [memoryview(b"first batch"), b"second batch"]
    fetched_one = PartitionFetched(0, 0, 9, 9, 0, records, 23)
    buffers = encode_fetch(12, 1, [("orders", [fetched_one])])
    assert all(any(record is buffer for buffer in buffers) for record in records)


# -- ListOffsets ----------------------------------------------------------------------------------

OFFSETS = st.lists(st.builds(PartitionOffset, INT32, ERRORS, INT64, INT64, INT32), max_size=4)


def kio_offsets(version, topics):
    response = load_response_schema(2, version)
    module = __import__(response.__module__, fromlist=["*"])
    answered = [
        module.ListOffsetsTopicResponse(
            name=name,
            partitions=tuple(
                built(
                    module.ListOffsetsPartitionResponse,
                    partition_index=each.index,
                    error_code=ErrorCode(each.error_code),
                    timestamp=each.timestamp,
                    offset=each.offset,
                    leader_epoch=each.leader_epoch,
                )
                for each in partitions
            ),
        )
        for name, partitions in topics.items()
    ]
    return built(response, throttle_time=throttle(0), topics=tuple(answered))


@pytest.mark.parametrize("version", range(1, 12))
@given(topics=st.dictionaries(NAMES, OFFSETS, max_size=3), correlation_id=INT32)
def test_a_list_offsets_answer_is_what_kio_writes(version, topics, correlation_id):
    ours = b"".join(encode_list_offsets(version, correlation_id, topics))
    assert ours == kio_bytes(correlation_id, kio_offsets(version, topics))


@pytest.mark.parametrize("version", [1, 4, 6])
def test_a_large_list_offsets_answer_comes_in_small_buffers(version):
    topics = {"t": [PartitionOffset(at, 3) for at in range(2001)]}
    topics |= {f"u{at}": [PartitionOffset(0)] for at in range(2001)}
    buffers = list(encode_list_offsets(version, 7, topics))
    assert max(map(len, buffers)) < 25_000
    assert len(buffers) < 30
    assert b"".join(buffers) == kio_bytes(7, kio_offsets(version, topics))

"""Goal: the age of a record is known without reading it, for partitions of any gateway.

Method: topics over real streams on virtual time; the requests to other gateways by Hypothesis.
"""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import record_times
from gateway.metrics.record_times import portions, time_here
from gateway.wire.private_request import BODY_BYTES_MAX
from ledger.streams.config import StreamLimits
from tests.gateway.stream_cluster import batch, started_cluster

COLD = StreamLimits(tail_cache_bytes=0, index_stride_bytes=200)


async def test_the_time_of_a_record_in_memory_is_that_of_its_batch():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(at=1000), batch(at=5000), batch(at=9000))
        times = [time_here(cluster.context, ("t", 0, offset)) for offset in range(6)]
        assert times == [1000, 1000, 5000, 5000, 9000, 9000]


async def test_the_time_of_another_record_is_that_of_the_index_around_it():
    async with started_cluster(limits=COLD) as cluster:
        partition = await cluster.topic()
        for number in range(20):
            await cluster.sent(partition, batch(at=1000 * (number + 1)))
        times = [time_here(cluster.context, ("t", 0, 2 * number)) for number in range(20)]
        assert times == sorted(times)
        stride_ms = 1000 * 4  # of batches of about 75 bytes
        for number, found in enumerate(times):
            assert 0 <= found - 1000 * (number + 1) <= stride_ms


async def test_an_offset_below_the_start_counts_from_there_and_what_is_not_here_is_unknown():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(at=1000), batch(at=5000))
        await partition.stream.truncate(2)
        assert time_here(cluster.context, ("t", 0, 0)) == 5000
        assert time_here(cluster.context, ("t", 0, 4)) is None  # the end
        assert time_here(cluster.context, ("t", 1, 0)) is None
        assert time_here(cluster.context, ("none", 0, 0)) is None


async def test_the_question_returns_times_in_order_and_refuses_other_rows():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(at=1000))
        answer = await record_times.answer({"of": [["t", 0, 1], ["t", 9, 0]]}, cluster.context)
        assert answer == {"times_ms": [1000, None]}
        for bad in (None, 5, ["t"], [["t", 0]], [["t", 0, -1]], [[1, 0, 0]], [["t", True, 0]]):
            answer = await record_times.answer({"of": bad}, cluster.context)
            assert answer["error"] == "INVALID_REQUEST"


POSITIONS = st.lists(
    st.tuples(st.text(max_size=249), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
    max_size=100,
)


@given(POSITIONS)
def test_each_request_to_a_gateway_is_small_enough_and_none_is_left_out(positions):
    parts = list(portions(positions))
    assert [each for part in parts for each in part] == positions
    for part in parts:
        body = json.dumps({"ask": "record_times", "of": part})
        assert len(body) <= BODY_BYTES_MAX or len(part) == 1

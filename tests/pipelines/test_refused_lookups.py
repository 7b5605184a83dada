"""Goal: a read or a replay that lacks a right ends at once, with Kafka's name of the error.

Method: small servers on loopback ports that answer from one shared picture of a cluster. A request
that were repeated would find no error.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from gateway.pipelines.archives.exact_read import find_unrepresentable
from gateway.pipelines.replays.encode import Encoder
from gateway.pipelines.replays.plan import PartitionPlan, ReplayPlan, Selection
from gateway.pipelines.replays.writer import LookupNeeded, PartitionWriter, WriterLimits, check
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import Isolation
from gateway.pipelines.shared.partitions import OffsetRange
from gateway.pipelines.shared.topics import Topics
from tests.gateway.test_admin_routing import VERSIONS, Cluster, three_servers

pytestmark = pytest.mark.real_loop

METADATA, LIST_OFFSETS, FETCH = 3, 2, 1
DENIED = 29  # TOPIC_AUTHORIZATION_FAILED


class Reading(Cluster):
    """The servers answer Fetch, and Metadata with the error of the topic."""

    def _18(self, node_id, body, code):
        rows = {**VERSIONS, FETCH: 12}
        keys = [{"api_key": k, "min_version": 0, "max_version": v} for k, v in rows.items()]
        return {"error_code": 0, "api_keys": keys}

    def _3(self, node_id, body, code):
        answer = super()._3(node_id, body, 0)
        for topic in answer["topics"]:
            topic["error_code"] = code
        return answer

    def _2(self, node_id, body, code):
        part = {"partition_index": 0, "error_code": code, "timestamp": -1, "offset": 5}
        return {"topics": [{"name": "t", "partitions": [part]}]}

    def _1(self, node_id, body, code):
        part = {"partition_index": 0, "error_code": code, "records": None}
        row = {"topic": "t", "partitions": [part]}
        return {"error_code": 0, "session_id": 0, "responses": [row]}


@pytest.mark.parametrize("key", [METADATA, FETCH])
async def test_an_exact_read_without_the_right_ends_at_once(key):
    async with three_servers(made=Reading) as (_, cluster, _servers):
        cluster.leaders = {("t", 0): 1}
        cluster.sulks[1, key] = [DENIED]
        where = f"127.0.0.1:{cluster.ports[1]}"
        wanted = [OffsetRange("t", 0, 0, 5)]
        with pytest.raises(JobError, match="topic_authorization_failed") as raised:
            await asyncio.to_thread(find_unrepresentable, where, wanted, Isolation.read_uncommitted)
        assert raised.value.code == "TOPIC_AUTHORIZATION_FAILED"
        assert cluster.asked.count((1, key)) == 1


class Hiding(Reading):
    """The list of all topics is empty, as for a login that may describe none."""

    def _3(self, node_id, body, code):
        answer = super()._3(node_id, body, code)
        if body.topics is None:
            answer["topics"] = []
        return answer


async def test_a_topic_that_may_not_be_described_is_refused_and_does_not_seem_missing():
    async with three_servers(made=Hiding) as (_, cluster, _servers):
        cluster.leaders = {("t", 0): 1}
        where = f"127.0.0.1:{cluster.ports[1]}"
        cluster.sulks[1, METADATA] = [0, DENIED]
        with pytest.raises(JobError, match="the login may not describe it") as raised:
            await asyncio.to_thread(Topics(where).named, ["t"])
        assert raised.value.code == "TOPIC_AUTHORIZATION_FAILED"


def next_record(where):
    """Look up the next record of a replay that has written up to offset 5."""
    plan = ReplayPlan(
        asked="",
        selection=Selection("source", ()),
        target="t",
        topic_id="",
        producer_id=1,
        producer_epoch=0,
        record_bytes_max=100,
        partitions=(PartitionPlan(0, 0, 5, 0, 4),),
    )
    limits = WriterLimits(stall_s_max=5.0, answer_s_max=5.0)
    writer = PartitionWriter(plan, plan.partitions[0], where, Encoder(1, 0, 0, 1_000), limits)
    try:
        return writer.find_next_record()
    finally:
        writer.close()


@pytest.mark.parametrize("key", [METADATA, LIST_OFFSETS, FETCH])
async def test_a_replay_without_the_right_ends_at_its_first_lookup(key):
    async with three_servers(made=Reading) as (_, cluster, _servers):
        cluster.leaders = {("t", 0): 1}
        cluster.sulks[1, key] = [DENIED]
        where = f"127.0.0.1:{cluster.ports[1]}"
        with pytest.raises(JobError, match=r"^t(-0)?: .*TOPIC_AUTHORIZATION_FAILED$") as raised:
            await asyncio.to_thread(next_record, where)
        assert raised.value.code == "TOPIC_AUTHORIZATION_FAILED"
        assert cluster.asked.count((1, key)) == 1


def test_a_lookup_of_a_replay_is_repeated_unless_a_right_is_missing():
    check(ErrorCode.none, "t-0")
    with pytest.raises(LookupNeeded, match="t-0: NOT_LEADER_OR_FOLLOWER"):
        check(ErrorCode.not_leader_or_follower, "t-0")
    with pytest.raises(JobError, match="t-0: TOPIC_AUTHORIZATION_FAILED") as raised:
        check(ErrorCode.topic_authorization_failed, "t-0")
    assert raised.value.code == "TOPIC_AUTHORIZATION_FAILED"

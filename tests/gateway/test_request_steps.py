"""Goal: a request with very many elements lets other tasks run while it is handled.

Method: requests at the handlers in Kafka's bytes on virtual time. The lookups and other steps that
one turn of the event loop makes are counted, not their time.
"""

import pytest

from gateway.cluster.port import Leader
from gateway.core.partition_transactions import PartitionTransactions
from gateway.core.producer_states import ProducerStates
from gateway.core.topic_names import TRANSACTION_STATE
from gateway.handlers import k24_add_partitions_to_txn
from gateway.handlers.api import ConnectionEnds
from gateway.server.dispatch import RequestRefused
from tests.batches import plain_batch
from tests.gateway.paper_cluster import PaperCluster, member
from tests.gateway.stream_cluster import FETCH, LIST_OFFSETS, PRODUCE, batch, started_cluster
from tests.gateway.transaction_rig import ADD, DESCRIBE, transacting
from tests.sim.turns import most_between_turns, turns_during


class Calls:
    """Counts the calls of one function of an object, or what `weight` returns of each."""

    def __init__(self, monkeypatch, owner, name, weight=lambda *_: 1):
        self.made = 0
        self._weight = weight
        self._called = getattr(owner, name)
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *args, **more):
        self.made += self._weight(*args)
        return self._called(*args, **more)

    def count(self):
        return self.made


# Fetch

EXECUTOR = "consumer-spark-kafka-source-0f8fad5b-d9cb-469f-a165-70867728950e--7-executor-1"


async def test_the_partitions_that_an_executor_of_spark_names_are_noted_in_parts(monkeypatch):
    async with started_cluster() as cluster:
        await cluster.topic()
        cluster.client_id = EXECUTOR
        entry = {"fetch_offset": 0, "partition_max_bytes": 1_000}
        partitions = [entry | {"partition": index} for index in range(20_000)]
        fields = {
            "replica_id": -1,
            "max_wait_ms": 0,
            "min_bytes": 0,
            "topics": [{"topic": "t", "partitions": partitions}],
        }
        lookups = Calls(monkeypatch, cluster.catalog, "by_name_or_id")
        work = cluster.encoded(FETCH, 4, **fields)
        _, most = await most_between_turns(work, lookups.count)
        assert lookups.made > 20_000
        assert most <= 1_000
        group = await cluster.context.read_only_groups.find(EXECUTOR[9:-2])
        assert list(group.fetches) == [(cluster.catalog.by_name("t").topic_id, 0)]


# AddPartitionsToTxn


def adding(version, name, count, *, verify=False):
    topics = [{"name": name, "partitions": list(range(count))}]
    one = {"transactional_id": "pay", "producer_id": 1, "producer_epoch": 0, "topics": topics}
    if version < 4:
        return {f"v3_and_below_{key}": value for key, value in one.items()}
    return {"transactions": [one | {"verify_only": verify}]}


@pytest.mark.parametrize("version", [3, 4])
async def test_partitions_of_a_transaction_are_looked_up_in_parts(version, monkeypatch):
    async with transacting() as cluster:
        lookups = Calls(monkeypatch, cluster.partitions, "exists")
        work = cluster.encoded(ADD, version, **adding(version, "nosuch", 20_000))
        _, most = await most_between_turns(work, lookups.count)
        assert lookups.made == 20_000
        assert most <= 500


async def test_partitions_of_an_internal_topic_are_refused_in_parts(monkeypatch):
    async with transacting() as cluster:
        checks = Calls(monkeypatch, k24_add_partitions_to_txn, "is_internal")
        work = cluster.encoded(ADD, 3, **adding(3, TRANSACTION_STATE, 20_000))
        _, most = await most_between_turns(work, checks.count)
        assert checks.made == 20_000
        assert most <= 500


async def test_partitions_of_a_transaction_are_verified_in_parts(monkeypatch):
    async with transacting() as cluster:
        await cluster.create("wide", 5_000, {})
        await cluster.begin()
        verified = Calls(monkeypatch, cluster.shell, "verify", lambda asked: len(asked.partitions))
        work = cluster.answer(ADD, 4, **adding(4, "wide", 5_000, verify=True))
        reply, most = await most_between_turns(work, verified.count)
        (topic,) = reply.results_by_transaction[0].topic_results
        codes = {each.partition_error_code.name for each in topic.results_by_partition}
        assert codes == {"invalid_producer_id_mapping"}
        assert verified.made == 5_000
        assert most <= 500


# ListOffsets


async def test_topics_without_partitions_are_passed_over_in_parts():
    async with started_cluster() as cluster:
        topics = [{"name": "t", "partitions": []}] * 20_000
        fields = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        reply, turns = await turns_during(cluster.answer(LIST_OFFSETS, 2, **fields))
        assert reply.topics == ()
        assert turns >= 40


async def test_offsets_of_more_topics_than_are_decoded_in_one_step_are_refused():
    async with started_cluster() as cluster:
        await cluster.topic()
        topics = [{"name": "t", "partitions": []}] * 20_001
        fields = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        with pytest.raises(RequestRefused):
            cluster.ask(LIST_OFFSETS, 2, **fields)


# Produce


def producing(named, *, acks=-1):
    """The fields of a Produce of {topic: {index: records}}."""
    topics = [
        {
            "name": name,
            "partition_data": [{"index": at, "records": data} for at, data in batches.items()],
        }
        for name, batches in named.items()
    ]
    return {"transactional_id": None, "acks": acks, "timeout": 1_000, "topic_data": topics}


async def test_batches_for_many_partitions_are_accepted_in_parts(monkeypatch):
    async with started_cluster() as cluster:
        await cluster.topic()
        lookups = Calls(monkeypatch, cluster.partitions, "why_not_produced")
        fields = producing({"nosuch": dict.fromkeys(range(19_000), b"")})
        work = cluster.answer(PRODUCE, 12, **fields)
        reply, most = await most_between_turns(work, lookups.count)
        rows = reply.responses[0].partition_responses
        assert [each.index for each in rows] == list(range(19_000))
        assert {each.error_code.name for each in rows} == {"unknown_topic_or_partition"}
        assert lookups.made == 19_000
        assert most <= 500


TURN = 50
WIDE = 60  # batches of a request: more than one turn takes


@pytest.fixture
def short_turns(monkeypatch):
    """Let other tasks run after each `TURN` batches: hundreds of partitions take long to make."""
    for module in ("handlers.k00_produce", "handlers.transactional_produce", "wire.produce_reply"):
        monkeypatch.setattr(f"gateway.{module}.PER_PART", TURN)


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("version", [3, 8, 12])
async def test_each_of_many_batches_gets_its_own_result(version):
    async with started_cluster() as cluster:
        await cluster.topic(partitions=WIDE)
        named = {"t": dict.fromkeys(range(WIDE), batch()), "nosuch": {0: batch()}}
        named["t"][WIDE - 5] = batch()[:-1]
        reply = await cluster.answer(PRODUCE, version, **producing(named))
        found = {
            (topic.name, each.index): (each.error_code.name, each.base_offset)
            for topic in reply.responses
            for each in topic.partition_responses
        }
        expected = {("t", at): ("none", 0) for at in range(WIDE)}
        expected["t", WIDE - 5] = ("corrupt_message", -1)
        expected["nosuch", 0] = ("unknown_topic_or_partition", -1)
        assert found == expected


@pytest.mark.usefixtures("short_turns")
async def test_a_topic_that_is_deleted_between_two_parts_gets_no_later_batch(monkeypatch):
    """Whatever topic has its name by then: the request gives the id."""
    async with started_cluster() as cluster:
        await cluster.topic(partitions=WIDE)
        topic = cluster.catalog.by_name("t")
        lookups = iter([topic])  # by the id; the name stays, as if a new topic had it
        monkeypatch.setattr(cluster.catalog, "by_id", lambda _: next(lookups, None))
        fields = producing({"t": dict.fromkeys(range(WIDE), batch())})
        fields["topic_data"][0]["topic_id"] = topic.topic_id
        reply = await cluster.answer(PRODUCE, 13, **fields)
        codes = [each.error_code.name for each in reply.responses[0].partition_responses]
        assert codes == ["none"] * (TURN - 1) + ["unknown_topic_id"] * (WIDE - TURN + 1)


@pytest.mark.usefixtures("short_turns")
async def test_many_batches_are_refused_with_the_leader_of_each_partition():
    two = member(2)
    cluster_of_two = PaperCluster(1, [member(1), two], leader_of_others=Leader(2, 7))
    async with started_cluster(cluster=cluster_of_two) as cluster:
        await cluster.catalog.create("t", WIDE, 1, {})
        named = {"t": dict.fromkeys(range(WIDE), batch())}
        reply = await cluster.answer(PRODUCE, 12, **producing(named))
        rows = reply.responses[0].partition_responses
        assert {each.error_code.name for each in rows} == {"not_leader_or_follower"}
        leaders = {(row.current_leader.leader_id, row.current_leader.leader_epoch) for row in rows}
        assert leaders == {(2, 7)}
        assert [(each.node_id, each.host) for each in reply.node_endpoints] == [(2, two.host)]


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize(
    ("transactional_id", "refused"),
    [
        (None, "transactional_id_authorization_failed"),
        ("pay", "invalid_producer_id_mapping"),
    ],
)
async def test_nothing_of_many_transactional_batches_of_two_producers_is_stored(
    transactional_id, refused
):
    async with started_cluster() as cluster:
        partition = await cluster.topic(partitions=WIDE)
        words = {"attributes": 0x10, "epoch": 0, "sequence": 0}
        named = dict.fromkeys(range(WIDE), plain_batch([1_000], producer=5, **words))
        named[WIDE - 1] = plain_batch([1_000], producer=6, **words)
        fields = producing({"t": named}) | {"transactional_id": transactional_id}
        reply = await cluster.answer(PRODUCE, 12, **fields)
        rows = reply.responses[0].partition_responses
        assert {each.error_code.name for each in rows} == {refused}
        assert partition.high_watermark == 0


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("acks", [-1, 0])
@pytest.mark.parametrize("width", [1, WIDE])
async def test_a_batch_does_not_overtake_an_earlier_one_among_many(acks, width):
    """In the same connection, for the same partition: the second one continues the first."""
    async with started_cluster() as cluster:
        await cluster.topic(partitions=WIDE)
        many = {"t": {at: batch(0, producer=7) for at in range(WIDE)}}
        first = cluster.ask(PRODUCE, 12, **producing(many, acks=acks))[1]
        after = {"t": {at: batch(2, producer=7) for at in range(WIDE - width, WIDE)}}
        request, second = cluster.ask(PRODUCE, 12, **producing(after))
        third = cluster.ask(PRODUCE, 12, **producing({"t": {WIDE - 1: batch(4, producer=7)}}))
        await first
        for each, offset in ((second, 2), (third[1], 4)):
            (topic,) = cluster.decoded(request, await each).responses
            rows = topic.partition_responses
            found = {(row.error_code.name, row.base_offset) for row in rows}
            assert found == {("none", offset)}


@pytest.mark.usefixtures("short_turns")
async def test_nothing_follows_batches_that_are_refused_without_a_reply():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        many = {"nosuch": dict.fromkeys(range(WIDE), batch())}
        first = cluster.ask(PRODUCE, 12, **producing(many, acks=0))[1]
        second = cluster.ask(PRODUCE, 12, **producing({"t": {0: batch()}}, acks=0))[1]
        for each in (first, second):
            with pytest.raises(ConnectionEnds):
                await each
        assert partition.high_watermark == 0
        reply = await cluster.answer(PRODUCE, 12, **producing({"t": {0: batch()}}))
        assert reply.responses[0].partition_responses[0].base_offset == 0


# DescribeProducers, DescribeTransactions, DescribeLogDirs and DescribeConfigs


class Hashed(int):
    """A producer id that counts the hashes of all ids: the steps of sets and dictionaries."""

    made = 0

    def __hash__(self):
        Hashed.made += 1
        return int.__hash__(self)


async def test_the_producers_of_a_partition_are_gathered_in_parts(monkeypatch):
    async with started_cluster() as cluster:
        await cluster.topic()
        await cluster.partition()
        both = property(lambda _: list(map(Hashed, range(20_000))))
        monkeypatch.setattr(ProducerStates, "producer_ids", both)
        monkeypatch.setattr(PartitionTransactions, "producer_ids", both)
        topics = [{"name": "t", "partition_indexes": [0]}]
        work = cluster.answer(61, 0, topics=topics)
        reply, most = await most_between_turns(work, lambda: Hashed.made)
        assert reply.topics[0].partitions[0].error_code.name == "none"
        assert Hashed.made > 40_000
        assert most <= 5_000  # for 500 ids


async def test_the_partitions_of_a_transaction_are_described_in_parts():
    async with transacting() as cluster:
        await cluster.create("wide", 10_000, {})
        producer = await cluster.begin()
        await cluster.add(producer, *range(10_000), topic="wide")
        work = cluster.answer(DESCRIBE, 0, transactional_ids=["pay"])
        reply, turns = await turns_during(work)
        (row,) = reply.transaction_states
        found = {topic.topic: list(topic.partitions) for topic in row.topics}
        assert found == {"t": [0], "wide": list(range(10_000))}
        assert turns >= 20


async def test_a_transaction_that_is_named_again_is_described_once(monkeypatch):
    async with transacting() as cluster:
        await cluster.begin()
        described = Calls(monkeypatch, cluster.shell, "describe")
        ids = ["pay"] * 200
        reply = await cluster.answer(DESCRIBE, 0, transactional_ids=ids)
        assert [row.transactional_id for row in reply.transaction_states] == ids
        assert set(map(str, reply.transaction_states)) == {str(reply.transaction_states[0])}
        assert described.made == 1


async def test_a_partition_that_is_named_again_and_again_is_passed_over_in_parts():
    async with started_cluster() as cluster:
        await cluster.topic()
        topics = [{"topic": "t", "partitions": [0] * 20_000}]
        reply, turns = await turns_during(cluster.answer(35, 4, topics=topics))
        assert [len(topic.partitions) for topic in reply.results[0].topics] == [1]
        assert turns >= 40


async def test_the_keys_of_a_described_config_are_gathered_in_parts():
    async with started_cluster() as cluster:
        await cluster.topic()
        keys = [f"nosuch-{number}" for number in range(20_000)]
        one = {"resource_type": 2, "resource_name": "t"}
        fields = {"include_synonyms": False, "include_documentation": False}
        fields["resources"] = [one | {"configuration_keys": [*keys, "retention.ms"]}]
        reply, turns = await turns_during(cluster.answer(32, 4, **fields))
        assert [each.name for each in reply.results[0].configs] == ["retention.ms"]
        assert turns >= 40

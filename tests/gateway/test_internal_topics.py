"""Goal: internal topics exist from the first lookup of a coordinator; clients cannot change them.

Method: a broker on real streams and a simulated bookie, and two catalogs on one metadata tree. What
Apache Kafka 4.3 answers is compared in tests/compat/differential, in the cases of internal topics.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from gateway.config import TopicDefaults
from gateway.core.feature_levels import GATEWAY_VERSION, FeatureUpdate, Form
from gateway.core.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from gateway.features.cluster_form import CLUSTER_ID, ClusterForm
from gateway.features.features import Features
from gateway.features.stored_levels import LEVELS
from gateway.handlers import k03_metadata as metadata
from gateway.handlers import k10_find_coordinator as find_coordinator
from gateway.handlers import k19_create_topics as create_topics
from gateway.handlers import k20_delete_topics as delete_topics
from gateway.handlers import k37_create_partitions as create_partitions
from gateway.topics import internal_topics
from gateway.topics.catalog import Catalog
from gateway.topics.configs import describe_topic
from gateway.topics.internal_topics import INTERNAL_PARTITIONS
from ledger.streams.segment_store import list_streams
from tests.gateway.handler_cluster import loaded_cluster
from tests.gateway.releases import EARLIER, THIS
from tests.gateway.stream_cluster import batch, started_cluster, times_of
from tests.sim.metadata import SimMetadata

FETCH, LIST_OFFSETS, PRODUCE, EPOCH_END = 1, 2, 0, 23
BOTH = (CONSUMER_OFFSETS, TRANSACTION_STATE)
ONE_S = 1.0  # of virtual time: creations in the background have ended


class Hosted:
    """The state and the observer of one partition: they count records, and list the ownerships."""

    def __init__(self):
        self.replayed = 0
        self.events = []

    def encode(self, end_sequence_id):
        return b"%d" % self.replayed

    def load(self, data):
        self.replayed = int(data or b"0")
        yield

    def replay(self, sequence_id, data):
        self.replayed += 3

    def pass_loss(self, first, last):
        raise AssertionError("nothing is lost")

    def timestamp_max(self, data):
        return 0

    def on_opened(self, epoch):
        self.events.append(f"opened {epoch}")

    def on_ended(self):
        self.events.append("ended")


class Host:
    """The host of the topic of transactions in one gateway."""

    def __init__(self, cluster):
        self.built = {}
        cluster.partitions.hosts[TRANSACTION_STATE] = self

    def build(self, index):
        self.built[index] = hosted = Hosted()
        return hosted, hosted

    def on_forgotten(self, index):
        self.built[index].events.append("forgotten")


async def created(catalog, name):
    internal_topics.begin(catalog, name)
    await asyncio.sleep(ONE_S)
    return catalog.by_name(name)


async def find(cluster, key_type, version=4):
    return await cluster.ask(
        find_coordinator, version, key="x", key_type=key_type, coordinator_keys=["x"]
    )


def produced(name, index):
    rows = [{"index": index, "records": batch()}]
    return {"acks": -1, "timeout": 1000, "topic_data": [{"name": name, "partition_data": rows}]}


def fetched(name, offset, wait_ms=500):
    rows = [{"partition": 3, "fetch_offset": offset, "partition_max_bytes": 1000}]
    return {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1000,
        "topics": [{"topic": name, "partitions": rows}],
    }


@pytest.mark.parametrize("version", range(7))
async def test_the_first_lookup_of_a_group_creates_the_topic_and_does_not_wait_for_it(version):
    async with loaded_cluster() as cluster:
        answer = await find(cluster, 0, version)
        row = answer if version < 4 else answer.coordinators[0]
        assert row.error_code is ErrorCode.none
        assert cluster.catalog.by_name(CONSUMER_OFFSETS) is None
        await asyncio.sleep(ONE_S)
        topic = cluster.catalog.by_name(CONSUMER_OFFSETS)
        assert (topic.partitions, topic.is_internal) == (INTERNAL_PARTITIONS, True)
        await find(cluster, 0, version)
        await asyncio.sleep(ONE_S)
        assert cluster.catalog.by_name(CONSUMER_OFFSETS) is topic


async def test_metadata_shows_the_topic_with_its_id_and_leaders():
    async with loaded_cluster() as cluster:
        await find(cluster, 0)
        await asyncio.sleep(ONE_S)
        answer = await cluster.ask(metadata, 12, topics=None, allow_auto_topic_creation=False)
        (row,) = answer.topics
        assert (row.name, row.is_internal) == (CONSUMER_OFFSETS, True)
        assert row.topic_id == cluster.catalog.by_name(CONSUMER_OFFSETS).topic_id
        assert [each.partition_index for each in row.partitions] == list(range(50))
        assert {each.leader_id for each in row.partitions} == {3}


@pytest.mark.parametrize(("supported", "names"), [(EARLIER, []), (THIS, [TRANSACTION_STATE])])
async def test_metadata_creates_the_topic_of_transactions_only_at_their_level(supported, names):
    async with loaded_cluster(supported=supported) as cluster:
        asked = [{"name": name} for name in (TRANSACTION_STATE, "__share_group_state")]
        for _ in range(2):  # the first one records that data of transactions may exist
            await cluster.ask(metadata, 12, topics=asked, allow_auto_topic_creation=True)
            await asyncio.sleep(ONE_S)
        assert [topic.name for topic in cluster.catalog.all()] == names


async def test_two_brokers_that_create_a_topic_at_once_have_one_topic():
    store = SimMetadata()
    catalogs = [Catalog(store, bookies=lambda: 3) for _ in range(2)]
    for catalog in catalogs:
        await catalog.load()
    await asyncio.gather(
        *(internal_topics.ensure(catalog, name) for catalog in catalogs for name in BOTH)
    )
    await asyncio.sleep(ONE_S)
    one, other = ({topic.name: topic.topic_id for topic in each.all()} for each in catalogs)
    assert set(one) == set(BOTH)
    assert one == other
    for catalog in catalogs:
        await catalog.close()


@pytest.mark.parametrize(
    ("bookies", "copies", "in_sync"), [(0, 1, "1"), (1, 1, "1"), (2, 2, "2"), (5, 3, "2")]
)
async def test_the_settings_are_those_of_kafka_for_as_many_copies_as_there_are_bookies(
    bookies, copies, in_sync
):
    offsets = internal_topics.internal_topic(CONSUMER_OFFSETS, bookies)
    state = internal_topics.internal_topic(TRANSACTION_STATE, bookies)
    assert offsets.replication_factor == state.replication_factor == copies
    both = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
    assert offsets.configs == both | {"compression.type": "producer"}
    assert state.configs == both | {
        "compression.type": "uncompressed",
        "min.insync.replicas": in_sync,
        "unclean.leader.election.enable": "false",
    }
    shown = {each.key.name: each.value for each in describe_topic(offsets.configs, None)}
    assert shown.items() >= offsets.configs.items()


async def test_internal_topics_take_nothing_from_the_limits_of_partitions():
    limits = TopicDefaults(partitions_max=10, partitions_total_max=10)
    async with loaded_cluster(topics=limits) as cluster:
        catalog = cluster.catalog
        assert await created(catalog, CONSUMER_OFFSETS) is not None
        await catalog.create("t", 10, 1, {})
        assert await created(catalog, TRANSACTION_STATE) is not None
        assert catalog._partitions_total == 10
        await catalog.delete("t")
        assert catalog._partitions_total == 0


async def test_clients_can_neither_delete_nor_extend_an_internal_topic():
    async with loaded_cluster() as cluster:
        for name in BOTH:
            topic = await created(cluster.catalog, name)
            answer = await cluster.ask(
                delete_topics, 6, topics=[{"name": name, "topic_id": None}], timeout=1000
            )
            assert answer.responses[0].error_code is ErrorCode.invalid_topic_exception
            by_id = [{"name": None, "topic_id": topic.topic_id}]
            answer = await cluster.ask(delete_topics, 6, topics=by_id, timeout=1000)
            assert answer.responses[0].error_code is ErrorCode.invalid_topic_exception
            answer = await cluster.ask(
                create_partitions,
                3,
                topics=[{"name": name, "count": 51, "assignments": None}],
                timeout=1000,
                validate_only=False,
            )
            assert answer.results[0].error_code is ErrorCode.invalid_topic_exception
            assert cluster.catalog.by_name(name) is topic


async def test_only_the_topic_of_transactions_has_streams():
    async with started_cluster() as cluster:
        await created(cluster.catalog, CONSUMER_OFFSETS)
        assert await list_streams(cluster.metadata) == []
        state = await created(cluster.catalog, TRANSACTION_STATE)
        streams = await list_streams(cluster.metadata)
        assert sorted(streams) == sorted(f"{state.topic_id}-{at}" for at in range(50))
        await cluster.partitions.maintain_once()
        assert list(cluster.partitions.served()) == []
        host = Host(cluster)
        await cluster.partitions.maintain_once()
        assert {topic for topic, _, _ in cluster.partitions.served()} == {TRANSACTION_STATE}
        assert sorted(host.built) == list(range(50))


async def test_the_host_has_the_state_of_each_partition_and_follows_its_ownership():
    async with started_cluster() as cluster:
        await created(cluster.catalog, TRANSACTION_STATE)
        host = Host(cluster)
        partition = await cluster.partition(TRANSACTION_STATE, 7)
        assert host.built[7].events == ["opened 0"]
        appended = asyncio.get_running_loop().create_future()
        partition.append_own(batch(records=3), 3, appended.set_result)
        assert await appended is None
        await cluster.restart()
        assert host.built[7].events == ["opened 0", "ended"]
        host = Host(cluster)
        await cluster.partition(TRANSACTION_STATE, 7)
        assert host.built[7].replayed == 3


async def test_clients_cannot_write_to_an_internal_topic():
    async with started_cluster() as cluster:
        for name in BOTH:
            await created(cluster.catalog, name)
            for _ in range(2):  # before and after its partition is open
                answer = await cluster.answer(PRODUCE, 12, **produced(name, 0))
                (row,) = answer.responses[0].partition_responses
                assert row.error_code is ErrorCode.invalid_topic_exception
                Host(cluster)
                cluster.partitions.find(name, 0)
            answer = await cluster.answer(PRODUCE, 12, **produced(name, 50))
            (row,) = answer.responses[0].partition_responses
            assert row.error_code is ErrorCode.unknown_topic_or_partition
        Host(cluster)
        assert (await cluster.partition(TRANSACTION_STATE)).high_watermark == 0


async def test_the_topic_of_groups_is_empty_and_its_first_fetch_is_logged(capsys):
    async with started_cluster() as cluster:
        await created(cluster.catalog, CONSUMER_OFFSETS)
        began_s = asyncio.get_running_loop().time()
        for _ in range(2):
            answer = await cluster.answer(FETCH, 12, **fetched(CONSUMER_OFFSETS, 0))
            (row,) = answer.responses[0].partitions
            assert (row.error_code, row.high_watermark) == (ErrorCode.none, 0)
            assert not row.records
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(1.0)
        lines = [line for line in capsys.readouterr().err.splitlines() if CONSUMER_OFFSETS in line]
        assert len(lines) == 1
        assert "OffsetFetch" in lines[0]
        answer = await cluster.answer(FETCH, 12, **fetched(CONSUMER_OFFSETS, 7))
        (row,) = answer.responses[0].partitions
        assert row.error_code is ErrorCode.offset_out_of_range


async def test_offsets_of_the_topic_of_groups_are_those_of_an_empty_log():
    async with started_cluster() as cluster:
        await created(cluster.catalog, CONSUMER_OFFSETS)
        for time, offset in ((-1, 0), (-2, 0), (-3, -1), (5, -1)):
            asked = times_of({CONSUMER_OFFSETS: [(3, time), (50, time)]})
            answer = await cluster.answer(LIST_OFFSETS, 7, **asked)
            row, missing = answer.topics[0].partitions
            assert (row.error_code, row.offset) == (ErrorCode.none, offset)
            assert missing.error_code is ErrorCode.unknown_topic_or_partition


async def test_the_only_epoch_of_the_topic_of_groups_ends_at_0():
    async with started_cluster() as cluster:
        await created(cluster.catalog, CONSUMER_OFFSETS)
        for asked, current, end, error in (
            (0, -1, 0, ErrorCode.none),
            (1, 0, -1, ErrorCode.none),
            (0, 1, -1, ErrorCode.unknown_leader_epoch),
        ):
            row = {"partition": 3, "current_leader_epoch": current, "leader_epoch": asked}
            topics = [{"topic": CONSUMER_OFFSETS, "partitions": [row]}]
            answer = await cluster.answer(EPOCH_END, 4, replica_id=-1, topics=topics)
            (found,) = answer.topics[0].partitions
            assert (found.error_code, found.end_offset) == (error, end)


async def test_the_partitions_of_the_topic_of_groups_store_no_bytes():
    async with started_cluster() as cluster:
        topic = await created(cluster.catalog, CONSUMER_OFFSETS)
        assert await cluster.partitions.stored_bytes(topic, 49) == {}
        assert await cluster.partitions.stored_bytes(topic, 50) is None


async def test_both_topics_are_the_same_after_a_restart():
    async with started_cluster() as cluster:
        before = [await created(cluster.catalog, name) for name in BOTH]
        await cluster.restart()
        assert [cluster.catalog.by_name(name) for name in BOTH] == before
        await cluster.partitions.maintenance.orphans.round(alone=True)
        assert len(await list_streams(cluster.metadata)) == 50


async def test_a_cluster_of_an_earlier_release_gets_no_internal_topic_before_its_upgrade():
    async with loaded_cluster() as cluster:
        features = cluster.context.features
        await features.close()
        for path in (CLUSTER_ID, LEVELS):
            await cluster.store.delete(path)
        await cluster.store.create(CLUSTER_ID, ClusterForm("c", Form.EPOCH_BASES).encode())
        older = Features(cluster.store, features.supported, 3)
        await older.load()
        cluster.context.features = older
        asked = [{"name": name} for name in BOTH]

        async def names():
            await cluster.ask(find_coordinator, 4, key_type=0, coordinator_keys=["g"])
            await cluster.ask(metadata, 12, topics=asked, allow_auto_topic_creation=True)
            await asyncio.sleep(ONE_S)
            return {topic.name for topic in cluster.catalog.all()}

        assert await names() == set()
        upgrade = [FeatureUpdate(GATEWAY_VERSION, Form.INTERNAL_TOPICS)]
        await older.update(upgrade, validate_only=False)
        assert await names() == {CONSUMER_OFFSETS}


@pytest.mark.parametrize(("name", "partitions"), [(CONSUMER_OFFSETS, 3), (TRANSACTION_STATE, 50)])
async def test_a_client_creates_no_internal_topic_that_the_broker_would_not(name, partitions):
    async with loaded_cluster() as cluster:
        wanted = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        answer = await cluster.ask(
            create_topics, 7, topics=[wanted], timeout=1000, validate_only=False
        )
        (row,) = answer.topics
        assert row.error_code is ErrorCode.invalid_topic_exception
        assert "internal" in row.error_message
        assert cluster.catalog.by_name(name) is None

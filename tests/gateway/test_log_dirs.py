"""Goal: DescribeLogDirs shows the bytes that bookies store of each partition.

Method: a gateway and a bookie on simulated disks; ledgers with several bookies are described by
their metadata. The answers of AlterReplicaLogDirs are those of Apache Kafka 4.3.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from gateway.handlers.many_rows import ANSWER_S_MAX
from gateway.topics import stored_bytes
from gateway.topics.stored_bytes import StoredBytes
from ledger.core.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from ledger.errors import MetadataUnavailable, NoSuchLedger
from ledger.ids import BookieId, EntryId, LedgerId
from tests.gateway.stream_cluster import batch, started_cluster
from tests.sim.turns import turns_during


async def sizes(cluster, *indexes, version=5, topic="t"):
    """Return the bytes by directory and partition, and the answer."""
    topics = [{"topic": topic, "partitions": list(indexes)}] if indexes else None
    answer = await cluster.answer(35, version, topics=topics)
    return {
        result.log_dir: {
            (row.name, each.partition_index): each.partition_size
            for row in result.topics
            for each in row.partitions
        }
        for result in answer.results
    }, answer


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
async def test_the_bytes_of_each_partition_are_shown(version, tmp_path):
    async with started_cluster(data=tmp_path) as cluster:
        await cluster.topic(partitions=2)
        await cluster.sent(await cluster.partition(index=0), batch())
        found, answer = await sizes(cluster, version=version)
        ((directory, partitions),) = found.items()
        (bookie,) = cluster.port.registered()
        assert directory.endswith(f"/{bookie}")
        assert partitions["t", 0] > len(batch())
        assert partitions["t", 1] == 0
        (result,) = answer.results
        assert result.error_code is ErrorCode.none
        rows = [each for row in result.topics for each in row.partitions]
        assert {(each.offset_lag, each.is_future_key) for each in rows} == {(0, False)}
        if version >= 4:
            assert result.total_bytes >= result.usable_bytes > 0


async def test_a_closed_segment_counts_as_before():
    async with started_cluster() as cluster:
        await cluster.topic()
        await cluster.sent(await cluster.partition(), batch())
        before, _ = await sizes(cluster)
        await cluster.restart()
        after, _ = await sizes(cluster)
        assert sum(after.popitem()[1].values()) >= sum(before.popitem()[1].values()) > 0


async def test_only_named_partitions_are_shown_and_each_once():
    async with started_cluster() as cluster:
        await cluster.topic(partitions=3)
        found, _ = await sizes(cluster, 2, 0, 2, 9, -1)
        assert list(found.popitem()[1]) == [("t", 2), ("t", 0)]
        found, _ = await sizes(cluster, 0, topic="absent")
        assert found.popitem()[1] == {}


async def test_partitions_of_other_gateways_are_left_out():
    async with started_cluster() as cluster:
        await cluster.topic(partitions=2)
        cluster.partitions.cluster.owns = lambda key: key.partition == 1
        found, _ = await sizes(cluster)
        assert list(found.popitem()[1]) == [("t", 1)]


@pytest.mark.parametrize("version", [1, 3])
async def test_an_unreachable_store_gives_a_retriable_error(version):
    async with started_cluster() as cluster:
        await cluster.topic()

        async def fail(path):
            raise MetadataUnavailable("down")

        cluster.metadata.read_tree = fail
        _, answer = await sizes(cluster, version=version)
        code = answer.error_code if version >= 3 else answer.results[0].error_code
        assert code not in (ErrorCode.none, ErrorCode.unknown_server_error)


async def test_a_request_for_too_much_ends_in_time():
    async with started_cluster() as cluster:
        await cluster.topic()

        async def never(path):
            await asyncio.Event().wait()

        read, cluster.metadata.read_tree = cluster.metadata.read_tree, never
        _, answer = await sizes(cluster)
        assert (answer.error_code, answer.results) == (ErrorCode.request_timed_out, ())
        cluster.metadata.read_tree = read


# the shares of bookies

A, B, C, D = map(BookieId, "abcd")


class Ledgers:
    """A client with these ledgers, and what was read."""

    def __init__(self, *metadata):
        self.metadata = {each.ledger: each for each in metadata}
        self.read = 0
        self.written = {}

    async def read_metadata(self, ledger):
        self.read += 1
        if ledger not in self.metadata:
            raise NoSuchLedger(ledger)
        return self.metadata[ledger]

    def written_bytes(self, ledger):
        return self.written.get(ledger, 0)


def closed(*fragments, entries, length, quorum=None):
    size = len(fragments[0][1])
    return LedgerMetadata(
        ledger=LedgerId(1),
        ensemble_size=size,
        write_quorum=quorum or size,
        ack_quorum=1,
        fragments=tuple(Fragment(EntryId(first), ensemble) for first, ensemble in fragments),
        state=LedgerState.CLOSED,
        last_entry=EntryId(entries - 1),
        length=length,
    )


async def shares_of(monkeypatch, cluster, *metadata, written=0):
    client = Ledgers(*metadata)
    client.written[LedgerId(1)] = written

    async def ledgers(store, stream):
        return [LedgerId(1)]

    monkeypatch.setattr(stored_bytes, "ledgers_of", ledgers)

    class Services:
        metadata = None
        clock = cluster.clock

    Services.client = client
    stored = StoredBytes(Services)
    first = dict(await stored.of("stream"))
    assert dict(await stored.of("stream")) == first
    return first, client.read


@pytest.mark.parametrize(
    ("metadata", "shares"),
    [
        (closed((0, (A, B)), entries=10, length=1_000), {A: 1_000, B: 1_000}),
        (closed((0, (A, B, C)), entries=10, length=900, quorum=2), {A: 600, B: 600, C: 600}),
        (
            closed((0, (A, B)), (4, (A, C)), entries=10, length=1_000),
            {A: 1_000, B: 400, C: 600},
        ),
        (closed((0, (A, B)), (12, (A, D)), entries=10, length=1_000), {A: 1_000, B: 1_000}),
        (closed((0, (A,)), entries=0, length=0), {A: 0}),
    ],
)
async def test_the_entries_of_a_ledger_are_shared_by_its_bookies(monkeypatch, metadata, shares):
    async with started_cluster() as cluster:
        found, read = await shares_of(monkeypatch, cluster, metadata)
        assert {bookie: size for bookie, size in found.items() if size} == {
            bookie: size for bookie, size in shares.items() if size
        }
        assert read == 1  # the second time from memory


async def test_a_ledger_that_is_gone_counts_nothing(monkeypatch):
    async with started_cluster() as cluster:
        found, read = await shares_of(monkeypatch, cluster)
        assert (found, read) == ({}, 2)


async def test_a_ledger_in_progress_counts_what_this_gateway_wrote(monkeypatch):
    opened = LedgerMetadata(
        ledger=LedgerId(1),
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        fragments=(Fragment(EntryId(0), (A, B)), Fragment(EntryId(3), (A, C))),
    )
    async with started_cluster() as cluster:
        found, read = await shares_of(monkeypatch, cluster, opened, written=77)
        assert (found, read) == ({A: 77, C: 77}, 2)


# AlterReplicaLogDirs


async def altered(cluster, *dirs, version=2):
    answer = await cluster.answer(
        34,
        version,
        dirs=[
            {"path": path, "topics": [{"name": name, "partitions": list(indexes)}]}
            for path, name, indexes in dirs
        ],
    )
    return {
        (row.topic_name, each.partition_index): each.error_code.name
        for row in answer.results
        for each in row.partitions
    }


@pytest.mark.parametrize("version", [1, 2])
async def test_the_directory_that_holds_a_partition_is_accepted(version):
    async with started_cluster() as cluster:
        await cluster.topic(partitions=2)
        await cluster.sent(await cluster.partition(index=0), batch())
        (place,), _ = await sizes(cluster)
        assert await altered(cluster, (place, "t", [0, 1, 7]), version=version) == {
            ("t", 0): "none",
            ("t", 1): "none",
            ("t", 7): "unknown_topic_or_partition",
        }
        assert await altered(cluster, (place, "absent", [0]), version=version) == {
            ("absent", 0): "unknown_topic_or_partition"
        }


async def test_another_directory_is_refused_and_the_last_one_counts():
    async with started_cluster() as cluster:
        await cluster.topic()
        (place,), _ = await sizes(cluster)
        for path in ("/nowhere", "", "relative", place + "/"):
            assert await altered(cluster, (path, "t", [0])) == {("t", 0): "log_dir_not_found"}
        both = [(place, "t", [0]), ("/nowhere", "t", [0])]
        assert await altered(cluster, *both) == {("t", 0): "log_dir_not_found"}
        assert await altered(cluster, *both[::-1]) == {("t", 0): "none"}


async def test_a_partition_of_another_gateway_is_not_altered():
    async with started_cluster() as cluster:
        await cluster.topic()
        (place,), _ = await sizes(cluster)
        cluster.partitions.cluster.owns = lambda key: False
        assert await altered(cluster, (place, "t", [0])) == {("t", 0): "replica_not_available"}


async def test_a_partition_that_is_named_very_often_is_read_with_pauses():
    async with started_cluster() as cluster:
        _, once = await turns_during(altered(cluster, ("/nowhere", "absent", [0])))
        rows = ("/nowhere", "absent", [0] * 3_000)
        answers, turns = await turns_during(altered(cluster, rows))
        assert answers == {("absent", 0): "log_dir_not_found"}
        assert turns >= once + 5


async def test_all_topics_of_a_request_share_its_time(monkeypatch):
    async with started_cluster() as cluster:
        names = [f"t-{number}" for number in range(8)]
        for name in names:
            await cluster.topic(name)
        (place,), _ = await sizes(cluster, 0, topic=names[0])
        waits = 0

        async def slow(topic, index):
            nonlocal waits
            waits += 1
            await asyncio.sleep(ANSWER_S_MAX / 4)
            return {}

        monkeypatch.setattr(cluster.partitions, "stored_bytes", slow)
        answers = await altered(cluster, *((place, name, [0]) for name in names))
        assert list(answers.values()) == ["none"] * 4 + ["request_timed_out"] * 4
        assert waits == 4


async def test_a_directory_without_the_partition_is_refused(monkeypatch):
    async with started_cluster() as cluster:
        await cluster.topic()
        (place,), _ = await sizes(cluster)

        async def elsewhere(topic, index):
            return {BookieId("elsewhere"): 5}

        monkeypatch.setattr(cluster.partitions, "stored_bytes", elsewhere)
        assert await altered(cluster, (place, "t", [0])) == {("t", 0): "log_dir_not_found"}

"""Goal: a log line names the topic and the partition, never a stream; a produce that waits for
bookies is one line within 5 s; a topic with too many copies names the bookies.

Method: partitions over a bookie on virtual time, and a cluster of processes whose bookies die.
"""

from __future__ import annotations

import asyncio
import re

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from gateway.cluster.port import StreamKey
from gateway.log import Throttle
from gateway.topics import partition_warnings
from ledger.errors import EntryUnknown, NoSuchEntry
from ledger.ports.bookies import Status
from tests.batches import raw_batch, record
from tests.gateway.admin_commands import run
from tests.gateway.stream_cluster import batch, started_cluster
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import wait_until
from tests.repair.test_processes import unregister

WAITS = "a produce waits for bookies"
LACK = "too few bookies take writes"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-")


@pytest.fixture(autouse=True)
def unthrottled(monkeypatch):
    """Each virtual clock begins anew, so no test may see the lines of another."""
    monkeypatch.setattr(partition_warnings, "_throttle", Throttle())


def warnings(capsys, words):
    return [line for line in capsys.readouterr().err.splitlines() if words in line]


# -- on virtual time -------------------------------------------------------------------------------


async def test_a_failed_log_is_named_by_topic_and_partition(capsys):
    async with started_cluster() as cluster:
        await cluster.topic("orders", partitions=2)
        partition = await cluster.partition("orders", 1)
        await cluster.sent(partition, batch())
        cluster.port.refuse(Status.IO_ERROR)
        cluster.send(partition, batch())
        await asyncio.sleep(1)
        cluster.port.accept()
        (line,) = warnings(capsys, "the log of a partition failed")
        assert "topic=orders partition=1 " in line
        assert not UUID.search(line)


@pytest.mark.parametrize(
    ("ends", "level", "reason"),
    [
        ("lost", "warning", "another broker may lead it now"),
        ("_topic_forgotten", "info", "its topic is deleted"),
        ("_topic_deleted", "info", "its topic is deleted"),
    ],
)
async def test_a_partition_that_is_led_no_more_is_named_with_the_true_reason(
    ends, level, reason, capsys
):
    async with started_cluster() as cluster:
        partition = await cluster.topic("orders")
        await cluster.sent(partition, batch())
        topic = cluster.catalog.by_name("orders")
        key = StreamKey(topic.topic_id, 0)
        ended = getattr(cluster.partitions, ends)(key if ends == "lost" else topic)
        if ended is not None:
            await ended
        await asyncio.sleep(1)
        assert partition.closed
        (line,) = warnings(capsys, "no longer leads a partition")
        assert f" level={level} " in line
        assert "topic=orders partition=0 " in line
        assert f'kind=NotOwner reason="orders-0: {reason}"' in line
        assert not UUID.search(line)


async def test_the_name_of_the_stream_in_a_reason_becomes_the_partition_and_paths_stay(capsys):
    async with started_cluster() as cluster:
        partition = await cluster.topic("orders")
        stream = partition.name
        lines = partition_warnings.PartitionWarnings(stream, cluster.services, "orders", 0)
        lines.warn("one", EntryUnknown(f"{stream}: 7 cannot be read"))
        lines.warn("two", NoSuchEntry(f"/streams/{stream}/<default>/start"))
        one, two = capsys.readouterr().err.splitlines()
        assert 'reason="orders-0: 7 cannot be read"' in one
        assert f"reason=/streams/{stream}/<default>/start" in two


async def test_a_producer_is_told_the_partition_and_not_the_stream():
    async with started_cluster() as cluster:
        await cluster.catalog.create("orders", 2, 1, {})
        partition = cluster.partitions.find("orders", 1)
        answers = cluster.send(partition, batch())
        partition.abandon()
        (answer,) = answers
        assert answer.message == "orders-1"


async def test_a_produce_that_waits_for_bookies_is_one_line_within_5_s(capsys):
    async with started_cluster() as cluster:
        await cluster.topic("orders", partitions=2)
        partitions = [await cluster.partition("orders", index) for index in range(2)]
        for partition in partitions:
            await cluster.sent(partition, batch())
        cluster.port.hold()
        await asyncio.sleep(1.9)  # just before a check, which the next batches must not escape
        for partition in partitions:
            cluster.send(partition, batch())
        await asyncio.sleep(5)
        (line,) = warnings(capsys, WAITS)
        assert 'partition=0 waited_s=2.0 reason="1 of 1 bookies take writes, 1 must' in line
        await asyncio.sleep(50)
        assert warnings(capsys, WAITS) == []
        cluster.port.release()


async def test_batches_that_become_durable_in_time_are_not_reported(capsys):
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        for _ in range(100):
            await cluster.sent(partition, batch())
            await asyncio.sleep(0.1)
        cluster.port.hold()
        cluster.send(partition, batch())
        await asyncio.sleep(1.5)
        cluster.port.release()
        await asyncio.sleep(10)
        assert warnings(capsys, WAITS) == []


async def test_a_batch_that_waits_for_its_check_is_not_blamed_on_bookies(capsys):
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        permits = partition._long_work._checks
        while not permits.locked():
            await permits.acquire()
        records = b"".join(record(at, 0, None, bytes(at % 90)) for at in range(9_000))
        answers = cluster.send(partition, raw_batch(records, 9_000))
        await asyncio.sleep(10)
        assert not answers
        assert partition.first_waiting is not None
        assert warnings(capsys, WAITS) == []
        permits.release()
        await asyncio.sleep(1)
        (answer,) = answers
        assert answer.error is ErrorCode.none


# -- real processes --------------------------------------------------------------------------------


@pytest.fixture
def cluster(zookeeper, tmp_path):
    """Three bookies and a gateway."""
    place = zookeeper.servers + zookeeper.unused_chroot()
    bookies = [
        BookieProcess(tmp_path / f"b{n}", place, name=f"b{n}", session="20s") for n in range(3)
    ]
    try:
        for bookie in bookies:
            bookie.begin()
        for bookie in bookies:
            bookie.wait_started()
        with ClusterGateway(tmp_path / "gateway", place, session_ms=20_000) as gateway:
            yield gateway, bookies, place
    finally:
        for bookie in bookies:
            if bookie.running:
                bookie.kill()


def test_too_few_bookies_are_named_in_the_log_and_to_the_creator_of_a_topic(cluster):
    gateway, bookies, place = cluster
    assert run("topic", "create", "orders", bootstrap=gateway.bootstrap)[0] == 0
    told = []
    settings = {"bootstrap.servers": gateway.bootstrap, "log_level": 0, "acks": "all"}
    producer = Producer(settings | {"retries": 0})
    producer.produce("orders", b"x", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(60) == 0
    assert told == [None]

    for bookie in bookies[:2]:
        bookie.kill()
        asyncio.run(unregister(place, bookie.id))
    patient = Producer(settings)
    patient.produce("orders", b"y")

    def warnings():
        return [line for line in gateway.output().splitlines() if WAITS in line or LACK in line]

    gateway.process.wait_for(warnings, "the warning", 60.0)
    patient.purge()
    lines = warnings()
    assert not any(UUID.search(line) for line in gateway.output().splitlines() if "level=" in line)
    assert len(lines) == len({WAITS in line for line in lines}), "each warning once"
    for line in lines:
        assert "topic=orders partition=0 " in line
        assert not UUID.search(line)
        assert re.search(r"1 of \d bookies take writes", line)

    refused = (
        "gateway: Unable to replicate the partition 3 time(s): The target replication factor of 3 "
        "cannot be reached because only 1 broker(s) are registered. Each copy needs a bookie of "
        "its own; bookies that take writes: 1.\n"
    )
    words = ("topic", "create", "more", "-r", "3")
    wait_until(
        lambda: run(*words, bootstrap=gateway.bootstrap) == (1, "", refused),
        "the refusal, once the gateway knows that both are gone",
        60.0,
        pause_s=0.2,
    )

"""Goal: Apache Kafka's own tools of 4.3 work unchanged, and agree with other clients on bytes.

Method: each tool is run from the Maven jars as users run it; what it prints is judged here, what
it wrote is read by aiokafka and the other way round, and what it answers is compared with what it
answers about the same data on Apache Kafka.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.compat.clients.base import Record
from tests.compat.clients.suite import START_MS, load_batches, numbered, produce, random_batches
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.peers import java_tools
from tests.peers.broker import Broker
from tests.peers.java_tools import run
from tests.peers.processes import Process, wait_until
from tests.sim.seeds import first_at_commit

pytestmark = pytest.mark.compat

Unused = Callable[[], str]
LOST_CONNECTION = re.compile(r"Node \d+ disconnected")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def at(broker: Broker) -> tuple[str, str]:
    return "--bootstrap-server", broker.bootstrap


def table(printed: str) -> list[dict[str, str]]:
    """Parse a table under its heading, as the group tool prints it."""
    lines = [re.split(r" {2,}| (?=\S)", line.strip()) for line in printed.splitlines() if line]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


def events(process: Process, name: str) -> list[dict]:
    """The JSON lines of a verifiable tool that are called `name`."""
    lines = [line for line in process.output().splitlines() if line.startswith("{")]
    return [event for event in map(json.loads, lines) if event["name"] == name]


def test_a_topic_is_created_listed_described_enlarged_and_deleted(broker: Broker, unused: Unused):
    topic = unused()
    named = ("--topic", topic)
    sizes = ("--partitions", "3", "--replication-factor", "1", "--config", "retention.ms=86400000")
    assert "Created topic" in run(java_tools.TOPICS, *at(broker), "--create", *named, *sizes)
    run(java_tools.TOPICS, *at(broker), "--alter", *named, "--partitions", "5")
    assert topic in run(java_tools.TOPICS, *at(broker), "--list").split()
    described = run(java_tools.TOPICS, *at(broker), "--describe", *named)
    assert "PartitionCount: 5" in described
    assert "retention.ms=86400000" in described
    assert len(re.findall(r"Partition: \d", described)) == 5
    run(java_tools.TOPICS, *at(broker), "--delete", *named)
    assert topic not in run(java_tools.TOPICS, *at(broker), "--list").split()


@pytest.mark.proof
def test_a_second_creation_is_refused_in_kafkas_words(broker: Broker, unused: Unused):
    topic = unused()
    create = (*at(broker), "--create", "--topic", topic, "--partitions", "1")
    run(java_tools.TOPICS, *create)
    with pytest.raises(java_tools.ToolFailed, match=f"Topic '{topic}' already exists"):
        run(java_tools.TOPICS, *create)


@pytest.mark.proof
def test_what_the_console_producer_compresses_others_read(
    broker: Broker, loader: Aiokafka, unused: Unused
):
    topic = unused()
    loader.create_topic(topic)
    lines = [f"name:{n},other:x\tkey {n}\t{'value ' * 30}{n}" for n in range(20)]
    lines.append("name:1,other:\tNULL\tNULL")
    keys = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    nulls = ("--reader-property", "null.marker=NULL")
    for codec in CODECS:
        run(
            java_tools.CONSOLE_PRODUCER,
            *(*at(broker), "--topic", topic, "--compression-codec", codec, *keys, *nulls),
            stdin="\n".join(lines) + "\n",
        )
    found = [one.record for one in loader.read(topic, 0, 21 * len(CODECS))]
    for number, record in enumerate(found):
        n = number % 21
        last = n == 20
        assert record.key == (None if last else b"key %d" % n)
        assert record.value == (None if last else b"value " * 30 + b"%d" % n)
        named = b"1" if last else b"%d" % n
        assert record.headers == (("name", named), ("other", b"" if last else b"x"))


def test_the_console_consumer_reads_what_others_compress(
    broker: Broker, loader: Aiokafka, unused: Unused
):
    topic = unused()
    loader.create_topic(topic)
    records = []
    for number, codec in enumerate((None, *Aiokafka.codecs)):
        some = [
            Record(b"key %d" % n, b"value " * 30 + b"%d" % n, (("h", b"%d" % n),), START_MS + n)
            for n in range(10 * number, 10 * number + 10)
        ]
        produce(loader, topic, some, codec=codec)
        records += some
    printed = ("timestamp", "partition", "offset", "headers", "key")
    wanted = [word for name in printed for word in ("--formatter-property", f"print.{name}=true")]
    read = run(
        java_tools.CONSOLE_CONSUMER,
        *(*at(broker), "--topic", topic, "--partition", "0", "--offset", "7"),
        *("--max-messages", "43", *wanted),
    )
    expected = [
        f"CreateTime:{record.timestamp_ms}\tPartition:0\tOffset:{offset}\th:{offset}"
        f"\t{record.key.decode()}\t{record.value.decode()}"
        for offset, record in enumerate(records)
    ]
    assert read.splitlines() == expected[7:]


@pytest.mark.parametrize("wanted", first_at_commit(["uncompressed", *CODECS[1:]], 1))
def test_the_console_consumer_reads_what_the_broker_compresses_again(
    broker: Broker, loader: Aiokafka, unused: Unused, wanted: str
):
    """Small batches, and large ones that a broker does not compress at once."""
    topic = unused()
    run(
        java_tools.TOPICS,
        *(*at(broker), "--create", "--topic", topic, "--partitions", "1"),
        *("--config", f"compression.type={wanted}"),
    )
    records: list[Record] = []
    for codec in (None, "zstd", "gzip"):
        for count in (1, 3_000):
            begin = len(records)
            some = [
                Record(b"key %d" % n, b"value " * 10 + b"%d" % n, (), START_MS + n)
                for n in range(begin, begin + count)
            ]
            produce(loader, topic, some, codec=codec)
            records += some
    assert [one.record for one in loader.read(topic, 0, len(records))] == records
    read = run(
        java_tools.CONSOLE_CONSUMER,
        *(*at(broker), "--topic", topic, "--from-beginning", "--max-messages", str(len(records))),
        *("--formatter-property", "print.key=true"),
    )
    assert read.splitlines() == [
        f"{record.key.decode()}\t{record.value.decode()}" for record in records
    ]


def test_the_group_tool_lists_describes_resets_and_deletes_a_group(
    broker: Broker, loader: Aiokafka, unused: Unused
):
    topic, group = unused(), unused()
    named = ("--group", group)
    loader.create_topic(topic)
    produce(loader, topic, numbered(30))
    run(
        java_tools.CONSOLE_CONSUMER,
        *(*at(broker), "--topic", topic, *named, "--from-beginning", "--max-messages", "20"),
    )
    assert group in run(java_tools.GROUPS, *at(broker), "--list").split()
    (row,) = table(run(java_tools.GROUPS, *at(broker), "--describe", *named))
    shown = [row[name] for name in ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID")]
    assert shown == ["20", "30", "10", "-"]
    state = run(java_tools.GROUPS, *at(broker), "--describe", "--state", *named)
    assert "Empty" in state
    reset = ("--reset-offsets", *named, "--topic", topic, "--execute")
    to_time = datetime.fromtimestamp((START_MS + 12) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.012")
    moved = run(java_tools.GROUPS, *at(broker), *reset, "--to-datetime", to_time)
    assert re.search(rf"{group}\s+{topic}\s+0\s+12\b", moved)
    assert loader.committed(group, topic, 1) == [12]
    run(java_tools.GROUPS, *at(broker), "--delete", *named)
    assert group not in run(java_tools.GROUPS, *at(broker), "--list").split()


@pytest.mark.proof
def test_two_java_consumers_share_and_take_over(
    broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path
):
    topic, group = unused(), unused()
    loader.create_topic(topic, 6)
    words = (*at(broker), "--topic", topic, "--group-id", group, "--session-timeout", "45000")
    main = java_tools.VERIFIABLE_CONSUMER
    members = [java_tools.start(tmp_path / f"{n}.log", main, *words) for n in range(2)]
    try:

        def held(member: Process) -> int:
            given = events(member, "partitions_assigned")
            return len(given[-1]["partitions"]) if given else 0

        wait_until(lambda: [held(member) for member in members] == [3, 3], "three each", 60.0)
        sent = run(
            java_tools.VERIFIABLE_PRODUCER, *at(broker), "--topic", topic, "--max-messages", "1000"
        )
        assert sent.count('"producer_send_success"') == 1000
        wait_until(
            lambda: (
                sum(sum(e["count"] for e in events(m, "records_consumed")) for m in members) >= 1000
            ),
            "all records consumed",
        )
        members[1].stop()
        wait_until(lambda: held(members[0]) == 6, "one member to hold all")
    finally:
        for member in members:
            member.stop()
    wait_until(lambda: sum(filter(None, loader.committed(group, topic, 6))) == 1000, "commits")
    assert all(e["success"] for m in members for e in events(m, "offsets_committed"))


def test_a_producer_with_acks_0_refreshes_its_metadata_after_an_error(
    broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path
):
    """Otherwise it would write to the id of the deleted topic for up to five minutes."""
    topic = unused()
    loader.create_topic(topic)

    def stored() -> int:
        return loader.bounds(topic, 0)[1]

    with java_tools.start(
        tmp_path / "producer.log",
        java_tools.VERIFIABLE_PRODUCER,
        *(*at(broker), "--topic", topic, "--acks", "0", "--throughput", "50"),
        jvm=java_tools.LOST_CONNECTIONS,
    ) as producer:
        wait_until(lambda: stored() >= 10, "records of the producer")
        producer.pause()
        assert not LOST_CONNECTION.search(producer.output())
        loader.delete_topic(topic)
        loader.create_topic(topic)
        assert stored() == 0
        producer.resume()
        wait_until(lambda: stored() >= 10, "records in the new topic")
        assert LOST_CONNECTION.search(producer.output())


@pytest.mark.proof
def test_the_perf_tools_count_what_they_sent(broker: Broker, loader: Aiokafka, unused: Unused):
    topic = unused()
    loader.create_topic(topic, 3)
    sent = run(
        java_tools.PRODUCER_PERFORMANCE,
        *(*at(broker), "--topic", topic, "--num-records", "30000", "--record-size", "200"),
        *("--throughput", "-1", "--command-property", "compression.type=lz4"),
    )
    assert "30000 records sent" in sent
    read = run(
        java_tools.CONSUMER_PERFORMANCE,
        *(*at(broker), "--topic", topic, "--num-records", "30000", "--timeout", "20000"),
    )
    heading, numbers = [re.split(r",\s*", line) for line in read.splitlines()[-2:]]
    assert dict(zip(heading, numbers, strict=True))["data.consumed.in.nMsg"] == "30000"
    assert sum(loader.bounds(topic, partition)[1] for partition in range(3)) == 30000


@pytest.mark.proof
def test_the_offset_tool_answers_as_on_apache_kafka(
    broker: Broker, loader: Aiokafka, oracle: Broker, oracle_loader: Aiokafka, unused: Unused
):
    chance = random.Random(random.randrange(2**32))
    topics = [unused() for _ in range(8)]
    for topic in topics[1:]:  # the first stays empty
        batches = random_batches(chance)
        for client in (loader, oracle_loader):
            client.create_topic(topic)
            load_batches(client, topic, batches)
    for client in (loader, oracle_loader):
        client.create_topic(topics[0])
    pattern = ("--topic", "|".join(topics))
    for time in ("-1", "-2", "-3", str(START_MS + chance.randrange(2000))):
        ours, theirs = (
            run(java_tools.OFFSETS, *at(asked), *pattern, "--time", time).splitlines()
            for asked in (broker, oracle)
        )
        assert len(ours) >= len(topics) - 1
        assert sorted(ours) == sorted(theirs), time


@pytest.mark.proof
def test_records_are_deleted(broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path):
    topic = unused()
    loader.create_topic(topic)
    produce(loader, topic, numbered(20))
    wanted = tmp_path / "offsets.json"
    place = {"topic": topic, "partition": 0, "offset": 7}
    wanted.write_text(json.dumps({"version": 1, "partitions": [place]}))
    printed = run(java_tools.DELETE_RECORDS, *at(broker), "--offset-json-file", str(wanted))
    assert re.search(rf"partition: {topic}-0\s+low_watermark: 7", printed)
    assert loader.bounds(topic, 0) == (7, 20)


@pytest.mark.proof
def test_settings_are_altered(broker: Broker, unused: Unused):
    topic = unused()
    run(java_tools.TOPICS, *at(broker), "--create", "--topic", topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    changes = ("--add-config", "retention.ms=86400000,cleanup.policy=[delete,compact]")
    run(java_tools.CONFIGS, *at(broker), *entity, "--alter", *changes)
    run(java_tools.CONFIGS, *at(broker), *entity, "--alter", "--delete-config", "cleanup.policy")
    described = run(java_tools.CONFIGS, *at(broker), *entity, "--describe")
    assert "retention.ms=86400000" in described
    assert "cleanup.policy" not in described

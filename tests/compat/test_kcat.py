"""Goal: kcat, Debian's own build on its older librdkafka, works unchanged.

Method: run its five modes (list, produce, consume, query, group) against the broker under test;
what it prints and what aiokafka reads judge each other.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.clients.base import Record
from tests.compat.clients.suite import START_MS, load_batches, numbered
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.compat.stored import stored_batches
from tests.peers import install
from tests.peers.broker import Broker
from tests.peers.processes import Process, wait_until

pytestmark = pytest.mark.compat

Unused = Callable[[], str]


def kcat(broker: Broker, *words: str, stdin: bytes = b"") -> bytes:
    """Run kcat to its end and return what it printed."""
    done = subprocess.run(
        [install.kcat(), "-b", broker.bootstrap, "-m", "60", *words],
        input=stdin,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_the_list_mode_shows_brokers_topics_and_partitions(
    broker: Broker, loader: Aiokafka, unused: Unused
):
    topic = unused()
    loader.create_topic(topic, 3)
    listed = json.loads(kcat(broker, "-L", "-J", "-t", topic))
    (described,) = listed["topics"]
    assert [one["name"] for one in listed["brokers"]] == [broker.bootstrap]
    assert described["topic"] == topic
    assert [one["partition"] for one in described["partitions"]] == [0, 1, 2]
    assert all(one["leader"] == listed["brokers"][0]["id"] for one in described["partitions"])
    everything = json.loads(kcat(broker, "-L", "-J"))
    assert topic in [one["topic"] for one in everything["topics"]]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_kcat_compresses_others_read(
    broker: Broker, loader: Aiokafka, unused: Unused, codec: str
):
    topic = unused()
    loader.create_topic(topic)
    lines = b"".join(b"key %d:%s%d\n" % (n, b"value " * 20, n) for n in range(50)) + b"null:\n"
    options = ("-K", ":", "-Z", "-H", "origin=kcat", "-z", codec, "-p", "0")
    kcat(broker, "-P", "-t", topic, *options, stdin=lines)
    found = [one.record for one in loader.read(topic, 0, 51)]
    assert [record.key for record in found] == [b"key %d" % n for n in range(50)] + [b"null"]
    assert [record.value for record in found[:50]] == [
        b"value " * 20 + b"%d" % n for n in range(50)
    ]
    assert found[50].value is None
    assert {record.headers for record in found} == {(("origin", b"kcat"),)}
    batches = stored_batches(broker.port, topic)
    assert {batch.codec for batch in batches if batch.records > 1} == {codec}


def test_the_consume_mode_starts_where_it_is_told(broker: Broker, loader: Aiokafka, unused: Unused):
    topic = unused()
    loader.create_topic(topic)
    records = [Record(b"k%d" % n, b"v%d" % n, (("h", b"x"),), START_MS + n) for n in range(40)]
    load_batches(loader, topic, [records[:25], records[25:]])
    lines = [b"0 %d %d k%d v%d h=x" % (n, START_MS + n, n, n) for n in range(40)]
    starts = {
        "beginning": lines,
        "13": lines[13:],
        "-3": lines[37:],
        f"s@{START_MS + 21}": lines[21:],
    }
    for start, expected in starts.items():
        words = ("-C", "-e", "-q", "-p", "0", "-o", start, "-f", "%p %o %T %k %s %h\n")
        assert kcat(broker, *words, "-t", topic).splitlines() == expected, start


def test_the_query_mode_finds_offsets_by_time(broker: Broker, loader: Aiokafka, unused: Unused):
    topic = unused()
    loader.create_topic(topic)
    load_batches(loader, topic, [numbered(10), numbered(10, first=10)])
    asked = {START_MS: 0, START_MS + 7: 7, START_MS + 15: 15, -1: 20, -2: 0}
    for time, offset in asked.items():
        answer = kcat(broker, "-Q", "-t", f"{topic}:0:{time}").decode()
        assert answer.strip() == f"{topic} [0] offset {offset}", time


def test_two_members_of_kcat_share_a_topic_and_a_third_resumes(
    broker: Broker, loader: Aiokafka, unused: Unused, tmp_path: Path
):
    topic, group = unused(), unused()
    loader.create_topic(topic, 4)
    options = ("-X", "auto.offset.reset=earliest", "-X", "heartbeat.interval.ms=200", "-u")
    words = (*options, "-f", "%p %o %s\n", "-G", group, topic)
    argv = [install.kcat(), "-b", broker.bootstrap, *words]
    members = [Process(argv, tmp_path / f"{n}.log") for n in range(2)]
    written: set[str] = set()

    def lines(member: Process) -> list[str]:
        return [line for line in member.output().splitlines() if " value-" in line]

    def write_one_to_each_partition() -> set[str]:
        values = {f"value-{len(written)}-{partition}" for partition in range(4)}
        for value in values:
            kcat(broker, "-P", "-t", topic, "-p", value[-1], stdin=value.encode() + b"\n")
        written.update(values)
        return values

    def both_read() -> bool:
        write_one_to_each_partition()
        return all("assigned" in member.output() and lines(member) for member in members)

    def read() -> set[str]:
        return {line.split()[-1] for member in members for line in lines(member)}

    try:
        wait_until(both_read, "both members to read", 60.0)
        # kcat drops a record that it polls after SIGTERM, but commits its offset. Leave none.
        wait_until(lambda: read() == written, "the members to read everything", 60.0)
    finally:
        for member in members:
            member.stop()
    later = write_one_to_each_partition()
    rest = kcat(broker, *words[:-3], "-e", *words[-3:]).decode().splitlines()
    assert sorted(line.split()[-1] for line in rest if " value-" in line) == sorted(later)
    assert sum(filter(None, loader.committed(group, topic, 4))) == len(written)

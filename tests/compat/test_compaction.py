"""Goal: stock clients of a compacted topic find the last value of each key, at its offset.

Method: librdkafka writes to a gateway with its cleaner, plainly and in transactions; librdkafka and
Kafka's console consumer read from the beginning. The gateway and its cleaner are killed meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.gateway.admin_commands import invoke
from tests.gateway.test_metrics import values as metric
from tests.peers import java_tools
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.proof]

OPTIONS = ["--metrics-port", "0"]
CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": str(1024 * 1024),
}
KEYS = 40
SECONDS_MAX = 60
ROUNDS_MAX = 20


def servers(gateway):
    return {"bootstrap.servers": f"127.0.0.1:{gateway.port}"}


def prepared(gateway, topic="t", **configs):
    """Create a compacted topic, and let the cleaner look for work often."""
    admin = AdminClient(servers(gateway))
    new = NewTopic(topic, 1, 1, config={**CONFIGS, **configs})
    admin.create_topics([new])[topic].result(SECONDS_MAX)
    alter(admin, "log.cleaner.backoff.ms", "50")


def alter(admin, name, value):
    alter_broker(admin, 0, name, value)


def alter_broker(admin, node, name, value):
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(SECONDS_MAX)


class Writer:
    """Random values for some keys. `last` has the last value of each key, by the answers."""

    def __init__(self, gateway, topic="t", **settings):
        self.producer = Producer({**servers(gateway), "linger.ms": 5, **settings})
        self.topic = topic
        self.draw = random.Random(7)
        self.last = {}
        self.pending = {}

    def write(self, count, *, size=8_000):
        for _ in range(count):
            key = b"key-%d" % self.draw.randrange(KEYS)
            value = (
                None if self.draw.random() < 0.1 else self.draw.randbytes(size // 2).hex().encode()
            )
            self.producer.produce(self.topic, value, key, on_delivery=self.note)
            self.producer.poll(0)

    def note(self, error, message):
        assert error is None, error
        known = self.pending.get(message.key(), (-1, None))
        if message.offset() > known[0]:
            self.pending[message.key()] = message.offset(), message.value()

    def flush(self, *, aborted=False):
        assert self.producer.flush(SECONDS_MAX) == 0
        if not aborted:
            self.last.update(self.pending)
        self.pending = {}

    def expected(self):
        return {key: each for key, each in self.last.items() if each[1] is not None}


def read(gateway, topic="t"):
    """Return {key: (offset, value)} of the last records, and how many records there are."""
    settings = {"group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer(
        {**servers(gateway), **settings, "enable.auto.commit": False, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found, count, ended = {}, 0, False
    while not ended:
        message = consumer.poll(SECONDS_MAX)
        assert message is not None, "the reader did not get to the end"
        if message.error() is not None:
            ended = True
            continue
        count += 1
        found[message.key()] = message.offset(), message.value()
    consumer.close()
    return {key: each for key, each in found.items() if each[1] is not None}, count


def cleaning(gateway, topic="t"):
    code, out, errors = invoke("topic", "cleaning", topic, "-o", "json", bootstrap=at(gateway))
    assert code == 0, errors
    rows = json.loads(out)
    return rows[0] if rows else None


def at(gateway):
    return f"127.0.0.1:{gateway.port}"


def wait_clean(gateway, topic="t"):
    def is_clean():
        row = cleaning(gateway, topic)
        return row if row and row["last_cleaned_ms"] and not row["dirty_bytes"] else None

    return wait_until(is_clean, f"a clean topic {topic}", SECONDS_MAX)


def wait_cleaning(gateway, topic="t"):
    """Wait until the cleaner is in the middle of its work, or done with it."""

    def at_work():
        row = cleaning(gateway, topic)
        return row and (row["progress"] or (row["last_cleaned_ms"] and not row["dirty_bytes"]))

    wait_until(at_work, "progress", SECONDS_MAX)


def test_all_clients_find_the_last_value_of_each_key(tmp_path: Path):
    with Gateway(tmp_path, OPTIONS) as gateway:
        prepared(gateway)
        writer = Writer(gateway)
        writer.write(600)
        writer.flush()
        row = wait_clean(gateway)
        assert (row["state"], row["error"]) == ("idle", None)
        assert row["first_dirty_offset"] > 300
        assert row["last_records_kept"] < row["last_records_read"]
        found, count = read(gateway)
        assert found == writer.expected()
        assert count < 400
        values = {key: value for key, (_, value) in writer.expected().items()}
        assert read_by_java(gateway) == values
        assert metric(gateway, "gateway_topic_partition_dirty_bytes", topic="t") == {("0",): 0}
        code, out, _ = invoke("topic", "cleaning", "t", bootstrap=at(gateway))
        assert (code, out.splitlines()[0].split()[:2]) == (0, ["PARTITION", "STATE"])

        gateway.restart()
        assert read(gateway)[0] == writer.expected()


def read_by_java(gateway, topic="t"):
    """Return {key: value} of the last records, as Kafka's console consumer shows them."""
    words = ["--bootstrap-server", at(gateway), "--topic", topic, "--from-beginning"]
    words += ["--timeout-ms", f"{SECONDS_MAX}000", "--isolation-level", "read_committed"]
    words += ["--max-messages", str(read(gateway, topic)[1])]  # then it ends at once
    for setting in ("print.key=true", "print.value=true", "null.literal=NULL"):
        words += ["--formatter-property", setting]
    lines = java_tools.run(java_tools.CONSOLE_CONSUMER, *words).splitlines()
    found = dict(line.encode().split(b"\t") for line in lines)
    return {key: value for key, value in found.items() if value != b"NULL"}


def test_small_clean_segments_are_merged_and_clients_notice_nothing(tmp_path: Path):
    """Most keys are written again and again, so each round leaves small segments."""
    with Gateway(tmp_path, OPTIONS) as gateway:
        prepared(gateway, **{"file.delete.delay.ms": "1000"})
        writer, kills = Writer(gateway), 0
        for _ in range(20):
            writer.write(300)
            writer.flush()
            if kills < 2 and wait_clean(gateway)["last_segments_merged"]:
                assert read(gateway)[0] == writer.expected()
                gateway.kill()
                gateway.start()
                kills += 1
                assert read(gateway)[0] == writer.expected()
        assert kills >= 1, "nothing was merged"
        values = {key: value for key, (_, value) in writer.expected().items()}
        assert read_by_java(gateway) == values


def test_transactions_of_a_compacted_topic_are_read_whole_or_not_at_all(tmp_path: Path):
    with Gateway(tmp_path, OPTIONS) as gateway:
        prepared(gateway)
        writer = Writer(gateway, **{"transactional.id": "pay"})
        writer.producer.init_transactions(SECONDS_MAX)
        for number in range(12):
            writer.producer.begin_transaction()
            writer.write(50)
            writer.flush(aborted=number % 3 == 1)
            if number % 3 == 1:
                writer.producer.abort_transaction(SECONDS_MAX)
            else:
                writer.producer.commit_transaction(SECONDS_MAX)
        wait_clean(gateway)
        assert read(gateway)[0] == writer.expected()


def test_readers_that_begin_while_the_log_is_cleaned_restore_every_key(tmp_path: Path):
    with Gateway(tmp_path, OPTIONS) as gateway:
        prepared(gateway, **{"cleanup.policy": "compact,delete"})
        alter(AdminClient(servers(gateway)), "log.cleaner.io.max.bytes.per.second", "2e6")
        writer = Writer(gateway)
        meanwhile = 0
        for number in range(ROUNDS_MAX):
            if number >= 4 and meanwhile >= 4:
                break
            writer.write(250)
            writer.flush()
            wait_cleaning(gateway)
            while cleaning(gateway)["progress"]:
                assert read(gateway)[0] == writer.expected()
                meanwhile += 1
        wait_clean(gateway)
        assert read(gateway)[0] == writer.expected()
        assert meanwhile >= 4


def test_an_unknown_topic_and_one_that_does_not_compact(tmp_path: Path):
    with Gateway(tmp_path, OPTIONS) as gateway:
        code, _, errors = invoke("topic", "cleaning", "none", bootstrap=at(gateway))
        assert (code, errors) == (
            1,
            "gateway: Topic 'none' does not exist; see `gateway topic list`\n",
        )
        prepared(gateway, **{"cleanup.policy": "delete"})
        code, out, _ = invoke("topic", "cleaning", "t", bootstrap=at(gateway))
        assert (code, out) == (0, "The cleanup.policy of topic t is not compact.\n")


def children(gateway):
    """Return the process ids of the cleaner of a gateway."""
    pid = gateway.process.pid
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child)
        for child in listed
        if b"gateway.cleaning.child" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_a_killed_cleaner_is_started_again_and_the_topic_gets_clean(tmp_path: Path):
    with Gateway(tmp_path, OPTIONS) as gateway:
        prepared(gateway)
        admin = AdminClient(servers(gateway))
        alter(admin, "log.cleaner.io.max.bytes.per.second", "200000")
        writer = Writer(gateway)
        writer.write(600)
        writer.flush()
        (child,) = wait_until(lambda: children(gateway), "a cleaner at work", SECONDS_MAX)
        wait_until(lambda: (cleaning(gateway) or {}).get("progress"), "progress", SECONDS_MAX)
        os.kill(child, signal.SIGKILL)
        row = wait_until(
            lambda: (row := cleaning(gateway)) and row["error"] and row, "the error", SECONDS_MAX
        )
        assert "CleanerEnded" in row["error"]
        assert read(gateway)[0] == writer.expected()
        alter(admin, "log.cleaner.io.max.bytes.per.second", "1e9")
        wait_clean(gateway)
        assert read(gateway)[0] == writer.expected()

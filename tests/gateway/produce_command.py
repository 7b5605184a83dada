"""Runs `topic produce` as users do, in a process of its own; librdkafka reads back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from confluent_kafka import Consumer, TopicPartition

from tests.command_output import check_output
from tests.gateway.admin_commands import heeding, invoke
from tests.peers import install

_NUMBERS = count()


def created(broker, *options):
    name = f"orders-{next(_NUMBERS)}"
    words = ("topic", "create", name, "-r", "1", *(options or ("-p", "1")))
    code, _, errors = invoke(*words, bootstrap=broker.bootstrap)
    assert code == 0, errors
    return name


def argv(broker, *words):
    program = [install.gateway_python(), "-m", "gateway", "topic", "produce"]
    return [*program, *words, "-b", broker if isinstance(broker, str) else broker.bootstrap]


def produce(broker, *words, data=b""):
    """Exit code, stdout and stderr of the command with this stdin."""
    done = subprocess.run(argv(broker, *words), input=data, capture_output=True, timeout=60)
    errors = done.stderr.decode()
    assert "Traceback" not in errors
    check_output(("topic", "produce", *words), done.stdout.decode(), done.returncode)
    return done.returncode, done.stdout.decode(), errors


@contextmanager
def running(broker, *words, **streams) -> Iterator[subprocess.Popen]:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} | streams
    child = subprocess.Popen(heeding(argv(broker, *words)), stderr=subprocess.PIPE, **streams)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def records(broker, topic, partitions=1):
    """What is in the topic: partition, offset, key, value, headers, timestamp."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    found = []
    for index in range(partitions):
        place = TopicPartition(topic, index, 0)
        _, end = reader.get_watermark_offsets(place, timeout=60)
        reader.assign([place])
        got = []
        while len(got) < end:
            got += reader.consume(min(1000, end - len(got)), 30)
        found += [
            (index, each.offset(), each.key(), each.value(), each.headers(), each.timestamp()[1])
            for each in got
        ]
    reader.close()
    return found


def values(broker, topic, partitions=1):
    return [each[3] for each in records(broker, topic, partitions)]


def end_offset(broker, topic):
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
    reader.close()
    return end

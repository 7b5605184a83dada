"""Goal: an idempotent producer whose newest batches were lost goes on, and writes nothing twice.

Method: stock producers write one batch after the other; the newest ones are taken from the bookie
of a real gateway, the loss is accepted, and the same producers write on. They get
UNKNOWN_PRODUCER_ID for their first batch then.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka.errors import UnknownProducerId

from tests.compat.clients.base import Producer, ProducerOptions, Record
from tests.compat.clients.suite import START_MS
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.compat.clients.with_confluent import Confluent
from tests.compat.conftest import AT_ONCE
from tests.peers import java_tools
from tests.peers.gateway import Gateway
from tests.peers.losses import Loss, lose
from tests.peers.processes import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.proof]

TOPIC = "t"
LOST = range(7, 10)
FIRST, MORE = range(10), range(10, 15)
WAIT_S_MAX = 60.0


def record(number: int) -> Record:
    return Record(None, b"%d" % number, (), START_MS + number)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path / "data", AT_ONCE) as gateway:
        yield gateway


def write(producer: Producer, numbers: range) -> list[int]:
    """Write the records one after the other, and return their offsets."""
    offsets: list[int] = []
    for number in numbers:
        producer.send(TOPIC, [record(number)])
        offsets += producer.wait()
    return offsets


def read_all(gateway: Gateway, count: int) -> list[tuple[int, bytes | None]]:
    """Return the offsets and values that a consumer reads from the start."""
    client = Aiokafka(gateway.bootstrap)
    try:
        found = client.read(TOPIC, 0, count)
        assert client.bounds(TOPIC)[1] == found[-1].offset + 1
        return [(each.offset, each.record.value) for each in found]
    finally:
        client.close()


def expected(first_offset: int = 10) -> list[tuple[int, bytes]]:
    kept = [(at, b"%d" % at) for at in FIRST if at not in LOST]
    return kept + [(first_offset + n, b"%d" % number) for n, number in enumerate(MORE)]


def with_lost(gateway: Gateway, connect: Callable[[str], Confluent | Aiokafka]) -> Producer:
    """Return a producer whose newest batches were lost."""
    client = connect(gateway.bootstrap)
    client.create_topic(TOPIC)
    producer = client.producer(ProducerOptions(idempotent=True, linger_ms=0))
    assert write(producer, FIRST) == list(FIRST)
    lose(gateway, [Loss(TOPIC, LOST[0], LOST[-1])])
    return producer


def test_librdkafka_goes_on(gateway: Gateway):
    producer = with_lost(gateway, Confluent)
    assert write(producer, MORE) == list(MORE)
    producer.close()
    assert read_all(gateway, 12) == expected()


def test_aiokafka_fails_the_batch_and_a_new_producer_goes_on(gateway: Gateway):
    """It has no epoch to raise: InitProducerId v0 gives it a new id for each producer."""
    producer = with_lost(gateway, Aiokafka)
    with pytest.raises(UnknownProducerId):
        write(producer, MORE)
    producer.close()
    client = Aiokafka(gateway.bootstrap)
    again = client.producer(ProducerOptions(idempotent=True, linger_ms=0))
    assert write(again, MORE) == list(MORE)
    again.close()
    client.close()
    assert read_all(gateway, 12) == expected()


def test_the_java_producer_goes_on(gateway: Gateway):
    client = Aiokafka(gateway.bootstrap)
    client.create_topic(TOPIC)
    argv = java_tools.argv(
        java_tools.CONSOLE_PRODUCER,
        *("--bootstrap-server", gateway.bootstrap, "--topic", TOPIC),
        *("--command-property", "enable.idempotence=true", "--sync"),
        *("--message-send-max-retries", "100"),
    )
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as producer:
        assert producer.stdin is not None

        def written(numbers: range) -> None:
            for number in numbers:
                producer.stdin.write(b"%d\n" % number)
                producer.stdin.flush()
                bounds = (0, number + 1)
                wait_until(
                    lambda due=bounds: client.bounds(TOPIC) == due, f"record {number}", WAIT_S_MAX
                )

        written(FIRST)
        lose(gateway, [Loss(TOPIC, LOST[0], LOST[-1])])
        written(MORE)
        producer.stdin.close()
        assert producer.wait(WAIT_S_MAX) == 0
    client.close()
    assert read_all(gateway, 12) == expected()

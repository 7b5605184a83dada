"""Goal: offsets that a client put into a transaction survive kill -9 of the gateway, and are then
committed or dropped with it.

Method: librdkafka copies records in transactions. The gateway is killed between the commit of the
offsets and the end of the transaction, and started again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.peers.gateway import Gateway

RECORDS = 5
WAIT_S = 60.0
QUIET = {"log_level": 0}


def consumer(gateway: Gateway, group: str) -> Consumer:
    settings = {
        "bootstrap.servers": gateway.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    return Consumer(settings | QUIET)


def taken(source: Consumer, count: int) -> list[bytes]:
    """Return the values of the next records."""
    values: list[bytes] = []
    while len(values) < count:
        record = source.poll(WAIT_S)
        assert record is not None, values
        if record.error() is None:
            values.append(record.value() or b"")
    return values


@pytest.mark.parametrize("commit", [True, False])
def test_pending_offsets_survive_a_kill_and_end_with_their_transaction(
    tmp_path: Path, commit: bool
) -> None:
    options = ("--group-initial-rebalance-delay-ms", "0")
    with Gateway(tmp_path / "data", options) as gateway:
        servers = {"bootstrap.servers": gateway.bootstrap} | QUIET
        plain = Producer(servers)
        for number in range(RECORDS):
            plain.produce("in", b"%d" % number)
        assert plain.flush(WAIT_S) == 0
        source = consumer(gateway, "copy")
        source.subscribe(["in"])
        transactional = {"transactional.id": "copier", "transaction.timeout.ms": 900_000}
        copier = Producer(servers | transactional)
        copier.init_transactions(WAIT_S)
        copier.begin_transaction()
        for value in taken(source, RECORDS):
            copier.produce("out", value)
        where = source.position(source.assignment())
        copier.send_offsets_to_transaction(where, source.consumer_group_metadata(), WAIT_S)
        gateway.kill()
        gateway.start()
        (copier.commit_transaction if commit else copier.abort_transaction)(WAIT_S)
        source.close()
        again = consumer(gateway, "copy")
        (found,) = again.committed([TopicPartition("in", 0)], WAIT_S)
        assert (found.error, max(found.offset, 0)) == (None, RECORDS if commit else 0)
        again.close()

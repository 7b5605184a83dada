"""Goal: a streaming query of Spark's reads a cluster through, whoever of its gateways is killed.

Method: three gateways over three bookies and ZooKeeper, all processes. An idempotent producer
writes numbers while a query reads them; the gateway that leads a partition is killed -9 and started
again, several times. Every number that was acknowledged was read, once, at the offset that it was
acknowledged at.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.cluster.ownership_rig import OwnershipRig
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.compat.spark.rig import PARTITIONS, QUERY_S_MAX, Watched
from tests.histories.background import Background
from tests.peers.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.compat,
    pytest.mark.proof,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]

TOPIC = "numbers"
KILLS = 5
PACE_S = 0.002
Place = tuple[int, int]


class Writing(threading.Thread):
    """Writes numbers, one after the other, until told to end; `acked` says where they are."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.enough = threading.Event()
        self.acked: dict[Place, bytes] = {}
        self.failures: list[str] = []
        settings = {"enable.idempotence": True, "linger.ms": 5, "delivery.timeout.ms": 120_000}
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})

    def run(self) -> None:
        number = 0
        while not self.enough.wait(PACE_S):
            partition = number % PARTITIONS
            value = b"%d" % number
            self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._on_acked)
            self._producer.poll(0)
            number += 1
        if self._producer.flush(QUERY_S_MAX):
            self.failures.append("not all were acknowledged")

    def _on_acked(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acked[message.partition(), message.offset()] = message.value()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[OwnershipRig]:
    with Background() as background, OwnershipRig(tmp_path / "cluster", background) as started:
        client = Aiokafka(started.gateways.bootstrap)
        client.create_topic(TOPIC, PARTITIONS)
        client.close()
        yield started


def test_a_query_reads_every_acknowledged_record_once_while_leaders_are_killed(
    spark: SparkSession, rig: OwnershipRig, tmp_path: Path
):
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    keys = [f"{TOPIC}:{partition}" for partition in range(PARTITIONS)]
    reader = spark.readStream.format("kafka").options(subscribe=TOPIC, startingOffsets="earliest")
    frame = reader.option("kafka.bootstrap.servers", rig.gateways.bootstrap).load()
    watched = Watched()
    writing = Writing(rig.gateways.bootstrap)
    writing.start()
    query = watched.start(
        frame.selectExpr("*", "NULL AS headers"), tmp_path / "c", processingTime="0 seconds"
    )

    def wait_read(total: int) -> None:
        def done() -> bool:
            failure = query.exception()
            if failure is not None:
                raise failure
            return watched.count >= total

        wait_until(done, f"{total} records to be read (seed {seed})", QUERY_S_MAX, pause_s=0.1)

    for _ in range(KILLS):
        wait_read(watched.count + 300)
        victim = rig.gateways[draw.choice([*rig.wait_led(keys).values()])]
        rig.kill(victim)
        rig.wait_led(keys)
        rig.gateways.heal()
    writing.enough.set()
    writing.join(2 * QUERY_S_MAX)
    assert writing.failures == []
    wait_read(len(writing.acked))
    query.stop()
    found = [(one[:2], one.record.value) for one in watched.records]
    assert found == sorted(writing.acked.items()), f"seed {seed}"

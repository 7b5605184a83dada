"""Goal: an acknowledgement outlives kill -9, and a restart disturbs no group.

Method: the real process under load of idempotent librdkafka producers, killed at drawn moments and
started again on the same directory, many times; then everything is read back and compared with
what the producers were told. A two-member group consumes all the while. `CRASH_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.load import Load, judge, read_all
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

KILLS, KILLS_OF_PROOF = 3, 20
PARTITIONS = 3


class Member:
    """One consumer of a group, in a thread; counts what it was assigned and what it read."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.assignments: list[set[int]] = []
        self.values: set[bytes] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "session.timeout.ms": 30_000,
                "heartbeat.interval.ms": 300,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _assigned(self, _consumer: Consumer, partitions: list) -> None:
        self.assignments.append({each.partition for each in partitions})

    def _run(self) -> None:
        while not self._ending.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self.values.add(message.value().rstrip(b"."))

    def end(self) -> None:
        self._ending.set()
        self._thread.join(60)
        self._consumer.close()


def make_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        created.result(30.0)


def settled(members: list[Member]) -> bool:
    """The group has all partitions shared between its two members."""
    held = [member.assignments[-1] for member in members if member.assignments]
    if sum(map(len, held)) > PARTITIONS:  # the first member still holds them all
        return False
    return len(held) == 2 and all(held) and set.union(*held) == set(range(PARTITIONS))


ONE, URING, THREE = ("--io", "off"), ("--io", "uring"), ("--bookies", "3")
RUNS = [
    pytest.param(URING, KILLS, id="one-bookie-io-uring"),
    pytest.param(THREE, KILLS, marks=pytest.mark.proof, id="three-bookies"),
    pytest.param(ONE, KILLS_OF_PROOF, marks=pytest.mark.proof, id="one-bookie-proof"),
    pytest.param(URING, KILLS_OF_PROOF, marks=pytest.mark.proof, id="one-bookie-io-uring-proof"),
]


@pytest.mark.parametrize(("options", "kills"), RUNS)
def test_what_was_acknowledged_survives_kill_9(
    tmp_path: Path, options: tuple[str, ...], kills: int
) -> None:
    seed = int(os.environ.get("CRASH_SEED", "20261121"))
    draw = random.Random(f"{seed}:{options}")
    print(f"CRASH_SEED={seed}")
    pause = threading.Event()
    with Gateway(tmp_path / "data", options) as gateway:
        make_topic(gateway.bootstrap, "load")
        members = [Member(gateway.bootstrap, "load", "readers") for _ in range(2)]
        wait_until(lambda: settled(members), "the group to settle", 60.0)
        before = [len(member.assignments) for member in members]
        loads = [Load(gateway.bootstrap, "load", f"p{n}") for n in range(2)]
        for _ in range(kills):
            seen = sum(len(load.told.offsets) for load in loads)
            wait_until(
                lambda at_least=seen + 1: sum(len(x.told.offsets) for x in loads) > at_least,
                "acknowledgements after the restart",
                60.0,
            )
            pause.wait(draw.uniform(0.02, 0.5))
            gateway.kill()
            gateway.start()
        told = [load.end() for load in loads]
        read = judge(read_all(gateway.bootstrap, "load", PARTITIONS), told)
        acked = {value for each in told for value in each.offsets}
        wait_until(
            lambda: acked <= set.union(*(member.values for member in members)),
            "the group to have read every acknowledged record",
            60.0,
        )
        after = [len(member.assignments) for member in members]
        for member in members:  # the first to leave gives its partitions to the other
            member.end()
    print(f"{kills} kills, {len(acked)} acknowledged, {read} read")
    assert len(acked) > kills
    assert after == before, "a restart rebalanced"

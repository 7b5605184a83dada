"""Goal: 20 members of the consumer protocol, of Java, librdkafka and franz-go, come and go while
the coordinator of their group is killed twice. No record is lost, and none comes twice within an
epoch.

Method: three gateways, three bookies and ZooKeeper as processes. A producer writes all the time,
and notes what was acknowledged. Each member notes what it is assigned, what it reads and what it
gives back; `tests/histories/tenures.py` checks it. `MEMBERS_S=300` lets it run for so many seconds.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

from tests.cluster.ownership_rig import OwnershipRig
from tests.gateway.test_dev import ask
from tests.histories.background import Background
from tests.histories.tenures import check, reading_of, redelivered
from tests.histories.workload import make_topic
from tests.peers.members import Members, events
from tests.peers.processes import wait_until

SECONDS = float(os.environ.get("MEMBERS_S", "60"))
pytestmark = [pytest.mark.proof, pytest.mark.alone, pytest.mark.timeout(600 + SECONDS)]

TOPIC = GROUP = "come-and-go"
PARTITIONS, COPIES = 24, 3
COUNTS = {"java": 6, "librdkafka": 7, "franz-go": 7}
SHORTEST_S, LONGEST_S = 8.0, 30.0  # of a member's life; heartbeats are 5 s apart
PACE_S = 0.01  # between two records
KILLS = 2
FIND_COORDINATOR = 10
ENOUGH_S_MAX = 180.0
LEAVE_S_MAX = 60.0


class Writer(threading.Thread):
    """A producer that writes until it is stopped, and notes what was acknowledged."""

    def __init__(self, bootstrap):
        super().__init__()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._ending = threading.Event()
        self.acknowledged, self.errors = [], []

    def run(self):
        number = 0
        while not self._ending.wait(PACE_S):
            partition = number % PARTITIONS
            value = b"%d" % number
            self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
        self._producer.flush(ENOUGH_S_MAX)

    def _delivered(self, error, record):
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged.append((record.partition(), record.offset()))

    def end(self):
        self._ending.set()
        self.join()


def coordinator_of(gateways, but=None):
    """Return the coordinator of the group as a running gateway names it, or None."""
    for gateway in gateways:
        if gateway.running:
            body = {"key_type": 0, "coordinator_keys": [GROUP]}
            try:
                (found,) = ask(gateway.port, FIND_COORDINATOR, 4, body).coordinators
            except OSError:
                continue
            if not found.error_code and gateways[found.node_id] is not but:
                return gateways[found.node_id]
    return None


def kill_the_coordinator(rig):
    """Kill it by SIGKILL, wait until another gateway is the coordinator, and start it again."""
    victim = wait_until(lambda: coordinator_of(rig.gateways), "a coordinator", ENOUGH_S_MAX)
    rig.kill(victim)
    wait_until(
        lambda: coordinator_of(rig.gateways, victim),
        "another coordinator",
        ENOUGH_S_MAX,
        pause_s=0.2,
    )
    victim.begin().wait_started()
    return victim.node_id


def client_of(member):
    """Return the client of a member by its name, which ends with its place and its life."""
    return member.rsplit("-", 1)[0]


def rest(seconds):
    threading.Event().wait(seconds)


def run_members(rig, directory):
    """Let all members live through the kills. Returns their events, and what was acknowledged."""
    writer = Writer(rig.gateways.bootstrap)
    killed = []
    with ExitStack() as stack:
        members = {
            client: stack.enter_context(
                Members(
                    brokers=rig.gateways.bootstrap,
                    group=GROUP,
                    topic=TOPIC,
                    count=count,
                    shortest=SHORTEST_S,
                    longest=LONGEST_S,
                ).started(client, directory)
            )
            for client, count in COUNTS.items()
        }
        writer.start()
        try:
            for _ in range(KILLS):
                rest(SECONDS / (KILLS + 1))
                killed.append(kill_the_coordinator(rig))
            rest(SECONDS / (KILLS + 1))
        finally:
            writer.end()

        def noted():
            return [each for process in members.values() for each in events(process.output())]

        wanted = set(writer.acknowledged)

        def all_read():
            return wanted <= {
                (each.partitions[0], offset) for each in noted() for offset in each.offsets
            }

        wait_until(all_read, "members to read all", ENOUGH_S_MAX, pause_s=1.0)
        for process in members.values():
            assert process.stop(LEAVE_S_MAX) in (0, 143), process.output()[-2000:]
        return noted(), writer, killed


def test_no_record_is_lost_or_comes_twice_within_an_epoch(tmp_path):
    with Background() as background:
        rig = OwnershipRig(tmp_path, background)
        with rig:
            keys = make_topic(rig.gateways.bootstrap, TOPIC, PARTITIONS, COPIES)
            rig.wait_led(keys)
            seen, writer, killed = run_members(rig, tmp_path)
    assert writer.errors == []
    lives = Counter(client_of(name) for name in {each.member for each in seen})
    reads: Counter[str] = Counter()
    for each in seen:
        reads[client_of(each.member)] += len(each.offsets)
    tenures = reading_of(seen).tenures
    print(
        json.dumps(
            {
                "seconds": SECONDS,
                "killed": killed,
                "acknowledged": len(writer.acknowledged),
                "redelivered": redelivered(seen),
                "members": lives,
                "read": reads,
                "tenures": len(tenures),
                "lost_tenures": sum(each.was_lost for each in tenures),
                "epochs": len({each.epoch for each in seen if each.kind == "read"}),
                "errors": Counter(each.text[:80] for each in seen if each.kind == "error"),
            }
        )
    )
    faults = check(seen, writer.acknowledged)
    assert faults == [], faults[:20]
    assert len(writer.acknowledged) > 10 * SECONDS
    assert all(lives[client] > count for client, count in COUNTS.items()), lives
    assert all(reads[client] > SECONDS for client in COUNTS), reads

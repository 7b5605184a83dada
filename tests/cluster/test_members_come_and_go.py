"""Goal: 20 members of a group of either protocol, of Java, librdkafka and franz-go, come and go
while the coordinator and members are killed by SIGKILL twice. No record is lost, and none comes
twice within an epoch. Others take the partitions of a killed member over only after its session,
and go on at the committed offsets.

Method: three gateways, three bookies and ZooKeeper as processes. A producer writes all the time,
and notes what was acknowledged. Each member notes what it is assigned, what it reads and what it
gives back; `tests/histories/tenures.py` checks it. In each round, one member of each client is
killed, and then the coordinator: in a long run after the sessions of these members, in a short one
before. `MEMBERS_S=300` lets it run for so many seconds.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from tests.cluster.killed_members import KilledMembers, is_killed
from tests.cluster.ownership_rig import OwnershipRig
from tests.gateway.test_dev import ask
from tests.histories.background import Background
from tests.histories.tenures import (
    Event,
    check,
    check_takeovers,
    reading_of,
    redelivered,
    takeovers,
)
from tests.histories.workload import make_topic
from tests.peers.members import Members, events
from tests.peers.processes import wait_until

SECONDS = float(os.environ.get("MEMBERS_S", "60"))
pytestmark = [pytest.mark.proof, pytest.mark.alone, pytest.mark.timeout(600 + SECONDS)]

TOPIC = GROUP = "come-and-go"
PARTITIONS, COPIES = 24, 3
COUNTS = {"java": 5, "librdkafka": 6, "franz-go": 6}  # and of each client one to be killed
# The shortest and the longest life of a member. Each change of a classic group stops all its
# members, so theirs are longer.
LIVES_S = {"consumer": (8.0, 30.0), "classic": (15.0, 45.0)}
SESSIONS_S = {"consumer": 45.0, "classic": 10.0}
HEARTBEATS_S = {"consumer": 5.0, "classic": 1.0}
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
    """Return the client of a member by its name, which begins with it."""
    return next(client for client in COUNTS if member.startswith(f"{client}-"))


def rest(seconds):
    threading.Event().wait(seconds)


def members_of(rig, protocol):
    shortest_s, longest_s = LIVES_S[protocol]
    return Members(
        brokers=rig.gateways.bootstrap,
        group=GROUP,
        topic=TOPIC,
        count=1,
        shortest=shortest_s,
        longest=longest_s,
        protocol=protocol,
        session_ms=int(SESSIONS_S[protocol] * 1000),
    )


class Run(NamedTuple):
    """A run: what members noted, the writer, the killed coordinators, and what was committed."""

    events: list[Event]
    writer: Writer
    killed: list[int]
    committed: dict[tuple[str, int], int]


def run_members(rig, directory, protocol):
    """Let all members live through the kills. Returns what they noted, and what was written."""
    writer = Writer(rig.gateways.bootstrap)
    wanted, killed = members_of(rig, protocol), []
    with ExitStack() as stack:
        members = {
            client: stack.enter_context(replace(wanted, count=count).started(client, directory))
            for client, count in COUNTS.items()
        }
        doomed = KilledMembers(wanted, directory, stack)
        writer.start()
        try:
            for _ in range(KILLS):
                doomed.start()
                rest(SECONDS / (KILLS + 1) / 2)
                doomed.kill()
                rest(SECONDS / (KILLS + 1) / 2)
                killed.append(kill_the_coordinator(rig))
            rest(SECONDS / (KILLS + 1))
        finally:
            writer.end()

        def noted():
            living = [each for process in members.values() for each in events(process.output())]
            return [*living, *doomed.events()]

        written = set(writer.acknowledged)

        def all_read():
            return written <= {
                (each.partitions[0], offset) for each in noted() for offset in each.offsets
            }

        wait_until(all_read, "members to read all", ENOUGH_S_MAX, pause_s=1.0)
        for process in members.values():
            assert process.stop(LEAVE_S_MAX) in (0, 143), process.output()[-2000:]
        return Run(noted(), writer, killed, doomed.committed)


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_no_record_is_lost_or_comes_twice_within_an_epoch(tmp_path, protocol):
    with Background() as background:
        rig = OwnershipRig(tmp_path, background)
        with rig:
            keys = make_topic(rig.gateways.bootstrap, TOPIC, PARTITIONS, COPIES)
            rig.wait_led(keys)
            run = run_members(rig, tmp_path, protocol)
    seen, writer, killed, committed = run
    assert writer.errors == []
    names = {each.member for each in seen}
    lives = Counter(client_of(name) for name in names if not is_killed(name))
    reads: Counter[str] = Counter()
    for each in seen:
        reads[client_of(each.member)] += len(each.offsets)
    tenures = reading_of(seen).tenures
    taken = takeovers(seen)
    times_s = sorted(round(each.after_us / 1e6, 1) for each in taken if each.later)
    print(
        json.dumps(
            {
                "protocol": protocol,
                "seconds": SECONDS,
                "killed": killed,
                "acknowledged": len(writer.acknowledged),
                "redelivered": redelivered(seen),
                "members": lives,
                "read": reads,
                "tenures": len(tenures),
                "lost_tenures": sum(each.was_lost for each in tenures),
                "epochs": len({each.epoch for each in seen if each.kind == "read"}),
                "killed_members": sum(map(is_killed, names)),
                "taken_over": len(taken),
                "after_s": times_s and [times_s[0], times_s[-1]],
                "errors": Counter(each.text[:80] for each in seen if each.kind == "error"),
            }
        )
    )
    wait_s_min = SESSIONS_S[protocol] - 2 * HEARTBEATS_S[protocol] - 1.0
    faults = check(seen, writer.acknowledged)
    faults += check_takeovers(taken, committed, int(wait_s_min * 1e6))
    assert faults == [], faults[:20]
    assert len(writer.acknowledged) > 10 * SECONDS
    assert all(lives[client] > count for client, count in COUNTS.items()), lives
    assert all(reads[client] > SECONDS for client in COUNTS), reads
    assert {client_of(each.killed.member) for each in taken} == COUNTS.keys()

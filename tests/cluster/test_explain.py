"""Goal: `gateway explain` finds each copy in a cluster of processes, also while a bookie is dead.

Method: ZooKeeper, four bookies, an auditor and a gateway; one bookie is killed with kill -9. Over
TCP and over gRPC, each explanation is compared with a walk over the log files of all bookies,
before the kill, after the ensemble change, and after the repair.
"""

from __future__ import annotations

import json
from itertools import product

import pytest
from confluent_kafka import Producer

from tests.cluster.world import World, wait
from tests.gateway.admin_commands import invoke
from tests.gateway.explain_walk import check_explanation
from tests.histories import workload
from tests.ledger.log_walk import files_in
from tests.peers.gateway import ClusterGateway

pytestmark = pytest.mark.proof

SESSION_MS = 20_000  # no test waits for its end


def produce(gateway, count):
    producer = Producer({"bootstrap.servers": gateway.bootstrap, "linger.ms": 0})
    for number in range(count):
        producer.produce("orders", b"v" * 100, b"%d" % number, partition=0)
        assert producer.flush(60) == 0


def files_of(world):
    return {bookie.id: files_in(bookie.data) for bookie in world.bookies}


def explained(gateway, world, offset, transport="tcp"):
    """An explanation during which no bookie wrote, such as a control record."""
    words = ["explain", "orders", "0", str(offset), "-o", "json", "--bookie-transport", transport]
    for _ in range(20):
        before = files_of(world)
        code, out, errors = invoke(*words, bootstrap=gateway.bootstrap)
        assert (code, errors) == (0, "")
        if files_of(world) == before:
            found = json.loads(out)
            check_explanation(found, before)
            return found
    raise AssertionError("bookies write all the time")


def bookies_of(found):
    return {row["bookie"] for row in found["copies"]}


def test_each_copy_is_found_before_and_after_a_bookie_dies_and_after_the_repair(tmp_path):
    with World(tmp_path, 4, proxied=False) as world:
        servers = world.zookeeper.servers
        with ClusterGateway(tmp_path / "gateway", servers, session_ms=SESSION_MS) as gateway:
            workload.make_topic(gateway.bootstrap, "orders", 1, 3, {})
            produce(gateway, 20)
            for transport, offset in product(("tcp", "grpc"), (0, 19)):
                before = explained(gateway, world, offset, transport)
                assert [row["has"] for row in before["copies"]] == ["yes"] * 3
            dead = next(each for each in world.bookies if each.id in bookies_of(before))
            dead.kill()
            wait(lambda: dead.id not in world.registered(), "the dead bookie to be away")
            produce(gateway, 20)
            old, new = explained(gateway, world, 0), explained(gateway, world, 39)
            assert [r["status"] for r in old["copies"] if r["bookie"] == dead.id] == ["away"]
            assert sorted(row["has"] for row in old["copies"]) == ["unknown", "yes", "yes"]
            assert dead.id not in bookies_of(new)
        world.close_all()
        world.auditor()
        wait(lambda: dead.id not in world.members(), "every lost copy to be made anew", 60.0)
        with ClusterGateway(tmp_path / "gateway", servers, session_ms=SESSION_MS) as gateway:
            for offset in (0, 19, 39):
                repaired = explained(gateway, world, offset)
                assert [row["has"] for row in repaired["copies"]] == ["yes"] * 3
                assert dead.id not in bookies_of(repaired)

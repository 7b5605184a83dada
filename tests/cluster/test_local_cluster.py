"""Goal: `gateway cluster` starts a cluster, kills parts of it, starts these again, and stops it.

Method: one cluster of two gateways and two bookies, by the commands as users run them; each test
leaves it running.
"""

from __future__ import annotations

import json
import shutil

import pytest

from tests.gateway.admin_commands import invoke
from tests.peers import install
from tests.peers.local_cluster import UP_S_MAX, LocalCluster
from tests.peers.processes import Process, wait_until

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.cluster]
NAMES = ["zookeeper", "bookie-1", "bookie-2", "audit", "gateway-1", "gateway-2"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    running = LocalCluster(tmp_path_factory.mktemp("local") / "cluster")
    running.up()
    yield running
    running.run("down")


def test_it_serves_and_says_where(cluster):
    found = cluster.up()
    assert [row["name"] for row in found["processes"]] == NAMES
    assert {row["state"] for row in found["processes"]} == {"running"}
    assert found["bootstrap"] == f"127.0.0.1:{cluster.port},127.0.0.1:{cluster.port + 1}"
    code, out, errors = invoke("topic", "create", "t", "-r", "2", bootstrap=found["bootstrap"])
    assert (code, out, errors) == (0, "Created topic t.\n", "")
    code, out, _ = invoke("cluster", "health", "-o", "json", bootstrap=found["bootstrap"])
    assert (code, json.loads(out)["healthy"]) == (0, True)
    code, out, _ = invoke("cluster", "info", "-o", "json", bootstrap=found["bootstrap"])
    info = json.loads(out)
    assert [row["node"] for row in info["gateways"]] == [1, 2]
    assert [row["status"] for row in info["bookies"]] == ["rw", "rw"]


def test_what_was_killed_is_dead_and_found_and_up_starts_it_again(cluster):
    before = cluster.pids()
    assert cluster.run("kill", "bookie-1", "gateway-2") == (0, "Killed bookie-1, gateway-2.\n", "")
    wait_until(lambda: cluster.states()["bookie-1"] == "dead", "the bookie to end")
    code, _, errors = cluster.run("status")
    assert (code, errors) == (
        1,
        "gateway: dead: bookie-1, gateway-2; `gateway cluster up` starts what has ended\n",
    )
    bootstrap = f"127.0.0.1:{cluster.port}"
    code, out, _ = invoke("cluster", "health", "-o", "json", bootstrap=bootstrap)
    findings = [row["finding"] or "" for row in json.loads(out)["checks"]]
    assert code == 1
    assert any("bookie-1" in text for text in findings), findings
    cluster.up()
    after = cluster.pids()
    changed = {name for name in NAMES if before[name] != after[name]}
    assert changed == {"bookie-1", "gateway-2"}


@pytest.mark.proof
def test_two_starts_at_once_start_each_process_once(cluster, tmp_path):
    cluster.run("kill", "gateway-1")
    both = [
        Process(cluster.words("up", "-o", "json"), tmp_path / f"{at}", cluster.environment)
        for at in range(2)
    ]
    assert [each.wait_exit(UP_S_MAX) for each in both] == [0, 0]
    first, second = (json.loads(each.output()) for each in both)
    assert [row["pid"] for row in first["processes"]] == [row["pid"] for row in second["processes"]]


@pytest.mark.proof
def test_it_stops_and_leaves_its_data(cluster):
    bootstrap = f"127.0.0.1:{cluster.port}"
    assert invoke("topic", "create", "kept", "-r", "2", bootstrap=bootstrap)[0] == 0
    code, out, errors = cluster.run("down")
    assert (code, out, errors) == (0, "Stopped 6 processes.\n", "")
    assert set(cluster.states().values()) == {"stopped"}
    assert not list(cluster.directory.glob("*.pid"))
    cluster.up()
    code, out, _ = invoke("topic", "list", "-o", "json", bootstrap=bootstrap)
    assert "kept" in [row["name"] for row in json.loads(out)]


@pytest.mark.proof
def test_a_start_that_fails_leaves_no_process(tmp_path):
    failing = LocalCluster(tmp_path / "c")
    shutil.copytree(install.zookeeper_jars(), tmp_path / "jars")
    for jar in (tmp_path / "jars").glob("zookeeper-jute*.jar"):
        jar.unlink()
    failing.environment["GATEWAY_ZOOKEEPER_JARS"] = str(tmp_path / "jars")
    code, out, errors = failing.run("up", "--port", str(failing.port))
    assert (code, out) == (1, "")
    assert "zookeeper ended with 1 while it started" in errors
    assert failing.pids() == {}

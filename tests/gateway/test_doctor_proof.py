"""Goal: each check of `gateway doctor` fails, and names the fault, when that fault is real.

Method: processes are stopped by SIGSTOP and killed, get another clock by faketime, a small mounted
disk, slow syncs by strace, a name that does not resolve, another release, and a ZooKeeper that
grants short sessions. Apache Kafka is diagnosed too, whole and without a broker.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.gateway.admin_commands import consumer, invoke, produced
from tests.house import ROOT
from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import ClusterGateway, Gateway
from tests.peers.kafka import ApacheKafkaCluster
from tests.peers.processes import wait_until
from tests.peers.zookeeper import ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.proof]
MIB = 1 << 20
OURS_ONLY = ("clocks", "settings", "versions", "zookeeper")
NO_FILE = {"sync": "unknown", "disk": "unknown"}  # without --data


def doctor(bootstrap, *words):
    """The exit code, and each row by its check."""
    code, out, _ = invoke("doctor", "-o", "json", *words, bootstrap=bootstrap)
    return code, {row["check"]: row for row in json.loads(out)}


def only(*names):
    return [word for name in names for word in ("--only", name)]


def states(rows):
    return {name: row["state"] for name, row in rows.items()}


def create(bootstrap, name, partitions, copies):
    topic = NewTopic(name, partitions, copies)
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([topic])[name].result(60)


# one process


def test_a_stopped_gateway_fails_bootstrap_and_hangs_no_check(tmp_path):
    with Gateway(tmp_path / "data") as gateway:
        gateway.pause()
        begun_s = time.monotonic()
        code, rows = doctor(gateway.bootstrap)
        took_s = time.monotonic() - begun_s
        gateway.resume()
        assert (code, rows["bootstrap"]["state"]) == (69, "fail")
        assert "did not answer within 4 s" in rows["bootstrap"]["finding"]
        assert took_s < 20
        assert doctor(gateway.bootstrap, *only("bootstrap"))[0] == 0


@pytest.mark.parametrize(
    ("shift", "code", "state", "words"),
    [
        ("+10s", 1, "fail", r"gateway 0 is (9.9\d?|10|10.\d) s ahead of this machine"),
        ("-2s", 0, "warn", r"gateway 0 is (1.9\d?|2|2.\d\d?) s behind this machine"),
    ],
)
def test_a_wrong_clock_is_found(tmp_path, shift, code, state, words):
    with Gateway(tmp_path / "data", ["--no-ledger-port"]) as gateway:
        assert doctor(gateway.bootstrap, *only("clocks"))[1]["clocks"]["state"] != "fail"
        gateway.environment = {
            "LD_PRELOAD": install.faketime(),
            "FAKETIME": shift,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        gateway.restart()
        found, rows = doctor(gateway.bootstrap, *only("clocks"))
        assert (found, rows["clocks"]["state"]) == (code, state), rows
        assert re.fullmatch(words, rows["clocks"]["finding"])


def test_a_wrong_clock_of_a_bookie_is_found(tmp_path):
    environment = {
        "LD_PRELOAD": install.faketime(),
        "FAKETIME": "+6s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with (
        ZooKeeper(tmp_path / "zookeeper") as zookeeper,
        BookieProcess(tmp_path / "b1", zookeeper.servers, name="b1"),
    ):
        late = BookieProcess(tmp_path / "b2", zookeeper.servers, name="b2")
        late.environment = environment
        with late, ClusterGateway(tmp_path / "g", zookeeper.servers) as gateway:
            code, rows = doctor(gateway.bootstrap, *only("clocks"))
            assert (code, rows["clocks"]["state"]) == (1, "fail"), rows
            found = rows["clocks"]["finding"]
            assert re.match(rf"bookie {late.id} is (5.9\d?|6|6.\d\d?) s ahead of ", found)


def test_slow_syncs_fail(tmp_path):
    argv = [install.strace(), "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"]
    argv += ["-e", "inject=fdatasync:delay_exit=120000"]
    argv += [install.gateway_python(), "-m", "gateway", "doctor", *only("sync"), "-o", "json"]
    done = subprocess.run(
        [*argv, "--data", str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["state"] == "fail"
    assert "50 syncs of 64 KiB took 1" in row["finding"]


def test_a_bookie_on_a_small_disk_fails_disk_and_racks(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=280m", "tmpfs", place], check=True)
    try:
        with Gateway(place / "data") as gateway:
            assert states(doctor(gateway.bootstrap, *only("racks"))[1]) == {"racks": "ok"}
            (place / "other").write_bytes(bytes(60 * MIB))

            def fails():
                code, rows = doctor(gateway.bootstrap, *only("disk", "racks"))
                return rows if code == 1 and rows["racks"]["state"] == "fail" else None

            rows = wait_until(fails, "the bookie to take no writes", 20, pause_s=0.5)
            assert "takes no writes" in rows["disk"]["finding"]
            assert "0 bookies take writes" in rows["racks"]["finding"]
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_wrong_advertised_name_fails_address_and_dns(tmp_path):
    with Gateway(tmp_path / "data", ["--advertised-host", "no-such-host.invalid"]) as gateway:
        code, rows = doctor(gateway.bootstrap, *only("bootstrap", "address", "dns"))
        assert code == 1
        assert states(rows) == {"bootstrap": "ok", "address": "fail", "dns": "fail"}
        assert "no-such-host.invalid" in rows["address"]["finding"]


def test_another_release_fails_versions(tmp_path):
    tree = tmp_path / "tree"
    for package in ("gateway", "ledger", "subscriptions"):
        shutil.copytree(ROOT / package, tree / package)
    file = tree / "ledger/command_line/version.py"
    file.write_text(file.read_text().replace('__version__ = "', '__version__ = "9.'))
    gateway = Gateway(tmp_path / "data")
    gateway.environment = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    with gateway:
        code, rows = doctor(gateway.bootstrap, *only("versions"))
    assert (code, rows["versions"]["state"]) == (1, "fail")
    assert "9.0" in rows["versions"]["finding"]


def test_a_group_with_members_that_is_an_hour_behind_fails(tmp_path):
    with Gateway(tmp_path / "data") as gateway:
        produced(gateway, "late", 10, timestamp=int(time.time() * 1000) - 7_200_000)
        reader = consumer(gateway, "behind")
        reader.subscribe(["late"])
        message = wait_until(lambda: reader.poll(0.5), "a record", 60)
        reader.commit(message=message, asynchronous=False)
        code, rows = doctor(gateway.bootstrap, *only("lag"))
        reader.close()
    assert (code, rows["lag"]["state"]) == (1, "fail")
    assert rows["lag"]["finding"] == "group behind is 2 h behind in late-0 (9 records)"


# a cluster


def test_bookies_that_stop_and_die_are_found(tmp_path):
    with (
        ZooKeeper(tmp_path / "zookeeper") as zookeeper,
        BookieProcess(tmp_path / "b1", zookeeper.servers, name="b1") as first,
        BookieProcess(tmp_path / "b2", zookeeper.servers, name="b2") as second,
        ClusterGateway(tmp_path / "g", zookeeper.servers) as gateway,
    ):
        create(gateway.bootstrap, "orders", 1, 2)
        produced(gateway, "orders", 10)
        code, rows = doctor(gateway.bootstrap)
        wanted = dict.fromkeys(rows, "ok") | {"sync": "unknown"}
        wanted |= {"racks": "warn", "ledgers": "warn"}  # no spare bookie, and no auditor
        assert code == 0
        found = states(rows) | {"files": "ok", "zookeeper": "ok", "disk": "ok"}
        assert found == wanted, rows
        name = second.id
        second.pause()
        code, rows = doctor(gateway.bootstrap, *only("clocks", "disk"))
        if name in rows["clocks"]["finding"]:  # else its session had ended already
            assert states(rows)["clocks"] == "unknown"
        gone = only("racks", "ledgers")

        def racks_fail():
            return doctor(gateway.bootstrap, *gone)[1]["racks"]["state"] == "fail"

        wait_until(racks_fail, "the session of the stopped bookie to end", 30, pause_s=0.5)
        rows = doctor(gateway.bootstrap, *gone)[1]
        assert f"absent, and named by ledgers: {name}" in rows["ledgers"]["finding"]
        first.kill()

        def ledgers_fail():
            return doctor(gateway.bootstrap, *gone)[1]["ledgers"]["state"] == "fail"

        wait_until(ledgers_fail, "the session of the killed bookie to end", 30, pause_s=0.5)
        finding = doctor(gateway.bootstrap, *gone)[1]["ledgers"]["finding"]
        assert "entries without a bookie that is present" in finding


class Impatient(ZooKeeper):
    """It grants sessions of at most 3 s."""

    def more_settings(self):
        return "maxSessionTimeout=3000\n"


def test_short_sessions_and_a_stopped_zookeeper_fail(tmp_path):
    with (
        Impatient(tmp_path / "zookeeper") as zookeeper,
        BookieProcess(tmp_path / "b1", zookeeper.servers, name="b1"),
        ClusterGateway(tmp_path / "g", zookeeper.servers, session_ms=8_000) as gateway,
    ):
        code, rows = doctor(gateway.bootstrap, *only("zookeeper"))
        assert (code, rows["zookeeper"]["state"]) == (1, "fail")
        assert "this command: granted 3 s instead of 10 s" in rows["zookeeper"]["finding"]
        assert "gateway 0: granted 3 s instead of 8 s" in rows["zookeeper"]["finding"]
        place = ["--zookeeper", zookeeper.servers]
        code, rows = doctor("127.0.0.1:1", *only("bootstrap", "racks"), *place)
        assert (code, states(rows)) == (1, {"bootstrap": "fail", "racks": "ok"})
        zookeeper.pause()
        code, rows = doctor(gateway.bootstrap, *only("zookeeper"), *place)
        zookeeper.resume()
        assert rows["zookeeper"]["state"] == "fail"
        assert "no ZooKeeper" in rows["zookeeper"]["finding"]


# Apache Kafka


def test_apache_kafka_is_diagnosed_and_a_dead_broker_leaves_partitions_without_leaders(tmp_path):
    with ApacheKafkaCluster(tmp_path, heap="384m") as kafka:
        bootstrap = kafka.bootstrap
        create(bootstrap, "single", 6, 1)
        create(bootstrap, "orders", 3, 3)
        code, rows = doctor(bootstrap)
        assert code == 0, rows
        assert {name: rows[name]["state"] for name in OURS_ONLY} == dict.fromkeys(
            OURS_ONLY, "unknown"
        )
        others = {name: row for name, row in rows.items() if name not in (*OURS_ONLY, *NO_FILE)}
        assert {name for name, row in others.items() if row["state"] == "fail"} == set()
        assert others["leaders"]["state"] == "ok"
        kafka.brokers[2].kill()

        def fails():
            code, rows = doctor(bootstrap, *only("bootstrap", "leaders", "ledgers", "racks"))
            return rows if code == 1 and rows["leaders"]["state"] == "fail" else None

        rows = wait_until(fails, "the partitions to lose their leader", 60, pause_s=1)
        assert "single-" in rows["leaders"]["finding"]
        assert rows["ledgers"]["state"] in ("warn", "fail")
        assert rows["racks"]["state"] == "fail"

"""Goal: the compose file is what it says, and `make cluster` runs just the commands it has.

Method: the file against the published schema of compose files; each command of ours through the
parser of the program that it starts; then the whole of it as local processes, under a stock client.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

import check_jsonschema
import jsonschema
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from ruamel.yaml import YAML

from gateway.process import serve
from ledger.command_line.program import flags_of
from ledger.node import audit
from ledger.node import serve as bookie
from ledger.node.options import NodeSettings
from tests.histories.workload import make_topic
from tests.peers import compose
from tests.peers.bookie import SHARED_DISK
from tests.peers.compose import LocalCluster, local_command, services, with_one_listener
from tests.peers.gateway import ports_in_a_row
from tests.peers.processes import Process, free_port, wait_until
from tests.peers.zookeeper import ZooKeeper

SCHEMA = Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor/compose-spec.json"
READ_S_MAX = 60.0
OURS = sorted(set(services()) - {"zookeeper"})


def arguments(name):
    """The words after `python -m <package> <command>`."""
    words = services()[name]["command"]
    assert words[:2] == ["python", "-m"], words
    return words[2], words[3], words[4:]


def test_the_file_keeps_to_the_schema_of_compose_files():
    document = YAML(typ="safe").load(compose.FILE)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert list(document["services"]) == [
        "zookeeper",
        *(f"bookie-{number}" for number in (1, 2, 3, 4)),
        "audit",
        *(f"gateway-{number}" for number in (1, 2, 3)),
    ]


def test_the_commands_are_read_without_a_library_as_with_one():
    read = {name: row["command"] for name, row in services().items() if "command" in row}
    assert compose.commands() == read


def test_make_cluster_needs_no_module_of_the_development_environment():
    script = "import tests.peers.compose, sys; print(*sorted(sys.modules))"
    words = [compose.install.gateway_python(), "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, cwd=compose.install.ROOT)
    assert done.returncode == 0, done.stderr
    assert not {"ruamel", "pytest", "hypothesis", "confluent_kafka"} & set(done.stdout.split())


def test_a_zookeeper_whose_port_another_has_taken_does_not_seem_to_serve(tmp_path):
    with ZooKeeper(tmp_path / "first") as first:
        second = ZooKeeper(tmp_path / "second")
        second.port = first.port
        with pytest.raises(RuntimeError, match="ended with"):
            second.start()


def test_every_command_is_one_that_its_program_takes():
    for name in OURS:
        program, command, words = arguments(name)
        if program == "gateway":
            assert command == "serve"
            assert not serve.faults_of(serve.settings_of(flags_of(serve.serve, words)))
        elif command == "audit":
            assert not audit.faults_of(audit.settings_of(flags_of(audit.audit, words)))
        else:
            assert (program, command) == ("ledger", "serve")
            settings = NodeSettings(flags_of(bookie.serve, words))
            assert settings.faults == []
            assert settings["advertised-host"] == name == settings["name"]


def test_each_gateway_is_a_broker_of_its_own_on_the_rack_of_a_bookie():
    found = [
        serve.settings_of(flags_of(serve.serve, arguments(name)[2]))
        for name in OURS
        if name.startswith("gateway")
    ]
    assert [(one["listener"][0].port, one["node-id"], one["rack"]) for one in found] == [
        (9092, 1, "r1"),
        (9093, 2, "r2"),
        (9094, 3, "r3"),
    ]
    assert {one["listener"][1].port for one in found} == {29092}
    racks = {
        option_of(services()[name]["command"], "--rack") for name in OURS if name[:6] == "bookie"
    }
    assert racks == {"/r1", "/r2", "/r3", "/r4"}
    for name, one in zip(("gateway-1", "gateway-2", "gateway-3"), found, strict=True):
        (outside, inside), port = one["advertise"], one["listener"][0].port
        assert services()[name]["ports"] == [f"{port}:{port}"]
        assert (outside, inside) == (("OUTSIDE", "localhost", port), ("INSIDE", name, 29092))
        assert one["inter-broker-listener-name"] == "INSIDE"


def option_of(words, flag):
    return words[words.index(flag) + 1]


def test_make_cluster_listens_where_the_file_says(tmp_path):
    cluster = LocalCluster(tmp_path, 9092)
    assert cluster.bootstrap == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
    for name in cluster.gateways:
        words = services()[name]["command"]
        assert option_of(words, "--listener") == f"OUTSIDE=0.0.0.0:{cluster.ports[name]}"


def test_no_service_draws_the_port_of_a_gateway(tmp_path):
    """In processes that have 45 ports each, of which they draw half before they repeat any."""
    script = (
        "import pathlib, sys; from tests.peers import compose, processes\n"
        "ports = processes.OWN_PORTS; first = ports.start\n"
        "cluster = compose.LocalCluster(pathlib.Path(sys.argv[1]), first)\n"
        "drawn = len(cluster.ports) + 1\n"
        "more = [processes.free_port() for _ in range(len(ports) // 2 - drawn)]\n"
        "print(*more, cluster.zookeeper.port, *cluster.ports.values())"
    )
    for worker in range(5):
        share = {"PYTEST_XDIST_WORKER_COUNT": "500", "PYTEST_XDIST_WORKER": f"gw{worker}"}
        words = [compose.install.gateway_python(), "-c", script, str(tmp_path)]
        done = subprocess.run(
            words, env=os.environ | share, capture_output=True, text=True, cwd=compose.install.ROOT
        )
        assert done.returncode == 0, done.stderr
        ports = done.stdout.split()
        assert len(ports) == len(set(ports)) == 45 // 2


def test_every_volume_and_dependency_that_is_named_exists():
    document = YAML(typ="safe").load(compose.FILE)
    named = [
        volume.split(":")[0]
        for service in document["services"].values()
        for volume in service.get("volumes", [])
    ]
    assert sorted(named) == sorted(document["volumes"])
    for service in document["services"].values():
        assert set(service.get("depends_on", {})) <= set(document["services"])
        if "build" in service:
            assert (compose.FILE.parent / service["build"]["context"]).resolve() == (
                compose.install.ROOT
            )
            assert (compose.install.ROOT / service["build"]["dockerfile"]).is_file()


def test_only_places_differ_between_the_file_and_the_local_processes(tmp_path):
    for name in OURS:
        words = with_one_listener(services()[name]["command"])
        local = local_command(services()[name]["command"], "127.0.0.1:1", tmp_path, 2)
        assert tuple(local[len(words) :]) == (SHARED_DISK if name.startswith("bookie-") else ())
        changed = {
            words[place - 1]
            for place, (there, here) in enumerate(zip(words, local[: len(words)], strict=True))
            if there != here
        }
        assert changed <= {
            *("--zookeeper", "--data", "--port", "--host", "--advertised-host", "--peer-host"),
            words[-1],  # the word before `python`, which is the first
        }


def test_the_local_cluster_serves_a_stock_client_and_leaves_no_process(tmp_path):
    cluster = LocalCluster(tmp_path).start()
    processes = list(cluster.processes.values())
    try:
        bootstrap = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        make_topic(cluster.bootstrap, "flights", 6, 3)
        failed = []
        producer = Producer(bootstrap)
        for number in range(1_000):
            producer.produce(
                "flights",
                b"%d" % number,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(30.0) == 0
        assert failed == []
        assert sorted(read("flights", bootstrap, 1_000)) == list(range(1_000))
        assert len(brokers(cluster.bootstrap)) == len(cluster.gateways)
    finally:
        cluster.stop()
    assert [process.exit_code for process in processes] == [0] * len(OURS)
    assert not list(tmp_path.glob("*.pid"))


def read(topic, bootstrap, count):
    """So many values, by a group."""
    consumer = Consumer({**bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values, errors = [], []

    def read_on():
        for message in consumer.consume(count, 0.5):
            if message.error():
                errors.append(str(message.error()))
            else:
                values.append(int(message.value()))
        return len(values) >= count

    wait_until(read_on, f"{count} records", READ_S_MAX)
    consumer.close()
    assert errors == []
    return values


def brokers(bootstrap):
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return admin.list_topics(timeout=60).brokers


def test_what_is_killed_by_its_printed_id_comes_back_on_its_port(tmp_path):
    quiet = {"MAKEFLAGS": "", "MAKELEVEL": "0"}  # a make that runs the tests is not meant
    port = ports_in_a_row(3)[0]
    (tmp_path / "cluster").mkdir()
    LocalCluster(tmp_path / "cluster", port, zookeeper_port=free_port()).write_env()
    place = [f"PORT={port}", f"DATA={tmp_path}"]
    make = Process(
        ["make", "-C", str(compose.install.ROOT), "cluster", *place], tmp_path / "o", quiet
    )
    try:
        make.wait_output("cluster started", 120.0)
        bootstrap = make.output().rpartition("bootstrap.servers=")[2].split()[0]
        assert len(bootstrap.split(",")) == 3
        for name in ("gateway-2", "bookie-1"):
            pid = int((tmp_path / "cluster" / f"{name}.pid").read_text())
            assert f"{name:<14} pid {pid} " in make.output()
            os.kill(pid, signal.SIGKILL)
            again = f"{name} ended with -9, started again: pid "
            make.wait_output(again, 60.0)
        wait_until(lambda: len(brokers(bootstrap)) == 3, "three gateways again", 60.0, pause_s=0.2)
        log = tmp_path / "cluster" / "bookie-1.log"
        wait_until(lambda: log.read_text().count("started bookie=") == 2, "the bookie", 60.0)
        assert make.stop(60.0) in (0, -signal.SIGTERM, 2)
    finally:
        make.kill()

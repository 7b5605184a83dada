"""Goal: the compose file is what it says, and `make cluster` runs just the commands it has.

Method: the file against the published schema of compose files; each command of ours through the
parser of the program that it starts; then the whole of it as local processes, under a stock client.
"""

import json
from pathlib import Path

import check_jsonschema
import jsonschema
from confluent_kafka import Consumer, Producer
from ruamel.yaml import YAML

from gateway import serve
from ledger.node import audit, options
from tests.peers import compose
from tests.peers.compose import LocalCluster, local_command, services

SCHEMA = Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor/compose-spec.json"
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
        "gateway",
    ]


def test_every_command_is_one_that_its_program_takes():
    for name in OURS:
        program, command, words = arguments(name)
        if program == "gateway":
            assert command == "serve"
            assert not serve.faults_of(serve.parser().parse_args(words))
        elif command == "audit":
            assert not audit.faults_of(audit.parser().parse_args(words))
        else:
            assert (program, command) == ("ledger", "serve")
            settings = options.Settings(options.parser("bookie serve", "").parse_args(words))
            assert settings.faults == []
            assert settings["advertised-host"] == name == settings["name"]


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
        words = services()[name]["command"]
        local = local_command(words, "127.0.0.1:1", tmp_path, 2)
        assert len(local) == len(words)
        changed = {
            words[place - 1]
            for place, (there, here) in enumerate(zip(words, local, strict=True))
            if there != here
        }
        assert changed <= {
            *("--zookeeper", "--data", "--port", "--host", "--advertised-host"),
            words[-1],  # the word before `python`, which is the first
        }


def test_the_local_cluster_serves_a_stock_client_and_leaves_no_process(tmp_path):
    cluster = LocalCluster(tmp_path).start()
    processes = list(cluster.processes.values())
    try:
        bootstrap = {"bootstrap.servers": f"127.0.0.1:{cluster.gateway_port}", "log_level": 0}
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
        consumer = Consumer({**bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["flights"])
        values = []
        while len(values) < 1_000:
            values += [int(message.value()) for message in consumer.consume(1_000, 10.0)]
        consumer.close()
        assert values == list(range(1_000))
    finally:
        cluster.stop()
    assert [process.exit_code for process in processes] == [0] * len(OURS)

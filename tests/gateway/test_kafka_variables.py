"""Goal: variables of Kafka's images set what the same keys set in a file, below the gateway's own.

Method: every row of a gateway that has a key of Kafka, in this process.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gateway.process import dev, serve
from gateway.process.cli import program
from ledger.command_line.program import flags_of
from ledger.command_line.settings import Settings
from ledger.command_line.settings_kafka import key_of
from ledger.node.options import OPTIONS
from ledger.node.serve import serve as bookie_serve
from tests.gateway.test_server_settings import TABLES, Place, in_unit, two_values

KEYS = [
    (command, row.name, key)
    for command in ("gateway dev", "gateway serve")
    for row in TABLES[command][1]
    for key in row.kafka
]


def variable_of(key):
    return "KAFKA_" + key.replace("-", "___").replace("_", "__").replace(".", "_").upper()


def read(*words, command=dev.dev, table=dev.TABLE, **environment):
    return Settings(flags_of(command, list(words)), table, environment)


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("KAFKA_NODE_ID", "node.id"),
        ("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "group.initial.rebalance.delay.ms"),
        ("KAFKA_A__B", "a_b"),
        ("KAFKA_A___B", "a-b"),
        ("KAFKA_X_Y", "x.y"),
    ],
)
def test_a_variable_names_a_key_as_in_kafkas_images(variable, key):
    assert key_of(variable) == key


@pytest.mark.parametrize(("command", "name", "key"), KEYS)
def test_a_variable_of_kafka_is_between_the_gateways_own_and_the_file(command, name, key, tmp_path):
    tool, table = TABLES[command]
    place, row = Place(command, name, tmp_path), table[name]
    low, high = two_values(row)
    wanted, variable = row.parse_text(low), variable_of(key.name)
    text = in_unit(wanted, key.unit) if key.unit else low
    words = ["--config", place.file(high)]
    found = Settings(flags_of(tool, words), table, {variable: text})
    assert (found[name], found.origin(name)) == (wanted, f"environment {variable}")
    assert found.faults == found.warnings == []
    own = {variable: text, row.environment: high}
    found = Settings(flags_of(tool, words), table, own)
    assert (found[name], found.origin(name)) == (
        row.parse_text(high),
        f"environment {row.environment}",
    )
    found = Settings(flags_of(tool, [place.flag(high)]), table, {variable: "\t"})
    assert (found[name], found.origin(name), found.faults) == (row.parse_text(high), "flag", [])
    assert found.warnings == [f"{variable}: has no effect beside the flag --{name}"]


def test_the_variables_of_an_image_of_kafka_are_taken_with_a_warning_for_each_without_effect():
    found = read(
        KAFKA_NODE_ID="4",
        KAFKA_PROCESS_ROLES="broker,controller",
        KAFKA_LISTENERS="PLAINTEXT://:9092,CONTROLLER://:9093",
        KAFKA_ADVERTISED_LISTENERS="PLAINTEXT://localhost:9092",
        KAFKA_CONTROLLER_LISTENER_NAMES="CONTROLLER",
        KAFKA_LISTENER_SECURITY_PROTOCOL_MAP="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        KAFKA_LOG_RETENTION_HOURS="1",
        KAFKA_HEAP_OPTS="-Dpassword=swordfish",
    )
    assert found.faults == dev.listener_faults(found) == []
    assert dev.listeners_of(found) == (
        ("PLAINTEXT", "0.0.0.0", 9092, "localhost", 9092, "PLAINTEXT"),
    )
    assert found["node-id"] == 4
    assert [line.partition(":")[0] for line in found.warnings] == [
        "KAFKA_CONTROLLER_LISTENER_NAMES",
        "KAFKA_HEAP_OPTS",
        "KAFKA_LOG_RETENTION_HOURS",
        "KAFKA_PROCESS_ROLES",
    ]
    assert "swordfish" not in "".join(found.warnings)


def test_an_unknown_variable_is_one_warning_and_an_empty_one_is_none():
    assert read(KAFKA_NOD_ID="3", KAFKA_BROKER_RAK="").warnings == [
        "KAFKA_NOD_ID: Kafka's broker has no key nod.id; it has no effect here; "
        "did you mean KAFKA_NODE_ID?"
    ]


def test_what_kubernetes_sets_for_a_service_is_one_warning():
    found = read(
        KAFKA_PORT="tcp://10.0.0.1:9092",
        KAFKA_SERVICE_HOST="10.0.0.1",
        KAFKA_SERVICE_PORT="9092",
        KAFKA_PORT_9092_TCP_ADDR="10.0.0.1",
    )
    assert found.faults == []
    assert found.warnings == ["KAFKA_PORT: Kubernetes sets this for a Service; it is ignored"]


@pytest.mark.parametrize(
    ("variables", "fault"),
    [
        ({"KAFKA_LISTENERS": "SSL://127.0.0.1:9093"}, "--ssl-keystore-location: is missing"),
        ({"KAFKA_AUTHORIZER_CLASS_NAME": "x"}, "KAFKA_AUTHORIZER_CLASS_NAME=x: must be none"),
        (
            {
                "KAFKA_LISTENERS": "A://:9093",
                "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "A:SASL_PLAINTEXT",
            },
            "KAFKA_LISTENERS=A://:9093: A=0.0.0.0:9093: other machines can reach it without TLS",
        ),
        ({"KAFKA_NODE_ID": "x"}, "KAFKA_NODE_ID=x: must be a whole number"),
        (
            {"KAFKA_NODE_ID": "1", "KAFKA_BROKER_ID": "2"},
            "KAFKA_NODE_ID: sets node-id again, after KAFKA_BROKER_ID; keep one",
        ),
        ({"KAFKA_LOG_DIRS": "/a,/b"}, "KAFKA_LOG_DIRS=/a,/b: only one value is possible here"),
    ],
)
def test_a_variable_that_cannot_be_served_ends_the_start_with_78(variables, fault, monkeypatch):
    done = CliRunner(env=variables).invoke(program, ["dev", "--port", "0"], prog_name="gateway")
    if "KAFKA_LISTENERS" in variables:  # which the short form would contradict too
        done = CliRunner(env=variables).invoke(program, ["dev"], prog_name="gateway")
    assert (done.exit_code, done.stdout) == (78, "")
    assert done.stderr.startswith(f"gateway: {fault}")
    assert done.stderr.count("\n") == 1


def test_print_config_shows_the_variable():
    environment = {"KAFKA_NODE_ID": "9"}
    words = ["serve", "--print-config", "-o", "json"]
    done = CliRunner(env=environment).invoke(program, words, prog_name="gateway")
    (row,) = (each for each in json.loads(done.stdout)["settings"] if each["setting"] == "node-id")
    assert row == {"setting": "node-id", "value": 9, "origin": "environment KAFKA_NODE_ID"}


def test_a_worker_prints_no_warning_again():
    words = ["serve", "--supervisor", "1", "--print-config"]
    done = CliRunner(env={"KAFKA_X": "1"}).invoke(program, words, prog_name="gateway")
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_bookie_reads_no_variable_of_kafka():
    found = read(command=bookie_serve, table=OPTIONS, KAFKA_NODE_ID="3", KAFKA_X="y")
    assert found.faults == found.warnings == []


def test_no_variable_of_a_row_is_one_of_kafka():
    names = {row.environment for table in (dev.TABLE, serve.TABLE) for row in table}
    assert not any(name.startswith("KAFKA_") for name in names)

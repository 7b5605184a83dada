"""Goal: kafka-configs of Apache Kafka 4.3 alters and describes brokers as it does on Apache Kafka.

Method: the same commands on the gateway and on Apache Kafka; what they print is compared. The node
ids differ, and Kafka keeps a default of its own for all brokers.
"""

from __future__ import annotations

import re

import pytest

from tests.peers import java_tools
from tests.peers.broker import Broker
from tests.peers.java_tools import ToolFailed, run

pytestmark = [pytest.mark.compat, pytest.mark.proof]
OWN = ("--entity-name", "NODE")
DEFAULT = ("--entity-default",)
OF_KAFKA = "min.insync.replicas"
"""A cluster-wide default that Kafka sets itself, for its eligible leader replicas."""


def printed(broker: Broker, node: int, *words: str) -> list[str]:
    """Return the lines that the tool prints about brokers, or its refusal, without node ids."""
    named = [str(node) if word == "NODE" else word for word in words]
    place = ("--bootstrap-server", broker.bootstrap, "--entity-type")
    try:
        text = run(java_tools.CONFIGS, *place, *named)
    except ToolFailed as failed:
        lines = str(failed).splitlines()[1:]
        text = next((line for line in lines if "Exception: " in line), lines[0])
    lines = [line for line in text.splitlines() if OF_KAFKA not in line]
    return [re.sub(rf"\bbroker {node}\b", "broker NODE", line) for line in lines]


@pytest.mark.parametrize(
    "commands",
    [
        (
            ("brokers", *DEFAULT, "--alter", "--add-config", "log.retention.ms=5000"),
            ("brokers", *OWN, "--alter", "--add-config", "log.retention.ms=6000,num.io.threads=9"),
            ("brokers", *OWN, "--describe"),
            ("brokers", *DEFAULT, "--describe"),
        ),
        (
            ("brokers", *OWN, "--alter", "--delete-config", "log.retention.ms,num.io.threads"),
            ("brokers", *DEFAULT, "--alter", "--delete-config", "log.retention.ms"),
            ("brokers", *OWN, "--describe"),
            ("brokers", *OWN, "--alter", "--add-config", "log.retention.hours=5"),
        ),
        (
            ("broker-loggers", *OWN, "--alter", "--add-config", "root=LOUD"),
            ("broker-loggers", *OWN, "--alter", "--add-config", "no.such.logger=INFO"),
        ),
    ],
    ids=["set", "deleted", "loggers"],
)
def test_brokers_are_altered_and_described_as_on_kafka(
    broker: Broker, oracle: Broker, commands: tuple[tuple[str, ...], ...]
):
    for words in commands:
        assert printed(broker, 0, *words) == printed(oracle, 1, *words)

"""Goal: stock clients see features as Apache Kafka 4.3 shows them.

Method: kafka-features.sh prints and changes levels on the gateway and on Apache Kafka, and its
lines are compared.
"""

from __future__ import annotations

import re

import pytest

from tests.peers import java_tools
from tests.peers.broker import Broker
from tests.peers.java_tools import ToolFailed, run

pytestmark = [pytest.mark.compat, pytest.mark.proof]

FEATURES = f"{java_tools.TOOLS}.FeatureCommand"
UPDATE_FEATURES = 57
OWN, TRANSACTIONS, METADATA = "gateway.version", "transaction.version", "metadata.version"
GROUPS = "group.version"
_EPOCH = re.compile(r"Epoch: \d+")


def tool(broker: Broker, *words: str) -> str:
    try:
        return run(FEATURES, "--bootstrap-server", broker.bootstrap, *words)
    except ToolFailed as failed:
        return str(failed).partition("\n")[2]


def described(broker: Broker) -> dict[str, str]:
    """Return the lines that the tool prints, by feature, without the number of the epoch."""
    lines = tool(broker, "describe").splitlines()
    assert all(_EPOCH.search(line) for line in lines), lines
    return {line.split()[1]: _EPOCH.sub("Epoch", line) for line in lines}


def test_describe_prints_the_lines_of_kafka_for_the_features_of_the_gateway(
    broker: Broker, oracle: Broker
) -> None:
    theirs = described(oracle)
    ours = described(broker)
    assert ours.keys() == {METADATA, TRANSACTIONS, GROUPS, OWN}
    assert {name: line for name, line in ours.items() if name != OWN} == {
        name: theirs[name] for name in (METADATA, TRANSACTIONS, GROUPS)
    }


@pytest.mark.parametrize(
    "words",
    [
        ("downgrade", "--feature", f"{METADATA}=29"),
        ("upgrade", "--feature", f"{TRANSACTIONS}=1"),
        ("downgrade", "--feature", f"{TRANSACTIONS}=1", "--dry-run"),
        ("upgrade", "--feature", "unknown=1", "--feature", f"{METADATA}=30"),
    ],
    ids=["metadata", "lower", "dry-run", "unknown"],
)
def test_a_change_prints_the_lines_of_kafka(
    words: tuple[str, ...], broker: Broker, oracle: Broker
) -> None:
    controllers = re.compile(r"Local controller \d+")
    printed = [controllers.sub("Local controller", tool(each, *words)) for each in (broker, oracle)]
    assert printed[0] == printed[1]
    assert printed[0]

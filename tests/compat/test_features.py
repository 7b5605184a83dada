"""Goal: stock clients see features as Apache Kafka 4.3 shows them, with and without the preview.

Method: kafka-features.sh prints and changes levels on the gateway and on Apache Kafka, and its
lines are compared. The recorded cases about levels of transactions are replayed with the preview.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.compat.differential import servers
from tests.compat.differential.outcome import outcome
from tests.compat.differential.recording import recorded_cases
from tests.peers import java_tools
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.java_tools import ToolFailed, run

pytestmark = pytest.mark.compat

FEATURES = f"{java_tools.TOOLS}.FeatureCommand"
UPDATE_FEATURES = 57
OWN, TRANSACTIONS, METADATA = "gateway.version", "transaction.version", "metadata.version"
_EPOCH = re.compile(r"Epoch: \d+")


@pytest.fixture(scope="module")
def preview(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("preview"), ["--preview-transactions"]) as started:
        yield started


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
    broker: Broker, preview: Gateway, oracle: Broker
) -> None:
    theirs = described(oracle)
    ours = described(preview)
    assert ours.keys() == {METADATA, TRANSACTIONS, OWN}
    assert {name: line for name, line in ours.items() if name != OWN} == {
        name: theirs[name] for name in (METADATA, TRANSACTIONS)
    }
    without = described(broker)
    assert without.keys() == {METADATA, OWN}, "what is a preview is not advertised"
    assert without[METADATA] == theirs[METADATA]


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
    words: tuple[str, ...], preview: Gateway, oracle: Broker
) -> None:
    controllers = re.compile(r"Local controller \d+")
    printed = [
        controllers.sub("Local controller", tool(each, *words)) for each in (preview, oracle)
    ]
    assert printed[0] == printed[1]
    assert printed[0]


def test_levels_of_transactions_change_as_in_kafka(preview: Gateway) -> None:
    cases = [case for case in recorded_cases(UPDATE_FEATURES) if "transaction" in case.name]
    assert cases
    for case in cases:
        found = outcome(case, servers.player(preview).play(case.steps))
        assert [each for each in found if each.key == UPDATE_FEATURES] == []

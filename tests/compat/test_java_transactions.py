"""Goal: Java's transactional clients see on the gateway what they see on Apache Kafka 4.3.

Method: `TransactionScenarios` runs the stock clients of 4.3 (protocol 2) and 3.9 (protocol 1), and
prints a line for each outcome. The lines from Apache Kafka are files in the tree. A proof compares
them with Apache Kafka again.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.java_tools import JVM_SHORT
from tests.peers.kafka import JVM_QUIET, ApacheKafka

pytestmark = [pytest.mark.compat, pytest.mark.proof]

SOURCE = install.ROOT / "tests" / "peers" / "TransactionScenarios.java"
EXPECTED = Path(__file__).with_name("java_tools")
OLDER = "3.9.1"
SECONDS_MAX = 280
SCENARIOS = [
    "commit",
    "abort",
    "two-partitions",
    "a-second-producer",
    "an-administrator-fences",
    "offsets",
    "offsets-of-a-stale-member",
    "a-timeout",
    "a-timeout-that-is-too-long",
    "no-transaction",
    "a-record-that-is-too-large",
    "lists",
    "an-administrator-aborts",
]


def expected(version):
    return (EXPECTED / f"transactions-{version}.txt").read_text()


def classpath(version):
    """Return the class path of the scenarios with the clients of this version."""
    jars = sorted(install.kafka_jars().glob("*.jar"))
    newest = install.compiled(SOURCE, jars)
    if version == "4.3":
        return newest
    clients = (("org.apache.kafka", "kafka-clients", OLDER), install.LOG_COORDINATE)
    return f"{newest.split(':')[0]}:{install.maven_jars(f'kafka-clients-{OLDER}', clients)}/*"


def printed(broker, version):
    """Run all scenarios; returns the lines that they print."""
    command = [install.java(), *JVM_SHORT, *JVM_QUIET, "-cp", classpath(version)]
    done = subprocess.run(
        [*command, SOURCE.stem, broker.bootstrap, *SCENARIOS],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_newest_clients_see_what_they_see_on_kafka(tmp_path):
    with Gateway(tmp_path / "data") as gateway:
        assert printed(gateway, "4.3") == expected("4.3")


def test_older_clients_see_what_they_see_on_kafka(tmp_path):
    with Gateway(tmp_path / "data") as gateway:
        assert printed(gateway, "3.9") == expected("3.9")


@pytest.mark.parametrize("version", ["4.3", "3.9"])
def test_the_expected_lines_are_those_of_kafka(tmp_path, version):
    with ApacheKafka(tmp_path / "data") as kafka:
        assert printed(kafka, version) == expected(version)

"""The servers that are compared: Apache Kafka 4.3, and the embedded gateway."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from tests.compat.differential.cluster import TwoGateways
from tests.compat.differential.play import Player
from tests.compat.differential.redirect import Redirected
from tests.compat.differential.routes import OneServer
from tests.compat.differential.script import (
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    NOT_YET,
)
from tests.compat.differential.steps import Step
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.kafka import ApacheKafka

KAFKA_SETTINGS = {
    "broker.session.timeout.ms": "60000",
}
"""Besides what one node needs; everything else has Kafka's default."""
START_S_MAX = 300.0  # of Kafka, also on a busy machine
GATEWAY_OPTIONS = ("--group-initial-rebalance-delay-ms", "0")
GROUPS = [f"warm-up-{number}" for number in range(1_000)]  # in every partition of their topic
# Afterwards the internal topics exist, and producer ids are allocated at once.
WARM_UP = (
    Step(
        "ask",
        FIND_COORDINATOR,
        4,
        {"key_type": 0, "coordinator_keys": ["warm-up"]},
        again=NOT_YET,
    ),
    Step("ask", DESCRIBE_GROUPS, 5, {"groups": GROUPS}, again=NOT_YET),
    Step(
        "ask",
        INIT_PRODUCER_ID,
        4,
        {"transactional_id": None, "transaction_timeout": 60_000},
        again=NOT_YET,
    ),
    Step("ask", FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": GROUPS}, again=NOT_YET),
)


def kafka(data: Path) -> ApacheKafka:
    """Return Apache Kafka, not started."""
    broker = ApacheKafka(data, KAFKA_SETTINGS)
    broker.start_s_max = START_S_MAX
    return broker


def embedded(data: Path) -> Gateway:
    """Return the embedded gateway, not started."""
    return Gateway(data, GATEWAY_OPTIONS)


def player(broker: Broker, title: str = "") -> Player:
    """Return a player that connects to a started server."""
    return Player(OneServer(("127.0.0.1", broker.port)))


def cluster(data: Path) -> TwoGateways:
    """Return a cluster of two gateways, not started."""
    return TwoGateways(data, GATEWAY_OPTIONS)


def redirected(both: TwoGateways, title: str) -> Redirected:
    """Return a player for a case of this title; the title chooses the gateway asked first."""
    first = crc32(title.encode()) % len(both.addresses)
    return Redirected(both.addresses[first:] + both.addresses[:first])


def warm_up_cluster(both: TwoGateways) -> None:
    """As `warm_up`, at both gateways."""
    for address in both.addresses:
        Redirected([address]).play(WARM_UP)


def warm_up(broker: Broker) -> None:
    """Let a started server do what it does once, before the first case."""
    player(broker).play(WARM_UP)

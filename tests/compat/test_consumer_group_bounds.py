"""Goal: with the same settings of consumer groups, Apache Kafka 4.3 and a gateway answer alike.

Method: one process of each with the same keys. Both get the same frames: changes of the configs of
groups and of the broker, descriptions of them, and heartbeats of members that ask for assignors.
Both are started again with narrower bounds over what they have stored.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from gateway.wire.messages import decode_response, encode_request
from tests.compat.differential.connection import Connection
from tests.peers.gateway import Gateway
from tests.peers.kafka import FOR_TESTS, ApacheKafka
from tests.peers.processes import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.process, pytest.mark.proof]
FIND, CREATE, DESCRIBE, ALTER, HEARTBEAT = 10, 19, 32, 44, 68
BROKER, GROUP = 4, 32
SESSION, BEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
INTERVAL = "consumer.assignment.interval.ms"
WIDE = {
    "group.consumer.assignors": "range",
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.max.session.timeout.ms": "90000",
    "group.consumer.heartbeat.interval.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.max.heartbeat.interval.ms": "20000",
    "group.consumer.assignment.interval.ms": "900",
    "group.consumer.min.assignment.interval.ms": "500",
    "group.consumer.max.assignment.interval.ms": "5000",
}
NARROW = WIDE | {
    "group.consumer.max.session.timeout.ms": "20000",
    "group.consumer.min.heartbeat.interval.ms": "1500",
    "group.consumer.max.assignment.interval.ms": "999",
}
CHANGES = [
    (GROUP, {SESSION: "5999"}),
    (GROUP, {SESSION: "90001"}),
    (GROUP, {BEAT: "999"}),
    (GROUP, {BEAT: "20001"}),
    (GROUP, {INTERVAL: "499"}),
    (GROUP, {INTERVAL: "5001"}),
    (GROUP, {BEAT: "10000"}),
    (GROUP, {SESSION: "6000", BEAT: "6000"}),
    (GROUP, {SESSION: "1", BEAT: "1", INTERVAL: "1"}),
    (GROUP, {SESSION: "0"}),
    (GROUP, {SESSION: "60000", BEAT: "1000", INTERVAL: "700"}),
    (BROKER, {f"group.{INTERVAL}": "499"}),
    (BROKER, {f"group.{INTERVAL}": "5001"}),
    (BROKER, {f"group.{INTERVAL}": "3000"}),
]


class Asked:
    """A connection that asks one server."""

    def __init__(self, server):
        host, port = server.bootstrap.split(":")
        self.connection = Connection((host, int(port)))
        self.member = str(uuid.uuid4())

    def ask(self, key, version, **body):
        self.connection.send(encode_request(key, version, 1, "c", body))
        return decode_response(key, version, self.connection.receive()).body

    def alter(self, kind, values, group="g"):
        name = group if kind == GROUP else ""
        configs = [
            {"name": key, "config_operation": 0, "value": value} for key, value in values.items()
        ]
        row = {"resource_type": kind, "resource_name": name, "configs": configs}
        found = self.ask(ALTER, 1, resources=[row], validate_only=False).responses[0]
        return found.error_code.name, found.error_message

    def described(self, kind, name, *keys):
        row = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys)}
        body = {"resources": [row], "include_synonyms": True, "include_documentation": False}
        found = self.ask(DESCRIBE, 4, **body).results[0]
        return {
            each.name: (
                *(each.value, each.config_source, each.read_only),
                [(one.name, one.value, one.source) for one in each.synonyms],
            )
            for each in found.configs
        }

    def beat(self, group="g", epoch=0, assignor=None):
        found = self.ask(
            HEARTBEAT,
            1,
            group_id=group,
            member_id=self.member,
            member_epoch=epoch,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=timedelta(milliseconds=60_000),
            subscribed_topic_names=["t"],
            subscribed_topic_regex=None,
            server_assignor=assignor,
            topic_partitions=[],
        )
        interval_ms = round(found.heartbeat_interval.total_seconds() * 1000)
        return found.error_code.name, found.error_message, interval_ms

    def joined(self, group="g"):
        """Return the answer of a join once the coordinator is there."""
        busy = ("coordinator_not_available", "not_coordinator", "coordinator_load_in_progress")
        found = []

        def answered():  # Kafka makes its topic of groups when a coordinator is looked for
            self.ask(FIND, 4, key_type=0, coordinator_keys=[group])
            found[:] = [self.beat(group)]
            return found[0][0] not in busy

        wait_until(answered, "a coordinator", 60.0)
        return found[0]


def started(kind, data, settings):
    """Return a server with these settings of Kafka."""
    if kind == "kafka":
        return ApacheKafka(data, {**FOR_TESTS, **settings})
    file = data.with_suffix(".properties")
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return Gateway(data, ["--config", str(file)])


def answers(kind, directory):
    """Return all answers of one server, before and after it has narrower bounds."""
    found = {}
    with started(kind, directory / kind, WIDE) as server:
        asked, broker = Asked(server), "1" if kind == "kafka" else "0"
        topic = {"name": "t", "num_partitions": 2, "replication_factor": 1}
        topic |= {"assignments": [], "configs": []}
        body = {"timeout": timedelta(seconds=10), "validate_only": False}
        asked.ask(CREATE, 5, topics=[topic], **body)
        found["unconfigured"] = asked.joined("other")
        found["assignors"] = [asked.beat(assignor=each) for each in ("uniform", "x")]
        keys = [f"group.consumer.{each}" for each in ("assignors", "max.size", "migration.policy")]
        keys += [each for each in WIDE if each.endswith(".ms")]
        found["broker"] = asked.described(BROKER, broker, *keys)
        found["of the broker"] = asked.described(GROUP, "g", SESSION, BEAT, INTERVAL)
        found["changes"] = [asked.alter(each, values) for each, values in CHANGES]
        wait_until(lambda: asked.described(GROUP, "g", BEAT)[BEAT][0] == "1000", "a config", 60.0)
        name = f"group.{INTERVAL}"
        wait_until(lambda: asked.described(BROKER, broker, name)[name][0] == "3000", "it", 60.0)
        found["group"] = asked.described(GROUP, "g", SESSION, BEAT, INTERVAL)
        found["configured"] = asked.joined()
    with started(kind, directory / kind, NARROW) as server:
        asked = Asked(server)
        found["capped"] = asked.joined()
        found["stored"] = asked.described(GROUP, "g", SESSION, BEAT, INTERVAL)
        found["altered"] = asked.described(BROKER, broker, f"group.{INTERVAL}")
        found["unrelated"] = asked.alter(GROUP, {INTERVAL: "800"})
        found["no interval of its own"] = asked.alter(GROUP, {BEAT: "2000"}, group="h")
    return found


def test_groups_are_bounded_as_in_kafka(tmp_path):
    kafka, gateway = (answers(kind, tmp_path) for kind in ("kafka", "gateway"))
    assert gateway.keys() == kafka.keys()
    for name, expected in kafka.items():
        assert gateway[name] == expected, name
    assert kafka["unconfigured"] == ("none", None, 2_000)
    assert kafka["configured"] == ("none", None, 1_000)
    assert kafka["capped"] == ("none", None, 1_500)

"""Goal: configs of brokers that are altered at runtime act at once, and no secret is shown.

Method: requests to a broker over simulated metadata; the limits of a registry of connections; the
log of this process.
"""

import pytest
from kio.schema.errors import ErrorCode

from gateway.handlers import k32_describe_configs, k44_incremental_alter_configs
from gateway.settings.broker_keys import BROKER_KEYS, STATIC_NAMES, TOPIC_DEFAULTS
from gateway.settings.broker_rules import topic_defaults
from gateway.topics.config_changes import ConfigOperation
from gateway.topics.config_keys import ConfigSource
from gateway.topics.configs import TOPIC_KEYS
from ledger.log import level, logger, set_level
from tests.gateway.handler_cluster import loaded_cluster
from tests.gateway.stream_cluster import batch, started_cluster
from tests.gateway.wire_peer import hub_for

SET, DELETE, _, _ = ConfigOperation
BROKER, LOGGER, TOPIC = 4, 8, 2
OK = (ErrorCode.none, None)
OWN, DEFAULT = "3", ""


def row(name, *changes, kind=BROKER):
    configs = [
        {"name": key, "config_operation": DELETE if value is None else SET, "value": value}
        for key, value in changes
    ]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


async def alter(cluster, name, *changes, kind=BROKER):
    answer = await cluster.ask(
        k44_incremental_alter_configs,
        1,
        resources=[row(name, *changes, kind=kind)],
        validate_only=False,
    )
    (found,) = answer.responses
    return found.error_code, found.error_message


async def described(cluster, name, *keys, kind=BROKER):
    """Return {config: (value, source, names and sources of its synonyms)}."""
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    answer = await cluster.ask(k32_describe_configs, 4, resources=[asked], include_synonyms=True)
    return {
        each.name: (
            each.value,
            ConfigSource(each.config_source),
            [(of.name, of.value, of.source) for of in each.synonyms],
        )
        for each in answer.results[0].configs
    }


async def test_the_default_of_topics_follows_the_broker_and_its_own_value_wins():
    async with loaded_cluster() as cluster:
        topic = await cluster.catalog.create("t", 1, 1, {})
        kept = await cluster.catalog.create("kept", 1, 1, {"retention.ms": "7"})

        def retention():
            return [cluster.catalog.config(each).retention_ms for each in (topic, kept)]

        assert await alter(cluster, DEFAULT, ("log.retention.ms", "5000")) == OK
        assert retention() == [5000, 7]
        assert await alter(cluster, OWN, ("log.retention.ms", "6000")) == OK
        assert retention() == [6000, 7]
        found = await described(cluster, "t", "retention.ms", kind=TOPIC)
        value, source, synonyms = found["retention.ms"]
        assert (value, source) == ("6000", ConfigSource.DYNAMIC_BROKER)
        assert [name for name, _, _ in synonyms] == [
            *("log.retention.ms", "log.retention.ms", "log.retention.hours")
        ]
        for name in (OWN, DEFAULT):
            assert await alter(cluster, name, ("log.retention.ms", None)) == OK
        assert retention() == [7 * 24 * 3600 * 1000, 7]


async def test_producers_meet_an_altered_limit_at_once():
    async with started_cluster() as cluster:
        await cluster.context.stored.load()
        partition = await cluster.topic()
        (written,) = await cluster.sent(partition, batch())
        assert written.error is ErrorCode.none
        await cluster.context.stored.configs.change(
            BROKER, DEFAULT, lambda _: {"message.max.bytes": "10"}
        )
        (refused,) = await cluster.sent(partition, batch())
        assert refused.error is ErrorCode.message_too_large


async def test_a_limit_that_this_broker_cannot_serve_is_refused():
    async with loaded_cluster() as cluster:
        code, text = await alter(cluster, OWN, ("message.max.bytes", "2000000000"))
        assert code is ErrorCode.invalid_request
        assert "no more than" in text
        assert await described(cluster, DEFAULT) == {}


async def test_secrets_are_stored_and_never_shown():
    async with loaded_cluster() as cluster:
        name = "listener.name.plaintext.ssl.keystore.password"
        unknown = "a.key.of.a.plugin"
        assert await alter(cluster, OWN, (name, "hidden"), (unknown, "hidden too")) == OK
        assert cluster.context.altered.own == {name: "hidden", unknown: "hidden too"}
        for value, source, synonyms in (await described(cluster, OWN, name, unknown)).values():
            assert value is None
            assert source is ConfigSource.DYNAMIC_BROKER
            assert [text for _, text, _ in synonyms] == [None]


class Silent:
    """A connection without a byte."""

    received_bytes = written_bytes = 0
    listener = "PLAINTEXT"


async def test_limits_of_connections_act_on_the_next_connection():
    async with loaded_cluster() as cluster:
        registry = hub_for(connections_max=3, connections_per_address_max=2)
        cluster.context.altered.limit_connections(registry.limit_connections)
        assert await alter(cluster, DEFAULT, ("max.connections", "1")) == OK
        assert registry.admit(Silent(), "10.0.0.1")
        assert not registry.admit(Silent(), "10.0.0.2")
        assert await alter(cluster, DEFAULT, ("max.connections", "0")) == OK
        assert not registry.admit(Silent(), "10.0.0.2")
        here = Silent()
        assert registry.admit(here, "127.0.0.1")  # so that the limit can be taken back
        registry.remove(here)
        assert await alter(cluster, DEFAULT, ("max.connections", "1000000")) == OK
        assert registry.limits.connections_max == 3
        assert await alter(cluster, DEFAULT, ("max.connections.per.ip", "1")) == OK
        assert not registry.admit(Silent(), "10.0.0.1")
        assert registry.admit(Silent(), "10.0.0.2")
        names = ("max.connections", None), ("max.connections.per.ip", None)
        assert await alter(cluster, DEFAULT, *names) == OK
        assert registry.admit(Silent(), "10.0.0.1")


async def test_what_was_stored_acts_after_a_restart():
    async with loaded_cluster() as cluster:
        assert await alter(cluster, DEFAULT, ("log.segment.bytes", "2000000")) == OK
        again = type(cluster)()
        again.catalog._store.tree = cluster.store.tree
        await again.catalog.load()
        await again.context.stored.load()
        topic = await again.catalog.create("t", 1, 1, {})
        assert again.catalog.config(topic).segment_bytes == 2_000_000


@pytest.mark.parametrize("key", TOPIC_DEFAULTS)
def test_every_default_of_topics_can_be_altered(key):
    name = TOPIC_DEFAULTS[key]
    assert name in BROKER_KEYS
    value = TOPIC_KEYS[key].default
    assert topic_defaults({name: value}) == {key: value}


def test_no_config_is_both_dynamic_and_static():
    assert (len(BROKER_KEYS), len(STATIC_NAMES)) == (102, 261)  # as in Kafka 4.3
    assert not BROKER_KEYS.keys() & STATIC_NAMES


async def test_the_level_of_the_log_acts_at_once_and_is_not_stored(capsys):
    async with loaded_cluster() as cluster:
        assert (await described(cluster, OWN, kind=LOGGER))["root"][0] == "INFO"
        try:
            assert await alter(cluster, OWN, ("root", "ERROR"), kind=LOGGER) == OK
            assert (await described(cluster, OWN, kind=LOGGER))["root"][0] == "ERROR"
            logger().warning("left out")
            logger().error("shown")
            assert await alter(cluster, OWN, ("root", "WARN"), kind=LOGGER) == OK
            logger().warning("shown too")
            logger().info("left out")
        finally:
            set_level("INFO")
        assert level() == "INFO"
        lines = capsys.readouterr().err
        assert "left out" not in lines
        assert "event=shown" in lines
        assert 'event="shown too"' in lines

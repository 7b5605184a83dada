"""Broker settings as DescribeConfigs shows them, under Kafka's names. None can be changed here.

The broker's defaults for topics come from the topic keys' synonyms; the rest is this process's
configuration, translated. Values that Kafka has and we have not are left out, never made up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.config import GatewayConfig
from gateway.topics.config_keys import ConfigEntry, ConfigKey, Source, Type
from gateway.topics.configs import TOPIC_KEYS

_Row = tuple[str, Type, object, object, str]  # name, type, value, Kafka's default, meaning


def describe_broker(
    config: GatewayConfig, address: tuple[str, int], names: Iterable[str] | None
) -> list[ConfigEntry]:
    """Every setting of this node (or those named; unknown names are left out), sorted by name."""
    entries = {entry.key.name: entry for entry in _topic_defaults()}
    rows = (*_process(config, address), *_topics(config), *_limits(config), *_groups(config))
    for row in rows:
        entry = _entry(*row)
        entries[entry.key.name] = entry
    wanted = set(entries) if names is None else set(names)
    return [entries[name] for name in sorted(wanted & entries.keys())]


def _topic_defaults() -> Iterator[ConfigEntry]:
    for key in TOPIC_KEYS.values():
        for name, default in key.synonyms:
            yield _entry(name, key.type, default, default, key.about)


def _process(config: GatewayConfig, address: tuple[str, int]) -> tuple[_Row, ...]:
    host, port = address
    return (
        ("node.id", Type.INT, config.node_id, None, "This process's number in Metadata."),
        ("broker.id", Type.INT, config.node_id, -1, "The older name of node.id."),
        ("broker.rack", Type.STRING, None, None, "Where this node stands; unset."),
        (
            "process.roles",
            Type.LIST,
            "broker,controller",
            "",
            "What this process does: all there is to do.",
        ),
        ("log.dirs", Type.STRING, config.data, None, "Where data is kept."),
        (
            "listeners",
            Type.LIST,
            f"PLAINTEXT://{config.host}:{config.port}",
            "PLAINTEXT://:9092",
            "Where clients are listened for.",
        ),
        (
            "advertised.listeners",
            Type.LIST,
            f"PLAINTEXT://{host}:{port}",
            None,
            "Where clients are told to connect: by default, where they reached us.",
        ),
        ("delete.topic.enable", Type.BOOLEAN, True, True, "Topics may be deleted."),
    )


def _topics(config: GatewayConfig) -> tuple[_Row, ...]:
    topics = config.topics
    return (
        (
            "auto.create.topics.enable",
            Type.BOOLEAN,
            topics.auto_create,
            True,
            "Asking for a topic that does not exist creates it.",
        ),
        ("num.partitions", Type.INT, topics.partitions, 1, "Partitions of a new topic."),
        (
            "default.replication.factor",
            Type.INT,
            topics.replication_factor,
            1,
            "Copies of a new topic's entries.",
        ),
    )


def _limits(config: GatewayConfig) -> tuple[_Row, ...]:
    connection = config.connection
    return (
        (
            "connections.max.idle.ms",
            Type.LONG,
            int(connection.idle_s_max * 1000),
            600_000,
            "A connection that is silent for longer is closed.",
        ),
        (
            "max.connections",
            Type.INT,
            connection.connections_max,
            2**31 - 1,
            "Connections at once.",
        ),
        (
            "max.connections.per.ip",
            Type.INT,
            connection.connections_per_address_max,
            2**31 - 1,
            "Connections at once from one address; loopback is exempt.",
        ),
        (
            "socket.request.max.bytes",
            Type.INT,
            connection.frame_bytes_max,
            104_857_600,
            "Largest request taken.",
        ),
        (
            "queued.max.request.bytes",
            Type.LONG,
            connection.request_bytes_total_max,
            -1,
            "Memory of all requests under way.",
        ),
        (
            "fetch.max.bytes",
            Type.INT,
            config.fetch.response_bytes_max,
            57_671_680,
            "Largest answer to one Fetch.",
        ),
        (
            "max.incremental.fetch.session.cache.slots",
            Type.INT,
            config.fetch.sessions_max,
            1_000,
            "Fetch sessions kept.",
        ),
    )


def _groups(config: GatewayConfig) -> tuple[_Row, ...]:
    groups = config.groups
    return (
        (
            "group.min.session.timeout.ms",
            Type.INT,
            groups.session_timeout_ms_min,
            6_000,
            "Shortest session timeout that a member may ask for.",
        ),
        (
            "group.max.session.timeout.ms",
            Type.INT,
            groups.session_timeout_ms_max,
            1_800_000,
            "Longest session timeout that a member may ask for.",
        ),
        (
            "group.initial.rebalance.delay.ms",
            Type.INT,
            groups.initial_rebalance_delay_ms,
            3_000,
            "Wait for further members before a new group's first rebalance.",
        ),
        ("group.max.size", Type.INT, groups.members_max, 2**31 - 1, "Members of one group."),
        (
            "offset.metadata.max.bytes",
            Type.INT,
            groups.metadata_bytes_max,
            4_096,
            "Largest text beside a committed offset.",
        ),
        (
            "offsets.retention.minutes",
            Type.INT,
            groups.offsets_retention_minutes,
            10_080,
            "How long a group without members keeps its offsets.",
        ),
    )


def _entry(name: str, type_: Type, value: object, default: object, about: str) -> ConfigEntry:
    text, standard = _text(value), _text(default)
    source = Source.DEFAULT if text == standard else Source.STATIC_BROKER
    synonyms: list[tuple[str, str | None, Source]] = []
    if source is Source.STATIC_BROKER:
        synonyms.append((name, text, source))
    if standard is not None:
        synonyms.append((name, standard, Source.DEFAULT))
    return ConfigEntry(
        key=ConfigKey(name=name, type=type_, default=standard, about=about),
        value=text,
        source=source,
        read_only=True,
        synonyms=tuple(synonyms),
    )


def _text(value: object) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)

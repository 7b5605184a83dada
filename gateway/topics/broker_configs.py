"""Lists the configs with which a broker was started, under Kafka's names.

The defaults for topics come from the synonyms of the topic keys. The other values are this
process's configuration. Keys of Kafka without a counterpart in this project are left out, unless
they can be altered at runtime: `gateway.settings.broker_rules` adds these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from gateway.config import CONSUMER_ASSIGNORS, GatewayConfig, GroupLimits
from gateway.core.blocked_reads import BlockedRead
from gateway.topics.config_keys import ConfigEntry, ConfigKey, ConfigSource, ConfigType
from gateway.topics.configs import TOPIC_KEYS

# The fields: name, type, value, Kafka's default, meaning.
_Row = tuple[str, ConfigType, object, object, str]


METADATA_ADDRESS = "ledger.metadata.address"
"""A config that Kafka does not have: admin commands find the storage tier by it."""

GREYLIST = "ledger.bookies.greylisted"
"""Another one: the bookies that this broker avoids, in JSON."""

BLOCKED_PARTITIONS = "gateway.blocked.partitions"
"""Another one, returned only by its name: where readers of this broker wait, in JSON."""

CLEANING = "gateway.cleaning."
"""Likewise, before the name of a topic: how far its partitions here are cleaned, in JSON."""

_BLOCKED_MAX = 1_000


def describe_blocked(places: Iterable[tuple[str, int, BlockedRead]]) -> ConfigEntry:
    """Return the blocked places of the partitions that this broker serves, at most 1,000."""
    rows = [
        {"topic": topic, "partition": index, "offset": place.offset, "reason": place.text}
        for topic, index, place in islice(places, _BLOCKED_MAX)
    ]
    text = json.dumps(rows, separators=(",", ":"))
    about = "The offsets at which readers wait for records that no bookie returns."
    return _entry(BLOCKED_PARTITIONS, ConfigType.STRING, text, None, about)


def describe_broker(
    config: GatewayConfig,
    addresses: Sequence[tuple[str, str, int]],
    metadata_address: str | None,
    greylist: str | None,
    names: Iterable[str] | None,
) -> list[ConfigEntry]:
    """Return the configs with which this broker was started: all, or the existing ones in `names`.

    They are sorted by name. `addresses` are the names, hosts and ports of the listeners as clients
    are given them.
    """
    entries = {entry.key.name: entry for entry in _topic_defaults()}
    rows = (
        *(*_process(config, addresses), *_topics(config), *_limits(config)),
        *(*_groups(config), *_consumer_groups(config), *_consumer_times(config)),
    )
    about = "Where the metadata of ledgers are read: ZooKeeper, or a ledger port on this machine."
    own = (
        (METADATA_ADDRESS, ConfigType.STRING, metadata_address, None, about),
        (GREYLIST, ConfigType.STRING, greylist, None, "The bookies that this broker avoids."),
    )
    for row in (*rows, *own):
        entry = _entry(*row)
        entries[entry.key.name] = entry
    wanted = set(entries) if names is None else set(names)
    return [entries[name] for name in sorted(wanted & entries.keys())]


def _topic_defaults() -> Iterator[ConfigEntry]:
    for key in TOPIC_KEYS.values():
        for name, default in key.synonyms:
            yield _entry(name, key.type, default, default, key.about)


def _process(config: GatewayConfig, addresses: Sequence[tuple[str, str, int]]) -> tuple[_Row, ...]:
    bound = ((each.name, each.host, each.port) for each in config.all_listeners)
    return (
        ("node.id", ConfigType.INT, config.node_id, None, "The node id of this broker."),
        ("broker.id", ConfigType.INT, config.node_id, -1, "The former name of node.id."),
        ("broker.rack", ConfigType.STRING, None, None, "The rack of this broker."),
        (
            "process.roles",
            ConfigType.LIST,
            "broker,controller",
            "",
            "The roles of this process.",
        ),
        ("log.dirs", ConfigType.STRING, config.data, None, "The data directory."),
        (
            "listeners",
            ConfigType.LIST,
            _listed(bound),
            "PLAINTEXT://:9092",
            "The addresses that this broker listens on.",
        ),
        (
            "advertised.listeners",
            ConfigType.LIST,
            _listed(addresses),
            None,
            "The addresses that clients are given; by default the one that they connected to.",
        ),
        ("delete.topic.enable", ConfigType.BOOLEAN, True, True, "Whether topics may be deleted."),
    )


def _listed(addresses: Iterable[tuple[str, str, int]]) -> str:
    """Return addresses in Kafka's form."""
    return ",".join(
        f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}"
        for name, host, port in addresses
    )


def _topics(config: GatewayConfig) -> tuple[_Row, ...]:
    topics = config.topics
    return (
        (
            "auto.create.topics.enable",
            ConfigType.BOOLEAN,
            topics.auto_create,
            True,
            "Whether a metadata request for an unknown topic creates it.",
        ),
        (
            "num.partitions",
            ConfigType.INT,
            topics.partitions,
            1,
            "The number of partitions of a new topic.",
        ),
        (
            "default.replication.factor",
            ConfigType.INT,
            topics.replication_factor,
            1,
            "The replication factor of a new topic.",
        ),
    )


def _limits(config: GatewayConfig) -> tuple[_Row, ...]:
    connection = config.connection
    return (
        (
            "connections.max.idle.ms",
            ConfigType.LONG,
            int(connection.idle_s_max * 1000),
            600_000,
            "The time after which an idle connection is closed.",
        ),
        (
            "max.connections",
            ConfigType.INT,
            connection.connections_max,
            2**31 - 1,
            "The limit of open connections.",
        ),
        (
            "max.connections.per.ip",
            ConfigType.INT,
            connection.connections_per_address_max,
            2**31 - 1,
            "The limit of open connections from one address. By default loopback is exempt.",
        ),
        (
            "socket.request.max.bytes",
            ConfigType.INT,
            connection.frame_bytes_max,
            104_857_600,
            "The largest request accepted.",
        ),
        (
            "queued.max.request.bytes",
            ConfigType.LONG,
            connection.request_bytes_max,
            -1,
            "The memory for all requests in flight.",
        ),
        (
            "fetch.max.bytes",
            ConfigType.INT,
            config.fetch.response_bytes_max,
            57_671_680,
            "The largest response to one Fetch.",
        ),
        (
            "max.incremental.fetch.session.cache.slots",
            ConfigType.INT,
            config.fetch.sessions_max,
            1_000,
            "The limit of fetch sessions.",
        ),
    )


def _groups(config: GatewayConfig) -> tuple[_Row, ...]:
    groups = config.groups
    return (
        (
            "group.min.session.timeout.ms",
            ConfigType.INT,
            groups.session_timeout_ms_min,
            6_000,
            "The shortest session timeout that a member may request.",
        ),
        (
            "group.max.session.timeout.ms",
            ConfigType.INT,
            groups.session_timeout_ms_max,
            1_800_000,
            "The longest session timeout that a member may request.",
        ),
        (
            "group.initial.rebalance.delay.ms",
            ConfigType.INT,
            groups.initial_rebalance_delay_ms,
            3_000,
            "How long a new group waits for further members before its first rebalance.",
        ),
        (
            "group.max.size",
            ConfigType.INT,
            groups.members_max,
            2**31 - 1,
            "The limit of members of a group.",
        ),
        (
            "offset.metadata.max.bytes",
            ConfigType.INT,
            groups.metadata_bytes_max,
            4_096,
            "The largest metadata of a committed offset.",
        ),
        (
            "offsets.retention.minutes",
            ConfigType.INT,
            groups.offsets_retention_minutes,
            10_080,
            "How long a group without members keeps its offsets.",
        ),
    )


def _consumer_groups(config: GatewayConfig) -> tuple[_Row, ...]:
    groups = config.groups
    return (
        (
            "group.coordinator.rebalance.protocols",
            ConfigType.LIST,
            ",".join(groups.rebalance_protocols),
            "classic,consumer,streams",
            "The enabled protocols of groups.",
        ),
        (
            "group.consumer.assignors",
            ConfigType.LIST,
            ",".join(groups.consumer_assignors),
            ",".join(CONSUMER_ASSIGNORS),
            "The assignors of the consumer protocol; the first one is the default.",
        ),
        (
            "group.consumer.max.size",
            ConfigType.INT,
            groups.consumer_members_max,
            2**31 - 1,
            "The limit of members of a group of the consumer protocol.",
        ),
        (
            "group.consumer.migration.policy",
            ConfigType.STRING,
            groups.migration_policy,
            "bidirectional",
            "Whether a group with members may change its protocol.",
        ),
    )


def _consumer_times(config: GatewayConfig) -> Iterator[_Row]:
    groups = config.groups
    standard = GroupLimits()
    for field, name, about in (
        ("session_timeout_ms", "session.timeout.ms", "time after which a silent member is removed"),
        ("heartbeat_interval_ms", "heartbeat.interval.ms", "time between heartbeats of a member"),
        ("assignment_interval_ms", "assignment.interval.ms", "time between two assignments"),
    ):
        for end, part, text in (
            ("", "", f"The {about}, in groups of the consumer protocol without an own value."),
            ("_min", "min.", f"The shortest {about} that the configs of a group may have."),
            ("_max", "max.", f"The longest {about} that the configs of a group may have."),
        ):
            value, default = (
                getattr(each, f"consumer_{field}{end}") for each in (groups, standard)
            )
            yield f"group.consumer.{part}{name}", ConfigType.INT, value, default, text


def _entry(name: str, type_: ConfigType, value: object, default: object, about: str) -> ConfigEntry:
    text, standard = _text(value), _text(default)
    source = ConfigSource.DEFAULT if text == standard else ConfigSource.STATIC_BROKER
    synonyms: list[tuple[str, str | None, ConfigSource]] = []
    if source is ConfigSource.STATIC_BROKER:
        synonyms.append((name, text, source))
    if standard is not None:
        synonyms.append((name, standard, ConfigSource.DEFAULT))
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

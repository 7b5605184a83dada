"""The limits of connections, groups and transactions: their rows, and what they make."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from gateway.config import (
    MIGRATION_POLICIES,
    REBALANCE_PROTOCOLS,
    ConnectionLimits,
    GroupLimits,
    TransactionLimits,
)
from gateway.process.consumer_group_settings import (
    consumer_group_faults,
    consumer_group_rows,
    consumer_group_values,
)
from gateway.process.quota_settings import with_limits
from ledger.command_line import units
from ledger.command_line.settings import KafkaKey, Setting, Settings

_CONNECTIONS: Final = ConnectionLimits()
_GROUPS: Final = GroupLimits()
_TRANSACTIONS: Final = TransactionLimits()
_TIMEOUT_S_MAX: Final = units.INT32_MAX / 1000
_LONGEST_S: Final = 10 * 365 * 86_400.0
_METADATA_BYTES_MAX: Final = 32_767  # Kafka's strings


class _Time(NamedTuple):
    """A row with a duration."""

    name: str
    least_s: float
    most_s: float
    default_s: float
    kafka: str
    unit: str  # of a number in Kafka's key
    help: str
    old: tuple[str, str] | None = None


def _group_times() -> list[_Time]:
    rows = (
        (
            "group-initial-rebalance-delay",
            0.0,
            _GROUPS.initial_rebalance_delay_ms,
            "How long a new group waits for its first members.",
        ),
        (
            "group-min-session-timeout",
            0.001,
            _GROUPS.session_timeout_ms_min,
            "Shortest session timeout that a member of a group may request.",
        ),
        (
            "group-max-session-timeout",
            0.001,
            _GROUPS.session_timeout_ms_max,
            "Longest session timeout that a member of a group may request.",
        ),
    )
    return [
        _Time(
            *(name, least_s, _TIMEOUT_S_MAX, default_ms / 1000),
            *(f"{name.replace('-', '.')}.ms", "ms", text, (f"--{name}-ms", "ms")),
        )
        for name, least_s, default_ms, text in rows
    ]


def _other_times() -> list[_Time]:
    return [
        _Time(
            *("offsets-retention", 60.0, _LONGEST_S),
            *(_GROUPS.offsets_retention_minutes * 60.0, "offsets.retention.minutes", "m"),
            "How long a group without members keeps its offsets; whole minutes.",
        ),
        _Time(
            *("transaction-max-timeout", 0.001, _TIMEOUT_S_MAX),
            *(_TRANSACTIONS.timeout_ms_max / 1000, "transaction.max.timeout.ms", "ms"),
            "Longest timeout of a transaction that a producer may request.",
        ),
        _Time(
            *("transactional-id-expiration", 0.001, _TIMEOUT_S_MAX),
            *(_TRANSACTIONS.id_expiration_ms / 1000, "transactional.id.expiration.ms", "ms"),
            "How long a transactional id that is not used is kept.",
        ),
        _Time(
            *("transaction-timeout-check", 0.001, _TIMEOUT_S_MAX, _TRANSACTIONS.scan_ms / 1000),
            *("transaction.abort.timed.out.transaction.cleanup.interval.ms", "ms"),
            "Time between two looks for transactions that have timed out.",
        ),
        _Time(
            *("connections-max-idle", 1.0, _LONGEST_S, _CONNECTIONS.idle_s_max),
            *("connections.max.idle.ms", "ms"),
            "Time after which an idle connection of a client is closed.",
        ),
    ]


def limit_rows() -> list[Setting]:
    """Return the rows of the limits."""
    times = [
        Setting(
            name=each.name,
            kind="DURATION",
            parse=units.duration(each.least_s, each.most_s),
            default=each.default_s,
            kafka=(KafkaKey(each.kafka, unit=each.unit),),
            old=each.old,
            help=each.help,
        )
        for each in (*_group_times(), *_other_times())
    ]
    return [
        *times,
        Setting(
            name="group-max-size",
            kind="COUNT",
            parse=units.whole(1, units.INT32_MAX),
            default=_GROUPS.members_max,
            kafka=(KafkaKey("group.max.size"),),
            help="Most members of a group.",
        ),
        *_protocol_rows(),
        *consumer_group_rows(),
        Setting(
            name="offset-metadata-max",
            kind="SIZE",
            parse=units.size(0, _METADATA_BYTES_MAX),
            default=_GROUPS.metadata_bytes_max,
            kafka=(KafkaKey("offset.metadata.max.bytes"),),
            help="Longest metadata that a client may commit with an offset.",
        ),
    ]


def _protocol_rows() -> list[Setting]:
    return [
        Setting(
            name="group-coordinator-rebalance-protocols",
            kind="PROTOCOL",
            parse=units.one_of(*REBALANCE_PROTOCOLS),
            default=_GROUPS.rebalance_protocols,
            many=True,
            kafka=(KafkaKey("group.coordinator.rebalance.protocols"),),
            help="Protocol of groups; repeatable. Without `consumer`, members of the consumer "
            "protocol are refused; `share` and `streams` have no effect.",
        ),
        Setting(
            name="group-consumer-migration-policy",
            kind="POLICY",
            parse=units.one_of_any_case(*MIGRATION_POLICIES),
            default=_GROUPS.migration_policy,
            kafka=(KafkaKey("group.consumer.migration.policy"),),
            help="Whether a group with members may change its protocol: to the consumer protocol "
            "(upgrade), back (downgrade), both, or not.",
        ),
        Setting(
            name="group-consumer-max-size",
            kind="COUNT",
            parse=units.whole(1, units.INT32_MAX),
            default=_GROUPS.consumer_members_max,
            kafka=(KafkaKey("group.consumer.max.size"),),
            help="Most members of a group of the consumer protocol. More than 10,000 are never "
            "admitted.",
        ),
    ]


def group_faults(settings: Settings) -> list[str]:
    """Return the faults of the settings of groups that contradict each other."""
    name, faults = "group-coordinator-rebalance-protocols", consumer_group_faults(settings)
    if name in settings.faulty or "classic" in settings[name]:
        return faults
    return [f"{settings.place(name)}: must contain classic, as in Kafka", *faults]


def connection_limits(settings: Settings) -> ConnectionLimits:
    """Return the limits of connections that the settings make."""
    limits = replace(
        _CONNECTIONS,
        memory_bytes_max=settings["memory"],
        connections_per_s_max=settings["max-connection-creation-rate"],
        idle_s_max=settings["connections-max-idle"],
    )
    return with_limits(limits, settings)


def group_limits(settings: Settings) -> GroupLimits:
    """Return the limits of groups that the settings make."""
    return replace(
        _GROUPS,
        initial_rebalance_delay_ms=_ms(settings["group-initial-rebalance-delay"]),
        session_timeout_ms_min=_ms(settings["group-min-session-timeout"]),
        session_timeout_ms_max=_ms(settings["group-max-session-timeout"]),
        members_max=settings["group-max-size"],
        rebalance_protocols=tuple(dict.fromkeys(settings["group-coordinator-rebalance-protocols"])),
        migration_policy=settings["group-consumer-migration-policy"],
        consumer_members_max=settings["group-consumer-max-size"],
        metadata_bytes_max=settings["offset-metadata-max"],
        offsets_retention_minutes=round(settings["offsets-retention"] / 60),
        **consumer_group_values(settings),
    )


def transaction_limits(settings: Settings) -> TransactionLimits:
    """Return the limits of transactions that the settings make."""
    return replace(
        _TRANSACTIONS,
        timeout_ms_max=_ms(settings["transaction-max-timeout"]),
        id_expiration_ms=_ms(settings["transactional-id-expiration"]),
        scan_ms=_ms(settings["transaction-timeout-check"]),
    )


def _ms(value_s: float) -> int:
    return round(value_s * 1000)

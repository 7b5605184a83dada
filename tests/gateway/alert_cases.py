"""For each alert, series with which it fires and series with which it stays silent.

The times are those of promtool: a sample each minute. `5x40` is a constant, `0+1x40` a rise.
"""

from __future__ import annotations

from typing import NamedTuple

MINUTES = 90

Series = dict[str, str]


class Case(NamedTuple):
    """One alert: what fires it, the labels that it then has, and what does not."""

    fires: Series
    labels: dict[str, str]
    silent: Series


def _constant(value: float) -> str:
    return f"{value}x{MINUTES}"


def _rise(step: float) -> str:
    return f"0+{step}x{MINUTES}"


def _buckets(name: str, fast: float, slow: float, **labels: str) -> Series:
    """A histogram: events per minute in the class up to 5 ms, and in that up to 2.5 s."""
    shown = "".join(f'{key}="{value}",' for key, value in labels.items())
    sums = {"0.0005": 0.0, "0.005": fast, "1": fast, "2.5": fast + slow, "+Inf": fast + slow}
    return {f'{name}_bucket{{{shown}le="{le}"}}': _rise(count) for le, count in sums.items()}


def _one(metric: str, bad: float, good: float, labels: dict[str, str]) -> Case:
    return Case({metric: _constant(bad)}, labels, {metric: _constant(good)})


_G, _B = {"instance": "g"}, {"instance": "b"}
_PLACE = {"topic": "t", "partition": "0"}
_REQUESTS = "gateway_requests_total"

CASES: dict[str, Case] = {
    "GatewayDown": _one('up{job="gateways",instance="g"}', 0, 1, {**_G, "job": "gateways"}),
    "GatewayNotReady": _one('gateway_ready{instance="g"}', 0, 1, _G),
    "BookieDown": _one('up{job="bookies",instance="b"}', 0, 1, {**_B, "job": "bookies"}),
    "BookieReadOnly": _one('bookie_writable{instance="b"}', 0, 1, _B),
    "BookieDiskLow": Case(
        {
            'bookie_disk_free_bytes{instance="b"}': _constant(150),
            'bookie_disk_needed_bytes{instance="b"}': _constant(100),
        },
        _B,
        {
            'bookie_disk_free_bytes{instance="b"}': _constant(250),
            'bookie_disk_needed_bytes{instance="b"}': _constant(100),
        },
    ),
    "BookieSyncSlow": Case(
        _buckets("bookie_sync_seconds", 50, 50, instance="b"),
        _B,
        _buckets("bookie_sync_seconds", 1000, 1, instance="b"),
    ),
    "AuditorMissing": Case(
        {"bookie_audit_leader": _constant(0)}, {}, {"bookie_audit_leader": _constant(1)}
    ),
    "LedgersUnderReplicated": _one("bookie_audit_underreplicated_ledgers", 3, 0, {}),
    "LedgersHopeless": _one("bookie_audit_hopeless_ledgers", 1, 0, {}),
    "RecordsLost": Case(
        {
            'gateway_topic_partition_lost_records{topic="t",partition="0",accepted="false"}': (
                _constant(5)
            )
        },
        _PLACE,
        {
            'gateway_topic_partition_lost_records{topic="t",partition="0",accepted="true"}': (
                _constant(5)
            )
        },
    ),
    "PartitionsBlocked": _one("gateway_blocked_partitions", 2, 0, {}),
    "GroupLagging": _one(
        'gateway_consumergroup_lag_seconds{consumergroup="a",topic="t",partition="0"}',
        400,
        200,
        {"consumergroup": "a"},
    ),
    "ProduceSlow": Case(
        _buckets("gateway_request_seconds", 50, 50, api="Produce"),
        {},
        {
            **_buckets("gateway_request_seconds", 1000, 1, api="Produce"),
            **_buckets("gateway_request_seconds", 0, 50, api="Fetch"),
        },
    ),
    "RequestErrors": Case(
        {
            f'{_REQUESTS}{{api="Produce",error="NONE"}}': _rise(90),
            f'{_REQUESTS}{{api="Produce",error="MESSAGE_TOO_LARGE"}}': _rise(10),
        },
        {"api": "Produce"},
        {
            f'{_REQUESTS}{{api="Produce",error="NONE"}}': _rise(990),
            f'{_REQUESTS}{{api="Produce",error="MESSAGE_TOO_LARGE"}}': _rise(10),
            f'{_REQUESTS}{{api="Heartbeat",error="REBALANCE_IN_PROGRESS"}}': _rise(10),
        },
    ),
    "ConnectionsRefused": Case(
        {
            'gateway_connections_refused_total{instance="g",reason="too-many-connections"}': (
                _rise(5)
            )
        },
        _G,
        {'gateway_connections_refused_total{instance="g",reason="timeout"}': _rise(5)},
    ),
    "LoopLagging": Case(
        _buckets("gateway_loop_lag_seconds", 50, 10, instance="g"),
        _G,
        _buckets("gateway_loop_lag_seconds", 60, 0, instance="g"),
    ),
    "EnsembleChanging": Case(
        {'gateway_ensemble_changes_total{reason="unhealthy"}': _rise(1)},
        {"reason": "unhealthy"},
        {'gateway_ensemble_changes_total{reason="unhealthy"}': _rise(0.1)},
    ),
    "CleaningFailed": Case(
        {
            "gateway_topic_partition_cleaning_failed"
            '{topic="t",partition="0",state="uncleanable"}': _constant(1)
        },
        _PLACE,
        {
            "gateway_topic_partition_cleaning_failed"
            '{topic="t",partition="0",state="failed"}': _constant(1)
        },
    ),
    "MetricsLeftOut": _one('gateway_metrics_left_out{what="groups"}', 7, 0, {"what": "groups"}),
}

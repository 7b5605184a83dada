"""The samples of one gateway process: its requests, connections, topics, segments and groups.

All are counted where they happen, in plain integers, and only collected here. At most 500 topics
have samples of their own.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kio.schema.errors import ErrorCode

from gateway.access import auditing
from gateway.handlers.api import Context
from gateway.metrics.health import readiness
from gateway.topics.partition import Partition
from ledger.events import EventKind, events
from ledger.exposition import Buckets, Declared, Families, Family, Kind
from ledger.ports.clock import Histogram

_TOPIC_WAY = ("topic", "direction")
DECLARED: Final[dict[str, Declared]] = {
    "gateway_ready": Declared("1: it takes requests; 0: `gateway health` has the reasons."),
    "gateway_requests_total": Declared(
        "Requests by the first error of their replies; NONE without one.",
        ("api", "error"),
        Kind.COUNTER,
    ),
    "gateway_request_seconds": Declared(
        "Seconds from the whole request until its reply was ready. A Fetch waits for records.",
        ("api",),
        Kind.HISTOGRAM,
    ),
    "gateway_network_bytes_total": Declared(
        "Bytes from (in) and to (out) clients on the Kafka port.", ("direction",), Kind.COUNTER
    ),
    "gateway_connections": Declared("Open connections on the Kafka port."),
    "gateway_connections_refused_total": Declared(
        "Connections that were refused, or ended for what they sent or did not send.",
        ("reason",),
        Kind.COUNTER,
    ),
    "gateway_listener_connections": Declared(
        "Open connections on the Kafka port by listener.", ("listener",)
    ),
    "gateway_connections_waiting": Declared(
        "Connections that are not read now, because their clients used up a quota."
    ),
    "gateway_logins_total": Declared(
        "Logins by mechanism of SASL, or by a certificate (SSL), and by outcome.",
        ("mechanism", "outcome"),
        Kind.COUNTER,
    ),
    "gateway_denials_total": Declared(
        "Rights that clients asked for and did not have.", (), Kind.COUNTER
    ),
    "gateway_audit_lines_total": Declared(
        "Lines of the audit log: written, or lost because the queue was full or the disk refused.",
        ("outcome",),
        Kind.COUNTER,
    ),
    "gateway_throttled_total": Declared(
        "Requests and connections whose clients had to wait, by quota.", ("quota",), Kind.COUNTER
    ),
    "gateway_throttled_seconds_total": Declared(
        "Seconds for which they had to wait.", ("quota",), Kind.COUNTER
    ),
    "gateway_loop_lag_seconds": Declared(
        "How late a timer was that fires each second: others waited as long.", (), Kind.HISTOGRAM
    ),
    "gateway_topic_bytes_total": Declared(
        "Bytes of batches that clients wrote (in) and fetched (out).", _TOPIC_WAY, Kind.COUNTER
    ),
    "gateway_topic_records_total": Declared(
        "Records that clients wrote (in), and offsets that they fetched (out).",
        _TOPIC_WAY,
        Kind.COUNTER,
    ),
    "gateway_segments": Declared("Segments of the partitions that it leads."),
    "gateway_segment_rolls_total": Declared("Segments that it began.", (), Kind.COUNTER),
    "gateway_ensemble_changes_total": Declared(
        "Bookies replaced in a ledger that it writes, by why.", ("reason",), Kind.COUNTER
    ),
    "gateway_add_seconds": Declared(
        "Seconds from an add to a ledger until the ack quorum had it.", (), Kind.HISTOGRAM
    ),
    "gateway_takeover_seconds": Declared(
        "Seconds for which a partition was opened: recovered, or taken over.", (), Kind.HISTOGRAM
    ),
    "gateway_rebalances_total": Declared(
        "Rebalances of groups that began a generation here.", (), Kind.COUNTER
    ),
    "gateway_bookies": Declared("Bookies that are registered as alive."),
}
REASONS: Final = ("no-space", "unhealthy", "other")
"""The reasons of ensemble changes."""

_SLICE: Final = 200  # partitions between two pauses


async def process_families(ctx: Context) -> list[Family]:
    """Return the families of this process."""
    found = Families(DECLARED)
    found.add("gateway_ready", int(not readiness(ctx)))
    _requests(ctx, found)
    _connections(ctx, found)
    _topics(ctx, found)
    await _segments(ctx, found)
    _ledgers(ctx, found)
    found.add("gateway_rebalances_total", ctx.groups.rebalances)
    return found.all()


def _requests(ctx: Context, found: Families) -> None:
    apis = ctx.requests.apis.values()
    for api in apis:
        failed = dict(api.errors)
        found.add(
            "gateway_requests_total", sum(api.counts) - sum(failed.values()), api.name, "NONE"
        )
        for code, count in failed.items():
            found.add("gateway_requests_total", count, api.name, error_name(code))
    for api in apis:
        value = Buckets(Histogram().bounds, api.counts, api.total_s)
        found.add("gateway_request_seconds", value, api.name)


def error_name(code: int) -> str:
    """Return Kafka's name of an error code."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)


def _connections(ctx: Context, found: Families) -> None:
    if ctx.connections is None:
        return
    counts = ctx.connections()
    found.add("gateway_connections", counts.open)
    for reason, count in counts.refused.items():
        found.add("gateway_connections_refused_total", count, reason)
    for listener, count in counts.by_listener.items():
        found.add("gateway_listener_connections", count, listener)
    found.add("gateway_connections_waiting", counts.waiting)
    for (mechanism, outcome), count in counts.logins.items():
        found.add("gateway_logins_total", count, mechanism, outcome)
    found.add("gateway_denials_total", auditing.denials)
    if auditing.sink is not None:
        for outcome, count in auditing.sink.counts().items():
            found.add("gateway_audit_lines_total", count, outcome)
    if ctx.quotas is not None:
        for quota, count in ctx.quotas.throttled.items():
            found.add("gateway_throttled_total", count, quota)
            found.add("gateway_throttled_seconds_total", ctx.quotas.throttled_s[quota], quota)
    found.add("gateway_network_bytes_total", counts.bytes_in, "in")
    found.add("gateway_network_bytes_total", counts.bytes_out, "out")
    found.add("gateway_loop_lag_seconds", buckets(counts.loop_lag))


def _topics(ctx: Context, found: Families) -> None:
    def exists(topic: str) -> bool:
        return ctx.catalog.by_name(topic) is not None

    for topic, traffic in ctx.partitions.traffic.rows(exists):
        found.add("gateway_topic_bytes_total", traffic.bytes_in, topic, "in")
        found.add("gateway_topic_bytes_total", traffic.bytes_out, topic, "out")
        found.add("gateway_topic_records_total", traffic.records_in, topic, "in")
        found.add("gateway_topic_records_total", traffic.records_out, topic, "out")


async def _segments(ctx: Context, found: Families) -> None:
    segments = 0
    for seen, (_, _, partition) in enumerate(list(ctx.partitions.served()), 1):
        if seen % _SLICE == 0:
            await asyncio.sleep(0)
        if isinstance(partition, Partition) and partition.is_leader:
            segments += len(partition.stream.segments)
    found.add("gateway_segments", segments)


def _ledgers(ctx: Context, found: Families) -> None:
    counts = events.counts
    found.add("gateway_segment_rolls_total", counts[EventKind.ROLL, ""])
    for reason in REASONS:
        count = counts[EventKind.ENSEMBLE_CHANGE, reason]
        found.add("gateway_ensemble_changes_total", count, reason)
    if ctx.streams is None:
        return
    found.add("gateway_add_seconds", buckets(ctx.streams.client.added))
    found.add("gateway_takeover_seconds", buckets(ctx.streams.openings))
    found.add("gateway_bookies", len(ctx.streams.client.alive()))


def buckets(histogram: Histogram) -> Buckets:
    """Return a histogram as a value."""
    return Buckets(histogram.bounds, histogram.counts, histogram.total_s)

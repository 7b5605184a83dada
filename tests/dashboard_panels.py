"""The panels of the Grafana dashboards, with their queries. `tests.dashboards` writes the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

RANGE = "5m"


class Query(NamedTuple):
    """A query of a panel. `$instance` and such are variables of the dashboard."""

    expr: str
    legend: str = "{{instance}}"
    quiet: bool = False  # has samples only when something is wrong, or was changed


class Panel(NamedTuple):
    title: str
    unit: str  # Grafana's name of it
    meaning: str
    queries: Sequence[Query]


class Variable(NamedTuple):
    name: str
    metric: str
    label: str


class Dashboard(NamedTuple):
    name: str
    title: str
    variables: Sequence[Variable]
    panels: Sequence[Panel]


GATEWAY = 'instance=~"$instance"'
TOPIC = 'topic=~"$topic"'
GROUP = 'consumergroup=~"$group"'
BOOKIE = 'instance=~"$instance"'

OVERVIEW = Dashboard(
    "overview",
    "Ledger gateway: overview",
    [Variable("instance", "gateway_ready", "instance")],
    [
        Panel(
            "Gateways that are ready",
            "short",
            "1 for each gateway that takes requests.",
            [Query(f"gateway_ready{{{GATEWAY}}}")],
        ),
        Panel(
            "Live gateways and bookies",
            "short",
            "As the gateways see them.",
            [Query("max(kafka_brokers)", "gateways"), Query("max(gateway_bookies)", "bookies")],
        ),
        Panel(
            "Bytes of records",
            "Bps",
            "Written (in) and fetched (out) by clients.",
            [
                Query(
                    "sum by (direction) "
                    f"(rate(gateway_topic_bytes_total{{{GATEWAY}}}[$__rate_interval]))",
                    "{{direction}}",
                )
            ],
        ),
        Panel(
            "Records",
            "cps",
            "Written (in) and fetched (out) by clients.",
            [
                Query(
                    "sum by (direction) "
                    f"(rate(gateway_topic_records_total{{{GATEWAY}}}[$__rate_interval]))",
                    "{{direction}}",
                )
            ],
        ),
        Panel(
            "Requests",
            "reqps",
            "By API.",
            [
                Query(
                    f"sum by (api) (rate(gateway_requests_total{{{GATEWAY}}}[$__rate_interval]))"
                    " > 0",
                    "{{api}}",
                )
            ],
        ),
        Panel(
            "Requests with an error",
            "reqps",
            "By API and error.",
            [
                Query(
                    "sum by (api, error) "
                    f'(rate(gateway_requests_total{{error!="NONE",{GATEWAY}}}[$__rate_interval]))',
                    "{{api}} {{error}}",
                    quiet=True,
                )
            ],
        ),
        Panel(
            "Time of Produce requests",
            "s",
            "p50 and p99 over all gateways, from the buckets.",
            [
                Query(
                    f"histogram_quantile({share}, sum by (le) (rate("
                    f'gateway_request_seconds_bucket{{api="Produce",{GATEWAY}}}'
                    "[$__rate_interval])))",
                    name,
                )
                for share, name in ((0.5, "p50"), (0.99, "p99"))
            ],
        ),
        Panel(
            "Time of Fetch requests",
            "s",
            "With the time for which they wait for records.",
            [
                Query(
                    f"histogram_quantile({share}, sum by (le) (rate("
                    f'gateway_request_seconds_bucket{{api="Fetch",{GATEWAY}}}[$__rate_interval])))',
                    name,
                )
                for share, name in ((0.5, "p50"), (0.99, "p99"))
            ],
        ),
        Panel(
            "Connections",
            "short",
            "Open ones.",
            [Query(f"gateway_connections{{{GATEWAY}}}")],
        ),
        Panel(
            "Refused connections",
            "cps",
            "By reason.",
            [
                Query(
                    "sum by (reason) "
                    f"(rate(gateway_connections_refused_total{{{GATEWAY}}}[$__rate_interval]))",
                    "{{reason}}",
                )
            ],
        ),
        Panel(
            "Lag of the event loop",
            "s",
            "p99 of how late the timer of each second was.",
            [
                Query(
                    "histogram_quantile(0.99, sum by (le, instance) "
                    f"(rate(gateway_loop_lag_seconds_bucket{{{GATEWAY}}}[$__rate_interval])))"
                )
            ],
        ),
        Panel(
            "Adds to ledgers",
            "s",
            "p99 of the time until the ack quorum had an entry.",
            [
                Query(
                    "histogram_quantile(0.99, sum by (le, instance) "
                    f"(rate(gateway_add_seconds_bucket{{{GATEWAY}}}[$__rate_interval])))"
                )
            ],
        ),
        Panel(
            "Takeovers, rolls and rebalances",
            "short",
            f"In the last {RANGE}.",
            [
                Query(f"sum(increase(gateway_takeover_seconds_count[{RANGE}]))", "takeovers"),
                Query(f"sum(increase(gateway_segment_rolls_total[{RANGE}]))", "rolls"),
                Query(f"sum(increase(gateway_rebalances_total[{RANGE}]))", "rebalances"),
            ],
        ),
        Panel(
            "Ensemble changes",
            "short",
            f"Bookies replaced in the last {RANGE}, by why.",
            [
                Query(
                    f"sum by (reason) (increase(gateway_ensemble_changes_total[{RANGE}]))",
                    "{{reason}}",
                )
            ],
        ),
        Panel(
            "Memory",
            "bytes",
            "Resident, of each gateway.",
            [Query(f'process_resident_memory_bytes{{job="gateways",{GATEWAY}}}')],
        ),
        Panel(
            "CPU",
            "percentunit",
            "Of one core.",
            [
                Query(
                    f'rate(process_cpu_seconds_total{{job="gateways",{GATEWAY}}}[$__rate_interval])'
                )
            ],
        ),
    ],
)

TOPICS = Dashboard(
    "topics-and-groups",
    "Ledger gateway: topics and groups",
    [
        Variable("topic", "kafka_topic_partitions", "topic"),
        Variable("group", "gateway_consumergroup_info", "consumergroup"),
    ],
    [
        Panel(
            "Bytes written",
            "Bps",
            "The first 500 topics of a gateway; the rest is `other`.",
            [
                Query(
                    "sum by (topic) (rate(gateway_topic_bytes_total"
                    f'{{direction="in",{TOPIC}}}[$__rate_interval]))',
                    "{{topic}}",
                )
            ],
        ),
        Panel(
            "Bytes fetched",
            "Bps",
            "The first 500 topics of a gateway; the rest is `other`.",
            [
                Query(
                    "sum by (topic) (rate(gateway_topic_bytes_total"
                    f'{{direction="out",{TOPIC}}}[$__rate_interval]))',
                    "{{topic}}",
                )
            ],
        ),
        Panel(
            "Records written",
            "cps",
            "By the ends of the partitions.",
            [
                Query(
                    "sum by (topic) (rate(kafka_topic_partition_current_offset"
                    f"{{{TOPIC}}}[$__rate_interval]))",
                    "{{topic}}",
                )
            ],
        ),
        Panel(
            "Records kept",
            "short",
            "Offsets from the start to the end of the log.",
            [
                Query(
                    f"sum by (topic) (kafka_topic_partition_current_offset{{{TOPIC}}}"
                    f" - kafka_topic_partition_oldest_offset{{{TOPIC}}})",
                    "{{topic}}",
                )
            ],
        ),
        Panel(
            "Lag in records",
            "short",
            "Of each group.",
            [
                Query(
                    f"sum by (consumergroup) (kafka_consumergroup_lag{{{GROUP}}} >= 0)",
                    "{{consumergroup}}",
                )
            ],
        ),
        Panel(
            "Lag in seconds",
            "s",
            "Age of the oldest record that a group has not read.",
            [
                Query(
                    f"max by (consumergroup) (gateway_consumergroup_lag_seconds{{{GROUP}}})",
                    "{{consumergroup}}",
                )
            ],
        ),
        Panel(
            "Members",
            "short",
            "Of each group.",
            [
                Query(
                    f"sum by (consumergroup) (kafka_consumergroup_members{{{GROUP}}})",
                    "{{consumergroup}}",
                )
            ],
        ),
        Panel(
            "Blocked partitions and readers",
            "short",
            "Readers that wait for a record which no bookie returns.",
            [
                Query("sum(gateway_blocked_partitions)", "partitions"),
                Query("sum(gateway_readers_stuck)", "readers that have waited 121 s"),
            ],
        ),
        Panel(
            "Lost records",
            "short",
            "Records that no bookie can have any more.",
            [
                Query(
                    f"sum by (topic, accepted) (gateway_topic_partition_lost_records{{{TOPIC}}})",
                    "{{topic}} accepted={{accepted}}",
                    quiet=True,
                )
            ],
        ),
        Panel(
            "Dirty bytes of compacted topics",
            "bytes",
            "Bytes that compaction has not cleaned.",
            [
                Query(
                    f"sum by (topic) (gateway_topic_partition_dirty_bytes{{{TOPIC}}})",
                    "{{topic}}",
                )
            ],
        ),
        Panel(
            "Segments",
            "short",
            "Of the partitions that each gateway leads.",
            [Query("gateway_segments")],
        ),
        Panel(
            "Left out",
            "short",
            "What has no sample, for want of room.",
            [Query("sum by (what) (gateway_metrics_left_out)", "{{what}}")],
        ),
    ],
)

BOOKIES = Dashboard(
    "bookies",
    "Ledger gateway: bookies",
    [Variable("instance", "bookie_info", "instance")],
    [
        Panel(
            "Bookies that take adds",
            "short",
            "1: it takes adds; 0: it is read-only, or its disk failed.",
            [Query(f"bookie_writable{{{BOOKIE}}}")],
        ),
        Panel(
            "Sync time",
            "s",
            "p50 and p99 of writing and syncing a group of records.",
            [
                Query(
                    f"histogram_quantile({share}, sum by (le, instance) "
                    f"(rate(bookie_sync_seconds_bucket{{{BOOKIE}}}[$__rate_interval])))",
                    f"{{{{instance}}}} {name}",
                )
                for share, name in ((0.5, "p50"), (0.99, "p99"))
            ],
        ),
        Panel(
            "Bytes of groups",
            "bytes",
            "Mean.",
            [
                Query(
                    f"rate(bookie_group_bytes_sum{{{BOOKIE}}}[$__rate_interval])"
                    f" / rate(bookie_group_bytes_count{{{BOOKIE}}}[$__rate_interval])"
                )
            ],
        ),
        Panel(
            "Bytes written to the journal",
            "Bps",
            "Of all groups.",
            [Query(f"rate(bookie_group_bytes_sum{{{BOOKIE}}}[$__rate_interval])")],
        ),
        Panel(
            "Queue",
            "bytes",
            "Bytes that wait for the next group.",
            [Query(f"bookie_queue_bytes{{{BOOKIE}}}")],
        ),
        Panel(
            "Adds",
            "ops",
            "By status.",
            [
                Query(
                    "sum by (instance, status) "
                    f"(rate(bookie_adds_total{{{BOOKIE}}}[$__rate_interval]))",
                    "{{instance}} {{status}}",
                )
            ],
        ),
        Panel(
            "Reads",
            "ops",
            "By status.",
            [
                Query(
                    "sum by (instance, status) "
                    f"(rate(bookie_reads_total{{{BOOKIE}}}[$__rate_interval]))",
                    "{{instance}} {{status}}",
                )
            ],
        ),
        Panel(
            "Free disk",
            "bytes",
            "And the free bytes below which a bookie is read-only.",
            [
                Query(f"bookie_disk_free_bytes{{{BOOKIE}}}", "{{instance}} free"),
                Query(f"bookie_disk_needed_bytes{{{BOOKIE}}}", "{{instance}} needed"),
            ],
        ),
        Panel(
            "Ledgers",
            "short",
            "Of which a bookie stores entries.",
            [Query(f"bookie_ledgers{{{BOOKIE}}}")],
        ),
        Panel(
            "Collections",
            "short",
            f"Searches for deleted ledgers in the last {RANGE}.",
            [
                Query(
                    f"increase(bookie_collections_total{{{BOOKIE}}}[{RANGE}])",
                    "{{instance}} {{outcome}}",
                )
            ],
        ),
        Panel(
            "Ledgers that lack copies",
            "short",
            "As the elected auditor lists them.",
            [
                Query("sum(bookie_audit_underreplicated_ledgers)", "under-replicated"),
                Query("sum(bookie_audit_hopeless_ledgers)", "hopeless"),
            ],
        ),
        Panel(
            "Copied by repair",
            "Bps",
            "Of all auditors.",
            [Query("sum(rate(bookie_audit_copied_bytes_total[$__rate_interval]))", "copied")],
        ),
        Panel(
            "Avoided bookies",
            "short",
            "As each gateway avoids them.",
            [Query("sum by (reason) (gateway_bookies_greylisted)", "{{reason}}")],
        ),
        Panel(
            "Adds as gateways see them",
            "s",
            "p99 of the time until the ack quorum had an entry.",
            [
                Query(
                    "histogram_quantile(0.99, sum by (le) "
                    "(rate(gateway_add_seconds_bucket[$__rate_interval])))",
                    "p99",
                )
            ],
        ),
    ],
)

_QUERY = (
    "* on (consumergroup) group_left () max by (consumergroup) "
    '(gateway_consumergroup_info{type="read-only"})'
)
SPARK = Dashboard(
    "spark",
    "Ledger gateway: Spark",
    [Variable("group", "gateway_consumergroup_info", "consumergroup")],
    [
        Panel(
            "Queries",
            "short",
            "Streaming and batch queries that read topics, and commit nothing.",
            [Query('sum(gateway_consumergroup_info{type="read-only"})', "queries", quiet=True)],
        ),
        Panel(
            "Lag in records",
            "short",
            "From what a query fetches next to the end.",
            [
                Query(
                    f"sum by (consumergroup) (kafka_consumergroup_lag{{{GROUP}}} >= 0) {_QUERY}",
                    "{{consumergroup}}",
                    quiet=True,
                )
            ],
        ),
        Panel(
            "Lag in seconds",
            "s",
            "Age of the oldest record that a query has not fetched.",
            [
                Query(
                    "max by (consumergroup) "
                    f"(gateway_consumergroup_lag_seconds{{{GROUP}}}) {_QUERY}",
                    "{{consumergroup}}",
                    quiet=True,
                )
            ],
        ),
        Panel(
            "Records fetched",
            "cps",
            "Growth of the offsets that a query fetches next.",
            [
                Query(
                    "sum by (consumergroup) (rate(kafka_consumergroup_current_offset"
                    f"{{{GROUP}}}[$__rate_interval])) {_QUERY}",
                    "{{consumergroup}}",
                    quiet=True,
                )
            ],
        ),
        Panel(
            "Archive job: records per second",
            "cps",
            "Of `gateway job archive --metrics-port`.",
            [Query("gateway_job_records_per_second", quiet=True)],
        ),
        Panel(
            "Archive job: lag",
            "short",
            "Offsets that are not archived yet.",
            [Query("gateway_job_lag", quiet=True)],
        ),
        Panel(
            "Archive job: last commit",
            "dateTimeFromNow",
            "When it was.",
            [Query("gateway_job_last_commit_timestamp_seconds * 1000", quiet=True)],
        ),
        Panel(
            "Archive job: retries",
            "short",
            f"Retried errors in the last {RANGE}.",
            [
                Query(
                    f"sum by (code) (increase(gateway_job_retries_total[{RANGE}]))",
                    "{{code}}",
                    True,
                )
            ],
        ),
    ],
)

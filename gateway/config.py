"""Limits and settings, one frozen dataclass per component: name, unit, default, bound, reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds on one client connection and on all of them. Source: reliability of Kafka brokers."""

    frame_bytes_max: int = 100 * 1024 * 1024  # Kafka: socket.request.max.bytes
    requests_in_flight_max: int = 100  # above it the connection reads no more requests
    write_buffer_bytes_max: int = 16 * 1024 * 1024  # above it a peer that never reads is closed
    frame_s_max: float = 30.0  # silence within a frame
    first_request_s_max: float = 10.0
    idle_s_max: float = 600.0  # Kafka: connections.max.idle.ms
    connections_max: int = 10_000
    connections_per_address_max: int = 1_000  # loopback is exempt
    request_bytes_total_max: int = 256 * 1024 * 1024  # memory for all requests in process

    def __post_init__(self) -> None:
        assert 1024 <= self.frame_bytes_max <= 2**31 - 1
        assert self.requests_in_flight_max > 0
        assert self.request_bytes_total_max >= self.frame_bytes_max


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Bounds on one Fetch."""

    wait_ms_max: int = 30_000
    response_bytes_max: int = 50 * 1024 * 1024
    sessions_max: int = 1_000  # Kafka: max.incremental.fetch.session.cache.slots
    session_idle_s_max: float = 120.0

    def __post_init__(self) -> None:
        assert 0 < self.wait_ms_max <= 2**31 - 1  # int32 on the wire
        assert self.response_bytes_max >= 1024 * 1024
        assert self.sessions_max > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Classic consumer groups. Defaults are Kafka's broker settings of the same meaning."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    members_max: int = 10_000
    metadata_bytes_max: int = 4_096  # offset.metadata.max.bytes
    member_metadata_bytes_max: int = 1024 * 1024
    offsets_retention_minutes: int = 10_080
    new_member_timeout_ms: int = 300_000

    def __post_init__(self) -> None:
        assert 0 < self.session_timeout_ms_min <= self.session_timeout_ms_max
        assert self.initial_rebalance_delay_ms >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLimits:
    """Bounds on read-only groups: Spark's queries, which commit nothing; their fetches
    show them.
    """

    groups_max: int = 1_000  # above it the group with the oldest fetch is removed
    clients_max: int = 1_000  # of one group
    positions_max: int = 200_000  # of all groups
    batch_idle_s_max: float = 600.0  # a batch query without fetches has ended
    stream_idle_s_max: float = 86_400.0  # a streaming query: its lag stays visible after it failed
    ask_s_max: float = 1.0  # a broker that does not answer in time is left out

    def __post_init__(self) -> None:
        assert self.groups_max > 0
        assert self.clients_max > 0
        assert self.positions_max > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLimits:
    """Bounds on the metrics page; `gateway_metrics_left_out` counts samples beyond them."""

    partitions_max: int = 5_000  # led by this broker
    groups_max: int = 1_000  # coordinated by this broker; loaded groups first
    positions_max: int = 10_000  # of all groups
    reads_max: int = 200  # groups without members that one page reads from the store
    read_s_max: float = 2.0  # for all of them
    reads_hold_s: float = 300.0  # then read again: another broker may have coordinated it
    ask_s_max: float = 2.0  # for end offsets of another broker

    def __post_init__(self) -> None:
        assert self.partitions_max >= 0
        assert self.groups_max >= 0
        assert self.positions_max >= 0
        assert self.reads_max > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """Defaults of a topic without settings of its own. Kafka's broker defaults."""

    partitions: int = 1  # num.partitions
    replication_factor: int = 1  # default.replication.factor; the embedded bookies' Qw
    auto_create: bool = True  # auto.create.topics.enable
    partitions_max: int = 10_000  # per topic
    partitions_total_max: int = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """One gateway process."""

    data: Path = Path("data")
    host: str = "127.0.0.1"
    port: int = 9092  # 0: any free port
    advertised_host: str | None = None  # for clients; default: where they connected
    node_id: int = 0
    bookies: int = 1  # embedded bookies: 1 (1/1/1) or 3 (E 3, Qw 3, Qa 2)
    journal_sync: str = "group"  # "group": on disk before every acknowledgement; "never"
    zookeeper: str = ""  # servers of the cluster, "host:port,.../chroot"; "": embedded, no cluster
    session_ms: int = 10_000  # ZooKeeper session: how long a killed broker stays registered
    bookie_tls: tuple[Path, Path, Path] | None = None  # certificate, key, CA for bookies
    rack: str = ""  # bookies of this rack are preferred; consumers of it read here
    workers: int = 1  # processes of `gateway serve`, each a broker of its own
    log_segment_based_subscriptions_store_enabled: bool = False  # seed 004: second rollout step
    accept_loss: bool = False  # continue with what is left of ledgers that a bookie may have lost
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)
    fetch: FetchLimits = field(default_factory=FetchLimits)
    ledger_port: int | None = (
        None  # embedded: for readers of ledgers, on 127.0.0.1; 0: any free port
    )
    metrics_port: int | None = None  # HTTP, /metrics for Prometheus; 0: any free port; None: off
    groups: GroupLimits = field(default_factory=GroupLimits)
    readers: ReaderLimits = field(default_factory=ReaderLimits)
    metrics: MetricsLimits = field(default_factory=MetricsLimits)
    topics: TopicDefaults = field(default_factory=TopicDefaults)

    def __post_init__(self) -> None:
        assert self.bookies in (1, 3)
        assert self.journal_sync in ("group", "never")
        assert 0 <= self.port <= 65_535

"""Limits and settings, one frozen dataclass per component: name, unit, default, bound, reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ledger.ports.disk import IoMode

LOGIN_BYTES_MAX: Final = 64 * 1024 * 1024
"""The memory of requests that all clients share which have not logged in yet."""

if TYPE_CHECKING:
    from ledger.command_line.zookeeper_settings import ZooKeeperSecurity


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on each client connection and on all connections together."""

    frame_bytes_max: int = 100 * 1024 * 1024  # Kafka: socket.request.max.bytes
    requests_in_flight_max: int = 100  # unanswered requests at which a connection stops reading
    write_buffer_bytes_max: int = 16 * 1024 * 1024  # unsent bytes that close the connection
    frame_s_max: float = 30.0  # longest pause within a frame or in reading replies
    first_request_s_max: float = 10.0
    idle_s_max: float = 600.0  # Kafka: connections.max.idle.ms
    connections_max: int = 10_000
    connections_per_address_max: int = 1_000  # loopback is exempt unless `counts_loopback`
    counts_loopback: bool = False  # a configured limit of addresses is one of loopback, as in Kafka
    per_address: tuple[tuple[str, int], ...] = ()  # limits of single addresses in place of it
    per_listener: tuple[tuple[str, int], ...] = ()  # limits of single listeners, by name
    protected_listener: str = ""  # beside others it may exceed `connections_max` a little
    connections_per_s_max: int = 0  # new ones of all listeners together; 0: any number
    memory_bytes_max: int = (
        512 * 1024 * 1024
    )  # requests, replies, read-ahead and fetch sessions (--memory)

    def __post_init__(self) -> None:
        assert 1024 <= self.frame_bytes_max <= 2**31 - 1
        assert self.requests_in_flight_max > 0
        assert self.request_bytes_max >= self.frame_bytes_max

    @property
    def request_bytes_max(self) -> int:
        """The part of the memory that requests may use."""
        return self.memory_bytes_max // 2

    @property
    def login_bytes_max(self) -> int:
        """The part of the memory of requests for clients that have not logged in yet: 64 MiB.

        It is reserved only where there is a listener with SASL.
        """
        return min(LOGIN_BYTES_MAX, self.request_bytes_max // 4)

    @property
    def session_bytes_max(self) -> int:
        """The part of the memory that fetch sessions may use."""
        return self.memory_bytes_max // 8

    @property
    def reply_bytes_max(self) -> int:
        """The part of the memory that replies may use, from the read of their records on.

        The parts are separate: unread replies never keep a request from being read.
        """
        others = self.request_bytes_max + self.session_bytes_max + self.read_ahead_bytes_max
        return self.memory_bytes_max - others

    @property
    def read_ahead_bytes_max(self) -> int:
        """The part of the memory for what is read ahead of clients that are behind."""
        return self.memory_bytes_max // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits on Fetch requests and fetch sessions."""

    wait_ms_max: int = 30_000
    response_bytes_max: int = 50 * 1024 * 1024
    sessions_max: int = 1_000  # Kafka: max.incremental.fetch.session.cache.slots
    session_idle_s_max: float = 120.0

    def __post_init__(self) -> None:
        assert 0 < self.wait_ms_max <= 2**31 - 1  # the wait is an int32 on the wire
        assert self.response_bytes_max >= 1024 * 1024
        assert self.sessions_max > 0


REBALANCE_PROTOCOLS: Final = ("classic", "consumer", "share", "streams")
"""The protocols of groups in Kafka. Those of share groups and of Streams are not served."""

MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")
"""Whether a group with members may change its protocol. To upgrade: to become a consumer group."""

CONSUMER_ASSIGNORS: Final = ("uniform", "range")
"""The assignors of the consumer protocol, in the order of Kafka's `group.consumer.assignors`."""

CONSUMER_MEMBERS_CEILING: Final = 10_000
"""The most members of a group of the consumer protocol, whatever `group.consumer.max.size` is."""

UPGRADING: Final = ("bidirectional", "upgrade")
DOWNGRADING: Final = ("bidirectional", "downgrade")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Limits on consumer groups. Defaults are taken from Kafka's broker settings."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    members_max: int = 10_000  # Kafka: group.max.size
    group_bytes_max: int = 8 * 1024 * 1024  # members of one group, with their assignments
    bytes_total_max: int = 256 * 1024 * 1024  # of all groups, with assignments
    metadata_bytes_max: int = 4_096  # Kafka: offset.metadata.max.bytes
    member_metadata_bytes_max: int = 1024 * 1024
    offsets_retention_minutes: int = 10_080
    new_member_timeout_ms: int = 300_000
    # Kafka: group.coordinator.rebalance.protocols
    rebalance_protocols: tuple[str, ...] = ("classic", "consumer")
    migration_policy: str = "bidirectional"  # Kafka: group.consumer.migration.policy
    consumer_members_max: int = 2**31 - 1  # Kafka: group.consumer.max.size; 10,000 at most act
    consumer_regexes_max: int = 100  # different regular expressions of one group
    consumer_assignors: tuple[str, ...] = CONSUMER_ASSIGNORS  # Kafka: group.consumer.assignors
    consumer_session_timeout_ms: int = 45_000  # Kafka: group.consumer.session.timeout.ms
    consumer_session_timeout_ms_min: int = 45_000  # for the configs of groups, as is each bound
    consumer_session_timeout_ms_max: int = 60_000
    consumer_heartbeat_interval_ms: int = 5_000  # Kafka: group.consumer.heartbeat.interval.ms
    consumer_heartbeat_interval_ms_min: int = 5_000
    consumer_heartbeat_interval_ms_max: int = 15_000
    consumer_assignment_interval_ms: int = 1_000  # Kafka: group.consumer.assignment.interval.ms
    consumer_assignment_interval_ms_min: int = 0
    consumer_assignment_interval_ms_max: int = 15_000

    def __post_init__(self) -> None:
        assert 0 < self.session_timeout_ms_min <= self.session_timeout_ms_max
        assert self.initial_rebalance_delay_ms >= 0
        assert "classic" in self.rebalance_protocols
        assert self.migration_policy in MIGRATION_POLICIES
        assert self.consumer_assignors
        assert set(self.consumer_assignors) <= set(CONSUMER_ASSIGNORS)
        session_ms, heartbeat_ms = (
            self.consumer_session_timeout_ms,
            self.consumer_heartbeat_interval_ms,
        )
        assert 0 < self.consumer_session_timeout_ms_min <= session_ms
        assert session_ms <= self.consumer_session_timeout_ms_max
        assert 0 < self.consumer_heartbeat_interval_ms_min <= heartbeat_ms < session_ms
        assert heartbeat_ms <= self.consumer_heartbeat_interval_ms_max
        assert self.consumer_assignment_interval_ms_min >= 0
        assert self.consumer_assignment_interval_ms_min <= self.consumer_assignment_interval_ms
        assert self.consumer_assignment_interval_ms <= self.consumer_assignment_interval_ms_max


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """Limits on transactions, with Kafka's defaults."""

    timeout_ms_max: int = 900_000  # Kafka: transaction.max.timeout.ms
    id_expiration_ms: int = 604_800_000  # Kafka: transactional.id.expiration.ms
    # Kafka: transaction.abort.timed.out.transaction.cleanup.interval.ms
    scan_ms: int = 10_000
    memory_bytes_max: int = 256 * 1024 * 1024  # of all ids that this broker coordinates

    @property
    def ids_bytes_max(self) -> int:
        """The part of the memory in which new ids are admitted. Known ids may use all of it."""
        return self.memory_bytes_max - self.memory_bytes_max // 8

    def __post_init__(self) -> None:
        assert 0 < self.timeout_ms_max < 2**31
        assert self.id_expiration_ms > 0 < self.scan_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLimits:
    """Limits on read-only groups. Spark's queries are tracked by their fetches."""

    groups_max: int = 1_000  # one more evicts the group with the oldest fetch
    clients_max: int = 1_000  # clients tracked per group
    positions_max: int = 200_000  # partitions tracked in all groups together
    batch_idle_s_max: float = 600.0  # a batch query without fetches is dropped after this time
    stream_idle_s_max: float = 86_400.0  # a streaming query without fetches is kept for this time
    ask_s_max: float = 1.0  # a broker that does not answer in time is left out

    def __post_init__(self) -> None:
        assert self.groups_max > 0
        assert self.clients_max > 0
        assert self.positions_max > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLimits:
    """Limits on the metrics page. `gateway_metrics_left_out` counts the samples left out."""

    partitions_max: int = 5_000  # partitions led by this broker
    groups_max: int = 1_000  # groups coordinated by this broker; loaded groups come first
    positions_max: int = 10_000  # offsets of all groups together
    reads_max: int = 200  # groups without members that one page reads from the store
    read_s_max: float = 2.0  # time for all store reads of one page
    reads_hold_s: float = 300.0  # age at which a group is read from the store again
    ask_s_max: float = 2.0  # time for another broker to return its end offsets

    def __post_init__(self) -> None:
        assert self.partitions_max >= 0
        assert self.groups_max >= 0
        assert self.positions_max >= 0
        assert self.reads_max > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """Defaults and limits of topics. The defaults are Kafka's broker defaults."""

    partitions: int = 1  # Kafka: num.partitions
    replication_factor: int = 1  # Kafka: default.replication.factor; the embedded bookies' Qw
    auto_create: bool = True  # Kafka: auto.create.topics.enable
    partitions_max: int = 10_000  # partitions of one topic
    partitions_total_max: int = 200_000


TAIL_CACHE_BYTES: Final = 32 * 1024 * 1024
"""The tail cache of an embedded gateway, whose bookie is in the same process."""

CLUSTER_TAIL_CACHE_BYTES: Final = 64 * 1024 * 1024
"""The tail cache of each gateway process of a cluster, where what it lacks costs a remote read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Where a gateway serves its web page, and what it serves there."""

    port: int | None = None  # 0 selects any free port, None serves no page
    may_be_taken: bool = False  # go on without a page if the port is in use
    host: str = "127.0.0.1"
    names: tuple[str, ...] = ()  # host names that requests may have, beside loopback's
    write: bool = False  # serve changes; without it they get 405
    hide_values: bool = False  # show no keys, values and headers of records
    open_metrics: bool = False  # /metrics asks for no password
    allow_insecure: bool = False  # beyond loopback without TLS and passwords
    password_file: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    connections_max: int = 32  # one more is answered with 503 and closed
    head_bytes_max: int = 8 * 1024  # of a request line with all headers
    body_bytes_max: int = 1024 * 1024
    head_s_max: float = 5.0  # until a connection has sent a whole head, and between two requests
    request_s_max: float = 5.0  # of one request, except streams of events
    unread_s_max: float = 30.0  # a client that reads nothing for this time is dropped

    @property
    def scheme(self) -> str:
        """The scheme of its addresses."""
        return "http" if self.certificate is None else "https"


STANDARD: Final = "standard"
"""The authorizer that decides by ACLs, as Kafka's StandardAuthorizer does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """How a gateway decides what its clients may do."""

    authorizer: str = ""  # `STANDARD`, or "": every client may do everything
    super_users: tuple[str, ...] = ()  # Kafka: super.users; principals that may do everything
    allow_everyone: bool = False  # Kafka: allow.everyone.if.no.acl.found

    def __post_init__(self) -> None:
        assert self.authorizer in ("", STANDARD)


PLAINTEXT: Final = "PLAINTEXT"
"""The name of the only listener of a gateway that names none, as in Kafka."""


class Listener(NamedTuple):
    """An address that a gateway listens on, and the one that clients of it are given."""

    name: str
    host: str
    port: int  # 0 selects any free port
    advertised_host: str | None = None  # None: the address to which the client connected
    advertised_port: int | None = None  # None: the port to which the client connected
    protocol: str = PLAINTEXT  # Kafka's name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL

    @property
    def has_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        """True if clients authenticate by SASL."""
        return self.protocol.startswith("SASL")

    def address(self, local_host: str, local_port: int) -> tuple[str, int]:
        """Return the address for a client that connected to this local address."""
        return self.advertised_host or local_host, self.advertised_port or local_port


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """The keys and certificates of the Kafka port. A secret is `file:PATH` or `env:NAME`."""

    keystore: Path | None = None  # PEM file with the private key and the certificates
    certificates: str = ""  # in place of `keystore`: PEM text, `file:PATH` or `env:NAME`
    key: str = ""  # the private key of `certificates`
    key_password: str = ""  # passphrase of the private key
    truststore: Path | None = None  # PEM file with CA certificates
    trusted: str = ""  # in place of `truststore`: PEM text, `file:PATH` or `env:NAME`
    revoked: Path | None = None  # PEM file with certificate revocation lists
    client_auth: str = "none"  # or "requested", "required"
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()  # suites of TLS 1.2 by OpenSSL's names; (): OpenSSL's choice
    principal_rules: str = "DEFAULT"  # Kafka: ssl.principal.mapping.rules
    handshake_s_max: float = 10.0
    handshakes_max: int = 1_000  # at once; one more connection is refused
    handshakes_per_address_max: int = 200  # loopback addresses are exempt

    def __post_init__(self) -> None:
        assert self.client_auth in ("none", "requested", "required")
        assert self.protocols


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthConfig:
    """Which tokens of OAUTHBEARER are valid, by Kafka's keys `sasl.oauthbearer.*`."""

    jwks: Path | str = ""  # a file with the keys of the issuer, or an https URL
    issuer: str = ""
    audiences: tuple[str, ...] = ()  # a token must be for one of them
    scopes: tuple[str, ...] = ()  # a token must have all of them
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256")  # never none, never HMAC
    scope_claim: str = "scope"
    subject_claim: str = "sub"
    skew_s: float = 30.0  # by which clocks may differ
    refresh_s: float = 3_600.0  # between two readings of the keys

    def __post_init__(self) -> None:
        assert all(each[:2] in ("RS", "PS", "ES") for each in self.algorithms)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """How clients authenticate by SASL, and how this gateway does at others."""

    mechanisms: tuple[str, ...] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
    session_s: float = 0.0  # Kafka: connections.max.reauth.ms; 0: sessions have no end
    frame_bytes_max: int = 512 * 1024  # before success; Kafka: sasl.server.max.receive.size
    login_s_max: float = 30.0  # from accept until success
    failure_s: float = (
        0.25  # from a token to the answer that it is wrong, whatever is wrong with it
    )
    checks_max: int = 1  # passwords of PLAIN checked at once, in threads of the lowest priority
    checks_waiting_max: int = 256  # one more is refused
    checks_per_address_max: int = 16  # of them
    user: str = ""  # as which this gateway authenticates at other gateways, and its page here
    password: str = ""  # of `user`: `file:PATH` or `env:NAME`
    mechanism: str = "SCRAM-SHA-512"  # by which it does
    oauth: OAuthConfig = field(default_factory=OAuthConfig)  # if OAUTHBEARER is enabled

    def __post_init__(self) -> None:
        assert self.mechanisms
        assert 0.1 <= self.failure_s <= 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaConfig:
    """The windows over which rates of quotas are measured, with Kafka's defaults."""

    samples: int = 11  # Kafka: quota.window.num; the newest one is not complete
    sample_ms: int = 1_000  # Kafka: quota.window.size.seconds
    controller_samples: int = 11  # Kafka: controller.quota.window.num; the burst, in samples
    controller_sample_ms: int = 1_000  # Kafka: controller.quota.window.size.seconds

    def __post_init__(self) -> None:
        assert min(self.samples, self.sample_ms) > 0
        assert min(self.controller_samples, self.controller_sample_ms) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The settings of one gateway process."""

    data: Path = Path("data")
    host: str = "127.0.0.1"
    port: int = 9092  # 0 selects any free port
    advertised_host: str | None = None  # host for clients; default: the address they connected to
    advertised_port: int | None = None  # port for clients (embedded); default as above
    listeners: tuple[Listener, ...] = ()  # all of them; none: one by host, port and advertised_*
    inter_broker_listener: str = ""  # listener for other gateways; "": PLAINTEXT or the first one
    peer_host: str | None = None  # host for other gateways; default: the host for clients
    peer_port: int | None = None  # port for other gateways; default: `port`
    node_id: int = 0
    bookies: int = 1  # number of embedded bookies: 1, or 3 with E 3, Qw 3 and Qa 2
    journal_sync: str = "group"  # "group" syncs before every acknowledgement, "never" does not
    io: IoMode = (
        "auto"  # "uring": embedded journals are written by io_uring; "auto": where it works
    )
    zookeeper: str = ""  # "host:port,.../chroot" of the cluster; "" starts an embedded gateway
    zookeeper_security: ZooKeeperSecurity | None = None  # identity and TLS there; None: neither
    session_ms: int = 10_000  # ZooKeeper session timeout: how long a lost machine counts
    bookie_tls: tuple[Path, Path, Path] | None = None  # certificate, key and CA for bookies
    bookie_tls_roles: bool = True  # False accepts bookies whose certificate has no role
    bookie_transport: str = "tcp"  # or "grpc": how bookies are reached
    rack: str = ""  # rack of this broker, for bookie placement and consumer reads
    reader_slow_shards_detection: str = "enabled"  # or "observe-only", "disabled" (in a cluster)
    workers: int = 1  # processes of `gateway serve`, each one a broker
    log_segment_based_subscriptions_store_enabled: bool | None = None  # default: the cluster's form
    accept_loss: bool = False  # serve ledgers of which a bookie may have lost entries
    tail_cache_bytes: int = TAIL_CACHE_BYTES  # newest records of all partitions (--tail-cache)
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)
    fetch: FetchLimits = field(default_factory=FetchLimits)
    ledger_port: int | None = (
        None  # port for ledger readers on 127.0.0.1 (embedded); 0 selects a free port
    )
    any_ledger_port: bool = False  # take any free port if `ledger_port` is in use
    secure: Path | None = None  # where the files of `gateway dev --secure` are
    until_stdin_ends: bool = False  # stop when stdin ends (embedded)
    metrics_port: int | None = None  # HTTP port of /metrics; 0 selects a free port, None disables
    http: HttpConfig = field(default_factory=HttpConfig)
    groups: GroupLimits = field(default_factory=GroupLimits)
    readers: ReaderLimits = field(default_factory=ReaderLimits)
    metrics: MetricsLimits = field(default_factory=MetricsLimits)
    transaction: TransactionLimits = field(default_factory=TransactionLimits)
    topics: TopicDefaults = field(default_factory=TopicDefaults)
    authorization: Authorization = field(default_factory=Authorization)
    tls: TlsConfig = field(default_factory=TlsConfig)
    sasl: SaslConfig = field(default_factory=SaslConfig)
    # Those of listeners that have settings of their own, by the name of the listener.
    listener_tls: Mapping[str, TlsConfig] = field(default_factory=dict[str, TlsConfig])
    listener_sasl: Mapping[str, SaslConfig] = field(default_factory=dict[str, SaslConfig])
    audit_log: str = ""  # a file, or "stderr": where denials, failed logins and changes are noted
    quotas: QuotaConfig = field(default_factory=QuotaConfig)

    def __post_init__(self) -> None:
        assert self.bookies in (1, 3)
        assert self.journal_sync in ("group", "never")
        assert 0 <= self.port <= 65_535
        assert len({each.name for each in self.listeners}) == len(self.listeners)

    def tls_of(self, listener: Listener) -> TlsConfig:
        """Return the TLS of a listener.

        As in Kafka, a `ssl.client.auth` of all listeners is not for those with SASL.
        """
        found = self.listener_tls.get(listener.name)
        if found is not None:
            return found
        return replace(self.tls, client_auth="none") if listener.has_sasl else self.tls

    def sasl_of(self, listener: Listener) -> SaslConfig:
        """Return the SASL of a listener."""
        return self.listener_sasl.get(listener.name, self.sasl)

    @property
    def all_listeners(self) -> tuple[Listener, ...]:
        """The listeners; the first one is for clients of earlier releases of other gateways."""
        only = Listener(PLAINTEXT, self.host, self.port, self.advertised_host, self.advertised_port)
        return self.listeners or (only,)

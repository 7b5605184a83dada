"""Defines a handler of a Kafka API: one row per API, a request in, a reply out.

A handler is a function `handle(request, ctx)`. It returns a `Result` at once (hot paths), a future
of a result or a coroutine. A future means that the request is accepted now and answered later, such
as a Produce or a delayed Fetch. A connection sends replies in the order of its requests, even if
later requests complete first.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from gateway.access import ANONYMOUS
from gateway.config import PLAINTEXT, Listener
from gateway.handlers.request_metrics import ConnectionCounts, RequestMetrics
from gateway.settings.broker_overrides import BrokerOverrides
from ledger.ids import Buffer

if TYPE_CHECKING:
    from gateway.access import Authorizer
    from gateway.cleaning.cleaner import Cleaner
    from gateway.cluster.port import Cluster
    from gateway.config import GatewayConfig
    from gateway.core.fetch_session import FetchSessions
    from gateway.core.quota_book import Mutations
    from gateway.features.features import Features
    from gateway.groups.coordinator import Coordinator
    from gateway.groups.read_only_groups import ReadOnlyGroups
    from gateway.settings.enforced_quotas import EnforcedQuotas
    from gateway.settings.stored_acls import StoredAcls
    from gateway.settings.stored_settings import StoredSettings
    from gateway.topics.catalog import Catalog
    from gateway.topics.connection_fetches import ConnectionFetches
    from gateway.topics.greylist_report import AvoidedBookies
    from gateway.topics.partitions import Partitions
    from gateway.topics.producer_ids import ProducerIds
    from gateway.topics.reply_memory import ReplyMemory
    from gateway.transactions.coordinators import TransactionCoordinators
    from gateway.transactions.local_markers import LocalMarkers
    from ledger.ports.bookies import Bookies
    from ledger.ports.clock import Clock, Histogram
    from ledger.ports.metadata import MetadataStore
    from ledger.streams.services import StreamServices

ALL_PARTITIONS_MAX = 110_000
"""Array elements in a request that may name all partitions of a cluster, in up to 10,000 topics."""


class Reply(dict[str, Any]):
    """The fields of a response by kio's names; `wire.messages` drops fields not in the version.

    Nested structs are Replies too, and arrays are lists. A field that is left out gets the default
    of the schema, otherwise 0, "", None (if nullable), False or ().
    """


Result = Reply | Sequence[Buffer] | None
"""The result of a handler: a reply to encode, or encoded buffers, or None for no reply.

Buffers contain the response header, but not the frame size.
"""


@dataclass(slots=True, eq=False)
class Peer:
    """One connection: the client's address, and the local address to which it connected."""

    host: str
    port: int
    local_host: str
    local_port: int
    listener: str = PLAINTEXT
    """The name of the listener that accepted the connection."""
    principal: str = ANONYMOUS
    """The client, once it has authenticated: a type and a name, such as `User:alice`."""
    mechanism: str = ""
    """How it authenticated: by a mechanism of SASL, or by SSL."""
    looked_up: int = 0
    """Requests that clients send before they connect to the address of a broker."""
    sent_here: bool = False
    """True once a reply to Metadata led this client to this broker, and to no other."""
    fetches: ConnectionFetches | None = None
    """The fetches of the connection, until it is lost. None for a request without a connection."""
    searching: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the ListOffsets of the connection that searches by timestamp."""
    appending: asyncio.Future[bool] | None = None
    """The newest Produce of the connection that appends in later turns of the loop, while it does.

    Its result is True if later ones may begin.
    """
    notes_changes: bool = False
    """True for a page of a gateway, which notes its changes itself: see `page_connections`."""


class LocalProcesses(Protocol):
    """The processes that `gateway cluster up` started on this machine, with this one."""

    def rows(self) -> list[dict[str, Any]] | None:
        """Return a row for each process, or None if this process is none of them."""
        ...

    def kill(self, name: str) -> None:
        """Kill a process as kill -9 does. Raises LocalProcessError."""
        ...

    async def start(self, name: str) -> None:
        """Start a process that has ended, without waiting until it serves.

        Raises LocalProcessError.
        """
        ...


class LocalProcessError(Exception):
    """A process that cannot be killed or started: one line that names the fix, and a code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class ConnectionEnds(Exception):
    """The error of a request without a reply. Its connection ends after the earlier replies.

    The text is for the log.
    """


@dataclass(slots=True)
class Request:
    """One decoded request. `body` is kio's entity of this key and version, or as `Api.decode`."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    peer: Peer
    body: Any
    reply_bytes: int = 0
    """Bytes of the reply that `Rows` has encoded."""
    changes: int = 0
    """Rows that reported a change, as `changes` counts."""
    rows_failed: int = 0
    """Rows of partitions with an error since the last row of a topic, as `changes` counts."""
    unpaused: int = 0
    """Rows and elements that were handled since other tasks ran, as `Rows` and `with_pauses` count.
    """
    error: int = 0
    """Kafka's code of the first error in the reply, 0 without one."""
    begun_s: float = field(init=False)
    """The monotonic time at which its frame was there, then decoded, then started or accepted.

    Not set while unknown, which costs nothing; frames of one turn of a connection begin together.
    `RequestMetrics` reads them when the request ends.
    """
    decoded_s: float = field(init=False)
    started_s: float = field(init=False)
    accepted_s: float = field(init=False)
    throttle_ms: int = field(init=False)
    """How long its client has to wait, where the handler decided it. Otherwise not set."""
    mutations: Mutations | None = field(init=False)
    """The quota of the partitions that it creates or deletes. Not set before the first one."""
    nodes_bytes: int = field(init=False)
    """Bytes behind the throttle time of an encoded Produce reply that names leaders."""
    spent_s: float = field(init=False)
    """Time of the event loop so far; set only while a `request_percentage` is enforced."""


class Phase(Enum):
    """Where a gateway is in its life."""

    STARTING = 1
    SERVING = 2
    DRAINING = 3  # it hands over what it has, and ends


class LazyPart(Protocol):
    """A part of a gateway that begins when it is first needed."""

    async def close(self) -> None: ...


Question = Callable[[Mapping[str, Any], "Context"], Awaitable[dict[str, Any]]]
"""Answers a private question: its body in, the body of the answer out."""


@dataclass(slots=True)
class Context:
    """The services of one process that handlers use."""

    config: GatewayConfig
    clock: Clock
    cluster_id: str
    catalog: Catalog
    partitions: Partitions
    groups: Coordinator
    read_only_groups: ReadOnlyGroups
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    cluster: Cluster
    reply_memory: ReplyMemory
    stored: StoredSettings
    features: Features
    transactions: TransactionCoordinators | None = None  # set by `add_transactions`
    markers: LocalMarkers | None = None  # set by `add_transactions`
    cleaner: Cleaner | None = None  # set by `add_transactions`
    # The listeners by name, as configured; with the ports that they have once all are bound.
    listeners: Mapping[str, Listener] = field(default_factory=dict[str, Listener])
    # Where tools read the metadata of ledgers: ZooKeeper, or the ledger port; None without one.
    metadata_address: str | None = None
    # Returns the ledgers of this process as readers of them see them; None unless its bookies are
    # in it. Raises OSError, LedgerError.
    own_ledgers: Callable[[], Awaitable[tuple[MetadataStore, Bookies]]] | None = None
    # The bookies that the ledger client of this process avoids; None without a ledger client.
    avoided_bookies: Callable[[], AvoidedBookies] | None = None
    # The clock, release and limits of this process; None in a process without a port.
    process_report: Callable[[], Mapping[str, Any]] | None = None
    # How long the disks of embedded bookies blocked the event loop, one item per bookie.
    disks_blocked: Sequence[Histogram] = ()
    # Parts that begin when they are first needed, by name. They are closed once no request can ask.
    lazy: dict[str, LazyPart] = field(default_factory=dict[str, "LazyPart"])
    # Private questions that a layer above the handlers answers, by name.
    questions: dict[str, Question] = field(default_factory=dict[str, "Question"])
    # The other processes of a cluster on this machine; None unless `cluster up` started this one.
    local_cluster: LocalProcesses | None = None
    # Decides what clients may do. None allows everything, at no cost.
    authorizer: Authorizer | None = None
    # The ACLs by which `authorizer` decides; None without one.
    acls: StoredAcls | None = None
    # What clients may use; None until a client quota is stored.
    quotas: EnforcedQuotas | None = None
    phase: Phase = Phase.STARTING
    # The number of copies that an entry can have now; None in a process without ledgers.
    copies: Callable[[], int] | None = None
    # The connections of the Kafka port; None in a process without a port.
    connections: Callable[[], ConnectionCounts] | None = None
    # The services of all streams, with their times; None in a process without ledgers.
    streams: StreamServices | None = None
    # Counts and times of requests, and the slowest of them.
    requests: RequestMetrics = field(default_factory=RequestMetrics)
    # The keys of connections that the page is opening, with the principals it opens them for.
    page_keys: dict[str, str] = field(default_factory=dict[str, str])
    altered: BrokerOverrides = field(init=False)

    def __post_init__(self) -> None:
        self.altered = BrokerOverrides(self.stored.configs, self.config.node_id, self.catalog)
        self.altered.apply()

    def address_for(self, peer: Peer) -> tuple[str, int]:
        """Return host and port of this broker for clients of the same listener."""
        listener = self.listeners.get(peer.listener)
        if listener is None:
            return peer.local_host, peer.local_port
        return listener.address(peer.local_host, peer.local_port)

    def advertised(self, peer: Peer) -> list[tuple[str, str, int]]:
        """Return the name, host and port of each listener, as its clients are given them.

        That of this client is the address to which it connected, unless another one is advertised.
        """
        if peer.listener not in self.listeners:
            return [(peer.listener, *self.address_for(peer))]
        return [
            (each.name, *each.address(*self._local(each, peer))) for each in self.listeners.values()
        ]

    def _local(self, listener: Listener, peer: Peer) -> tuple[str, int]:
        if listener.name == peer.listener:
            return peer.local_host, peer.local_port
        return listener.host, listener.port


Handle = Callable[[Request, Context], "Result | Future[Result] | Coroutine[Any, Any, Result]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One Kafka API that this broker serves. ApiVersions lists exactly the served APIs."""

    key: int
    name: str
    versions: range
    handle: Handle
    decode: Callable[[int, Buffer, int], Any] | None = None
    """Decodes the body in place of kio, from (version, buffer, offset). Raises MalformedMessage."""
    elements_max: int = 100_000
    """Array elements in one request. kio decodes them at once, while other clients wait."""
    private: bool = False  # between programs of this project; its body is JSON, not Kafka's
    advertised: range | None = None  # differs from `versions` for Produce only (librdkafka#4956)

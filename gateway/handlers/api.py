"""Defines a handler of a Kafka API: one row per API, a request in, a reply out.

A handler is a function `handle(request, ctx)`. It returns a `Result` at once (hot paths), a future
of a result or a coroutine. A future means that the request is accepted now and answered later, such
as a Produce or a delayed Fetch. A connection sends replies in the order of its requests, even if
later requests complete first.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.settings.broker_overrides import BrokerOverrides
from ledger.ids import Buffer

if TYPE_CHECKING:
    from gateway.access import Allowed
    from gateway.cleaning.cleaner import Cleaner
    from gateway.cluster.port import Cluster
    from gateway.config import GatewayConfig
    from gateway.core.fetch_session import FetchSessions
    from gateway.features.features import Features
    from gateway.groups.coordinator import Coordinator
    from gateway.groups.read_only_groups import ReadOnlyGroups
    from gateway.settings.stored_settings import StoredSettings
    from gateway.topics.catalog import Catalog
    from gateway.topics.connection_fetches import ConnectionFetches
    from gateway.topics.greylist_report import AvoidedBookies
    from gateway.topics.partitions import Partitions
    from gateway.topics.producer_ids import ProducerIds
    from gateway.topics.reply_memory import ReplyMemory
    from gateway.transactions.coordinators import TransactionCoordinators
    from gateway.transactions.local_markers import LocalMarkers
    from ledger.ports.clock import Clock
    from ledger.ports.disk import LoopBlocked

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
    fetches: ConnectionFetches | None = None
    """The fetches of the connection, until it is lost. None for a request without a connection."""
    searching: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the ListOffsets of the connection that searches by timestamp."""
    appending: asyncio.Future[bool] | None = None
    """The newest Produce of the connection that appends in later turns of the loop, while it does.

    Its result is True if later ones may begin.
    """


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
    advertised_host: str | None = None  # None means the address to which the client connected
    advertised_port: int | None = None
    # Where tools read the metadata of ledgers: ZooKeeper, or the ledger port; None without one.
    metadata_address: str | None = None
    # The bookies that the ledger client of this process avoids; None without a ledger client.
    avoided_bookies: Callable[[], AvoidedBookies] | None = None
    # The clock, release and limits of this process; None in a process without a port.
    process_report: Callable[[], Mapping[str, Any]] | None = None
    # How long the disks of embedded bookies blocked the event loop, one item per bookie.
    disks_blocked: Sequence[LoopBlocked] = ()
    # Decides who may read what. None allows everything: there is no authentication yet.
    allowed: Allowed | None = None
    altered: BrokerOverrides = field(init=False)

    def __post_init__(self) -> None:
        self.altered = BrokerOverrides(self.stored.configs, self.config.node_id, self.catalog)
        self.altered.apply()

    def address_for(self, peer: Peer) -> tuple[str, int]:
        """Return host and port of this broker for Metadata and FindCoordinator."""
        return (
            self.advertised_host or peer.local_host,
            self.advertised_port or peer.local_port,
        )


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

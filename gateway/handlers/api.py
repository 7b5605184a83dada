"""What a handler is: one row per Kafka API, a request in, a reply out.

A handler is a plain function `handle(request, ctx)`. It returns a `Result` at once (hot paths), a
future of one (accepted now, answered later: Produce, a waiting Fetch), or a coroutine. Replies
leave a connection in request order whatever completes first.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.ids import Buffer

if TYPE_CHECKING:
    from gateway.cluster.port import Cluster
    from gateway.config import GatewayConfig
    from gateway.core.fetch_session import FetchSessions
    from gateway.groups.coordinator import Coordinator
    from gateway.groups.read_only_groups import ReadOnlyGroups
    from gateway.topics.catalog import Catalog
    from gateway.topics.partitions import Partitions
    from gateway.topics.producer_ids import ProducerIds
    from ledger.ports.clock import Clock


class Reply(dict[str, Any]):
    """Response fields by kio's names; `wire.messages` drops those that the version lacks.

    Nested structs are Replies too, arrays are lists. Fields that are left out take the schema's
    default, else 0, "", None (nullable), False or ().
    """


Result = Reply | Sequence[Buffer] | None
"""A reply to encode; or ready buffers (response header included, size not); or no reply at all."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is on the other end, and at which of our addresses it reached us."""

    host: str
    port: int
    local_host: str
    local_port: int


@dataclass(slots=True)
class Request:
    """One decoded request. `body` is kio's entity of this key and version."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    peer: Peer
    body: Any


@dataclass(slots=True)
class Context:
    """What handlers may reach. One per process."""

    config: GatewayConfig
    clock: Clock
    cluster_id: str
    catalog: Catalog
    partitions: Partitions
    groups: Coordinator
    readers: ReadOnlyGroups
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    cluster: Cluster
    advertised_host: str | None = None  # None: answer with the address the client reached us at
    advertised_port: int | None = None

    def address_for(self, peer: Peer) -> tuple[str, int]:
        """Host and port that Metadata and FindCoordinator name to this peer."""
        return (
            self.advertised_host or peer.local_host,
            self.advertised_port or peer.local_port,
        )


Handle = Callable[[Request, Context], "Result | Future[Result] | Coroutine[Any, Any, Result]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One Kafka request that we serve. ApiVersions answers from these rows, so it cannot lie."""

    key: int
    name: str
    versions: range
    handle: Handle
    advertised: range | None = None  # differs from `versions` for Produce only (librdkafka#4956)

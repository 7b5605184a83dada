"""Which gateways live: one ephemeral node each, and a list of all that follows them.

/gateway/brokers/<node id>   {host, port, rack, token, leaving}; it goes with the session
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.fleet.port import Member, Unlisten
from ledger.world.clock import Clock
from ledger.world.metadata import MetadataStore

BROKERS = "/gateway/brokers"


class Membership:
    """This gateway among the others, in one incarnation after the other."""

    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        *,
        node_id: int,
        host: str,
        port: int,
        rack: str,
        session_ms: int,
    ) -> None:
        raise NotImplementedError

    async def register(self) -> None:
        """Others see this gateway, under a token of its own. Raises NotOwner, MetadataUnavailable.

        NotOwner: another process lives under this node id, and did so for two sessions.
        """
        raise NotImplementedError

    def members(self) -> Sequence[Member]:
        """Gateways that live, by node id, as far as is known here."""
        raise NotImplementedError

    def on_changed(self, changed: Callable[[], None]) -> Unlisten:
        raise NotImplementedError

    def on_expired(self, expired: Callable[[], None]) -> Unlisten:
        """`expired` runs when an incarnation of this gateway has ended: nothing is owned."""
        raise NotImplementedError

    async def leave_soon(self) -> None:
        """All see that this gateway takes nothing more."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

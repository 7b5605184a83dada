"""What a bookie serves to each kind of peer, by the roles of the peer's certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from ledger.adapters.links.tls_identity import names_of
from ledger.bookie.control_calls import ControlCall, ControlCalls
from ledger.bookie.permitted_bookie import PermittedBookie
from ledger.bookie.served_bookie import ServedBookie
from ledger.core.bookie_roles import Operation, Role
from ledger.log import Throttle, logger

_FENCING_MAX: Final = 4


class ServedPeer(NamedTuple):
    """A bookie as one kind of peer sees it."""

    bookie: ServedBookie
    calls: Mapping[str, ControlCall]  # by name, those that every transport has
    over_tcp: Mapping[str, ControlCall]  # by name, those of TCP


class ServerPeers:
    """The views of one bookie, made when the first such peer comes: one for each set of roles."""

    def __init__(self, bookie: ServedBookie) -> None:
        self._bookie = bookie
        # The views so far. None stands for peers whose roles are not checked.
        self._views: dict[frozenset[Role] | None, ServedPeer] = {}
        # Held while entries are read for `FenceMany`, whichever peer asks.
        self._fencing = asyncio.Semaphore(_FENCING_MAX)
        self._throttle = Throttle()

    def of(self, roles: frozenset[Role] | None) -> ServedPeer:
        """Return the bookie for a peer with these roles; None is for unchecked ones."""
        found = self._views.get(roles)
        if found is None:
            view = self._bookie
            if roles is not None:
                view = PermittedBookie(view, roles, partial(self._log_denied, roles))
            calls = ControlCalls(view, self._fencing)
            found = self._views[roles] = ServedPeer(view, calls.by_name(), calls.over_tcp())
        return found

    def _log_denied(self, roles: frozenset[Role], operation: Operation) -> None:
        """Log that a peer was refused: a line for each operation, roles and minute."""
        names = names_of(roles)
        if self._throttle.allows(operation.name, names, asyncio.get_running_loop().time()):
            logger().warning(
                "denied an operation to a client", operation=operation.wire_name, roles=names
            )

    def log_without_role(self, client: str) -> None:
        """Log that a peer may do nothing, once for each address and minute."""
        if self._throttle.allows("role", client, asyncio.get_running_loop().time()):
            logger().warning(
                "the certificate of a client has no role: its requests are denied",
                client=client,
                fix=f"give it a URI such as {Role.GATEWAY.uri}",
            )

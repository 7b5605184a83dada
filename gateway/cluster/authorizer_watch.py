"""Warns if some gateways of a cluster have an authorizer and others have none.

A gateway without one, or of an earlier release, lets its clients do everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.cluster.port import ClusterMember
from gateway.log import logger, named


class AuthorizerWatch:
    """Compares the registrations of live gateways with this one, each set of them once."""

    def __init__(self, *, authorizes: bool) -> None:
        """Create the watch of a gateway, which has an authorizer if `authorizes` is True."""
        self._authorizes = authorizes
        # The gateways that differed when they were last compared.
        self._differing: tuple[int, ...] = ()

    def look(self, members: Sequence[ClusterMember]) -> None:
        """Log a warning if other gateways differ from this one than when it last looked."""
        found = tuple(each.node_id for each in members if each.authorizes != self._authorizes)
        if found == self._differing:
            return
        self._differing = found
        if found:
            logger().warning(
                "gateways differ in their authorizer: those without one let clients do everything",
                this_one="has one" if self._authorizes else "has none",
                others=named([str(each) for each in found]),
                fix="set authorizer on all gateways of the cluster",
            )

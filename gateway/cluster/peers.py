"""Requests to the other brokers of a cluster, in Kafka's protocol.

A broker is asked at its address for other brokers, which may differ from the one for clients.

The requests serve operators' queries. A broker that does not answer in time is left out of the
result. It is then skipped for a while, so that it does not delay queries about many groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gateway.cluster.port import Cluster, ClusterMember
from gateway.config import PLAINTEXT
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from gateway.wire.client_link import Security

PEER_CLIENT_ID = "gateway-to-gateway"
"""A request with this client id is answered from this broker's memory, without redirection."""

AWAY_S = 5.0


def peer_security(cluster: object) -> Security | None:
    """Return the TLS and the login with which this broker connects to others; None: plain text.

    A cluster has the attribute `peer_security` if its listener for brokers is not PLAINTEXT.
    """
    return getattr(cluster, "peer_security", None)


def peer_address(cluster: object, member: ClusterMember) -> tuple[str, int]:
    """Return the address at which this broker connects to another one.

    A cluster has the attribute `peer_listener`, the name of its listener for brokers.
    """
    return member.peer_address_by(getattr(cluster, "peer_listener", PLAINTEXT))


class Peers:
    """The other live brokers. Each request opens a connection of its own."""

    def __init__(self, cluster: Cluster, clock: Clock, answer_s_max: float) -> None:
        self._cluster = cluster
        self._clock = clock
        self._answer_s_max = answer_s_max
        # Unresponsive brokers, with the monotonic time until which they are skipped.
        self._away: dict[ClusterMember, float] = {}

    def members(self) -> list[ClusterMember]:
        """Return the other live brokers, except those skipped because they did not answer."""
        me, now_s = self._cluster.node_id, self._clock.monotonic_s()
        self._away = {member: until for member, until in self._away.items() if until > now_s}
        members = self._cluster.members()
        return [each for each in members if each.node_id != me and each not in self._away]

    async def ask(
        self, key: int, fields: Callable[[ClusterMember], dict[str, Any] | None]
    ) -> dict[int, Any]:
        """Send a request to each broker. Returns the answers by node id.

        Brokers that do not answer are left out. A broker for which `fields` returns None is not
        asked.
        """
        asked = [(member, fields(member)) for member in self.members()]
        answers = await asyncio.gather(
            *(self._ask(member, key, sent) for member, sent in asked if sent is not None)
        )
        return {node_id: answer for node_id, answer in answers if answer is not None}

    async def _ask(
        self, member: ClusterMember, key: int, fields: dict[str, Any]
    ) -> tuple[int, Any]:
        # Imported on demand, because a gateway starts without it.
        from gateway.wire.client_link import (
            AdminError,
            Link,
            Unreachable,
        )

        security = peer_security(self._cluster)
        address = peer_address(self._cluster, member)
        link = Link(*address, self._answer_s_max, PEER_CLIENT_ID, security)
        try:
            async with asyncio.timeout(self._answer_s_max):
                await link.open(self._answer_s_max)
                return member.node_id, await link.send(key, fields)
        except AdminError:
            return member.node_id, None
        except (Unreachable, TimeoutError):
            self._away[member] = self._clock.monotonic_s() + AWAY_S
            return member.node_id, None
        finally:
            await link.close()

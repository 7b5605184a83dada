"""Private questions to the other gateways, on connections that last.

A gateway has `ANSWER_S_MAX` for each answer. After a failure its connection is closed, and the next
question opens another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from gateway.cluster.peers import PEER_CLIENT_ID, peer_address, peer_security
from gateway.figures.parts import part_of
from gateway.wire.client_link import AdminError, Link, Security, Unreachable

if TYPE_CHECKING:
    from gateway.cluster.port import ClusterMember
    from gateway.handlers.api import Context

ANSWER_S_MAX: Final = 1.0


class NoAnswer(Exception):
    """A gateway did not answer a private question. The text is the reason."""


Ask = Callable[["ClusterMember", dict[str, Any]], Awaitable[dict[str, Any]]]
"""Asks one gateway. Raises NoAnswer."""


class PeerQuestions:
    """The connections of this gateway for its private questions, one for each other gateway."""

    def __init__(self, security: Security | None = None, cluster: object = None) -> None:
        self._security = security
        self._cluster = cluster  # its listener between gateways decides where each is reached
        # Open connections by member, until they fail or the member has left the cluster.
        self._links: dict[ClusterMember, Link] = {}
        # Held while a question waits for its answer: a link takes one at a time.
        self._asking: dict[ClusterMember, asyncio.Lock] = {}

    async def ask(self, member: ClusterMember, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of one gateway. Raises NoAnswer."""
        lock = self._asking.setdefault(member, asyncio.Lock())
        try:
            async with asyncio.timeout(ANSWER_S_MAX), lock:
                return await self._ask(member, body)
        except TimeoutError:
            raise NoAnswer(f"no answer within {ANSWER_S_MAX:g} s") from None
        except (AdminError, Unreachable) as error:
            raise NoAnswer(str(error)) from error

    async def _ask(self, member: ClusterMember, body: dict[str, Any]) -> dict[str, Any]:
        link = self._links.pop(member, None)
        if link is not None and link.is_over:  # the other side closes it while nothing is asked
            await link.close()
            link = None
        try:
            if link is None:
                address = peer_address(self._cluster, member)
                link = Link(*address, ANSWER_S_MAX, PEER_CLIENT_ID, self._security)
                await link.open(ANSWER_S_MAX)
            found = await link.ask_privately(body)
        except AdminError:
            if link is not None:
                self._links[member] = link  # it answered, with a refusal
            raise
        except BaseException:
            if link is not None:
                await link.close()
            raise
        self._links[member] = link
        return found

    async def keep_only(self, members: list[ClusterMember]) -> None:
        """Close the connections to gateways that have left."""
        for member in [each for each in self._links if each not in members]:
            await self._links.pop(member).close()
        for member in [each for each in self._asking if each not in members]:
            if not self._asking[member].locked():
                del self._asking[member]

    async def close(self) -> None:
        await self.keep_only([])


def questions_of(ctx: Context) -> PeerQuestions:
    """Return the connections of a gateway."""
    security = peer_security(ctx.cluster)
    return part_of(ctx, "peer questions", lambda: PeerQuestions(security, ctx.cluster))


def other_members(ctx: Context) -> list[ClusterMember]:
    """Return the other live gateways, in the form in which a connection is kept."""
    me = ctx.cluster.node_id
    return [each._replace(leaving=False) for each in ctx.cluster.members() if each.node_id != me]

"""One private question to all other gateways of a cluster at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gateway.cluster.port import ClusterMember
from gateway.figures.peer_questions import NoAnswer, other_members, questions_of
from gateway.handlers.api import Context

Answer = Mapping[str, Any]


async def ask_peers(
    ctx: Context, body: Callable[[ClusterMember], dict[str, Any] | None]
) -> dict[int, Answer | None]:
    """Ask every other live gateway at once. Returns the answers by node id, None for silent ones.

    A gateway for which `body` returns None is not asked.
    """
    asked = [(each, body(each)) for each in other_members(ctx)]
    wanted = [(member, sent) for member, sent in asked if sent is not None]
    answers = await asyncio.gather(*(_ask(ctx, member, sent) for member, sent in wanted))
    return {member.node_id: answer for (member, _), answer in zip(wanted, answers, strict=True)}


async def _ask(ctx: Context, member: ClusterMember, body: dict[str, Any]) -> Answer | None:
    try:
        return await questions_of(ctx).ask(member, body)
    except NoAnswer:
        return None

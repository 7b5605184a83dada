"""Connections of a gateway's web page, which notes the changes that it makes by itself.

    page ─▶ `page` with a key ─▶ gateway ─▶ `page_key` with the key ─▶ the page's gateway
                                        ◀─ known: changes of this connection are noted there

A page changes topics and groups as a Kafka client, and notes each change with the name and the
address of its browser. Without more, the gateway that carries the change out would note it again,
by `User:ANONYMOUS`. A key is a random number for one connection. The gateway whose page it is
confirms it, once, at the address where the cluster knows it; so no client can hide its changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.cluster.peers import peer_address, peer_security
from gateway.wire.client_link import CLIENT_ID, AdminError, Link, Unreachable

if TYPE_CHECKING:
    from gateway.handlers.api import Context, Request

_ANSWER_S_MAX: Final = 1.0
_Answer = dict[str, Any]


async def accept(request: Request, ctx: Context) -> _Answer:
    """Answer the question `page`: changes on this connection are noted by the page that has it."""
    asked: Mapping[str, Any] = request.body
    principal = await _confirmed(ctx, asked.get("node_id"), str(asked.get("key")))
    if principal is None:
        return {"error": "SASL_AUTHENTICATION_FAILED", "message": "no page has this key"}
    request.peer.principal = principal
    request.peer.notes_changes = True
    return {"node_id": ctx.cluster.node_id}


async def confirm(asked: Mapping[str, Any], ctx: Context) -> _Answer:
    """Answer the question `page_key`: whose page has this key, which is used up by this."""
    return {"principal": ctx.page_keys.pop(str(asked.get("key")), None)}


async def _confirmed(ctx: Context, node_id: Any, key: str) -> str | None:
    """Return the principal of a page, None if its gateway does not confirm the key."""
    if node_id == ctx.cluster.node_id:
        return ctx.page_keys.pop(key, None)
    member = next((each for each in ctx.cluster.members() if each.node_id == node_id), None)
    if member is None:
        return None
    security = peer_security(ctx.cluster)
    link = Link(*peer_address(ctx.cluster, member), _ANSWER_S_MAX, CLIENT_ID, security)
    try:
        async with asyncio.timeout(_ANSWER_S_MAX):
            await link.open(_ANSWER_S_MAX)
            found = (await link.ask_privately({"ask": "page_key", "key": key})).get("principal")
    except (AdminError, Unreachable, TimeoutError):
        return None
    finally:
        await link.close()
    return found if isinstance(found, str) else None

"""Heartbeat, key 12, v0-v4: extends the session of a group member.

v1 throttle time · v3 static members · v4 flexible.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.rights import GROUP_DENIED, allows_group


def handle(request: Request, ctx: Context) -> Reply | Coroutine[Any, Any, Reply]:
    """Reply at once, unless the group must be loaded."""
    body = request.body
    if not allows_group(request, ctx, Operation.READ, body.group_id):
        return Reply(error_code=GROUP_DENIED)
    if not body.group_id:
        return Reply(error_code=ErrorCode.invalid_group_id)
    asked = (
        body.group_id,
        body.member_id,
        body.generation_id,
        getattr(body, "group_instance_id", None),
    )
    code = ctx.groups.heartbeat_now(*asked)
    return _later(asked, ctx) if code is None else Reply(error_code=code)


async def _later(asked: tuple[str, str, int, str | None], ctx: Context) -> Reply:
    return Reply(error_code=await ctx.groups.heartbeat(*asked))


API = Api(key=12, name="Heartbeat", versions=range(5), handle=handle)

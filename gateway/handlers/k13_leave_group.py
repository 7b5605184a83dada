"""LeaveGroup, key 13, v0-v5: removes members from a group.

v3 many at once, by member id or by instance id (static members) · v4 flexible · v5 reason.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.core.group_members import Leaving
from gateway.groups.coordinator import Refused
from gateway.handlers.api import Api, Context, Reply, Request

_MANY_FROM = 3


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if not body.group_id:
        return Reply(error_code=ErrorCode.invalid_group_id, members=[])
    if request.version < _MANY_FROM:
        leavings: tuple[Leaving, ...] = (Leaving(body.member_id),)
    else:
        leavings = tuple(Leaving(each.member_id, each.group_instance_id) for each in body.members)
    try:
        codes = await ctx.groups.leave(body.group_id, leavings)
    except Refused as refused:
        return Reply(error_code=refused.code, members=[])
    return Reply(
        error_code=codes[0] if request.version < _MANY_FROM else ErrorCode.none,
        members=[
            Reply(
                member_id=leaving.member_id,
                group_instance_id=leaving.instance_id,
                error_code=code,
            )
            for leaving, code in zip(leavings, codes, strict=True)
        ],
    )


API = Api(key=13, name="LeaveGroup", versions=range(6), handle=handle)

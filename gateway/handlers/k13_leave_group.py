"""LeaveGroup, key 13, v0-v5: removes members from a group.

v3 many at once, by member id or by instance id (static members) · v4 flexible · v5 reason.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.group_members import Leaving
from gateway.groups.coordinator import Refused
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import GROUP_DENIED, allows_group

_MANY_FROM = 3


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if not allows_group(request, ctx, Operation.READ, body.group_id):
        return Reply(error_code=GROUP_DENIED, members=[])
    if not body.group_id:
        return Reply(error_code=ErrorCode.invalid_group_id, members=[])
    leavings = await _leavings(request)
    try:
        codes = await ctx.groups.leave(body.group_id, leavings)
    except Refused as refused:
        return Reply(error_code=refused.code, members=[])
    if request.version < _MANY_FROM:
        return Reply(error_code=codes[0])
    members = Rows(request, "members")
    for leaving, code in zip(leavings, codes, strict=True):
        await members.add(
            Reply(
                member_id=leaving.member_id,
                group_instance_id=leaving.instance_id,
                error_code=code,
            )
        )
    return Reply(error_code=ErrorCode.none, members=members.result())


async def _leavings(request: Request) -> tuple[Leaving, ...]:
    if request.version < _MANY_FROM:
        return (Leaving(request.body.member_id),)
    found: list[Leaving] = []
    async for each in with_pauses(request.body.members, request):
        found.append(Leaving(each.member_id, each.group_instance_id))
    return tuple(found)


API = Api(key=13, name="LeaveGroup", versions=range(6), handle=handle)

"""ListGroups, key 16, v0-v5: lists the groups of this broker, also read-only ones.

v3 flexible · v4 filter by state · v5 filter by type. Read-only groups have a type of their own. A
filter for classic groups includes read-only groups, so that tools without this type list them too.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.groups.coordinator import Refused
from gateway.groups.views import CLASSIC_GROUP, CONSUMER_GROUP
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import allows_cluster, allows_group


async def handle(request: Request, ctx: Context) -> Reply:
    states = {each.strip().lower() for each in getattr(request.body, "states_filter", ())}
    types = {each.strip().lower() for each in getattr(request.body, "types_filter", ())}
    try:
        listed = await ctx.groups.list()
    except Refused as refused:
        return Reply(error_code=refused.code, groups=[])
    listed += ctx.read_only_groups.listings(ctx.groups.stored)
    groups = Rows(request, "groups")
    every = allows_cluster(request, ctx, Operation.DESCRIBE)
    async for each in with_pauses(listed, request):
        if states and each.state.value.lower() not in states:
            continue
        if types and not types & _kinds(each.kind):
            continue
        if not every and not allows_group(request, ctx, Operation.DESCRIBE, each.group_id):
            continue
        await groups.add(
            Reply(
                group_id=each.group_id,
                protocol_type=each.protocol_type,
                group_state=each.state.value,
                group_type=each.kind,
            )
        )
    return Reply(error_code=ErrorCode.none, groups=groups.result())


def _kinds(kind: str) -> set[str]:
    """Return the filters that include groups of a type."""
    return {kind} if kind == CONSUMER_GROUP else {kind, CLASSIC_GROUP}


API = Api(key=16, name="ListGroups", versions=range(6), handle=handle)

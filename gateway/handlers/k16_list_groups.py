"""ListGroups, key 16, v0-v5: all groups.

v3 flexible · v4 filtered by state · v5 filtered by type; ours are all classic.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.groups.coordinator import Refused
from gateway.handlers.api import Api, Context, Reply, Request

_TYPE = "classic"


async def handle(request: Request, ctx: Context) -> Reply:
    states = {each.strip().lower() for each in getattr(request.body, "states_filter", ())}
    types = {each.strip().lower() for each in getattr(request.body, "types_filter", ())}
    try:
        listed = await ctx.groups.list()
    except Refused as refused:
        return Reply(error_code=refused.code, groups=[])
    return Reply(
        error_code=ErrorCode.none,
        groups=[
            Reply(
                group_id=each.group_id,
                protocol_type=each.protocol_type,
                group_state=each.state.value,
                group_type=_TYPE,
            )
            for each in listed
            if (not states or each.state.value.lower() in states) and (not types or _TYPE in types)
        ],
    )


API = Api(key=16, name="ListGroups", versions=range(6), handle=handle)

"""DeleteGroups, key 42, v0-v2: groups go, and their offsets with them. v2 flexible.

A group that has members stays: NON_EMPTY_GROUP.
"""

from __future__ import annotations

from gateway.handlers.api import Api, Context, Reply, Request


async def handle(request: Request, ctx: Context) -> Reply:
    return Reply(
        results=[
            Reply(group_id=group_id, error_code=await ctx.groups.delete(group_id))
            for group_id in dict.fromkeys(request.body.groups_names)
        ]
    )


API = Api(key=42, name="DeleteGroups", versions=range(3), handle=handle)

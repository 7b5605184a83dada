"""DeleteGroups, key 42, v0-v2: deletes groups and their offsets.

v2 flexible. A group with members gets NON_EMPTY_GROUP, and so does a read-only group.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, answer_each
from gateway.handlers.rights import GROUP_DENIED, allows_group


async def handle(request: Request, ctx: Context) -> Reply:
    results = Rows(request, "results")
    await answer_each(
        dict.fromkeys(request.body.groups_names),
        lambda group_id: _result(group_id, request, ctx),
        lambda group_id: Reply(group_id=group_id, error_code=ErrorCode.coordinator_not_available),
        results,
        ctx,
    )
    return Reply(results=results.result())


async def _result(group_id: str, request: Request, ctx: Context) -> Reply:
    if not allows_group(request, ctx, Operation.DELETE, group_id):
        return Reply(group_id=group_id, error_code=GROUP_DENIED)
    return Reply(group_id=group_id, error_code=await _delete(group_id, ctx))


async def _delete(group_id: str, ctx: Context) -> ErrorCode:
    code = await ctx.groups.delete(group_id)
    if code is ErrorCode.group_id_not_found and await ctx.read_only_groups.find(group_id):
        return ErrorCode.non_empty_group
    return code


API = Api(key=42, name="DeleteGroups", versions=range(3), handle=handle)

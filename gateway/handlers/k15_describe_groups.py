"""DescribeGroups, key 15, v0-v6: returns the members of groups and their assignments.

v3 authorized operations · v4 static members · v5 flexible · v6 GROUP_ID_NOT_FOUND with a text;
below v6 an unknown group is Dead without an error, as is one of the consumer protocol. The members
of a read-only group are its clients.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.group_members import State
from gateway.core.shown_text import shown
from gateway.groups.coordinator import Refused
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, answer_each, with_pauses
from gateway.handlers.rights import GROUP_DENIED, allows_group, group_operations

_NOT_FOUND_FROM = 6
_NOT_REQUESTED = -(2**31)


async def handle(request: Request, ctx: Context) -> Reply:
    asked = getattr(request.body, "include_authorized_operations", False)
    groups = Rows(request, "groups")
    named: list[str] = []
    async for group_id in with_pauses(dict.fromkeys(request.body.groups), request):
        if allows_group(request, ctx, Operation.DESCRIBE, group_id):
            named.append(group_id)
        else:
            await groups.add(_without_members(group_id, GROUP_DENIED, "", _NOT_REQUESTED))

    async def describe(group_id: str) -> Reply:
        operations = group_operations(request, ctx, group_id) if asked else _NOT_REQUESTED
        return await _describe(group_id, request.version, operations, ctx)

    await answer_each(
        named,
        describe,
        lambda group_id: _without_members(
            group_id, ErrorCode.coordinator_not_available, "", _NOT_REQUESTED
        ),
        groups,
        ctx,
    )
    return Reply(groups=groups.result())


async def _describe(group_id: str, version: int, operations: int, ctx: Context) -> Reply:
    try:
        view = await ctx.groups.describe(group_id) or await ctx.read_only_groups.describe(group_id)
    except Refused as refused:
        return _without_members(group_id, refused.code, "", _NOT_REQUESTED)
    if view is None:
        if version >= _NOT_FOUND_FROM:
            reply = _without_members(
                group_id, ErrorCode.group_id_not_found, State.DEAD.value, _NOT_REQUESTED
            )
            fault = "is not a classic group" if ctx.groups.has_consumer_group(group_id) else None
            text = f"Group {shown(group_id)} {fault or 'not found'}."
            return Reply(reply, error_message=text)
        return _without_members(group_id, ErrorCode.none, State.DEAD.value, operations)
    return Reply(
        error_code=ErrorCode.none,
        group_id=group_id,
        group_state=view.state.value,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol,
        authorized_operations=operations,
        members=[
            Reply(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata,
                member_assignment=each.assignment,
            )
            for each in view.members
        ],
    )


def _without_members(group_id: str, code: ErrorCode, state: str, operations: int) -> Reply:
    return Reply(
        error_code=code,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=operations,
    )


API = Api(key=15, name="DescribeGroups", versions=range(7), handle=handle)

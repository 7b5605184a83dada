"""SyncGroup, key 14, v0-v5: returns a member's assignment; the group leader sends all of them.

v3 static members · v4 flexible · v5 protocol type and name, checked if present.
Source: Kafka, GroupCoordinatorService.syncGroup.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.group_members import Synced, Syncing
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.rights import GROUP_DENIED, allows_group

_PROTOCOL_FROM = 5


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if request.version >= _PROTOCOL_FROM and None in (body.protocol_type, body.protocol_name):
        return _reply(Synced(ErrorCode.inconsistent_group_protocol))
    if not allows_group(request, ctx, Operation.READ, body.group_id):
        return _reply(Synced(GROUP_DENIED))
    if not body.group_id:
        return _reply(Synced(ErrorCode.invalid_group_id))
    limit = ctx.config.groups.member_metadata_bytes_max
    if any(len(each.assignment) > limit for each in body.assignments):
        return _reply(Synced(ErrorCode.invalid_request))
    syncing = Syncing(
        body.member_id,
        body.generation_id,
        getattr(body, "group_instance_id", None),
        getattr(body, "protocol_type", None),
        getattr(body, "protocol_name", None),
        tuple((each.member_id, bytes(each.assignment)) for each in body.assignments),
    )
    return _reply(await ctx.groups.sync(body.group_id, syncing))


def _reply(synced: Synced) -> Reply:
    return Reply(
        error_code=synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )


API = Api(key=14, name="SyncGroup", versions=range(6), handle=handle)

"""JoinGroup, key 11, v0-v9: adds a member to a group; replies when the rebalance is prepared.

v1 rebalance timeout · v4 a new member joins again with its id · v5 static members · v6 flexible ·
v7 protocol type in the reply, null protocol · v8 reason · v9 skipped assignment.
Source: Kafka, GroupCoordinatorService.joinGroup.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.group_members import Joined, Joining, protocols_bytes
from gateway.groups.coordinator import fresh_id
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.rights import GROUP_DENIED, allows_group

_ID_REQUIRED_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIP_FROM = 9


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if not allows_group(request, ctx, Operation.READ, body.group_id):
        return _reply(Joined(GROUP_DENIED, ""), request.version)
    error = _fault(body, ctx)
    if error is not ErrorCode.none:
        return _reply(Joined(error, body.member_id), request.version)
    session_timeout_ms = _ms(body.session_timeout)
    joining = Joining(
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        protocol_type=body.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in body.protocols),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=(
            _ms(body.rebalance_timeout) if request.version >= 1 else session_timeout_ms
        ),
        fresh_id=fresh_id(),
        client_id=request.client_id or "",
        client_host="/" + request.peer.host,
        id_required=request.version >= _ID_REQUIRED_FROM,
        skip_supported=request.version >= _SKIP_FROM,
    )
    return _reply(await ctx.groups.join(body.group_id, joining), request.version)


def _fault(body: Any, ctx: Context) -> ErrorCode:
    limits = ctx.config.groups
    if not body.group_id:
        return ErrorCode.invalid_group_id
    session_timeout_ms = _ms(body.session_timeout)
    if not limits.session_timeout_ms_min <= session_timeout_ms <= limits.session_timeout_ms_max:
        return ErrorCode.invalid_session_timeout
    protocols = tuple((each.name, each.metadata) for each in body.protocols)
    if protocols_bytes(protocols) > limits.member_metadata_bytes_max:
        return ErrorCode.invalid_request
    return ErrorCode.none


def _ms(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def _reply(joined: Joined, version: int) -> Reply:
    protocol = joined.protocol
    return Reply(
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=(protocol or "") if version < _NULL_PROTOCOL_FROM else protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            Reply(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata,
            )
            for each in joined.members
        ],
    )


API = Api(key=11, name="JoinGroup", versions=range(10), handle=handle)

"""FindCoordinator, key 10, v0-v6: who coordinates a group, or a transactional id.

v1 key types, error text · v3 flexible · v4 many keys at once · v6 share groups (as a key type).
Every group is ours. Transactions and share groups are not served: a plain error says so.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request

_GROUP = 0
_MANY_FROM = 4
_REFUSALS = {
    1: "transactions are not served yet; unset transactional.id",
    2: "share groups are not served",
}


def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    key_type = getattr(body, "key_type", _GROUP)
    if request.version < _MANY_FROM:
        return _coordinator(key_type, body.key, request, ctx)
    return Reply(
        coordinators=[_coordinator(key_type, key, request, ctx) for key in body.coordinator_keys]
    )


def _coordinator(key_type: int, key: str, request: Request, ctx: Context) -> Reply:
    if key_type != _GROUP:
        return Reply(
            key=key,
            error_code=ErrorCode.invalid_request,
            error_message=_REFUSALS.get(key_type, f"unknown key type {key_type}"),
            node_id=-1,
            host="",
            port=-1,
        )
    host, port = ctx.address_for(request.peer)
    return Reply(
        key=key,
        error_code=ErrorCode.none,
        error_message=None,
        node_id=ctx.config.node_id,
        host=host,
        port=port,
    )


API = Api(key=10, name="FindCoordinator", versions=range(7), handle=handle)

"""FindCoordinator, key 10, v0-v6: returns the coordinators of groups and transactions.

v1 key types, error text · v3 flexible · v4 many keys at once · v6 share groups (as a key type).
The coordinator is the broker that has claimed the group, otherwise the candidate of the ring.
That of a transactional id leads its partition of `__transaction_state`.
Not done: share groups (they get an error).
"""

from __future__ import annotations

import asyncio

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.cluster.port import ClusterMember
from gateway.core.topic_names import CONSUMER_OFFSETS
from gateway.errors import MALFORMED
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.broker_endpoints import endpoint
from gateway.handlers.many_rows import Rows, answer_each
from gateway.handlers.rights import GROUP_DENIED, ID_DENIED, TEXTS, allows_group, allows_id
from gateway.topics import internal_topics
from ledger.errors import LedgerError

_GROUP = 0
# The limit for one group, because replies are sent in order and the next requests wait.
_FIND_S_MAX = 2.0
_NOT_AVAILABLE = "The coordinator is not available."
_MANY_FROM = 4
_TRANSACTION, _SHARE = 1, 2


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    request.peer.looked_up += 1
    key_type = getattr(body, "key_type", _GROUP)
    if request.version < _MANY_FROM:
        return await _coordinator(key_type, body.key, request, ctx)
    found = Rows(request, "coordinators")
    await answer_each(
        dict.fromkeys(body.coordinator_keys),
        lambda key: _coordinator(key_type, key, request, ctx),
        lambda key: _error(key, ErrorCode.coordinator_not_available, _NOT_AVAILABLE),
        found,
        ctx,
    )
    return Reply(coordinators=found.result())


async def _coordinator(key_type: int, key: str, request: Request, ctx: Context) -> Reply:
    denied = _denied(key_type, key, request, ctx)
    if denied is not None:
        return _error(key, denied, "" if request.version >= _MANY_FROM else TEXTS[denied])
    if key_type == _TRANSACTION:
        coordinators = ctx.transactions
        leader = None if coordinators is None else coordinators.leader(key)
        return _found(leader, key, request, ctx)
    if key_type != _GROUP:
        return _error(key, ErrorCode.invalid_request, _refusal(key_type, request.version))
    if internal_topics.is_wanted(CONSUMER_OFFSETS, ctx.features.may_write):
        internal_topics.begin(ctx.catalog, CONSUMER_OFFSETS)  # as Kafka does, but no group waits
    try:
        async with asyncio.timeout(_FIND_S_MAX):
            member = await ctx.cluster.coordinator(key)
    except (LedgerError, TimeoutError):
        member = None
    return _found(member, key, request, ctx)


def _denied(key_type: int, key: str, request: Request, ctx: Context) -> ErrorCode | None:
    """Return why the client may not look for a coordinator, or None."""
    describe = Operation.DESCRIBE
    if key_type == _GROUP and not allows_group(request, ctx, describe, key):
        return GROUP_DENIED
    if key_type == _TRANSACTION and not allows_id(request, ctx, describe, key):
        return ID_DENIED
    return None


def _found(member: ClusterMember | None, key: str, request: Request, ctx: Context) -> Reply:
    node = None if member is None else endpoint(member, ctx, request.peer)
    if node is None:  # none is alive, or it lacks the listener by which this client connected
        return _error(key, ErrorCode.coordinator_not_available, _NOT_AVAILABLE)
    return Reply(
        key=key,
        error_code=ErrorCode.none,
        error_message="" if request.version >= _MANY_FROM else "NONE",  # Kafka's texts
        node_id=node.node_id,
        host=node.host,
        port=node.port,
    )


def _refusal(key_type: int, version: int) -> str:
    """Return the text with which an unknown type of keys is refused."""
    return "" if key_type == _SHARE and version >= _MANY_FROM else MALFORMED


def _error(key: str, code: ErrorCode, message: str) -> Reply:
    return Reply(key=key, error_code=code, error_message=message, node_id=-1, host="", port=-1)


API = Api(key=10, name="FindCoordinator", versions=range(7), handle=handle)

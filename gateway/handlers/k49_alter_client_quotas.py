"""AlterClientQuotas, key 49, v0-v1: stores the limits of users, client ids and addresses.

v1 flexible. Of an entity that a request names again, the first change is made, and the answer is an
error, as in Kafka.
Source: Kafka, ClientQuotaControlManager.
Not done: host names of IP quotas (refused).
"""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.client_quotas import Entity, QuotaOp, QuotaRefused, entity_text, ordered
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import CLUSTER_DENIED, CLUSTER_TEXT, allows_cluster
from gateway.handlers.topic_replies import AdminRefusal, change_each
from gateway.settings.stored_rows import TableFull

_Names = tuple[tuple[str, str | None], ...]


class _Change(NamedTuple):
    entity: Entity
    ops: list[QuotaOp]
    again: bool  # whether a key or the entity is named twice


async def handle(request: Request, ctx: Context) -> Reply:
    validate_only = request.body.validate_only
    entries = Rows(request, "entries")
    denied = not allows_cluster(request, ctx, Operation.ALTER_CONFIGS)
    await change_each(
        (await _changes(request)).values(),
        lambda change: _alter(change, validate_only, ctx, denied=denied),
        lambda change: _about(change.entity),
        entries,
        ctx,
    )
    return Reply(entries=entries.result())


async def _changes(request: Request) -> dict[_Names, _Change]:
    """Return the first change of each entity, in the order of the request."""
    changes: dict[_Names, _Change] = {}
    async for each in with_pauses(request.body.entries, request):
        entity: dict[str, str | None] = {}
        async for part in with_pauses(each.entity, request):
            entity[part.entity_type] = part.entity_name
        names = tuple(ordered(entity))
        known = changes.get(names)
        if known is not None:
            changes[names] = known._replace(again=True)
            continue
        ops: list[QuotaOp] = []
        async for op in with_pauses(each.ops, request):
            ops.append(QuotaOp(op.key, None if op.remove else op.value))
        twice = len({op.key for op in ops}) < len(ops)
        changes[names] = _Change(entity, [] if twice else ops, twice)
    return changes


async def _alter(change: _Change, validate_only: bool, ctx: Context, *, denied: bool) -> Reply:
    if denied:
        raise AdminRefusal(CLUSTER_DENIED, CLUSTER_TEXT)
    try:
        if change.ops or not change.again:
            await ctx.stored.quotas.alter(change.entity, change.ops, validate_only=validate_only)
    except QuotaRefused as fault:
        if not change.again:
            raise AdminRefusal(ErrorCode.invalid_request, str(fault)) from None
    except TableFull as fault:
        raise AdminRefusal(ErrorCode.policy_violation, str(fault)) from None
    if change.again:
        text = f"Ignoring duplicate entity {entity_text(change.entity)}"
        raise AdminRefusal(ErrorCode.invalid_request, text)
    return Reply(_about(change.entity), error_code=ErrorCode.none, error_message=None)


def _about(entity: Entity) -> Reply:
    return Reply(
        entity=[Reply(entity_type=kind, entity_name=name) for kind, name in ordered(entity)]
    )


API = Api(key=49, name="AlterClientQuotas", versions=range(2), handle=handle)

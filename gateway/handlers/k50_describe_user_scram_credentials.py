"""DescribeUserScramCredentials, key 50, v0: returns mechanisms and iterations, and no secret.

Source: Kafka, ScramImage.describe.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.shown_text import shown
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import CLUSTER_DENIED, allows_cluster


async def handle(request: Request, ctx: Context) -> Reply:
    if not allows_cluster(request, ctx, Operation.DESCRIBE):
        return await _denied(request)
    results = Rows(request, "results")
    if not request.body.users:
        async for name in with_pauses(ctx.stored.scram.names(), request):
            await results.add(_row(name, ctx))
    else:
        asked: dict[str, bool] = {}  # whether a user is named twice
        async for each in with_pauses(request.body.users, request):
            asked[each.name] = each.name in asked
        async for name, twice in with_pauses(asked.items(), request):
            await results.add(_twice(name) if twice else _row(name, ctx))
    return Reply(error_code=ErrorCode.none, error_message="", results=results.result())


async def _denied(request: Request) -> Reply:
    """Refuse the request. As in Kafka, the rows of the users have no names."""
    refused = Reply(error_code=CLUSTER_DENIED, error_message=None)
    results = Rows(request, "results")
    async for _ in with_pauses(request.body.users or (), request):
        await results.add(Reply(refused, user="", credential_infos=[]))
    return Reply(refused, results=results.result())


def _row(name: str, ctx: Context) -> Reply:
    found = ctx.stored.scram.iterations(name)
    row = Reply(
        user=name,
        error_code=ErrorCode.none,
        error_message="",
        credential_infos=[
            Reply(mechanism=mechanism, iterations=count) for mechanism, count in found.items()
        ],
    )
    if not found:
        row["error_code"] = ErrorCode.resource_not_found
        row["error_message"] = (
            f"Attempt to describe a user credential that does not exist: {shown(name)}"
        )
    return row


def _twice(name: str) -> Reply:
    return Reply(
        user=name,
        error_code=ErrorCode.duplicate_resource,
        error_message=(
            "Cannot describe SCRAM credentials for the same user twice in a single request: "
            f"{shown(name)}"
        ),
        credential_infos=[],
    )


API = Api(key=50, name="DescribeUserScramCredentials", versions=range(1), handle=handle)

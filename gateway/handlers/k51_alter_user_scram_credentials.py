"""AlterUserScramCredentials, key 51, v0: stores and deletes credentials of users.

Each user is changed or refused independently, and at most once in a request. The salted password
of a request is used once, to derive the keys that are stored.
Source: Kafka, ScramControlManager.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.scram_credentials import Checked, Checks, Deletion, ScramRefused, Upsertion
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import CLUSTER_DENIED, CLUSTER_TEXT, allows_cluster
from gateway.handlers.topic_replies import AdminRefusal, change_each
from gateway.settings.stored_rows import TableFull


async def handle(request: Request, ctx: Context) -> Reply:
    results = Rows(request, "results")
    if not allows_cluster(request, ctx, Operation.ALTER):
        await _deny(request, results)
        return Reply(results=results.result())
    checked = await _checked(request, ctx)
    await change_each(checked.users, lambda name: _alter(name, checked, ctx), _about, results, ctx)
    return Reply(results=results.result())


async def _deny(request: Request, results: Rows) -> None:
    """Refuse each user that the request names, without a look at the credentials."""
    body = request.body
    names = {each.name for asked in (body.deletions, body.upsertions) for each in asked}
    async for name in with_pauses(sorted(names), request):
        await results.add(
            Reply(_about(name), error_code=CLUSTER_DENIED, error_message=CLUSTER_TEXT)
        )


async def _checked(request: Request, ctx: Context) -> Checked:
    checks = Checks(ctx.stored.scram.iterations)
    async for each in with_pauses(request.body.deletions, request):
        checks.add(Deletion(each.name, each.mechanism))
    async for each in with_pauses(request.body.upsertions, request):
        salt, password = bytes(each.salt), bytes(each.salted_password)
        checks.add(Upsertion(each.name, each.mechanism, each.iterations, salt, password))
    return checks.result()


def _about(name: str) -> Reply:
    return Reply(user=name)


async def _alter(name: str, checked: Checked, ctx: Context) -> Reply:
    refused: ScramRefused | None = checked.refused.get(name)
    if refused is not None:
        return Reply(_about(name), error_code=refused.code, error_message=refused.message)
    try:
        await ctx.stored.scram.alter(checked.changes[name])
    except TableFull as fault:
        raise AdminRefusal(ErrorCode.unacceptable_credential, str(fault)) from None
    return Reply(_about(name), error_code=ErrorCode.none, error_message=None)


API = Api(key=51, name="AlterUserScramCredentials", versions=range(1), handle=handle)

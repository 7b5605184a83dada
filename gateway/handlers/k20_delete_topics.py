"""DeleteTopics, key 20, v1-v6: deletes topics and their data; replies when both are gone.

v4 flexible · v5 error text · v6 by name or by id.
Source: Kafka, ControllerApis.deleteTopics (checks and texts).
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.quota_checks import count_partitions
from gateway.handlers.rights import TEXTS, TOPIC_DENIED, allows_cluster, allows_topic
from gateway.handlers.topic_replies import (
    DUPLICATE_NAME,
    UNKNOWN_ID,
    AdminRefusal,
    change_each,
    duplicates,
    error_fields,
)
from gateway.topics.catalog import Topic
from gateway.topics.errors import UnknownTopic

_IDS_FROM = 6
_SUPPLIED = "The provided topic name maps to an ID that was already supplied."


class _Asked(NamedTuple):
    name: str | None
    topic_id: UUID | None


async def handle(request: Request, ctx: Context) -> Reply:
    asked = await _asked(request)
    supplied = {each.topic_id for each in asked if each.name is None}
    named_too: set[UUID] = set()
    async for each in with_pauses(asked, request):
        if each.name is not None and each.topic_id is None:
            topic = ctx.catalog.by_name(each.name)
            if (
                topic is not None
                and topic.topic_id in supplied
                and _allows(request, ctx, Operation.DELETE, topic.name)
            ):
                named_too.add(topic.topic_id)
    asked = [each for each in asked if each.name is not None or each.topic_id not in named_too]
    twice = await duplicates((each.name for each in asked if each.name is not None), request)
    twice_ids = await duplicates(
        (each.topic_id for each in asked if each.topic_id is not None), request
    )
    responses = Rows(request, "responses")
    await change_each(
        dict.fromkeys(asked),
        lambda each: _delete(each, twice, twice_ids, named_too, request, ctx),
        _about,
        responses,
        ctx,
    )
    return Reply(responses=responses.result())


def _about(asked: _Asked) -> Reply:
    return Reply(name=asked.name, topic_id=asked.topic_id)


async def _asked(request: Request) -> list[_Asked]:
    found: list[_Asked] = []
    if request.version < _IDS_FROM:
        async for name in with_pauses(request.body.topic_names, request):
            found.append(_Asked(name, None))
    else:
        async for each in with_pauses(request.body.topics, request):
            found.append(_Asked(each.name, each.topic_id))
    return found


async def _delete(
    asked: _Asked,
    twice: set[str],
    twice_ids: set[UUID],
    named_too: set[UUID],
    request: Request,
    ctx: Context,
) -> Reply:
    """Delete one topic. Those in `named_too` are named by id and by name, which is refused."""
    name, topic_id = asked
    _check(asked, twice, twice_ids)
    unknown: Exception
    if topic_id is not None:
        topic = ctx.catalog.by_id(topic_id)
        unknown = AdminRefusal(ErrorCode.unknown_topic_id, UNKNOWN_ID)
    else:
        assert name is not None
        if not _allows(request, ctx, Operation.DESCRIBE, name):
            raise _denied()
        topic = ctx.catalog.by_name(name)
        unknown = UnknownTopic()
        if topic is not None and topic.topic_id in named_too:
            refused = error_fields(_bad(_SUPPLIED))
            return Reply(refused, name=name, topic_id=topic.topic_id)
    if topic is None:
        raise unknown
    if not _allows(request, ctx, Operation.DELETE, topic.name):
        return _refused(name, topic, request, ctx)
    count_partitions(request, ctx, topic.partitions)
    try:
        await ctx.catalog.delete(topic.name, topic.topic_id)
    except UnknownTopic:
        raise unknown from None
    return Reply(
        name=topic.name, topic_id=topic.topic_id, error_code=ErrorCode.none, error_message=None
    )


def _check(asked: _Asked, twice: set[str], twice_ids: set[UUID]) -> None:
    """Raise AdminRefusal unless a topic is named once, by its name or by its id."""
    name, topic_id = asked
    if name is not None and topic_id is not None:
        raise _bad("You may not specify both topic name and topic id.")
    if name in twice:
        raise _bad(DUPLICATE_NAME)
    if topic_id in twice_ids:
        raise _bad("Duplicate topic id.")
    if name is None and topic_id is None:
        raise _bad("Neither topic name nor id were specified.")


def _allows(request: Request, ctx: Context, operation: Operation, name: str) -> bool:
    """Return whether the client may do it. Who may delete in the cluster may both."""
    if allows_cluster(request, ctx, Operation.DELETE):
        return True
    return allows_topic(request, ctx, operation, name)


def _denied() -> AdminRefusal:
    return AdminRefusal(TOPIC_DENIED, TEXTS[TOPIC_DENIED])


def _refused(name: str | None, topic: Topic, request: Request, ctx: Context) -> Reply:
    """Return the row of a topic that the client may not delete.

    A topic that is named by its id has its name only for a client that may describe it.
    """
    if name is not None:
        return Reply(error_fields(_denied()), name=name, topic_id=None)
    shown = topic.name if _allows(request, ctx, Operation.DESCRIBE, topic.name) else None
    return Reply(error_fields(_denied()), name=shown, topic_id=topic.topic_id)


def _bad(message: str) -> AdminRefusal:
    return AdminRefusal(ErrorCode.invalid_request, message)


API = Api(key=20, name="DeleteTopics", versions=range(1, 7), handle=handle)

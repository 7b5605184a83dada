"""Metadata, key 3, v0-v13: returns the topics, the leaders of their partitions, and the brokers.

v0 an empty list requests all topics · v1 null does; controller · v2 cluster id · v4 may forbid
creation · v7 leader epoch · v8 authorized operations · v9 flexible · v10 topic ids · v12 topics by
id · v13 top-level error. A topic that the request creates is unknown in its reply: the creation
goes on in the background, and clients ask again.
LEADER_NOT_AVAILABLE is only for partitions whose broker has just gone. If the leader lacks the
listener of the client, the error is LISTENER_NOT_FOUND, before v6 LEADER_NOT_AVAILABLE.
Not done: copies on bookies (replicas are the brokers that could lead).
Source: Kafka, KafkaApis.handleTopicMetadataRequest and AutoTopicCreationManager.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.topic_names import TRANSACTION_STATE, is_internal, topic_name_fault
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.broker_endpoints import controller_id, endpoints
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.quota_checks import may_change
from gateway.handlers.rights import (
    allows_cluster,
    allows_topic,
    cluster_operations,
    topic_operations,
)
from gateway.handlers.topic_replies import OPERATIONS_NOT_REQUESTED, hidden_topic, partition_rows
from gateway.topics import internal_topics
from gateway.topics.catalog import Topic

_AT_ONCE_MAX = 500  # names, or topics or partitions of the catalog, of a reply without pauses
_IDS_FROM = 10
_LISTENER_NOT_FOUND_FROM = 6
_BY_ID_FROM = 12  # v10 and v11 have the field, but Kafka refuses to look topics up by it


def handle(request: Request, ctx: Context) -> Reply | Coroutine[Any, Any, Reply]:
    """Reply from memory."""
    body = request.body
    request.peer.looked_up += 1
    if body.topics is None or (request.version == 0 and not body.topics):
        topics = ctx.catalog.all()
        if ctx.authorizer is not None:
            topics = [each for each in topics if _may_describe(each.name, request, ctx)]
        if len(topics) > _AT_ONCE_MAX or sum(each.partitions for each in topics) > _AT_ONCE_MAX:
            return _reply_with_pauses(request, ctx, [], topics)
        return _reply(request, ctx, [_found(topic, request, ctx) for topic in topics])
    if len(body.topics) > _AT_ONCE_MAX:
        return _reply_to_many(request, ctx)
    asked = _Asked()
    for each in body.topics:
        asked.add(each)
    fault = asked.fault(request.version)
    if fault is not None:
        return _refusal([_refused(each, fault) for each in body.topics], fault)
    rows = [_row(each, request, ctx) for each in asked.topics]
    request.peer.sent_here = request.peer.sent_here or _leads_here(rows, ctx)
    return _reply(request, ctx, rows)


def _leads_here(rows: Sequence[Reply], ctx: Context) -> bool:
    """Return whether this broker leads all partitions of these topics, and there are some."""
    leaders = {each["leader_id"] for row in rows for each in row["partitions"]}
    return leaders == {ctx.config.node_id}


class _Asked:
    """The topics that a request asks for, each once."""

    def __init__(self) -> None:
        self._by_id: dict[UUID, None] = {}
        self._by_name: dict[str, None] = {}
        self._nameless = False  # a row has no name

    def add(self, row: Any) -> None:
        topic_id = getattr(row, "topic_id", None)
        if topic_id is not None:
            self._by_id[topic_id] = None
        self._nameless = self._nameless or row.name is None
        self._by_name[row.name or ""] = None

    @property
    def topics(self) -> Iterable[UUID | str]:
        """Ids other than zero decide, whatever the names are. Names beside them are ignored."""
        return self._by_id or self._by_name

    def fault(self, version: int) -> ErrorCode | None:
        """Return why Kafka refuses the whole request, or None."""
        if _IDS_FROM <= version < _BY_ID_FROM and (self._by_id or self._nameless):
            return ErrorCode.invalid_request
        if version >= _BY_ID_FROM and self._nameless and not self._by_id:
            return ErrorCode.unknown_server_error
        return None


def _refused(asked: Any, fault: ErrorCode) -> Reply:
    return Reply(
        error_code=fault,
        name=asked.name or "",
        topic_id=asked.topic_id,
        partitions=[],
        topic_authorized_operations=OPERATIONS_NOT_REQUESTED,
    )


def _refusal(rows: Any, fault: ErrorCode) -> Reply:
    return Reply(
        brokers=[],
        cluster_id=None,
        controller_id=-1,
        topics=rows,
        cluster_authorized_operations=OPERATIONS_NOT_REQUESTED,
        error_code=fault,
    )


def _row(asked: UUID | str, request: Request, ctx: Context) -> Reply:
    if isinstance(asked, UUID):
        return _row_by_id(asked, request, ctx)
    return _row_by_name(asked, request, ctx)


async def _reply_to_many(request: Request, ctx: Context) -> Reply:
    """Reply to a request that names many topics, with pauses for other tasks."""
    asked = _Asked()
    async for each in with_pauses(request.body.topics, request):
        asked.add(each)
    fault = asked.fault(request.version)
    if fault is not None:
        rows = Rows(request, "topics")
        for each in request.body.topics:
            await rows.add(_refused(each, fault))
        return _refusal(rows.result(), fault)
    return await _reply_with_pauses(request, ctx, asked.topics, ())


async def _reply_with_pauses(
    request: Request, ctx: Context, asked: Iterable[str | UUID], topics: Iterable[Topic]
) -> Reply:
    """Reply with rows for the names and ids in `asked` and for `topics`, with pauses."""
    rows = Rows(request, "topics")
    for key in asked:
        row = _row(key, request, ctx)
        await rows.add(row, 1 + len(row["partitions"]))
    for topic in topics:
        await rows.add(_found(topic, request, ctx), 1 + topic.partitions)
    return _reply(request, ctx, rows.result())


def _may_create(body: Any, ctx: Context) -> bool:
    return ctx.config.topics.auto_create and getattr(body, "allow_auto_topic_creation", True)


def _may_describe(name: str, request: Request, ctx: Context) -> bool:
    return allows_topic(request, ctx, Operation.DESCRIBE, name)


def _creation_denied(name: str, request: Request, ctx: Context) -> bool:
    """Return whether the request would create a topic that its client may not create."""
    if ctx.authorizer is None or not _may_create(request.body, ctx):
        return False
    create = Operation.CREATE
    return not (allows_cluster(request, ctx, create) or allows_topic(request, ctx, create, name))


def _row_by_name(name: str, request: Request, ctx: Context) -> Reply:
    if not _may_describe(name, request, ctx):
        return hidden_topic(name, None)
    topic = ctx.catalog.by_name(name)
    if topic is not None:
        return _found(topic, request, ctx)
    if _creation_denied(name, request, ctx):
        return hidden_topic(name, None, internal=is_internal(name))
    if topic_name_fault(name) is not None:
        return _missing(name, ErrorCode.invalid_topic_exception, request, ctx)
    if name == TRANSACTION_STATE:
        ctx.features.begin_new_forms()
    own = is_internal(name) and not internal_topics.is_wanted(name, ctx.features.may_write)
    creation = ctx.catalog.auto_creation
    wanted = _may_create(request.body, ctx) and not own and not creation.is_wanted(name)
    if wanted and may_change(request, ctx, ctx.config.topics.partitions):
        creation.begin(name)
    return _missing(name, ErrorCode.unknown_topic_or_partition, request, ctx)


def _row_by_id(topic_id: UUID, request: Request, ctx: Context) -> Reply:
    topic = ctx.catalog.by_id(topic_id)
    if topic is not None and ctx.catalog.by_name(topic.name) is topic:
        if not _may_describe(topic.name, request, ctx):
            return hidden_topic(None, topic_id)
        return _found(topic, request, ctx)
    return Reply(
        error_code=ErrorCode.unknown_topic_id,
        name=None,
        topic_id=topic_id,
        partitions=[],
        topic_authorized_operations=OPERATIONS_NOT_REQUESTED,
    )


def _missing(name: str, code: ErrorCode, request: Request, ctx: Context) -> Reply:
    return Reply(
        error_code=code,
        name=name,
        topic_id=None,
        is_internal=is_internal(name),
        partitions=[],
        topic_authorized_operations=_operations(name, request, ctx),
    )


def _operations(name: str, request: Request, ctx: Context) -> int:
    asked = getattr(request.body, "include_topic_authorized_operations", False)
    return topic_operations(request, ctx, name) if asked else OPERATIONS_NOT_REQUESTED


def _found(topic: Topic, request: Request, ctx: Context) -> Reply:
    return Reply(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partition_rows(
            topic, range(topic.partitions), ctx, request.peer, _unlisted(request)
        ),
        topic_authorized_operations=_operations(topic.name, request, ctx),
    )


def _unlisted(request: Request) -> ErrorCode:
    """Return the error of a partition whose leader lacks the listener of this client."""
    if request.version < _LISTENER_NOT_FOUND_FROM:
        return ErrorCode.leader_not_available
    return ErrorCode.listener_not_found


def _reply(request: Request, ctx: Context, topics: Any) -> Reply:
    asked = getattr(request.body, "include_cluster_authorized_operations", False)
    return Reply(
        brokers=[Reply(node._asdict()) for node in endpoints(ctx, request.peer)],
        cluster_id=ctx.cluster_id,
        controller_id=controller_id(ctx, request.peer),
        topics=topics,
        cluster_authorized_operations=(
            cluster_operations(request, ctx) if asked else OPERATIONS_NOT_REQUESTED
        ),
        error_code=ErrorCode.none,
    )


API = Api(key=3, name="Metadata", versions=range(14), handle=handle)

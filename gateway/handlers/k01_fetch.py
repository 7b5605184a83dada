"""Fetch, key 1, v4-v18: returns record batches as they are stored.

v5 log start · v7 sessions (KIP-227) · v9 leader epoch check · v10 zstd · v11 rack (KIP-392) · v12
flexible, last fetched epoch · v13 topic ids · v15 replica state · v16 errors name the leader
(KIP-951) · v17/v18 replica fields that this broker does not use.
Records at or above the high watermark are never returned. A broker that does not lead a partition
serves its fetches only to clients in the broker's rack, because the high watermark may lag.
Not done: diverging epochs (a log here never diverges from what was acknowledged); transactions
(read_committed reads like read_uncommitted); Fetch of replicas.
Fetches of Spark's executors are noted, so that their queries are listed as read-only groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core import read_progress
from gateway.core.fetch_plan import FetchPlan
from gateway.core.fetch_session import (
    FetchPartition,
    FetchSession,
    FetchSessionError,
    PartitionKey,
)
from gateway.handlers.api import Api, Context, Request, Result
from gateway.handlers.broker_endpoints import LeaderHints
from gateway.topics.delayed_fetch import DelayedFetch
from gateway.topics.fetch_reader import FetchReader, FetchResult, PartitionsPlan
from gateway.wire.fetch_reply import LEADERS_FROM, PartitionFetched, TopicFetched, encode_fetch
from gateway.wire.node_endpoints import NodeEndpoint
from ledger.ids import Buffer

_TOPIC_IDS_FROM = 13
_SESSIONS_FROM = 7
_RACKS_FROM = 11
_NO_ID = UUID(int=0)
_NAMES_LEADER = (int(ErrorCode.not_leader_or_follower), int(ErrorCode.fenced_leader_epoch))


def handle(request: Request, ctx: Context) -> Result | asyncio.Future[Result]:
    """Respond at once if memory has enough. Otherwise wait for records or the deadline."""
    body = request.body
    replica = getattr(body, "replica_id", -1)
    replica = getattr(getattr(body, "replica_state", None), "replica_id", replica)
    if replica >= 0:
        return _refuse(request, ErrorCode.cluster_authorization_failed)
    by_id = request.version >= _TOPIC_IDS_FROM
    now_ms = ctx.clock.now_ms()
    session = ctx.fetch_sessions.resolve(
        getattr(body, "session_id", 0) if request.version >= _SESSIONS_FROM else 0,
        getattr(body, "session_epoch", -1) if request.version >= _SESSIONS_FROM else -1,
        _requested(body, by_id),
        _forgotten(body, by_id),
        now_ms,
        uses_ids=by_id,
    )
    if isinstance(session, FetchSessionError):
        return _refuse(request, ErrorCode(int(session)))
    client = request.client_id
    if client is not None and read_progress.EXECUTOR_MARK in client:
        ctx.read_only_groups.note(client, "/" + request.peer.host, body, by_id=by_id, now_ms=now_ms)
    return _fetch(request, ctx, session)


def _fetch(
    request: Request, ctx: Context, session: FetchSession
) -> Result | asyncio.Future[Result]:
    body, limits = request.body, ctx.config.fetch
    bytes_max = min(max(body.max_bytes, 0), limits.response_bytes_max)
    wait_s = min(max(body.max_wait.total_seconds(), 0.0), limits.wait_ms_max / 1000)
    plan: PartitionsPlan = FetchPlan(session.partitions(), body.min_bytes, bytes_max, wait_s)
    rack: str = body.rack_id if request.version >= _RACKS_FROM else ""
    reader = FetchReader(ctx.partitions, plan, rack)
    if reader.plan_from_memory() and (plan.complete or plan.timed_out):
        return _encode(request, ctx, session, plan)
    return DelayedFetch(reader, partial(_encode, request, ctx, session, plan), wait_s).reply


# -- the request ----------------------------------------------------------------------------------


def _requested(body: Any, by_id: bool) -> Iterable[FetchPartition]:
    for topic in body.topics:
        named = (topic.topic_id or _NO_ID) if by_id else topic.topic
        for asked in topic.partitions:
            yield FetchPartition(
                named,
                asked.partition,
                asked.fetch_offset,
                asked.partition_max_bytes,
                getattr(asked, "current_leader_epoch", -1),
                getattr(asked, "last_fetched_epoch", -1),
            )


def _forgotten(body: Any, by_id: bool) -> Iterable[PartitionKey]:
    for topic in getattr(body, "forgotten_topics_data", ()):
        named = (topic.topic_id or _NO_ID) if by_id else topic.topic
        for partition in topic.partitions:
            yield named, partition


# -- the response ---------------------------------------------------------------------------------


def _encode(
    request: Request, ctx: Context, session: FetchSession, plan: PartitionsPlan
) -> list[Buffer]:
    topics: dict[Any, list[PartitionFetched]] = {}
    names_leaders = False
    for result in plan.decided:
        error = plan.error_of(result) if result.error else result.error
        fetched = _fetched(result, error)
        if fetched.error_code and fetched.error_code in _NAMES_LEADER:
            names_leaders = True
        if session.update_response(
            result.asked,
            high_watermark=fetched.high_watermark,
            log_start_offset=fetched.log_start_offset,
            error_code=fetched.error_code,
            has_records=bool(fetched.records_bytes),
            redirected=result.preferred_replica >= 0,
        ):
            topics.setdefault(result.asked.topic, []).append(fetched)
    answered: list[TopicFetched] = list(topics.items())
    nodes: Sequence[NodeEndpoint] = ()
    if names_leaders and request.version >= LEADERS_FROM:
        answered, nodes = _with_leaders(answered, LeaderHints(ctx, request.peer))
    return encode_fetch(
        request.version, request.correlation_id, answered, session_id=session.id, nodes=nodes
    )


def _fetched(result: FetchResult, error: ErrorCode) -> PartitionFetched:
    log, index = result.log, result.asked.partition
    if log is None or (error and error is not ErrorCode.offset_out_of_range):
        return PartitionFetched(index, error)
    buffers: list[Buffer] = []
    for record in result.records:
        buffers += record.data
    end = log.high_watermark
    return PartitionFetched(
        index,
        error,
        end,
        end,
        log.log_start_offset,
        buffers,
        result.size_bytes,
        result.preferred_replica,
    )


def _with_leaders(
    topics: list[TopicFetched], hints: LeaderHints
) -> tuple[list[TopicFetched], Sequence[NodeEndpoint]]:
    """Add the leader of each partition in error. Also return the addresses of the leaders."""
    named: list[TopicFetched] = [
        (
            topic,
            [
                each._replace(current_leader=hints.leader(topic, each.index))
                if each.error_code in _NAMES_LEADER
                else each
                for each in partitions
            ],
        )
        for topic, partitions in topics
    ]
    return named, hints.nodes()


def _refuse(request: Request, error: ErrorCode) -> Result:
    """Refuse the request. Below v7, which lacks a field for its error, refuse each partition."""
    if request.version >= _SESSIONS_FROM:
        return encode_fetch(request.version, request.correlation_id, [], error_code=int(error))
    topics: list[TopicFetched] = [
        (topic.topic, [PartitionFetched(asked.partition, error) for asked in topic.partitions])
        for topic in request.body.topics
    ]
    return encode_fetch(request.version, request.correlation_id, topics)


API = Api(key=1, name="Fetch", versions=range(4, 19), handle=handle)

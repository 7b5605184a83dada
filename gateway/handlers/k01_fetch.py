"""Fetch, key 1, v4-v18: returns record batches as they are stored.

v5 log start · v7 sessions (KIP-227) · v9 leader epoch check · v10 zstd · v11 rack (KIP-392) · v12
flexible, last fetched epoch · v13 topic ids · v15 replica state · v16 errors name the leader
(KIP-951) · v17/v18 replica fields that this broker does not use.
Records at or above the high watermark are never returned. A broker that does not lead a partition
serves its fetches only to clients in the broker's rack, because the high watermark may lag.
A client that names the epoch of its last record is told where its log diverges from this one.
A right to read that is taken away counts from the next request of a session on, and for a request
that waits: its reply is checked again.
Not done: Fetch of replicas.
Fetches of Spark's executors are noted, so that their queries are listed as read-only groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core import read_progress
from gateway.core.fetch_plan import FetchPlan
from gateway.core.fetch_session import (
    FINAL_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchSession,
    FetchSessionError,
)
from gateway.handlers.api import Api, ConnectionEnds, Context, Request, Result
from gateway.handlers.broker_endpoints import LeaderHints
from gateway.handlers.quota_checks import count_reply, fetch_bytes_max, throttled_fetch
from gateway.handlers.rights import TOPIC_DENIED, allows_topic
from gateway.topics.delayed_fetch import DelayedFetch
from gateway.topics.fetch_reader import (
    PARTITIONS_PER_TURN,
    FetchReader,
    FetchResult,
    PartitionsPlan,
)
from gateway.wire.fetch_reply import (
    LEADERS_FROM,
    PartitionFetched,
    TopicFetched,
    encode_fetch,
    encode_partition,
)
from gateway.wire.fetch_request import SESSIONS_FROM, FetchRequest, decode_fetch
from gateway.wire.node_endpoints import NodeEndpoint
from ledger.ids import Buffer
from ledger.tasks import start_once

_KEPT_FROM = 32
"""A client without a session that names so many partitions has them kept by its connection."""

_AT_ONCE_MAX = 1_000
"""A request that names more partitions, or finds more of them due, yields to other requests."""

_PAUSE_S = 10e-6
"""Pause of a connection per partition, after a response that names all partitions.

A reader of 1,000 partitions gets at most 100 small responses per second, each with more records.
"""

_PACED_MAX = 64 * 1024  # a response with more bytes of records is worth its cost

_UNKNOWN = (ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
_WITHOUT_LOG = (*_UNKNOWN, TOPIC_DENIED)
_NAMES_LEADER = (int(ErrorCode.not_leader_or_follower), int(ErrorCode.fenced_leader_epoch))

_Named = dict[Hashable, list[bytes]]
"""The entries of a request by topic."""


def handle(request: Request, ctx: Context) -> Result | asyncio.Future[Result]:
    """Respond at once if memory has enough. Otherwise wait for records or the deadline."""
    start = partial(_start, request, ctx)
    fetches = request.peer.fetches
    return start() if fetches is None else fetches.submit(start)


def _start(request: Request, ctx: Context) -> Result | asyncio.Future[Result]:
    asked: FetchRequest = request.body
    if asked.replica_id >= 0:
        if asked.version < SESSIONS_FROM and asked.elements > _AT_ONCE_MAX:
            raise ConnectionEnds("a Fetch of a replica, which is not served")
        return _refuse(request, ErrorCode.cluster_authorization_failed)
    now_ms = ctx.clock.now_ms()
    session = _session(request, ctx, now_ms)
    if isinstance(session, FetchSessionError):
        return _refuse(request, ErrorCode(int(session)))
    session.busy = True
    if asked.elements > _AT_ONCE_MAX:
        return start_once("a fetch of many partitions", _fetch_many(request, ctx, session, now_ms))
    try:
        named: _Named = {}
        for _ in _name_partitions(asked, session, named):
            pass
        _settle(ctx, asked, session, now_ms, named)
        denied = _denied(request, ctx, session)
        for _ in () if denied else _note_executor(request, ctx, now_ms):
            pass
        return _fetch(request, ctx, session, denied=denied)
    except Exception:
        ctx.fetch_sessions.remove(session)
        session.answered()
        raise


def _fetch(
    request: Request,
    ctx: Context,
    session: FetchSession,
    unknown: dict[Hashable, list[bytes]] | None = None,
    denied: frozenset[Any] = frozenset(),
) -> Result | asyncio.Future[Result]:
    """Read the due partitions but those of `denied` topics.

    `unknown` has the encoded errors of partitions that do not exist.
    """
    if denied:
        unknown = {**(unknown or {}), **_refusals(request, ctx, session, denied)}
    reader, wait_s = _reader(request, ctx, session, denied)
    plan = reader.plan
    answer = _Answer(request, ctx, session, reader, unknown)
    if unknown and not (denied and plan.results):
        plan.timed_out = True  # an error is sent at once; beside a denied topic, others wait
    done = len(plan.results) <= _AT_ONCE_MAX and reader.plan_from_memory()
    if done and (plan.complete or plan.timed_out or not session):
        if reader.try_reserve():
            try:
                response = answer.encode()
            except BaseException:
                reader.release()
                raise
            session.answered()
            return response
        reader.restart()
    return DelayedFetch(session, reader, answer.encode, wait_s).reply


async def _fetch_many(request: Request, ctx: Context, session: FetchSession, now_ms: int) -> Result:
    """Answer a request that names many partitions, and yield to other requests meanwhile."""
    asked: FetchRequest = request.body
    unknown: dict[Hashable, list[bytes]] = {}
    select = partial(_split_unknown, request, ctx, unknown)
    named: _Named = {}
    try:
        for _ in _name_partitions(asked, session, named, select):
            await asyncio.sleep(0)
        _settle(ctx, asked, session, now_ms, named)
        if unknown and session.kept:
            session.wake_all()
            ctx.fetch_sessions.remove(session)
        denied = _denied(request, ctx, session)
        for _ in () if denied else _note_executor(request, ctx, now_ms):
            await asyncio.sleep(0)
        result = _fetch(request, ctx, session, unknown, denied)
    except BaseException:
        # What was named so far is not counted, and the client does not know how far that is.
        ctx.fetch_sessions.remove(session)
        session.answered()
        raise
    return await result if isinstance(result, asyncio.Future) else result


# -- the request ----------------------------------------------------------------------------------


def _session(request: Request, ctx: Context, now_ms: int) -> FetchSession | FetchSessionError:
    asked: FetchRequest = request.body
    fetches = request.peer.fetches
    if (
        fetches is not None
        and asked.session_id == NO_SESSION
        and asked.session_epoch == FINAL_EPOCH
        and asked.partitions_named >= _KEPT_FROM
    ):
        return fetches.session(ctx.fetch_sessions, now_ms, uses_ids=asked.by_id)
    return ctx.fetch_sessions.find(
        asked.session_id, asked.session_epoch, now_ms, uses_ids=asked.by_id
    )


def _note_executor(request: Request, ctx: Context, now_ms: int) -> Iterable[None]:
    """Note the offsets of a Fetch of Spark's executors, in parts."""
    client = request.client_id
    if client is None or read_progress.EXECUTOR_MARK not in client:
        return ()
    host = "/" + request.peer.host
    return ctx.read_only_groups.note(client, host, request.body, now_ms=now_ms)


def _name_partitions(
    asked: FetchRequest,
    session: FetchSession,
    named: _Named,
    select: Callable[[Any, list[bytes]], list[bytes]] | None = None,
) -> Iterator[None]:
    """Apply the named and forgotten partitions. Yields after each part of the work.

    The entries are added to `named` if the session keeps what a request names.
    `select(topic, entries)` returns those of the new entries that name existing partitions.
    """
    read = partial(_read_entry, asked)
    for topic, entries in asked.topics:
        named.setdefault(topic, [])
        for first in range(0, len(entries), PARTITIONS_PER_TURN):
            part = entries.part(first, PARTITIONS_PER_TURN)
            if session.names_all:
                named[topic] += part
            new = session.new_entries(topic, part) if session.names_all else part
            if select is not None:
                new = select(topic, new)
            if session.names_all:
                session.name_entries(topic, new, read)
            else:
                session.update([read(topic, entry) for entry in new], ())
            yield
    if session.names_all:
        session.forget_unnamed(named)
        yield from _name_again(session, named, read)
        return
    for first in range(0, len(asked.forgotten), PARTITIONS_PER_TURN):
        session.update((), asked.forgotten[first : first + PARTITIONS_PER_TURN])
        yield


def _name_again(
    session: FetchSession, named: _Named, read: Callable[[Hashable, bytes], FetchPartition]
) -> Iterator[None]:
    """Let the last entry of each partition that is named more than once count."""
    for topic, entries in named.items():
        if not session.repeats(topic, entries):
            continue
        for first in range(0, len(entries), PARTITIONS_PER_TURN):
            session.name_again(topic, entries[first : first + PARTITIONS_PER_TURN], read)
            yield


def _split_unknown(
    request: Request,
    ctx: Context,
    unknown: dict[Hashable, list[bytes]],
    topic: str | UUID,
    entries: list[bytes],
) -> list[bytes]:
    """Return the entries of existing partitions. Add the encoded errors of others to `unknown`.

    Without this, a request would take memory for hundreds of thousands of partitions.
    """
    asked: FetchRequest = request.body
    if ctx.authorizer is not None and not _may_read(request, ctx, topic):
        unknown.setdefault(topic, []).extend(
            _refused(asked.version, asked.read(entry).index) for entry in entries
        )
        return []
    known = ctx.catalog.by_name_or_id(topic)
    width = known.partitions if known is not None else 0
    by_index = [(asked.read(entry).index, entry) for entry in entries]
    missing = [index for index, _ in by_index if not 0 <= index < width]
    if missing:
        error = ctx.partitions.why_not_led(topic, missing[0])
        unknown.setdefault(topic, []).extend(
            encode_partition(asked.version, PartitionFetched(index, error)) for index in missing
        )
    return [entry for index, entry in by_index if 0 <= index < width]


def _read_entry(asked: FetchRequest, topic: Hashable, entry: bytes) -> FetchPartition:
    index, offset, bytes_max, epoch, last_epoch = asked.read(entry)
    return FetchPartition(topic, index, offset, max(bytes_max, 0), epoch, last_epoch, entry)


def _settle(
    ctx: Context, asked: FetchRequest, session: FetchSession, now_ms: int, named: _Named
) -> None:
    """Decide whether the session is kept, now that its partitions are known."""
    sessions = ctx.fetch_sessions
    if not session.names_all:
        sessions.settle(session, asked.session_epoch, now_ms)
    else:
        session.order_due(named)
        if not sessions.count(session):
            session.wake_all()
            sessions.remove(session)
    session.set_isolation(committed=asked.committed)
    if not ctx.cluster.lease_held():
        session.wake_all()


def _denied(request: Request, ctx: Context, session: FetchSession) -> frozenset[Any]:
    """Return the topics of a session, as it names them, that the client may not read."""
    if ctx.authorizer is None:
        return frozenset()
    return frozenset(
        topic for topic in session.named_topics() if not _may_read(request, ctx, topic)
    )


def _may_read(request: Request, ctx: Context, topic: Any) -> bool:
    """Return whether the client may read a topic. An unknown id has an error of its own."""
    if isinstance(topic, UUID):
        known = ctx.catalog.by_id(topic)
        return known is None or allows_topic(request, ctx, Operation.READ, known.name)
    return allows_topic(request, ctx, Operation.READ, topic)


def _refusals(
    request: Request, ctx: Context, session: FetchSession, denied: frozenset[Any]
) -> dict[Hashable, list[bytes]]:
    """Return the encoded errors of the partitions of denied topics, by topic.

    A session of a connection is not kept: it repeats former replies.
    """
    if session.names_all:
        session.wake_all()
        ctx.fetch_sessions.remove(session)
    request.error = int(TOPIC_DENIED)
    found: dict[Hashable, list[bytes]] = {}
    for each in session.partitions_of(denied):
        found.setdefault(each.topic, []).append(_refused(request.version, each.partition))
    return found


def _refused(version: int, index: int) -> bytes:
    """Return the encoded answer for a partition of a topic that the client may not read."""
    return encode_partition(version, PartitionFetched(index, TOPIC_DENIED, aborted=()))


def _reader(
    request: Request, ctx: Context, session: FetchSession, denied: frozenset[Any]
) -> tuple[FetchReader, float]:
    """Return a reader with the plan of the request, and the time for which the client waits."""
    asked: FetchRequest = request.body
    limits = ctx.config.fetch
    bytes_max = min(max(asked.bytes_max, 0), limits.response_bytes_max)
    bytes_max = fetch_bytes_max(request, ctx, bytes_max)
    wait_s = min(max(asked.wait_ms, 0), limits.wait_ms_max) / 1000
    due = session.due()
    if denied:
        due = [each for each in due if each.topic not in denied]
    plan: PartitionsPlan = FetchPlan(due, min(asked.min_bytes, bytes_max), bytes_max, wait_s)
    peer, rack = request.peer, asked.rack
    reader = FetchReader(ctx.partitions, ctx.reply_memory, session, plan, rack, peer.host)
    reader.listener = peer.listener
    reader.committed = asked.committed
    return reader, wait_s


# -- the response ---------------------------------------------------------------------------------


class _Answer:
    """The response to one request, built from the decided partitions of its plan."""

    __slots__ = (
        "_ctx",
        "_encoded",
        "_names_leaders",
        "_readable",
        "_reader",
        "_request",
        "_session",
        "_topics",
        "_unknown",
    )

    def __init__(
        self,
        request: Request,
        ctx: Context,
        session: FetchSession,
        reader: FetchReader,
        encoded: dict[Hashable, list[bytes]] | None = None,
    ) -> None:
        """Begin the response. `encoded` has partitions that are encoded already, by topic."""
        self._request = request
        self._ctx = ctx
        self._session = session
        self._reader = reader
        # The partitions in the response by topic: those to encode, and those without records that
        # are encoded already.
        self._encoded: dict[Any, list[bytes]] = encoded or {}
        self._topics: dict[Any, list[PartitionFetched]] = {topic: [] for topic in self._encoded}
        # Whether the client may read a topic now. Filled with an authorizer only.
        self._readable: dict[Any, bool] = {}
        # The results of partitions that do not exist.
        self._unknown = 0
        # True if the response has an error after which the client looks for the leader.
        self._names_leaders = False

    def encode(self) -> list[Buffer]:
        """Encode the response from the final decisions. Call this once."""
        try:
            return self._encode()
        except Exception:
            # The session may have recorded values that the client was not sent.
            self._ctx.fetch_sessions.remove(self._session)
            raise

    def _encode(self) -> list[Buffer]:
        request, session, size = self._request, self._session, self._reader.plan.size_bytes
        throttled = throttled_fetch(request, self._ctx, session, size)
        if throttled is not None:
            self._reader.release()
            return throttled
        self._add_decided()
        if session.kept and 2 * self._unknown > len(session):
            self._ctx.fetch_sessions.remove(session)  # do not keep what does not exist
        answered: list[TopicFetched] = list(self._topics.items())
        nodes: Sequence[NodeEndpoint] = ()
        if self._names_leaders and request.version >= LEADERS_FROM:
            hints = LeaderHints(self._ctx, request.peer)
            answered, nodes = _with_leaders(answered, hints)
        fetches = request.peer.fetches
        if session.names_all and fetches is not None and self._reader.plan.size_bytes < _PACED_MAX:
            fetches.pace(len(session) * _PAUSE_S)
        response = encode_fetch(
            request.version,
            request.correlation_id,
            answered,
            session_id=session.id,
            nodes=nodes,
            encoded=self._encoded,
        )
        count_reply(request, self._ctx, response, size)
        return self._reader.reply(response)

    def _add_decided(self) -> None:
        """Add the decided partitions, and those that rest."""
        session, decided = self._session, self._reader.plan.decided
        if session.names_all:
            for topic in session.topics():
                self._encoded[topic] = self._resting(topic)
                self._topics[topic] = []
        early = session.names_all or len(decided) > _AT_ONCE_MAX
        for result in decided:
            self._add(result, early=early)

    def _add(self, result: FetchResult, *, early: bool) -> None:
        """Add one partition. With `early` it is encoded at once if it has no records."""
        session, asked = self._session, result.asked
        error = self._reader.plan.error_of(result) if result.error else result.error
        if self._ctx.authorizer is not None and not self._may_read(asked.topic):
            error = TOPIC_DENIED  # since the request began
        fetched = _fetched(result, error)
        if self._reader.committed and not fetched.error_code:
            fetched = fetched._replace(aborted=result.aborted)
        names_leader = bool(error) and fetched.error_code in _NAMES_LEADER
        if error and not self._request.error:
            self._request.error = int(error)
        self._names_leaders |= names_leader
        self._unknown += error in _UNKNOWN
        included = session.update_response(
            asked,
            high_watermark=fetched.high_watermark,
            log_start_offset=fetched.log_start_offset,
            error_code=fetched.error_code,
            has_records=bool(fetched.records_bytes),
            redirected=result.preferred_replica >= 0 or result.diverging is not None,
        )
        reply = b""
        if early and included and not fetched.records_bytes and not names_leader:
            reply = encode_partition(self._request.version, fetched)
            self._topics.setdefault(asked.topic, [])
            self._encoded.setdefault(asked.topic, []).append(reply)
        elif included:
            self._topics.setdefault(asked.topic, []).append(fetched)
        log = result.log
        rests = error is not TOPIC_DENIED and self._reader.can_rest(result)
        if session.kept and log is not None and rests:
            session.rest(asked, log, reply)

    def _resting(self, topic: Hashable) -> list[bytes]:
        """Return the replies of the partitions of a topic that rest, or errors in their place."""
        if self._ctx.authorizer is None or self._may_read(topic):
            return self._session.resting_replies(topic)
        return [
            _refused(self._request.version, each.partition)
            for each in self._session.partitions_of((topic,))
            if each.reply is not None
        ]

    def _may_read(self, topic: Any) -> bool:
        found = self._readable.get(topic)
        if found is None:
            found = self._readable[topic] = _may_read(self._request, self._ctx, topic)
        return found


def _fetched(result: FetchResult, error: ErrorCode) -> PartitionFetched:
    log, index = result.log, result.asked.partition
    if error in _WITHOUT_LOG:
        return PartitionFetched(index, error, aborted=())  # as Kafka, in both isolation levels
    if log is None or error:
        return PartitionFetched(index, error)
    buffers: list[Buffer] = []
    records = result.records
    if records:
        for record in records:
            buffers += record.data
        traffic = log.traffic
        traffic.bytes_out += result.size_bytes
        traffic.records_out += records[-1].end_sequence_id - records[0].sequence_id
    return PartitionFetched(
        index,
        error,
        log.high_watermark,
        log.stable_offset,
        log.log_start_offset,
        buffers,
        result.size_bytes,
        result.preferred_replica,
        diverging_epoch=result.diverging,
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
    request.error = int(error)
    if request.version >= SESSIONS_FROM:
        return encode_fetch(request.version, request.correlation_id, [], error_code=int(error))
    topics: list[TopicFetched] = [
        (
            topic,
            [PartitionFetched(request.body.read(entry).index, error) for entry in entries.all()],
        )
        for topic, entries in request.body.topics
    ]
    return encode_fetch(request.version, request.correlation_id, topics)


API = Api(key=1, name="Fetch", versions=range(4, 19), handle=handle, decode=decode_fetch)

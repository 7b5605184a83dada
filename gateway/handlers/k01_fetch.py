"""Fetch, key 1, v4-v18: whole batches walk out as they are stored.

v5 log start · v7 sessions (KIP-227) · v9 leader epoch check · v10 zstd · v11 rack (KIP-392) · v12
flexible, last fetched epoch · v13 topic ids · v15 replica state · v16 a refusal names the leader
(KIP-951) · v17/v18 replica fields we do not use.
Nothing at or above the high watermark leaves. A gateway that does not lead a partition reads it for
clients of its own rack, and nobody else: what it knows of the end may be late. Not done: diverging
epochs (a log here never diverges from what was acknowledged), transactions.
What Spark's executors ask for is noted on the way: their queries are shown as read-only groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.cluster.port import StreamKey
from gateway.core import progress
from gateway.core.fetch_session import PartitionKey, Session, SessionFault, Wanted
from gateway.errors import code_for
from gateway.handlers.api import Api, Context, Request, Result
from gateway.handlers.members import LeaderHints, named_topic, why_not_found
from gateway.topics.partition import Partition
from gateway.topics.replica import ReplicaPartition
from gateway.wire.fetch_reply import LEADERS_FROM, PartitionFetched, TopicFetched, encode_fetch
from gateway.wire.node_endpoints import NodeEndpoint
from ledger.errors import LedgerError
from ledger.ids import Buffer
from ledger.streams.tail_cache import StoredRecord

_TOPIC_IDS_FROM = 13
_SESSIONS_FROM = 7
_RACKS_FROM = 11
_OPEN_S = 0.5  # at least, for a partition to be opened, whatever the client would wait
_NO_ID = UUID(int=0)
_NOT_LEADER = ErrorCode.not_leader_or_follower
_AHEAD = ErrorCode.offset_not_available
_NAMES_LEADER = (int(_NOT_LEADER), int(ErrorCode.fenced_leader_epoch))

_Readable = Partition | ReplicaPartition


class _Found(NamedTuple):
    """What one partition gives now.

    `cold`: reading it needs a wait. `more`: it holds more than the reader takes or the answer has
    room for, so waiting adds nothing to it.
    """

    error: ErrorCode = ErrorCode.none
    partition: _Readable | None = None
    records: list[StoredRecord] | None = None
    cold: bool = False
    more: bool = False
    nearer: int | None = None  # the gateway of the client's rack that reads it as well


class _Fetch:
    """One request, from its arrival until its reply. A `FetchWaiter`."""

    def __init__(self, request: Request, ctx: Context, session: Session) -> None:
        body = request.body
        self._request = request
        self._ctx = ctx
        self._session = session
        self._min_bytes: int = body.min_bytes
        self._bytes_max: int = min(max(body.max_bytes, 0), ctx.config.fetch.response_bytes_max)
        wait_s: float = max(body.max_wait.total_seconds(), 0.0)
        self._wait_s = min(wait_s, ctx.config.fetch.wait_ms_max / 1000)
        self._by_id = request.version >= _TOPIC_IDS_FROM
        rack: str = body.rack_id if request.version >= _RACKS_FROM else ""
        self._rack = rack
        self._elsewhere = bool(rack) and rack != ctx.config.rack  # is where the client lives
        self._timer: asyncio.TimerHandle | None = None
        self._cold: asyncio.Task[None] | None = None
        self._over = self._wait_s == 0  # the client's time is
        self._news = False  # while a cold round looked elsewhere
        self._watched: list[_Readable] = []
        self._reply: asyncio.Future[Result] | None = None

    # -- attempts -----------------------------------------------------------------------------

    def start(self) -> Result | asyncio.Future[Result]:
        """The reply when there is something to say now, else a future of it."""
        found, whole = self._look()
        if whole and (self._enough(found) or self._wait_s == 0):
            return self._encode(found)
        loop = asyncio.get_running_loop()
        self._reply = loop.create_future()
        self._reply.add_done_callback(self._ended)
        self._timer = loop.call_later(self._wait_s, self._deadline)
        self._watch()
        if not whole:
            self._read_cold(found)
        return self._reply

    def _look(self) -> tuple[list[tuple[Wanted, _Found]], bool]:
        """What memory has: all that is wanted, or up to a partition that must be waited for."""
        found: list[tuple[Wanted, _Found]] = []
        left = self._bytes_max
        empty = True
        for wanted in self._session.wanted():
            one = self._find(wanted, left, empty)
            if one.cold:
                return found, False
            left = _left_after(one, left)
            empty = empty and not one.records
            found.append((wanted, one))
        return found, True

    def _find(self, wanted: Wanted, left: int, empty: bool) -> _Found:
        partition, error = self._partition(wanted)
        if partition is None:
            return _Found(error)
        if not partition.led and _gone(partition):
            return _Found(_NOT_LEADER)
        if not partition.readable:
            return _Found(partition=partition, cold=True)
        offset, epoch = wanted.fetch_offset, wanted.leader_epoch
        if (
            self._elsewhere
            or not partition.log_start_offset <= offset < partition.high_watermark
            or (epoch >= 0 and epoch != partition.leader_epoch)
            or left <= 0
        ):
            known = self._without_reading(wanted, partition, left, empty)
            if known is not None:
                return known
        records = partition.read_cached(offset, min(wanted.bytes_max, left))
        if records is None:
            return _Found(partition=partition, cold=True)
        return _given(partition, records, left, empty)

    def _partition(self, wanted: Wanted) -> tuple[_Readable | None, ErrorCode]:
        if self._by_id:
            assert isinstance(wanted.topic, UUID)
            topic = self._ctx.catalog.by_id(wanted.topic)
            if topic is None:
                return None, ErrorCode.unknown_topic_id
            name = topic.name
        else:
            name = str(wanted.topic)
        partition = self._ctx.partitions.find(name, wanted.partition)
        if partition is not None:
            return partition, ErrorCode.none
        error = why_not_found(name, wanted.partition, self._ctx)
        if error is _NOT_LEADER and self._rack and not self._elsewhere:
            return self._ctx.partitions.replica(name, wanted.partition), error
        return None, error

    def _without_reading(
        self, wanted: Wanted, partition: _Readable, left: int, empty: bool
    ) -> _Found | None:
        """An error, or who is nearer, or that there is nothing for it. None: read it.

        Only asked where there may be something to say: nearly every fetch just reads.
        """
        error = _position_error(wanted, partition)
        if error:
            return _Found(error, partition)
        if self._elsewhere:
            nearer = self._nearer(wanted)
            if nearer is not None:
                return _Found(partition=partition, nearer=nearer)
        if wanted.fetch_offset == partition.high_watermark:
            return _Found(partition=partition)
        if left <= 0 and not empty:  # earlier partitions have filled the answer
            return _Found(partition=partition, more=True)
        return None

    def _nearer(self, wanted: Wanted) -> int | None:
        """A replica in the client's rack. No other: clients turn back from who is no replica."""
        cluster = self._ctx.cluster
        near = [m.node_id for m in cluster.members() if m.rack == self._rack and not m.leaving]
        if not near:
            return None
        assert isinstance(wanted.topic, str | UUID)
        topic = named_topic(wanted.topic, self._ctx)
        if topic is None:
            return None
        key = StreamKey(topic.topic_id, wanted.partition)
        replicas = cluster.replicas(key, topic.replication_factor)
        return next((node for node in replicas if node in near and node != cluster.node_id), None)

    def _enough(self, found: list[tuple[Wanted, _Found]]) -> bool:
        """As many bytes as the client waits for, or something that waiting does not better.

        So a reader far behind never waits; nor does it at Kafka's brokers, which answer at once
        who reads an older segment (DelayedFetch). What it is given was read from disk: who waited
        would read that again at all news.
        """
        size = 0
        for _, one in found:
            if (one.error and one.error is not _AHEAD) or one.nearer is not None or one.more:
                return True
            if one.records:
                size += _size(one.records)
        return size >= self._min_bytes or not found

    # -- waiting ------------------------------------------------------------------------------

    def _watch(self) -> None:
        for wanted in self._session.wanted():
            partition, _ = self._partition(wanted)
            if partition is not None:
                partition.add_waiter(self)
                self._watched.append(partition)

    def on_data(self) -> None:
        """A watched partition has news: answer if that is enough."""
        if self._reply is None or self._reply.done():
            return
        if self._cold is not None:
            self._news = True
            return
        found, whole = self._look()
        if not whole:
            self._read_cold(found)
        elif self._enough(found):
            self._finish(found)

    def _deadline(self) -> None:
        """The client's time is over: what there is goes. A cold read under way is let finish."""
        self._over = True
        if self._reply is None or self._reply.done() or self._cold is not None:
            return
        found, whole = self._look()
        if whole:
            self._finish(found)
        else:
            self._read_cold(found)

    def _finish(self, found: list[tuple[Wanted, _Found]]) -> None:
        assert self._reply is not None
        if not self._reply.done():
            self._reply.set_result(self._encode(found))

    def _ended(self, _: asyncio.Future[Result]) -> None:
        """The reply is set, or its connection is gone."""
        for partition in self._watched:
            partition.remove_waiter(self)
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
        cold, reply = self._cold, self._reply
        if cold is not None and not cold.done() and reply is not None and reply.cancelled():
            cold.cancel()

    # -- reading from disk --------------------------------------------------------------------

    def _read_cold(self, found: list[tuple[Wanted, _Found]]) -> None:
        """`found` of the first partitions is kept: what was read ahead is given only once."""
        self._cold = asyncio.get_running_loop().create_task(self._cold_rounds(found))
        self._cold.add_done_callback(self._cold_ended)

    def _cold_ended(self, cold: asyncio.Task[None]) -> None:
        """A bug of ours answers too: whoever waits must not wait for ever."""
        if cold.cancelled():
            return
        error = cold.exception()
        if error is not None and self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)

    async def _cold_rounds(self, begun: list[tuple[Wanted, _Found]]) -> None:
        """Until there is enough, or time is over, or there is no news to look at."""
        while True:
            self._news = False
            found, begun = await self._cold_round(begun), []
            if self._enough(found) or self._over:
                self._finish(found)
                return
            if not self._news:
                self._cold = None
                return

    async def _cold_round(self, found: list[tuple[Wanted, _Found]]) -> list[tuple[Wanted, _Found]]:
        """Each wanted partition after those `found`, from disk where memory does not have it.

        Those that must be opened come last, and are waited for once and together, or not at all
        when the others have enough: who cannot be opened holds up nobody for long.
        """
        done = {wanted.key for wanted, _ in found}
        rest = [wanted for wanted in self._session.wanted() if wanted.key not in done]
        shut = {wanted.key: at for wanted in rest if (at := self._shut(wanted)) is not None}
        await self._read_into(found, [wanted for wanted in rest if wanted.key not in shut], {})
        if shut:
            wait_s = 0.0 if found and self._enough(found) else max(self._wait_s, _OPEN_S)
            refused = await _opened(shut.values(), wait_s)
            await self._read_into(found, [each for each in rest if each.key in shut], refused)
        return [(wanted, _still(one)) for wanted, one in found]

    def _shut(self, wanted: Wanted) -> _Readable | None:
        """The partition, if it is one that must be opened to be read."""
        partition, _ = self._partition(wanted)
        if partition is None or partition.readable or (not partition.led and _gone(partition)):
            return None
        return partition

    async def _read_into(
        self,
        found: list[tuple[Wanted, _Found]],
        rest: list[Wanted],
        refused: dict[_Readable, ErrorCode],
    ) -> None:
        """`found` holds those of `rest` as well. `refused`: why some could not be opened."""
        left, empty = self._bytes_max, True
        for _, one in found:
            left = _left_after(one, left)
            empty = empty and not one.records
        for wanted in rest:
            one = self._find(wanted, left, empty)
            partition = one.partition
            if one.cold and partition is not None and not partition.readable:
                one = _Found(refused.get(partition, _NOT_LEADER), partition)
            elif one.cold and partition is not None:
                one = await self._find_cold(partition, wanted, left, empty)
            left = _left_after(one, left)
            empty = empty and not one.records
            found.append((wanted, one))

    async def _find_cold(
        self, partition: _Readable, wanted: Wanted, left: int, empty: bool
    ) -> _Found:
        known = self._without_reading(wanted, partition, left, empty)
        if known is not None:
            return known
        try:
            records = await partition.read(wanted.fetch_offset, min(wanted.bytes_max, left))
        except LedgerError as failed:
            return _Found(code_for(failed), partition)
        return _given(partition, records, left, empty)

    # -- the answer ---------------------------------------------------------------------------

    def _encode(self, found: list[tuple[Wanted, _Found]]) -> list[Buffer]:
        topics: dict[Any, list[PartitionFetched]] = {}
        redirects = False
        for wanted, one in found:
            fetched = _fetched(wanted, one, self._over)
            if fetched.error_code and fetched.error_code in _NAMES_LEADER:
                redirects = True
            if self._session.include(
                wanted,
                high_watermark=fetched.high_watermark,
                log_start_offset=fetched.log_start_offset,
                error_code=fetched.error_code,
                has_records=bool(fetched.records_bytes),
                redirected=one.nearer is not None,
            ):
                topics.setdefault(wanted.topic, []).append(fetched)
        answered: list[TopicFetched] = list(topics.items())
        nodes: Sequence[NodeEndpoint] = ()
        if redirects and self._request.version >= LEADERS_FROM:
            answered, nodes = _with_leaders(answered, LeaderHints(self._ctx, self._request.peer))
        return encode_fetch(
            self._request.version,
            self._request.correlation_id,
            answered,
            session_id=self._session.id,
            nodes=nodes,
        )


def _size(records: list[StoredRecord]) -> int:
    size = 0
    for record in records:  # a few; `sum` takes longer to begin
        size += record.size_bytes
    return size


async def _opened(partitions: Collection[_Readable], wait_s: float) -> dict[_Readable, ErrorCode]:
    """All are being opened, or open. Waits so long at most; gives why some cannot be."""
    opening = {asyncio.ensure_future(each.ensure_readable()): each for each in partitions}
    try:
        done, _ = await asyncio.wait(opening, timeout=wait_s)
    finally:
        for task in opening:
            task.cancel()
    refused: dict[_Readable, ErrorCode] = {}
    for task in done:
        error = task.exception()
        if isinstance(error, LedgerError):
            refused[opening[task]] = code_for(error)
        elif error is not None:
            raise error
    return refused


def _gone(partition: _Readable) -> bool:
    """It is not led here: so it answers nothing, but for a replica that is open."""
    return not isinstance(partition, ReplicaPartition) or partition.closed


def _still(one: _Found) -> _Found:
    """What was found, if it can be said still: reading takes time."""
    partition = one.partition
    if partition is not None and not partition.led and _gone(partition):
        return _Found(_NOT_LEADER)
    return one


def _with_leaders(
    topics: list[TopicFetched], hints: LeaderHints
) -> tuple[list[TopicFetched], Sequence[NodeEndpoint]]:
    """Refusals name the leader; and where these leaders are."""
    told: list[TopicFetched] = [
        (
            named,
            [
                each._replace(current_leader=hints.leader(named, each.index))
                if each.error_code in _NAMES_LEADER
                else each
                for each in partitions
            ],
        )
        for named, partitions in topics
    ]
    return told, hints.nodes()


def _position_error(wanted: Wanted, partition: _Readable) -> ErrorCode:
    epoch = partition.leader_epoch
    if wanted.leader_epoch >= 0 and wanted.leader_epoch != epoch:
        if wanted.leader_epoch < epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch
    offset = wanted.fetch_offset
    if not partition.log_start_offset <= offset <= partition.high_watermark:
        if isinstance(partition, ReplicaPartition):
            return partition.position_error(offset)
        return ErrorCode.offset_out_of_range
    return ErrorCode.none


def _given(partition: _Readable, records: list[StoredRecord], left: int, empty: bool) -> _Found:
    """The first batch of the first non-empty partition goes whole; a later one must fit."""
    if not records:
        return _Found(partition=partition)
    if not empty and records[0].size_bytes > left:
        return _Found(partition=partition, more=True)
    more = records[-1].end_sequence_id < partition.high_watermark
    return _Found(partition=partition, records=records, more=more)


def _left_after(one: _Found, left: int) -> int:
    """Bytes of the answer that later partitions may fill. None once something did not fit:
    it would be read for nothing."""
    if one.records:
        return left - _size(one.records)
    return 0 if one.more else left


def _fetched(wanted: Wanted, one: _Found, over: bool) -> PartitionFetched:
    """`over`: the client waited as long as it wanted for what is ahead of a replica."""
    partition, error = one.partition, one.error
    if error is _AHEAD and not over:
        error = ErrorCode.none
    if partition is None or (error and error is not ErrorCode.offset_out_of_range):
        return PartitionFetched(wanted.partition, error)
    buffers: list[Buffer] = []
    size = 0
    for record in one.records or ():
        buffers += record.data
        size += record.size_bytes
    end = partition.high_watermark
    nearer = -1 if one.nearer is None else one.nearer
    start = partition.log_start_offset
    return PartitionFetched(wanted.partition, error, end, end, start, buffers, size, nearer)


def _wanted(body: Any, by_id: bool) -> Iterable[Wanted]:
    for topic in body.topics:
        named = (topic.topic_id or _NO_ID) if by_id else topic.topic
        for asked in topic.partitions:
            yield Wanted(
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


def handle(request: Request, ctx: Context) -> Result | asyncio.Future[Result]:
    """At once when memory has enough; else when data comes, or the client's time is over."""
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
        _wanted(body, by_id),
        _forgotten(body, by_id),
        now_ms,
        uses_ids=by_id,
    )
    if isinstance(session, SessionFault):
        return _refuse(request, ErrorCode(int(session)))
    client = request.client_id
    if client is not None and progress.MARK in client:
        ctx.readers.note(client, "/" + request.peer.host, body, by_id=by_id, now_ms=now_ms)
    return _Fetch(request, ctx, session).start()


def _refuse(request: Request, error: ErrorCode) -> Result:
    """A refusal of the whole request; below v7, which has no such field, for each partition."""
    if request.version >= _SESSIONS_FROM:
        return encode_fetch(request.version, request.correlation_id, [], error_code=int(error))
    topics: list[TopicFetched] = [
        (topic.topic, [PartitionFetched(asked.partition, error) for asked in topic.partitions])
        for topic in request.body.topics
    ]
    return encode_fetch(request.version, request.correlation_id, topics)


API = Api(key=1, name="Fetch", versions=range(4, 19), handle=handle)

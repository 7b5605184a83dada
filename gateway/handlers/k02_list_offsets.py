"""ListOffsets, key 2, v1-v11: returns where a partition starts, ends or reaches a timestamp.

v2 isolation · v4 leader epoch · v6 flexible · v7 max timestamp (-3) · v8 earliest local (-4) · v9
latest tiered (-5) · v10 timeout · v11 earliest pending upload (-6). Starts and ends are returned
from memory in the same turn of the event loop, because Spark sends two requests for every poll.
Other requests run in a task, which the end of the connection cancels. Of those that name many
partitions, a connection runs one at a time, because each takes memory for every partition. A
partition that is named more than once gets INVALID_REQUEST, once, as in Kafka.
Only the leader answers, while it holds the lease, and after its leader epoch is published.
Not done: tiers (-5 and -6 return -1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.address_share import share_of
from gateway.errors import partition_code
from gateway.handlers.api import Api, Context, Request, Result
from gateway.handlers.opening import open_all
from gateway.handlers.rights import TOPIC_DENIED, allows_topic
from gateway.topics.empty_partition import EmptyPartition
from gateway.topics.partition import Partition
from gateway.topics.timestamp_search import SearchBudget
from gateway.wire.list_offsets_reply import PartitionOffset, encode_list_offsets
from gateway.wire.list_offsets_request import decode_list_offsets
from ledger.errors import LedgerError
from ledger.ids import Buffer
from ledger.streams.read_turns import READER
from ledger.tasks import start_once

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)
_SEARCHING_S_MAX = 20.0
_PARTITIONS_PER_TURN = 500
_NO_EPOCH = -1  # as in Kafka, any other negative epoch is an old one
_VERSION_MIN = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING_UPLOAD: 11}

_Answers = dict[str, list[PartitionOffset]]  # the answers of a request, by topic


class _Asked:
    """One partition of a request, and its answer once it is known."""

    __slots__ = ("answer", "index", "leader_epoch", "timestamp", "topic")

    def __init__(self, topic: str, index: int, leader_epoch: int, timestamp: int) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch  # `_NO_EPOCH` if the client has none
        self.timestamp = timestamp
        self.answer: PartitionOffset | None = None


def handle(
    request: Request, ctx: Context
) -> Result | asyncio.Future[Result] | Coroutine[Any, Any, Result]:
    """Reply from memory if only starts and ends are requested. Otherwise search the log."""
    topics = request.body.topics
    short = len(topics) <= _PARTITIONS_PER_TURN
    if not short or sum(map(len, topics)) > _PARTITIONS_PER_TURN:
        return _in_turn(request, ctx)
    every: dict[tuple[str, int], _Asked] = {}
    for _ in _distinct(request, ctx, every):
        pass
    for each in every.values():
        _look_up(request, each, ctx)
    if any(each.answer is None for each in every.values()):
        return _begun(request, ctx)
    answers: _Answers = {}
    for _ in _by_topic(every, answers):
        pass
    return list(encode_list_offsets(request.version, request.correlation_id, answers))


async def _in_turn(request: Request, ctx: Context) -> Result:
    """Answer a request of many partitions once earlier ones of the connection are answered."""
    return await _begun(request, ctx)


def _begun(request: Request, ctx: Context) -> asyncio.Task[Result]:
    """Answer in a task of its own, because `READER` is set in it."""
    return start_once("a search for offsets", _complete(request, ctx), expected=Exception)


def _distinct(
    request: Request, ctx: Context, every: dict[tuple[str, int], _Asked]
) -> Iterator[None]:
    """Put each partition of the request into `every`, in parts.

    Refuse those that are repeated, and topics that the client may not describe.
    """
    seen = 0
    for topic in request.body.topics:
        name = topic.name
        denied = not allows_topic(request, ctx, Operation.DESCRIBE, name)
        for index, epoch, timestamp in topic:
            key = name, index
            known = every.get(key)
            if known is None:
                known = every[key] = _Asked(name, index, epoch, timestamp)
                known.answer = _refusal(known, TOPIC_DENIED) if denied else None
            elif known.answer is None:
                known.answer = _refusal(known, ErrorCode.invalid_request)
            seen += 1
            if seen % _PARTITIONS_PER_TURN == 0:
                yield
        seen += 1
        if seen % _PARTITIONS_PER_TURN == 0:
            yield


def _committed(request: Request) -> bool:
    """Return whether only committed records count."""
    return request.body.committed


def _look_up(request: Request, each: _Asked, ctx: Context) -> Partition | None:
    """Answer from memory if possible. Return the partition if it must be opened or searched."""
    if each.answer is not None:
        return None
    if each.timestamp < PENDING_UPLOAD or request.version < _VERSION_MIN.get(each.timestamp, 0):
        each.answer = _refusal(each, ErrorCode.unsupported_version)
        return None
    partition = ctx.partitions.find(each.topic, each.index)
    if partition is None:
        empty = ctx.partitions.empty(each.topic, each.index)
        if empty is not None:
            known = _from_memory(each, empty, committed=_committed(request))
            each.answer = _answer(each) if known is None else known
            return None
        error = ctx.partitions.why_not_led(each.topic, each.index)
        each.answer = _refusal(each, error)
        return None
    each.answer = _known(request, each, partition, ctx)
    return None if each.answer is not None else partition


def _known(
    request: Request, each: _Asked, partition: Partition, ctx: Context
) -> PartitionOffset | None:
    """Return the reply as `_from_memory`. No epoch is shown before it is published."""
    index = each.index
    if partition.readable and not ctx.partitions.shows_epoch(each.topic, index, partition):
        return _refusal(each, ErrorCode.not_leader_or_follower)
    return _from_memory(each, partition, committed=_committed(request))


def _by_topic(every: dict[tuple[str, int], _Asked], answers: _Answers) -> Iterator[None]:
    """Put the answer of each partition into `answers`, in parts."""
    for at, each in enumerate(every.values(), 1):
        assert each.answer is not None
        answers.setdefault(each.topic, []).append(each.answer)
        if at % _PARTITIONS_PER_TURN == 0:
            yield


def _answer(
    asked: _Asked, offset: int = -1, timestamp: int = -1, epoch: int = -1
) -> PartitionOffset:
    return PartitionOffset(asked.index, 0, timestamp, offset, epoch)


def _refusal(asked: _Asked, error: ErrorCode) -> PartitionOffset:
    return PartitionOffset(asked.index, int(error))


def _from_memory(
    asked: _Asked, partition: Partition | EmptyPartition, *, committed: bool
) -> PartitionOffset | None:
    """Return the reply, or None if the partition must be opened or searched."""
    if not partition.is_leader:
        return _refusal(asked, ErrorCode.not_leader_or_follower)
    if not partition.readable:
        return None
    epoch = asked.leader_epoch
    if epoch != _NO_EPOCH and epoch != partition.leader_epoch:
        older = epoch < partition.leader_epoch
        return _refusal(
            asked, ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
        )
    if asked.timestamp == LATEST:
        error = _unknown_outcomes(partition) if committed else None
        if error is not None:
            return _refusal(asked, error)
        end = partition.stable_offset if committed else partition.high_watermark
        return _answer(asked, end, epoch=partition.leader_epoch)
    if asked.timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = partition.log_start_offset
        return _answer(asked, start, epoch=partition.epoch_at(start))
    if asked.timestamp in (LATEST_TIERED, PENDING_UPLOAD):
        return _answer(asked)  # no record is in a remote tier
    return None


def _unknown_outcomes(partition: Partition | EmptyPartition) -> ErrorCode | None:
    """Return an error if the last stable offset is that of before a failure, otherwise None."""
    try:
        partition.check_outcomes()
    except LedgerError as error:
        return partition_code(error)
    return None


# -- what takes time ------------------------------------------------------------------------------


async def _complete(request: Request, ctx: Context) -> Result:
    """Answer every partition: look all up, open those that are not open together, then search."""
    every: dict[tuple[str, int], _Asked] = {}
    for _ in _distinct(request, ctx, every):
        await asyncio.sleep(0)
    found: list[tuple[_Asked, Partition]] = []
    for at, each in enumerate(every.values()):
        partition = _look_up(request, each, ctx)
        if partition is not None:
            found.append((each, partition))
        if at % _PARTITIONS_PER_TURN == 0:
            await asyncio.sleep(0)
    errors = await open_all({partition for _, partition in found if not partition.readable})
    opened = await _still_unknown(request, found, errors, ctx)
    if opened:
        await _search_each(request, opened)
    answers: _Answers = {}
    for _ in _by_topic(every, answers):
        await asyncio.sleep(0)
    reply: list[Buffer] = []
    for buffer in encode_list_offsets(request.version, request.correlation_id, answers):
        reply.append(buffer)
        await asyncio.sleep(0)
    return reply


async def _still_unknown(
    request: Request,
    found: list[tuple[_Asked, Partition]],
    errors: Mapping[Partition, ErrorCode],
    ctx: Context,
) -> list[tuple[_Asked, Partition]]:
    """Answer what is known now that the partitions are open. Returns those to search."""
    opened: list[tuple[_Asked, Partition]] = []
    for at, (each, partition) in enumerate(found, 1):
        if at % _PARTITIONS_PER_TURN == 0:
            await asyncio.sleep(0)
        error = errors.get(partition)
        if error is not None:
            each.answer = _refusal(each, error)
        else:
            each.answer = _known(request, each, partition, ctx)
            if each.answer is None:
                opened.append((each, partition))
    return opened


async def _search_each(request: Request, opened: list[tuple[_Asked, Partition]]) -> None:
    """Search these partitions, after the earlier searches of the connection.

    So a client that sends many requests takes one place in the line for permits to search.
    """
    READER.set(share_of(request.peer.host))
    budget = SearchBudget()
    ends_s = asyncio.get_running_loop().time() + _SEARCHING_S_MAX
    searching = request.peer.searching
    try:
        async with asyncio.timeout_at(ends_s):
            await searching.acquire()
    except TimeoutError:
        for each, _ in opened:
            each.answer = _refusal(each, ErrorCode.request_timed_out)
        return
    try:
        for each, partition in opened:
            each.answer = await _search(request, each, partition, budget, ends_s)
            await asyncio.sleep(0)
    finally:
        searching.release()


async def _search(
    request: Request, asked: _Asked, partition: Partition, budget: SearchBudget, ends_s: float
) -> PartitionOffset:
    committed = _committed(request)
    known = _from_memory(asked, partition, committed=committed)
    if known is not None:
        return known
    try:
        async with asyncio.timeout_at(ends_s):
            await partition.ensure_readable()
            search = partition.search(budget)
            if asked.timestamp == MAX_TIMESTAMP:
                found = await search.of_timestamp_max()
            else:
                found = await search.first_at_or_after(asked.timestamp)
    except TimeoutError:
        return _refusal(asked, ErrorCode.request_timed_out)
    except LedgerError as error:
        return _refusal(asked, partition_code(error))
    if not partition.is_leader:  # another broker may have taken over and appended
        return _refusal(asked, ErrorCode.not_leader_or_follower)
    if found is None:
        return _answer(asked)
    timestamp, offset = found
    if committed and offset >= partition.stable_offset:
        error = _unknown_outcomes(partition)
        return _answer(asked) if error is None else _refusal(asked, error)
    return _answer(asked, offset, timestamp, partition.epoch_at(offset))


API = Api(
    key=2,
    name="ListOffsets",
    versions=range(1, 12),
    handle=handle,
    decode=decode_list_offsets,
)

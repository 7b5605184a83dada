"""The times of records from the indexes of their leaders, without reading a record."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, cast

from gateway.cluster.port import StreamKey
from gateway.core.figures import age_s
from gateway.handlers.api import Context
from gateway.metrics.peer_questions import ask_peers

Place = tuple[str, int]
"""A topic and a partition."""

Position = tuple[str, int, int]
"""A topic, a partition and an offset."""

_ASKED_BYTES_MAX: Final = 3_500  # of the rows in one request, which may have 4 KiB
_REQUESTS_MAX: Final = 8  # to each gateway, for one page; the times of the rest are unknown
_ROWS_MAX: Final = 1_000  # of one question
_SLICE: Final = 200


def time_here(ctx: Context, position: Position) -> int | None:
    """Return the time of a record of a partition that this gateway leads, in ms; None if unknown.

    It is the greatest time of the batches around it: of its batch while that is in memory.
    """
    topic, index, offset = position
    partition = ctx.partitions.led(topic, index)
    if partition is None or not partition.is_leader or not partition.readable:
        return None
    first = max(offset, partition.log_start_offset)
    return None if first >= partition.high_watermark else partition.stream.timestamp_near(first)


async def record_times(ctx: Context, positions: list[Position]) -> dict[Position, int]:
    """Return the time of the record at each position. Unknown ones are left out."""
    found: dict[Position, int] = {}
    elsewhere: dict[int, list[Position]] = {}
    for seen, position in enumerate(positions, 1):
        if seen % _SLICE == 0:
            await asyncio.sleep(0)
        topic = ctx.catalog.by_name(position[0])
        if topic is None:
            continue
        node_id = ctx.cluster.leader(StreamKey(topic.topic_id, position[1])).node_id
        if node_id == ctx.cluster.node_id:
            known = time_here(ctx, position)
            if known is not None:
                found[position] = known
        else:
            elsewhere.setdefault(node_id, []).append(position)
    parts = {node_id: list(portions(each)) for node_id, each in elsewhere.items()}
    for turn in range(min(_REQUESTS_MAX, max(map(len, parts.values()), default=0))):
        found.update(await _ask(ctx, parts, turn))
    return found


async def ages(ctx: Context, behind: Collection[Position]) -> dict[Position, float]:
    """Return the lag in seconds at each position that is not at its end: the age of its record.

    Unknown ones are left out. Metrics, histories and lists of groups take it from here. It costs
    no request for partitions that this gateway leads, and at most 8 to each other gateway.
    """
    times = await record_times(ctx, list(behind))
    now_ms = ctx.clock.now_ms()
    known = ((position, age_s(time_ms, now_ms)) for position, time_ms in times.items())
    return {position: age for position, age in known if age is not None}


async def _ask(
    ctx: Context, parts: dict[int, list[list[Position]]], turn: int
) -> dict[Position, int]:
    """Ask each gateway for its next times. One that does not answer is not asked again."""
    asked = {node_id: each[turn] for node_id, each in parts.items() if turn < len(each)}
    answers = await ask_peers(
        ctx,
        lambda member: (
            {"ask": "record_times", "of": asked[member.node_id]}
            if member.node_id in asked
            else None
        ),
    )
    found: dict[Position, int] = {}
    for node_id, answer in answers.items():
        if answer is None:
            del parts[node_id]
            continue
        times: list[Any] = answer.get("times_ms", [])
        for position, time_ms in zip(asked[node_id], times, strict=False):
            if isinstance(time_ms, int):
                found[position] = time_ms
    return found


def portions(positions: list[Position]) -> Iterator[list[Position]]:
    """Yield positions for one request each."""
    some: list[Position] = []
    size = 0
    for position in positions:
        more = 6 * len(position[0]) + 40  # a name is escaped in JSON
        if some and size + more > _ASKED_BYTES_MAX:
            yield some
            some, size = [], 0
        some.append(position)
        size += more
    if some:
        yield some


async def answer(asked: Mapping[str, Any], ctx: Context) -> dict[str, Any]:
    """Answer the private question `record_times`: times in the order of the positions, or null."""
    rows: Any = asked.get("of")
    if not isinstance(rows, list) or not all(map(_is_position, cast("list[Any]", rows))):
        text = "of must be a list of [topic, partition, offset]"
        return {"error": "INVALID_REQUEST", "message": text}
    positions = cast("list[tuple[str, int, int]]", rows)[:_ROWS_MAX]
    return {"times_ms": [time_here(ctx, (row[0], row[1], row[2])) for row in positions]}


def _is_position(row: Any) -> bool:
    if not isinstance(row, list) or len(cast("list[Any]", row)) != 3:
        return False
    topic, index, offset = cast("list[Any]", row)
    return isinstance(topic, str) and _is_count(index) and _is_count(offset)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63

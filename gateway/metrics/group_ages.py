"""The lag in seconds of some groups, of which the mirror of this gateway has the positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.core.figures import lag_in_records, largest
from gateway.figures.slices import Slices
from gateway.metrics.record_times import Position, ages

if TYPE_CHECKING:
    from gateway.figures.mirror import Mirror
    from gateway.handlers.api import Context

POSITIONS_MAX: Final = 2_000
"""Positions of all groups of one call that are looked up; what does not fit is unknown."""


async def lags_in_seconds(
    ctx: Context, mirror: Mirror, groups: Sequence[str]
) -> dict[str, float | None]:
    """Return how old the oldest record is that each group has not read; None if unknown.

    It is 0 without lag. The times are those of `record_times`, for all groups together.
    """
    behind: dict[str, list[Position] | None] = {}
    room = POSITIONS_MAX
    slices = Slices(hurried=True)
    for group in groups:
        found = await _behind(mirror, group, slices)
        if found is not None and len(found) > room:
            found = None
        behind[group] = found
        room -= len(found or ())
    wanted = {position for each in behind.values() for position in each or ()}
    known = await ages(ctx, wanted)
    return {
        group: None if each is None else largest(map(known.get, each))
        for group, each in behind.items()
    }


async def _behind(mirror: Mirror, group: str, slices: Slices) -> list[Position] | None:
    """Return the positions of a group that are not at their ends; None if one is not known.

    A group may have tens of thousands.
    """
    positions = mirror.positions(group)
    found: list[Position] = []
    for topic, places in positions.items():
        ends = mirror.partitions(topic)
        for index, offset in places:
            if slices.used_up:
                await slices.rest()
            end = ends.get(index)
            if end is None:
                return None
            if lag_in_records(offset, end.figures.start, end.figures.end):
                found.append((topic, index, offset))
    return found if positions else None

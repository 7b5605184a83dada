"""Finds how old the next record of a consumer is, without reading records.

ListOffsets returns the first offset since a time. A search over times therefore finds the time of
the record at a committed offset. It works with every server of Kafka's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from gateway.admin.client import AdminClient, Place
from gateway.wire.list_offsets_request import list_offsets_fields

_LIST_OFFSETS = 2
_AGE_S_MIN: Final = 1.0
_AGE_S_MAX: Final = 30 * 86_400.0
_ROUNDS: Final = 12  # each halves the range of the logarithm: the result is within 0.4 %


async def seconds_behind(
    client: AdminClient,
    positions: Mapping[Place, int],
    now_ms: int,
    *,
    retry_s_max: float = 2.0,
) -> dict[Place, float]:
    """Return the age in seconds of the record at each offset, from 1 s to 30 days.

    Pass only offsets below the end of their partition. Partitions whose leader does not answer are
    left out. The times are those of the records, as their producers or the brokers set them.
    """
    young = dict.fromkeys(positions, _AGE_S_MIN)
    old = dict.fromkeys(positions, _AGE_S_MAX)
    left = set(positions)
    for _ in range(_ROUNDS):
        if not left:
            break
        ages = {place: (young[place] * old[place]) ** 0.5 for place in left}
        asked = {place: now_ms - round(age_s * 1000) for place, age_s in ages.items()}
        fields = partial(list_offsets_fields, timestamp=asked, committed=False)
        answers = await client.at_leaders(sorted(left), _LIST_OFFSETS, fields, retry_s_max)
        left &= answers.keys()
        for place in left:
            since = answers[place].offset
            if 0 <= since <= positions[place]:
                old[place] = ages[place]  # the record is as new as the time asked for
            else:
                young[place] = ages[place]
    return {place: old[place] for place in left}

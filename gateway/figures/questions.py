"""The private questions `topics` and `groups`: rows of this gateway that changed since a version.

`{"ask": "topics", "after": 17, "process": "812-99"}` returns the rows behind version 17 of that
process, oldest change first, and the keys of those that are gone. With `more` the reader asks again
at once, with the returned `version`. With `whole` it forgets what it read before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.figures.parts import share_of
from gateway.figures.rows import group_bytes, part_bytes
from ledger.events import PROCESS

if TYPE_CHECKING:
    from gateway.figures.versions import Changes
    from gateway.handlers.api import Context

ANSWER_BYTES_MAX: Final = 128 * 1024
"""Of the rows of one answer. One row that is larger is sent alone; none has 256 KiB."""

_WAIT_S_MAX: Final = 0.7  # for a sample: less than the asking gateway waits


async def answer(asked: Mapping[str, Any], ctx: Context) -> dict[str, Any]:
    """Answer `topics` or `groups`."""
    after = asked.get("after", 0)
    if not isinstance(after, int) or isinstance(after, bool) or after < 0:
        return {"error": "INVALID_REQUEST", "message": "after must be a number from 0 on"}
    share = share_of(ctx)
    await share.fresh(_WAIT_S_MAX)
    known = asked.get("process") == PROCESS
    found: Changes[Any, Any]
    if asked["ask"] == "topics":
        found = share.topics.changes(after if known else 0, part_bytes, ANSWER_BYTES_MAX)
    else:
        found = share.groups.changes(after if known else 0, group_bytes, ANSWER_BYTES_MAX)
    sampled_s = share.sampled_s
    age_s = None if sampled_s is None else asyncio.get_running_loop().time() - sampled_s
    return changes_answer(found, ctx.cluster.node_id, PROCESS, age_s)


def changes_answer(
    found: Changes[Any, Any], node_id: int, process: str, age_s: float | None
) -> dict[str, Any]:
    """Return the body of an answer."""
    return {
        "node_id": node_id,
        "process": process,
        "age_s": None if age_s is None else round(age_s, 3),
        "version": found.version,
        "whole": found.whole,
        "more": found.more,
        "rows": found.rows,
        "gone": found.gone,
    }

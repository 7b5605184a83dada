"""Private questions about this process: whether it is ready, its slow requests, its history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from gateway.handlers.api import Context
from gateway.metrics import health, history, record_times, slow

_Answer = dict[str, Any]


async def answer(asked: Mapping[str, Any], ctx: Context) -> _Answer:
    """Answer one of the questions in `Context.questions` that lead here."""
    return await _ANSWERS[str(asked.get("ask"))](asked, ctx)


async def _health(asked: Mapping[str, Any], ctx: Context) -> _Answer:
    return {
        "node_id": ctx.cluster.node_id,
        "reasons": [each.value for each in health.reasons(ctx)],
        "sentences": health.readiness(ctx),
    }


async def _slow(asked: Mapping[str, Any], ctx: Context) -> _Answer:
    api = asked.get("api")
    count = asked.get("count", slow.ROWS_MAX)
    if not (api is None or isinstance(api, str)) or not isinstance(count, int) or count < 1:
        return {"error": "INVALID_REQUEST", "message": "api must be a name, count from 1 on"}
    rows = await slow.rows(ctx, api, min(count, slow.ROWS_MAX))
    return {"node_id": ctx.cluster.node_id, "rows": rows}


_ANSWERS: Final[Mapping[str, Callable[[Mapping[str, Any], Context], Awaitable[_Answer]]]] = {
    "health": _health,
    "history": history.answer,
    "record_times": record_times.answer,
    "slow": _slow,
}

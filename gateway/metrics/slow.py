"""The slowest requests of this gateway as rows of plain data."""

from __future__ import annotations

import asyncio
from heapq import nlargest
from typing import Any, Final

from gateway.handlers.api import Context
from gateway.handlers.slow_requests import SlowRequest
from gateway.metrics.process_samples import error_name
from ledger.ports.clock import measured_s

ROWS_MAX: Final = 500  # of one answer, which may have 8 MiB
_ROWS_PER_TURN: Final = 100
STAGES: Final = ("queue", "decode", "append", "journal", "quorum", "write")


async def rows(ctx: Context, api: str | None, count: int) -> list[dict[str, Any]]:
    """Return the slowest requests, of one API or of all, the slowest first."""
    found: list[tuple[float, str, SlowRequest]] = []
    for figures in list(ctx.requests.apis.values()):
        if figures.slow is not None and api in (None, figures.name):
            found += [(each.own_s, figures.name, each) for each in figures.slow.slowest()]
            await asyncio.sleep(0)
    found = nlargest(count, found, key=lambda each: each[0])
    now_ms, now_s = ctx.clock.now_ms(), measured_s()
    shown: list[dict[str, Any]] = []
    for number, (_, name, each) in enumerate(found, 1):
        if each.at_ms is None:
            each.at_ms = now_ms - round(1000 * (now_s - each.ended_s + each.seconds))
        shown.append({"at_ms": each.at_ms, **_row(name, each)})
        if number % _ROWS_PER_TURN == 0:
            await asyncio.sleep(0)
    return shown


def _row(api: str, slow: SlowRequest) -> dict[str, Any]:
    return {
        "api": api,
        "version": slow.version,
        "total_ms": _ms(slow.seconds),
        "wait_ms": _ms(slow.wait_s),
        **{f"{stage}_ms": _ms(getattr(slow, f"{stage}_s")) for stage in STAGES},
        "client_id": slow.client_id,
        "address": slow.address,
        "topic": slow.topic,
        "topics": slow.topics,
        "bytes": slow.bytes,
        "error": error_name(slow.error) if slow.error else "NONE",
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)

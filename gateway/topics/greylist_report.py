"""The greylist of a gateway as text, the way `gateway bookie status` gets it.

It is the value of a read-only broker config, so no API of its own is needed.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

REASONS = ("failing", "slow")


class AvoidedBookie(NamedTuple):
    """One bookie of the greylist. Times are relative to now."""

    bookie: str
    reason: str  # one of `REASONS`
    since_s: float
    left_s: float
    why: str


class AvoidedBookies(NamedTuple):
    """The greylist of this gateway."""

    detection: str  # what the gateway does about slow bookies
    bookies: list[AvoidedBookie]


def greylist_report(avoided: AvoidedBookies, now_ms: int) -> str:
    """Return JSON: the mode of the detection, and a row for each greylisted bookie."""
    rows = [
        {
            "bookie": each.bookie,
            "reason": each.reason,
            "since": _date(now_ms - each.since_s * 1000),
            "until": _date(now_ms + each.left_s * 1000),
            "why": each.why,
        }
        for each in avoided.bookies
    ]
    return json.dumps({"detection": avoided.detection, "bookies": rows})


def parse_report(text: str | None) -> dict[str, Any] | None:
    """Return what `greylist_report` wrote, or None if this is something else."""
    try:
        found: Any = json.loads(text or "")
        rows: list[Any] = [dict(row) for row in found["bookies"]]
        detection: Any = found["detection"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return {"detection": detection, "bookies": rows} if isinstance(detection, str) else None


def _date(time_ms: float) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")

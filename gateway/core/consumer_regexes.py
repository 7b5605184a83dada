"""The regular expressions of members of the consumer protocol: what a new one causes. Pure.

All expressions of a group are resolved together, so that they cause one rebalance.
Source: Kafka, GroupMetadataManager.maybeUpdateRegularExpressions.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.consumer_members import ConsumerRefused, ConsumerSettings, Now
from gateway.core.consumer_roster import ConsumerRoster

REFRESH_MS_MIN = 10_000
"""The least time between two resolutions of a group's regular expressions."""


class RegexStatus(Enum):
    """What a heartbeat has done to the regular expression of its member."""

    SAME = 0
    CHANGED = 1
    CHANGED_AND_RESOLVED = 2


class RegexChange(NamedTuple):
    """The effect of a heartbeat on regular expressions."""

    status: RegexStatus
    unused: str = ""  # the expression that no member has any more, or ""
    resolve: frozenset[str] | None = None


def regex_change(
    roster: ConsumerRoster,
    change: tuple[str, str],
    now: Now,
    settings: ConsumerSettings,
    *,
    busy: bool,
) -> RegexChange:
    """Return the effect of a member's old and new expression. Raises ConsumerRefused.

    `busy` is True while expressions are being resolved.
    """
    counts = roster.regexes
    old, new = change
    status, unused, due = RegexStatus.SAME, "", False
    if old != new:
        status = RegexStatus.CHANGED
        unused = old if counts[old] == 1 else ""
        if not new or new in roster.resolved:
            status = RegexStatus.CHANGED_AND_RESOLVED
        if new and not counts[new]:
            _check(new, settings, others=len(counts) - bool(unused))
            status, due = RegexStatus.CHANGED, True
    if not due and not counts:
        return RegexChange(status, unused)
    patterns = frozenset(counts + _counted(new) - _counted(old))
    if busy or not patterns or not _must_resolve(roster, patterns, due, now):
        return RegexChange(status, unused)
    return RegexChange(status, unused, patterns)


def _must_resolve(roster: ConsumerRoster, patterns: frozenset[str], due: bool, now: Now) -> bool:
    """Return whether the expressions are to be resolved now."""
    last = next(iter(roster.resolved.values()), None)
    if last is None:
        return True
    if last.at_ms >= 0 and now.ms <= last.at_ms + REFRESH_MS_MIN:
        return False
    return (
        due
        or len(patterns) != len(roster.resolved)
        or last.created < now.topics.created
        or now.ms > last.at_ms + now.timing.regex_refresh_ms
    )


def _check(regex: str, settings: ConsumerSettings, others: int) -> None:
    regexes_max = settings.regexes_max
    fault = f"its group has {others} others, and at most {regexes_max} are allowed"
    if others < regexes_max:
        fault = settings.regex_fault(regex)
    if fault is not None:
        raise ConsumerRefused(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {fault}.",
        )


def _counted(regex: str) -> Counter[str]:
    return Counter([regex] if regex else [])

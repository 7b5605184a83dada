"""Limits and settings of repair: name, unit, default, bound, reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairConfig:
    """One for the auditor and the worker of a process."""

    delay_s: float = 10.0  # a bookie may be away so long before its copies are made anew
    grace_s: float = 30.0  # a writer may take so long to replace a bookie before it is fenced
    interval_s: float = 600.0  # between two looks at all ledgers' metadata
    full_check_s: float = 86_400.0  # between two checks of which entries every bookie holds
    settle_s: float = 0.5  # what one bookie of an open ledger has, all must have so much later
    poll_s: float = 2.0  # the list is looked at so often, when no watch tells of a mark
    ledgers_at_once: int = 4  # mended by one worker at a time
    checks_at_once: int = 16  # ledgers whose metadata or copies an audit looks at together
    chunk_bytes: int = 1024 * 1024  # read from a replica at once; at least one entry
    in_flight_bytes_max: int = 16 * 1024 * 1024  # of all copies under way; one may always be
    copy_bytes_per_s_max: int = 64 * 1024 * 1024  # leaves room for writers; 0: no bound
    backoff_s_min: float = 1.0  # after a failed attempt at a ledger; doubles each time
    backoff_s_max: float = 300.0  # BookKeeper: 5 minutes
    rounds_max: int = 6  # looks at one ledger in one attempt: mending it shows what else is wrong

    def __post_init__(self) -> None:
        assert self.delay_s >= 0
        assert self.grace_s >= 0
        assert self.interval_s > 0
        assert self.full_check_s > 0
        assert self.settle_s > 0
        assert self.poll_s > 0
        assert self.ledgers_at_once >= 1
        assert self.checks_at_once >= 1
        assert self.chunk_bytes >= 1
        assert self.in_flight_bytes_max >= 1
        assert self.copy_bytes_per_s_max >= 0
        assert 0 < self.backoff_s_min <= self.backoff_s_max
        assert self.rounds_max >= 1

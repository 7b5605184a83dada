"""Settings of repair: name, unit, default, bound, reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairConfig:
    """Settings of the auditor and the replication worker of a process."""

    delay_s: float = 10.0  # how long a bookie may be absent before its ledgers are re-replicated
    grace_s: float = (
        30.0  # how long a writer may take to replace a bookie before its ledger is fenced
    )
    interval_s: float = 600.0  # time between two audits of all ledgers' metadata
    full_check_s: float = 86_400.0  # time between two checks of the entries that every bookie holds
    settle_s: float = (
        0.5  # time after which an entry of an open ledger must have reached all its bookies
    )
    poll_s: float = 2.0  # time between two reads of the list of marks, in case a watch is lost
    ledgers_at_once: int = 4  # ledgers that one worker repairs in parallel
    checks_at_once: int = 16  # ledgers whose metadata or copies an audit reads in parallel
    chunk_bytes: int = 1024 * 1024  # bytes of one read from a replica, but at least one entry
    in_flight_bytes_max: int = 16 * 1024 * 1024  # bytes of copies in flight, but at least one entry
    copy_bytes_per_s_max: int = 64 * 1024 * 1024  # leaves bandwidth for writers; 0: unlimited
    backoff_s_min: float = 1.0  # wait after a failed attempt at a ledger; doubles with each failure
    backoff_s_max: float = 300.0  # longest wait after failed attempts; as in BookKeeper
    rounds_max: int = 6  # rounds per attempt at one ledger: a repair can uncover further gaps

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

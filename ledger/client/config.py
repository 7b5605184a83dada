"""Limits and settings of the ledger client: name, unit, default, bound, reason."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.core.entry_format import DigestType


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerClientConfig:
    """One for all ledgers of a process."""

    digest_type: DigestType = DigestType.CRC32C  # for new ledgers; a stored one names its own
    password: bytes = b""  # for new ledgers; kept in their metadata, in clear, as upstream does
    pending_entries_max: int = 1_024  # per writer, accepted and not confirmed
    pending_bytes_max: int = 32 * 1024 * 1024  # per writer; one entry may always be pending
    entry_bytes_max: int = 16 * 1024 * 1024 + 32 * 1024  # payload; a bookie takes 32 KiB more
    overloaded_s_max: float = 30.0  # a bookie without room for an add is asked again for so long
    ensemble_change_s_max: float = 30.0  # the metadata store is awaited; nothing is confirmed then
    failed_bookie_pause_s: float = 10.0  # so long its ledger's writer does not choose it again
    read_timeout_s: float = 5.0  # BookKeeper: readEntryTimeoutSec; then the next replica is asked
    speculative_read_s: float = (
        0.25  # later than a slow disk, sooner than a failover: the next replica is asked too
    )
    long_poll_s: float = 1.0  # a bookie holds a reader's question at the tail for so long
    speculative_lac_s: float = 1.5  # BookKeeper's: without an answer another bookie is asked too
    speculative_lac_s_max: float = 5.0  # the wait before the next one doubles up to this
    rack: str | None = None  # where this process is; the first copy and reads prefer it
    enforce_racks: bool = False  # refuse a ledger whose write quorums would lie in one rack
    quarantine_failures: int = 3  # in a row: a bookie is avoided for a while
    quarantine_s: float = 10.0  # at first; doubles each time it is caught again
    quarantine_s_max: float = 600.0
    slow_factor: float = 10.0  # a bookie so many times slower than the others is avoided too
    slow_s_min: float = 0.1  # faster than this is never called slow
    load_half_life_s: float = 600.0  # what was placed on a bookie counts half after this
    recovery_window_entries: int = 16  # read ahead of the entry being judged
    metadata_attempts_max: int = 8  # with the wait below doubling: about 2.5 s in all
    metadata_retry_s: float = 0.02
    ledger_id_attempts_max: int = (
        100  # a taken id means a foreign ledger at that path: take another
    )

    def __post_init__(self) -> None:
        assert self.pending_entries_max >= 1
        assert self.pending_bytes_max >= 1
        assert 1 <= self.entry_bytes_max <= 2**31 - 1
        assert self.overloaded_s_max >= 0
        assert self.ensemble_change_s_max > 0
        assert self.failed_bookie_pause_s > 0
        assert self.read_timeout_s > 0
        assert self.speculative_read_s > 0
        assert 0 < self.long_poll_s < self.speculative_lac_s <= self.speculative_lac_s_max
        assert self.quarantine_failures >= 1
        assert 0 < self.quarantine_s <= self.quarantine_s_max
        assert self.slow_factor > 1
        assert self.load_half_life_s > 0
        assert self.recovery_window_entries >= 1
        assert self.metadata_attempts_max >= 1
        assert self.metadata_retry_s > 0
        assert self.ledger_id_attempts_max >= 1

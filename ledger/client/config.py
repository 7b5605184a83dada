"""Limits and settings of the ledger client: name, unit, default, bound, reason."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.core.entry_format import DigestType


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerClientConfig:
    """Settings for all ledgers of a process."""

    digest_type: DigestType = DigestType.CRC32C  # digest of new ledgers, kept in their metadata
    password: bytes = b""  # password of new ledgers; their metadata keep it in clear text
    pending_entries_max: int = 1_024  # accepted entries per writer that are not confirmed
    pending_bytes_max: int = 32 * 1024 * 1024  # unconfirmed bytes per writer; one entry always fits
    entry_bytes_max: int = 16 * 1024 * 1024 + 32 * 1024  # payload limit; bookies accept 32 KiB more
    overloaded_s_max: float = 30.0  # how long an add to an overloaded bookie is retried
    ensemble_change_s_max: float = 30.0  # how long an ensemble change retries the metadata store
    failed_bookie_pause_s: float = 10.0  # how long a writer does not choose a bookie that failed
    read_timeout_s: float = 5.0  # for all replicas of a read; BookKeeper's readEntryTimeoutSec
    speculative_read_s: float = (
        0.25  # after this wait the next replica is read too; between a slow disk and a failover
    )
    long_poll_s: float = 1.0  # how long a bookie holds a long poll at the tail
    speculative_lac_s: float = 1.5  # as in BookKeeper: after this wait another bookie is polled
    speculative_lac_s_max: float = 5.0  # the wait before each further poll doubles up to this
    rack: str | None = None  # rack of this process; first copies and reads prefer it
    enforce_racks: bool = False  # refuse ledgers whose write quorums would be in one rack
    quarantine_failures: int = 3  # failures in a row after which a bookie is avoided
    quarantine_s: float = 10.0  # length of the first quarantine; doubles with each further one
    quarantine_s_max: float = 600.0
    slow_factor: float = 10.0  # a bookie slower than the others by this factor is avoided too
    slow_s_min: float = 0.1  # a bookie faster than this never counts as slow
    load_half_life_s: float = 600.0  # bytes placed on a bookie count half after this time
    recovery_window_entries: int = 16  # entries that recovery reads ahead
    metadata_attempts_max: int = 8  # about 2.5 s in all, because metadata_retry_s doubles
    metadata_retry_s: float = 0.02
    ledger_id_attempts_max: int = (
        100  # how many ids are tried, as a foreign ledger may be at the path of an id
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

"""Limits and settings of the ledger client: name, unit, default, bound, reason."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.core.bookie_health import HealthRules, SlowDetection
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
    greylist_failures: int = 3  # failures in a row after which a bookie is avoided
    failing_s: float = 10.0  # time in the greylist for failures; doubles with each further one
    failing_s_max: float = 600.0
    reader_slow_shards_detection: SlowDetection = (
        SlowDetection.ENABLED
    )  # what to do about slow bookies; LogDevice's name, whose default is disabled
    slow_margin: float = 3.0  # a slow bookie exceeds the others' mean by more than 3 times that
    slow_s_min: float = 0.005  # a bookie faster than this never counts as slow
    slow_s: float = 60.0  # time in the greylist for lagging; doubles with each further one
    slow_s_max: float = 1800.0
    slow_average_s: float = 1800.0  # how long a sample counts in the average of a bookie
    load_half_life_s: float = 600.0  # bytes placed on a bookie count half after this time
    recovery_window_entries: int = 16  # entries that recovery reads ahead
    recovery_patience_s: float = 0.1  # wait for all fences; with all of them most reads are spared
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
        self.health_rules()  # checks its own fields
        assert self.load_half_life_s > 0
        assert self.recovery_window_entries >= 1
        assert self.recovery_patience_s >= 0
        assert self.metadata_attempts_max >= 1
        assert self.metadata_retry_s > 0
        assert self.ledger_id_attempts_max >= 1

    def health_rules(self) -> HealthRules:
        """Return the settings of the greylist."""
        return HealthRules(
            detection=self.reader_slow_shards_detection,
            failures_max=self.greylist_failures,
            failing_s=self.failing_s,
            failing_s_max=self.failing_s_max,
            margin=self.slow_margin,
            slow_s_min=self.slow_s_min,
            slow_s=self.slow_s,
            slow_s_max=self.slow_s_max,
            average_s=self.slow_average_s,
        )

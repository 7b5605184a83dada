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
    read_timeout_s: float = 5.0  # BookKeeper: readEntryTimeoutSec; then the next replica is asked
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
        assert self.read_timeout_s > 0
        assert self.recovery_window_entries >= 1
        assert self.metadata_attempts_max >= 1
        assert self.metadata_retry_s > 0
        assert self.ledger_id_attempts_max >= 1

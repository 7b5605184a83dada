"""Settings of one bookie: name, unit, default, bound, reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from ledger.core.group_commit import GroupCommitLimits

ENTRY_BYTES_MAX: Final = 16 * 1024 * 1024 + 64 * 1024
"""The largest entry, header and digest included: Kafka's largest message we take, and room."""

JournalSync = Literal["group", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """One storage node."""

    journal_sync: JournalSync = "group"  # "never": acknowledged before it is on disk
    file_bytes: int = 64 * 1024 * 1024  # a log file rolls at it; what collect gives back at once
    preallocate_bytes: int = 8 * 1024 * 1024  # room reserved ahead; lost until the next boot
    group: GroupCommitLimits = field(default_factory=GroupCommitLimits)
    entry_bytes_max: int = ENTRY_BYTES_MAX
    queue_bytes_max: int = 64 * 1024 * 1024  # waiting for the disk; then OVERLOADED
    index_batch_entries: int = 512  # entries per write into the table; blocks about 0.5 ms
    index_flush_bytes: int = 64 * 1024 * 1024  # log written between flushes; bounds replay
    index_flush_entries: int = 50_000
    idle_mark_ms: int = 1_000  # after this silence a mark says that all was durable
    headroom_bytes: int = 256 * 1024 * 1024  # free space below it: read-only, but for recovery
    headroom_resume_bytes: int = 0  # writable again with so much; 0: a quarter more than headroom
    fence_reserve_bytes: int = 64 * 1024 * 1024  # of the headroom: for fences and the index only
    headroom_check_ms: int = 1_000  # at most one look at the free space in this time
    open_files_max: int = 128  # files held open for reading
    ledgers_in_memory_max: int = 10_000  # beyond it idle ones are forgotten (the table has them)
    long_polls_max: int = 10_000  # readers that wait for a LAC; then OVERLOADED
    long_poll_ms_max: int = 30_000  # the longest such wait, whatever the reader asks
    read_bytes_max: int = 4 * 1024 * 1024  # one read_many, whatever the caller asks
    read_gap_bytes_max: int = 16 * 1024  # a gap that is cheaper to read than to skip
    roll_dead_bytes_min: int = 4 * 1024 * 1024  # the live file is left once so much of it is dead

    @property
    def resume_bytes(self) -> int:
        """Free space that makes a read-only bookie writable again."""
        return self.headroom_resume_bytes or self.headroom_bytes + self.headroom_bytes // 4

    @property
    def reserve_bytes(self) -> int:
        """Free space below which not even a recovery is taken."""
        return min(self.fence_reserve_bytes, self.headroom_bytes)

    def __post_init__(self) -> None:
        assert self.file_bytes >= 64 * 1024
        assert self.headroom_bytes >= 0
        assert self.fence_reserve_bytes >= 0
        assert self.resume_bytes >= self.headroom_bytes
        assert 0 < self.entry_bytes_max <= ENTRY_BYTES_MAX
        assert self.entry_bytes_max < 2**31 - 1  # place lengths are u32
        assert self.file_bytes + self.entry_bytes_max < 2**32  # place positions are u32
        assert self.queue_bytes_max > self.entry_bytes_max
        assert self.index_batch_entries > 0
        assert self.open_files_max >= 2

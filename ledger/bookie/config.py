"""Settings of one bookie: name, unit, default, bound, reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from ledger.core.group_commit import GroupCommitLimits

ENTRY_BYTES_MAX: Final = 16 * 1024 * 1024 + 64 * 1024
"""The largest entry with header and digest: Kafka's largest message, and space for headers."""

READ_ENTRIES_MAX: Final = 2048
"""Most entries of one answer to a read. To find them, or to check their digests, takes a few ms, in
which the bookie or the reader does nothing else.
"""

JournalSync = Literal["group", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """Settings of one bookie."""

    journal_sync: JournalSync = "group"  # "never" acknowledges adds before they are on disk
    file_bytes: int = 64 * 1024 * 1024  # the journal begins a new log file at this size
    preallocate_bytes: int = (
        8 * 1024 * 1024
    )  # disk space allocated ahead in the log file; unused space is freed on roll
    group: GroupCommitLimits = field(default_factory=GroupCommitLimits)
    entry_bytes_max: int = ENTRY_BYTES_MAX
    queue_bytes_max: int = (
        64 * 1024 * 1024
    )  # bytes waiting for the disk; further adds are refused as OVERLOADED
    index_batch_entries: int = 512  # entries per write to the index, which blocks about 0.5 ms
    index_flush_bytes: int = (
        64 * 1024 * 1024
    )  # bytes logged between two index flushes; limits the length of a replay
    index_flush_entries: int = 50_000
    idle_mark_ms: int = 1_000  # time without adds before a MARK records that all is durable
    headroom_bytes: int = (
        256 * 1024 * 1024
    )  # with less free disk space, only recovery adds are accepted
    headroom_resume_bytes: int = 0  # free space to be writable again; 0: 1.25 * headroom_bytes
    fence_reserve_bytes: int = (
        64 * 1024 * 1024
    )  # part of the headroom kept for fences and the index
    headroom_check_ms: int = 1_000  # minimum time between two checks of the free space
    open_files_max: int = 128  # log files held open for reading
    ledgers_in_memory_max: int = 10_000  # idle ledgers are evicted above this number
    long_polls_max: int = 10_000  # readers waiting for a LAC; further ones receive OVERLOADED
    long_poll_ms_max: int = 30_000  # longest wait for a LAC, even if the reader asks for more
    read_bytes_max: int = (
        4 * 1024 * 1024
    )  # most bytes of one read_many, even if the reader asks for more
    write_cache_bytes: int = 0  # newest durable entries kept in memory for readers; 0: none
    read_ahead_bytes: int = 0  # read from disk ahead of a ledger's reader; 0: nothing
    read_gap_bytes_max: int = 16 * 1024  # gaps up to this size are read rather than skipped
    roll_dead_bytes_min: int = (
        4 * 1024 * 1024
    )  # dead bytes needed to close the current log file when it is mostly dead

    @property
    def resume_bytes(self) -> int:
        """Free disk space at which a read-only bookie becomes writable again."""
        return self.headroom_resume_bytes or self.headroom_bytes + self.headroom_bytes // 4

    @property
    def reserve_bytes(self) -> int:
        """Free disk space below which recovery adds are refused too."""
        return min(self.fence_reserve_bytes, self.headroom_bytes)

    def __post_init__(self) -> None:
        assert self.file_bytes >= 64 * 1024
        assert self.headroom_bytes >= 0
        assert self.fence_reserve_bytes >= 0
        assert self.resume_bytes >= self.headroom_bytes
        assert 0 < self.entry_bytes_max <= ENTRY_BYTES_MAX
        assert self.entry_bytes_max < 2**31 - 1  # EntryLocation.length is stored as u32
        # EntryLocation.position is stored as u32.
        assert self.file_bytes + self.entry_bytes_max < 2**32
        assert self.queue_bytes_max > self.entry_bytes_max
        assert self.index_batch_entries > 0
        assert self.open_files_max >= 2

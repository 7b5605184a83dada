"""Settings of streams. Retention and rolling may change while a stream is open."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Settings of one stream. The defaults of rolling and retention are DistributedLog's."""

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    segment_bytes: int = 256 * 1024 * 1024  # DistributedLog: maxLogSegmentBytes
    segment_ms: int = 120 * 60 * 1000  # DistributedLog: logSegmentRollingMinutes
    segment_jitter_ms: int = 0  # spreads the time rolls of many streams
    retention_ms: int = 72 * 3600 * 1000  # counts from completion; -1: no limit
    retention_bytes: int = -1  # of all segments together; -1: no limit
    truncated_keep_ms: int = 60_000  # grace period before a truncated segment is removed
    control_ms: int = -1  # delay until other processes see the last record; -1: with the next one

    def __post_init__(self) -> None:
        assert self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1
        assert self.segment_bytes > 0
        assert self.segment_ms > 0
        assert self.truncated_keep_ms >= 0
        assert self.control_ms >= -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Limits of a process, for each of its streams or for all together."""

    entry_bytes_max: int = 1024 * 1024  # batches share an entry up to it; a larger one has its own
    snapshot_bytes: int = 8 * 1024 * 1024  # data between two state snapshots
    index_stride_bytes: int = 1024 * 1024  # a seek reads at most one stride
    tail_cache_bytes: int = 32 * 1024 * 1024  # recent records of all streams together
    read_chunk_bytes: int = 1024 * 1024  # one step of reading ahead, for a reader that is behind
    read_window_bytes: int = 2 * 1024 * 1024  # the same, for a reader that takes more and more
    read_ahead_bytes: int = 64 * 1024 * 1024  # what all cursors hold, whole messages counted
    cursors_max: int = 64  # cursors of readers that are behind, over all streams

    def __post_init__(self) -> None:
        assert 64 * 1024 <= self.entry_bytes_max <= 16 * 1024 * 1024
        assert self.read_ahead_bytes >= 0
        assert self.index_stride_bytes <= self.snapshot_bytes

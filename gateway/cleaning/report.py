"""The report of a gateway on the cleaning of one partition."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.core.cleaning_choice import Cleanable
from gateway.topics.broker_configs import CLEANING
from gateway.topics.config_keys import ConfigEntry, ConfigKey, ConfigSource, ConfigType

_REPORTS_MAX = 1_000
NOTHING = Cleanable(0, 0, 0, 0, 0)


@dataclass(slots=True)
class Progress:
    """How far a round is, in bytes of segments. Pass 1 and pass 2 count each."""

    bytes_total: int = 0
    bytes_done: int = 0
    segments_replaced: int = 0
    segments_merged: int = 0
    records_read: int = 0
    records_kept: int = 0

    @property
    def share(self) -> float:
        return min(self.bytes_done / self.bytes_total, 1.0) if self.bytes_total else 0.0


@dataclass(slots=True)
class CleaningReport:
    """The cleaning of a partition, as this gateway knows it. It is lost with the leadership."""

    topic: str
    partition: int
    cleanable: Cleanable = NOTHING
    dirty_bytes: int = 0  # of completed segments, cleanable now or later
    # The timestamp of the first dirty batch. None if nothing is dirty, or it was not read.
    oldest_dirty_ms: int | None = None
    progress: Progress | None = None  # only while a round runs
    cleaned_ms: int | None = None  # the end of the last whole round
    last: Progress = field(default_factory=Progress)  # of that round
    # The last error of a round, until one succeeds.
    round_error: str | None = None
    # Why the last look could not read the log, or None.
    look_error: str | None = None
    # True if a batch cannot be read: the log is not cleaned until this gateway leads it again.
    uncleanable: bool = False
    # The timestamps of the first batches of dirty segments, by the start of the segment.
    first_times: dict[int, int] = field(default_factory=dict[int, int])
    # Monotonic time before which no round begins, and the present pause after an error.
    not_before_s: float = 0.0
    pause_s: float = 0.0

    @property
    def error(self) -> str | None:
        return self.round_error or self.look_error

    @property
    def state(self) -> str:
        if self.uncleanable:
            return "uncleanable"
        if self.progress is not None:
            return "cleaning"
        return "failed" if self.error else "idle"

    def row(self, now_ms: int) -> dict[str, object]:
        """Return the report for commands, with ages as of now."""
        oldest = self.oldest_dirty_ms
        return {
            "topic": self.topic,
            "partition": self.partition,
            "state": self.state,
            "progress": None if self.progress is None else round(self.progress.share, 3),
            "first_dirty_offset": self.cleanable.first_dirty,
            "clean_bytes": self.cleanable.clean_bytes,
            "dirty_bytes": self.dirty_bytes,
            "cleanable_ratio": round(self.cleanable.ratio, 3),
            "oldest_dirty_age_ms": None if oldest is None else max(now_ms - oldest, 0),
            "last_cleaned_ms": self.cleaned_ms,
            "last_records_read": self.last.records_read,
            "last_records_kept": self.last.records_kept,
            "last_segments_merged": self.last.segments_merged,
            "error": self.error,
        }


def describe_cleaning(topic: str, reports: Iterable[CleaningReport], now_ms: int) -> ConfigEntry:
    """Return the reports of one topic's partitions as one config.

    It has at most 1,000 partitions. A last row has the number of those that it leaves out.
    """
    found = [report for report in reports if report.topic == topic]
    rows = [report.row(now_ms) for report in found[:_REPORTS_MAX]]
    if len(found) > _REPORTS_MAX:
        rows.append({"left_out": len(found) - _REPORTS_MAX})
    text = json.dumps(rows, separators=(",", ":"))
    about = "The cleaning of the partitions of this topic that this broker leads."
    name = CLEANING + topic
    key = ConfigKey(name=name, type=ConfigType.STRING, default=None, about=about)
    return ConfigEntry(key=key, value=text, source=ConfigSource.STATIC_BROKER, read_only=True)

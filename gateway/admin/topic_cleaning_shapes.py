"""The shapes of what the command `gateway topic cleaning` prints."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Column, Kind, Shape, Tone, text, whole


def _share(progress: float) -> str:
    return f"{progress:.0%}"


def _age(age_ms: int) -> str:
    return f"{age_ms / 1000:.0f} s"


def _moment(time_ms: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


LISTED: Final = Shape(
    (
        text("topic", "Name of the topic.", wide=True),
        whole("partition", "Number of the partition."),
        text(
            "state",
            "idle, cleaning, failed (tried again) or uncleanable.",
            tones={"failed": Tone.bad, "uncleanable": Tone.bad},
        ),
        Column(
            "progress",
            Kind.number,
            "Share of the round that is done, 0 to 1; null if none runs.",
            nullable=True,
            show=_share,
        ),
        whole("first_dirty_offset", "First offset that is not cleaned."),
        whole("clean_bytes", "Bytes of the cleaned segments."),
        whole("dirty_bytes", "Bytes of the segments that are not cleaned."),
        Column(
            "cleanable_ratio",
            Kind.number,
            "Dirty bytes that may be cleaned, as a share of all that would be cleaned.",
            wide=True,
        ),
        whole(
            "oldest_dirty_age_ms",
            "Age of the oldest record that is not cleaned; null if there is none.",
            nullable=True,
            heading="OLDEST-DIRTY",
            show=_age,
        ),
        whole(
            "last_cleaned_ms",
            "End of the last round, in ms since 1970; null if there was none.",
            nullable=True,
            heading="LAST-CLEANED",
            show=_moment,
        ),
        whole("last_records_read", "Records that the last round read.", wide=True),
        whole("last_records_kept", "Records that the last round kept.", wide=True),
        whole("last_segments_merged", "Segments that the last round merged.", wide=True),
        text("error", "The last error; null without one.", nullable=True),
    )
)

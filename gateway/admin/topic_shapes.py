"""The shapes of what the commands `gateway topic ...` print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ledger.command_line.output import show_bytes
from ledger.command_line.shape import Column, Kind, Shape, Tone, pairs, text, truth, whole

NAME: Final = text("name", "Name of the topic.")
_ID: Final = text("topic_id", "Id of the topic; null on servers without topic ids.", nullable=True)


def known(count: int) -> int | None:
    """Return a count for tables: -1 is unknown."""
    return None if count < 0 else count


def show_rate(per_s: float) -> str:
    """Return a number of records per second for tables, such as 12.5/s."""
    return f"{per_s:.3g}/s" if per_s < 1_000 else f"{per_s:.0f}/s"


_COPIES: Final = whole(
    "replication_factor", "Copies of each record; -1 if the server did not say.", show=known
)
_PARTITIONS: Final = whole("partitions", "Number of partitions; -1 if the server did not say.")
_OUTCOME: Final = text(
    "outcome",
    "created, exists (with --if-not-exists) or failed.",
    tones={"created": Tone.good, "failed": Tone.bad},
)
CREATED: Final = Shape(fields=(NAME, _ID, _PARTITIONS, _COPIES, _OUTCOME))
"""One topic; it failed if nothing is printed but an error."""
CREATED_SEVERAL: Final = Shape(
    (
        NAME,
        _OUTCOME,
        whole("partitions", "Number of partitions; -1 if the server did not say.", show=known),
        _COPIES,
        text("topic_id", "Id of the topic; null on servers without ids.", nullable=True, wide=True),
        text("error", "Kafka's name of the error; null without one.", nullable=True, if_any=True),
        text("message", "What the server said; null without an error.", nullable=True, if_any=True),
    )
)
GROWN: Final = Shape(
    fields=(
        NAME,
        whole("added", "Number of partitions that were added."),
        whole("partitions", "Number of partitions now."),
    )
)
SIZE: Final = whole(
    "size_bytes",
    "Bytes of all copies on disk, as the brokers report them; null if unknown.",
    nullable=True,
    heading="SIZE",
    show=show_bytes,
)
_RECORDS: Final = whole(
    "records",
    "Offsets between start and end: the records, or more in a compacted topic; null if unknown.",
    nullable=True,
)
_RATE: Final = Column(
    "records_per_s",
    Kind.number,
    "Records per second whose timestamps are of the last minute; null if unknown.",
    nullable=True,
    heading="RATE",
    show=show_rate,
)
LISTED: Final = Shape(
    (
        NAME,
        whole("partitions", "Number of partitions."),
        truth("internal", "Whether it is one of Kafka's own topics."),
    )
)
MEASURED: Final = Shape((*LISTED.columns, SIZE, _RECORDS, _RATE))
_SEGMENTS: Final = whole(
    "segments",
    "Number of segments; null at Apache Kafka, and if the ledgers are not within reach.",
    nullable=True,
)
DESCRIBED: Final = Shape(
    fields=(
        NAME,
        _ID,
        truth("internal", "Whether it is one of Kafka's own topics."),
        pairs("configs", "Settings of the topic itself, without defaults."),
        SIZE,
        _RECORDS,
        _RATE,
        _SEGMENTS,
    ),
    rows="partitions",
    columns=(
        whole("partition", "Number of the partition."),
        whole("leader", "Node id of the leader; -1 if there is none."),
        whole(
            "leader_epoch", "Epoch of the leader; null on older servers.", nullable=True, wide=True
        ),
        whole(
            "log_start_offset",
            "Offset of the first record; null if the leader did not answer.",
            nullable=True,
        ),
        whole(
            "log_end_offset",
            "Offset of the next record; null if the leader did not answer.",
            nullable=True,
        ),
        SIZE,
        replace(_RECORDS, wide=True),
        _RATE,
        _SEGMENTS,
    ),
)
ALTERED: Final = Shape(fields=(text("altered", "Name of the topic."),))
TRUNCATED: Final = Shape(
    (
        whole("partition", "Number of the partition."),
        whole(
            "log_start_offset",
            "Offset of the first record that is left; null after an error.",
            nullable=True,
        ),
        text(
            "error",
            "Kafka's name of the error; null if the partition was truncated.",
            nullable=True,
            if_any=True,
        ),
    )
)
DELETED: Final = Shape(fields=(text("deleted", "Name of the topic."),))


def totals_text(found: Mapping[str, Any]) -> str:
    """Return the figures of a topic as a line; what is unknown is `-`."""
    shown = ((SIZE, "Size"), (_RECORDS, "Records"), (_RATE, "Rate"), (_SEGMENTS, "Segments"))
    texts = [(title, column.text(found)) for column, title in shown]
    return "  ".join(f"{title}: {'-' if text is None else text}" for title, text in texts)

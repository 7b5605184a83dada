"""The shapes of what `gateway job audit` prints."""

from __future__ import annotations

from typing import Final

from gateway.pipelines.audits.model import LossReason
from ledger.command_line.shape import (
    Column,
    Kind,
    Shape,
    one,
    rows,
    text,
    whole,
)

_JOB: Final = text("job", "audit.")
_DIFFERENCES: Final = whole("differences", "Number of differences; 0 is exit code 0, otherwise 3.")
_TOPIC: Final = (
    text("topic", "Name of the topic."),
    whole("partition", "Number of the partition."),
)
_BY_SIDE: Final = (whole("left", "On the left side."), whole("right", "On the right side."))
_FIRST: Final = whole("first_ms", "Lowest timestamp; null without records.", nullable=True)
_LAST: Final = whole("last_ms", "Highest timestamp; null without records.", nullable=True)
_HELD: Final = (
    whole("start", "First offset."),
    whole("end", "Offset after the last one."),
    whole("records", "Number of records."),
    whole("gaps", "Number of offsets without a record."),
    whole("duplicates", "Number of records whose offset occurred before."),
    whole(
        "disorder",
        "Number of records that are not after the previous one; null if the source has no order.",
        nullable=True,
    ),
    whole(
        "back",
        "Number of timestamps below the previous one; null if the source has no order.",
        nullable=True,
    ),
    _FIRST,
    _LAST,
    text(
        "checksum",
        "Sum of the hashes of key, value, headers, timestamp and timestampType in any order, in "
        "digits: it exceeds 2^64.",
    ),
)
_RECORD: Final = (
    whole("offset", "Offset of the record."),
    whole("timestamp_ms", "Its timestamp.", nullable=True),
    whole("timestamp_type", "0: of the producer, 1: of the log.", nullable=True),
    text("key", "Beginning of its key; null without a key.", nullable=True),
    text("value", "Beginning of its value; null if it is null.", nullable=True),
    whole("headers", "Number of its headers."),
)
_SIDE: Final = text("on", "The side that lacks them: left or right.")

_REASONS: Final = {
    LossReason.truncated: "Below the start of the log, although retention did not remove them.",
    LossReason.expired: "Below the start of the log, and past the retention.",
    LossReason.compacted: "Their key occurs again or is null, or old deletions.",
    LossReason.aborted: "Part of a transaction that was aborted or is still open.",
    LossReason.accepted: "Lost, which an operator accepted.",
    LossReason.outside: "Outside the offsets of the other side, with --common.",
    LossReason.LOST: "Without any of these reasons.",
}

AUDITED: Final = Shape(
    fields=(
        _JOB,
        text("left", "The left source."),
        text("right", "The right source."),
        text("align", "How records are paired: offset or rank."),
        text(
            "verdict",
            "equal, explained (all missing records could be removed legitimately) or differs.",
        ),
        _DIFFERENCES,
        one("records", "Number of records.", *_BY_SIDE),
        one(
            "losses",
            "Number of records that are on one side only, by reason.",
            *(whole(reason.value, meaning) for reason, meaning in _REASONS.items()),
        ),
        whole("differ", "Number of records with different content."),
        one("duplicates", "Number of duplicates.", *_BY_SIDE),
        whole("gaps_unexplained", "Number of offsets on neither side that nothing explains."),
        rows(
            "missing",
            "Ranges of records that one side lacks.",
            *_TOPIC,
            _SIDE,
            text("loss", "The reason, one of the keys of `losses`."),
            whole("records", "Number of records."),
            whole("first", "First offset."),
            whole("last", "Last offset."),
            _FIRST,
            _LAST,
        ),
        rows(
            "examples",
            "The first differences.",
            *_TOPIC,
            whole("position", "Offset, or rank with --align rank."),
            Column("what", Kind.texts, "The columns that differ, or on which side it is missing."),
            one(
                "left",
                "The record on the left, cut short; null without one.",
                *_RECORD,
                nullable=True,
            ),
            one(
                "right",
                "The record on the right, cut short; null without one.",
                *_RECORD,
                nullable=True,
            ),
        ),
        one(
            "later",
            "Number of offsets after the end of the comparison: written meanwhile, or not archived "
            "yet.",
            *_BY_SIDE,
        ),
        Column("notes", Kind.texts, "Sentences for people."),
    ),
    rows="partitions",
    columns=(
        *_TOPIC,
        one("left", "The left side.", *_HELD),
        one("right", "The right side.", *_HELD),
        whole("differ", "Number of records with different content."),
        whole("gaps", "Number of offsets that are missing on both sides."),
        whole("gaps_unexplained", "Number of them that nothing explains."),
    ),
    when="Of two sources:",
)
SIDE: Final = Shape(
    (
        *_TOPIC,
        text("side", "left or right."),
        *_HELD,
    ),
    tables_only=True,
)
"""A partition of one side, in a row."""
PROVED: Final = Shape(
    fields=(
        _JOB,
        text("archive", "The source."),
        text("verdict", "equal or differs."),
        _DIFFERENCES,
        whole("files", "Number of files that the log names."),
        whole("records", "Number of records that the log names."),
        whole(
            "records_unproved",
            "Number of records that were committed without sums, and were counted only.",
        ),
    ),
    rows="problems",
    columns=(
        text("where", "A file, or a partition."),
        text("problem", "How it differs from the log."),
    ),
    when="Of an archive alone:",
)

"""The shapes of what `gateway topic consume` and `gateway topic produce` print as JSON."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Column, Kind, Shape, text, whole

_TOPIC: Final = text("topic", "Name of the topic.")
_PARTITION: Final = whole("partition", "Number of the partition.")
_ENCODING: Final = "text, or base64 if its bytes are not UTF-8."

CONSUMED: Final = Shape(
    (
        _TOPIC,
        _PARTITION,
        whole("offset", "Offset of the record."),
        whole("timestamp", "Milliseconds since 1970; null if it has none.", nullable=True),
        text("timestamp_type", "create or append."),
        text("key", "The key; null if it has none.", nullable=True),
        text("value", "The value; null for a tombstone.", nullable=True),
        Column(
            "headers",
            Kind.lists,
            'Name and value of each header: text, null, or {"base64": "..."} if the bytes are not '
            "UTF-8.",
        ),
        text("key_encoding", _ENCODING),
        text("value_encoding", _ENCODING),
    )
)
PRODUCED: Final = Shape(
    fields=(
        _TOPIC,
        whole("records", "Number of records that are written."),
        whole("bytes", "Bytes of their keys, values and headers."),
        whole("skipped", "Number of bad lines that --skip-bad left out."),
        whole("unacknowledged", "Number of records that may be written."),
        Column(
            "partitions",
            Kind.by_name,
            "The partitions with records, by number.",
            columns=(
                whole("first_offset", "Lowest offset; null with --acks 0.", nullable=True),
                whole("last_offset", "Highest offset; null with --acks 0.", nullable=True),
                whole("records", "Number of records."),
            ),
        ),
    ),
    when="With `-o json`:",
)
ACKNOWLEDGED: Final = Shape(
    fields=(
        _TOPIC,
        _PARTITION,
        whole("offset", "Offset of a record; null with --acks 0.", nullable=True),
        whole("timestamp", "Its timestamp, in milliseconds since 1970."),
    ),
    lines=True,
    when="With `-o jsonl`, a line for each acknowledged record:",
)

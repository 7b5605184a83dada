"""The shapes of what `gateway explain` prints."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Column, Kind, Shape, one, rows, text, truth, whole

_RECORD: Final = (
    text("topic", "Topic of the record."),
    whole("partition", "Partition of the topic."),
    whole("offset", "Offset of the record."),
    whole(
        "timestamp",
        "Time of the record, in milliseconds since 1970; null if its batch cannot be decoded.",
        nullable=True,
    ),
    text("timestamp_type", "CreateTime or LogAppendTime.", nullable=True),
    whole("key_bytes", "Size of the key; null without one.", nullable=True),
    whole("value_bytes", "Size of the value; null for a tombstone.", nullable=True),
    whole("headers", "Number of headers.", nullable=True),
)
_BATCH: Final = (
    whole("base_offset", "Offset of the first record of the batch."),
    whole("last_offset", "Offset of the last record of the batch."),
    whole("records", "Number of records in the batch."),
    whole("bytes", "Size of the batch."),
    text("codec", "none, gzip, snappy, lz4 or zstd."),
    text("crc", "correct or wrong: the checksum of the batch, computed again."),
    whole("producer_id", "Id of an idempotent producer.", nullable=True),
    whole("producer_epoch", "Epoch of the producer.", nullable=True),
    whole("base_sequence", "Sequence of the first record of the batch.", nullable=True),
    whole("sequence", "Sequence of the record.", nullable=True),
    whole("leader_epoch", "Epoch of the leader that wrote the batch."),
    whole("max_timestamp", "Greatest timestamp of the batch."),
)
_TRANSACTION: Final = (
    text("state", "open, committed, aborted, unknown, or marker if the record is one."),
    text("marker", "commit or abort, of a marker.", nullable=True),
    whole("producer_id", "Id of the producer."),
    whole("producer_epoch", "Epoch of the producer."),
    whole("coordinator_epoch", "Epoch of the coordinator, of a marker.", nullable=True),
)
_LEADER: Final = (
    whole("node", "Node id of the leader; null without one.", nullable=True),
    text("address", "Its address.", nullable=True),
    whole("epoch", "Epoch of the leader.", nullable=True),
)
_SEGMENT: Final = (
    whole("number", "Number of the segment."),
    whole("first_number", "Number of the first of the segments that were merged into it."),
    text("state", "State of the segment."),
    whole("start_offset", "First offset of the segment."),
    whole("end_offset", "Offset behind the segment; null while it is open.", nullable=True),
    whole("completed_ms", "When it was closed, in milliseconds since 1970.", nullable=True),
    one(
        "dlsn",
        "Place of the record in the log.",
        whole("segment", "Number of the segment."),
        whole("entry", "Entry of the ledger."),
        whole("slot", "Place of the record within the entry."),
    ),
)
_LEDGER: Final = (
    whole("ledger", "Id of the ledger."),
    text("state", "OPEN, IN_RECOVERY or CLOSED."),
    whole("entry", "Entry that holds the record."),
    whole("ensemble_size", "Bookies of the ledger."),
    whole("write_quorum", "Copies of each entry."),
    whole("ack_quorum", "Copies that an acknowledgement needs."),
    whole("last_add_confirmed", "Newest entry that is known to be acknowledged; -1: none."),
    text("digest", "Type of the checksum of entries."),
    whole("fragment", "First entry of the fragment that has it."),
)
_COPIES: Final = (
    text("bookie", "Id of the bookie."),
    text("status", "Status of the bookie."),
    text("has", "yes, no or unknown: whether it returned the entry with a correct digest."),
    text("file", "Log file that holds the entry; null if it is not known.", nullable=True),
    whole("position", "Byte position of the entry in the file.", nullable=True),
    whole("length", "Bytes of the entry in the file.", nullable=True),
    text("located", "What the bookie answered when it was asked for the place."),
)
_GOES: Final = (
    text("by", "retention.ms, retention.bytes, compaction or truncation."),
    truth("applies", "Whether it can remove the record."),
    whole("earliest_ms", "Earliest time, in milliseconds since 1970.", nullable=True),
    whole("bytes_to_come", "Bytes that are written before, at least.", nullable=True),
    text("condition", "What has to happen besides, or why it never happens."),
)
_ACKNOWLEDGED: Final = (
    whole("at_least", "Bookies that acknowledged the entry, at least.", nullable=True),
    whole("of", "Bookies to which it was written."),
    text("proof", "Why so many are known.", nullable=True),
    whole("last_add_confirmed", "Newest entry that is known to be acknowledged."),
    whole("entry", "Entry that holds the record."),
    whole("high_watermark", "End of what consumers may read.", nullable=True),
    rows(
        "times",
        "The bookies that acknowledged the entry, in that order; null if its writer does not "
        "remember: it keeps the last 1,024, and under load each 64th.",
        text("bookie", "Id of the bookie."),
        Column("after_ms", Kind.number, "Milliseconds after the writer sent the entry."),
        nullable=True,
    ),
)

EXPLAINED: Final = Shape(
    fields=(
        one("record", "The record.", *_RECORD),
        one("batch", "The batch that holds it.", *_BATCH),
        Column(
            "transaction",
            Kind.one,
            "The transaction that it belongs to; null without one.",
            nullable=True,
            columns=_TRANSACTION,
        ),
        one("leader", "The leader of the partition.", *_LEADER),
        one("segment", "The segment that holds it.", *_SEGMENT),
        one("ledger", "The ledger of the segment.", *_LEDGER),
        rows("copies", "The bookies of the write set.", *_COPIES),
        rows("goes", "What can remove it.", *_GOES),
        one("acknowledged", "By how many bookies it was acknowledged.", *_ACKNOWLEDGED),
    )
)

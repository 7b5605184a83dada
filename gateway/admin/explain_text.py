"""The explanation of a record as text for people: sections of at most 100 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.admin.notation import write_time
from ledger.command_line.output import headings, show_bytes
from ledger.command_line.table import as_table

Row = Mapping[str, Any]

_WIDTH: Final = 100
_LABEL: Final = 14  # the width of the first column
_YEAR_10000_MS: Final = 253_402_300_800_000
_COPY_COLUMNS: Final = ("bookie", "status", "has", "file", "position", "length")


def explanation_text(found: Row) -> str:
    """Return the sections of an explanation, as `explain` returns it."""
    record = found["record"]
    lines = [f"{record['topic']}/{record['partition']} offset {record['offset']}", ""]
    for label, texts in (
        ("Record", _record(record)),
        ("Batch", _batch(found["batch"])),
        ("Transaction", _transaction(found["transaction"])),
        ("Leader", _leader(found["leader"], found["batch"])),
        ("Segment", _segment(found["segment"])),
        ("Ledger", _ledger(found["ledger"])),
        ("Copies", _copies(found["copies"])),
        ("Goes", _goes(found["goes"])),
        ("Acknowledged", _acknowledged(found["acknowledged"])),
    ):
        for text in texts:
            lines += _wrapped(label, text)
            label = ""
    return "\n".join(lines)


def _wrapped(label: str, text: str) -> list[str]:
    head = label.ljust(_LABEL)
    if len(head) + len(text) <= _WIDTH or text.startswith(" "):  # a row of a table stays whole
        return [(head + text).rstrip()]
    rest = " " * _LABEL
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=rest)


def show_moment(at_ms: int) -> str:
    """Return a time, or `never` for one that a date cannot show."""
    return write_time(at_ms) if -_YEAR_10000_MS // 8 < at_ms < _YEAR_10000_MS else "never"


def _record(record: Row) -> Iterator[str]:
    if record["timestamp"] is None:
        yield "cannot be decoded: the checksum of its batch is wrong"
        return
    sizes = [
        f"{name} {'null' if record[key] is None else show_bytes(record[key])}"
        for name, key in (("key", "key_bytes"), ("value", "value_bytes"))
    ]
    when = show_moment(record["timestamp"])
    headers = f"{record['headers']} header{'' if record['headers'] == 1 else 's'}"
    yield f"{when} ({record['timestamp_type']}), {sizes[0]}, {sizes[1]}, {headers}"


def _batch(batch: Row) -> Iterator[str]:
    count = batch["records"]
    offsets = f"offsets {batch['base_offset']} to {batch['last_offset']}"
    records = f"{count} record{'' if count == 1 else 's'}"
    codec = "not compressed" if batch["codec"] == "none" else batch["codec"]
    yield f"{offsets}, {records}, {show_bytes(batch['bytes'])}, {codec}, CRC-32C {batch['crc']}"
    if batch["producer_id"] is not None:
        text = f"producer id {batch['producer_id']}, epoch {batch['producer_epoch']}"
        if batch["sequence"] is not None:
            text += f", sequence {batch['sequence']} (the batch begins at {batch['base_sequence']})"
        yield text


def _transaction(transaction: Row | None) -> Iterator[str]:
    if transaction is None:
        yield "none"
        return
    state, producer = transaction["state"], f"producer id {transaction['producer_id']}"
    if state == "marker":
        epoch = transaction["coordinator_epoch"]
        yield f"marker: {transaction['marker']} of {producer}, coordinator epoch {epoch}"
    else:
        yield f"{state}, of {producer}, epoch {transaction['producer_epoch']}"


def _leader(leader: Row, batch: Row) -> Iterator[str]:
    who = "none" if leader["node"] is None else f"{leader['node']} at {leader['address']}"
    epoch = "unknown" if leader["epoch"] is None else leader["epoch"]
    yield f"{who}, epoch {epoch}; the batch was written in epoch {batch['leader_epoch']}"


def _segment(segment: Row) -> Iterator[str]:
    end, dlsn = segment["end_offset"], segment["dlsn"]
    span = f"from offset {segment['start_offset']} on"
    if end is not None:
        span = f"offsets {segment['start_offset']} to {end - 1}"
    if segment["completed_ms"] is not None:
        span += f", closed {show_moment(segment['completed_ms'])}"
    number = str(segment["number"])
    if segment["first_number"] != segment["number"]:
        number = f"{segment['first_number']} to {number}"
    yield f"{number}, {segment['state']}, {span}"
    yield f"DLSN: segment {dlsn['segment']}, entry {dlsn['entry']}, slot {dlsn['slot']}"


def _ledger(ledger: Row) -> Iterator[str]:
    quorums = "/".join(str(ledger[f"{k}"]) for k in ("ensemble_size", "write_quorum", "ack_quorum"))
    lac = ledger["last_add_confirmed"]
    yield (
        f"{ledger['ledger']}, {ledger['state']}, entry {ledger['entry']}, quorum {quorums}, "
        f"LAC {lac}, digest {ledger['digest']}"
    )


def _copies(copies: Sequence[Row]) -> Iterator[str]:
    count = sum(row["has"] == "yes" for row in copies)
    yield f"{count} of {len(copies)} bookies returned it with a correct digest"
    for line in as_table(headings(*_COPY_COLUMNS), copies).splitlines():
        yield f"  {line}"


def _goes(goes: Sequence[Row]) -> Iterator[str]:
    for row in goes:
        parts: list[str] = []
        if not row["applies"]:
            parts.append("never")
        elif row["earliest_ms"] is not None:
            parts.append(f"not before {show_moment(row['earliest_ms'])}")
        elif row["bytes_to_come"] is not None:
            parts.append(f"after {show_bytes(row['bytes_to_come'])} more at the earliest")
        if row["condition"]:
            parts.append(row["condition"])
        yield f"{row['by']}: {', '.join(parts)}"


def _acknowledged(row: Row) -> Iterator[str]:
    if row["at_least"] is None:
        yield f"not yet: LAC {row['last_add_confirmed']} < entry {row['entry']}"
        return
    by = f"at least {row['at_least']} of {row['of']}"
    if row["proof"] == "LAC >= entry":
        yield f"{by}: LAC {row['last_add_confirmed']} >= entry {row['entry']}"
    else:
        yield f"{by}: the high watermark {row['high_watermark']} is past it"
    for each in row["times"] or ():
        yield f"{each['bookie']} after {each['after_ms']:.1f} ms"

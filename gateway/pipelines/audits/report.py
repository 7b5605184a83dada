"""The findings of an audit, formatted for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.pipelines.archives.port import ArchiveProof
from gateway.pipelines.audits.model import (
    SIDES,
    AuditReport,
    DifferenceExample,
    MissingRecords,
    PartitionComparison,
    PartitionTotals,
)
from ledger.command_line.output import headings
from ledger.command_line.table import as_table

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VERDICTS = {
    "equal": "Equal: both sides hold the same records.",
    "explained": "No difference; all missing records could be removed legitimately.",
    "differs": "DIFFERENT.",
}


def as_data(report: AuditReport) -> dict[str, Any]:
    """Return the report in the form of `AUDITED`."""
    return {
        "job": "audit",
        "left": report.left,
        "right": report.right,
        "align": str(report.align),
        "verdict": report.verdict,
        "differences": report.differences,
        "records": {name: sum(held.records for held in report.totals(name)) for name in SIDES},
        "losses": {str(loss): records for loss, records in report.losses.items()},
        "differ": sum(each.differ for each in report.partitions),
        "duplicates": {
            name: sum(held.duplicates for held in report.totals(name)) for name in SIDES
        },
        "gaps_unexplained": sum(each.unexplained_gaps for each in report.partitions),
        "partitions": [_partition(each) for each in report.partitions],
        "missing": [_missing(each) for each in report.missing],
        "examples": [_example(each) for each in report.examples],
        "later": {name: report.later.get(name, 0) for name in SIDES},
        "notes": list(report.notes),
    }


def proof_data(place: str, proof: ArchiveProof) -> dict[str, Any]:
    """Return the comparison of an archive with its own log in the form of `PROVED`."""
    return {
        "job": "audit",
        "archive": place,
        "verdict": "differs" if proof.problems else "equal",
        "differences": len(proof.problems),
        "files": proof.files,
        "records": proof.rows,
        "records_unproved": proof.unproved_rows,
        "problems": [each._asdict() for each in proof.problems],
    }


def side_rows(report: AuditReport) -> list[dict[str, Any]]:
    """Return a row for each side of each partition, in the form of `SIDE`."""
    return [
        {**each.topic_partition._asdict(), "side": name, **_held(held)}
        for each in report.partitions
        for name, held in zip(SIDES, (each.left, each.right), strict=True)
    ]


def proof_text(place: str, proof: ArchiveProof) -> str:
    """Format one line for each problem, then the verdict."""
    parts = [place, *map(str, proof.problems)]
    if proof.unproved_rows:
        parts.append(
            f"note: {proof.unproved_rows:,} records were committed without sums, and were counted"
            " only"
        )
    held = f"{proof.rows:,} records in {proof.files:,} files"
    if proof.problems:
        parts.append(f"DIFFERENT: the archive is damaged; its log names {held}.")
    else:
        parts.append(f"Equal: the archive holds what its log names, {held}.")
    return "\n".join(parts)


def _partition(each: PartitionComparison) -> dict[str, Any]:
    return {
        **each.topic_partition._asdict(),
        "left": _held(each.left),
        "right": _held(each.right),
        "differ": each.differ,
        "gaps": each.gaps,
        "gaps_unexplained": each.unexplained_gaps,
    }


def _held(held: PartitionTotals) -> dict[str, Any]:
    return {**asdict(held), "checksum": str(held.checksum)}


def _missing(each: MissingRecords) -> dict[str, Any]:
    fields = each._asdict()
    return {**fields.pop("topic_partition")._asdict(), **fields, "loss": str(each.loss)}


def _example(each: DifferenceExample) -> dict[str, Any]:
    fields = each._asdict()
    return {**fields.pop("topic_partition")._asdict(), **fields, "what": list(each.what)}


def as_text(report: AuditReport) -> str:
    """Format tables of the sides, of missing records and of examples, then notes and verdict."""
    columns = headings(
        "topic", "partition", "side", "start", "end", "records", "gaps", "duplicates", "disorder",
        "times_back", "first_time", "last_time", "checksum",
    )  # fmt: skip
    rows = [row for each in report.partitions for row in _rows(each)]
    parts = [f"left:  {report.left}\nright: {report.right}", as_table(columns, rows)]
    if report.missing:
        columns = headings("topic", "partition", "missing_on", "why", "records", "offsets", "times")
        parts.append(as_table(columns, [_missing_row(each) for each in report.missing]))
    if report.examples:
        parts.append("\n".join(_example_line(each) for each in report.examples))
    parts += [f"note: {note}" for note in report.notes]
    parts += [
        f"note: the {name} side has {count:,} offsets after the end of the comparison"
        for name, count in report.later.items()
        if count
    ]
    parts.append(_verdict(report))
    return "\n\n".join(parts)


def _rows(each: PartitionComparison) -> list[dict[str, Any]]:
    return [
        {
            **each.topic_partition._asdict(),
            "side": name,
            **asdict(held),
            "times_back": held.back,
            "first_time": _time(held.first_ms),
            "last_time": _time(held.last_ms),
        }
        for name, held in zip(SIDES, (each.left, each.right), strict=True)
    ]


def _missing_row(each: MissingRecords) -> dict[str, Any]:
    return {
        **each.topic_partition._asdict(),
        "missing_on": each.on,
        "why": str(each.loss),
        "records": each.records,
        "offsets": f"{each.first}..{each.last}",
        "times": f"{_time(each.first_ms)}..{_time(each.last_ms)}",
    }


def _example_line(each: DifferenceExample) -> str:
    lines = [f"{each.topic_partition} at {each.position}: {', '.join(each.what)}"]
    for name, record in zip(SIDES, (each.left, each.right), strict=True):
        if record is not None:
            fields = "  ".join(f"{key}={value!r}" for key, value in record.items())
            lines.append(f"  {name:<5} {fields}")
    return "\n".join(lines)


def _verdict(report: AuditReport) -> str:
    figures = {str(loss): count for loss, count in report.losses.items() if count}
    figures |= {
        "with different content": sum(each.differ for each in report.partitions),
        "duplicate": sum(held.duplicates for name in SIDES for held in report.totals(name)),
        "out of order": sum(held.disorder or 0 for name in SIDES for held in report.totals(name)),
        "on neither side": sum(each.unexplained_gaps for each in report.partitions),
    }
    listed = ", ".join(f"{count:,} {what}" for what, count in figures.items() if count)
    return _VERDICTS[report.verdict] + (f" Records: {listed}." if listed else "")


def _time(ms: int | None) -> str | None:
    if ms is None:
        return None
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
    except OverflowError:  # a timestamp may be any 64-bit number, beyond the range of datetime
        return f"{ms} ms"

"""What an audit found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.admin.output import as_table, headings
from gateway.pipelines.audits.model import (
    SIDES,
    AuditReport,
    DifferenceExample,
    MissingRecords,
    PartitionComparison,
    PartitionTotals,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VERDICTS = {
    "equal": "Equal: each record is on both sides, as it was.",
    "explained": "No difference; all that is missing was free to go.",
    "differs": "DIFFERENT.",
}


def as_data(report: AuditReport) -> dict[str, Any]:
    """What `-o json` prints.

    left, right: the sources. align: offset or rank. verdict: equal, explained (all that is missing
    was free to go) or differs. differences: LOST + differ + duplicates + out of order + offsets on
    neither side that nothing explains; 0 is exit code 0. records, duplicates: of each side.
    losses: records that one side lacks, by reason. partitions: of each side start, end (offsets),
    records, gaps (offsets without a record), duplicates, disorder and back (null where the source
    has no order; back: timestamps below the one before), first_ms, last_ms, checksum (sum of the
    hashes of key, value, headers and timestamp, in any order; text, since it passes 2^64); differ;
    gaps: offsets on neither side. missing: per partition, side that lacks them (on) and reason
    (loss), the first and last offset. examples: position (offset or rank), what differs, and the
    record of each side, cut short. notes: for people.
    """
    return {
        "job": "audit",
        "left": report.left,
        "right": report.right,
        "align": str(report.align),
        "verdict": report.verdict,
        "differences": report.differences,
        "records": {name: sum(held.records for held in report.held(name)) for name in SIDES},
        "losses": {str(loss): records for loss, records in report.losses.items()},
        "differ": sum(each.differ for each in report.partitions),
        "duplicates": {name: sum(held.duplicates for held in report.held(name)) for name in SIDES},
        "gaps_unexplained": sum(each.unexplained_gaps for each in report.partitions),
        "partitions": [_partition(each) for each in report.partitions],
        "missing": [_missing(each) for each in report.missing],
        "examples": [_example(each) for each in report.examples],
        "notes": list(report.notes),
    }


def _partition(each: PartitionComparison) -> dict[str, Any]:
    return {
        **each.place._asdict(),
        "left": _held(each.left),
        "right": _held(each.right),
        "differ": each.differ,
        "gaps": each.gaps,
        "gaps_unexplained": each.unexplained_gaps,
    }


def _held(held: PartitionTotals) -> dict[str, Any]:
    return {**asdict(held), "checksum": str(held.checksum)}


def _missing(each: MissingRecords) -> dict[str, Any]:
    told = each._asdict()
    return {**told.pop("place")._asdict(), **told, "loss": str(each.loss)}


def _example(each: DifferenceExample) -> dict[str, Any]:
    told = each._asdict()
    return {**told.pop("place")._asdict(), **told, "what": list(each.what)}


def as_text(report: AuditReport) -> str:
    """Tables: what the sides hold, what is missing, examples; then notes and the verdict."""
    columns = headings(
        "topic", "partition", "side", "start", "end", "records", "gaps", "duplicates", "disorder",
        "times_back", "first_time", "last_time", "checksum",
    )  # fmt: skip
    rows = [row for each in report.partitions for row in _rows(each)]
    parts = [f"left:  {report.left}\nright: {report.right}", as_table(columns, rows)]
    if report.missing:
        told = headings("topic", "partition", "missing_on", "why", "records", "offsets", "times")
        parts.append(as_table(told, [_missing_row(each) for each in report.missing]))
    if report.examples:
        parts.append("\n".join(_example_line(each) for each in report.examples))
    parts += [f"note: {note}" for note in report.notes]
    parts.append(_verdict(report))
    return "\n\n".join(parts)


def _rows(each: PartitionComparison) -> list[dict[str, Any]]:
    return [
        {
            **each.place._asdict(),
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
        **each.place._asdict(),
        "missing_on": each.on,
        "why": str(each.loss),
        "records": each.records,
        "offsets": f"{each.first}..{each.last}",
        "times": f"{_time(each.first_ms)}..{_time(each.last_ms)}",
    }


def _example_line(each: DifferenceExample) -> str:
    lines = [f"{each.place} at {each.position}: {', '.join(each.what)}"]
    for name, record in zip(SIDES, (each.left, each.right), strict=True):
        if record is not None:
            fields = "  ".join(f"{key}={value!r}" for key, value in record.items())
            lines.append(f"  {name:<5} {fields}")
    return "\n".join(lines)


def _verdict(report: AuditReport) -> str:
    figures = {str(loss): count for loss, count in report.losses.items() if count}
    figures |= {
        "with other content": sum(each.differ for each in report.partitions),
        "twice or more": sum(held.duplicates for name in SIDES for held in report.held(name)),
        "out of order": sum(held.disorder or 0 for name in SIDES for held in report.held(name)),
        "on neither side": sum(each.unexplained_gaps for each in report.partitions),
    }
    told = ", ".join(f"{count:,} {what}" for what, count in figures.items() if count)
    return _VERDICTS[report.verdict] + (f" Records: {told}." if told else "")


def _time(ms: int | None) -> str | None:
    if ms is None:
        return None
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
    except OverflowError:  # a timestamp may be any 64-bit number
        return f"{ms} ms"

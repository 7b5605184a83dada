"""Goal: the reports of jobs are printed in the form that is declared, and as rows for programs.

Method: reports that are made by hand; no Spark.
"""

from __future__ import annotations

from pytest import CaptureFixture

from gateway.pipelines import archive_command, replay_command
from gateway.pipelines.archives import ArchiveFormat
from gateway.pipelines.archives.archive_model import ArchiveReport, PartitionReport
from gateway.pipelines.archives.port import (
    ArchiveProblem,
    ArchiveProof,
    CompactionResult,
    LostOffsets,
)
from gateway.pipelines.archives.shapes import ARCHIVED
from gateway.pipelines.audits.model import (
    Align,
    AuditReport,
    DifferenceExample,
    LossReason,
    MissingRecords,
    PartitionComparison,
    PartitionTotals,
)
from gateway.pipelines.audits.report import as_data, proof_data, side_rows
from gateway.pipelines.audits.shapes import AUDITED, SIDE
from gateway.pipelines.replays.model import ReplayedPartition, ReplayReport
from gateway.pipelines.replays.shapes import REPLAYED
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from ledger.command_line.output import Format, Output
from tests.command_output import check_value

PLACE = TopicPartition("orders", 0)
RECORD = {
    "offset": 5,
    "timestamp_ms": 9,
    "timestamp_type": 0,
    "key": "ann",
    "value": None,
    "headers": 0,
}
AUDIT = AuditReport(
    "topic:orders",
    "segments:orders",
    Align.offset,
    (
        PartitionComparison(
            PLACE,
            PartitionTotals(0, 9, records=9, checksum=2**64, first_ms=1, last_ms=9),
            PartitionTotals(0, 9, records=8, gaps=1, disorder=0, back=0),
        ),
    ),
    (MissingRecords(PLACE, "right", LossReason.LOST, 1, 5, 5, 9, 9),),
    (DifferenceExample(PLACE, 5, ("missing on the right",), RECORD, None),),
    ("A note.",),
)


def test_an_archive_job_lists_places_losses_and_what_is_set_aside(
    capsys: CaptureFixture[str],
) -> None:
    report = ArchiveReport(
        commits=1,
        offsets=8,
        lost=1,
        partitions={PLACE: PartitionReport(0, 9, lost=1)},
        losses=[LostOffsets(OffsetRange("orders", 0, 5, 6), 0, "deleted")],
        set_aside={"gone": JobError("there is no topic gone", "NO_TOPIC")},
        compacted=CompactionResult(5, 1),
    )
    data = archive_command._as_data(report, "to", ArchiveFormat.parquet)
    check_value("gateway job archive", data)
    check_value("gateway job archive", {**data, "compacted": None})
    Output(Format.csv, ARCHIVED).show(data)
    assert capsys.readouterr().out.splitlines() == [
        "topic,partition,start,end,offsets,lost",
        "orders,0,0,9,8,1",
    ]


def test_a_replay_lists_its_partitions(capsys: CaptureFixture[str]) -> None:
    report = ReplayReport(
        "orders", "again", "state", False, (ReplayedPartition(0, 9, 9, 0, 9, 1),), 9
    )
    data = replay_command._data(report)
    check_value("gateway job replay", data)
    Output(Format.table, REPLAYED, ("partition", "end_offset")).show(data)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["PARTITION", "END-OFFSET"],
        ["0", "9"],
    ]


def test_an_audit_lists_partitions_and_as_csv_each_side(capsys: CaptureFixture[str]) -> None:
    data = as_data(AUDIT)
    check_value("gateway job audit", data)
    assert set(data["losses"]) == {str(reason) for reason in LossReason}
    Output(Format.csv, SIDE, ("side", "records", "checksum", "disorder")).show(side_rows(AUDIT))
    assert capsys.readouterr().out.splitlines() == [
        "side,records,checksum,disorder",
        f"left,9,{2**64},",
        "right,8,0,0",
    ]
    Output(Format.jsonl, AUDITED, ("partition", "differ")).show(data)
    assert '"partitions": [{"partition": 0, "differ": 0}]' in capsys.readouterr().out


def test_a_proof_of_an_archive_lists_its_problems() -> None:
    whole = ArchiveProof(2, 6, unproved_rows=0)
    damaged = ArchiveProof(2, 6, 0, (ArchiveProblem("part-1.parquet", "its checksum differs"),))
    for proof in (whole, damaged):
        check_value("gateway job audit", proof_data("archive:to", proof))
    assert proof_data("archive:to", damaged)["differences"] == 1

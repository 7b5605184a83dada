"""Goal: results of the storage commands are printed in each form, and JSON as it is declared.

Method: the requests run over a simulated cluster, and their results are printed.
"""

import csv
import io
import json

from gateway.admin import bookie_shapes, ledger_shapes, topic_loss_shapes
from gateway.admin.bookie_status import table_rows
from gateway.admin.bookies import list_bookies
from gateway.admin.ledger_cli import _print_verified
from gateway.admin.ledger_loss_cli import _Printer
from gateway.admin.ledgers import list_ledgers, recover, show_ledger, verify, why
from gateway.admin.topic_cleaning_shapes import LISTED as CLEANING
from ledger.command_line.output import Format, Output
from ledger.command_line.terminal import Color
from tests.command_output import check_value
from tests.repair.test_admin_storage import rig_and_storage

LOST = {
    "kind": "DATALOSS",
    "state": "lost",
    "offsets": [5, 9],
    "exact": False,
    "segment": 2,
    "ledger": 7,
    "entries": [3, 4],
    "verdict": "complete",
    "evidence": [{"bookie": "b1", "answer": "denied", "status": "FULLY_AUTHORITATIVE"}],
    "accepted_at": None,
    "accepted_by": None,
    "found_again": None,
}
ACCEPTED = LOST | {
    "state": "accepted",
    "exact": True,
    "evidence": [],
    "accepted_at": "2026-05-01T12:00:00+00:00",
    "accepted_by": "ann@desk",
}
BRIDGE = {
    "kind": "BRIDGE",
    "state": None,
    "offsets": [10, 9],
    "exact": True,
    "segment": 2,
    "ledger": 7,
    "entries": [5, 2**63 - 1],
}
ENTRY = {"kind": "entry", "entry": 2, "bytes": 80, "records": 3, "offsets": [2, 4], "exact": True}


def output(form, shape, *chosen, **more):
    return Output(Format(form), shape, chosen, **more)


def lines(capsys):
    return capsys.readouterr().out.splitlines()


async def test_ledgers_are_printed_in_each_form(capsys):
    async with rig_and_storage() as (rig, storage):
        ledger = await rig.ledger(3)
        await rig.underreplicated.mark(ledger, [])
        rows = await list_ledgers(storage)
        check_value("gateway ledger list", rows)
        (row,) = rows
        output("table", ledger_shapes.LISTED).show(rows)
        head, line = lines(capsys)
        assert head.split() == [
            *("LEDGER", "TOPIC", "PARTITION", "GROUP", "STATE", "QUORUM", "ENTRIES", "SIZE"),
            *("FRAGMENTS", "CREATED", "LACKS-COPIES"),
        ]
        assert line.split()[6:8] == ["3", f"{row['bytes']}B"]
        output("csv", ledger_shapes.LISTED).show(rows)
        (found,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert list(found) == list(row)
        assert (found["bytes"], found["topic"], found["lacks_copies"]) == (
            *(str(row["bytes"]), "", "true"),
        )
        output("jsonl", ledger_shapes.LISTED, "state", "ledger").show(rows)
        assert lines(capsys) == [json.dumps({"state": "CLOSED", "ledger": ledger})]
        output("table", ledger_shapes.LISTED, color=Color.always).show(rows)
        assert lines(capsys)[1].endswith("\x1b[31mtrue\x1b[0m")


async def test_a_ledger_its_state_and_its_recovery_have_their_declared_form(capsys):
    async with rig_and_storage() as (rig, storage):
        ledger = await rig.ledger(5)
        rig.spoil(rig.metadata(ledger).bookies_of(2)[0], ledger, 2)
        shown = await show_ledger(storage, ledger)
        check_value("gateway ledger show", shown)
        output("csv", ledger_shapes.SHOWN).show(shown)
        assert len(lines(capsys)) == 1 + len(shown["copies"])
        check_value("gateway ledger why", await why(storage, ledger, None))
        check_value("gateway ledger why", await why(storage, ledger, 2))
        check_value("gateway bookie list", await list_bookies(storage))
        writer, _ = await rig.ledger(2, close=False)
        recovered = await recover(storage, writer.metadata.ledger, accept_loss=False)
        check_value("gateway ledger recover", recovered)
        accepted = await recover(storage, ledger, accept_loss=True)
        check_value("gateway ledger recover", accepted)
        output("table", ledger_shapes.GIVEN_UP, "given_up_entries").done(accepted, "Done.")
        assert lines(capsys) == ["GIVEN-UP-ENTRIES", "0"]


async def test_verify_prints_damage_accepted_losses_and_a_verdict(capsys):
    async with rig_and_storage() as (rig, storage):
        ledger = await rig.ledger(4)
        rig.forget(rig.members(ledger)[0], ledger, 3)
        found = await verify(storage, [ledger], mark=False, on_progress=None)
        found["accepted"] = [ACCEPTED]
        check_value("gateway ledger verify", found)
        _print_verified(found, output("table", ledger_shapes.VERIFIED))
        printed = lines(capsys)
        assert printed[0].split()[:4] == ["LEDGER", "FRAGMENT", "BOOKIE", "STATUS"]
        assert printed[2:4] == ["", "Accepted losses, which are no damage:"]
        assert printed[5].split()[:4] == ["DATALOSS", "accepted", "5-9", "7"]
        assert printed[-1].endswith("read: DAMAGED, see above")
        output("table", ledger_shapes.VERIFIED, "bookie", "missing").show(found)
        assert [line.split() for line in lines(capsys)] == [
            ["BOOKIE", "MISSING"],
            [rig.members(ledger)[0], "3"],
        ]


def test_gaps_show_offsets_evidence_and_acceptance_and_more_with_wide(capsys):
    rows = [LOST, ACCEPTED, BRIDGE]
    check_value("gateway ledger gaps", rows)
    output("table", topic_loss_shapes.OF_LEDGER).show(rows)
    head, *found = lines(capsys)
    columns = "KIND STATE OFFSETS LEDGER ENTRIES EVIDENCE ACCEPTED FOUND-AGAIN"
    assert head.split() == columns.split()
    assert [" ".join(line.split()) for line in found] == [
        "DATALOSS lost at most 5-9 7 3-4 b1:denied/FULLY_AUTHORITATIVE - -",
        "DATALOSS accepted 5-9 7 3-4 - 2026-05-01T12:00:00+00:00 by ann@desk -",
        "BRIDGE - none 7 5- - - -",
    ]
    output("wide", topic_loss_shapes.OF_LEDGER).show(rows)
    assert lines(capsys)[0].split() == [
        *("KIND", "STATE", "OFFSETS", "EXACT", "SEGMENT", "LEDGER", "ENTRIES", "VERDICT"),
        *("EVIDENCE", "ACCEPTED", "ACCEPTED-BY", "FOUND-AGAIN"),
    ]
    topics = [{"topic": "t", "partition": 0, **row} for row in rows]
    check_value("gateway topic gaps", topics)
    check_value("gateway topic accept-loss", {"accepted": [LOST]})
    output("csv", topic_loss_shapes.ACCEPTED, "offsets", "accepted_by").show({"accepted": rows})
    assert lines(capsys) == [
        "offsets,accepted_by",
        '"[5, 9]",',
        '"[5, 9]",ann@desk',
        '"[10, 9]",',
    ]


def read(form, *chosen, served=False):
    printer = _Printer(output(form, ledger_shapes.READ, *chosen))
    for row in (ENTRY, ACCEPTED):
        printer.show(row)
    if served:
        printer.show_served({"b2": 2000, "b1": 80})


def test_a_ledger_is_read_as_lines_of_text_of_json_or_of_csv(capsys):
    read("table", served=True)
    assert lines(capsys) == [
        "entry 2  80 bytes  3 records  offsets 2-4",
        "DATALOSS  entries 3-4  offsets 5-9  accepted by ann@desk",
        "",
        "BOOKIE BYTES SERVED",
        "b1     80    80B",
        "b2     2000  2.0KiB",
    ]
    read("json", served=True)
    rows = [json.loads(line) for line in lines(capsys)]
    assert rows[:2] == [ENTRY, ACCEPTED]
    assert rows[2]["served"] == [{"bookie": "b1", "bytes": 80}, {"bookie": "b2", "bytes": 2000}]
    for row in rows:
        check_value("gateway ledger read", row)
    read("csv", "kind", "entry", "entries", "offsets", served=True)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "kind,entry,entries,offsets",
        'entry,2,,"[2, 4]"',
        'DATALOSS,,"[3, 4]","[5, 9]"',
    ]
    assert printed.err.splitlines() == ["bookie b1 served 80 bytes", "bookie b2 served 2000 bytes"]
    read("table", "kind", "offsets")
    assert [line.split() for line in lines(capsys)] == [
        ["KIND", "OFFSETS"],
        ["entry", "2-4"],
        ["DATALOSS", "5-9"],
    ]


def test_avoided_bookies_are_rows_of_tables_and_csv_and_parts_of_json(capsys):
    avoided = {"bookie": "b1", "reason": "slow", "since": "then", "until": "now", "why": "p99"}
    gateway = {"gateway": 1, "address": "h:9092", "detection": "enabled", "bookies": [avoided]}
    check_value("gateway bookie status", [gateway])
    output("csv", bookie_shapes.AVOIDED).show(table_rows([gateway]))
    assert lines(capsys) == [
        "gateway,address,bookie,reason,since,until,why",
        "1,h:9092,b1,slow,then,now,p99",
    ]


def test_cleaning_is_shown_with_ages_and_shares(capsys):
    row = {
        "topic": "t",
        "partition": 0,
        "state": "failed",
        "progress": 0.25,
        "first_dirty_offset": 4,
        "clean_bytes": 10,
        "dirty_bytes": 90,
        "cleanable_ratio": 0.9,
        "oldest_dirty_age_ms": 61_400,
        "last_cleaned_ms": 0,
        "last_records_read": 9,
        "last_records_kept": 3,
        "last_segments_merged": 0,
        "error": "the disk is full",
    }
    check_value("gateway topic cleaning", [row])
    output("table", CLEANING).show([row])
    _, line = lines(capsys)
    shown = "0 failed 25% 4 10 90 61 s 1970-01-01T00:00:00Z the disk is full"
    assert " ".join(line.split()) == shown

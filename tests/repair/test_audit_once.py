"""Goal: `bookie audit --once` ends with 0 only if every ledger was checked and has all its copies.

Method: the real command's report over the real auditor and worker, on model bookies.
"""

import json

from ledger.client.metadata_format import ledger_path
from ledger.ids import BookieId
from ledger.node.audit import _left_lines, _once, _Report
from ledger.node.repair_node import RepairNode, _Parts
from ledger.repair.config import RepairConfig
from tests.command_output import check_output
from tests.repair.rig import Rig


async def audited(rig, *, as_json=False, bookies=None):
    """The exit code of one audit."""
    node = RepairNode("", 1.0, BookieId("audit"), RepairConfig(delay_s=1.0), None)
    auditor = rig.auditor(delay_s=1.0)
    if bookies is not None:
        auditor._bookies = bookies(auditor._bookies)
    node._made = _Parts(None, None, rig.worker(), auditor, None)
    return await _once(node, _Report(as_json))


class LostDuringTheAudit:
    """The bookies; all registrations end when the first list is read."""

    def __init__(self, rig, port):
        self.rig = rig
        self.port = port

    def __getattr__(self, name):
        return getattr(self.port, name)

    async def list_entries(self, *asked):
        self.rig.lose(*self.rig.world.bookies)
        return await self.port.list_entries(*asked)


async def test_an_audit_of_whole_ledgers_ends_with_0(capsys):
    rig = Rig()
    await rig.ledger(3)
    assert await audited(rig) == 0
    assert "0 ledgers are left" in capsys.readouterr().out


async def test_an_audit_without_any_bookie_ends_with_1_and_says_so(capsys):
    rig = Rig()
    await rig.ledger(3)
    rig.lose(*rig.world.bookies)
    assert await audited(rig) == 1
    assert await audited(rig, as_json=True) == 1
    output = capsys.readouterr()
    assert "no bookie is registered" in output.err
    assert "start the bookies" in output.err
    assert json.loads(output.err.splitlines()[-1])["code"] == "NO_BOOKIE_ANSWERS"
    assert output.out == ""


async def test_an_audit_whose_last_bookies_leave_meanwhile_ends_with_1(capsys):
    rig = Rig()
    await rig.ledger(3)
    assert await audited(rig, bookies=lambda port: LostDuringTheAudit(rig, port)) == 1
    assert "no bookie is registered" in capsys.readouterr().err


async def test_a_ledger_whose_metadata_does_not_parse_is_left(capsys):
    rig = Rig()
    good, bad = await rig.ledger(3), await rig.ledger(3)
    store, path = rig.underreplicated.store, ledger_path(bad)
    sound = await store.get(path)
    rig.world.tree.on_set = None
    await store.set(path, b"?", -1)
    assert await audited(rig) == 1
    output = capsys.readouterr().out
    assert f"ledger {bad} is left: {path} does not parse: restore it" in output
    assert f"ledger {good} " not in output
    await store.set(path, sound.data, -1)
    assert await audited(rig) == 0


async def test_a_ledger_of_a_silent_bookie_is_left_with_what_to_do(capsys):
    rig = Rig(3)
    ledgers = [await rig.ledger(1) for _ in range(2)]
    rig.world.network.cut("auditor", "b1")
    assert await audited(rig, as_json=True) == 1
    printed = capsys.readouterr().out
    check_output(("audit", "-o", "json"), printed, 1, program="bookie")
    left = [json.loads(line) for line in printed.splitlines()]
    assert [one["ledger"] for one in left if one["event"] == "left"] == ledgers
    assert await audited(rig) == 1
    first, second = ledgers
    assert (
        f"ledgers {first}, {second} are left: b1 did not list its entries: check this bookie, "
        "then audit again\n"
    ) in capsys.readouterr().out


def test_a_bookie_with_many_ledgers_costs_one_line():
    left = dict.fromkeys(range(1000), ("b1 hangs",)) | {5000: ("b2 hangs",)}
    assert list(_left_lines(left)) == [
        "ledgers 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 990 more (-o json lists all) are left: b1 hangs",
        "ledger 5000 is left: b2 hangs",
    ]

"""Goal: `ledger read` shows each entry and each gap once, in order, and who served the bytes.

Method: a simulated partition with a lost and an accepted entry.
"""

import asyncio

import pytest

from gateway.admin.client import AdminError
from gateway.admin.ledger_read import LedgerLines
from gateway.admin.ledgers import recover
from ledger.core.gaps import ENTRY_MAX
from tests.command_output import check_value
from tests.ledger.follow_rig import Owner
from tests.losses.rig import loss_rig


async def read(rig, ledger, first=0, until=None, *, follow=False):
    rows = []
    lines = LedgerLines(ledger, rows.append)
    await lines.read(rig.storage(), first, until, follow=follow)
    for row in rows:
        check_value("gateway ledger read", row)
    return rows, lines.served


def places(rows):
    return [row["entry"] if row["kind"] == "entry" else row["kind"] for row in rows]


async def test_entries_gaps_and_the_end_come_in_order(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([2, 3, 4, 1], [1])
        await asyncio.sleep(1)
        segment = rig.listed()[0]
        last = segment.last_entry
        rig.forget(segment.ledger, last - 2)
        rows, served = await read(rig, segment.ledger)
        before = list(range(last - 2))
        assert places(rows) == [*before, "DATALOSS", last - 1, last, "BRIDGE"]
        gap = rows[len(before)]
        assert (gap["entries"], gap["offsets"], gap["exact"]) == ([last - 2] * 2, [2, 4], True)
        assert rows[-1]["entries"] == [last + 1, ENTRY_MAX]
        assert rows[-2]["offsets"] == [9, 9]
        assert sum(served.values()) > sum(row["bytes"] for row in rows if row["kind"] == "entry")
        await rig.accept(2, 4)
        rows, _ = await read(rig, segment.ledger, last - 2, last - 1)
        assert places(rows) == ["DATALOSS", last - 1]
        assert rows[0]["state"] == "accepted"


async def test_a_found_copy_of_an_accepted_loss_is_not_shown(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([2, 3, 4], [1])
        await asyncio.sleep(1)
        segment = rig.listed()[0]
        name, entry = rig.members(segment.ledger)[0], segment.last_entry - 1
        body = rig.world.bookies[name].ledgers[segment.ledger].entries[entry]
        rig.forget(segment.ledger, entry)
        await rig.accept(2, 4)
        rig.world.bookies[name].ledgers[segment.ledger].entries[entry] = body
        rows, _ = await read(rig, segment.ledger)
        assert entry not in places(rows)


async def test_following_waits_for_the_next_entries_until_the_ledger_is_closed(monkeypatch):
    async with loss_rig(monkeypatch, control_ms=10) as rig:
        owner = await rig.written([1])
        [segment] = rig.listed()
        reading = asyncio.create_task(read(rig, segment.ledger, follow=True))
        await asyncio.sleep(1)
        await owner.add(2)
        await owner.stream.close()
        rows, _ = await reading
        assert [row["offsets"] for row in rows if row["kind"] == "entry" and row["records"]] == [
            [0, 0],
            [1, 1],
            [2, 2],
        ]
        assert rows[-1]["kind"] == "BRIDGE"


async def test_following_shows_a_loss_that_it_meets_at_the_tail(monkeypatch):
    async with loss_rig(monkeypatch, control_ms=-1) as rig:
        owner = await rig.written([1, 1])
        [segment] = rig.listed()
        stored = [rig.world.bookies[name] for name in rig.members(segment.ledger)]
        newest = max(stored[0].durable_entries(segment.ledger))
        reading = asyncio.create_task(read(rig, segment.ledger, follow=True))
        await asyncio.sleep(1)
        rig.forget(segment.ledger, newest)  # no reader knows yet that it is confirmed
        await owner.add(1)
        await asyncio.sleep(5)
        await owner.stream.close()
        rows, _ = await reading
        assert places(rows) == [*range(newest), "DATALOSS", newest + 1, "BRIDGE"]
        assert rows[newest]["offsets"] == [1, 1]


async def test_an_entry_that_may_come_back_ends_the_reading_with_its_name(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([1, 1], [1])
        await asyncio.sleep(1)
        segment = rig.listed()[0]
        away, *here = rig.members(segment.ledger)
        rig.forget(segment.ledger, segment.last_entry, on=here)
        rig.lose(away)
        with pytest.raises(AdminError, match=f"{away} may have it; see `gateway ledger why"):
            await read(rig, segment.ledger)


async def test_a_first_entry_past_the_end_is_refused(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([1], [1])
        segment = rig.listed()[0]
        with pytest.raises(AdminError, match=f"the last entry of ledger .* {segment.last_entry}"):
            await read(rig, segment.ledger, segment.last_entry + 2)


async def test_the_reserved_rest_of_a_ledger_closed_by_force_is_a_loss_not_a_bridge(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        owner = await rig.written([1, 1, 1])
        await asyncio.sleep(1)
        [segment] = rig.listed()
        owner.kill()
        rig.lose(*rig.members(segment.ledger)[1:])
        found = await recover(rig.storage(), segment.ledger, accept_loss=True)
        rows, _ = await read(rig, segment.ledger)
        assert "BRIDGE" not in places(rows)
        assert (rows[-1]["kind"], rows[-1]["state"]) == ("DATALOSS", "accepted")
        assert rows[-1]["entries"] == [found["last_entry"] + 1, ENTRY_MAX]
        rows, _ = await read(rig, segment.ledger, 0, found["last_entry"])
        assert rows[-1]["kind"] == "entry"
        await Owner(rig, "next").stream.open()
        assert [row["kind"] for row in await rig.gaps(every=True)] == ["DATALOSS"]

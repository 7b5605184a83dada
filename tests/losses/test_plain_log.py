"""Goal: a log of committed offsets loads what is left, once its loss was accepted.

Method: a simulated log loses an entry; it is read before and after the acceptance.
"""

import asyncio

import pytest

from gateway.admin.ledger_read import LedgerLines
from gateway.admin.ledgers import recover, verify
from gateway.admin.losses import ledger_gaps
from gateway.admin.storage import Storage
from ledger.errors import CorruptFormat, EntryUnknown
from ledger.streams.plain_log import LogQuorum, PlainLogs
from tests.repair.rig import Rig
from tests.sim.loop import SimClock


async def written(rig, count=5, *, close=True):
    """A log of so many entries of one record each; its ledger."""
    logs = PlainLogs(rig.world.client("group"), lambda: LogQuorum(3, 3, 2))
    log = await logs.create({})
    for number in range(count):
        done = asyncio.get_running_loop().create_future()
        log.append([b"commit %d" % number], number, done.set_result)
        assert await done is None
    await asyncio.sleep(1)
    if close:
        await log.close()
    return logs, log.ledger


def storage_of(rig):
    return Storage(rig.session("admin"), rig.bookies("admin"), SimClock(), "admin")


async def test_a_log_with_a_lost_entry_loads_the_rest_after_its_acceptance(capsys):
    rig = Rig(bookies=3)
    logs, ledger = await written(rig)
    for name in rig.members(ledger):
        rig.forget(name, ledger, 2)
    with pytest.raises(CorruptFormat, match="entry 2: none of its bookies has it"):
        await logs.recover(ledger)
    await recover(storage_of(rig), ledger, accept_loss=True)
    read = [bytes(record.data) for record in await logs.recover(ledger)]
    assert read == [b"commit 0", b"commit 1", b"commit 3", b"commit 4"]
    assert "without entries that an operator gave up" in capsys.readouterr().err
    [row] = await ledger_gaps(storage_of(rig), ledger, deep=False, every=False)
    assert (row["state"], row["entries"]) == ("accepted", [2, 2])
    found = await verify(storage_of(rig), [ledger], mark=False, on_progress=None)
    assert found["clean"]


async def test_an_open_log_whose_bookies_are_silent_is_not_taken_for_a_shorter_one():
    rig = Rig(bookies=3)
    logs, ledger = await written(rig, close=False)
    assert len(await logs.read(ledger)) >= 4
    rig.lose(*rig.members(ledger)[:2])
    with pytest.raises(EntryUnknown, match="fewer than a quorum"):
        await logs.read(ledger)


async def test_accepting_it_again_changes_nothing():
    rig = Rig(bookies=3)
    _, ledger = await written(rig)
    for name in rig.members(ledger):
        rig.forget(name, ledger, 2, 4)
    first = await recover(storage_of(rig), ledger, accept_loss=True)
    before = rig.metadata(ledger)
    again = await recover(storage_of(rig), ledger, accept_loss=True)
    assert rig.metadata(ledger) == before
    for found in (first, again):
        assert [row["entries"] for row in found["accepted"]] == [[2, 2], [4, 4]]


async def test_a_log_closed_by_force_loads_what_is_left():
    rig = Rig(bookies=3)
    logs, ledger = await written(rig, close=False)
    left, *lost = rig.members(ledger)
    rig.lose(*lost)
    rig.forget(left, ledger, 3, 4)
    found = await recover(storage_of(rig), ledger, accept_loss=True)
    assert found["forced"]
    assert [bytes(record.data) for record in await logs.recover(ledger)] == [
        b"commit 0",
        b"commit 1",
        b"commit 2",
    ]


async def test_a_reading_of_its_ledger_counts_the_records_of_a_compressed_entry():
    rig = Rig(bookies=3)
    logs = PlainLogs(rig.world.client("group"), lambda: LogQuorum(3, 3, 2))
    log = await logs.create({})
    done = asyncio.get_running_loop().create_future()
    log.append(
        [b"commit %d" % number * 9 for number in range(9)], 1, done.set_result, compress=True
    )
    assert await done is None
    await log.close()
    rows = []
    await LedgerLines(log.ledger, rows.append).read(storage_of(rig), 0, None, follow=False)
    assert rows[0]["records"] == 9
    assert rows[0]["bytes"] < log.size_bytes / 2


@pytest.mark.parametrize("compress", [False, True])
async def test_the_offsets_of_a_loss_between_entries_are_exact(compress):
    rig = Rig(bookies=3)
    logs = PlainLogs(rig.world.client("group"), lambda: LogQuorum(3, 3, 2))
    log = await logs.create({})
    for number in range(5):
        done = asyncio.get_running_loop().create_future()
        log.append([b"commit %d" % number * 30], number, done.set_result, compress=compress)
        assert await done is None
    await log.close()
    for name in rig.members(log.ledger):
        rig.forget(name, log.ledger, 2)
    [row] = await ledger_gaps(storage_of(rig), log.ledger, deep=False, every=False)
    assert (row["entries"], row["offsets"], row["exact"]) == ([2, 2], [2, 2], True)

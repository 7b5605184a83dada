"""Goal: what a person gives up is stored exactly, once, and nothing that is sound is given up.

Method: the commands' own code over a simulated partition that lost entries.
"""

import asyncio

import pytest

from gateway.admin.client import AdminError
from gateway.admin.ledgers import verify, why
from gateway.admin.losses import preview_recovery
from ledger.core.gaps import OffsetRange
from ledger.core.loss import Verdict
from ledger.errors import CorruptFormat
from ledger.losses.place import accepted_entries
from ledger.repair.auditor import Auditor
from ledger.repair.config import RepairConfig
from ledger.repair.replication_worker import RepairStatus, ReplicationWorker
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers
from ledger.streams.segment_store import losses_path
from tests.losses.rig import STREAM, drawn, loss_rig, summary
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata
from tests.sim.network import SimBookies


def repair_of(rig):
    """A worker and an auditor that know accepted losses, as a repair process has them."""
    store = SimMetadata(rig.world.tree)
    bookies = SimBookies(rig.world.network, "repair")

    async def accepted(metadata):
        return await accepted_entries(store, metadata)

    worker = ReplicationWorker(
        store, bookies, SimClock(), "repair", drawn(1).random, RepairConfig(), accepted=accepted
    )
    marks = UnderreplicatedLedgers(store, SimClock(), "repair")
    return worker, Auditor(store, bookies, SimClock(), marks, RepairConfig(), accepted=accepted)


async def lossy(rig, *entries):
    """A closed segment of 9 records in entries of 2, 3 and 4 that lost entries counted from its
    end; the segment.
    """
    await rig.written([2, 3, 4], [1])
    await asyncio.sleep(1)
    segment = rig.listed()[0]
    rig.forget(segment.ledger, *[segment.last_entry - back for back in entries])
    return segment


async def test_an_accepted_loss_is_stored_with_its_evidence_and_who_accepted_it(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig, 1)
        assert summary(await rig.gaps()) == [
            ("DATALOSS", "lost", 2, 4, segment.last_entry - 1, segment.last_entry - 1)
        ]
        await rig.accept(2, 4)
        [stored] = rig.losses().ranges
        assert stored.offsets == OffsetRange(2, 4, True)
        assert stored.evidence.verdict is Verdict.COMPLETE
        assert stored.evidence.acceptance.by.count("@") == 1
        [row] = await rig.gaps()
        assert (row["state"], row["found_again"]) == ("accepted", None)
        assert row["accepted_by"] == stored.evidence.acceptance.by


async def test_a_name_that_is_no_text_is_stored_as_far_as_it_can_be_read(monkeypatch):
    monkeypatch.setenv("LOGNAME", "ops\udcff")
    async with loss_rig(monkeypatch) as rig:
        await lossy(rig, 1)
        await rig.accept(2, 4)
        [stored] = rig.losses().ranges
        assert stored.evidence.acceptance.by.startswith("ops?@")


async def test_accepting_twice_changes_nothing(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await lossy(rig, 1)
        await rig.accept(2, 4)
        before = rig.world.tree.nodes[losses_path(STREAM)].version
        assert (await rig.accept(2, 4)).losses == ()
        assert rig.world.tree.nodes[losses_path(STREAM)].version == before


async def test_two_operators_at_once_store_each_range_once(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await lossy(rig, 2, 0)
        await asyncio.gather(rig.accept(0, 1), rig.accept(0, 1))
        await rig.accept(5, 8, meanwhile=lambda: rig.accept(5, 8))
        assert len(rig.losses().ranges) == 2


async def test_a_loss_that_spans_two_segments_is_accepted_in_one_step(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([2, 3], [4, 1], [1])
        await asyncio.sleep(1)
        one, two, _ = rig.listed()
        rig.forget(one.ledger, one.last_entry)
        rig.forget(two.ledger, *range(two.last_entry))
        await rig.accept(2, 8)
        stored = rig.losses().ranges
        assert [(each.segment, *each.offsets) for each in stored] == [
            (1, 2, 4, True),
            (2, 5, 8, True),
        ]
        assert rig.world.tree.nodes[losses_path(STREAM)].version == 0


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ((0, 1), "offset 0 is not lost; the losses that can be accepted are 2-4"),
        ((2, 8), "offset 5 is not lost"),
        ((3, 4), "pass --offsets 2-4"),
        ((2, 40), "offset 40 is past the end 10"),
        ((100, 200), "offset 200 is past the end 10"),
        ((9, 9), "offset 9 is in the last segment, .* is not closed: .*ledger recover"),
        ((2, 9), "offset 9 is in the last segment"),
    ],
)
async def test_wrong_ranges_are_refused_and_change_nothing(monkeypatch, wanted, message):
    async with loss_rig(monkeypatch, control_ms=300) as rig:
        await lossy(rig, 1)
        with pytest.raises(AdminError, match=message):
            await rig.accept(*wanted)
        assert rig.losses().ranges == ()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"topic": "nothing"}, "Topic 'nothing' does not exist"),
        ({"topic": ""}, "Topic '' does not exist"),
        ({"topic": "/"}, "Topic '/' does not exist"),
        ({"topic": ".."}, "Topic '..' does not exist"),
        ({"partition": 7}, "has no partition 7"),
        ({"give_up": ["b99"]}, "no ledger of these offsets names this bookie"),
        ({"give_up": ["b0"]}, "it is registered"),
    ],
)
async def test_unknown_names_are_refused(monkeypatch, how, message):
    async with loss_rig(monkeypatch) as rig:
        await lossy(rig, 1)
        with pytest.raises(AdminError, match=message):
            await rig.accept(2, 4, **how)
        assert rig.losses().ranges == ()


async def test_without_proof_nothing_is_accepted_until_the_absent_bookie_is_given_up(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig)
        away, *here = rig.members(segment.ledger)
        rig.forget(segment.ledger, segment.last_entry - 1, on=here)
        rig.lose(away)
        assert [row["state"] for row in await rig.gaps()] == ["waiting"]
        with pytest.raises(AdminError, match=f"not proved lost: {away} may have them"):
            await rig.accept(2, 4)
        await rig.accept(2, 4, give_up=[away])
        [stored] = rig.losses().ranges
        assert stored.evidence.verdict is Verdict.COMPLETE


async def test_damaged_copies_count_as_lost_here(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig)
        rig.spoil(segment.ledger, segment.last_entry - 1)
        assert await rig.gaps() == []
        assert summary(await rig.gaps(deep=True))[0][:4] == (None, "waiting", 2, 4)
        await rig.accept(2, 4)
        assert rig.losses().ranges[0].offsets == OffsetRange(2, 4, True)


async def test_one_sound_copy_is_enough_to_refuse(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig)
        sound, *others = rig.members(segment.ledger)
        rig.spoil(segment.ledger, segment.last_entry - 1, on=others)
        with pytest.raises(AdminError, match="offset 2 is not lost"):
            await rig.accept(2, 4)
        rig.lose(sound)
        with pytest.raises(AdminError, match="not proved lost"):
            await rig.accept(2, 4)


async def test_a_copy_that_comes_back_while_the_operator_is_asked_is_not_given_up(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig)
        name, entry = rig.members(segment.ledger)[0], segment.last_entry - 1
        entries = rig.world.bookies[name].ledgers[segment.ledger].entries
        body = entries[entry]
        rig.forget(segment.ledger, entry)

        async def comes_back():
            entries[entry] = body

        with pytest.raises(AdminError, match="offset 2 is not lost"):
            await rig.accept(2, 4, meanwhile=comes_back)
        assert rig.losses().ranges == ()


async def test_a_copy_that_turns_up_is_reported_and_stays_lost(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig)
        name, entry = rig.members(segment.ledger)[0], segment.last_entry - 1
        body = rig.world.bookies[name].ledgers[segment.ledger].entries[entry]
        rig.forget(segment.ledger, entry)
        await rig.accept(2, 4)
        rig.world.bookies[name].ledgers[segment.ledger].entries[entry] = body
        [row] = await rig.gaps()
        assert (row["state"], row["found_again"]) == ("found again", str(entry))
        assert len(rig.losses().ranges) == 1


async def test_a_damaged_copy_is_not_found_again(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig)
        rig.spoil(segment.ledger, segment.last_entry - 1)
        await rig.accept(2, 4)
        assert [row["state"] for row in await rig.gaps()] == ["accepted"]


async def test_verify_lists_accepted_losses_apart_and_finds_nothing_else(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig, 1)
        storage = rig.storage()
        before = await verify(storage, [segment.ledger], mark=False, on_progress=None)
        assert (before["clean"], before["accepted"]) == (False, [])
        await rig.accept(2, 4)
        after = await verify(storage, [segment.ledger], mark=False, on_progress=None)
        assert (after["clean"], after["damage"]) == (True, [])
        assert summary(after["accepted"])[0][:4] == ("DATALOSS", "accepted", 2, 4)
        rig.forget(segment.ledger, segment.last_entry, on=rig.members(segment.ledger)[:1])
        again = await verify(storage, [segment.ledger], mark=False, on_progress=None)
        assert (again["clean"], len(again["damage"])) == (False, 1)


async def test_why_names_the_blocked_offsets_and_the_way_out(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig, 1)
        because = " ".join((await why(rig.storage(), segment.ledger, None))["because"])
        assert "Partition 0 of topic log is blocked at offset 2: offsets 2 to 4 are lost" in because
        assert "gateway topic accept-loss log -p 0 --offsets 2-4" in because
        await rig.accept(2, 4)
        entry = segment.last_entry - 1
        because = (await why(rig.storage(), segment.ledger, entry))["because"]
        assert f"Entry {entry} was given up: it stays lost for all readers." in because
        assert not any("blocked" in line or "Lost:" in line for line in because)


async def test_repair_stops_retrying_what_was_accepted_and_the_auditor_marks_it_no_more(
    monkeypatch,
):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig, 1)
        worker, auditor = repair_of(rig)
        assert await auditor.full_check() == [segment.ledger]
        outcome = (await worker.run_pass())[segment.ledger]
        assert outcome.result is RepairStatus.UNFINISHED
        await rig.accept(2, 4)
        outcome = await worker.repair(segment.ledger)
        assert outcome.result is RepairStatus.REPAIRED
        assert await auditor.full_check() == []
        assert await worker.underreplicated.ledgers() == []


async def test_a_bookie_is_replaced_although_its_share_has_an_accepted_loss(monkeypatch):
    async with loss_rig(monkeypatch, bookies=4) as rig:
        segment = await lossy(rig, 1)
        await rig.accept(2, 4)
        worker, auditor = repair_of(rig)
        gone = rig.members(segment.ledger)[0]
        rig.lose(gone)
        await auditor.audit([gone])
        await worker.run_pass()
        assert gone not in rig.members(segment.ledger)
        assert await worker.underreplicated.get(segment.ledger) is None


async def test_an_unreadable_node_is_an_error_with_its_path_and_never_no_loss(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig, 1)
        await rig.accept(2, 4)
        node = rig.world.tree.nodes[losses_path(STREAM)]
        sound = node.data
        for data in (b"x", sound[:-2], sound.replace(b"1 ", b"9 ", 1), sound[:-3] + b"9" * 3):
            node.data = data
            with pytest.raises(CorruptFormat, match=losses_path(STREAM)):
                await rig.gaps()
            with pytest.raises(CorruptFormat, match=losses_path(STREAM)):
                await rig.accept(2, 4)
            found = await verify(rig.storage(), [segment.ledger], mark=False, on_progress=None)
            assert not found["clean"]
            assert losses_path(STREAM) in found["unreadable"][0]["reason"]
            assert node.data == data
        node.data = sound
        assert len(rig.losses().ranges) == 1


async def test_the_question_of_a_recovery_names_absent_bookies_and_damaged_copies(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        segment = await lossy(rig)
        away, spoilt, _ = rig.members(segment.ledger)
        rig.spoil(segment.ledger, segment.last_entry, on=[spoilt])
        rig.lose(away)
        asked = await preview_recovery(rig.storage(), segment.ledger)
        assert f"the copies of {away}, which is not registered" in asked
        assert f"damaged copies of entries {segment.last_entry} on {spoilt}" in asked

"""Goal: what lacks copies is found: soon after a bookie is lost, when one joins, and by lists.

Method: the real auditor over model bookies; time is virtual, so delays are exact.
"""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from ledger.errors import MetadataUnavailable
from tests.repair.rig import Rig, mend


@asynccontextmanager
async def audited(*, bookies=4, **config):
    """`body` runs beside an auditor that leads."""
    rig = Rig(bookies)
    auditor = rig.auditor(**config)

    async def poll():  # as watches of the registry would
        known = None
        while True:
            now = auditor._bookies.registered()
            if now != known:
                auditor.on_bookies_changed()
            known = now
            await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(auditor.run()), asyncio.create_task(poll())]
    await asyncio.sleep(1)
    yield rig, auditor
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_ledgers_of_a_bookie_that_is_away_longer_than_the_delay_are_marked():
    async with audited(delay_s=10.0) as (rig, _auditor):
        ledgers = [await rig.ledger(3) for _ in range(6)]
        rig.lose("b1")
        await asyncio.sleep(9)
        assert await rig.marked() == []
        await asyncio.sleep(2)
        assert await rig.marked() == [one for one in ledgers if "b1" in rig.members(one)]
        assert (await rig.underreplicated.get((await rig.marked())[0])).missing == {"b1"}


async def test_a_bookie_that_comes_back_within_the_delay_costs_nothing():
    async with audited(delay_s=10.0) as (rig, _auditor):
        await rig.ledger(3)
        rig.lose("b1")
        await asyncio.sleep(9)
        rig.bookie("b1").restart()
        await asyncio.sleep(100)
        assert await rig.marked() == []


async def test_the_delay_counts_anew_each_time_a_bookie_goes():
    async with audited(delay_s=10.0) as (rig, _auditor):
        ledger = await rig.ledger(3)
        name = rig.members(ledger)[0]
        for _ in range(3):
            rig.lose(name)
            await asyncio.sleep(9)
            rig.bookie(name).restart()
            await asyncio.sleep(1)
        assert await rig.marked() == []


async def test_a_read_only_bookie_counts_as_there():
    async with audited(delay_s=1.0) as (rig, _auditor):
        await rig.ledger(3)
        for bookie in rig.world.bookies.values():
            bookie.read_only = True
        await asyncio.sleep(1000)
        assert await rig.marked() == []


async def test_a_new_auditor_finds_who_was_lost_before_it_came():
    rig = Rig()
    ledger = await rig.ledger(3)
    rig.lose(rig.members(ledger)[0])
    auditing = asyncio.create_task(rig.auditor(delay_s=5.0).run())
    await asyncio.sleep(10)
    assert await rig.marked() == [ledger]
    auditing.cancel()


async def test_the_clusters_own_delay_goes_before_the_configured_one():
    async with audited(delay_s=1.0) as (rig, _auditor):
        ledger = await rig.ledger(3)
        path = "/ledgers/underreplication/lostBookieRecoveryDelay"
        await rig.underreplicated.store.create(path, b"60", parents=True)
        rig.lose(rig.members(ledger)[0])
        await asyncio.sleep(50)
        assert await rig.marked() == []
        await asyncio.sleep(20)
        assert await rig.marked() == [ledger]


async def test_nothing_is_marked_while_no_bookie_at_all_is_registered():
    async with audited(delay_s=1.0, interval_s=1e9) as (rig, _auditor):
        ledger = await rig.ledger(3)
        rig.lose(*rig.world.bookies)
        await asyncio.sleep(100)
        assert await rig.marked() == []
        for name in rig.world.bookies:
            if name != rig.members(ledger)[0]:
                rig.bookie(name).restart()
        await asyncio.sleep(2)
        assert await rig.marked() == [ledger]


async def test_a_bookie_that_comes_back_without_some_copies_is_found_by_its_lists():
    async with audited(delay_s=1000.0) as (rig, _auditor):
        ledger = await rig.ledger(3)
        name = rig.members(ledger)[1]
        rig.lose(name)
        await asyncio.sleep(1)
        rig.bookie(name).restart()
        rig.forget(name, ledger, 1)
        await asyncio.sleep(2)
        assert (await rig.underreplicated.get(ledger)).missing == {name}


class Registered:
    """The bookies; `started` names the start of some of them."""

    def __init__(self, port):
        self.port = port
        self.started = {}

    def __getattr__(self, name):
        return getattr(self.port, name)

    def registered(self):
        found = self.port.registered()
        return {b: i._replace(start=self.started.get(b, i.start)) for b, i in found.items()}


async def test_a_bookie_that_restarts_before_anybody_missed_it_is_found_by_its_lists():
    async with audited(delay_s=1000.0) as (rig, auditor):
        auditor._bookies = port = Registered(auditor._bookies)
        ledger = await rig.ledger(3)
        name = rig.members(ledger)[1]
        await asyncio.sleep(1)
        rig.forget(name, ledger, 1)
        port.started[name] = "a"
        await asyncio.sleep(2)
        assert (await rig.underreplicated.get(ledger)).missing == {name}


async def test_a_bookie_that_comes_back_in_limbo_is_found():
    async with audited(delay_s=1000.0) as (rig, _auditor):
        ledger = await rig.ledger(3)
        name = rig.members(ledger)[1]
        rig.lose(name)
        await asyncio.sleep(1)
        rig.bookie(name).restart()
        rig.bookie(name).begin_limbo(ledger + 1)
        await asyncio.sleep(2)
        assert (await rig.underreplicated.get(ledger)).missing == {name}


async def test_open_ledgers_whose_bookie_was_away_are_marked_to_be_looked_at_when_they_close():
    async with audited(delay_s=1000.0) as (rig, _auditor):
        writer, _ = await rig.ledger(3, close=False)
        ledger, name = writer.metadata.ledger, writer.metadata.last_fragment.ensemble[1]
        rig.lose(name)
        await asyncio.sleep(1)
        rig.bookie(name).restart()
        await asyncio.sleep(2)
        assert (await rig.underreplicated.get(ledger)).missing == {name}


async def test_narrow_ledgers_are_marked_when_a_bookie_joins_that_can_take_more_copies():
    async with audited(bookies=3, interval_s=10.0) as (rig, _auditor):
        rig.lose("b0")
        ledger = await rig.ledger(3)
        await asyncio.sleep(1000)
        assert await rig.marked() == []
        rig.bookie("b0").restart()
        await asyncio.sleep(1)
        assert await rig.marked() == [ledger]


async def test_the_full_check_finds_copies_that_vanished_from_live_bookies():
    async with audited(full_check_s=300.0, interval_s=50.0) as (rig, auditor):
        good, bad = await rig.ledger(3), await rig.ledger(3)
        await auditor.full_check()
        assert await rig.marked() == []
        rig.forget(rig.members(bad)[0], bad, 2)
        await asyncio.sleep(400)
        assert await rig.marked() == [bad]
        assert good != bad


async def test_a_full_check_is_due_by_the_clusters_clock_also_for_another_auditor():
    rig = Rig()
    await rig.auditor("first").full_check()
    second = rig.auditor("second", full_check_s=300.0)
    assert not await second._full_check_due()
    await asyncio.sleep(301)
    assert await second._full_check_due()


@pytest.mark.parametrize("ahead_ms", [1, 86_400_000, 10 * 365 * 86_400_000])
async def test_a_full_check_recorded_by_a_clock_that_was_ahead_delays_no_other(ahead_ms):
    rig = Rig()
    first = rig.auditor("first")
    first._clock.epoch_ms += ahead_ms
    await first.full_check()
    assert await rig.auditor("second", full_check_s=300.0)._full_check_due()


async def test_an_open_ledger_with_copies_on_their_way_is_not_marked():
    async with audited() as (rig, auditor):
        writer, _ = await rig.ledger(5, close=False)
        rig.forget(writer.metadata.last_fragment.ensemble[0], writer.metadata.ledger, 2)
        await auditor.full_check()
        assert await rig.marked() == []


async def test_a_bookie_that_does_not_answer_is_not_taken_for_empty():
    async with audited() as (rig, auditor):
        ledger = await rig.ledger(3)
        rig.world.network.cut("auditor", rig.members(ledger)[0])
        await auditor.full_check()
        assert await rig.marked() == []


@pytest.mark.parametrize("heals_after_s", [5, 300])
async def test_a_bookie_that_did_not_answer_a_full_check_is_asked_again(heals_after_s):
    async with audited(full_check_s=1e9) as (rig, auditor):
        ledger = await rig.ledger(3)
        name = rig.members(ledger)[0]
        rig.world.network.cut("auditor", name)
        rig.forget(name, ledger, 1)
        await auditor.full_check()
        auditor.on_bookies_changed()
        assert auditor.unanswered == {ledger: {name}}
        await asyncio.sleep(heals_after_s)
        assert await rig.marked() == []
        rig.world.network.heal()
        await asyncio.sleep(100)
        assert (await rig.underreplicated.get(ledger)).missing == {name}
        assert auditor.unanswered == {}


async def test_a_bookie_that_stays_silent_is_asked_after_ever_longer_waits():
    async with audited(full_check_s=1e9, delay_s=1e9) as (rig, auditor):
        ledger = await rig.ledger(3)
        name = rig.members(ledger)[0]
        rig.world.network.cut("auditor", name)
        port, asked_s = auditor._bookies, []

        class Counted:
            def __getattr__(self, method):
                if method == "list_entries":
                    asked_s.append(asyncio.get_running_loop().time())
                return getattr(port, method)

        auditor._bookies = Counted()
        await auditor.full_check()
        asked_s.clear()
        auditor.on_bookies_changed()
        await asyncio.sleep(600)
        waits_s = [later - earlier for earlier, later in pairwise(asked_s)]
        waits_s = [wait_s for wait_s in waits_s if wait_s]  # all bookies are asked at once
        assert waits_s[:4] == sorted(waits_s[:4])
        assert waits_s[3] >= 4 * waits_s[0]
        assert 50 <= waits_s[-1] < 70


async def test_a_bookie_that_joined_and_did_not_answer_is_asked_again():
    async with audited(full_check_s=1e9, delay_s=1000.0) as (rig, auditor):
        ledger = await rig.ledger(3)
        await asyncio.sleep(1)
        name = rig.members(ledger)[1]
        rig.lose(name)
        await asyncio.sleep(1)
        rig.world.network.cut("auditor", name)
        rig.bookie(name).restart()
        rig.bookie(name).begin_limbo(ledger + 1)
        await asyncio.sleep(10)
        assert await rig.marked() == []
        assert auditor.unanswered == {ledger: {name}}
        rig.world.network.heal()
        await asyncio.sleep(100)
        assert (await rig.underreplicated.get(ledger)).missing == {name}


async def test_a_full_check_without_all_answers_is_repeated_by_the_next_auditor():
    rig = Rig()
    ledger = await rig.ledger(3)
    first, second = rig.auditor("first"), rig.auditor("second")
    rig.world.network.cut("first", rig.members(ledger)[0])
    await first.full_check()
    assert not await first._full_check_due(), "it asks again only who did not answer"
    assert await second._full_check_due()
    rig.world.network.heal()
    await first.check_again()
    assert not await second._full_check_due()


class Failing:
    """The metadata store; `method` fails in the calls of these numbers."""

    def __init__(self, store, method, failing):
        self.store = store
        self.method = method
        self.failing = failing
        self.calls = 0

    def __getattr__(self, name):
        method = getattr(self.store, name)
        if name != self.method:
            return method

        async def ask(*rest, **more):
            self.calls += 1
            if self.calls in self.failing:
                raise MetadataUnavailable("the session is disconnected")
            return await method(*rest, **more)

        return ask


async def six_ledgers_with_a_gap_in_the_last(**config):
    """The rig, its ledgers, a bookie without a copy of the last one, and an auditor."""
    rig = Rig()
    ledgers = [await rig.ledger(3) for _ in range(6)]
    name = rig.members(ledgers[-1])[0]
    rig.forget(name, ledgers[-1], 1)
    return rig, ledgers, name, rig.auditor(checks_at_once=2, **config)


async def test_a_full_check_that_metadata_interrupt_is_repeated_at_once():
    rig, ledgers, name, auditor = await six_ledgers_with_a_gap_in_the_last()
    sound = auditor._metadata.store
    # The audit reads each of the six ledgers once; then the full check begins.
    auditor._metadata.store = Failing(sound, "get", range(10, 40))
    auditing = asyncio.create_task(auditor.run())
    await asyncio.sleep(60)
    assert auditor._metadata.store.calls > 40
    assert (await rig.underreplicated.get(ledgers[-1])).missing == {name}
    assert not await rig.auditor("second")._full_check_due()
    auditing.cancel()


async def test_a_full_check_that_did_not_reach_all_ledgers_is_never_recorded():
    rig, ledgers, _name, auditor = await six_ledgers_with_a_gap_in_the_last()
    sound = auditor._metadata.store
    rig.world.network.cut("auditor", rig.members(ledgers[0])[0])
    auditor._metadata.store = Failing(sound, "get", range(4, 1000))
    with pytest.raises(MetadataUnavailable):
        await auditor.full_check()
    auditor._metadata.store = sound
    assert auditor.unanswered
    rig.world.network.heal()
    await auditor.check_again()
    assert auditor.unanswered == {}
    assert await auditor._full_check_due()
    assert await rig.auditor("second")._full_check_due()


async def test_a_full_check_that_could_not_be_recorded_is_recorded_later_and_not_repeated():
    rig = Rig()
    await rig.ledger(3)
    auditor = rig.auditor()
    auditor._store = Failing(auditor._store, "create", (1,))
    auditing = asyncio.create_task(auditor.run())
    await asyncio.sleep(10)
    assert auditor._store.calls == 2
    assert not await rig.auditor("second")._full_check_due()
    auditing.cancel()


async def test_a_bookie_that_joined_while_metadata_were_unavailable_is_compared_afterwards():
    async with audited(full_check_s=1e9, interval_s=1e9, delay_s=1000.0) as (rig, auditor):
        ledger = await rig.ledger(3)
        name = rig.members(ledger)[1]
        rig.lose(name)
        await asyncio.sleep(1)
        auditor._metadata.store = Failing(auditor._metadata.store, "get", range(1, 20))
        rig.bookie(name).restart()
        rig.forget(name, ledger, 1)
        await asyncio.sleep(20)
        assert auditor._metadata.store.calls >= 20, "the store answers again"
        assert (await rig.underreplicated.get(ledger)).missing == {name}


async def test_a_ledger_that_lost_its_silent_bookie_is_not_asked_about_again():
    async with audited(delay_s=1.0) as (rig, auditor):
        ledgers = [await rig.ledger(3) for _ in range(4)]
        name = rig.members(ledgers[0])[0]
        rig.world.network.cut("auditor", name)
        await auditor.full_check()
        auditor.on_bookies_changed()
        assert auditor.unanswered
        rig.lose(name)
        working = asyncio.create_task(rig.worker().run())
        await asyncio.sleep(100)
        assert (await rig.marked(), auditor.unanswered) == ([], {})
        working.cancel()


async def test_a_bookie_whose_ledgers_are_marked_is_not_expected_to_answer():
    rig = Rig()
    ledger = await rig.ledger(3)
    name = rig.members(ledger)[0]
    rig.lose(name)
    auditor = rig.auditor()
    await auditor.full_check()
    assert auditor.unanswered == {ledger: {name}}
    await auditor.audit([name])
    await auditor.check_again()
    assert auditor.unanswered == {}


async def test_a_bookie_that_was_registered_during_the_audit_is_not_counted_as_lost(monkeypatch):
    """Its ledgers that the audit read at that time are not marked, so it is asked about them."""
    rig = Rig()
    ledgers = [await rig.ledger(3) for _ in range(6)]
    name = rig.members(ledgers[0])[0]
    of_it = {ledger for ledger in ledgers if name in rig.members(ledger)}
    auditor = rig.auditor(checks_at_once=1)
    here = dict(auditor._bookies.registered())
    rig.lose(name)
    await auditor.full_check()
    assert auditor.unanswered.keys() == of_it
    registered = auditor._bookies.registered
    looks = iter(range(1000))
    monkeypatch.setattr(
        auditor._bookies,
        "registered",
        lambda: here if next(looks) in range(1, 4) else registered(),
    )
    await auditor.audit([name])
    await auditor.check_again()
    marked = set(await rig.marked())
    assert marked < of_it, "the audit saw it for a while"
    assert marked | auditor.unanswered.keys() == of_it


async def test_a_bookie_counted_as_lost_is_not_expected_beside_one_that_hangs():
    rig = Rig()
    ledgers = [await rig.ledger(3) for _ in range(8)]
    dead, hung, *_ = rig.members(ledgers[0])
    auditor = rig.auditor(checks_at_once=2)
    rig.world.network.cut("auditor", hung)
    rig.lose(dead)
    await auditor.full_check()
    assert auditor.silent_and_away() == {dead}
    await auditor.audit([dead])
    await auditor.check_again()
    assert auditor.silent_and_away() == frozenset()
    assert set().union(*auditor.unanswered.values()) == {hung}


async def test_a_bookie_of_an_open_ledger_that_did_not_answer_is_named():
    rig = Rig()
    writer, _ = await rig.ledger(3, close=False)
    ledger = writer.metadata.ledger
    name = rig.members(ledger)[0]
    rig.world.network.cut("auditor", name)
    auditor = rig.auditor()
    await auditor.full_check()
    assert auditor.unanswered == {ledger: {name}}


async def test_silent_bookies_cost_one_batch_of_questions_in_each_round():
    rig = Rig()
    ledgers = [await rig.ledger(1) for _ in range(9)]
    auditor = rig.auditor(checks_at_once=3)
    for name in rig.world.bookies:
        rig.world.network.cut("auditor", name)
    await auditor.full_check()
    assert auditor.unanswered.keys() == set(ledgers)
    first = list(auditor.unanswered)[:3]
    await auditor.check_again()
    assert auditor.unanswered.keys() == set(ledgers)
    assert set(list(auditor.unanswered)[-3:]) == set(first), "others come first next time"


async def test_a_mark_is_renewed_only_while_somebody_works_on_it():
    rig = Rig()
    ledger = await rig.ledger(3)
    lost = rig.members(ledger)[0]
    rig.lose(lost)
    auditor, worker = rig.auditor(), rig.list_of("worker")
    assert await auditor.audit([lost]) == [ledger]
    assert await auditor.audit([lost]) == []
    await worker.lock(ledger)
    mark = await worker.get(ledger)
    assert await auditor.audit([lost]) == [ledger]
    assert not await worker.mark_replicated(mark)


async def test_the_disable_switch_stops_marking():
    async with audited(delay_s=1.0) as (rig, _auditor):
        ledger = await rig.ledger(3)
        await rig.underreplicated.disable()
        rig.lose(rig.members(ledger)[0])
        await asyncio.sleep(100)
        assert await rig.marked() == []
        await rig.underreplicated.enable()
        await asyncio.sleep(10)
        assert await rig.marked() == [ledger]


async def test_metadata_that_do_not_parse_do_not_stop_the_audit():
    rig = Rig()
    ledger = await rig.ledger(3)
    rig.world.tree.on_set = None
    await rig.underreplicated.store.create("/ledgers/00/0000/L0999", b"?", parents=True)
    lost = rig.members(ledger)[0]
    rig.lose(lost)
    assert await rig.auditor().audit([lost]) == [ledger]


async def test_auditor_and_worker_together_drain_the_list_to_zero():
    async with audited(delay_s=3.0) as (rig, _auditor):
        ledgers = [await rig.ledger(5) for _ in range(8)]
        rig.lose("b2")
        working = asyncio.create_task(rig.worker().run())
        await asyncio.sleep(30)
        assert await rig.marked() == []
        assert [rig.faults(ledger) for ledger in ledgers] == [[]] * 8
        working.cancel()


async def test_after_the_return_of_a_bookie_nobody_works_on_it_again():
    async with audited(bookies=3, delay_s=3.0) as (rig, _auditor):
        ledger = await rig.ledger(5)
        lost = rig.members(ledger)[0]
        rig.lose(lost)
        await asyncio.sleep(5)
        rig.bookie(lost).restart()
        worker = rig.worker()
        await mend(worker)
        assert await rig.marked() == []
        assert worker.progress.entries == 0

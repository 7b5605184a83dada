"""Goal: reads take the nearest sound copy, pass by what is late, lost or rotten, and never guess.

Method: as test_client_reading.py, with a port around the simulated bookies that counts requests
and holds them up.
"""

import asyncio
from dataclasses import replace

import pytest

from ledger.core.ledger_metadata import Fragment, LedgerState
from ledger.core.loss import CopyAnswer, EntryLost
from ledger.errors import EntryUnknown, NoSuchEntry, NoSuchLedger
from ledger.ports.bookies import Status
from tests.ledger.calm_cluster import Told, cluster, create, expected, payloads, written
from tests.ledger.reader_rig import (
    SICK,
    add_one,
    change_metadata,
    copy_ledger,
    grown,
    reader_of,
    timed,
)

LATE_S = 0.25  # the default


async def closed_ledger(world, count=5, **shape):
    writer, _ = await written(world, count, **shape)
    await writer.close()
    return writer.ledger


def holders(world, ledger, entry):
    return world.metadata_of(ledger).bookies_of(entry)


# Any replica, in good order


@pytest.mark.parametrize("status", [*SICK, Status.OK])
async def test_an_error_of_one_replica_is_answered_by_another(status):
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    first = holders(world, ledger, 2)[0]
    rig.port.answers[first] = status
    entries, seconds = await timed(rig.reader.read(2, 3, 1000))
    assert payloads(entries) == expected(2, 3)
    assert len(rig.port.asked) == 2 and seconds < LATE_S
    assert rig.health.speculative_reads == 0


async def test_everything_confirmed_is_readable_from_any_replica_when_the_writer_is_dead():
    for survivor in ("b0", "b1", "b2"):
        world = cluster()
        writer, _ = await grown(world, 9)
        world.kill("writer")
        for bookie in {"b0", "b1", "b2"} - {survivor}:
            world.bookies[bookie].crash()
        rig = await reader_of(world, writer.ledger)
        lac = await rig.reader.try_read_lac()
        assert lac == 7
        assert payloads(await rig.reader.read(0, lac, 10_000)) == expected(0, lac)


async def test_a_replica_in_the_readers_rack_is_asked_first():
    world = cluster(rack="/here")
    ledger = await closed_ledger(world)
    near, *_ = reversed(holders(world, ledger, 0))
    world.network.racks = {near: "/here"}
    rig = await reader_of(world, ledger)
    for entry in range(5):
        assert payloads(await rig.reader.read(entry, entry, 1)) == expected(entry, entry)
    assert rig.port.count("read_many") == {near: 5}
    rig.port.answers[near] = Status.OVERLOADED
    await rig.reader.read(0, 0, 1)
    del rig.port.answers[near]
    await rig.reader.read(0, 0, 1)
    assert rig.port.count("read_many")[near] == 7, "one failure does not send it far for ever"


async def test_a_greylisted_bookie_is_asked_last_and_after_its_time_again():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    for bookie in ("b0", "b1"):
        for _ in range(3):
            rig.health.on_result(bookie, ok=False)
    for entry in range(5):
        await rig.reader.read(entry, entry, 1)
    assert rig.port.count("read_many") == {"b2": 5}
    rig.port.answers["b2"] = Status.IO_ERROR
    assert payloads(await rig.reader.read(0, 4, 1000)) == expected(0, 4)


async def test_the_bookie_that_helped_out_is_asked_first_from_then_on():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    first = holders(world, ledger, 0)[0]
    rig.port.stalled.add(first)
    for _ in range(3):
        await rig.reader.read(0, 0, 1)
    assert rig.port.count("read_many")[first] == 1


async def test_a_failing_bookie_costs_a_reader_a_few_tries_and_then_none():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    first = holders(world, ledger, 0)[0]
    rig.port.stalled.add(first)
    for _ in range(20):
        await rig.reader.read(0, 0, 1)
        rig.reader._last_good = None
    assert rig.port.count("read_many")[first] == 3
    assert rig.health.avoid(keep=0) == {first}


# Speculation


async def test_a_late_replica_brings_in_the_next_one():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    first, second, _ = holders(world, ledger, 2)
    rig.port.stalled.add(first)
    entries, seconds = await timed(rig.reader.read(2, 2, 1000))
    assert payloads(entries) == expected(2, 2)
    assert LATE_S <= seconds < LATE_S + 0.05
    assert rig.health.speculative_reads == 1
    assert rig.port.count("read_many") == {first: 1, second: 1}


async def test_the_first_valid_reply_wins_even_if_it_is_the_late_one():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    first, second, third = holders(world, ledger, 2)
    rig.port.delays[first] = LATE_S + 0.1
    rig.port.stalled.update((second, third))
    entries, seconds = await timed(rig.reader.read(2, 2, 1000))
    assert payloads(entries) == expected(2, 2)
    assert seconds < LATE_S + 0.15
    assert rig.health.speculative_reads == 1


async def test_an_invalid_reply_does_not_win():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    first, second, third = holders(world, ledger, 2)
    rig.port.stalled.add(first)
    rig.port.answers[second] = Status.NO_ENTRY
    entries, seconds = await timed(rig.reader.read(2, 2, 1000))
    assert payloads(entries) == expected(2, 2)
    assert seconds < LATE_S + 0.05, "an error brings in the next one at once"
    assert rig.port.count("read_many") == {first: 1, second: 1, third: 1}


async def test_the_overall_timeout_is_kept_and_everyone_was_asked():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    rig.port.stalled.update(world.bookies)
    error, seconds = await timed(rig.reader._read_some(2, 2, 1000))
    assert isinstance(error, EntryUnknown)
    assert seconds == pytest.approx(world.config.read_timeout_s, abs=0.01)
    assert rig.port.count("read_many") == {"b0": 1, "b1": 1, "b2": 1}
    assert rig.health.speculative_reads == 2


async def test_a_timeout_shorter_than_the_speculative_delay_still_asks_everyone():
    world = cluster(speculative_read_s=30.0)
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    rig.port.stalled.update(holders(world, ledger, 2)[:2])
    assert payloads(await rig.reader.read(2, 2, 1000)) == expected(2, 2)


async def test_a_prompt_read_asks_one_bookie_once():
    world = cluster()
    ledger = await closed_ledger(world, 50)
    rig = await reader_of(world, ledger)
    assert payloads(await rig.reader.read(0, 49, 100_000)) == expected(0, 49)
    assert len(rig.port.asked) == 1 and rig.health.speculative_reads == 0


async def test_a_rest_that_no_entry_fits_into_is_not_asked_for():
    world = cluster()
    writer = await create(world)
    told = Told(writer)
    for _ in range(5):
        told.add(bytes(10_000))
    await told.wait(5)
    await writer.close()
    rig = await reader_of(world, writer.ledger)
    assert [entry for entry, _ in await rig.reader.read(0, 4, 20_050)] == [0, 1]
    assert len(rig.port.asked) == 1
    assert [entry for entry, _ in await rig.reader.read(2, 4, 1)] == [2]


@pytest.mark.parametrize(
    ("size", "answered", "small_rest", "large_rest"),
    [(10_000, 7, 20_000, 30_000), (30_000, 30, 60_000, 70_000)],
)
async def test_the_small_rest_of_a_large_read_is_not_asked_for(
    size, answered, small_rest, large_rest
):
    """It is below a quarter of the limit, and below 64 KiB."""
    world = cluster()
    writer = await create(world)
    told, count = Told(writer), answered + 5
    for _ in range(count):
        told.add(bytes(size))
    await told.wait(count)
    await writer.close()
    rig = await reader_of(world, writer.ledger)
    rig.port.most = answered
    found = await rig.reader.read(0, count - 1, answered * size + small_rest)
    assert [entry for entry, _ in found] == list(range(answered))
    assert len(rig.port.asked) == 1
    await rig.reader.read(0, count - 1, answered * size + large_rest)
    assert len(rig.port.asked) >= 3


# Evidence


@pytest.mark.parametrize("status", [s for s in SICK if s is not Status.UNKNOWN_LEDGER_STATE])
async def test_no_such_entry_is_never_said_for_a_failure(status):
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    first, second, third = holders(world, ledger, 2)
    for answer in (status, Status.NO_LEDGER):  # two denials are enough only without a third bookie
        rig.port.answers = {first: Status.NO_ENTRY, second: answer, third: status}
        with pytest.raises(EntryUnknown):
            await rig.reader.read(2, 2, 1000)
    rig.port.answers[third] = Status.NO_LEDGER
    with pytest.raises(EntryLost):
        await rig.reader.read(2, 2, 1000)


async def test_bookies_in_limbo_are_evidence_of_a_loss_once_all_have_answered():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    first, second, third = holders(world, ledger, 2)
    limbo = Status.UNKNOWN_LEDGER_STATE
    rig.port.answers = {first: limbo, second: Status.NO_ENTRY, third: Status.UNREACHABLE}
    with pytest.raises(EntryUnknown):
        await rig.reader.read(2, 2, 1000)
    rig.port.answers[third] = limbo
    with pytest.raises(EntryLost) as lost:
        await rig.reader.read(2, 2, 1000)
    answers = {copy.bookie: copy.answer for copy in lost.value.copies}
    assert answers == {first: CopyAnswer.LOST, second: CopyAnswer.DENIED, third: CopyAnswer.LOST}


async def test_one_who_has_the_entry_is_right_against_any_number_who_do_not():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    first, second, _ = holders(world, ledger, 2)
    rig.port.answers = {first: Status.NO_ENTRY, second: Status.NO_LEDGER}
    assert payloads(await rig.reader.read(2, 2, 1000)) == expected(2, 2)


async def test_a_rotten_copy_is_reported_and_never_taken_for_absence():
    world = cluster()
    ledger = await closed_ledger(world)
    first, *others = holders(world, ledger, 2)
    entries = world.bookies[first].durable_entries(ledger)
    sound = entries[2]
    for place in (0, 9, 17, 25, 33, 36):  # ids, LAC, length, digest, payload
        rig, told = await reader_of(world, ledger), []
        rig.health.on_corrupt = lambda *where, told=told: told.append(where)
        entries[2] = sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :]
        assert payloads(await rig.reader.read(2, 2, 1000)) == expected(2, 2)
        assert told == [(first, ledger, 2)] and rig.health.corrupt_entries == 1
        rig.port.answers = {others[0]: Status.NO_ENTRY, others[1]: Status.UNREACHABLE}
        with pytest.raises(EntryUnknown):
            await rig.reader.read(2, 2, 1000)


async def test_entries_before_a_rotten_one_are_given():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    for bookie in world.bookies.values():
        bookie.durable_entries(ledger)[3] = b"rot"
    assert payloads(await rig.reader.read(1, 4, 1000)) == expected(1, 2)
    with pytest.raises(EntryUnknown):
        await rig.reader.read(3, 4, 1000)


# Entries that were moved


def moved_to(world, ledger, ensemble):
    """All copies of the only fragment lie on `ensemble` too, and metadata name only that."""
    old = world.metadata_of(ledger).fragments[0].ensemble
    for source, target in zip(old, ensemble, strict=True):
        copy_ledger(world, ledger, source, target)

    def change(current):
        return replace(current, fragments=(Fragment(0, ensemble),))

    return change_metadata(world, ledger, change)


@pytest.mark.parametrize("how", ["gone", "forgotten", "rotten"])
async def test_entries_of_a_closed_ledger_are_found_where_the_repair_has_put_them(how):
    world = cluster(bookies=6)
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    old = world.metadata_of(ledger).fragments[0].ensemble
    new = tuple(sorted(set(world.bookies) - set(old)))
    await moved_to(world, ledger, new)
    for bookie in old:
        if how == "gone":
            world.bookies[bookie].crash()
        elif how == "forgotten":
            del world.bookies[bookie].ledgers[ledger]
        else:
            rig.port.answers[bookie] = Status.IO_ERROR
    assert payloads(await rig.reader.read(0, 4, 1000)) == expected(0, 4)
    assert rig.reader.metadata.fragments[0].ensemble == new


async def test_each_of_two_reads_at_once_finds_what_was_moved():
    world = cluster(bookies=6)
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    old = world.metadata_of(ledger).fragments[0].ensemble
    new = tuple(sorted(set(world.bookies) - set(old)))
    await moved_to(world, ledger, new)
    for bookie in old:
        del world.bookies[bookie].ledgers[ledger]
        rig.port.delays[bookie] = 0.02
    one = asyncio.create_task(rig.reader.read(0, 4, 1000))
    await asyncio.sleep(0.03)  # it learns of the move while the other one still asks
    other = asyncio.create_task(rig.reader.read(0, 4, 1000))
    for read in (one, other):
        assert payloads(await read) == expected(0, 4)


async def test_metadata_are_read_again_once_and_only_after_all_replicas_failed():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    calls = []
    get, sync = rig.session.get, rig.session.sync
    rig.session.get = lambda path: calls.append("get") or get(path)
    rig.session.sync = lambda path: calls.append("sync") or sync(path)
    assert await rig.reader.read(0, 4, 1000)
    assert not calls
    rig.port.answers = dict.fromkeys(world.bookies, Status.IO_ERROR)
    with pytest.raises(EntryUnknown):
        await rig.reader.read(0, 4, 1000)
    assert calls == ["sync", "get"], "a store that lags behind must not pass for the newest"
    assert rig.port.count("read_many").total() == 1 + 3


async def test_absence_is_not_said_while_nobody_can_tell_where_entries_are():
    world = cluster(metadata_attempts_max=2)
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    rig.port.answers = dict.fromkeys(world.bookies, Status.NO_ENTRY)
    world.metadata_faults.unsent = 1.0
    with pytest.raises(EntryUnknown):
        await rig.reader.read(0, 0, 1)
    world.metadata_faults.unsent = 0.0
    with pytest.raises(NoSuchEntry):
        await rig.reader.read(0, 0, 1)


async def test_a_deleted_ledger_is_no_such_ledger_once_its_bookies_forgot_it():
    world = cluster()
    ledger = await closed_ledger(world)
    rig = await reader_of(world, ledger)
    await world.client("owner").delete(ledger)
    for bookie in world.bookies.values():
        del bookie.ledgers[ledger]
    with pytest.raises(NoSuchLedger):
        await rig.reader.read(0, 0, 1)


# The last add confirmed


async def test_the_lac_of_a_quorum_is_never_below_what_was_confirmed_before():
    world = cluster(bookies=5)
    for e, qw, qa in ((3, 3, 2), (5, 3, 2), (4, 2, 1), (3, 2, 2), (5, 5, 4)):
        writer = await create(world, e, qw, qa)
        told = Told(writer)
        rig = await reader_of(world, writer.ledger)
        for number in range(8):
            told.add(b"entry %d" % number)
            await told.wait(number + 1)
            assert await rig.reader.read_lac() >= number - 1


async def test_the_lac_of_a_quorum_does_not_wait_for_a_slow_bookie():
    world = cluster()
    writer, _ = await grown(world, 5)
    rig = await reader_of(world, writer.ledger)
    rig.port.stalled.add("b1")
    lac, seconds = await timed(rig.reader.read_lac())
    assert lac == 3 and seconds < 0.05
    rig.port.stalled.add("b2")
    error, seconds = await timed(rig.reader.read_lac())
    assert isinstance(error, EntryUnknown)
    assert seconds == pytest.approx(world.config.read_timeout_s, abs=0.01)


async def test_the_best_effort_lac_is_the_first_news():
    world = cluster()
    writer, _ = await grown(world, 5)
    rig = await reader_of(world, writer.ledger)
    rig.port.stalled.update(("b0", "b2"))
    lac, seconds = await timed(rig.reader.try_read_lac())
    assert lac == 3 and seconds < 0.05


async def test_the_best_effort_lac_without_news_is_what_was_known():
    world = cluster()
    writer, _ = await grown(world, 5)
    rig = await reader_of(world, writer.ledger)
    rig.reader.last_add_confirmed = 4
    assert await rig.reader.try_read_lac() == 4
    rig.port.answers = dict.fromkeys(world.bookies, Status.IO_ERROR)
    with pytest.raises(EntryUnknown):
        await rig.reader.try_read_lac()
    await writer.close()
    await rig.reader.refresh()
    assert await rig.reader.try_read_lac() == 4


async def test_an_explicit_lac_is_known_to_readers():
    world = cluster()
    writer, _ = await grown(world, 5)
    rig = await reader_of(world, writer.ledger)
    assert await rig.reader.read_lac() == 3
    for bookie in world.bookies:
        stored = world.bookies[bookie].ledgers[writer.ledger]
        assert await rig.port.write_lac(bookie, writer.ledger, stored.key, 4) is Status.OK
    assert await rig.reader.read_lac() == 4
    assert payloads(await rig.reader.read(4, 4, 1)) == expected(4, 4)


async def test_each_entry_tells_the_one_bookie_that_a_reader_asks_of_those_before_it():
    world = cluster()
    writer = await create(world)
    told = Told(writer)
    rig = await reader_of(world, writer.ledger)
    rig.port.answers = dict.fromkeys(("b0", "b1"), Status.UNREACHABLE)
    for number in range(5):
        await add_one(world, told, number)
        assert await rig.reader.try_read_lac() == number - 1


# Opening without recovery


async def test_readers_of_every_kind_leave_the_writer_and_its_fences_alone():
    world = cluster()
    writer, told = await grown(world, 3)
    client = world.client("other")
    reader = await client.open(writer.ledger)
    rig = await reader_of(world, writer.ledger)
    for number in range(3, 8):
        await reader.read(0, reader.last_add_confirmed, 1000)
        await rig.reader.read_lac()
        await rig.reader.try_read_lac()
        await rig.tail.wait_lac(rig.reader.last_add_confirmed, 0.01)
        told.add(b"entry %d" % number)
        await told.wait(number + 1)
    assert told.errors == [type(None)] * 8
    assert not any(bookie.fencing for bookie in world.bookies.values())
    assert world.metadata_of(writer.ledger).state is LedgerState.OPEN
    assert await writer.close() == 7

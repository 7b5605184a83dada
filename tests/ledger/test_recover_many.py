"""Goal: ledgers that are recovered together lose nothing, share requests, and disturb no other.

Method: writers and recoverers on the simulated network and metadata store; ledgers in conflict, and
silent or damaged bookies among the others. Then the mistakes that a batch invites, each found.
"""

import asyncio
from dataclasses import replace

import pytest

from ledger.client import recover, recover_many
from ledger.client.metadata_format import decode, encode, ledger_path
from ledger.client.recover_many import LedgerRecoveries
from ledger.core.ledger_metadata import Versioned
from ledger.core.quorum import Coverage
from ledger.errors import EntryUnknown, NoSuchLedger
from ledger.ids import BookieId
from ledger.ports.bookies import FENCED_MAX, ReadReply, Status
from tests.sim.cluster import Cluster
from tests.sim.network import Weather
from tests.sim.planted import FencesOne, OneNoIsEnough

MANY = 250


class Counted:
    """Counts the calls of one host to its port and its metadata session."""

    def __init__(self, cluster, host):
        self.fences, self.reads, self.adds, self.multis, self.sets = [], 0, 0, [], 0
        port, session = cluster.ports[host], cluster.sessions[host]
        fence_many, read, add = port.fence_many, port.read, port.add
        multi, set_ = session.multi, session.set

        async def count_fence_many(bookie, ledgers):
            self.fences.append(len(ledgers))
            return await fence_many(bookie, ledgers)

        async def count_read(*args, **named):
            self.reads += 1
            return await read(*args, **named)

        def count_add(*args, **named):
            self.adds += 1
            return add(*args, **named)

        async def count_multi(ops):
            self.multis.append(len(ops))
            return await multi(ops)

        async def count_set(*args):
            self.sets += 1
            return await set_(*args)

        port.fence_many, port.read, port.add = count_fence_many, count_read, count_add
        session.multi, session.set = count_multi, count_set


async def written(cluster, count, entries=2, host="writer"):
    """`count` open ledgers with acknowledged entries, whose writer was killed."""
    client = cluster.client(host)
    ledgers = []
    for number in range(count):
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for entry in range(entries):
            added = asyncio.get_running_loop().create_future()
            writer.add([b"%d:%d" % (number, entry)], added.set_result)
            assert await added is None
            cluster.checks.on_acked(writer.ledger, entry, host)
        ledgers.append(writer.ledger)
    await asyncio.sleep(1)  # the third copies arrive too
    cluster.kill(host)
    return ledgers


def small(seed=1, bookies=3):
    return Cluster(seed, bookies=bookies, weather=Weather(tail_rate=0.0))


async def recovered(client, ledgers):
    readers = await asyncio.gather(*map(client.recover, ledgers))
    return [reader.last_add_confirmed for reader in readers]


async def test_many_ledgers_share_fences_and_transactions_and_need_no_read_or_add():
    cluster = small()
    await cluster.start()
    ledgers = await written(cluster, MANY)
    client = cluster.client("next")
    counted = Counted(cluster, "next")
    assert await recovered(client, ledgers) == [1] * MANY
    batches = -(-MANY // FENCED_MAX)
    assert counted.fences == [FENCED_MAX] * 6 + [MANY % FENCED_MAX] * 3
    assert len(counted.multis) == 2 * batches
    assert (counted.reads, counted.adds, counted.sets) == (0, 0, 0)
    assert not cluster.checks.violations
    for number, ledger in enumerate(ledgers):
        [(_, payload)] = await (await client.open(ledger)).read(1, 1, 100)
        assert bytes(payload) == b"%d:1" % number


async def test_the_last_entry_is_in_hand_after_a_recovery():
    cluster = small()
    await cluster.start()
    ledgers = await written(cluster, 3)
    client = cluster.client("next")
    readers = await asyncio.gather(*map(client.recover, ledgers))
    for bookie in cluster.bookies.values():
        bookie.crash()
    for number, reader in enumerate(readers):
        [(entry, payload)] = await reader.read(1, 1, 100)
        assert (entry, bytes(payload)) == (1, b"%d:1" % number)


async def test_a_ledger_in_conflict_goes_alone():
    cluster = small()
    await cluster.start()
    ledgers = await written(cluster, 20)
    client, rival = cluster.client("next"), cluster.client("rival")
    counted = Counted(cluster, "next")
    before = cluster.sessions["next"].multi
    raced = []

    async def race(ops):
        if not raced:
            raced.append(await rival.recover(ledgers[7]))
        return await before(ops)

    cluster.sessions["next"].multi = race
    assert await recovered(client, ledgers) == [1] * 20
    assert counted.multis == [20, 19, 19]
    assert not cluster.checks.violations


async def test_a_conflict_at_the_close_keeps_what_the_other_recovery_has_closed():
    cluster = small()
    await cluster.start()
    ledgers = await written(cluster, 20)
    client, rival = cluster.client("next"), cluster.client("rival")
    before, calls = cluster.sessions["next"].multi, []

    async def race(ops):
        calls.append(len(ops))
        if len(calls) == 2:
            await rival.recover(ledgers[3])
        return await before(ops)

    cluster.sessions["next"].multi = race
    assert await recovered(client, ledgers) == [1] * 20
    assert calls == [20, 20, 19]
    assert not cluster.checks.violations


async def test_a_deleted_ledger_among_them_is_reported_to_its_caller_only():
    cluster = small()
    await cluster.start()
    ledgers = await written(cluster, 5)
    client = cluster.client("next")
    await cluster.client("other").delete(ledgers[2])
    found = await asyncio.gather(*map(client.recover, ledgers), return_exceptions=True)
    assert isinstance(found.pop(2), NoSuchLedger)
    assert [reader.last_add_confirmed for reader in found] == [1] * 4


async def test_a_silent_bookie_delays_a_batch_by_the_patience_only():
    cluster = small(bookies=3)
    await cluster.start()
    ledgers = await written(cluster, 50)
    cluster.network.cut("next", "b1")
    client = cluster.client("next")
    began_s = asyncio.get_running_loop().time()
    assert await recovered(client, ledgers) == [1] * 50
    assert asyncio.get_running_loop().time() - began_s < cluster.weather.timeout_s
    assert not cluster.checks.violations


async def test_a_ledger_that_needs_a_silent_bookie_delays_no_other_of_its_batch():
    """A second bookie of it is in limbo, so that it waits for the silent one."""
    cluster = small(bookies=3)
    await cluster.start()
    stuck, *others = await written(cluster, 50)
    cluster.network.cut("next", "b1")
    client, port = cluster.client("next"), cluster.ports["next"]
    fence_many = port.fence_many

    async def in_limbo(bookie, ledgers):
        replies = list(await fence_many(bookie, ledgers))
        for at, (ledger, _) in enumerate(ledgers):
            if bookie == BookieId("b0") and ledger == stuck:
                replies[at] = ReadReply(Status.UNKNOWN_LEDGER_STATE)
        return replies

    port.fence_many = in_limbo
    waits = asyncio.create_task(recovered(client, [stuck]))
    began_s = asyncio.get_running_loop().time()
    assert await recovered(client, others) == [1] * 49
    assert asyncio.get_running_loop().time() - began_s < cluster.weather.timeout_s
    assert await waits == [1]
    assert not cluster.checks.violations


async def test_ledgers_that_cannot_be_fenced_now_fail_and_succeed_later():
    cluster = small()
    await cluster.start()
    ledgers = await written(cluster, 5)
    cluster.network.cut("next", "b1")
    cluster.network.cut("next", "b2")
    client = cluster.client("next")
    found = await asyncio.gather(*map(client.recover, ledgers), return_exceptions=True)
    assert {type(one) for one in found} == {EntryUnknown}
    cluster.network.mend()
    assert await recovered(client, ledgers) == [1] * 5


async def test_an_entry_that_one_bookie_lacks_is_restored_before_the_close():
    cluster = small()
    await cluster.start()
    client = cluster.client("writer")
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    cluster.network.cut("writer", "b2")
    added = asyncio.get_running_loop().create_future()
    writer.add([b"only on two"], added.set_result)
    assert await added is None
    cluster.kill("writer")
    others = await written(cluster, 4, host="another")
    assert await recovered(cluster.client("next"), [writer.ledger, *others]) == [0, 1, 1, 1, 1]
    assert all(0 in bookie.durable_entries(writer.ledger) for bookie in cluster.bookies.values())


async def test_one_caller_that_gives_up_does_not_disturb_the_others():
    cluster = small()
    await cluster.start()
    ledgers = await written(cluster, 10)
    client = cluster.client("next")
    tasks = [asyncio.create_task(client.recover(ledger)) for ledger in ledgers]
    await asyncio.sleep(0)
    tasks[4].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found.pop(4), asyncio.CancelledError)
    assert [reader.last_add_confirmed for reader in found] == [1] * 9


async def test_nothing_is_left_at_a_silent_bookie_once_all_callers_have_given_up():
    cluster = small()
    await cluster.start()
    ledgers = await written(cluster, 4)
    client, port = cluster.client("next"), cluster.ports["next"]
    asked, never = asyncio.Event(), asyncio.Event()

    async def silent(bookie, ledgers):
        asked.set()
        await never.wait()

    port.fence_many = silent
    tasks = [asyncio.create_task(client.recover(ledger)) for ledger in ledgers]
    await asked.wait()
    for task in tasks:
        task.cancel()
    await asyncio.sleep(1)
    left = {task.get_name() for task in asyncio.all_tasks()}
    assert not left & {"a batch of recoveries", "the fences of a bookie"}


# -- mistakes that must be found ------------------------------------------------------------------


async def disturbed(cluster):
    """Metadata of one ledger change at each transaction. True if all ledgers end up closed."""
    await cluster.start()
    ledgers = await written(cluster, 8)
    client = cluster.client("next")
    path, before = ledger_path(ledgers[3]), cluster.sessions["next"].multi

    async def touch(ops):
        record = cluster.tree.get(path)
        metadata = decode(record.data, ledgers[3])
        if not metadata.closed:
            touched = replace(metadata, custom={"touched": b"%d" % record.version})
            cluster.tree.set(path, encode(touched), record.version)
        return await before(ops)

    cluster.sessions["next"].multi = touch
    assert await recovered(client, ledgers) == [1] * 8
    return all(cluster.metadata_of(ledger).closed for ledger in ledgers)


async def one_hears_nothing_of_what_two_have(cluster):
    """Entries are on two of three bookies, and only the third can be reached. True if none of the
    ledgers is closed.
    """
    await cluster.start()
    cluster.network.cut("writer", "b2")
    ledgers = await written(cluster, 8)
    cluster.network.cut("next", "b0")
    cluster.network.cut("next", "b1")
    found = await asyncio.gather(
        *map(cluster.client("next").recover, ledgers), return_exceptions=True
    )
    assert all(isinstance(one, EntryUnknown) for one in found)
    return not any(cluster.metadata_of(ledger).closed for ledger in ledgers)


async def test_ledgers_that_change_at_each_transaction_are_closed_all_the_same():
    assert await disturbed(small())


async def test_what_one_of_three_bookies_lacks_is_not_absent():
    assert await one_hears_nothing_of_what_two_have(small())


async def test_a_conflict_taken_for_success_is_found(monkeypatch):
    stored = LedgerRecoveries._store

    async def store(self, changes):
        done = {
            each: Versioned(wanted, known.version + 1) for each, (known, wanted) in changes.items()
        }
        return done | await stored(self, changes)

    monkeypatch.setattr(LedgerRecoveries, "_store", store)
    assert not await disturbed(small())


async def test_absence_taken_from_too_few_responses_is_found(monkeypatch):
    class OneIsEnough(FencesOne, OneNoIsEnough):
        pass

    monkeypatch.setattr(recover, "Recovery", OneIsEnough)
    monkeypatch.setattr(recover_many, "coverage_of", lambda metadata: Coverage(((0, 1, 2),), 3))
    with pytest.raises(AssertionError):
        await one_hears_nothing_of_what_two_have(small())

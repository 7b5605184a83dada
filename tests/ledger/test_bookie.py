"""Goal: what one bookie answers to adds, reads, LACs and fences, and what of it it remembers.
Method: a bookie over the simulated disk and table, on virtual time.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from ledger.bookie.config import BookieConfig
from ledger.core.group_commit import GroupCommitLimits
from ledger.core.journal_format import file_name
from ledger.ports.bookies import Status
from tests.ledger.bookie_rig import KEY, OTHER_KEY, SMALL, add, started_bookie
from tests.sim.bookie_world import entry_buffers, entry_bytes

# -- adds ------------------------------------------------------------------------------------------


async def test_an_add_is_acknowledged_after_the_sync_and_never_inside_the_call():
    async with started_bookie() as (rig, bookie):
        syncs = rig.disk.syncs
        done = add(bookie, 1, 0, b"hello")
        assert not done.done()
        assert await done is Status.OK
        assert rig.disk.syncs > syncs
        reply = await bookie.read(1, 0)
        assert (reply.status, reply.body) == (Status.OK, entry_bytes(1, 0, b"hello"))


async def test_adds_made_together_share_one_sync():
    async with started_bookie() as (rig, bookie):
        syncs = rig.disk.syncs
        assert set(await asyncio.gather(*(add(bookie, 1, n) for n in range(50)))) == {Status.OK}
        assert rig.disk.syncs == syncs + 1


async def test_acknowledgements_come_in_order():
    async with started_bookie() as (_rig, bookie):
        order = []
        for entry in range(40):
            buffers = entry_buffers(1, entry, bytes(3000))
            bookie.add(1, entry, KEY, buffers, lambda _, entry=entry: order.append(entry))
        await bookie.read(1, 39)
        assert order == list(range(40))


async def test_the_same_entry_again_is_ok_and_another_payload_is_refused_and_counted():
    async with started_bookie() as (rig, bookie):
        first, again, other = (add(bookie, 1, 0, payload) for payload in (b"a", b"a", b"b"))
        assert [await first, await again, await other] == [
            Status.OK, Status.OK, Status.BAD_REQUEST
        ]  # fmt: skip
        assert await rig.add(1, 0, b"a", lac=-1) is Status.OK  # now from the disk
        assert await rig.add(1, 0, b"bb") is Status.BAD_REQUEST
        assert bookie.conflicts == 2
        assert (await bookie.read(1, 0)).body == entry_bytes(1, 0, b"a")


async def test_an_entry_that_rotted_is_no_other_payload_of_its_writer():
    async with started_bookie() as (rig, bookie):
        assert await rig.add(1, 0, b"a") is Status.OK
        place = bookie.storage.index.find(bookie.storage.index.state(1), 0)
        rig.disk.flip_bit(file_name(place.file_id), place.position + place.length - 1)
        assert await rig.add(1, 0, b"a") is Status.IO_ERROR
        assert bookie.conflicts == 0


async def test_a_recovery_may_add_the_same_entry_with_a_lac_of_its_own():
    async with started_bookie() as (rig, _bookie):
        assert await rig.add(1, 7, b"a", lac=2) is Status.OK
        assert await rig.add(1, 7, b"a", lac=6, recovery=True) is Status.OK


async def test_a_wrong_master_key_is_unauthorized_for_every_call():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        assert await rig.add(1, 1, key=OTHER_KEY) is Status.UNAUTHORIZED
        assert await bookie.fence(1, OTHER_KEY) is Status.UNAUTHORIZED
        assert await bookie.write_lac(1, OTHER_KEY, 0) is Status.UNAUTHORIZED
        bookie = await rig.kill()
        assert await rig.add(1, 1, key=OTHER_KEY) is Status.UNAUTHORIZED
        assert await rig.add(1, 1) is Status.OK


async def test_an_entry_above_the_limit_or_with_a_foreign_header_is_refused():
    async with started_bookie() as (rig, bookie):
        statuses = []
        big = entry_buffers(1, 0, bytes(rig.config.entry_bytes_max - 35))
        for buffers in (big, [b"short"], [], entry_buffers(2, 0, b""), entry_buffers(1, 3, b"")):
            bookie.add(1, 0, KEY, buffers, statuses.append)
        for lac in (0, -2):  # an entry's LAC is below the entry
            bookie.add(1, 0, KEY, entry_buffers(1, 0, b"", lac), statuses.append)
        await asyncio.sleep(1)
        assert statuses == [Status.BAD_REQUEST] * 7
        assert (await bookie.read(1, 0)).status is Status.NO_LEDGER


async def test_the_largest_entry_fits_though_it_is_larger_than_a_file():
    async with started_bookie() as (rig, bookie):
        payload = bytes(rig.config.entry_bytes_max - 36)
        assert await rig.add(1, 0, payload) is Status.OK
        assert await rig.add(1, 1, b"after") is Status.OK
        bookie = await rig.kill()
        assert (await bookie.read(1, 0)).body == entry_bytes(1, 0, payload)
        assert (await bookie.read(1, 1)).body == entry_bytes(1, 1, b"after")


async def test_a_header_split_over_buffers_is_understood():
    async with started_bookie() as (_rig, bookie):
        whole = entry_bytes(1, 0, b"payload")
        done = asyncio.get_running_loop().create_future()
        bookie.add(1, 0, KEY, [whole[:5], whole[5:33], whole[33:]], done.set_result)
        assert await done is Status.OK
        assert (await bookie.read(1, 0)).body == whole


async def test_more_than_the_queue_holds_is_refused_as_overload():
    async with started_bookie() as (rig, bookie):
        statuses = [add(bookie, 1, n, bytes(1 << 20)) for n in range(70)]
        assert Status.OVERLOADED in set(await asyncio.gather(*statuses))
        assert await rig.add(1, 100) is Status.OK


async def test_what_was_written_in_several_groups_leaves_the_queue():
    limits = GroupCommitLimits(group_bytes_max=8192)
    config = replace(SMALL, entry_bytes_max=4096, queue_bytes_max=128 * 1024, group=limits)
    async with started_bookie(config) as (_rig, bookie):
        for first in range(0, 200, 50):
            adds = [add(bookie, 1, first + n, bytes(2000)) for n in range(50)]
            assert set(await asyncio.gather(*adds)) == {Status.OK}


async def test_a_callback_that_raises_does_not_silence_the_others():
    async with started_bookie() as (rig, bookie):
        raised = []
        asyncio.get_running_loop().set_exception_handler(lambda _, it: raised.append(it))
        bookie.add(1, 0, KEY, entry_buffers(1, 0, b""), lambda _: 1 / 0)
        assert await rig.add(1, 1) is Status.OK
        assert len(raised) == 1


# -- reads -----------------------------------------------------------------------------------------


async def test_a_read_of_an_entry_on_its_way_waits_for_it():
    async with started_bookie() as (_rig, bookie):
        done = add(bookie, 1, 0, b"soon")
        reply = await bookie.read(1, 0)
        assert reply.body == entry_bytes(1, 0, b"soon")
        assert done.done()
        done = add(bookie, 1, 1, b"next")
        assert len((await bookie.read_many(1, 1, 9, 100)).bodies) == 1
        assert done.done()


async def test_what_is_not_there_is_told_apart():
    async with started_bookie() as (rig, bookie):
        assert (await bookie.read(1, 0)).status is Status.NO_LEDGER
        assert (await bookie.read_many(1, 0, 9, 100)).status is Status.NO_LEDGER
        assert (await bookie.read_lac(1)).status is Status.NO_LEDGER
        await bookie.fence(1, KEY)
        assert (await bookie.read(1, 0)).status is Status.NO_ENTRY
        assert (await bookie.read(1, -1)).status is Status.NO_ENTRY
        await rig.add(2, 5)
        assert (await bookie.read(2, 4)).status is Status.NO_ENTRY
        assert (await bookie.read_many(2, 0, 9, 100)).status is Status.NO_ENTRY
        assert (await bookie.read_many(2, 5, 4, 100)).status is Status.BAD_REQUEST


async def test_entry_minus_one_is_the_highest_stored():
    async with started_bookie() as (rig, bookie):
        for entry in (0, 3, 2):
            await rig.add(1, entry, b"%d" % entry)
        assert (await bookie.read(1, -1)).body == entry_bytes(1, 3, b"3")
        bookie = await rig.kill()
        assert (await bookie.read(1, -1)).body == entry_bytes(1, 3, b"3")


async def test_many_entries_come_in_order_until_the_size_or_a_hole():
    async with started_bookie() as (_rig, bookie):
        entries = [*range(30), *range(31, 40)]
        await asyncio.gather(*(add(bookie, 1, n, bytes([n]) * 1000) for n in entries))
        reply = await bookie.read_many(1, 2, 100, 1 << 20)
        assert [bytes(it) for it in reply.bodies] == [
            entry_bytes(1, n, bytes([n]) * 1000) for n in range(2, 30)
        ]
        assert reply.lac == 38
        assert len((await bookie.read_many(1, 0, 100, 5000)).bodies) == 4
        assert len((await bookie.read_many(1, 0, 100, 1)).bodies) == 1
        assert len((await bookie.read_many(1, 5, 6, 1 << 20)).bodies) == 2


@pytest.mark.parametrize("how", ["running", "killed", "stopped"])
async def test_many_entries_are_read_across_files_ledgers_and_what_the_table_lacks(how):
    async with started_bookie() as (rig, bookie):
        random = Random(3)
        sent = {1: [], 2: []}
        for _ in range(150):
            ledger = random.choice([1, 2])
            payload = random.randbytes(random.choice([0, 10, 900, 5000]))
            sent[ledger].append(payload)
            await add(bookie, ledger, len(sent[ledger]) - 1, payload)
        assert len(rig.disk.names()) > 5
        if how != "running":
            bookie = await (rig.kill() if how == "killed" else rig.restart())
        for ledger, payloads in sent.items():
            found = []
            while len(found) < len(payloads):
                reply = await bookie.read_many(ledger, len(found), 10**6, 20_000)
                assert reply.status is Status.OK
                found += [bytes(it) for it in reply.bodies]
            assert found == [entry_bytes(ledger, n, it) for n, it in enumerate(payloads)]


async def test_an_entry_whose_bytes_are_another_one_is_an_io_error_and_never_missing():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0, bytes(9000))
        await rig.add(1, 1, bytes(9000))
        name = next(name for name in rig.disk.names() if name.startswith("log-"))
        place = bytes(rig.disk.open(name)._content.view).index(entry_bytes(1, 1, bytes(9000)))
        rig.disk.flip_bit(name, place + 15)
        assert (await bookie.read(1, 1)).status is Status.IO_ERROR
        assert (await bookie.read_many(1, 1, 1, 99)).status is Status.IO_ERROR
        assert len((await bookie.read_many(1, 0, 1, 1 << 20)).bodies) == 1


async def test_a_missing_file_is_an_io_error():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        rig.disk.unlink("log-0000000000000001")
        assert (await bookie.read(1, 0)).status is Status.IO_ERROR
        assert (await bookie.read_many(1, 0, 9, 99)).status is Status.IO_ERROR


# -- LAC -------------------------------------------------------------------------------------------


async def test_the_lac_comes_with_entries_and_explicitly_and_never_falls():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        assert (await bookie.read_lac(1)).lac == -1
        await rig.add(1, 5, lac=4)
        await rig.add(1, 6, lac=2)
        assert (await bookie.read_lac(1)).lac == 4
        assert await bookie.write_lac(1, KEY, 6) is Status.OK
        assert await bookie.write_lac(1, KEY, 5) is Status.OK
        assert (await bookie.read(1, 0)).lac == 6
        for again in (rig.kill, rig.restart):
            assert (await (await again()).read_lac(1)).lac == 6


async def test_the_lac_of_an_entry_counts_once_the_entry_is_durable():
    async with started_bookie() as (_rig, bookie):
        done = add(bookie, 1, 5, lac=4)
        assert (await bookie.read_lac(1)).lac == -1
        await done
        assert (await bookie.read_lac(1)).lac == 4


async def test_a_long_poll_is_answered_when_the_bookie_stops():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0, lac=-1)
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(bookie.wait_lac(1, 0, 20.0))
        await asyncio.sleep(1)
        began_s = loop.time()
        await bookie.stop()
        assert (await waiting).lac == -1
        assert loop.time() - began_s < 1


# -- fences ----------------------------------------------------------------------------------------


async def test_a_fence_stops_all_but_recovery_at_once_and_for_ever():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        fencing = asyncio.ensure_future(bookie.fence(1, KEY))
        await asyncio.sleep(0)
        assert await rig.add(1, 1) is Status.FENCED
        assert await fencing is Status.OK
        assert await rig.add(1, 1, recovery=True) is Status.OK
        for again in (rig.kill, rig.restart, rig.kill):
            assert await add(await again(), 1, 2) is Status.FENCED
        assert await rig.bookie.fence(1, KEY) is Status.OK


async def test_many_fences_are_durable_together_when_they_are_answered():
    async with started_bookie() as (rig, bookie):
        ledgers = range(1, 40)
        for ledger in ledgers:
            await rig.add(ledger, 0)
        groups = bookie.groups
        replies = await bookie.fence_many([(ledger, KEY) for ledger in ledgers])
        assert {reply.status for reply in replies} == {Status.OK}
        assert bookie.groups <= groups + 2
        again = await rig.kill()
        for ledger in ledgers:
            assert await add(again, ledger, 1) is Status.FENCED


async def test_entries_beyond_the_bytes_of_a_response_are_not_returned():
    async with started_bookie() as (rig, bookie):
        for ledger in range(1, 6):
            await rig.add(ledger, 0)
        size = len((await bookie.read(1, 0)).body)
        replies = await bookie.fence_many([(ledger, KEY) for ledger in range(1, 6)], 3 * size)
        assert [reply.status for reply in replies] == [Status.OK] * 3 + [Status.OVERLOADED] * 2
        assert await rig.add(5, 1) is Status.FENCED


async def test_an_unknown_ledger_is_created_fenced():
    async with started_bookie() as (rig, bookie):
        assert await bookie.fence(9, KEY) is Status.OK
        bookie = await rig.kill()
        assert await rig.add(9, 0) is Status.FENCED
        assert await rig.add(9, 0, key=OTHER_KEY) is Status.UNAUTHORIZED


async def test_adds_accepted_before_a_fence_are_settled_when_it_answers():
    async with started_bookie() as (_rig, bookie):
        done = [add(bookie, 1, entry, bytes(2000)) for entry in range(30)]
        assert await bookie.fence(1, KEY) is Status.OK
        assert [it.result() for it in done] == [Status.OK] * 30
        assert (await bookie.read(1, -1)).body == entry_bytes(1, 29, bytes(2000))


async def test_recovery_adds_accepted_before_another_fence_are_settled_when_it_answers():
    async with started_bookie() as (_rig, bookie):
        assert await bookie.fence(1, KEY) is Status.OK
        done = [add(bookie, 1, entry, bytes(2000), recovery=True) for entry in range(30)]
        assert await bookie.fence(1, KEY) is Status.OK
        assert [it.result() for it in done] == [Status.OK] * 30


async def test_fenced_adds_are_not_written():
    async with started_bookie() as (rig, bookie):
        await bookie.fence(1, KEY)
        groups = bookie.groups
        assert await rig.add(1, 0) is Status.FENCED
        assert bookie.groups == groups


async def test_a_fence_outlives_the_ledgers_eviction_from_memory():
    async with started_bookie(
        BookieConfig(
            headroom_bytes=0, ledgers_in_memory_max=3, index_batch_entries=2, file_bytes=1 << 20
        )
    ) as (rig, bookie):
        await bookie.fence(1, KEY)
        for ledger in range(2, 60):
            await rig.add(ledger, 0)
        assert await rig.add(1, 0) is Status.FENCED

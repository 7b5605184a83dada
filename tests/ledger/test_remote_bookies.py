"""Goal: what connections do to the bookies port: made late, broken, silent, flooded, moved.
Method: a real bookie behind a real server, in this process or a child that is stopped or killed;
a proxy that holds bytes back. What every port answers is in tests/contracts/test_bookies.py.
"""

import asyncio
import math
import signal
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from ledger.adapters.links.link_config import LinkConfig
from ledger.bookie.config import ENTRY_BYTES_MAX, BookieConfig
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo, Status
from ledger.wire.bookie_frames import ADDS_MAX, REQUESTS_MAX
from tests.ledger.bookie_rig import KEY
from tests.ledger.remote_world import CONFIG, Child, Client, Served
from tests.ledger.transports import server_of
from tests.peers.processes import free_port, until
from tests.peers.proxy import TO_CLIENT, Proxy
from tests.sim.bookie_world import entry_buffers, entry_bytes

pytestmark = [pytest.mark.real_loop, pytest.mark.usefixtures("transport")]

GONE = Status.UNREACHABLE
PATIENT = LinkConfig(add_timeout_s=30.0, control_timeout_s=30.0)
AT_ONCE_S = 15.0  # below the timeouts of calls: nobody waited for them


@asynccontextmanager
async def serving(*served_options, timeout_s=30.0, **options):
    """A served bookie and a client of it."""
    async with (
        asyncio.timeout(timeout_s),
        Served(*served_options, **options) as served,
        Client(served, config=PATIENT) as client,
    ):
        yield served, client


@asynccontextmanager
async def behind_proxy(path, **options):
    """As `serving`, with a proxy between the two."""
    async with Served(path) as served:
        with Proxy(served.port) as proxy:
            async with Client(served, **options) as client:
                client.places[served.id] = BookieInfo(port=proxy.port)
                yield served, client, proxy


async def test_the_first_add_waits_for_the_connection(tmp_path):
    async with serving(tmp_path) as (served, client):
        told = [client.add(served.id, entry) for entry in range(100)]
        assert await asyncio.gather(*told) == [Status.OK] * 100


async def test_an_add_alone_does_not_wait_for_the_next_one(tmp_path):
    """Nagle's algorithm would hold each back for 40 ms, until the one before is acknowledged."""
    unsynced = replace(CONFIG, journal_sync="never")
    async with serving(tmp_path, unsynced, timeout_s=90) as (served, client):
        await client.add(served.id, 0)
        for round_ in range(3):
            times = []  # without those of the disk
            for entry in range(200 * round_ + 1, 200 * round_ + 201):
                began = time.perf_counter()
                assert await client.add(served.id, entry) is Status.OK
                times.append(time.perf_counter() - began)
            if sorted(times)[20] < 0.03:
                return
        raise AssertionError("one in ten is undisturbed on any machine, in some round")


async def test_any_number_of_small_adds_and_reads_may_be_sent_in_one_turn(tmp_path):
    async with serving(tmp_path) as (served, client):
        told = [client.add(served.id, entry, b"") for entry in range(ADDS_MAX + 500)]
        assert set(await asyncio.gather(*told)) == {Status.OK}
        count = REQUESTS_MAX + 500
        reads = [client.port.read(served.id, 7, entry) for entry in range(count)]
        replies = await asyncio.gather(*reads)
        assert [reply.body for reply in replies[:: count - 1]] == [
            entry_bytes(7, entry, b"") for entry in (0, count - 1)
        ]
        assert await client.add(served.id, ADDS_MAX + 500) is Status.OK
        assert len([entry for entry, status in client.told if status is not Status.OK]) == 0


async def test_the_largest_entry_arrives_and_a_larger_one_is_refused_alone(tmp_path):
    async with serving(tmp_path) as (served, client):
        largest = bytes(ENTRY_BYTES_MAX - 36)
        told = [client.add(served.id, 0, largest), client.add(served.id, 1, largest + b"x")]
        assert await asyncio.gather(*told) == [Status.OK, Status.BAD_REQUEST]
        assert await client.add(served.id, 2) is Status.OK
        reply = await client.port.read(served.id, 7, 0)
        assert reply.body == entry_bytes(7, 0, largest)
        many = await client.port.read_many(served.id, 7, 0, 9, 1 << 20)
        assert [len(body) for body in many.bodies] == [ENTRY_BYTES_MAX]


async def test_a_read_that_checks_copies_says_so_to_the_bookie(tmp_path):
    config = replace(CONFIG, write_cache_bytes=1 << 20)
    async with serving(tmp_path, config) as (served, client):
        assert await client.add(served.id, 0, b"on the disk") is Status.OK
        cache = served.bookie.storage.write_cache
        cache.put(7, 0, (b"in memory",))
        cache.end_group()
        read_many = client.port.read_many
        assert [bytes(it) for it in (await read_many(served.id, 7, 0, 0, 99)).bodies] == [
            b"in memory"
        ]
        checked = await read_many(served.id, 7, 0, 0, 99, from_disk=True)
        assert [bytes(it) for it in checked.bodies] == [entry_bytes(7, 0, b"on the disk")]


async def test_ids_that_cannot_be_are_refused_and_harm_nobody_else(tmp_path):
    async with serving(tmp_path) as (served, client):
        told = [client.add(served.id, 0)]
        statuses = []
        for ledger, entry in ((-1, 0), (7, -1)):
            body = entry_buffers(7, 1, b"x")
            client.port.add(served.id, ledger, entry, KEY, body, statuses.append)
        assert await asyncio.gather(*told) == [Status.OK]
        assert statuses == [Status.BAD_REQUEST] * 2
        bad = Status.BAD_REQUEST
        assert (await client.port.read(served.id, -1, 0)).status is bad
        assert (await client.port.read(served.id, 7, -2)).status is bad
        assert (await client.port.read_many(served.id, 7, -1, 5, 99)).status is bad
        assert (await client.port.read_many(served.id, 7, 3, 2, 99)).status is bad


async def test_a_body_that_names_another_entry_is_refused(tmp_path):
    async with serving(tmp_path) as (served, client):
        told = asyncio.get_running_loop().create_future()
        body = entry_buffers(7, 1, b"x")
        client.port.add(served.id, 7, 0, KEY, body, told.set_result)
        assert await told is Status.BAD_REQUEST
        assert served.bookie.ledgers() == []


async def test_another_instance_refuses_and_logs_nothing(tmp_path):
    async with serving(tmp_path) as (served, client):
        before = (served.bookie.groups, served.log_bytes())
        other = BookieId("bookie-00000000")
        client.places[other] = BookieInfo(port=served.port)
        wrong = Status.WRONG_INSTANCE
        told = [client.add(other, entry) for entry in range(3)]
        assert await asyncio.gather(*told) == [wrong] * 3
        assert (await client.port.read(other, 7, 0, fence_key=KEY)).status is wrong
        assert await client.port.write_lac(other, 7, KEY, 3) is wrong
        assert (await client.port.stats(other)).status is wrong
        assert (served.bookie.groups, served.log_bytes()) == before
        assert await client.add(served.id, 0) is Status.OK


class Holding:
    """The real bookie behind a gate: adds stay outside until it opens."""

    def __init__(self, bookie):
        self.bookie_id = bookie.bookie_id
        self._bookie = bookie
        self.held = []
        self.most = 0

    def add(self, *what, recovery):
        self.held.append(what)
        self.most = max(self.most, len(self.held))

    def open(self):
        held, self.held = self.held, []
        for what in held:
            self._bookie.add(*what)


async def test_adds_wait_on_the_wire_while_the_bookie_has_no_room(tmp_path):
    async with serving(tmp_path) as (served, client):
        holding = Holding(served.bookie)
        server = server_of(holding, queue_bytes_max=500_000)
        client.places[served.id] = BookieInfo(port=await server.start("127.0.0.1", 0))
        told = [client.add(served.id, entry, bytes(100_000)) for entry in range(150)]
        await until(lambda: len(holding.held) >= 5, "no more room")
        while not all(one.done() for one in told):
            holding.open()
            await asyncio.sleep(0.01)
        assert {one.result() for one in told} == {Status.OK}
        assert holding.most <= 20, "less than what has room and one message"
        await server.stop(0)


async def test_the_room_for_adds_counts_what_small_ones_take_in_memory(tmp_path):
    async with serving(tmp_path) as (served, client):
        holding = Holding(served.bookie)
        server = server_of(holding, queue_bytes_max=500_000)
        client.places[served.id] = BookieInfo(port=await server.start("127.0.0.1", 0))
        told = [client.add(served.id, entry, b"") for entry in range(30_000)]
        while not all(one.done() for one in told):
            holding.open()
            await asyncio.sleep(0.05)
        assert {one.result() for one in told} == {Status.OK}
        assert holding.most <= 10_000, "half a megabyte has room for 900 and what was under way"
        assert server._window.used == 0
        await server.stop(0)


class Raising:
    """The real bookie; adds of one ledger raise, before or after the bookie has them."""

    LEDGER = 13

    def __init__(self, bookie, after):
        self.bookie_id = bookie.bookie_id
        self._bookie = bookie
        self._after = after

    def add(self, ledger, *what, recovery):
        if ledger != self.LEDGER or self._after:
            self._bookie.add(ledger, *what, recovery=recovery)
        if ledger == self.LEDGER:
            raise MemoryError("nobody planned it")


@pytest.mark.parametrize("after", [False, True])
async def test_adds_that_raise_are_answered_once_and_leave_all_room_to_other_clients(
    tmp_path, after
):
    heard = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    async with serving(tmp_path) as (served, client), Client(served) as other:
        raising = Raising(served.bookie, after)
        server = server_of(raising, queue_bytes_max=500_000)
        place = BookieInfo(port=await server.start("127.0.0.1", 0))
        client.places[served.id] = other.places[served.id] = place
        told = [
            client.add(served.id, entry, bytes(100_000), ledger=Raising.LEDGER)
            for entry in range(20)
        ]
        assert set(await asyncio.gather(*told)) == {Status.IO_ERROR}
        assert len(heard) == 20
        assert await other.add(served.id, 0, bytes(100_000)) is Status.OK
        assert await client.add(served.id, 1, bytes(100_000)) is Status.OK
        assert server._window.used == 0
        await server.stop(0)


async def test_a_long_poll_that_was_given_up_frees_its_place(tmp_path):
    async with serving(tmp_path, BookieConfig(headroom_bytes=0, long_polls_max=1)) as (
        served,
        client,
    ):

        async def taken():
            """A poll that has the only place; that of the one before is free in a moment."""
            while True:
                polled = asyncio.ensure_future(client.port.wait_lac(served.id, 7, 0, 30.0))
                await client.port.read_lac(served.id, 7)
                await client.port.read_lac(served.id, 7)
                if not polled.done():
                    return polled
                assert (await polled).status is Status.OVERLOADED

        for _ in range(5):
            polled = await taken()
            full = await client.port.wait_lac(served.id, 8, 0, 30.0)
            assert full.status is Status.OVERLOADED
            polled.cancel()
            await asyncio.wait([polled])


async def test_a_stopped_bookie_answers_everything_once_and_at_once(tmp_path):
    async with serving(tmp_path) as (served, client):
        await client.add(served.id, 0)
        polled = asyncio.ensure_future(client.port.wait_lac(served.id, 7, 5, 30.0))
        told = [client.add(served.id, entry, bytes(100_000)) for entry in range(1, 150)]
        began = time.monotonic()
        await served.stop()
        statuses = await asyncio.gather(*told)
        assert set(statuses) <= {Status.OK, GONE}
        assert GONE in statuses
        assert (await polled).status in (GONE, Status.OK)
        assert time.monotonic() - began < AT_ONCE_S
        assert len(client.told) == 150


async def test_while_a_bookie_is_away_calls_do_not_wait(tmp_path):
    async with serving(tmp_path) as (served, client):
        await client.add(served.id, 0)
        await served.stop()
        await client.add_until(GONE, served.id, 1)
        began = time.monotonic()
        for entry in range(50):
            assert await client.add(served.id, entry) is GONE
        assert (await client.port.read(served.id, 7, 0)).status is GONE
        assert (await client.port.read_lac(served.id, 7)).status is GONE
        assert time.monotonic() - began < AT_ONCE_S


async def test_a_bookie_that_came_back_elsewhere_is_found(tmp_path):
    async with serving(tmp_path) as (served, client):
        for entry in range(4):
            await client.add_until(Status.OK, served.id, entry)
            old = served.port
            await served.restart()
            assert served.port != old
            client.move(served)
        await client.add_until(Status.OK, served.id, 4)
        reply = await client.port.list_entries(served.id, 7)
        assert reply.runs == ((0, 4),)


async def test_a_bookie_that_comes_up_late_is_found(tmp_path):
    async with Served(tmp_path) as served, Client(served) as client:
        client.places[served.id] = BookieInfo(port=free_port())
        assert await client.add(served.id, 0) is GONE
        assert (await client.port.stats(served.id)).status is GONE
        client.move(served)
        await client.add_until(Status.OK, served.id, 0)


async def test_a_bookie_that_is_not_registered_any_more_is_let_go_and_taken_back(tmp_path):
    async with serving(tmp_path) as (served, client):
        await client.add(served.id, 0)
        await served.stop()
        client.places.clear()
        await client.add_until(GONE, served.id, 1)
        assert await client.add(served.id, 1) is GONE
        assert client.port.available() == ()
        await served.restart()
        client.move(served)
        await client.add_until(Status.OK, served.id, 1)


async def test_a_read_only_bookie_is_registered_and_not_available(tmp_path):
    async with serving(tmp_path) as (served, client):
        client.places[served.id] = BookieInfo(port=served.port, read_only=True)
        assert client.port.available() == ()
        assert client.port.registered()[served.id].read_only
        assert await client.add(served.id, 0) is Status.OK


async def test_the_end_of_a_client_waits_for_the_copies_on_their_way(tmp_path):
    """A ledger is closed with two of three copies; the third one must not get lost for that."""
    config = LinkConfig(close_grace_s=20.0, add_timeout_s=20.0)
    async with Served(tmp_path) as served, Client(served, config=config) as client:
        assert await client.add(served.id, 0) is Status.OK
        told = [client.add(served.id, entry, bytes(10_000)) for entry in range(1, 100)]
        await client.port.close()
        assert await asyncio.gather(*told) == [Status.OK] * 99
        listed = await served.bookie.list_entries(7)
        assert listed.runs == ((0, 99),)


async def test_the_end_of_a_client_waits_for_no_bookie_that_hangs(tmp_path):
    async with behind_proxy(tmp_path) as (served, client, proxy):
        assert await client.add(served.id, 0) is Status.OK
        proxy.drop(TO_CLIENT)
        told = client.add(served.id, 1)
        await client.port.close()
        assert await told is GONE


@pytest.mark.parametrize("turns", [1, 5])
async def test_a_cancelled_end_of_a_client_answers_everything_too(tmp_path, turns):
    config = LinkConfig(close_grace_s=60.0, add_timeout_s=60.0)
    async with behind_proxy(tmp_path, config=config) as (served, client, proxy):
        assert await client.add(served.id, 0) is Status.OK
        proxy.drop(TO_CLIENT)
        told = client.add(served.id, 1)
        keeper = client.port._peers[served.id]._keeper
        closing = asyncio.ensure_future(client.port.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        async with asyncio.timeout(60):
            assert await told is GONE
            await asyncio.wait([closing, keeper])


async def test_the_end_of_a_client_answers_everything(tmp_path):
    config = LinkConfig(close_grace_s=0)
    async with Served(tmp_path) as served, Client(served, config=config) as client:
        told = [client.add(served.id, entry, bytes(100_000)) for entry in range(100)]
        polled = asyncio.ensure_future(client.port.wait_lac(served.id, 7, 500, 30.0))
        await until(lambda: client.told, "an answer")
        await client.port.close()
        assert set(await asyncio.gather(*told)) == {Status.OK, GONE}
        assert (await polled).status is GONE
        assert await client.add(served.id, 0) is GONE
        assert (await client.port.read(served.id, 7, 0)).status is GONE


async def test_a_killed_bookie_is_noticed_at_once(tmp_path):
    with Child(tmp_path) as child:
        places = {child.id: BookieInfo(port=child.port)}
        async with Client(config=PATIENT) as client:
            client.places.update(places)
            await client.add(child.id, 0)
            child.pause()  # so that nothing is answered before it dies
            told = [client.add(child.id, entry) for entry in range(1, 200)]
            read = asyncio.ensure_future(client.port.read(child.id, 7, 0))
            await asyncio.sleep(0)
            began = time.monotonic()
            child.process.send_signal(signal.SIGKILL)
            assert set(await asyncio.gather(*told)) == {GONE}
            assert (await read).status is GONE
            assert time.monotonic() - began < AT_ONCE_S
            assert len(client.told) == 200


async def test_a_bookie_that_stands_still_is_unreachable_after_the_timeout_and_taken_back(tmp_path):
    with Child(tmp_path) as child:
        config = LinkConfig(
            add_timeout_s=0.4, control_timeout_s=0.4, connect_timeout_s=0.3, reconnect_s_max=0.1
        )
        async with Client(config=config) as client:
            client.places[child.id] = BookieInfo(port=child.port)
            await client.add_until(Status.OK, child.id, 0)
            waits_s = []
            while min(waits_s, default=math.inf) >= LinkConfig().add_timeout_s:
                assert len(waits_s) < 3, waits_s
                waits_s.append(await unreachable(child, client, first=50 * len(waits_s) + 1))
            assert min(waits_s) >= 0.4


async def unreachable(child, client, first):
    """Stop the bookie while 49 entries are added. Returns after how long they had failed."""
    child.pause()
    began = time.monotonic()
    told = [client.add(child.id, entry) for entry in range(first, first + 49)]
    assert (await client.port.stats(child.id)).status is GONE
    assert set(await asyncio.gather(*told)) == {GONE}
    took_s = time.monotonic() - began
    child.resume()  # its answers come now, and are ignored
    await client.add_until(Status.OK, child.id, first + 49)
    assert len([entry for entry, _ in client.told if first <= entry < first + 49]) == 49
    return took_s


async def test_a_queue_to_a_bookie_that_does_not_read_is_bounded(tmp_path):
    config = LinkConfig(add_timeout_s=20.0, queue_bytes_max=4 << 20)
    async with behind_proxy(tmp_path, config=config) as (served, client, proxy):
        await client.add(served.id, 0)
        proxy.freeze()
        refused = []

        def on_added(status):
            refused.append(status)

        body = entry_buffers(7, 1, bytes(1 << 20))
        for _ in range(64):
            client.port.add(served.id, 7, 1, KEY, body, on_added)
            await asyncio.sleep(0.002)
        full = refused.count(Status.OVERLOADED)
        assert full >= 30, "four wait, some are in buffers on the way"
        assert set(refused) == {Status.OVERLOADED}
        proxy.cut()
        await until(lambda: len(refused) == 64, "the others are told")
        assert refused.count(GONE) == 64 - full
        proxy.heal()
        await client.add_until(Status.OK, served.id, 2)


async def test_a_broken_connection_answers_everything_and_is_made_again(tmp_path):
    async with behind_proxy(tmp_path) as (served, client, proxy):
        for entry in range(0, 50, 10):
            await client.add_until(Status.OK, served.id, entry)
            proxy.freeze(TO_CLIENT)
            told = [client.add(served.id, entry + more) for more in range(1, 10)]
            read = asyncio.ensure_future(client.port.read(served.id, 7, 0))
            await asyncio.sleep(0)
            proxy.cut()
            assert set(await asyncio.gather(*told)) == {GONE}
            assert (await read).status is GONE
            proxy.heal()


async def test_a_connection_on_which_nothing_comes_is_given_up_for_a_new_one(tmp_path):
    async with behind_proxy(tmp_path, config=LinkConfig(add_timeout_s=0.3)) as (
        served,
        client,
        proxy,
    ):
        await client.add_until(Status.OK, served.id, 0)
        accepted = proxy.accepted
        proxy.freeze()
        assert await client.add(served.id, 1) is GONE
        await until(lambda: proxy.accepted > accepted, "another try", timeout_s=60.0)
        proxy.heal()
        await client.add_until(Status.OK, served.id, 2)

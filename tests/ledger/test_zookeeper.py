"""Goal: the ZooKeeper store keeps its port's promises when connections and sessions are lost.

Method: a real ZooKeeper behind a proxy that loses, holds and cuts what passes. Watches are in
test_zookeeper_watches.py, servers that die in test_zookeeper_servers.py; what every store promises
is in tests/contracts/test_metadata.py.
"""

import asyncio
import errno
import functools
import itertools
import socket

import pytest
from kazoo.protocol import serialization as wire

from ledger.adapters.system.clock import monotonic_s
from ledger.adapters.zookeeper.zookeeper_bridge import IN_FLIGHT_MAX, _Inbox
from ledger.errors import MetadataUnavailable
from ledger.ports.metadata import Create, Delete, Node, Set
from tests.ledger.zookeeper_rig import (
    SHORT_MS,
    STALL_S,
    Told,
    end_session,
    in_some_try,
    no_thread_is_left,
    patient,
    waits,
    world_on,
)
from tests.peers.processes import until
from tests.peers.proxy import TO_CLIENT, TO_SERVER
from tests.peers.stalls import Stalls

pytestmark = pytest.mark.real_loop


@pytest.fixture
def sessions(zookeeper):
    """Opens sessions on the shared server. Afterwards no thread is left."""
    yield functools.partial(world_on, zookeeper)
    assert no_thread_is_left()


# Lost replies and requests


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        (
            lambda s: s.set("/a", b"new", 0),
            lambda s: s.get("/a"),
        ),
        (lambda s: s.create("/b", b"new", parents=True), lambda s: s.get("/b")),
        (lambda s: s.multi([Create("/b", b"old"), Set("/b", b"new", 0)]), lambda s: s.get("/b")),
    ],
    ids=["set", "create", "multi"],
)
async def test_a_change_whose_reply_is_lost_has_an_unknown_outcome_and_is_done(
    sessions, change, holds
):
    async with sessions() as world:
        await world.far.create("/a", b"old")
        world.proxy.cut_at_next(TO_CLIENT)
        with pytest.raises(MetadataUnavailable):
            await change(world.far)
        assert (await holds(world.far)).data == b"new"
        assert world.renewed == 0


async def test_a_delete_whose_reply_is_lost_is_done(sessions):
    async with sessions() as world:
        await world.far.create("/a")
        world.proxy.cut_at_next(TO_CLIENT)
        with pytest.raises(MetadataUnavailable):
            await world.far.delete("/a")
        assert not await world.far.exists("/a")


async def test_a_sequential_create_whose_reply_is_lost_only_wastes_a_number(sessions):
    async with sessions() as world:
        await world.far.create("/a")
        first = await world.far.create("/a/n-", sequential=True)
        world.proxy.cut_at_next(TO_CLIENT)
        with pytest.raises(MetadataUnavailable):
            await world.far.create("/a/n-", sequential=True)
        third = await world.far.create("/a/n-", sequential=True)
        assert int(third[-10:]) == int(first[-10:]) + 2


async def test_a_change_whose_request_is_lost_has_an_unknown_outcome_and_is_not_done(sessions):
    async with sessions() as world:
        await world.far.create("/a", b"old")
        world.proxy.cut_at_next(TO_SERVER)
        with pytest.raises(MetadataUnavailable):
            await world.far.set("/a", b"new", 0)
        assert await world.far.get("/a") == Node(b"old", 0)


async def test_a_lost_connection_fails_what_was_under_way_and_nothing_else(sessions):
    async with sessions() as world:
        world.proxy.freeze(TO_SERVER)
        asked = [world.far.create(f"/{i}") for i in range(2 * IN_FLIGHT_MAX)]
        gathered = asyncio.gather(*asked, return_exceptions=True)
        assert await waits(gathered)
        world.proxy.cut()
        world.proxy.heal()
        results = await gathered
        assert all(isinstance(result, MetadataUnavailable) for result in results[:IN_FLIGHT_MAX])
        assert results[IN_FLIGHT_MAX:] == [f"/{i}" for i in range(IN_FLIGHT_MAX, len(asked))]


async def test_a_connection_cut_in_the_middle_of_a_reply_leaves_nothing_for_the_next(sessions):
    async with sessions() as world:
        large = bytes(900_000)
        await world.near.create("/a", large)
        world.proxy.slow(TO_CLIENT, bytes_per_s=1_000_000)
        passed = world.proxy.passed_bytes(TO_CLIENT)
        asked = asyncio.ensure_future(world.far.get("/a"))
        await until(lambda: world.proxy.passed_bytes(TO_CLIENT) > passed, "the reply to begin")
        world.proxy.cut()
        with pytest.raises(MetadataUnavailable):
            await asked
        world.proxy.heal()
        assert (await world.far.get("/a")).data == large
        assert world.proxy.accepted == 2


async def test_replies_that_come_together_are_answered_together(sessions):
    async with sessions(session_ms=60_000) as world:
        world.proxy.freeze(TO_CLIENT)
        asked = asyncio.gather(*(world.far.exists("/") for _ in range(IN_FLIGHT_MAX)))
        assert await waits(asked)
        world.proxy.heal()
        async with asyncio.timeout(15):  # before a ping would bring the thread back to its socket
            await asked


async def test_a_request_that_kazoo_loses_fails_with_its_connection(sessions):
    """As when one is appended to its queue while it takes a new queue for a new session."""
    async with sessions() as world:
        connection = world.far._bridge._connection
        connection.submit = lambda request, answer: None
        asked = asyncio.ensure_future(world.far.exists("/"))
        await asyncio.sleep(0)
        del connection.submit
        assert await waits(asked)
        world.proxy.cut()
        with pytest.raises(MetadataUnavailable):
            await asked


# No connection


async def test_what_is_asked_without_a_connection_waits_for_the_next_one(sessions):
    async with sessions() as world:
        world.proxy.refuse()
        await until(lambda: not world.far._bridge._connected, "the connection to be lost")
        asked = asyncio.ensure_future(world.far.create("/a"))
        assert await waits(asked)
        world.proxy.heal()
        assert await asked == "/a"


async def test_it_waits_no_longer_than_a_session_and_was_never_sent(sessions):
    async with sessions(session_ms=SHORT_MS) as world:
        world.proxy.refuse()
        await until(lambda: not world.far._bridge._connected, "the connection to be lost")
        began_s = monotonic_s()
        with Stalls() as stalls, pytest.raises(MetadataUnavailable):
            await world.far.create("/a")
        assert SHORT_MS / 1000 <= monotonic_s() - began_s < 10 + stalls.longest_s
        world.proxy.heal()
        await patient(lambda: world.far.sync("/"))
        assert not await world.near.exists("/a")


async def test_a_connected_request_waits_for_as_long_as_the_earlier_ones_take(sessions):
    """Else watches that wait behind many requests are lost while their connection lives."""
    async with sessions(session_ms=20_000) as world:
        world.far._bridge.session_ms = 500  # what limits waits; the session itself may last
        await world.near.create("/a", bytes(2_000))
        world.proxy.slow(TO_CLIENT, bytes_per_s=1_000_000)  # in all, four times this limit
        asked = []
        for _ in range(4 * IN_FLIGHT_MAX):  # each in a turn of its own, or many are one request
            asked.append(asyncio.ensure_future(world.far.get("/a")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert world.far._bridge._waiting
        answers = await asyncio.gather(*asked)
        assert {len(node.data) for node in answers} == {2_000}


async def test_a_silent_connection_is_dropped_even_under_a_stream_of_requests(sessions, caplog):
    async with sessions(session_ms=SHORT_MS) as world:
        world.proxy.freeze(TO_CLIENT)
        began_s = monotonic_s()
        first = asyncio.ensure_future(world.far.get("/"))
        with Stalls() as stalls, pytest.raises(MetadataUnavailable):
            while not first.done():  # each request is a sign of life of ours, not of the server's
                asking = asyncio.ensure_future(world.far.get("/"))
                await asyncio.wait([first, asking], timeout=0.01)
                asking.cancel()
            await first
        assert monotonic_s() - began_s < 10 + stalls.longest_s
        assert "nothing heard for" in caplog.text
        world.proxy.heal()
        assert await patient(lambda: world.far.exists("/"))


async def test_thousands_of_requests_to_a_silent_server_do_not_hold_up_the_loop(sessions):
    async with sessions() as world:
        world.proxy.freeze(TO_SERVER)
        asked = [asyncio.ensure_future(world.far.exists("/")) for _ in range(5000)]
        assert await waits(asyncio.gather(*asked))
        world.proxy.heal()
        assert all(await asyncio.gather(*asked))


async def test_requests_are_done_in_the_order_they_were_asked(sessions):
    async with sessions() as world:
        await world.far.create("/a", b"0")
        asked = []
        for i in range(1, 501):
            asked.append(world.far.set("/a", b"%d" % i, i - 1))
            asked.append(world.far.get("/a"))
        results = await asyncio.gather(*asked)
        assert results[1::2] == [Node(b"%d" % i, i) for i in range(1, 501)]


# Sessions


async def test_a_lost_connection_within_the_session_keeps_its_ephemeral_nodes(sessions):
    async with sessions() as world:
        await world.far.create("/live", ephemeral=True)
        before = world.session()
        world.proxy.cut()
        await until(lambda: world.proxy.accepted >= 2, "to connect again")
        await world.far.sync("/")
        assert await world.near.exists("/live")
        assert (world.session(), world.renewed) == (before, 0)


async def test_the_session_length_is_the_servers_and_pings_keep_the_session(sessions, zookeeper):
    async def kept():
        async with sessions(session_ms=150) as world:
            await patient(lambda: world.far.create("/live", ephemeral=True))
            assert world.far.negotiated_session_ms == 200
            passed = world.proxy.passed_bytes(TO_CLIENT)
            # pings alone: nothing is asked here
            await until(lambda: world.proxy.passed_bytes(TO_CLIENT) > passed + 200, "ten pings")
            return await world.near.exists("/live") and world.renewed == 0

    assert await in_some_try(kept, zookeeper, late_s=STALL_S)


async def test_writes_prove_the_session_and_fire_no_watch(sessions):
    async with sessions(session_ms=6_000, prove_session=True) as world:
        told = Told()
        world.near.watch("/", told)
        await world.near.get("/")
        began_s = monotonic_s()
        await until(lambda: world.far.confirmed_s > began_s, "the proof to advance")
        assert world.far.confirmed_s <= monotonic_s()
        assert told.count == 0
        assert world.renewed == 0


async def test_pings_and_reads_prove_nothing(sessions, zookeeper):
    async def unproved():
        async with sessions(session_ms=SHORT_MS) as world:
            connected_s = world.far.confirmed_s
            passed = world.proxy.passed_bytes(TO_CLIENT)
            while world.proxy.passed_bytes(TO_CLIENT) < passed + 10_000:
                await patient(lambda: world.far.get("/"))
            confirmed_s = world.far.confirmed_s
            if world.proxy.accepted > 1:  # another connection has proved it
                return False
            return 0 < confirmed_s == connected_s

    assert await in_some_try(unproved, zookeeper)


async def test_what_is_never_answered_proves_nothing(sessions):
    async with sessions(session_ms=SHORT_MS, prove_session=True) as world:
        world.proxy.freeze(TO_CLIENT)
        began_s = monotonic_s()
        with pytest.raises(MetadataUnavailable):
            await world.far.get("/")
        assert world.far.confirmed_s < began_s
        world.proxy.heal()
        await until(lambda: world.far.confirmed_s > began_s, "the proof to go on")


async def test_a_reply_that_cannot_be_decoded_costs_its_connection_only(sessions, monkeypatch):
    """Else the store fails for good, while its session and what rests on it live on."""
    async with sessions(prove_session=True) as world:
        await world.far.create("/a", b"x")
        decode = wire.GetData.deserialize

        def decode_once(data, offset):
            monkeypatch.setattr(wire.GetData, "deserialize", staticmethod(decode))
            raise MemoryError

        monkeypatch.setattr(wire.GetData, "deserialize", staticmethod(decode_once))
        with pytest.raises(MetadataUnavailable):
            await world.far.get("/a")
        assert await world.far.get("/a") == Node(b"x", 0)
        assert world.proxy.accepted == 2
        assert world.renewed == 0


async def test_an_undecodable_proof_costs_its_connection_only(sessions, monkeypatch):
    async with sessions(prove_session=True) as world:
        decode = wire.Transaction.deserialize

        def decode_once(data, offset):
            monkeypatch.setattr(wire.Transaction, "deserialize", decode)
            raise MemoryError

        began_s = monotonic_s()
        monkeypatch.setattr(wire.Transaction, "deserialize", decode_once)
        world.proxy.cut()  # the next connection begins with a proof
        await until(lambda: world.proxy.accepted == 3, "another connection")
        await until(lambda: world.far.confirmed_s > began_s, "the proof to go on")
        assert world.renewed == 0


async def test_a_failure_while_connecting_does_not_end_the_store(sessions, monkeypatch):
    async with sessions() as world:
        resolve = socket.getaddrinfo

        def resolve_once(*words):
            monkeypatch.setattr(socket, "getaddrinfo", resolve)
            raise OSError(errno.EMFILE, "too many open files")

        monkeypatch.setattr(socket, "getaddrinfo", resolve_once)
        world.proxy.cut()
        await until(lambda: world.proxy.accepted == 2, "another connection")
        assert await world.far.exists("/")


async def test_nothing_is_confirmed_yet_when_the_loss_of_a_session_is_told(sessions):
    """Else who held something by the old session would believe in it a moment longer."""
    async with sessions() as world:
        await world.far.create("/live", ephemeral=True)
        heard = []
        world.far.watch_session(lambda: heard.append(world.far.confirmed_s))
        end_session(world.server, world.proxy, world.far)
        assert not await world.near.exists("/live")
        await until(lambda: heard, "the loss to be told")
        assert heard == [0.0]
        await world.far.get("/")
        assert world.far.confirmed_s > 0


# Walks


async def test_a_node_that_is_moved_within_its_parent_is_found_under_one_of_its_names(sessions):
    async with sessions() as world:
        names = [f"/tree/{number}" for number in range(300)]
        await asyncio.gather(*(world.near.create(name, parents=True) for name in names))
        await world.near.create("/tree/x0")
        moves = asyncio.Semaphore(0)

        async def keep_moving():
            for number in itertools.count():
                await moves.acquire()
                move = [Create(f"/tree/x{number + 1}"), Delete(f"/tree/x{number}")]
                await world.near.multi(move)

        moving = asyncio.create_task(keep_moving())
        for _ in range(50):
            for _ in range(2):  # a walk that met a move on each of its ways would not end
                moves.release()
            assert len(await world.far.read_tree("/tree")) == 301
        assert not moving.done()
        moving.cancel()


async def test_a_walk_passes_over_nodes_that_go_meanwhile(sessions):
    async with sessions() as world:
        paths = [f"/tree/{i % 20}/{i}" for i in range(1000)]
        await asyncio.gather(*(world.near.create(path, parents=True) for path in paths))
        walks = asyncio.gather(*(world.far.read_tree("/") for _ in range(3)), world.far.paths("/"))
        for path in paths[::2]:
            await world.near.delete(path)
        for found in await walks:
            assert set(found) >= {"/tree", *paths[1::2]}


# A failure on the way to the loop


async def test_a_failure_with_one_item_keeps_no_other_one_from_the_loop():
    taken, reported = [], []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def take(item):
        if isinstance(item, Exception):
            raise item
        taken.append(item)

    surprise = RuntimeError("nobody planned it")
    inbox = _Inbox(loop, take)
    for item in (1, surprise, 2, surprise, 3):
        inbox.put(item)
    await until(lambda: taken == [1, 2, 3], "the items behind the failures", 60)
    inbox.put(4)
    await until(lambda: taken == [1, 2, 3, 4], "a later item", 60)
    assert reported == [surprise, surprise]

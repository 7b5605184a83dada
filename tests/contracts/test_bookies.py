"""Goal: every bookies port answers as the port says. Method: one suite, run on a bookie of this
process, on the same bookie over TCP and over gRPC, and on the simulated one.

What only connections can do (break, refuse, flood) is in tests/ledger/test_remote_bookies.py and
tests/hostile/test_grpc.py.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.bookie.bookie import Bookie
from ledger.bookie.config import BookieConfig
from ledger.bookie.in_process import LocalBookies, open_local_bookie
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo, Bookies, BookieStats, LocateReply, Status
from tests.ledger.bookie_rig import KEY, OTHER_KEY
from tests.ledger.log_walk import files_in, newest
from tests.ledger.transports import bookies_of, on_transport, server_of
from tests.peers.processes import until
from tests.sim.bookie_world import entry_buffers, entry_bytes
from tests.sim.model_bookie import ModelBookie
from tests.sim.network import Network, SimBookies, Weather

NOBODY = BookieId("nobody-00000000")
CONFIG = BookieConfig(
    file_bytes=1 << 20, preallocate_bytes=1 << 18, headroom_bytes=0, long_polls_max=4
)
LONG_S = 20.0  # nothing takes so long: only a lost wake-up does


@dataclass
class World:
    """One port and the one bookie behind it."""

    port: Bookies
    id: BookieId
    bookie: Any  # the real or the simulated one
    path: Path | None = None  # the directory of the real one

    def add(self, ledger, entry, payload=b"x", *, key=KEY, recovery=False, lac=None):
        """A future of the add's status."""
        told = asyncio.get_running_loop().create_future()
        body = entry_buffers(ledger, entry, payload, lac)
        self.port.add(self.id, ledger, entry, key, body, told.set_result, recovery=recovery)
        return told

    async def add_all(self, ledger, entries, **how):
        told = [self.add(ledger, entry, **how) for entry in entries]
        assert [await one for one in told] == [Status.OK] * len(told)

    def place(self, ledger, entry):
        """Where the files of the bookie have an entry; only its length if it has no files."""
        if self.path is None:
            return len(self.bookie.ledgers[ledger].entries[entry])
        place = newest(files_in(self.path), ledger, entry)
        return int(place.file.removeprefix("log-"), 16), place.position, place.length

    async def lose(self, ledger):
        """The bookie may have lost entries of this ledger."""
        if isinstance(self.bookie, Bookie):
            await self.bookie.enter_limbo([ledger], fenced_below=ledger + 1)
        else:
            self.bookie.begin_limbo(next_ledger=ledger + 1)


@contextlib.asynccontextmanager
async def embedded(tmp_path):
    opened = await open_local_bookie(tmp_path / "bookie", config=CONFIG)
    port = LocalBookies([opened.bookie])
    yield World(port, opened.bookie.bookie_id, opened.bookie, opened.path)
    await opened.close()


@contextlib.asynccontextmanager
async def over_tcp(tmp_path):
    with on_transport("tcp"):
        async with networked(tmp_path) as world:
            yield world


@contextlib.asynccontextmanager
async def over_grpc(tmp_path):
    with on_transport("grpc"):
        async with networked(tmp_path) as world:
            yield world


@contextlib.asynccontextmanager
async def networked(tmp_path):
    opened = await open_local_bookie(tmp_path / "bookie", config=CONFIG)
    server = server_of(opened.bookie)
    start, port = opened.bookie.start_id, await server.start("127.0.0.1", 0)
    registered = {opened.bookie.bookie_id: BookieInfo(port=port, start=start)}
    port = bookies_of(lambda: registered)
    yield World(port, opened.bookie.bookie_id, opened.bookie, opened.path)
    await port.close()
    await server.stop(0)
    await opened.close()


@contextlib.asynccontextmanager
async def simulated(tmp_path):
    bookie, name = ModelBookie(lambda: 0.001), BookieId("b")
    weather = Weather(tail_rate=0.0, timeout_s=LONG_S / 4)
    network = Network(random.Random(1), weather, {name: bookie})
    yield World(SimBookies(network, "host"), name, bookie)


PORTS = [
    pytest.param(embedded, marks=pytest.mark.real_loop),
    pytest.param(over_tcp, marks=pytest.mark.real_loop),
    pytest.param(over_grpc, marks=pytest.mark.real_loop),
    simulated,
]


@pytest.fixture(params=PORTS, ids=lambda factory: factory.__name__)
def opened(request, tmp_path):
    """Opens a fresh bookie, as an async context manager."""

    @contextlib.asynccontextmanager
    async def world():
        async with request.param(tmp_path) as made, asyncio.timeout(LONG_S):
            yield made

    return world


# -- adds --------------------------------------------------------------------------------------


async def test_an_entry_is_read_back_as_it_was_added(opened):
    async with opened() as world:
        assert await world.add(7, 0, b"payload") is Status.OK
        reply = await world.port.read(world.id, 7, 0)
        assert (reply.status, reply.body, reply.lac) == (0, entry_bytes(7, 0, b"payload"), -1)


async def test_an_entry_in_many_buffers_is_one_entry(opened):
    async with opened() as world:
        whole = entry_bytes(7, 0, b"payload" * 9)
        body = [whole[:10], memoryview(whole)[10:50], bytearray(whole[50:]), b""]
        told = asyncio.get_running_loop().create_future()
        world.port.add(world.id, 7, 0, KEY, body, told.set_result)
        assert await told is Status.OK
        assert (await world.port.read(world.id, 7, 0)).body == whole


async def test_every_add_is_answered_once_and_in_the_order_of_the_calls_it_was_judged(opened):
    async with opened() as world:
        answers = []
        for entry in range(60):
            body = entry_buffers(7, entry, b"x")
            key = KEY if entry % 3 == 0 else OTHER_KEY  # the first one's key counts
            world.port.add(
                world.id, 7, entry, key, body, lambda status, e=entry: answers.append((e, status))
            )
        await world.add_all(7, [60])
        await until(lambda: len(answers) == 60, "every answer")
        await world.add_all(7, [63])
        assert sorted(answers) == [
            (entry, Status.OK if entry % 3 == 0 else Status.UNAUTHORIZED) for entry in range(60)
        ]


async def test_nobody_is_called_inside_add(opened):
    async with opened() as world:
        calls, inside, done = [], True, asyncio.Event()

        def on_added(status):
            calls.append((status, inside))
            if len(calls) == 5:
                done.set()

        def add(bookie, entry, key=KEY):
            body = entry_buffers(7, entry, b"x")
            world.port.add(bookie, 7, entry, key, body, on_added)

        add(world.id, 0)
        add(world.id, 0)
        add(world.id, 1, OTHER_KEY)
        add(NOBODY, 1)
        add(world.id, 1)
        inside = False
        await done.wait()
        assert not any(was_inside for _, was_inside in calls)
        assert sorted(status for status, _ in calls) == [0, 0, 0, 502, 900]


async def test_the_same_entry_again_is_fine_and_another_one_is_refused(opened):
    async with opened() as world:
        await world.add_all(7, [0])
        assert await world.add(7, 0) is Status.OK
        assert await world.add(7, 0, b"y") is Status.BAD_REQUEST
        assert world.bookie.conflicts == 1
        assert (await world.port.read(world.id, 7, 0)).body == entry_bytes(7, 0, b"x")


async def test_a_wrong_key_adds_nothing(opened):
    async with opened() as world:
        await world.add_all(7, [0])
        assert await world.add(7, 1, key=OTHER_KEY) is Status.UNAUTHORIZED
        assert await world.add(7, 1, key=OTHER_KEY, recovery=True) is Status.UNAUTHORIZED
        assert (await world.port.list_entries(world.id, 7)).runs == ((0, 0),)


# -- reads and fences --------------------------------------------------------------------------


async def test_entry_minus_one_is_the_highest_that_is_stored(opened):
    async with opened() as world:
        await world.add_all(7, [0, 1, 5])
        reply = await world.port.read(world.id, 7, -1)
        assert (reply.status, reply.body) == (Status.OK, entry_bytes(7, 5, b"x"))


async def test_what_never_was_is_denied(opened):
    async with opened() as world:
        await world.add_all(7, [0])
        assert (await world.port.read(world.id, 7, 1)).status is Status.NO_ENTRY
        assert (await world.port.read(world.id, 8, 0)).status is Status.NO_LEDGER
        assert (await world.port.read_many(world.id, 8, 0, 9, 99)).status is Status.NO_LEDGER
        assert (await world.port.read_lac(world.id, 8)).status is Status.NO_LEDGER


async def test_after_a_fence_only_recovery_adds(opened):
    async with opened() as world:
        await world.add_all(7, [0, 1])
        reply = await world.port.read(world.id, 7, -1, fence_key=KEY)
        assert (reply.status, reply.body) == (Status.OK, entry_bytes(7, 1, b"x"))
        assert await world.add(7, 2) is Status.FENCED
        assert await world.add(7, 2, recovery=True) is Status.OK
        assert (await world.port.list_entries(world.id, 7)).runs == ((0, 2),)


async def test_a_fence_makes_an_unknown_ledger_known_and_fenced(opened):
    async with opened() as world:
        reply = await world.port.read(world.id, 7, -1, fence_key=KEY)
        assert reply.status is Status.NO_ENTRY
        assert await world.add(7, 0) is Status.FENCED
        assert (await world.port.list_entries(world.id, 7)) == (Status.OK, ())


async def test_a_wrong_key_fences_nothing(opened):
    async with opened() as world:
        await world.add_all(7, [0])
        reply = await world.port.read(world.id, 7, -1, fence_key=OTHER_KEY)
        assert (reply.status, reply.body) == (Status.UNAUTHORIZED, b"")
        assert await world.add(7, 1) is Status.OK


async def test_a_fence_sees_the_adds_that_were_taken_before_it(opened):
    async with opened() as world:
        await world.add_all(7, [0])
        told = [world.add(7, entry) for entry in range(1, 40)]
        reply = await world.port.read(world.id, 7, -1, fence_key=KEY)
        taken = [status for status in await asyncio.gather(*told) if status is Status.OK]
        highest = int.from_bytes(reply.body[8:16], "big")
        assert highest == len(taken)
        assert {told[one].result() for one in range(len(taken), 39)} <= {Status.FENCED}


async def test_many_fences_are_answered_in_order_as_single_ones(opened):
    async with opened() as world:
        await world.add_all(7, [0, 1])
        await world.add_all(9, [0])
        await world.lose(5)
        asked = [(7, KEY), (8, KEY), (9, OTHER_KEY), (5, KEY)]
        replies = await world.port.fence_many(world.id, asked)
        assert [reply.status for reply in replies] == [
            Status.OK,
            Status.NO_ENTRY,
            Status.UNAUTHORIZED,
            Status.UNKNOWN_LEDGER_STATE,
        ]
        assert replies[0].body == entry_bytes(7, 1, b"x")
        assert await world.add(7, 2) is Status.FENCED
        assert await world.add(8, 0) is Status.FENCED
        assert await world.add(9, 1) is Status.OK
        assert await world.add(7, 2, recovery=True) is Status.OK


async def test_many_fences_see_the_adds_that_were_taken_before_them(opened):
    async with opened() as world:
        told = [world.add(ledger, 0) for ledger in range(1, 40)]
        asked = [(ledger, KEY) for ledger in range(1, 40)]
        replies = await world.port.fence_many(world.id, asked)
        for reply, status in zip(replies, await asyncio.gather(*told), strict=True):
            taken = status is Status.OK
            assert reply.status is (Status.OK if taken else Status.NO_ENTRY)


async def test_many_entries_come_up_to_a_hole(opened):
    async with opened() as world:
        await world.add_all(7, [0, 1, 2, 4])
        reply = await world.port.read_many(world.id, 7, 0, 9, 1 << 20)
        assert reply.status is Status.OK
        assert [bytes(body) for body in reply.bodies] == [
            entry_bytes(7, entry, b"x") for entry in (0, 1, 2)
        ]
        assert (await world.port.read_many(world.id, 7, 3, 9, 99)).status is Status.NO_ENTRY


async def test_many_entries_end_at_the_last_one_asked_for(opened):
    async with opened() as world:
        await world.add_all(7, range(5))
        reply = await world.port.read_many(world.id, 7, 1, 2, 1 << 20)
        assert [bytes(body)[8:16] for body in reply.bodies] == [bytes(7) + b"\1", bytes(7) + b"\2"]


async def test_at_least_one_entry_comes_however_few_bytes_were_asked_for(opened):
    async with opened() as world:
        await world.add_all(7, range(5), payload=b"x" * 1000)
        reply = await world.port.read_many(world.id, 7, 1, 4, 1)
        assert [bytes(body) for body in reply.bodies] == [entry_bytes(7, 1, b"x" * 1000)]
        reply = await world.port.read_many(world.id, 7, 0, 4, 2500)
        assert 2 <= len(reply.bodies) <= 3


# -- LACs --------------------------------------------------------------------------------------


async def test_the_lac_is_the_highest_that_came_with_an_entry(opened):
    async with opened() as world:
        await world.add_all(7, range(4))
        assert await world.port.read_lac(world.id, 7) == (Status.OK, b"", 2)
        await world.add_all(7, [4], lac=0)
        assert (await world.port.read_lac(world.id, 7)).lac == 2


async def test_an_explicit_lac_is_known_and_never_falls(opened):
    async with opened() as world:
        await world.add_all(7, range(4))
        assert await world.port.write_lac(world.id, 7, KEY, 3) is Status.OK
        assert (await world.port.read_lac(world.id, 7)).lac == 3
        assert await world.port.write_lac(world.id, 7, KEY, 1) is Status.OK
        assert (await world.port.read_lac(world.id, 7)).lac == 3
        assert await world.port.write_lac(world.id, 7, OTHER_KEY, 9) is Status.UNAUTHORIZED
        assert (await world.port.read(world.id, 7, 0)).lac == 3


async def polling(world, ledger, previous, timeout_s=LONG_S):
    """A long poll that waits at the bookie by now."""
    polled = asyncio.ensure_future(world.port.wait_lac(world.id, ledger, previous, timeout_s))
    await world.port.read_lac(world.id, ledger)  # takes longer than the question
    await world.port.read_lac(world.id, ledger)
    assert not polled.done()
    return polled


async def test_a_long_poll_for_a_known_lac_is_answered_with_the_entry(opened):
    async with opened() as world:
        await world.add_all(7, range(4))
        reply = await world.port.wait_lac(world.id, 7, 0, LONG_S)
        assert reply == (Status.OK, entry_bytes(7, 1, b"x"), 2)


async def test_an_add_wakes_a_long_poll(opened):
    async with opened() as world:
        await world.add_all(7, [0, 1])
        polled = await polling(world, 7, 0)
        await world.add_all(7, [2])
        assert await polled == (Status.OK, entry_bytes(7, 1, b"x"), 1)


async def test_an_explicit_lac_wakes_a_long_poll(opened):
    async with opened() as world:
        await world.add_all(7, [0])
        polled = await polling(world, 7, -1)
        await world.port.write_lac(world.id, 7, KEY, 0)
        assert await polled == (Status.OK, entry_bytes(7, 0, b"x"), 0)


async def test_a_long_poll_has_no_body_where_the_entry_is_not_stored(opened):
    async with opened() as world:
        await world.add_all(7, [0, 2])  # 1 went to other bookies
        polled = await polling(world, 7, 1)
        await world.add_all(7, [4])
        assert await polled == (Status.OK, entry_bytes(7, 2, b"x"), 3)
        assert await world.port.wait_lac(world.id, 7, 0, LONG_S) == (Status.OK, b"", 3)


async def test_a_fence_wakes_a_long_poll(opened):
    async with opened() as world:
        await world.add_all(7, [0])
        polled = await polling(world, 7, -1)
        await world.port.read(world.id, 7, -1, fence_key=KEY)
        assert await polled == (Status.OK, b"", -1)


async def test_a_long_poll_of_a_fenced_ledger_does_not_wait(opened):
    async with opened() as world:
        await world.add_all(7, [0, 1])
        await world.port.read(world.id, 7, -1, fence_key=KEY)
        assert await world.port.wait_lac(world.id, 7, 5, LONG_S) == (Status.OK, b"", 0)


async def test_a_long_poll_ends_when_time_is_up(opened):
    async with opened() as world:
        await world.add_all(7, [0, 1])
        assert await world.port.wait_lac(world.id, 7, 0, 0.02) == (Status.OK, b"", 0)
        assert await world.port.wait_lac(world.id, 7, 0, 0.0) == (Status.OK, b"", 0)
        assert (await world.port.wait_lac(world.id, 8, -1, 0.02)).status is Status.NO_LEDGER


async def test_a_long_poll_of_a_ledger_that_has_not_begun_waits_for_it(opened):
    async with opened() as world:
        polled = await polling(world, 7, -1)
        await world.add_all(7, [0, 1])
        assert await polled == (Status.OK, entry_bytes(7, 0, b"x"), 0)


# -- lists, limbo, statistics ------------------------------------------------------------------


async def test_the_list_names_what_is_held_in_runs(opened):
    async with opened() as world:
        await world.add_all(7, [0, 1, 2, 5, 9, 10])
        reply = await world.port.list_entries(world.id, 7)
        assert reply == (Status.OK, ((0, 2), (5, 5), (9, 10)))
        assert await world.port.list_entries(world.id, 8) == (Status.NO_LEDGER, ())


@pytest.mark.slow
async def test_a_long_list_is_whole(opened):
    async with opened() as world:
        await world.add_all(7, range(0, 12_000, 2))
        await world.add_all(7, range(12_000, 13_000))
        reply = await world.port.list_entries(world.id, 7)
        runs = [(entry, entry) for entry in range(0, 12_000, 2)]
        assert reply.runs == (*runs, (12_000, 12_999))


async def test_a_place_is_that_of_the_log_files(opened):
    async with opened() as world:
        await world.add_all(7, [0, 1, 5], payload=b"x" * 5000)
        await world.add_all(8, range(3))
        for ledger, entry in ((7, 0), (7, 5), (8, 1)):
            reply = await world.port.locate(world.id, ledger, entry)
            assert reply.status is Status.OK
            assert world.place(ledger, entry) in (reply[1:], reply.length)


async def test_an_entry_that_is_not_there_has_no_place(opened):
    async with opened() as world:
        await world.add_all(7, [0, 2])
        await world.lose(5)
        for ledger, entry, status in (
            (7, 1, Status.NO_ENTRY),
            (7, 3, Status.NO_ENTRY),
            (8, 0, Status.NO_LEDGER),
            (5, 0, Status.UNKNOWN_LEDGER_STATE),
        ):
            assert await world.port.locate(world.id, ledger, entry) == LocateReply(status)


async def test_what_may_be_lost_is_unknown_until_the_owner_ends_limbo(opened):
    async with opened() as world:
        await world.add_all(7, [0])
        await world.lose(7)
        assert (await world.port.read(world.id, 7, 0)).status is Status.OK
        unknown = Status.UNKNOWN_LEDGER_STATE
        assert (await world.port.read(world.id, 7, 1)).status is unknown
        assert (await world.port.list_entries(world.id, 7)).status is unknown
        assert (await world.port.read_lac(world.id, 7)).status is unknown
        assert (await world.port.wait_lac(world.id, 7, 3, LONG_S)).status is unknown
        assert await world.port.end_limbo(world.id, 7, OTHER_KEY) is Status.UNAUTHORIZED
        assert (await world.port.list_entries(world.id, 7)).status is unknown
        assert await world.port.end_limbo(world.id, 7, KEY) is Status.OK
        assert (await world.port.read(world.id, 7, 1)).status is Status.NO_ENTRY
        assert (await world.port.list_entries(world.id, 7)).runs == ((0, 0),)
        assert await world.add(7, 1) is Status.FENCED


async def test_the_limbo_of_another_start_is_not_ended(opened):
    async with opened() as world:
        await world.add_all(7, [0])
        await world.lose(7)
        start = world.port.registered()[world.id].start
        refused = await world.port.end_limbo(world.id, 7, KEY, start + "0")
        assert refused is Status.WRONG_INSTANCE
        assert (await world.port.read(world.id, 7, 1)).status is Status.UNKNOWN_LEDGER_STATE
        assert await world.port.end_limbo(world.id, 7, KEY, start) is Status.OK
        assert (await world.port.read(world.id, 7, 1)).status is Status.NO_ENTRY


async def test_statistics_say_how_full_it_is(opened):
    async with opened() as world:
        for ledger in (7, 8, 9):
            await world.add_all(ledger, [0])
        stats = await world.port.stats(world.id)
        assert (stats.status, stats.ledgers, stats.writable) == (Status.OK, 3, True)
        assert 0 < stats.free_bytes < stats.disk_bytes


async def test_who_serves_is_registered_and_available(opened):
    async with opened() as world:
        assert list(world.port.registered()) == [world.id]
        assert not world.port.registered()[world.id].read_only
        assert world.port.available() == (world.id,)


async def test_a_bookie_that_nobody_knows_is_unreachable(opened):
    async with opened() as world:
        port, gone = world.port, Status.UNREACHABLE
        assert (await port.read(NOBODY, 7, 0)).status is gone
        assert (await port.read(NOBODY, 7, 0, fence_key=KEY)).status is gone
        assert (await port.read_many(NOBODY, 7, 0, 9, 99)).status is gone
        assert (await port.read_lac(NOBODY, 7)).status is gone
        assert (await port.wait_lac(NOBODY, 7, 0, 1.0)).status is gone
        assert (await port.list_entries(NOBODY, 7)).status is gone
        assert await port.write_lac(NOBODY, 7, KEY, 0) is gone
        assert await port.end_limbo(NOBODY, 7, KEY) is gone
        assert await port.stats(NOBODY) == BookieStats(gone)
        assert await port.locate(NOBODY, 7, 0) == LocateReply(gone)

"""Goal: the simulated bookie answers as the port says where a cluster needs it.

Method: one model bookie behind a still network; what `tests/contracts` asks of every port is not
repeated here, only limbo, racks and the long poll's ends, which a simulation draws on.
"""

import asyncio
import random

from ledger.core.entry_format import DigestType, EntryFormat
from ledger.ids import BookieId, EntryId
from ledger.ports.bookies import Status
from tests.sim.model_bookie import ModelBookie
from tests.sim.network import Network, SimBookies, Weather

B = BookieId("b")
KEY = b"k"


def body(entry, payload=b"p", lac=None):
    layout = EntryFormat(DigestType.CRC32C)
    lac = EntryId(entry - 1 if lac is None else lac)
    return (layout.pack(7, EntryId(entry), lac, 1, [payload]), payload)


class World:
    def __init__(self):
        self.bookie = ModelBookie(lambda: 0.001)
        self.network = Network(random.Random(1), Weather(tail_rate=0.0), {B: self.bookie})
        self.port = SimBookies(self.network, "host")

    async def add(self, entry, payload=b"p", **how):
        told = asyncio.get_running_loop().create_future()
        self.port.add(B, 7, entry, KEY, body(entry, payload), told.set_result, **how)
        return await told


async def test_what_may_be_lost_is_unknown_until_limbo_ends_and_stays_fenced():
    world = World()
    assert await world.add(0) is Status.OK
    world.bookie.begin_limbo(next_ledger=9)
    assert (await world.port.read(B, 7, 0)).status is Status.OK
    for ledger in (7, 8):
        assert (await world.port.read(B, ledger, 1)).status is Status.UNKNOWN_LEDGER_STATE
        reply = await world.port.list_entries(B, ledger)
        assert reply.status is Status.UNKNOWN_LEDGER_STATE
    assert (await world.port.list_entries(B, 9)).status is Status.NO_LEDGER
    assert await world.port.end_limbo(B, 7, KEY) is Status.OK
    assert (await world.port.read(B, 7, 1)).status is Status.NO_ENTRY
    assert (await world.port.list_entries(B, 7)).runs == ((0, 0),)
    assert await world.add(1) is Status.FENCED


async def test_a_second_payload_is_refused_and_the_same_one_is_fine():
    world = World()
    assert await world.add(0) is Status.OK
    assert await world.add(0) is Status.OK
    assert await world.add(0, b"q") is Status.BAD_REQUEST
    assert world.bookie.conflicts == 1


async def test_a_long_poll_ends_with_a_higher_lac_or_when_time_is_up():
    world = World()
    now_s = asyncio.get_running_loop().time
    polled = asyncio.ensure_future(world.port.wait_lac(B, 7, -1, 30.0))
    for entry in (0, 1):
        await world.add(entry)
    reply = await polled
    assert (reply.status, reply.lac, reply.body) == (Status.OK, 0, b"".join(body(0)))
    began_s = now_s()
    reply = await world.port.wait_lac(B, 7, 0, 5.0)
    assert (reply.status, reply.lac, reply.body) == (Status.OK, 0, b"")
    assert 5.0 <= now_s() - began_s < 6.0


async def test_registered_tells_racks_and_who_only_reads():
    world = World()
    world.network.racks[B] = "/one"
    assert world.port.registered()[B].rack == "/one"
    assert world.port.available() == (B,)
    world.bookie.read_only = True
    assert world.port.registered()[B].read_only
    assert world.port.available() == ()
    world.bookie.crash()
    assert world.port.registered() == {}


async def test_an_unknown_bookie_is_unreachable():
    world = World()
    world.network.bookies.clear()
    assert (await world.port.stats(B)).status is Status.UNREACHABLE
    assert await world.add(0) is Status.UNREACHABLE

"""Goal: a committed offset is a register that never lies, whatever fails. Method: seeded
runs in which requests and replies of the store get lost, gateways crash and rivals take over; each
client keeps the set of values that a correct register may hold.
"""

import asyncio
import random

import pytest

from gateway.groups.coordinator import Refused
from tests.gateway.group_world import World
from tests.sim.loop import simulate
from tests.sim.metadata import MetadataFaults
from tests.sim.seeds import first_at_commit

SEEDS = range(40)
OPS = 60


class Register:
    """One group's partition as its only client sees it. `may_be`: what a read may answer."""

    def __init__(self, group, partition):
        self.group = group
        self.partition = partition
        self.may_be = {None}
        self.history = []

    async def write(self, world, value):
        code = await world.commit(self.group, value, self.partition)
        self.history.append((f"commit {value}", code))
        if code == "none":
            self.may_be = {value}
        elif code in ("coordinator_not_available", "not_coordinator"):
            self.may_be.add(value)  # it may have happened, and may be seen from now on
        else:
            assert code == "coordinator_load_in_progress", code

    async def read(self, world):
        try:
            value = await world.committed(self.group, self.partition)
        except Refused as refused:
            self.history.append(("fetch", refused.code.name))
            return
        self.history.append(("fetch", value))
        assert value in self.may_be, f"{value} not in {self.may_be}: {self.history}"
        self.may_be = {value}


async def client(register, place, draw):
    value = 0
    for _ in range(OPS):
        await asyncio.sleep(draw.expovariate(10))
        world = place["world"]
        if draw.random() < 0.5:
            value += 1
            # A crash may take the answer with it: then nothing is known of this write.
            register.may_be.add(value) if world.metadata.closed else None
            await register.write(world, value)
        else:
            await register.read(world)


async def run(seed):
    draw = random.Random(seed)
    place = {"world": await World().__aenter__()}
    place["world"].metadata.faults = faults(draw)
    worlds = [place["world"]]
    registers = [Register(group, n) for group in ("a", "b") for n in range(3)]
    clients = [
        asyncio.ensure_future(client(each, place, random.Random(draw.random())))
        for each in registers
    ]
    for _ in range(5):
        await asyncio.sleep(draw.uniform(0.2, 2.0))
        old = place["world"]
        new = old.crashed() if draw.random() < 0.5 else old.rival()
        place["world"] = await started(new)
        worlds.append(place["world"])
        place["world"].metadata.faults = faults(draw)
    await asyncio.gather(*clients)
    place["world"].metadata.faults = None
    await asyncio.sleep(1.0)
    for register in registers:
        await register.read(place["world"])
        await register.write(place["world"], 1_000)
        await register.read(place["world"])
        assert register.may_be == {1_000}, register.history
    for world in worlds:
        world.metadata.closed = True
        await world.groups.stop()


def faults(draw):
    return MetadataFaults(
        random.Random(draw.random()), latency_s=0.003, unsent=0.03, reply_lost=0.05
    )


async def started(world):
    await world.__aenter__()
    return world


@pytest.mark.parametrize("seed", first_at_commit(SEEDS, 12))
def test_what_was_acknowledged_is_what_is_read(seed):
    simulate(run(seed))

"""Goal: a process that stood still knows it before it says anything. Method: virtual time that
jumps, as the clock of a stopped process does.
"""

import asyncio
from contextlib import asynccontextmanager

from gateway.config import ConnectionLimits
from gateway.server.dispatch import Dispatcher
from gateway.server.registry import ConnectionRegistry
from gateway.server.stall_detector import StallDetector

STALL_S_MAX = 0.3


@asynccontextmanager
async def beating():
    loop = asyncio.get_running_loop()
    told = []
    detector = StallDetector(loop, STALL_S_MAX, lambda: told.append(loop.time()))
    detector.start()
    yield loop, detector, told
    detector.stop()


def stand_still(loop, seconds):
    """Nothing ran on the loop meanwhile."""
    loop._now_s += seconds


async def test_a_loop_that_runs_never_stalled():
    async with beating() as (_loop, detector, told):
        for _ in range(1000):
            await asyncio.sleep(0.017)
            assert not detector.stalled()
        assert told == []


async def test_who_stalled_knows_it_before_the_next_beat():
    async with beating() as (loop, detector, told):
        await asyncio.sleep(1)
        stand_still(loop, STALL_S_MAX + 0.01)
        assert detector.stalled()
        assert told == []


async def test_the_next_beat_tells_once_and_all_is_well_again():
    async with beating() as (loop, detector, told):
        await asyncio.sleep(1)
        stand_still(loop, 10)
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        assert told == [11.0]
        await asyncio.sleep(5)
        assert told == [11.0]
        assert not detector.stalled()


async def test_a_short_pause_is_no_standstill():
    async with beating() as (loop, detector, told):
        await asyncio.sleep(1)
        stand_still(loop, STALL_S_MAX / 4)
        assert not detector.stalled()
        await asyncio.sleep(1)
        assert told == []


async def test_a_stopped_detector_beats_no_more():
    async with beating() as (loop, detector, told):
        detector.stop()
        stand_still(loop, 10)
        await asyncio.sleep(1)
        assert told == []


async def test_the_registry_starts_one_detector_and_checks_connections_beside_it():
    loop = asyncio.get_running_loop()
    registry = ConnectionRegistry(Dispatcher({}, None), ConnectionLimits(), STALL_S_MAX)
    registry.start()
    await asyncio.sleep(60)
    timers = len(loop._scheduled)
    registry.stop()
    assert timers == 2  # the next wake-up and the next check

"""Goal: a process that stood still knows it before it says anything. Method: virtual time that
jumps, as the clock of a stopped process does."""

import asyncio

from gateway.server.stall_detector import StallDetector
from tests.sim.loop import simulate

STILL_S_MAX = 0.3


def run(scenario):
    async def main():
        loop = asyncio.get_running_loop()
        told = []
        pulse = StallDetector(loop, STILL_S_MAX, lambda: told.append(loop.time()))
        pulse.start()
        await scenario(loop, pulse, told)
        pulse.stop()

    simulate(main())


def stand_still(loop, seconds):
    """Nothing ran on the loop meanwhile."""
    loop._now_s += seconds


def test_a_loop_that_runs_never_stood_still():
    async def scenario(loop, pulse, told):
        for _ in range(1000):
            await asyncio.sleep(0.017)
            assert not pulse.stood_still()
        assert told == []

    run(scenario)


def test_who_stood_still_knows_it_before_the_next_beat():
    async def scenario(loop, pulse, told):
        await asyncio.sleep(1)
        stand_still(loop, STILL_S_MAX + 0.01)
        assert pulse.stood_still()
        assert told == []

    run(scenario)


def test_the_next_beat_tells_once_and_all_is_well_again():
    async def scenario(loop, pulse, told):
        await asyncio.sleep(1)
        stand_still(loop, 10)
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        assert told == [11.0]
        await asyncio.sleep(5)
        assert told == [11.0]
        assert not pulse.stood_still()

    run(scenario)


def test_a_short_pause_is_no_standstill():
    async def scenario(loop, pulse, told):
        await asyncio.sleep(1)
        stand_still(loop, STILL_S_MAX / 4)
        assert not pulse.stood_still()
        await asyncio.sleep(1)
        assert told == []

    run(scenario)


def test_a_stopped_pulse_beats_no_more():
    async def scenario(loop, pulse, told):
        pulse.stop()
        stand_still(loop, 10)
        await asyncio.sleep(1)
        assert told == []

    run(scenario)

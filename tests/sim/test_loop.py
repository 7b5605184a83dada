"""Goal: virtual time is asyncio's own loop, and a seed draws the order of tasks that are ready.

Method: small programs on it; one of them has a mistake that shows in some orders only.
"""

import asyncio
import threading
from random import Random

import pytest

from tests.sim.loop import simulate


async def turns():
    """Which of four tasks went on, in order, three times each."""
    seen = []

    async def work(number):
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(number)

    await asyncio.gather(*(work(number) for number in range(4)))
    return seen


async def lost_update():
    """Two tasks that read, wait and write; the second starts later, so it seems to be last."""
    stored = {}

    async def write(name):
        await asyncio.sleep(0)
        stored["last"] = name

    first = asyncio.create_task(write("first"))
    second = asyncio.create_task(write("second"))
    await asyncio.gather(first, second)
    return stored["last"]


def test_waiting_costs_no_time_and_moves_the_clock():
    async def main():
        await asyncio.sleep(1e6)
        return asyncio.get_running_loop().time()

    assert simulate(main()) == pytest.approx(1e6)


def test_a_wait_that_nothing_ends_is_a_deadlock():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock"):
        simulate(main())


def test_a_thread_that_touches_the_loop_raises():
    raised = []

    async def main():
        loop = asyncio.get_running_loop()

        def touch():
            try:
                loop.call_soon_threadsafe(print)
            except RuntimeError as error:
                raised.append(str(error))

        thread = threading.Thread(target=touch)
        thread.start()
        thread.join()

    simulate(main())
    assert raised == ["a thread touched the simulated loop"]


def test_without_an_order_tasks_run_in_asyncios():
    assert simulate(turns()) == [*range(4)] * 3


def test_one_seed_gives_one_order_of_tasks():
    orders = [tuple(simulate(turns(), Random(seed))) for seed in range(20)]
    assert orders == [tuple(simulate(turns(), Random(seed))) for seed in range(20)]
    assert len(set(orders)) > 10
    for order in orders:
        assert all(order.count(number) == 3 for number in range(4))


def test_plain_callbacks_keep_their_order_whatever_the_seed():
    async def main():
        seen, loop = [], asyncio.get_running_loop()
        for number in range(8):
            loop.call_soon(seen.append, number)
        await turns()
        return seen

    assert all(simulate(main(), Random(seed)) == [*range(8)] for seed in range(20))


def test_a_mistake_that_needs_another_order_is_found():
    assert simulate(lost_update()) == "second"
    assert {simulate(lost_update(), Random(seed)) for seed in range(20)} == {"first", "second"}

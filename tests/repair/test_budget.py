"""Goal: copies under way stay within their bytes, and their pace within its bound.

Method: takers on virtual time.
"""

import asyncio

from ledger.repair.entry_copier import CopyBudget


async def test_takers_wait_for_room_in_the_order_in_which_they_asked():
    budget, order = CopyBudget(100, 0), []

    async def acquire(name, size):
        await budget.acquire(size)
        order.append(name)

    await acquire("first", 80)
    tasks = [asyncio.create_task(acquire(n, s)) for n, s in (("big", 90), ("small", 10))]
    await asyncio.sleep(1)
    assert order == ["first"]
    budget.release(80)
    await asyncio.sleep(1)
    assert order == ["first", "big", "small"]
    await asyncio.gather(*tasks)


async def test_something_larger_than_the_budget_goes_alone():
    budget = CopyBudget(100, 0)
    await budget.acquire(5000)
    second = asyncio.create_task(budget.acquire(1))
    await asyncio.sleep(1)
    assert not second.done()
    budget.release(5000)
    await second


async def test_one_who_gives_up_waiting_takes_nothing():
    budget = CopyBudget(100, 0)
    await budget.acquire(100)
    waiting = asyncio.create_task(budget.acquire(60))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    budget.release(100)
    await asyncio.wait_for(budget.acquire(100), 1)


async def test_the_pace_is_kept_over_many_takes():
    loop = asyncio.get_running_loop()
    budget = CopyBudget(1000, 10_000)
    began_s = loop.time()
    for _ in range(100):
        await budget.acquire(500)
        budget.release(500)
    assert 4.9 < loop.time() - began_s < 5.1

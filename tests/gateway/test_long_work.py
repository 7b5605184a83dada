"""Goal: searches and checks of records do not keep each other waiting.

Method: searches that never end hold all permits of searches, while a check needs a few turns.
"""

import asyncio

from gateway.topics.long_work import LongWork


def endless():
    while True:
        yield


def short(result):
    for _ in range(10):
        yield
    return result


async def done_in_turns(task):
    for _ in range(100):
        await asyncio.sleep(0)
    return task.done()


async def test_searches_do_not_keep_a_check_waiting_nor_checks_a_search():
    for others, mine in (("search", "check"), ("check", "search")):
        work = LongWork()
        busy = [asyncio.ensure_future(getattr(work, others)(endless())) for _ in range(20)]
        task = asyncio.ensure_future(getattr(work, mine)(short(7)))
        assert await done_in_turns(task)
        assert task.result() == 7
        for each in busy:
            each.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


async def test_one_more_search_than_may_run_waits_for_the_end_of_one():
    work = LongWork()
    busy = [asyncio.ensure_future(work.search(endless())) for _ in range(2)]
    task = asyncio.ensure_future(work.search(short(7)))
    assert not await done_in_turns(task)
    busy[0].cancel()
    assert await done_in_turns(task)
    busy[1].cancel()
    await asyncio.gather(*busy, return_exceptions=True)

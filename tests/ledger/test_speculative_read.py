"""Goal: the first good answer wins, lateness and failure bring the next one in, nothing stays.

Method: Hypothesis draws how long each takes and what it says; a dumb twin plays the rules on a
list of events. All times are distinct, so nothing depends on ties.
"""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.client.speculative_read import SpeculativeRead

LATE_S, LATE_S_MAX = 1.0, 4.0

# (seconds until the answer, the answer); a whole number of 1/64 and each its own remainder.
answers = st.lists(st.tuples(st.integers(0, 1000), st.sampled_from([None, "good"])), max_size=5)


def seconds(index, ticks):
    return ticks / 64 + (index + 1) / 1024


class World:
    """Those who are asked, and what became of them."""

    def __init__(self, script):
        self.script = list(enumerate(script))
        self.asked, self.ended, self.late = [], [], 0

    def next_attempt(self):
        if len(self.asked) == len(self.script):
            return None
        index, (ticks, answer) = self.script[len(self.asked)]
        self.asked.append((index, now_s()))
        return self.answer(index, seconds(index, ticks), answer)

    async def answer(self, index, after_s, answer):
        try:
            await asyncio.sleep(after_s)
        finally:
            self.ended.append(index)
        return None if answer is None else (answer, index)

    def on_late(self):
        self.late += 1

    def speculative_read(self, timeout_s=100.0):
        return SpeculativeRead(
            self.next_attempt,
            late_s=LATE_S,
            late_s_max=LATE_S_MAX,
            timeout_s=timeout_s,
            on_late=self.on_late,
        )


def now_s():
    return asyncio.get_running_loop().time()


def twin(script, timeout_s):
    """(answer, when it is known, when each was asked, how many for lateness)."""
    asked, pending, late = [], [], 0
    at_s, timer_s, wait_s = 0.0, LATE_S, LATE_S

    def ask():
        index = len(asked)
        if index == len(script):
            return False
        ticks, answer = script[index]
        asked.append((index, at_s))
        pending.append((at_s + seconds(index, ticks), index, answer))
        return True

    ask()
    while pending:
        pending.sort()
        at_s = min(pending[0][0], timer_s, timeout_s)
        if at_s == timeout_s:
            return None, at_s, asked, late
        if at_s == timer_s:
            late += ask()
            wait_s = min(2 * wait_s, LATE_S_MAX)
            timer_s += wait_s
            continue
        _, index, answer = pending.pop(0)
        if answer is not None:
            return (answer, index), at_s, asked, late
        ask()
    return None, at_s, asked, late


@pytest.mark.slow
@given(answers, st.integers(1, 1500))
async def test_it_asks_and_answers_as_its_dumb_twin(script, timeout_ticks):
    timeout_s = timeout_ticks / 64 + 1 / 4096
    world = World(script)

    found = await world.speculative_read(timeout_s).run()
    at_s = now_s()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(world.ended) == len(world.asked), "nobody is still being waited for"
    found, at_s, asked, late = found, at_s, world.asked, world.late
    expected = twin(script, timeout_s)
    assert (found, asked, late) == (expected[0], expected[2], expected[3])
    assert at_s == pytest.approx(expected[1])


@given(answers.filter(bool), st.integers(0, 1500))
async def test_a_cancellation_from_outside_passes_at_any_moment(script, ticks):
    world = World(script)
    cancel_s = ticks / 64 + 1 / 4096
    _, end_s, _, _ = twin(script, 100.0)

    running = asyncio.ensure_future(world.speculative_read().run())
    await asyncio.sleep(cancel_s)
    over = running.done()
    running.cancel()
    await asyncio.wait([running])
    await asyncio.sleep(0)
    assert len(world.ended) == len(world.asked)
    assert running.cancelled() == (not over)
    assert over == (end_s < cancel_s)


async def test_a_cancellation_wins_even_when_an_answer_beside_comes_in_the_same_moment():
    world = World([(1000, "good"), (64, "good")])  # the second is asked late and answers

    running = asyncio.ensure_future(world.speculative_read().run())
    asyncio.get_running_loop().call_at(LATE_S + seconds(1, 64), running.cancel)
    await asyncio.wait([running])
    assert running.cancelled()


async def test_the_task_that_asked_is_not_left_cancelled():
    world = World([(1000, "good"), (64, "good")])

    assert await world.speculative_read().run() == ("good", 1)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await asyncio.sleep(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await asyncio.sleep(5)


async def test_a_prompt_answer_needs_no_task():
    world = World([(0, "good"), (0, "good")])

    running = asyncio.ensure_future(world.speculative_read().run())
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 2
    assert await running == ("good", 0)


async def test_stopping_it_ends_the_wait_with_nothing():
    world = World([(1000, "good"), (1000, "good")])

    read = world.speculative_read()
    asyncio.get_running_loop().call_later(3, read.stop)
    assert await read.run() is None
    assert now_s() == 3


async def test_an_error_beside_is_raised():
    async def never():
        await asyncio.sleep(50)

    async def broken():
        raise ZeroDivisionError

    asks = [never(), broken()]
    read = SpeculativeRead(
        lambda: asks.pop(0) if asks else None,
        late_s=1,
        late_s_max=1,
        timeout_s=10,
        on_late=lambda: None,
    )
    with pytest.raises(ZeroDivisionError):
        await read.run()

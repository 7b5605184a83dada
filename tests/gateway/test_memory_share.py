"""Goal: takers of memory are served in their order, within the bound, and never wait for ever.

Method: Hypothesis draws calls of takers, holders and leavers against a list that a model serves;
the awaitable `take` runs on virtual time, and is cancelled at each point.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.memory_share import OFFER_BYTES_MIN, MemoryShare
from gateway.topics.reply_memory import ReplyMemory, ReservedReply
from tests.gateway.wire_peer import turns

BYTES_MAX = 100
STEPS = st.lists(
    st.tuples(st.sampled_from(["try", "line", "give", "leave"]), st.integers(1, 250)), max_size=60
)


@settings(deadline=None)
@given(STEPS)
def test_takers_are_served_in_their_order_and_within_the_bound(steps):
    share = MemoryShare(BYTES_MAX)
    held, line, served, due = [], [], [], []

    def serve_model():
        while line and (not held or sum(held) + line[0][1] <= BYTES_MAX):
            name, count, _ = line.pop(0)
            held.append(count)
            due.append(name)

    for name, (step, count) in enumerate(steps):
        if step == "try":
            fits = not line and (not held or sum(held) + count <= BYTES_MAX)
            assert share.try_take(count) is fits
            if fits:
                held.append(count)
        elif step == "line":
            ticket = share.line_up(count, lambda name=name: served.append(name) or True)
            line.append((name, count, ticket))
            serve_model()
        elif step == "give" and held:
            share.give(held.pop(count % len(held)))
            serve_model()
        elif step == "leave" and line:
            share.leave(line.pop(count % len(line))[2])
            serve_model()
        assert share.used_bytes == sum(held)
        assert served == due
        assert sum(held) <= BYTES_MAX or len(held) == 1
        assert (share.first is None) == (not line)
    while held:
        share.give(held.pop())
        serve_model()
    assert not line
    assert served == due


def test_a_taker_that_no_longer_wants_its_bytes_is_passed_over():
    share = MemoryShare(BYTES_MAX)
    assert share.try_take(100)
    served = []
    share.line_up(100, lambda: False)
    share.line_up(100, lambda: served.append("second") or True)
    share.give(100)
    assert served == ["second"]
    assert share.used_bytes == 100


def test_who_leaves_the_head_of_the_line_lets_the_next_one_in():
    share, served = MemoryShare(10), []
    assert share.try_take(8)
    large = share.line_up(5, lambda: served.append("large") or True)
    share.line_up(2, lambda: served.append("small") or True)
    assert served == []
    share.leave(large)
    assert (served, share.used_bytes, share.first) == (["small"], 10, None)


@settings(deadline=None)
@given(STEPS, st.lists(st.sampled_from("abc"), min_size=1))
def test_addresses_have_their_turns_one_after_another(steps, addresses):
    share = MemoryShare(BYTES_MAX)
    held, lines, served, due = [], {}, [], []

    def serve_model():
        while lines and (not held or sum(held) + next(iter(lines.values()))[0][1] <= BYTES_MAX):
            address = next(iter(lines))
            line = lines.pop(address)
            name, count, _ = line.pop(0)
            if line:
                lines[address] = line
            held.append(count)
            due.append(name)

    for name, (step, count) in enumerate(steps):
        address = addresses[name % len(addresses)]
        if step in ("try", "line"):
            ticket = share.line_up(
                count, lambda name=name: served.append(name) or True, 0.0, address
            )
            lines.setdefault(address, []).append((name, count, ticket))
        elif step == "give" and held:
            share.give(held.pop(count % len(held)))
        elif step == "leave" and lines.get(address):
            line = lines[address]
            share.leave(line.pop(count % len(line))[2])
            if not line:
                del lines[address]
        serve_model()
        assert share.used_bytes == sum(held)
        assert served == due
    assert (share.first is None) == (not lines)
    while held:
        share.give(held.pop())
        serve_model()
        assert served == due
    assert not lines


def test_one_taker_of_each_address_is_served_before_the_next_one_of_any():
    share, served = MemoryShare(BYTES_MAX), []
    assert share.try_take(100)
    for name in ("a1", "a2", "a3", "b1", "c1", "b2"):
        share.line_up(100, lambda name=name: served.append(name) or True, 0.0, name[0])
    for _ in range(6):
        share.give(100)
    assert served == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_the_first_taker_is_the_one_that_has_waited_longest_at_any_address():
    share = MemoryShare(BYTES_MAX)
    assert share.try_take(100)
    for since_s, address in ((1.0, "a"), (2.0, "b"), (3.0, "a")):
        share.line_up(60, lambda: True, since_s, address)
    share.give(100)
    assert share.first.since_s == 2.0
    share.give(60)
    assert share.first.since_s == 3.0


def test_offers_shrink_so_that_a_few_large_reads_do_not_take_everything():
    share = MemoryShare(256 * OFFER_BYTES_MIN)
    taken = []
    while share.try_take(share.offer(50 * OFFER_BYTES_MIN)):
        taken.append(share.used_bytes - sum(taken))
    assert taken[0] == 32 * OFFER_BYTES_MIN
    assert taken[-1] == OFFER_BYTES_MIN
    assert taken == sorted(taken, reverse=True)
    assert len(taken) > 20
    assert share.offer(10) == 10


def test_an_estimate_is_corrected_in_both_directions():
    share = MemoryShare(BYTES_MAX)
    assert share.try_take(60)
    share.correct(60, 130)  # the first batch was larger than the estimate
    assert share.used_bytes == 130
    served = []
    share.line_up(80, lambda: served.append(1) or True)
    share.correct(130, 20)
    assert served == [1]
    assert share.used_bytes == 100


async def test_waiting_reads_are_served_in_their_order():
    memory = ReplyMemory(BYTES_MAX)
    await memory.take(100)
    order = []

    async def read(name, count):
        await memory.take(count)
        order.append(name)

    reads = [asyncio.create_task(read(name, count)) for name, count in (("a", 90), ("b", 5))]
    await turns()
    assert order == []  # b does not overtake a, although it would fit
    memory.give(10)
    await turns()
    assert order == []
    memory.give(90)
    await asyncio.gather(*reads)
    assert order == ["a", "b"]
    assert memory.used_bytes == 95


@pytest.mark.parametrize("given_first", [False, True])
async def test_a_cancelled_read_takes_nothing_and_lets_the_next_one_pass(given_first):
    memory = ReplyMemory(BYTES_MAX)
    await memory.take(100)
    first = asyncio.create_task(memory.take(100))
    second = asyncio.create_task(memory.take(10))
    await turns()
    if given_first:  # the bytes are taken and the read is cancelled in one turn of the loop
        memory.give(100)
        first.cancel()
    else:
        first.cancel()
        memory.give(100)
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert memory.used_bytes == 10


async def test_a_reply_returns_its_reservation_once():
    memory = ReplyMemory(BYTES_MAX)
    await memory.take(30)
    reply = ReservedReply([b"records"], 30, memory)
    reply.release()
    reply.release()
    assert memory.used_bytes == 0
    assert reply == [b"records"]

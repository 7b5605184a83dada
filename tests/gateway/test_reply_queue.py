"""Goal: replies leave in request order, whole, once, and every byte that waits is counted.

Method: the queue alone, without a transport; Hypothesis fills slots in any order and compares with
a list.
"""

import struct

from hypothesis import given
from hypothesis import strategies as st

from gateway.server.reply_queue import JOIN_BYTES_MAX, ReplyQueue, ReplySlot


def queue_of(count, frame_bytes=10):
    queue = ReplyQueue()
    slots = [ReplySlot(frame_bytes) for _ in range(count)]
    for number, slot in enumerate(slots, 1):
        assert queue.add(slot) == number
    return queue, slots


def framed(*bodies):
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def test_a_reply_waits_for_the_ones_before_it():
    queue, (first, second) = queue_of(2)
    out = []
    assert not queue.fill(second, (b"second",))
    assert queue.drain(out) == 0
    assert out == []
    assert queue.fill(first, (b"first",))
    assert queue.drain(out) == 20
    assert b"".join(out) == framed(b"first", b"second")
    assert not queue


def test_a_small_reply_is_one_buffer_and_a_large_one_is_not_copied():
    queue = ReplyQueue()
    small, large = bytes(JOIN_BYTES_MAX), bytes(JOIN_BYTES_MAX + 1)
    out = []
    queue.pack((small,), out)
    queue.pack((large,), out)
    assert len(out) == 3
    assert out[2] is large
    assert queue.sent() == sum(map(len, out)) == 8 + len(small) + len(large)
    assert queue.sent() == 0


def test_a_request_without_a_reply_holds_its_place_and_sends_nothing():
    queue, (first, second) = queue_of(2)
    out = []
    queue.fill(second, (b"second",))
    assert queue.end(first)
    assert queue.drain(out) == 20
    assert b"".join(out) == framed(b"second")


def test_an_error_reply_takes_its_place_in_the_order():
    queue, (first, second) = queue_of(2)
    out = []
    assert not queue.end(second, (b"failed",))
    assert queue.fill(first, (b"first",))
    assert queue.drain(out) == 20
    assert b"".join(out) == framed(b"first", b"failed")
    assert queue.waiting_bytes == 0


def test_a_reply_that_cannot_be_framed_loses_no_memory_and_sends_nothing_after_it():
    queue, slots = queue_of(3)
    queue.fill(slots[2], (b"third",))
    queue.fill(slots[1], ())
    slots[1].reply = [5]  # not a buffer: a defect of a handler
    out = []
    assert queue.fill(slots[0], (b"first",))
    assert queue.drain(out) == 30
    assert b"".join(out) == framed(b"first")
    assert isinstance(queue.failure, TypeError)
    assert not queue


def test_one_large_waiting_reply_is_no_overflow_and_two_are():
    queue, slots = queue_of(3)
    queue.fill(slots[1], (bytes(1000),))
    assert queue.waiting_bytes == 1000
    assert not queue.overflows(500)
    queue.fill(slots[2], (bytes(1000),))
    assert queue.overflows(500)
    queue.relax()
    assert queue.overflows(1999)
    assert not queue.overflows(2000)


def test_after_the_peer_left_replies_are_dropped_and_their_memory_comes_back():
    queue, (first, second) = queue_of(2)
    queue.fill(second, (b"second",))
    out = []
    assert queue.discard() == [first]
    assert queue.fill(first, (b"first",))
    assert queue.drain(out) == 20
    assert out == []
    assert not queue
    assert queue.waiting_bytes == queue.sent() == 0


@given(st.lists(st.binary(max_size=20), max_size=12), st.randoms(use_true_random=False))
def test_in_whatever_order_replies_come_they_leave_as_a_plain_list_would(bodies, random):
    queue, slots = queue_of(len(bodies))
    order = list(range(len(bodies)))
    random.shuffle(order)
    out, filled, freed = [], set(), 0
    for index in order:
        if queue.fill(slots[index], (bodies[index],)):
            freed += queue.drain(out)
        filled.add(index)
        left = next((i for i in range(len(bodies)) if i not in filled), len(bodies))
        assert b"".join(out) == framed(*bodies[:left])
        assert len(queue) == len(bodies) - left
        assert queue.waiting_bytes == sum(len(bodies[i]) for i in filled if i > left)
    assert freed == 10 * len(bodies)
    assert queue.sent() == len(b"".join(out))

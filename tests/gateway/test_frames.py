"""Goal: the frame reader returns exactly the frames that were sent, however their bytes arrive.

Method: Hypothesis draws frames and cuts; a dumb splitter of the joined bytes is the twin. Single
facts about bounds and memory follow.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.frames import BadFrame, FrameReader

SCRATCH_BYTES = 64


def reader(frame_bytes_max=10_000):
    return FrameReader(memoryview(bytearray(SCRATCH_BYTES)), frame_bytes_max)


def framed(frame):
    return len(frame).to_bytes(4, "big") + frame


def feed(frames, data):
    """Return all frames that `data` completes; admit large ones at once."""
    taken = []
    while data:
        buffer = frames.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        frames.received(count)
        while True:
            frame = frames.next()
            if frame is None:
                break
            taken.append(bytes(frame))
        if frames.wanted_bytes:
            frames.admit()
        frames.keep()
    return taken


LONG = bytes(range(251)) * 20
FRAMES = st.lists(
    st.binary(min_size=8, max_size=300) | st.integers(8, len(LONG)).map(lambda size: LONG[:size]),
    max_size=12,
)


@settings(deadline=None)
@given(FRAMES, st.lists(st.integers(1, 200), min_size=1))
def test_frames_come_back_whole_and_in_order_however_they_are_cut(sent, cuts):
    stream = b"".join(map(framed, sent))
    frames = reader()
    taken = []
    turn = 0
    while stream:
        size = cuts[turn % len(cuts)]
        taken += feed(frames, stream[:size])
        stream = stream[size:]
        turn += 1
    assert taken == sent
    assert frames.partial_bytes == 0


@pytest.mark.slow
@settings(deadline=None)
@given(FRAMES, st.data())
def test_two_connections_share_one_scratch(sent, data):
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    first, second = FrameReader(scratch, 10_000), FrameReader(scratch, 10_000)
    stream = b"".join(map(framed, sent))
    taken = {id(first): [], id(second): []}
    left = {id(first): stream, id(second): stream}
    while any(left.values()):
        which = data.draw(st.sampled_from([r for r in (first, second) if left[id(r)]]))
        size = data.draw(st.integers(1, 100))
        taken[id(which)] += feed(which, left[id(which)][:size])
        left[id(which)] = left[id(which)][size:]
    assert taken[id(first)] == taken[id(second)] == sent


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 7, 10_001, 2**31 - 1])
def test_a_size_that_no_request_has_is_refused_before_memory_is_taken(size):
    frames = reader()
    frames.buffer()[:4] = size.to_bytes(4, "big", signed=True)
    frames.received(4)
    with pytest.raises(BadFrame):
        frames.next()
    assert frames.kept_bytes == 0 == frames.buffer_bytes


def test_a_large_frame_waits_until_it_is_admitted():
    frames = reader()
    head = framed(b"x" * 500)[:SCRATCH_BYTES]
    for first, last in ((0, 20), (20, SCRATCH_BYTES)):
        assert frames.wanted_bytes == 0
        frames.buffer()[: last - first] = head[first:last]
        frames.received(last - first)
        assert frames.next() is None
        frames.keep()
    assert frames.wanted_bytes == 500
    assert frames.kept_bytes == SCRATCH_BYTES
    frames.resume()
    assert frames.next() is None
    frames.admit()
    frames.keep()
    assert frames.buffer_bytes == 500
    assert len(frames.buffer()) == 504 - SCRATCH_BYTES


def test_a_large_frame_is_received_in_place_and_given_read_only():
    frames = reader()
    taken = []
    stream = framed(b"y" * 500)
    while stream:
        buffer = frames.buffer()
        count = min(len(buffer), len(stream))
        buffer[:count] = stream[:count]
        stream = stream[count:]
        frames.received(count)
        frame = frames.next()
        if frame is not None:
            taken.append(frame)
        elif frames.wanted_bytes:
            frames.admit()
        frames.keep()
    assert [frame.readonly for frame in taken] == [True]
    assert taken[0] == b"y" * 500


def test_the_buffer_of_a_large_frame_doubles_and_each_time_it_waits_to_be_admitted():
    frames = reader()
    stream = memoryview(framed(LONG))
    sizes = []
    taken = None
    while taken is None:
        buffer = frames.buffer()
        count = min(len(buffer), len(stream))
        buffer[:count] = stream[:count]
        stream = stream[count:]
        frames.received(count)
        taken = frames.next()
        if frames.wanted_bytes:
            arrived = len(LONG) + 4 - len(stream)
            frames.keep()
            assert frames.buffer_bytes <= arrived
            frames.resume()
            assert frames.next() is None
            frames.admit()
            frames.keep()
            sizes.append(frames.buffer_bytes)
    assert sizes == [512, 1024, 2048, 4096, len(LONG)]
    assert taken == LONG


def test_frames_that_were_not_taken_are_there_later():
    frames = reader()
    stream = framed(b"a" * 8) + framed(b"b" * 8) + framed(b"c" * 8)[:5]
    frames.buffer()[: len(stream)] = stream
    frames.received(len(stream))
    assert frames.next() == b"a" * 8
    frames.keep()
    frames.resume()
    assert frames.next() == b"b" * 8
    assert frames.next() is None
    frames.keep()
    assert frames.partial_bytes == 5

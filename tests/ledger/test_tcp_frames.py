"""Goal: messages come out of frames as they went in, wherever the bytes were cut, and long ones are
neither copied when sent nor believed before they are checked. Method: the framing core alone.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ids import BookieId
from ledger.ports.bookies import Status
from ledger.wire.bookie_frames import BadBookieFrame, FrameKind
from ledger.wire.tcp_frames import (
    FRAME_BYTES_MAX,
    JOIN_BYTES,
    PING_FRAME,
    STAGING_BYTES,
    FrameReader,
    Welcome,
    decode_tcp_welcome,
    encode_tcp_welcome,
    frames,
    hello_frame,
    short_frame,
)

HELLO = hello_frame(BookieId("b-00000000"))
PING = PING_FRAME[4:]
MESSAGE_BYTES_MAX = 3 * FRAME_BYTES_MAX


class Receiver:
    """A reader, and what it delivered."""

    def __init__(self):
        self.messages, self.allocated = [], []
        self.reader = FrameReader(
            bytearray(STAGING_BYTES),
            self._allocate,
            lambda kind, size: None,
            self.messages.append,
            MESSAGE_BYTES_MAX,
        )

    def _allocate(self, size):
        self.allocated.append(size)
        return bytearray(size)

    def receive(self, data, cuts=()):
        """Receive in steps of these sizes, then in one step, as far as the buffer takes them."""
        cuts = list(cuts)
        at = 0
        while at < len(data):
            buffer = self.reader.buffer()
            size = min(cuts.pop() if cuts else len(data), len(buffer), len(data) - at)
            buffer[:size] = data[at : at + size]
            self.reader.received(size)
            at += size


def wire_of(parts):
    """The frames of a message, with a PING between two of them."""
    return [b"".join(piece) for piece in frames([bytes((1, FrameKind.ADDS)), *parts])]


sizes = st.one_of(st.integers(0, 100), st.sampled_from([JOIN_BYTES, 60_000, FRAME_BYTES_MAX]))
bodies = st.lists(sizes, max_size=3).filter(lambda each: sum(each) < MESSAGE_BYTES_MAX - 2)
cut_sizes = st.lists(st.sampled_from([1, 3, 4, 6, 100, 8_000, 70_000]), max_size=60)


@given(st.lists(bodies, max_size=3), cut_sizes, st.booleans())
def test_messages_come_back_wherever_their_bytes_are_cut(messages, cuts, between):
    receiver = Receiver()
    wire, expected = [HELLO], []
    for number, each in enumerate(messages):
        parts = [bytes((number,)) * size for size in each]
        pieces = wire_of(parts)
        for piece in pieces:
            assert len(piece) - 4 == int.from_bytes(piece[:4], "big") <= FRAME_BYTES_MAX
            wire += [piece, PING_FRAME] if between else [piece]
        expected.append(bytes((1, FrameKind.ADDS)) + b"".join(parts))
    receiver.receive(b"".join(wire), cuts)
    found = [bytes(each) for each in receiver.messages]
    assert [each for each in found[1:] if each != PING] == expected
    assert found.count(PING) == (len(wire) - 1) // 2 * between
    assert (receiver.reader.unfinished, receiver.reader.midway) == (0, False)


def test_long_parts_of_a_message_are_sent_as_they_are():
    head, long, short = b"h" * 10, bytes(JOIN_BYTES), b"s" * 10
    found = short_frame([head, long, short, short], 30 + JOIN_BYTES)
    assert found[1] is long
    assert found[2] == short + short
    pieces = [piece for frame in frames([bytes(FRAME_BYTES_MAX)] * 2) for piece in frame]
    assert all(type(piece) is memoryview for piece in pieces if len(piece) > 100)


def test_a_long_message_is_one_buffer_of_its_size():
    receiver = Receiver()
    receiver.receive(HELLO + b"".join(wire_of([bytes(FRAME_BYTES_MAX), bytes(5000)])))
    assert receiver.allocated == [FRAME_BYTES_MAX + 5002]
    assert receiver.messages[-1].obj is not receiver.reader._staging.obj
    assert receiver.messages[-1].readonly


@pytest.mark.parametrize("total", [FRAME_BYTES_MAX, MESSAGE_BYTES_MAX + 1, 2**32 - 1])
def test_no_memory_is_taken_for_a_length_that_is_not_allowed(total):
    receiver = Receiver()
    receiver.receive(HELLO)
    content = total.to_bytes(4, "big") + bytes((1, FrameKind.ADDS)) + bytes(100)
    with pytest.raises(BadBookieFrame):
        receiver.receive(
            (len(content) + 2).to_bytes(4, "big") + bytes((1, FrameKind.PIECES_BEGIN)) + content
        )
    assert receiver.allocated == []


def test_what_comes_after_the_end_is_not_delivered():
    receiver = Receiver()
    receiver.receive(HELLO)
    receiver.reader.stop()
    receiver.receive(PING_FRAME * 3)
    assert receiver.messages == [HELLO[4:]]


def test_a_later_release_may_say_more_in_its_welcome():
    welcome = Welcome(Status.OK, 1 << 20, 5, 1 << 40)
    assert decode_tcp_welcome(encode_tcp_welcome(welcome) + b"more") == welcome

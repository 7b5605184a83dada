"""Goal: memory that a request returns is used by those that wait, and by no more of them.

Method: as in test_request_memory; or a `RequestMemory` alone, with senders that stand still.
"""

from __future__ import annotations

from gateway.server.request_memory import LargeFrame, RequestMemory, WaitingFrame
from tests.gateway.wire_peer import connect, hub_for, turns
from tests.hostile.test_frames import HEARTBEAT, fetch
from tests.hostile.test_request_memory import MIB, large_request


async def test_a_large_request_that_was_answered_at_once_lets_the_next_one_begin_at_once():
    limits = {"frame_bytes_max": 8 * MIB, "memory_bytes_max": 16 * MIB}
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]), **limits)
    whole = large_request(6 * MIB)
    first, second = connect(hub, host="10.6.6.6"), connect(hub, host="10.7.7.7")
    first.send(whole[:-1])
    second.send(whole)
    assert second.frames() == []
    first.send(whole[-1:])
    await turns(20)  # the virtual time stands still, so no check once a second runs
    assert len(second.frames()) == 1


class Still:
    """A sender that stands still in a frame of the largest size."""

    held = False
    silent_s = 60.0

    def __init__(self, memory, host):
        self.frame = LargeFrame(host, 4 * MIB, self)
        self.ended = False
        memory.grow(self.frame, 2 * MIB)

    def end_early(self, reason):
        self.ended = True


def test_each_byte_of_a_closed_sender_is_promised_to_one_connection_only():
    memory = RequestMemory(16 * MIB, 4 * MIB)
    still = [Still(memory, f"10.6.6.{number}") for number in range(6)]
    for number in range(3):  # each needs a part of what one sender holds
        host = f"10.7.7.{number}"
        frame = LargeFrame(host, 2 * MIB, still[0])
        memory.wait(WaitingFrame(lambda: None, host, frame, MIB * 3 // 2, 0.0))
    closed = [each for each in still if each.ended]
    assert len(closed) == 3
    for each in closed:
        memory.end(each.frame)
    memory.take("10.5.5.5", 6 * MIB)
    memory.relieve()
    assert all(each.ended for each in still), "what was returned is promised to nobody any more"

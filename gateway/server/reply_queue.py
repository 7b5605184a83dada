"""The replies of one connection: slots in request order, and the bytes that may be sent now.

A Kafka client expects replies in the order of its requests, although handlers finish in any order.
The queue does not depend on a transport, loop or handler: a connection adds slots, fills them, and
takes the bytes that are ready. Source: Kafka's `SocketServer` keeps the same order by muting a
connection during a request; here several requests of one connection run at once.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Final

from gateway.handlers.request_metrics import note_left
from ledger.ids import Buffer

if TYPE_CHECKING:
    from gateway.handlers.slow_requests import SlowRequest

JOIN_BYTES_MAX: Final = 4096
"""A reply of at most this many bytes leaves as one buffer, with its size in front."""

_SIZE = struct.Struct(">i")

ReplyParts = list[Buffer] | tuple[Buffer, ...]
"""The buffers of one reply without its frame size. Empty if the request gets no reply."""


class ReplySlot:
    """The place of one reply in the order."""

    __slots__ = ("frame_bytes", "is_last", "ready", "reply", "waiting_bytes")

    def __init__(self, frame_bytes: int) -> None:
        # Memory that the request occupies until its reply has left the queue. 0 if no memory is
        # counted.
        self.frame_bytes = frame_bytes
        # True after `fill` or `end`, or after the connection was lost before the handler ran. Ready
        # slots leave the queue only from the front.
        self.ready = False
        # Set by `fill` or `end`. Empty for a request that gets no reply.
        self.reply: ReplyParts = ()
        # True if the connection ends in place of this reply, so that no later reply is sent.
        self.is_last = False
        # Bytes of a reply that is ready behind an unanswered request; 0 at the front.
        self.waiting_bytes = 0


class ReplyQueue:
    """Slots of one connection, oldest request first, and the replies that are ready to send."""

    __slots__ = (
        "_largest_waiting",
        "_leaving",
        "_slots",
        "discarding",
        "failure",
        "finished",
        "ready_bytes",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        # Slots whose reply has not left the queue, in request order. The connection bounds their
        # number.
        self._slots: deque[ReplySlot] = deque()
        # Total bytes of the replies from `fill` that wait for an earlier reply. Error replies from
        # `end` are small and not counted.
        self.waiting_bytes = 0
        # Slow requests, noted once their slots have left the queue.
        self._leaving: list[tuple[ReplySlot, SlowRequest]] = []
        # Bytes of the largest waiting reply since the last `relax`. `overflows` does not count it,
        # because a client may expect one large reply.
        self._largest_waiting = 0
        # Bytes that `pack` and `drain` appended to the caller's list since the last `sent`.
        self.ready_bytes = 0
        # Set once, by `discard` or after a failure. Replies are then dropped, but slots still leave
        # in order.
        self.discarding = False
        # Set once, by `drain`, when the last reply before the end of the connection has left.
        self.finished = False
        # The error of a reply that could not be framed, which is a defect of its handler. Set at
        # most once, by `drain`. It holds this queue, so the connection takes it out.
        self.failure: Exception | None = None

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, slot: ReplySlot) -> int:
        """Append the slot of the newest request. Returns how many requests are unanswered."""
        self._slots.append(slot)
        return len(self._slots)

    def fill(self, slot: ReplySlot, reply: ReplyParts) -> bool:
        """Store the reply. Returns True if the caller must call `drain`, because this reply is the
        next.
        """
        slot.reply = reply
        slot.ready = True
        if slot is self._slots[0]:
            return True
        slot.waiting_bytes = size = sum(map(len, reply))
        self.waiting_bytes += size
        if size > self._largest_waiting:
            self._largest_waiting = size
        return False

    def end(self, slot: ReplySlot, reply: ReplyParts = ()) -> bool:
        """End a request whose handler failed, with an error reply or without a reply.

        Returns True if `drain` has work now.
        """
        slot.reply = reply
        slot.ready = True
        return bool(self._slots) and slot is self._slots[0]

    def pack(self, reply: ReplyParts, out: list[Buffer]) -> None:
        """Append one framed reply to `out`. Only while no slot is queued, or from `drain`."""
        if len(reply) == 1 and len(reply[0]) <= JOIN_BYTES_MAX:
            body = reply[0]
            out.append(_SIZE.pack(len(body)) + body)
            self.ready_bytes += 4 + len(body)
        elif reply:
            size = sum(map(len, reply))
            out.append(_SIZE.pack(size))
            out += reply
            self.ready_bytes += 4 + size

    def drain(self, out: list[Buffer]) -> int:
        """Append the replies at the front that are ready to `out`.

        Returns the request bytes that the slots of these replies had occupied. A reply that cannot
        be framed is dropped, as is every later reply. `failure` then holds the error, and the
        connection must end.
        """
        slots = self._slots
        freed = 0
        while slots and slots[0].ready:
            slot = slots.popleft()
            freed += slot.frame_bytes
            self.waiting_bytes -= slot.waiting_bytes
            if slot.is_last:
                self.finished = self.discarding = True
            if not self.discarding:
                try:
                    self.pack(slot.reply, out)
                except (TypeError, struct.error) as error:
                    self.failure = error
                    self.discarding = True
        if self._leaving:
            self._call_left()
        return freed

    def note_left(self, slot: ReplySlot, slow: SlowRequest) -> None:
        """Note when this queued slot, of a slow request, has left."""
        self._leaving.append((slot, slow))

    def _call_left(self) -> None:
        waiting, self._leaving = self._leaving, []
        for slot, slow in waiting:
            if slot in self._slots:
                self._leaving.append((slot, slow))
            else:
                note_left(slow)

    def sent(self) -> int:
        """Return the bytes appended since the last call, and start counting again."""
        size, self.ready_bytes = self.ready_bytes, 0
        return size

    def relax(self) -> None:
        """Forget the largest waiting reply, once few enough requests are unanswered."""
        self._largest_waiting = 0

    def overflows(self, bytes_max: int) -> bool:
        """True if the waiting replies, without the largest of them, exceed `bytes_max`."""
        return self.waiting_bytes - self._largest_waiting > bytes_max

    def discard(self) -> list[ReplySlot]:
        """Drop all replies from now on. Returns the slots that are still unanswered."""
        self.discarding = True
        self.ready_bytes = 0
        for slot in self._slots:
            slot.reply = ()
        return [slot for slot in self._slots if not slot.ready]

"""One client connection: frames in, replies out in request order, with every wait bounded.

The connection stops reading, which stops the peer from sending, while too many requests are
unanswered, while the peer does not read its replies, or while the memory for requests is used up;
`holds` names the reasons. Replies that become ready in one turn of the loop leave with one write.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from gateway.config import PLAINTEXT
from gateway.handlers.api import ConnectionEnds, Peer, Request
from gateway.server.dispatch import PRODUCE, RequestRefused
from gateway.server.holds import CLOSING, IN_FLIGHT, LINE, MEMORY, THROTTLED, TURN, WRITING
from gateway.server.peer import peer_of, protocol_hint
from gateway.server.receiving import FREE_BYTES_MAX, ReceivedBytes, held_bytes
from gateway.server.registry import ConnectionRegistry, Refused
from gateway.server.reply_queue import ReplyParts, ReplyQueue
from gateway.server.request_chain import FETCH, HOT_KEYS, RequestChain, RequestSlot
from gateway.server.request_memory import SMALL_FRAME_BYTES
from gateway.server.send_queue import WRITE_HIGH_BYTES, SendQueue
from gateway.server.timeouts import IDLE, PRESSED_S_MAX, ConnectionTimeouts
from gateway.topics.connection_fetches import ConnectionFetches
from gateway.topics.reply_memory import UNCOUNTED_BYTES, ReservedReply
from gateway.wire.frames import BadFrame, FrameReader
from ledger.ids import Buffer
from ledger.ports.clock import measured_s

FRAMES_PER_TURN_MAX = 64
"""After this many frames in one turn of the loop, other connections have their turn."""


class Connection(asyncio.BufferedProtocol):
    """One client connection.

    The object exists from accept until the last request has finished, even if the peer left before.
    """

    __slots__ = (
        "_chain",
        "_ended",
        "_flush_due",
        "_held",
        "_memory",
        "_out",
        "_peer",
        "_reader",
        "_received",
        "_registry",
        "_replies",
        "_sending",
        "_timeouts",
        "_transport",
        "frames",
        "largest_write",
        "listener",
        "lost",
        "received_bytes",
        "reply_bytes",
        "written_bytes",
    )

    def __init__(self, registry: ConnectionRegistry, listener: str = PLAINTEXT) -> None:
        self._registry = registry
        self._ended = registry.dispatcher.metrics.ended
        self.listener = listener  # its name; it accepts the connection
        # Collects received bytes until they are taken as frames.
        self._reader = FrameReader(registry.scratch, registry.limits.frame_bytes_max)
        # Set from connection_made until connection_lost, None otherwise.
        self._transport: asyncio.Transport | None = None
        self._peer: Peer | None = None  # set once, by connection_made
        # The memory of requests that this connection uses. A login replaces it, once.
        self._memory = registry.memory
        # The part of it in incomplete and waiting frames. Replaced by connection_made and a login.
        self._received = ReceivedBytes(self._memory, "", self)
        # The reasons of `holds` that apply now. The transport reads only while this value is 0.
        self._held = 0
        # Unanswered requests in request order, each with the place of its reply.
        self._replies = ReplyQueue()
        # Runs cold requests one after another, which keeps their order.
        self._chain = RequestChain(registry.dispatcher)
        # Framed replies that leave with the next write. `_flush_due` is True while a callback
        # of the loop will write them.
        self._out: list[Buffer] = []
        self._flush_due = False
        # Framed replies that the transport has not received, because the peer reads slowly.
        self._sending = SendQueue()
        # Bytes of replies that are ready and not sent, as counted in the memory of replies. Updated
        # when a large reply moves on, and otherwise about once a second.
        self.reply_bytes = 0
        self._timeouts = ConnectionTimeouts()
        # Counters that only grow. `ConnectionTimeouts` compares them about once a second.
        self.frames: int = 0
        self.received_bytes = 0
        self.written_bytes = 0
        # The largest single write so far. It is subtracted from the unsent bytes, because one large
        # reply is no sign of a peer that does not read.
        self.largest_write = 0
        # True once the peer is gone. Replies are then dropped, and the last reply removes the
        # connection.
        self.lost = False

    # --- what the transport calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of Transport, but do not inherit from this class.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._peer = peer_of(transport, self.listener)
        self._peer.fetches = ConnectionFetches()
        self._received = ReceivedBytes(self._memory, self._peer.host, self)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._timeouts.opened_s = self._registry.loop.time()
        if not self._registry.admit(self, self._peer.host):
            self.lost = True
            self._held |= CLOSING
            self._registry.close_refused(transport)

    def secured(self, certificate: bytes | None) -> None:
        """Wait for the first request from now on: the TLS handshake is complete.

        `certificate` is that of the client in DER. Nothing depends on it here.
        """
        self._timeouts.opened_s = self._registry.loop.time()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.window(self._reader)

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.received(nbytes)
        self.received_bytes += nbytes
        self._take_frames()

    def eof_received(self) -> bool:
        """Close the connection: a Kafka client that sends no more reads no more either."""
        return False

    def pause_writing(self) -> None:
        self._hold(WRITING)
        self._count_replies()

    def resume_writing(self) -> None:
        """Hand the next chunk to the transport. Read requests again once everything is sent."""
        transport = self._transport
        if transport is None or self._abort_if_stalled():
            return
        self._sending.feed(transport)
        self._count_replies()
        if transport.get_write_buffer_size():
            return
        self._release(WRITING)
        if self._held & CLOSING and (self._replies.finished or not self._replies):
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel Fetches and searches; other requests run on, and their replies are dropped."""
        was_admitted, self.lost = not self.lost, True
        self._transport = None
        self._held |= CLOSING
        self._received.end()
        if not was_admitted:
            return
        self._out.clear()
        self._sending.clear()
        if self._registry.throttles is not None:
            self._registry.throttles.forget(self)
        self._count_replies()
        self._chain.drop()
        for slot in self._replies.discard():
            cast(RequestSlot, slot).on_client_gone()
        if self._peer is not None and self._peer.fetches is not None:
            self._peer.fetches.close()
            self._peer.fetches = None
        self._drain()

    # --- frames in ------------------------------------------------------------------------------

    def _take_frames(self) -> None:
        """Start the handlers of all whole frames that may be taken now."""
        reader = self._reader
        try:
            self._take_turn(reader)
        except BadFrame as bad:
            self.refuse(protocol_hint(bad), Refused.NOT_KAFKA)
        except RequestRefused as refused:
            self.refuse(str(refused), Refused.REQUEST)
        except Exception as error:  # noqa: BLE001 - last resort: a bug of ours ends no process
            self._registry.report("connection failed", self._peer, error)
            self.abort("our fault")
        reader.keep()
        self._received.count_kept(reader.kept_bytes, self.frames)
        if self._held & MEMORY:
            why = self._received.wait(self.on_memory, reader, self._registry.loop.time())
            if why is not None:
                self._registry.warn("requests wait", self._peer, why)
        if self._out:
            self._flush()

    def _take_turn(self, reader: FrameReader) -> None:
        """Accept up to FRAMES_PER_TURN_MAX frames. Raises BadFrame, RequestRefused."""
        turn_ends = self.frames + FRAMES_PER_TURN_MAX
        memory, host = self._memory, self._received.host
        much = reader.pending_bytes > FREE_BYTES_MAX
        begun_s = 0.0  # when the frames of this turn were there; read once, with the first one
        if (much and memory.full(host)) or (reader.large_is_whole and memory.crowded(host)):
            self._hold(MEMORY)
        while not self._held:
            if self.frames == turn_ends:
                self._hold(TURN)
                self._registry.loop.call_soon(self._end_turn)
                return
            frame = reader.next()
            if frame is None:
                self._admit(reader)
                return
            self.frames += 1
            begun_s = begun_s or measured_s()
            if self._received.large_frame is None:
                self._accept(frame, begun_s)
            else:
                self._accept_large(frame, begun_s)

    def _admit(self, reader: FrameReader) -> None:
        """Give a large frame the buffer that it needs, or stop reading. Raises RequestRefused."""
        if not reader.wanted_bytes:
            return
        if self._received.may_admit(reader):
            reader.admit()
        else:
            self._hold(MEMORY)

    def _accept_large(self, frame: bytes | memoryview, begun_s: float) -> None:
        """Accept a frame with a buffer of its own. Its bytes count once: as a request from now on.

        Raises RequestRefused.
        """
        self._received.end_large_frame()
        try:
            self._accept(frame, begun_s)
        finally:
            self._memory.notify()

    def _accept(self, frame: bytes | memoryview, begun_s: float) -> None:
        """Start the handler of one request, or queue the request. Raises RequestRefused."""
        dispatcher = self._registry.dispatcher
        assert self._peer is not None
        request, handle = dispatcher.open(frame, self._peer, begun_s)
        if self._registry.throttles is not None and request.key == PRODUCE:
            self._registry.throttles.accepted(self, request, len(frame))
        if self._chain.running and request.key not in HOT_KEYS:
            self._chain.add(self._slot(request, held_bytes(request, frame)), handle)
            self._bound_line()
            return
        try:
            result = dispatcher.start(request, handle)
        except ConnectionEnds as ends:
            self.fail(self._slot(request, 0), ends)
            return
        except Exception as error:  # noqa: BLE001 - last resort: a bug of ours ends no process
            self._add_ready(request, dispatcher.error_reply(request, error))
            return
        if isinstance(result, asyncio.Future):
            request.accepted_s = measured_s()
            produces = request.key == PRODUCE
            slot = self._slot(request, len(frame) if produces else held_bytes(request, frame))
            slot.follow(cast("asyncio.Future[Any]", result))
            if request.key == FETCH:
                self._bound_line()
        elif asyncio.iscoroutine(result):
            self._chain.add(self._slot(request, held_bytes(request, frame)), handle, result)
        else:
            if self._registry.throttles is not None:
                result = self._registry.throttles.answered(self, request, result)
            self._add_result(request, result)

    def _add_result(self, request: Request, result: Any) -> None:
        dispatcher = self._registry.dispatcher
        try:
            reply = dispatcher.encode(request, result)
        except Exception as error:  # noqa: BLE001 - last resort: a bug of ours ends no process
            reply = dispatcher.error_reply(request, error)
        self._add_ready(request, reply)

    def _add_ready(self, request: Request, reply: ReplyParts) -> None:
        slow = self._ended(request, reply)
        if not self._replies:
            self._replies.pack(reply, self._out)
            return
        slot = self._slot(request, 0)
        self._replies.fill(slot, reply)
        if slow is not None:
            self._replies.note_left(slot, slow)
        self._bound_waiting()

    def _slot(self, request: Request, frame_bytes: int) -> RequestSlot:
        slot = RequestSlot(self, request, frame_bytes)
        unanswered = self._replies.add(slot)
        registry = self._registry
        if self._memory.take(self._received.host, frame_bytes):
            self._hold(MEMORY)
        if unanswered >= registry.limits.requests_in_flight_max:
            self._hold(IN_FLIGHT)
        return slot

    # --- replies out ----------------------------------------------------------------------------

    def finish(self, slot: RequestSlot, result: Any) -> None:
        """Queue the reply that the handler of `slot` returned."""
        reply: ReplyParts = ()
        if self._registry.throttles is not None:
            result = self._registry.throttles.answered(self, slot.request, result)
        if result.__class__ is list:  # hot paths encode their replies themselves
            reply = () if self.lost else result
        elif not self.lost:
            try:
                reply = self._registry.dispatcher.encode(slot.request, result)
            except Exception as error:  # noqa: BLE001 - last resort: a bug of ours ends no process
                self.fail(slot, error)
                return
        slow = self._ended(slot.request, reply)
        if slow is not None:
            self._replies.note_left(slot, slow)
        if self._replies.fill(slot, reply):
            self._drain()
        else:
            self._bound_waiting()
        if result.__class__ is ReservedReply:
            self._count_replies()
            result.release()

    def _bound_waiting(self) -> None:
        """Stop reading, or close, if too many bytes wait beside the largest waiting reply."""
        replies, bytes_max = self._replies, self._registry.limits.write_buffer_bytes_max
        if replies.waiting_bytes > UNCOUNTED_BYTES:
            self._count_replies()
        if replies.waiting_bytes > bytes_max:
            self._hold(IN_FLIGHT)
            if replies.overflows(bytes_max):
                self.abort("asks for more than it waits for")

    def fail(self, slot: RequestSlot, error: BaseException) -> None:
        """Queue an error reply for the failed handler of `slot`, or end the connection."""
        reply: ReplyParts = ()
        try:
            if isinstance(error, RequestRefused):  # raised here, it would be a cycle with this call
                self.abort(str(error))
            elif isinstance(error, ConnectionEnds):
                self._registry.warn("connection closed", self._peer, str(error))
                self._hold(CLOSING)
                slot.is_last = True
            else:
                reply = self._registry.dispatcher.error_reply(slot.request, error)
                self._ended(slot.request, reply)
        except RequestRefused as refused:
            self.abort(str(refused))
        if self._replies.end(slot, reply):
            self._drain()

    def _drain(self) -> None:
        """Pass on the ready replies at the front, and read on if few requests are unanswered."""
        replies = self._replies
        freed = replies.drain(self._out)
        if freed:
            self._memory.give(self._received.host, freed)
        if replies.failure is not None:
            if not self.lost:
                self._registry.report("a reply cannot be framed", self._peer, replies.failure)
                self.abort("our fault")
            replies.failure = None  # it holds the frame of this call
        if self.lost:
            if not replies:
                self._registry.remove(self)
            return
        if self._out and not self._flush_due:
            self._flush_due = True
            self._registry.loop.call_soon(self._flush_now)
        if self._held & IN_FLIGHT:
            self._release_in_flight()
        if self._held & LINE and not self._line_is_long:
            self._release(LINE)
        if self._held & CLOSING and (replies.finished or not replies):
            self._close()

    @property
    def _line_is_long(self) -> bool:
        """True if many requests wait for an earlier one of this connection.

        Kafka reads the next request of a connection when the last one is answered. A Fetch or a
        JoinGroup may wait for long, and the requests behind it occupy memory all this time.
        """
        fetches = None if self._peer is None else self._peer.fetches
        return (fetches is not None and fetches.many_wait) or self._chain.much_waits

    def _bound_line(self) -> None:
        """Stop reading while many requests wait for an earlier one of this connection."""
        if self._line_is_long:
            self._hold(LINE)

    def _release_in_flight(self) -> None:
        """Read requests again once half of the allowed number is unanswered."""
        limits, replies = self._registry.limits, self._replies
        few = 2 * len(replies) <= limits.requests_in_flight_max
        if few and replies.waiting_bytes <= limits.write_buffer_bytes_max:
            replies.relax()
            self._release(IN_FLIGHT)

    def _flush_now(self) -> None:
        self._flush_due = False
        if self._out:
            self._flush()

    def _flush(self) -> None:
        """Write all ready replies; end the connection of a peer that does not read."""
        transport, out, size = self._transport, self._out, self._replies.sent()
        self._out = []
        if transport is None or transport.is_closing():
            return
        if self._abort_if_stalled():
            return
        if self._held & WRITING:
            backlog = self._sending.unsent_bytes(transport) + size - self.largest_write
            if backlog > self._registry.limits.write_buffer_bytes_max:
                self.abort("reads no replies")
                return
        elif size > self.largest_write:
            self.largest_write = size
        self.written_bytes += size
        self._sending.write(transport, out, size)
        if self.reply_bytes or size > UNCOUNTED_BYTES:
            self._count_replies()

    def _abort_if_stalled(self) -> bool:
        """End the connection if this process stood still. Returns True if it did."""
        stall_detector = self._registry.stall_detector
        if stall_detector is None or not stall_detector.stalled():
            return False
        self.abort("this process stood still")
        return True

    def _count_replies(self) -> None:
        """Count the bytes of replies that are ready and not sent."""
        held_bytes = 0
        if self._transport is not None:
            replies = self._replies
            held_bytes = replies.waiting_bytes + replies.ready_bytes
            held_bytes += self._sending.held_bytes(self._transport)
        counted, self.reply_bytes = self.reply_bytes, held_bytes
        self._registry.replies.correct(counted, held_bytes)

    # --- stopping and going on ------------------------------------------------------------------

    def _hold(self, reason: int) -> None:
        transport = self._transport
        if not self._held and transport is not None and not transport.is_closing():
            transport.pause_reading()
        self._held |= reason

    def _release(self, reason: int) -> None:
        """Read again in the loop's next turn, unless another reason to stop remains."""
        self._held &= ~reason
        if not self._held:
            self._registry.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Take the frames that were already received, then read on."""
        if self._held or self._transport is None:
            return
        self._reader.resume()
        self._take_frames()
        if not self._held and not self._transport.is_closing():
            self._transport.resume_reading()

    def _end_turn(self) -> None:
        self._held &= ~TURN
        self._resume()

    def set_throttled(self, *, throttled: bool) -> None:
        """Read nothing while the client has used up a quota."""
        (self._hold if throttled else self._release)(THROTTLED)

    def on_memory(self) -> None:
        """Read requests again after memory for requests was returned."""
        self._release(MEMORY)

    # --- ending ---------------------------------------------------------------------------------

    def close_when_answered(self) -> None:
        """Read nothing more, and close once every request is answered."""
        self._hold(CLOSING)
        if not self._replies:
            self._close()

    def abort_if_unanswered(self) -> None:
        """End the connection if a reply is missing or unsent, because it may be outdated."""
        if self._replies or self._out or self._sending.queued_bytes:
            self._out = []
            self._replies.sent()
            self.abort("this process stood still")

    def abort(self, reason: str) -> None:
        """End the connection now. Unsent replies are lost."""
        self._held |= CLOSING
        if self._transport is not None:
            if not self._transport.is_closing():
                self._registry.warn("connection closed", self._peer, reason)
            self._transport.abort()

    def end_early(self, reason: str) -> None:
        """End the connection now, and count it among those that were refused."""
        self._registry.refusals[Refused.TIMEOUT] += 1
        self.abort(reason)

    def refuse(self, reason: str, kind: Refused) -> None:
        """Log bytes that no Kafka client sends, and close. Earlier requests are still answered."""
        self._registry.refusals[kind] += 1
        self._registry.warn("connection refused", self._peer, reason)
        self.close_when_answered()

    def _close(self) -> None:
        """Close the connection once the transport has received all replies."""
        if self._transport is not None:
            self._flush_now()
        if self._transport is not None and not self._sending.queued_bytes:
            self._transport.close()

    def check(self, now_s: float) -> None:
        """End the connection if it exceeded a timeout. Runs about once a second."""
        transport = self._transport
        if transport is None:
            return
        backlog = self._sending.unsent_bytes(transport)
        if backlog or self.reply_bytes:
            self._count_replies()
        reason = self._timeouts.exceeded(self, now_s, backlog, self._registry.limits)
        if reason is None:
            return
        if reason == IDLE:
            transport.close()
        else:
            self.end_early(reason)

    @property
    def is_used(self) -> bool:
        """True if the peer sent requests other than those that look for a broker's address."""
        return self._peer is not None and self.frames > self._peer.looked_up

    @property
    def was_sent_here(self) -> bool:
        """True if a reply led this peer to this broker, and to no other."""
        return self._peer is not None and self._peer.sent_here

    @property
    def waits_for_us(self) -> bool:
        """True if this side stopped reading or has not replied yet, so the peer may be silent."""
        return bool(self._held or self._replies)

    @property
    def held(self) -> bool:
        """True if this side does not read, so the peer cannot complete its frame."""
        return bool(self._held)

    @property
    def silent_s(self) -> float:
        """Seconds without a byte from the peer, 0 while this side does not read."""
        if self._held or self.received_bytes != self._timeouts.received_bytes:
            return 0.0
        return self._timeouts.silent_s

    @property
    def partial_bytes(self) -> int:
        return self._reader.partial_bytes

    def sends_slowly(self, *, small: bool) -> bool:
        """True if the peer takes long for a frame with a buffer, or may not send it now."""
        frame = self._received.large_frame
        if frame is None or small != (frame.size_bytes <= SMALL_FRAME_BYTES):
            return False
        return bool(self._held & THROTTLED) or self._timeouts.slow(small=small)

    @property
    def reads_slowly(self) -> bool:
        """True if the peer has read nothing for long, although replies are ready."""
        return self._timeouts.stalled_s > PRESSED_S_MAX

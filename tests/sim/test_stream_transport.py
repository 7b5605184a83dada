"""Goal: the stream transport answers every add once, in order, and leaks no room, whatever breaks.

Method: the port over TCP or gRPC and the bookie's server, both as they are, on virtual time; only
asyncio's transports, or the channels and contexts of the gRPC library, are simulated. Then known
mistakes are planted. Repeat a seed over TCP with
`python -m tests.sim.test_stream_transport SEED [SEED]`.
"""

import sys

import pytest

from ledger.adapters.links.client_streams import AddStream, ReadStream
from ledger.adapters.tcp.tcp_link import TcpConnection
from ledger.bookie.server_streams import InboundWindow, ServerAddStream, ServerReadStream
from ledger.ports.bookies import Status
from ledger.wire.bookie_frames import FrameKind, ReadResponse
from ledger.wire.tcp_frames import FrameReader
from tests.sim.seeds import repeat, run_world
from tests.sim.transport_world import GrpcTransportWorld, TcpTransportWorld

pytestmark = pytest.mark.slow

SEEDS = 60
PLANTED_SEEDS_MAX = 160


def run(seed, world=TcpTransportWorld):
    """Return the errors found with this seed. A hang or a crash counts as one."""
    return run_world(world, seed)


both = pytest.mark.parametrize(
    "world", [TcpTransportWorld, GrpcTransportWorld], ids=lambda world: world.__name__
)


@both
def test_every_add_is_answered_once_and_every_room_is_given_back(world):
    found = {seed: how for seed in range(SEEDS) if (how := run(seed, world))}
    assert not found


# -- planted mistakes ------------------------------------------------------------------------------


def the_end_forgets_pending_adds(patch):
    fail = AddStream.fail

    def forget(self, status):
        self._pending.clear()
        fail(self, status)

    patch.setattr(AddStream, "fail", forget)


def a_status_joins_whatever_came_before(patch):
    def on_added(self, number, length, status):
        self._window.release(length)
        if self._statuses:
            self._statuses[-1][1] += 1
        else:
            self._statuses.append([number, 1, status])
        self._notify()

    patch.setattr(ServerAddStream, "_on_added", on_added)


def who_gives_up_tells_nobody(patch):
    async def ask(self, question):
        if self.over:
            return ReadResponse(0, Status.UNREACHABLE)
        number, self._next = self._next, self._next + 1
        answered = self._pending[number] = self._loop.create_future()
        self._send(question._replace(number=number))
        return await answered

    patch.setattr(ReadStream, "ask", ask)


def a_closed_stream_keeps_its_room(patch):
    patch.setattr(ServerReadStream, "close", lambda self: None)


def a_cancellation_ends_no_request(patch):
    patch.setattr(ServerReadStream, "_cancel", lambda self, number: self._asked.pop(number, None))


def a_cancelled_request_keeps_its_room(patch):
    def on_done(self, number, reserved, share, task):
        del self._tasks[number]
        self._window.release(reserved)
        self._start_asked()

    patch.setattr(ServerReadStream, "_on_done", on_done)


def adds_do_not_wait_for_room(patch):
    async def at_once(self):
        """No wait."""

    patch.setattr(InboundWindow, "wait", at_once)
    patch.setattr(InboundWindow, "has_space", True)


def a_response_of_an_old_connection_is_accepted(patch):
    """What comes late over an old connection answers what was sent over the new one."""
    newest = []

    def connection_made(self, transport):
        newest[:] = [self]
        made(self, transport)

    def buffer_updated(self, nbytes):
        if not self._ended:
            updated(self, nbytes)
            return
        self._reader.stopped = False
        self._reader.received(nbytes)

    def on_message(self, message):
        answers = message[1] in (FrameKind.ADD_STATUSES, FrameKind.READ_RESPONSES)
        heard(newest[0] if self._ended and answers else self, message)

    made, updated = TcpConnection.connection_made, TcpConnection.buffer_updated
    heard = TcpConnection._on_message
    patch.setattr(TcpConnection, "_on_message", on_message)
    patch.setattr(TcpConnection, "connection_made", connection_made)
    patch.setattr(TcpConnection, "get_buffer", lambda self, _: self._reader.buffer())
    patch.setattr(TcpConnection, "buffer_updated", buffer_updated)


def a_piece_continues_any_message(patch):
    """A message in pieces forgets how much of it has come when another frame comes between."""
    take = FrameReader._take

    def forget(self, view):
        kind, between = view[5] if len(view) > 5 else 0, self._large is not None
        used = take(self, view)
        if used and between and kind != FrameKind.PIECE and not self._fill:
            self._large_at = 0
        return used

    patch.setattr(FrameReader, "_take", forget)


def credit_is_granted_whatever_waits(patch):
    patch.setattr(ServerAddStream, "has_space", True)


OF_TCP = [
    a_response_of_an_old_connection_is_accepted,
    a_piece_continues_any_message,
    credit_is_granted_whatever_waits,
]
PLANTED = [
    the_end_forgets_pending_adds,
    a_status_joins_whatever_came_before,
    who_gives_up_tells_nobody,
    a_closed_stream_keeps_its_room,
    a_cancellation_ends_no_request,
    a_cancelled_request_keeps_its_room,
    adds_do_not_wait_for_room,
]


@both
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant, world, monkeypatch):
    plant(monkeypatch)
    assert any(run(seed, world) for seed in range(PLANTED_SEEDS_MAX))


@pytest.mark.parametrize("plant", OF_TCP, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_of_tcp_is_found(plant, monkeypatch):
    plant(monkeypatch)
    assert any(run(seed) for seed in range(PLANTED_SEEDS_MAX))


if __name__ == "__main__":
    sys.exit(repeat(run))

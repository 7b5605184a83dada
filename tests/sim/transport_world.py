"""One client of one real bookie: the port over TCP or gRPC and the server, on simulated wires.

The client adds, reads, polls and gives up; wires break, stand still and slow down, and the process
of the bookie crashes. `run` returns what was wrong.
"""

import asyncio
import random
from collections import Counter
from contextlib import ExitStack
from unittest import mock

from ledger.adapters.grpc import grpc_bookies, grpc_link
from ledger.adapters.grpc.grpc_bookies import GrpcBookies
from ledger.adapters.grpc.grpc_config import GrpcClientConfig, GrpcServerConfig
from ledger.adapters.links import remote_bookies
from ledger.adapters.tcp import tcp_link
from ledger.adapters.tcp.tcp_bookies import TcpBookies
from ledger.adapters.tcp.tcp_config import TcpClientConfig, TcpServerConfig
from ledger.bookie import grpc_server, server_streams, tcp_connection, tcp_server
from ledger.bookie.bookie import Bookie
from ledger.bookie.grpc_server import BookieServer
from ledger.bookie.tcp_server import TcpServer
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo, Status
from ledger.wire import tcp_frames
from tests.sim.bookie_world import KEY, entry_buffers, small_config
from tests.sim.disk import SimDisk
from tests.sim.grpc_wire import Wires
from tests.sim.loop import SimClock
from tests.sim.table import SimTable
from tests.sim.tcp_wire import TcpWires

LEDGER = 1
OTHER_KEY = b"o" * 20
END_S = 60.0
POLL_S = 10_000.0
POLL_END_S = 5.0  # a poll that was given up ends sooner, once the slowest wire has brought the news


class Told:
    """The bookie, as its server calls it; it notes the order of adds and the calls under way."""

    def __init__(self, world, bookie):
        self._world = world
        self._bookie = bookie
        self._highest = {}  # by stream: its last entry
        self.polls = 0

    def __getattr__(self, name):
        return getattr(self._bookie, name)

    def add(self, ledger, entry, key, body, on_added, *, recovery=False):
        stream = self._world.wires.receiving or asyncio.current_task()
        if entry <= self._highest.get(stream, -1):
            self._world.found.append(f"order: {entry} after {self._highest[stream]}")
        self._highest[stream] = entry
        used, bound = self._world.server._window.used, self._world.bytes_max
        if used > bound:
            self._world.found.append(f"window: {used} bytes of {bound}")
        self._bookie.add(ledger, entry, key, body, on_added, recovery=recovery)

    async def wait_lac(self, *how):
        self.polls += 1
        try:
            return await self._bookie.wait_lac(*how)
        finally:
            self.polls -= 1


class TransportWorld:
    """One seed."""

    def __init__(self, seed):
        draw = self.draw = random.Random(f"{seed}:transport")
        self.found = []
        self.sent, self.answers, self.acked = {}, Counter(), set()
        self.config = small_config(draw)
        self.client_limits = {
            "message_bytes": draw.choice([300, 2000, 1 << 20]),
            "queue_bytes_max": draw.choice([3000, 1 << 20]),
            "add_timeout_s": draw.choice([0.5, 4.0]),
        }
        self.server_limits = {
            "queue_bytes_max": draw.choice([500, 5000, 1 << 20]),
            "answer_bytes_max": draw.choice([2000, 1 << 24]),
            "answers_bytes_max": draw.choice([3000, 1 << 24]),
            "answers_wait_s": 0.2,
            "write_timeout_s": 1.0,
            "message_bytes": draw.choice([500, 1 << 20]),
        }
        entry_bytes = 1100
        batch = max(self.client_limits["message_bytes"], entry_bytes)
        # Over TCP, a connection may also use its credit, which is no more than the bound.
        self.bytes_max = 2 * self.server_limits["queue_bytes_max"] + 3 * batch

    async def start(self):
        bookie = Bookie(
            self.disk,
            self.table,
            SimClock(),
            lambda: self.draw.randbytes(16),
            config=self.config,
        )
        await bookie.start(boot_id="boot", next_ledger=10)
        self.bookie = Told(self, bookie)
        self.name = BookieId(bookie.bookie_id)
        self.server = self.wires.server = self.new_server()

    async def run(self):
        self.wires = self.new_wires()
        self.disk, self.table = SimDisk(self.draw), SimTable(self.draw)
        asyncio.get_running_loop().set_exception_handler(self._on_exception)
        with ExitStack() as patches:
            self.patch(patches)
            patches.enter_context(_patched(remote_bookies, keep_freed_memory=_nothing))
            patches.enter_context(_patched(server_streams, ADD_BYTES=0))  # as credit counts
            await self.start()
            await self.bookie.write_lac(LEDGER, KEY, -1)  # the key of the ledger is durable
            self.port = self.new_port()
            await self._story()
            await self._check()
            await self.port.close()
        return self.found

    def _on_exception(self, loop, context):
        self.found.append(f"errors: {context['message']}: {context.get('exception')!r}")

    # -- what the client does --------------------------------------------------------------------

    async def _story(self):
        draw = self.draw
        work = (self._add, self._poll, self._read, self._read, self._read)
        tasks = [asyncio.create_task(one()) for one in work]
        for _ in range(draw.randint(0, 12)):
            await asyncio.sleep(draw.expovariate(1 / 0.1))
            kind = draw.random()
            if kind < 0.4:
                self.wires.break_all()
            elif kind < 0.6:
                self.wires.latency_s = draw.choice([0.001, 0.02, 0.5])
            elif kind < 0.85:
                self.disk.full = not self.disk.full
                self.bookie.check_disk_space()
            else:
                await self._crash()
        await tasks[0]
        self.wires.latency_s = 0.001
        self.disk.full = False
        self.bookie.check_disk_space()
        for task in tasks[1:]:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        await self.wires.arrived()
        await asyncio.sleep(POLL_END_S)
        if self.bookie.polls:
            self.found.append(f"leaks: {self.bookie.polls} polls")
        await asyncio.sleep(END_S)

    async def _crash(self):
        self.wires.server = None
        self.wires.break_all()
        self.disk, self.table = self.disk.crash(), self.table.crash()
        await asyncio.sleep(self.draw.random() * 0.3)
        await self.start()

    async def _add(self):
        draw = self.draw
        pause_rate = draw.choice([0.02, 0.2])
        for entry in range(draw.choice([30, 150])):
            payload = draw.randbytes(draw.choice([0, 100, 1000]))
            body = entry_buffers(LEDGER, entry, payload)
            self.sent[entry] = b"".join(body)

            key = KEY if draw.random() < 0.95 else OTHER_KEY

            def on_added(status, entry=entry, wrong=key == OTHER_KEY):
                self.answers[entry] += 1
                if status is Status.OK:
                    self.acked.add(entry)
                if (wrong and status is Status.OK) or (not wrong and status is Status.UNAUTHORIZED):
                    self.found.append(f"status: entry {entry} is told {status.name}")

            self.port.add(self.name, LEDGER, entry, key, body, on_added)
            if draw.random() < pause_rate:
                await asyncio.sleep(draw.expovariate(1 / 0.05))

    async def _read(self):
        draw = self.draw
        while True:
            await asyncio.sleep(draw.expovariate(1 / 0.02))
            if not self.acked:
                continue
            entry = draw.choice(sorted(self.acked))
            try:
                async with asyncio.timeout(draw.choice([0.001, 0.01, 2.0])):
                    await self._read_one(entry)
            except TimeoutError:
                continue

    async def _read_one(self, entry):
        if self.draw.random() < 0.5:
            reply = await self.port.read(self.name, LEDGER, entry)
            bodies = [reply.body]
        else:
            reply = await self.port.read_many(self.name, LEDGER, entry, entry + 9, 2000)
            bodies = reply.bodies
        if reply.status in (Status.NO_ENTRY, Status.NO_LEDGER):
            self.found.append(f"denied: entry {entry}")
        if reply.status is Status.OK:
            self._compare(entry, bodies)
        return reply.status

    def _compare(self, entry, bodies):
        for at, body in enumerate(bodies, entry):
            if bytes(body) != self.sent[at]:
                self.found.append(f"bytes: entry {at} reads as another")

    async def _poll(self):
        """Long polls that are given up."""
        while True:
            try:
                async with asyncio.timeout(self.draw.choice([0.01, 0.2])):
                    await self.port.wait_lac(self.name, LEDGER, 10_000, POLL_S)
            except TimeoutError:
                continue
            await asyncio.sleep(0.02)  # it was refused

    # -- what must hold in the end ---------------------------------------------------------------

    async def _check(self):
        for entry in self.sent:
            if self.answers[entry] != 1:
                self.found.append(f"answers: entry {entry} has {self.answers[entry]}")
        for entry in sorted(self.acked):
            for _ in range(20):
                if await self._read_one(entry) is Status.OK:
                    break
                await asyncio.sleep(0.5)
            else:
                self.found.append(f"lost: entry {entry} was acknowledged")
        await asyncio.sleep(END_S)
        used = self.server._window.used, self.server._room.used
        if used != (0, 0):
            self.found.append(f"leaks: bytes of adds and answers: {used}")


class GrpcTransportWorld(TransportWorld):
    """One seed over gRPC."""

    def new_wires(self):
        return Wires(self.draw)

    def patch(self, patches):
        for each in (
            _patched(grpc_link, open_channel=self.wires.open_channel),
            _patched(grpc_bookies, keep_running=_nothing),
            _patched(grpc_server, keep_running=_nothing, keep_freed_memory=_nothing),
        ):
            patches.enter_context(each)

    def new_server(self):
        return BookieServer(self.bookie, GrpcServerConfig(**self.server_limits))

    def new_port(self):
        config = GrpcClientConfig(**self.client_limits)
        return GrpcBookies(lambda: {self.name: BookieInfo("bookie", 1)}, config)


class TcpTransportWorld(TransportWorld):
    """One seed over TCP, often with frames so short that messages travel in pieces."""

    def new_wires(self):
        return TcpWires(self.draw)

    def patch(self, patches):
        frame_bytes = self.draw.choice([300, 2000, tcp_frames.FRAME_BYTES_MAX])
        for module in (tcp_frames, tcp_link, tcp_connection):
            patches.enter_context(_patched(module, FRAME_BYTES_MAX=frame_bytes))
        in_place = self.draw.choice([20, 500, 8192])
        for each in (
            _patched(tcp_frames, _IN_PLACE_BYTES=in_place, _PEEK_BYTES=max(in_place, 100)),
            _patched(tcp_link, open_connection=self.wires.open_connection),
            _patched(tcp_server, keep_freed_memory=_nothing, logger=lambda: self),
            _patched(tcp_link, logger=lambda: self),
        ):
            patches.enter_context(each)

    def warning(self, what, *, reason, **more):
        """What either end logs. A connection may end inside of a frame, but never for a bad one."""
        if "bad frame" in reason or "broke" in what:
            self.found.append(f"frames: {what}: {reason}")

    def new_server(self):
        server = TcpServer(self.bookie, TcpServerConfig(**self.server_limits, silence_s=60.0))
        server.begin_sweeps()
        return server

    def new_port(self):
        config = TcpClientConfig(**self.client_limits)
        return TcpBookies(lambda: {self.name: BookieInfo("bookie", tcp_port=1)}, config)


def _patched(module, **how):
    return mock.patch.multiple(module, **how)


def _nothing():
    """The library keeps no thread for a simulation."""

"""The cost of adds and reads between a client and its bookies over gRPC or TCP, at both ends.

    python -m tests.bench.grpc_add [--bytes 1024 16384 131072] [--seconds 2] [--transport grpc]

"stub" is a bookie that answers at once; "real" one writes its log to disk. Bookies run in child
processes. CPU is that of whole processes, gRPC's own threads included; the client's includes
making the entry. Of three bookies an add waits for two.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from ledger.adapters.grpc.grpc_bookies import GrpcBookies
from ledger.adapters.grpc.grpc_config import GrpcClientConfig, GrpcServerConfig
from ledger.adapters.links.client_streams import AddStream
from ledger.adapters.links.remote_bookies import RemoteBookies
from ledger.adapters.tcp.tcp_bookies import TcpBookies
from ledger.adapters.tcp.tcp_config import TcpClientConfig, TcpServerConfig
from ledger.bookie.config import BookieConfig
from ledger.bookie.grpc_server import BookieServer
from ledger.bookie.in_process import open_local_bookie
from ledger.bookie.tcp_server import TcpServer
from ledger.ports.bookies import BookieInfo, Status
from tests.bench.bookie_add import KEY, entry_of

WARM_ADDS = 300


class StubBookie:
    """Says yes to everything in the next turn of the loop."""

    bookie_id = "stub-00000000"

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = []

    def add(self, ledger, entry, master_key, body, on_added, *, recovery=False):
        if not self._done:
            self._loop.call_soon(self._answer)
        self._done.append(on_added)

    def _answer(self):
        done, self._done = self._done, []
        for on_added in done:
            on_added(Status.OK)


async def serve(kind: str, path: Path, transport: str) -> None:
    """A bookie until stdin ends; prints its port and id."""
    if kind == "stub":
        opened, bookie = None, StubBookie()
    else:
        opened = await open_local_bookie(path, config=BookieConfig(headroom_bytes=0))
        bookie = opened.bookie
    await serve_until_stdin_ends(server_of(bookie, transport), bookie.bookie_id)
    if opened is not None:
        await opened.close()


def server_of(bookie, transport: str) -> BookieServer | TcpServer:
    """Return a server of the bookie that has not started."""
    if transport == "grpc":
        return BookieServer(bookie, GrpcServerConfig())
    return TcpServer(bookie, TcpServerConfig())


async def serve_until_stdin_ends(server: BookieServer | TcpServer, *words: str) -> None:
    """Serve at a free port, and print it with the words first."""
    print(await server.start("127.0.0.1", 0), *words, flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    await server.stop(0)


def client_of(ports: dict[str, int], transport: str) -> RemoteBookies:
    """Return a client of the bookies at these ports, by their names."""
    if transport == "grpc":
        infos = {name: BookieInfo(port=port) for name, port in ports.items()}
        return GrpcBookies(lambda: infos, GrpcClientConfig())
    infos = {name: BookieInfo(tcp_port=port) for name, port in ports.items()}
    return TcpBookies(lambda: infos, TcpClientConfig())


def cpu_s(pid: int) -> float:
    """User and system time of all its threads."""
    nanoseconds = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


class Messages:
    """Counts messages of all add streams of this process."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._next, self._on = AddStream.next_message, AddStream.on_message
        AddStream.next_message, AddStream.on_message = self._count_sent, self._count_received

    @property
    def _count_sent(self):
        async def count(stream):
            message = await self._next(stream)
            self.sent += 1
            return message

        return count

    @property
    def _count_received(self):
        def count(stream, message):
            self.received += 1
            self._on(stream, message)

        return count


class Load:
    """`in_flight` adds at any time, each to all bookies, done when most of them have it."""

    def __init__(self, bookies: RemoteBookies, size: int, in_flight: int) -> None:
        self.bookies = bookies
        self.names = bookies.available()
        self.needed = len(self.names) // 2 + 1
        self.payload = os.urandom(size)
        self.in_flight = in_flight
        self.entry = 0
        self.added = 0
        self.wanted = 0
        self.overloaded = 0
        self.acks: dict[int, int] = {}
        self.ended = asyncio.get_running_loop().create_future()

    async def run(self, ledger: int, adds: int) -> None:
        self.ledger, self.entry, self.added, self.wanted = ledger, 0, 0, adds
        self.ended = asyncio.get_running_loop().create_future()
        for _ in range(min(self.in_flight, adds)):
            self.send()
        await self.ended

    def send(self) -> None:
        entry = self.entry
        self.entry += 1
        self.acks[entry] = 0
        body = entry_of(self.ledger, entry, self.payload)
        on_added = partial(self.on_added, entry)
        for name in self.names:
            self.bookies.add(name, self.ledger, entry, KEY, body, on_added)

    def on_added(self, entry: int, status: Status) -> None:
        acks = self.acks.get(entry)
        if acks is None:
            return  # the third bookie's, perhaps when all is over
        if status is Status.OVERLOADED and len(self.names) > 2:
            self.overloaded += 1  # one lags behind by a whole queue; the other two are enough
            return
        assert status is Status.OK, status
        self.acks[entry] = acks + 1
        if acks + 1 < self.needed:
            return
        del self.acks[entry]
        self.added += 1
        if self.entry < self.wanted:
            self.send()
        elif self.added == self.wanted:
            self.ended.set_result(None)


def _per_message(own: float, theirs: float, copies: int, sent: int, received: int) -> str:
    """Say what a message of gRPC's streams costs; TCP's frames are not counted."""
    return (
        f"per message: client {own / sent * 1e6:>4.0f} bookie {theirs / sent * 1e6:>4.0f}"
        f" | copies per message {copies / sent:.1f}, per answer {copies / received:.1f}"
    )


async def measure(
    children, size: int, asked: argparse.Namespace, in_flight: int, ledger: int
) -> None:
    bookies = client_of({name: port for _, port, name in children}, asked.transport)
    messages = Messages()
    load = Load(bookies, size, in_flight)
    started = time.perf_counter()
    await load.run(ledger, WARM_ADDS)
    adds = max(50, int(WARM_ADDS / (time.perf_counter() - started) * asked.seconds))
    adds = min(adds, 1_500_000_000 // size)
    sent, received = messages.sent, messages.received
    pids = [child.pid for child, _, _ in children]
    before, own, wall = [cpu_s(pid) for pid in pids], cpu_s(os.getpid()), time.perf_counter()
    await load.run(ledger + 1, adds)
    wall = time.perf_counter() - wall
    own = cpu_s(os.getpid()) - own
    theirs = sum(map(cpu_s, pids)) - sum(before)
    sent, received = messages.sent - sent, messages.received - received
    copies = adds * len(pids)
    print(
        f"{size:>7} B, {in_flight:>3} in flight: {adds / wall:>8,.0f} adds/s "
        f"{adds * size / wall / 1e6:>5.0f} MB/s {wall / adds * in_flight * 1e3:>6.2f} ms each | "
        f"CPU us per copy: client {own / copies * 1e6:>4.0f} bookie {theirs / copies * 1e6:>4.0f}"
        + (f" | {_per_message(own, theirs, copies, sent, received)}" if sent else "")
        + (f" | {load.overloaded} refused by one that lags" if load.overloaded else ""),
        flush=True,
    )
    AddStream.next_message, AddStream.on_message = messages._next, messages._on
    await bookies.close()


def start(kind: str, path: Path, loop: str, transport: str):
    command = [sys.executable, "-m", "tests.bench.grpc_add", "--serve", kind, "--data", str(path)]
    child = subprocess.Popen(
        [*command, "--loop", loop, "--transport", transport],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    port, name = child.stdout.readline().split()
    return child, int(port), name


def run(coroutine, loop: str) -> None:
    if loop == "uvloop":
        import uvloop

        uvloop.run(coroutine)
    else:
        asyncio.run(coroutine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=[1024, 16 * 1024, 128 * 1024])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="uvloop")
    parser.add_argument("--transport", choices=["grpc", "tcp"], default="grpc")
    parser.add_argument("--kinds", nargs="+", default=["stub", "real", "three"])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--serve", default="")
    parser.add_argument("--data", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.serve:
        run(serve(arguments.serve, arguments.data, arguments.transport), arguments.loop)
        return
    run(measure_all(arguments), arguments.loop)


async def measure_all(arguments: argparse.Namespace) -> None:
    for kind in arguments.kinds:
        print(f"{kind}:")
        top = Path(tempfile.mkdtemp(dir=arguments.data))
        what = "stub" if kind == "stub" else "real"
        count = 3 if kind == "three" else 1
        children = [
            start(what, top / str(n), arguments.loop, arguments.transport) for n in range(count)
        ]
        try:
            await measure_kind(children, arguments, kind)
        finally:
            for child, _, _ in children:
                child.stdin.close()
                child.wait(30)
            shutil.rmtree(top)


async def measure_kind(children, arguments: argparse.Namespace, kind: str) -> None:
    loads = [(size, many) for size in arguments.bytes for many in arguments.in_flight]
    for number, (size, in_flight) in enumerate(loads):
        await measure(children, size, arguments, in_flight, 2 * number)
    if kind == "real":
        for number, (size, _) in enumerate(loads):
            await measure_reads(children[0], size, arguments, 2 * number + 1)


async def measure_reads(child, size: int, asked: argparse.Namespace, ledger: int) -> None:
    """Two questions for a mebibyte under way at any time, from begin to end, again and again."""
    process, port, name = child
    bookies = client_of({name: port}, asked.transport)
    await bookies.read_lac(name, ledger)
    step = max(1, (1 << 20) // size)
    read = 0
    ends_s = time.perf_counter() + asked.seconds

    async def reader(first: int) -> None:
        nonlocal read
        entry = first
        while time.perf_counter() < ends_s:
            reply = await bookies.read_many(name, ledger, entry, entry + step - 1, 2 << 20)
            if reply.status is not Status.OK:
                entry = first
                continue
            read += sum(map(len, reply.bodies))
            entry += 2 * step

    theirs, own, wall = cpu_s(process.pid), cpu_s(os.getpid()), time.perf_counter()
    await asyncio.gather(reader(0), reader(step))
    wall = time.perf_counter() - wall
    mebibytes = read / (1 << 20)
    print(
        f"{size:>7} B, read_many of 1 MiB: {read / wall / 1e6:>5.0f} MB/s | CPU us per MiB: client "
        f"{(cpu_s(os.getpid()) - own) / mebibytes * 1e6:>4.0f} bookie "
        f"{(cpu_s(process.pid) - theirs) / mebibytes * 1e6:>4.0f}",
        flush=True,
    )
    await bookies.close()


if __name__ == "__main__":
    main()

"""A raw TCP connection to a bookie: frames of our own making, and what came back."""

from __future__ import annotations

import asyncio
import contextlib
import re
from contextlib import asynccontextmanager

from ledger.adapters.tcp.tcp_config import TcpServerConfig
from ledger.bookie.tcp_server import TcpServer
from ledger.ports.bookies import Status
from ledger.wire.bookie_frames import AddBatchWriter, FrameKind
from ledger.wire.tcp_frames import decode_tcp_welcome, hello_frame
from tests import leaping_loop
from tests.ledger.bookie_rig import KEY
from tests.ledger.remote_world import CONFIG, Client, Served
from tests.peers.processes import until
from tests.sim.bookie_world import entry_bytes

ENDS_S_MAX = 60.0


async def leap(server, seconds):
    """Let this time pass, and the server look at its connections afterwards."""
    leaping_loop.leap(seconds)
    before = server._sweeper
    await until(lambda: server._sweeper is not before, "a look at all connections")


class Raw:
    """One raw connection."""

    def __init__(self, reader, writer):
        self._reader = reader
        self.writer = writer
        self.welcome = None

    @classmethod
    async def to(cls, port):
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 26))

    @classmethod
    async def welcomed(cls, port, bookie):
        """A connection after a proper HELLO."""
        raw = await cls.to(port)
        raw.send(hello_frame(bookie))
        raw.welcome = decode_tcp_welcome(await raw.message())
        assert raw.welcome.status is Status.OK
        return raw

    def send(self, *data):
        self.writer.write(b"".join(data))

    async def frame(self):
        """The next frame, without its length."""
        length = int.from_bytes(await self._reader.readexactly(4), "big")
        return await self._reader.readexactly(length)

    async def message(self, kind=None):
        """The next message that is no piece, and of this kind if one is named."""
        while True:
            found = await self.frame()
            if found[1] < FrameKind.PIECES_BEGIN and kind in (None, found[1]):
                return found

    async def ended(self):
        """Wait until the bookie has hung up."""
        async with asyncio.timeout(ENDS_S_MAX):
            with contextlib.suppress(ConnectionError):
                while await self._reader.read(1 << 16):
                    pass
        self.close()

    def close(self):
        self.writer.close()


class Attack:
    """A served bookie, and what it had logged to disk before."""

    def __init__(self, served, server):
        self.served, self.server, self.port = served, server, served.port
        self.before = self.stored()

    def stored(self):
        return self.served.bookie.groups, self.served.log_bytes(), self.served.bookie.ledgers()

    async def raw(self):
        return await Raw.to(self.port)

    async def welcomed(self):
        return await Raw.welcomed(self.port, self.served.id)


@asynccontextmanager
async def attacked(path, *, timeout_s=60, **limits):
    """An attack on a served bookie, which must store nothing and serve a client afterwards."""
    async with asyncio.timeout(timeout_s), Served(path, CONFIG) as served:
        server = TcpServer(served.bookie, TcpServerConfig(**limits))
        served.port = await server.start("127.0.0.1", 0)
        one = Attack(served, server)
        yield one
        assert one.stored() == one.before
        async with Client(served) as client:
            assert await client.add(served.id, 0) is Status.OK
        await until(lambda: not server._connections, "every connection is forgotten")
        assert server.unfinished == 0
        await server.stop(0)


def adds_message(*adds, first=0):
    writer = AddBatchWriter(first)
    for ledger, entry, key, body in adds:
        writer.add(ledger, entry, key, [body], len(body), False)
    return writer.encode()


GOOD_ADD = (7, 0, KEY, entry_bytes(7, 0, b"x"))


def raw_frame(kind, content=b"", version=1, length=None):
    message = bytes((version, kind)) + content
    length = len(message) if length is None else length
    return (length & 0xFFFFFFFF).to_bytes(4, "big") + message


_LINE = re.compile(r"closed the connection of a client|broke the protocol")


class Said:
    """What was logged on stderr so far."""

    def __init__(self, capfd):
        self._capfd = capfd
        self._text = ""

    @property
    def text(self):
        self._text += self._capfd.readouterr().err
        return self._text

    @property
    def lines(self):
        return [line for line in self.text.splitlines() if _LINE.search(line)]


def begin(total, inner=FrameKind.ADDS, size=100):
    """Return the first piece of a message."""
    content = total.to_bytes(4, "big") + bytes((1, inner)) + bytes(size)
    return raw_frame(FrameKind.PIECES_BEGIN, content)

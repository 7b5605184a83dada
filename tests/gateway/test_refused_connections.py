"""Goal: a connection beyond the quota of its address is served nothing until it is closed.

Method: real sockets on the loops that the gateway runs on. uvloop begins to read a connection
after `connection_made`, whatever the protocol did there.
"""

import asyncio
import contextlib
from functools import partial

import pytest
import uvloop

from gateway.server.connection import Connection
from tests.gateway.test_connection import BEAT, HEARTBEAT, at_once, heartbeat
from tests.gateway.wire_peer import hub_for, request

LOOPS = [
    pytest.param(factory, id=factory.__module__)
    for factory in (asyncio.new_event_loop, uvloop.new_event_loop)
]


async def served_while_refused():
    """Return what a refused connection was sent, and the memory counted for it at its end."""
    registry = hub_for(heartbeat(at_once))
    registry.count_connection = lambda host: 50
    accept = partial(Connection, registry)
    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(HEARTBEAT, 4, 1, BEAT) + (900_000).to_bytes(4, "big") + bytes(100_000))
    received = b""
    with contextlib.suppress(ConnectionError):
        received = await reader.read()
    writer.close()
    server.close()
    await asyncio.sleep(0.01)
    return received, registry.memory.used_bytes, len(registry.connections)


@pytest.mark.parametrize("factory", LOOPS)
def test_a_refused_connection_is_served_nothing(factory):
    loop = factory()
    try:
        assert loop.run_until_complete(served_while_refused()) == (b"", 0, 0)
    finally:
        loop.close()

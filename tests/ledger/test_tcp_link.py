"""Goal: a connection to a bookie that is given up ends quietly, whatever the bookie still sends.

Method: a real socket whose server answers nothing. The bookie's first message is handed to the
connection in the turn of the loop in which its task is cancelled.
"""

import asyncio
import socket

import pytest

from ledger.adapters.links.link import Endpoint
from ledger.adapters.tcp.tcp_config import TcpClientConfig
from ledger.adapters.tcp.tcp_link import TcpConnection
from ledger.ids import BookieId
from ledger.ports.bookies import Status
from ledger.wire.tcp_frames import STAGING_BYTES, Welcome, encode_tcp_welcome, frame

WELCOME = frame(encode_tcp_welcome(Welcome(Status.OK, 1_000, 0, 1_000)))


def received(connection, data):
    """Hand bytes over as the transport does."""
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


async def given_up():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        endpoint = Endpoint("tcp", *server.getsockname())
        connection = TcpConnection(
            BookieId("b1"), endpoint, TcpClientConfig(), bytearray(STAGING_BYTES), None
        )
        running = asyncio.ensure_future(connection.run(lambda: None))
        loop = asyncio.get_running_loop()
        bookie, _ = await loop.sock_accept(server)
        with bookie:
            assert await loop.sock_recv(bookie, 1_000)  # HELLO
            running.cancel()
            received(connection, WELCOME)
            with pytest.raises(asyncio.CancelledError):
                await running
    return connection.was_open


def test_a_welcome_in_the_turn_in_which_its_wait_is_given_up_is_no_error():
    assert not asyncio.run(given_up())

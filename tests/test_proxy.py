"""Goal: the misbehaving proxy does what its commands say. Method: an echo server behind it."""

import contextlib
import socket
import socketserver
import threading
import time

import pytest

from tests.peers.processes import wait_until
from tests.peers.proxy import TO_CLIENT, TO_SERVER, Proxy


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        with contextlib.suppress(OSError):
            while data := self.request.recv(65536):
                self.server.heard += data
                self.request.sendall(data)


@pytest.fixture
def echo():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.heard = bytearray()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo):
    with Proxy(echo.server_address[1]) as started:
        yield started


@pytest.fixture
def client(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as connection:
        yield connection


def hear(connection, size):
    heard = bytearray()
    while len(heard) < size:
        came = connection.recv(size - len(heard))
        assert came, "ended early"
        heard += came
    return bytes(heard)


def say(connection, word):
    connection.sendall(word)
    return hear(connection, len(word))


def test_bytes_pass_both_ways_unchanged(client, proxy):
    word = bytes(range(256)) * 8192
    sender = threading.Thread(target=client.sendall, args=(word,))
    sender.start()
    assert hear(client, len(word)) == word
    sender.join()
    assert proxy.passed_bytes(TO_SERVER) == proxy.passed_bytes(TO_CLIENT) == len(word)


def test_the_end_of_one_side_reaches_the_other_after_all_bytes(client):
    client.sendall(b"last words")
    client.shutdown(socket.SHUT_WR)
    assert hear(client, 10) == b"last words"
    assert client.recv(1) == b""


def test_frozen_bytes_are_held_and_flow_on_when_healed(client, proxy, echo):
    proxy.freeze(TO_SERVER)
    client.sendall(b"one")
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.recv(1)
    assert not echo.heard
    client.settimeout(60)
    proxy.heal()
    assert hear(client, 3) == b"one"


def test_held_bytes_arrive_after_their_connection_was_closed(client, proxy, echo):
    held = proxy.hold(TO_SERVER, lambda data: data.startswith(b"late"))
    assert say(client, b"first") == b"first"
    client.sendall(b"late")
    assert held.caught.wait(60)
    client.close()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as other:
        assert say(other, b"late too") == b"late too"
        assert not held.answered.is_set()
        proxy.release(held)
        assert held.answered.wait(60)
    assert bytes(echo.heard) == b"firstlate toolate"


def test_dropped_bytes_never_arrive_and_the_connection_stays(client, proxy, echo):
    proxy.drop(TO_CLIENT)
    client.sendall(b"lost")
    wait_until(lambda: proxy.lost_bytes(TO_CLIENT) == 4, "the answer to be swallowed")
    assert echo.heard == b"lost"
    proxy.heal()
    assert say(client, b"heard") == b"heard"


def test_no_new_connection_is_made_over_a_link_that_is_cut_one_way(client, proxy, echo):
    proxy.cut_one_way(TO_CLIENT)
    client.sendall(b"lost")
    wait_until(lambda: proxy.lost_bytes(TO_CLIENT) == 4, "the answer to be swallowed")
    assert echo.heard == b"lost"
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as second:
        second.sendall(b"nothing")
        wait_until(lambda: proxy.open_connections == 2, "the connection to be accepted")
        proxy.heal()
        assert say(client, b"heard") == b"heard"
        assert echo.heard == b"lostheard", "nothing came over the second connection"


def test_cut_at_next_loses_the_answer_of_what_was_done(client, proxy, echo):
    proxy.cut_at_next(TO_CLIENT)
    client.sendall(b"done")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert echo.heard == b"done"
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as second:
        assert say(second, b"again") == b"again"


def test_cut_at_next_loses_a_request_before_it_is_done(client, proxy, echo):
    proxy.cut_at_next(TO_SERVER)
    client.sendall(b"never")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert not echo.heard


def test_cut_resets_every_connection_even_a_frozen_one(client, proxy):
    say(client, b"x")
    proxy.freeze()
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    wait_until(lambda: proxy.open_connections == 0, "the connection to be gone")


def test_refused_connections_end_at_once_until_healed(proxy):
    proxy.refuse()
    with (
        pytest.raises(ConnectionError),
        socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as connection,
    ):
        say(connection, b"x")
    proxy.heal()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as connection:
        assert say(connection, b"x") == b"x"


def test_slow_bytes_come_late_and_not_too_fast(client, proxy):
    say(client, b"x")
    proxy.slow(TO_CLIENT, latency_s=0.05)
    began_s = time.monotonic()
    say(client, b"x")
    assert time.monotonic() - began_s >= 0.05
    proxy.slow(TO_CLIENT, bytes_per_s=100_000)
    began_s = time.monotonic()
    say(client, b"x" * 10_000)
    assert time.monotonic() - began_s >= 0.1


def test_a_server_that_is_not_there_looks_like_a_reset():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = probe.getsockname()[1]
    with (
        Proxy(nobody) as proxy,
        pytest.raises(ConnectionError),
        socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as connection,
    ):
        say(connection, b"x")

"""Goal: no peer of the HTTP port takes more than its share of connections, bytes and time.

Method: an embedded gateway in a thread, with ports of short limits, and raw sockets. What must end
within a limit is waited for by reading until the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
import time

import pytest

from gateway.config import HttpConfig
from tests.gateway.captured import without_clients
from tests.gateway.page_rig import PageRig, ask, opened, raw, rest, status_of
from tests.gateway.page_rows import Seen, rows
from tests.peers.processes import wait_until
from tests.peers.stalls import Stalls

HOST = b"Host: localhost\r\n"
LAST = HOST + b"Connection: close\r\n"
GET = b"GET /api/v1/plain HTTP/1.1\r\n"
SHORT = {"head_s_max": 0.4, "request_s_max": 0.6, "unread_s_max": 0.5, "write": True}


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with PageRig(tmp_path_factory.mktemp("page") / "data") as rig:
        yield rig


@pytest.fixture(scope="module")
def port(rig):
    return rig.serve(rows(Seen()), write=True)


@pytest.fixture(scope="module")
def short(rig):
    return rig.serve(rows(Seen()), **SHORT)


def test_the_limits_are_those_of_the_documents():
    limits = HttpConfig()
    assert (limits.connections_max, limits.head_bytes_max) == (32, 8192)
    assert (limits.body_bytes_max, limits.request_s_max) == (1024 * 1024, 5.0)
    assert (limits.head_s_max, limits.unread_s_max) == (5.0, 30.0)


# -- connections -----------------------------------------------------------------------------------


def test_one_connection_too_many_is_answered_with_503_and_closed(rig):
    port = rig.serve(rows(Seen()), connections_max=3)
    waiting = [opened(port) for _ in range(3)]
    answer = raw(port, GET + HOST + b"\r\n")
    assert status_of(answer) == 503
    assert b"TOO_MANY_CONNECTIONS" in answer
    assert b"Content-Security-Policy: default-src 'none'" in answer
    for connection in waiting:
        connection.sendall(GET + LAST + b"\r\n")
        assert status_of(rest(connection)) == 200
        connection.close()
    wait_until(lambda: ask(port, "/api/v1/plain").status == 200, "room")


def test_connections_that_wait_for_the_import_have_the_same_limits(rig):
    ready = threading.Event()
    port = rig.serve(rows(Seen()), wait=ready, connections_max=2, head_s_max=0.6)
    try:
        first, second = opened(port), opened(port)
        first.sendall(GET + LAST + b"\r\n")
        assert status_of(raw(port, b"")) == 503
        with Stalls() as stalls:
            began_s = time.monotonic()
            assert rest(first) == rest(second) == b""
            took_s = time.monotonic() - began_s
        assert took_s > 0.2
        assert took_s - stalls.longest_s < 5.0
    finally:
        ready.set()
    first.close()
    second.close()
    assert ask(port, "/api/v1/plain").status == 200


def test_a_request_that_came_before_the_import_is_answered_after_it(rig):
    ready = threading.Event()
    port = rig.serve(rows(Seen()), wait=ready)
    with opened(port) as connection:
        connection.sendall(GET + LAST + b"\r\n")
        ready.set()
        assert status_of(rest(connection)) == 200


# -- heads and bodies ------------------------------------------------------------------------------

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
PIECE = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
POST = b"POST /plain/t/change HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (GET + LAST + b"X: " + b"y" * 8_000 + b"\r\n\r\n", 200),
        (GET + LAST + b"X: " + b"y" * 8_200 + b"\r\n\r\n", 431),
        (GET + LAST + b"X: " + b"y" * 300_000 + b"\r\n\r\n", 431),
        (GET + LAST + b"a:b\r\n" * 2_000 + b"\r\n", 431),
        (b"GET /" + b"y" * 9_000 + b" HTTP/1.1\r\n" + LAST + b"\r\n", 431),
        (b"\0" * 100 + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no host
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", 400),
        (b"GET / FTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # TLS
        (POST + LAST + b"Content-Length: 1048577\r\n\r\n", 413),
        (POST + LAST + b"Content-Length: 1048577\r\n\r\n" + b"x" * 2_000_000, 413),
        (POST + LAST + b"Content-Length: 99999999999999999999\r\n\r\n", 413),
        (POST + LAST + b"Content-Length: -1\r\n\r\n", 400),
        (POST + LAST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400),
        (POST + LAST + b"Content-Length: 5\r\n" + CHUNKED + b"0\r\n\r\n", 400),  # smuggling
        (POST + LAST + CHUNKED + PIECE * 17, 413),
        (POST + LAST + CHUNKED + b"zz\r\n", 400),
        (POST + LAST + CHUNKED + PIECE * 15 + b"0\r\n\r\n", 403),  # within the limit: no token
        (POST + LAST + b"Content-Length: 1000000\r\n\r\n" + b"x" * 1_000_000, 403),
        (b"CONNECT localhost:1 HTTP/1.1\r\n" + LAST + b"\r\n", 404),
        (b"OPTIONS * HTTP/1.1\r\n" + LAST + b"\r\n", 404),
        (GET + LAST + b"Upgrade: websocket\r\n\r\n", 200),
    ],
)
def test_what_is_no_request_or_too_large_is_refused(port, sent, status, capsys):
    answer = raw(port, sent)
    assert status_of(answer) == status, answer[:300]
    assert b"ontent-" in answer and b"default-src 'none'" in answer
    assert without_clients(capsys.readouterr().err) == ""


def test_a_body_longer_than_it_says_is_a_bad_request_after_the_first(port):
    answer = raw(port, POST + HOST + b"Content-Length: 2\r\n\r\nxxyyyy\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"403", b"400"]


def has_ended(connection):
    """Return whether the peer ended a connection, after a wait of 50 ms."""
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("drips", [False, True])
def test_a_slow_head_ends_the_connection(short, drips):
    began_s = time.monotonic()
    with Stalls() as stalls, opened(short) as connection:
        connection.sendall(b"GET /")
        while not has_ended(connection) and time.monotonic() - began_s < 60.0:
            with contextlib.suppress(ConnectionError):  # it has ended just now
                connection.sendall(b"x" * drips)
        took_s = time.monotonic() - began_s
    assert took_s > 0.3
    assert took_s - stalls.longest_s < 3.0


def test_a_slow_body_gets_408(short):
    sent = POST + LAST + b"Content-Length: 10\r\n\r\nabc"
    answer = raw(short, sent)
    assert status_of(answer) == 408
    assert b"REQUEST_TIMED_OUT" in answer


def test_a_connection_without_a_next_request_ends(short):
    answer = raw(short, GET + HOST + b"\r\n")
    assert status_of(answer) == 200


# -- time ------------------------------------------------------------------------------------------


def test_a_view_that_takes_too_long_is_ended_and_answered_with_503(rig):
    seen = Seen()
    port = rig.serve(rows(seen), **SHORT)
    answer = ask(port, "/api/v1/slow")
    assert answer.status == 503
    assert json.loads(answer.body)["error"]["code"] == "REQUEST_TIMED_OUT"
    assert seen.ended.wait(60.0)


@pytest.mark.parametrize("path", [b"/slow", b"/tail?wait=1&count=1"])
def test_work_stops_when_its_browser_leaves(rig, path):
    seen = Seen()
    port = rig.serve(rows(seen))
    with opened(port) as connection:
        connection.sendall(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        assert seen.began.wait(60.0)
        assert not seen.ended.is_set()
    assert seen.ended.wait(60.0)


def test_a_stream_may_take_longer_than_a_request(rig):
    seen = Seen()
    port = rig.serve(rows(seen), **SHORT)
    with opened(port) as connection:
        connection.sendall(b"GET /tail?wait=1&count=2 HTTP/1.1\r\n" + HOST + b"\r\n")
        assert seen.began.wait(60.0)
        assert not seen.ended.wait(1.5)  # twice the time of a request
    assert seen.ended.wait(60.0)


def test_a_tail_that_never_reads_is_dropped(rig):
    seen = Seen()
    port = rig.serve(rows(seen), **SHORT)
    with opened(port) as connection:
        connection.sendall(b"GET /tail?size=10000 HTTP/1.1\r\n" + HOST + b"\r\n")
        assert seen.ended.wait(60.0)
        received = len(rest(connection))
    assert received < 16 * 1024 * 1024  # what two sockets hold, of 10 GB


def test_an_error_of_a_stream_is_its_last_event(port):
    answer = raw(port, b"GET /tail?count=1&refused=1 HTTP/1.1\r\n" + LAST + b"\r\n")
    assert b"event: record\ndata: {" in answer
    assert b'event: error\ndata: {"error": {"code": "OFFSET_OUT_OF_RANGE"' in answer


@pytest.mark.parametrize(
    "sent",
    [
        POST + LAST + CHUNKED + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n",
        POST + LAST + b"a:b\r\n" * 50_000 + b"\r\n",
        (GET + HOST + b"\r\n") * 300 + GET + LAST + b"\r\n",
    ],
)
def test_no_request_holds_the_loop(rig, port, sent):
    turns_s: list[float] = []  # processor time of the loop's thread in each of its turns
    over = threading.Event()

    async def tick():
        last_s = time.thread_time()
        while not over.is_set():
            await asyncio.sleep(0.001)
            now_s = time.thread_time()
            turns_s.append(now_s - last_s)
            last_s = now_s

    ticking = threading.Thread(target=lambda: rig.run(tick()))
    ticking.start()
    raw(port, sent)
    over.set()
    ticking.join()
    assert max(turns_s) < 0.05  # 0.4 s if h11 gets all at one go


# -- what works ------------------------------------------------------------------------------------


def test_head_has_the_length_and_no_body(port):
    head, get = ask(port, "/api/v1/plain", "HEAD"), ask(port, "/api/v1/plain")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(get.body))


def test_http_1_0_works(port):
    answer = raw(port, b"GET /api/v1/plain HTTP/1.0\r\n" + HOST + b"\r\n")
    assert status_of(answer) == 200
    assert answer.endswith(b"}")


def test_requests_behind_each_other_are_answered_in_order(port):
    requests = [b"GET /api/v1/plain/t%d HTTP/1.1\r\n" % number + HOST for number in range(50)]
    answer = raw(port, b"\r\n".join(requests) + b"Connection: close\r\n\r\n")
    assert re.findall(rb'"topic": "t(\d+)"', answer) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nowhere", 404),
        ("/static/../guard.py", 404),
        ("/static/%2e%2e/guard.py", 404),
        ("/static/..%2fguard.py", 404),
        ("/static/%00", 404),
        ("/static/", 404),
        ("//evil.example/", 404),
        ("/plain/", 404),
        ("/plain/..", 200),  # the name of a topic, as far as this page is concerned
    ],
)
def test_odd_paths_are_harmless(port, path, status):
    answer = ask(port, path)
    assert answer.status == status
    assert answer.headers["content-type"].startswith("text/html")
    found = ask(port, f"/api/v1{path}")
    assert found.status in (404, status)
    assert found.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("part", "name"),
    [("a%2Fb", "a/b"), ("%00", "\0"), ("%ff", "\ufffd"), ("%E2%82%AC", "€"), ("%253F", "%3F")],
)
def test_a_name_in_a_path_may_have_any_character(port, part, name):
    assert json.loads(ask(port, f"/api/v1/plain/{part}").body)["path"] == {"topic": name}


def test_a_method_that_a_path_does_not_take_gets_405(port):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = ask(port, "/api/v1/plain", method)
        assert (answer.status, "GET" in answer.headers["allow"]) == (405, True)


@pytest.mark.parametrize("limit", ["0", "501", "-1", "x", "1" * 5_000, "٣"])
def test_a_limit_out_of_bounds_is_a_bad_request(port, limit):
    from urllib.parse import quote

    answer = ask(port, f"/api/v1/plain?limit={quote(limit)}")
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (400, "INVALID_REQUEST")


def test_a_cursor_out_of_bounds_is_a_bad_request(port):
    assert ask(port, f"/api/v1/plain?cursor={'x' * 4_001}").status == 400
    assert ask(port, f"/api/v1/plain?cursor={'x' * 1_000}").status == 200


def test_a_bug_of_a_view_is_one_line_in_the_log_and_a_code_for_the_peer(rig, capsys):
    port = rig.serve(rows(Seen()))
    answers = [ask(port, "/broken"), ask(port, "/api/v1/broken")]
    for answer in answers:
        assert answer.status == 500
        assert "UNKNOWN_SERVER_ERROR" in answer.text
        assert "Traceback" not in answer.text and "bug of ours" not in answer.text
    lines = without_clients(capsys.readouterr().err).splitlines()
    assert [line for line in lines if "Traceback" not in line] == []
    assert len(lines) == 2  # a line for each route and minute
    assert ask(port, "/broken").status == 500
    assert without_clients(capsys.readouterr().err) == ""

"""Goal: the HTTP port takes any bytes with flat memory and no traceback; Kafka is served meanwhile.

Method: a real gateway in a process of its own, and connections that send requests drawn by seed,
each changed for the worse; a producer and a consumer all the while. The tails that never read are
those of a gateway in a thread.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
from itertools import count
from urllib.parse import quote

import pytest
from confluent_kafka import TopicPartition

from tests.gateway.admin_commands import consumer, produced
from tests.gateway.page_rig import PageRig, ask, opened, status_of
from tests.gateway.page_rows import Seen, rows
from tests.peers.gateway import Gateway
from tests.peers.processes import status_bytes, wait_until

ATTACKERS = 8
PAUSE_S = 0.05  # of the producer: at full speed its records fill caches, and the growth is theirs
GROWTH_BYTES_MAX = 24 * 1024 * 1024  # what the allocator may keep; no request stays
HOST = b"Host: localhost\r\n"
PATHS = (b"/", b"/metrics", b"/health", b"/api/v1/overview", b"/static/a", b"/%00/../..", b"*")
METHODS = (
    *[b"GET"] * 6,
    b"HEAD",
    b"POST",
    b"PUT",
    b"OPTIONS",
    b"CONNECT",
    b"TRACE",
    b"get",
    b"\xff",
)
LINES = (
    b"Content-Length: 5",
    b"Content-Length: 99999999999999999999999999",
    b"Content-Length: -0",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked, gzip",
    b"Connection: upgrade\r\nUpgrade: h2c",
    b"Expect: 100-continue",
    b"Host: evil.example",
    b"Range: bytes=0-18446744073709551615",
    b"Accept-Encoding: gzip;q=" + b"9" * 100,
    b"Authorization: Basic " + b"A" * 2_000,
    b" folded",
    b"no colon",
    b"X: \x01\x02",
)
BODIES = (b"", b"abcde", b"5\r\nabcde\r\n0\r\n\r\n", b"fffffffff\r\n", b"1\r\nx", b"\r\n" * 50)


def request(draw):
    """A request that is nearly one, with a chance of being one."""
    head = [
        draw.choice(METHODS) + b" " + draw.choice(PATHS) + draw.choice([*[b" HTTP/1.1"] * 4, b""])
    ]
    head += [HOST.strip()] * draw.choice([0, 1, 1, 1, 2])
    head += draw.sample(LINES, draw.choice([0, 0, 1, 3]))
    return b"\r\n".join([*head, b"", b""]) + draw.choice(BODIES)


def drawn(seed):
    """Bytes of one connection: noise, a request, several, one with bytes changed, or a part."""
    draw = random.Random(seed)
    kind = draw.choice([0, 1, 1, 2, 3])
    if kind == 0:
        return draw.randbytes(draw.choice([1, 10, 100, 5_000, 50_000]))
    sent = b"".join(request(draw) for _ in range(draw.choice([1, 1, 2, 30])))
    if kind == 1:
        return sent
    if kind == 2:
        return sent[: draw.randrange(len(sent))]
    changed = bytearray(sent)
    for _ in range(draw.randrange(1, 10)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def answer_to(port, seed):
    """Send what a seed draws, on a connection of its own; return the status of the first answer."""
    with opened(port) as connection:
        connection.settimeout(0.3)
        with contextlib.suppress(OSError):  # it was refused before all was sent
            connection.sendall(drawn(seed))
            if seed % 2:
                connection.shutdown(socket.SHUT_WR)  # and so the gateway need not answer
        with contextlib.suppress(OSError):  # reset, or the gateway waits for more
            return status_of(connection.recv(65_536))
    return 0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    options = ["--http-port", "0", "--group-initial-rebalance-delay", "0s"]
    with Gateway(tmp_path_factory.mktemp("hostile") / "data", options) as gateway:
        # Until the page is imported, a connection whose client left keeps its place for 5 s.
        assert ask(port_of(gateway), "/").status == 200
        yield gateway


def port_of(gateway):
    gateway.process.wait_output("page: ", 60.0)
    return int(re.search(r"page: http://127\.0\.0\.1:(\d+)/", gateway.process.output())[1])


def attacked(port, first, each):
    """Run all attackers with seeds of their own. Returns the statuses that they got."""
    statuses: set[int] = set()

    def run(number):
        for seed in range(first + number * each, first + (number + 1) * each):
            statuses.add(answer_to(port, seed))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(ATTACKERS)]
    for thread in threads:
        thread.start()
    return threads, statuses


def under_attack(gateway, first, each):
    """Attack, and write and read records until the attack is over."""
    port = port_of(gateway)
    threads, statuses = attacked(port, first, each)
    written = 0
    for _ in count():
        produced(gateway, "beside", 20)
        written += 20
        attacking = [thread for thread in threads if thread.is_alive()]
        if not attacking:
            break
        attacking[0].join(PAUSE_S)
    reader = consumer(gateway, f"beside-{first}")
    reader.assign([TopicPartition("beside", 0, 0)])
    read = 0
    while read < written:
        message = reader.poll(10.0)
        assert message is not None and message.error() is None
        read += 1
    reader.close()
    return statuses


ANSWERS = {0, 100, 200, 304, 400, 404, 405, 408, 413, 415, 421, 431, 503}


def hold(gateway, warm, each):
    statuses = under_attack(gateway, 0, warm)
    before = status_bytes(gateway.process.pid, "VmRSS")
    statuses |= under_attack(gateway, ATTACKERS * warm, each)
    wait_until(
        lambda: status_bytes(gateway.process.pid, "VmRSS") - before < GROWTH_BYTES_MAX,
        "flat memory",
    )
    assert statuses <= ANSWERS
    assert {200, 400} <= statuses
    assert ask(port_of(gateway), "/").status == 200
    assert "Traceback" not in gateway.output()


def test_some_hundred_strings_leave_no_trace(gateway):
    hold(gateway, 20, 40)


@pytest.mark.proof
def test_ten_thousand_strings_leave_no_trace(gateway):
    hold(gateway, 100, 1_250)


# -- in a thread -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with PageRig(tmp_path_factory.mktemp("page") / "data") as rig:
        yield rig


def test_tails_that_never_read_keep_little_memory_and_no_one_waiting(rig):
    seen = Seen()
    port = rig.serve(rows(seen), unread_s_max=1.0)
    before = status_bytes("self", "VmRSS")
    tails = [opened(port) for _ in range(20)]
    for tail in tails:
        tail.sendall(b"GET /tail?size=100000 HTTP/1.1\r\n" + HOST + b"\r\n")
    assert seen.began.wait(60.0)
    assert ask(port, "/api/v1/plain").status == 200
    assert status_bytes("self", "VmRSS") - before < 20 * 2 * 1024 * 1024
    assert seen.ended.wait(60.0)
    for tail in tails:
        tail.close()
    wait_until(lambda: ask(port, "/api/v1/plain").status == 200, "room")


NAMES = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title><script>alert(1)</script>",
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(1)",
    "\x1b[31mred\x07",
    "a\r\nSet-Cookie: a=b\r\n\r\n<html>",
    "\u202eevil\u0000",
    "&lt;script&gt;",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_path_runs_no_script_and_sets_no_header(rig, name):
    port = rig.serve(rows(Seen()))
    for path in (f"/plain/{quote(name, safe='')}", f"/nowhere/{quote(name, safe='')}"):
        answer = ask(port, path)
        assert answer.status in (200, 404)
        assert "<script>alert" not in answer.text and "<img" not in answer.text
        assert "49" not in answer.text.partition('class="token"')[0].partition("<p>")[2]
        assert "set-cookie" not in answer.headers
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")

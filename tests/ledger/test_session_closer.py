"""Goal: the session of a process that died ends at once, and of one that lives it never does.

Method: real processes with sessions of a minute on a real ZooKeeper; they are killed, stopped, cut
off and bereft of their closer. A node that is still there after 30 s fails the test.
"""

import asyncio
import os
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import uvloop

from ledger import tasks
from ledger.adapters.zookeeper import close_session
from ledger.adapters.zookeeper.close_session import DONE, Session
from ledger.adapters.zookeeper.session_closer import SessionCloser
from ledger.log import Throttle
from tests.ledger.zookeeper_rig import (
    LASTING_MS,
    Told,
    World,
    connected,
    end_session,
    waits,
)
from tests.peers.processes import Process, process_tree, until
from tests.peers.proxy import Proxy

pytestmark = pytest.mark.real_loop

SOON_S = 30  # for what needs a moment; less than a session of a child lasts


class Life:
    """A process with a session, and a store that watches its node."""

    def __init__(self, process, store, told):
        self.process = process
        self.store = store
        self.told = told

    async def closer(self):
        """Return the process id of its closer, once it ignores signals to the whole service."""

        def running():
            pids = process_tree(self.process.pid)[1:]
            return pids[0] if len(pids) == 1 and ignores(pids[0], signal.SIGHUP) else None

        return await until(running, "the closer to run", SOON_S)

    async def kill(self):
        """Kill the process itself, and nothing that it started."""
        self.process.send_signal(signal.SIGKILL)
        await until(lambda: self.process.exit_code is not None, "the end of the process", SOON_S)

    async def node_goes(self):
        await until(lambda: self.told.count >= 2, "the session to end", SOON_S)
        assert not await self.store.exists("/live")

    async def node_stays(self):
        assert await waits(asyncio.ensure_future(self.told.times(2)))
        assert await self.store.exists("/live")


@pytest.fixture
def lives(zookeeper, tmp_path):
    @asynccontextmanager
    async def started(servers=zookeeper.servers):
        root = zookeeper.unused_chroot()
        async with connected(zookeeper.servers, root) as store:
            told = Told()
            store.watch("/live", told)
            argv = [sys.executable, "-m", "tests.ledger.session_child", servers, root]
            with Process(argv, tmp_path / "child.log") as process:
                await told.times(1)
                life = Life(process, store, told)
                await life.closer()
                yield life

    return started


def ignores(pid, number):
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii")
    except OSError:
        return False
    [ignored] = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(int(ignored, 16) >> (number - 1) & 1)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_killed_process_loses_its_session_at_once(lives):
    async with lives() as life:
        closer = await life.closer()
        await life.kill()
        await life.node_goes()
        await until(lambda: not alive(closer), "the closer to end", SOON_S)


async def test_a_process_that_stands_still_keeps_its_session(lives):
    async with lives() as life:
        life.process.pause()
        await life.node_stays()
        life.process.resume()
        await life.node_stays()


async def test_a_process_that_is_cut_off_keeps_its_session(lives, zookeeper):
    with Proxy(zookeeper.port) as proxy:
        async with lives(proxy.address) as life:
            proxy.refuse()
            await life.node_stays()


async def test_a_closer_that_was_killed_is_replaced(lives):
    async with lives() as life:
        first = await life.closer()
        os.kill(first, signal.SIGKILL)

        async def replaced():
            while (pid := await life.closer()) == first:
                await asyncio.sleep(0.01)
            return pid

        async with asyncio.timeout(SOON_S):
            await replaced()
        await life.node_stays()
        await life.kill()
        await life.node_goes()


async def test_signals_to_the_whole_service_leave_the_closer_to_its_work(lives):
    async with lives() as life:
        closer = await life.closer()
        assert os.getsid(closer) == closer, "signals of the terminal do not reach it"
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(closer, number)
        await life.kill()
        await life.node_goes()


async def test_a_closer_that_was_stopped_closes_nothing(lives):
    async with lives() as life:
        closer = await life.closer()
        life.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(life.process.wait_output, "stopped", SOON_S)
        assert not alive(closer)
        await life.kill()
        await life.node_stays()


async def test_a_loop_that_ends_without_stopping_its_closer_loses_its_session_at_once(lives):
    """As after a failure on the way to the end of the process."""
    async with lives() as life:
        life.process.send_signal(signal.SIGUSR1)
        await life.node_goes()


async def test_a_closer_that_stands_still_ends_with_the_others(lives):
    async with lives() as life:
        closer = await life.closer()
        os.kill(closer, signal.SIGSTOP)
        life.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(life.process.wait_output, "stopped", SOON_S)
        await until(lambda: not alive(closer), "the closer to end", SOON_S)


async def test_a_server_that_died_is_passed_over(lives, zookeeper):
    with Proxy(zookeeper.port) as proxy:
        async with lives(f"{proxy.address},{zookeeper.servers}") as life:
            proxy.refuse()
            await life.kill()
            await life.node_goes()


async def test_the_server_of_the_connection_is_reported_before_the_others(zookeeper):
    reported = []
    root = zookeeper.unused_chroot()
    with Proxy(zookeeper.port) as one, Proxy(zookeeper.port) as two:
        proxies = (one, two)
        async with connected(f"{one.address},{two.address}", root, on_session=reported.append):
            for _ in range(3):
                [used] = [each for each in proxies if each.port == reported[-1].servers[0][1]]
                count = len(reported)
                used.refuse()
                await until(lambda count=count: len(reported) > count, "the other server", SOON_S)
                used.heal()
                assert reported[-1].servers[0][1] != used.port
        assert {frozenset(each.servers) for each in reported} == {
            frozenset(("127.0.0.1", each.port) for each in proxies)
        }
        assert {each.timeout_ms for each in reported} == {LASTING_MS}


async def test_each_session_is_reported_with_the_server_that_granted_it_first(zookeeper):
    reported = []
    root = zookeeper.unused_chroot()
    with Proxy(zookeeper.port) as proxy:
        async with (
            connected(proxy.address, root, on_session=reported.append) as far,
            connected(zookeeper.servers, root) as near,
        ):
            world = World(zookeeper, proxy, far, near)
            end_session(zookeeper, proxy, far)
            await until(lambda: world.renewed == 1, "a new session", SOON_S)
            assert len({session.session_id for session in reported}) == 2
            assert (reported[-1].session_id, reported[-1].password) == world.session()
            assert reported[-1].servers == (("127.0.0.1", proxy.port),)
            assert reported[-1].timeout_ms == LASTING_MS


async def without_its_child(failures):
    """Tell a closer of sessions, from before its child is killed until another one runs."""
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: failures.append(repr(context["exception"]))
    )
    closer = SessionCloser()
    closer.start()
    first = await until(lambda: closer.pid, "the child to run", SOON_S)
    os.kill(first, signal.SIGKILL)
    told = 0
    while closer.pid in (first, None):
        told += 1
        closer.keep(Session(told, bytes(16), 1000, ()))
        await asyncio.sleep(0.001)
    await closer.stop()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_end_of_the_child_disturbs_nobody_and_is_one_line_in_the_log(
    new_loop, capsys, monkeypatch
):
    monkeypatch.setattr(tasks, "_throttle", Throttle())  # another test may have used up the minute
    failures = []
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(without_its_child(failures), SOON_S))
    assert failures == []
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "the child" in each]
    assert "level=warning" in line
    assert 'reason="exit code -9"' in line


async def test_whoever_is_told_of_a_session_cannot_hide_its_renewal_from_others(zookeeper):
    def failing(session):
        raise RuntimeError(f"told of {session.session_id}")

    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: reports.append(told))
    root = zookeeper.unused_chroot()
    with Proxy(zookeeper.port) as proxy:
        async with (
            connected(proxy.address, root, on_session=failing) as far,
            connected(zookeeper.servers, root) as near,
        ):
            world = World(zookeeper, proxy, far, near)
            end_session(zookeeper, proxy, far)
            await until(lambda: world.renewed == 1, "a new session", SOON_S)
            assert len(reports) == 2


# The program that the closer runs


def session_of(store, servers):
    session_id, password = store._bridge.client.client_id
    places = tuple((host, int(port)) for host, port in (one.split(":") for one in servers))
    return Session(session_id, password, 10_000, places)


def run(given, limit_s=60):
    """The exit code of the program, given these bytes and then the end of its input."""
    words = [sys.executable, "-I", "-S", close_session.__file__]
    return subprocess.run(words, input=given, timeout=limit_s, check=False).returncode


async def test_the_last_complete_line_counts(zookeeper):
    root = zookeeper.unused_chroot()
    async with connected(zookeeper.servers, root) as one, connected(zookeeper.servers, root) as two:
        sessions = [session_of(store, [zookeeper.servers]) for store in (one, two)]
        renewed = []
        for store in (one, two):
            store.watch_session(lambda store=store: renewed.append(store))
        first, second = (session.line() for session in sessions)
        assert await asyncio.to_thread(run, second + DONE + b"\n" + first + second[:-5]) == 0
        await until(lambda: renewed == [one], "the first session to end", SOON_S)
        assert await asyncio.to_thread(run, second + DONE + b"\n") == 0
        assert await asyncio.to_thread(run, b"") == 0
        assert await two.exists("/")
        assert renewed == [one]


async def test_every_server_is_tried(zookeeper):
    root = zookeeper.unused_chroot()
    with Proxy(zookeeper.port) as dead:
        dead.refuse()
        async with (
            connected(zookeeper.servers, root) as other,
            connected(zookeeper.servers, root) as store,
        ):
            await store.create("/live", ephemeral=True)
            session = session_of(store, [*[dead.address] * 4, zookeeper.servers])
            assert await asyncio.to_thread(run, session.line()) == 0
            assert not await other.exists("/live")


async def test_a_session_that_is_over_or_has_another_password_is_left_alone(zookeeper):
    root = zookeeper.unused_chroot()
    async with connected(zookeeper.servers, root) as store:
        session = session_of(store, [zookeeper.servers])
        wrong = session._replace(password=bytes(16))
        assert await asyncio.to_thread(run, wrong.line()) == 0
        await store.create("/live", ephemeral=True)
        assert session_of(store, [zookeeper.servers]) == session
    assert await asyncio.to_thread(run, session.line()) == 0


@pytest.mark.parametrize(
    "line", [b"nonsense", b"1 zz 600 a:1", b"1 00 x a:1", b"\xff", b"1 00 6 a"]
)
def test_a_line_that_is_no_session_ends_the_program(line):
    assert run(line + b"\n") == 1


def test_endless_input_without_a_line_takes_no_memory():
    assert run(b"x" * 4_000_000) == 0


class Hostile(socketserver.BaseRequestHandler):
    """A server that answers with the given bytes, and then says no more."""

    def handle(self):
        self.request.recv(4096)
        self.request.sendall(self.server.answer)
        self.server.over.wait(60)


@contextmanager
def hostile(answer):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Hostile) as server:
        server.daemon_threads = True
        server.answer, server.over = answer, threading.Event()
        serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.over.set()
            server.shutdown()
            serving.join()


class Forgetful(socketserver.BaseRequestHandler):
    """A server that lets a client connect to ZooKeeper, and fails at its next request."""

    def handle(self):
        self.server.taken.append(self.request.recv(4096))
        with socket.create_connection(self.server.behind) as zookeeper:
            zookeeper.sendall(self.server.taken[-1])
            self.request.sendall(zookeeper.recv(4096))
            self.request.recv(4096)


async def test_a_session_that_a_server_did_not_close_ends_with_the_shortest_timeout(
    lives, zookeeper
):
    async with lives() as life:
        closer = await life.closer()
        os.kill(closer, signal.SIGSTOP)
        await life.kill()
        os.kill(closer, signal.SIGKILL)
        [line] = [each for each in life.process.output().splitlines() if "session" in each]
        session = Session.of_line(line.removeprefix("session ").encode())
        assert session.timeout_ms >= 60_000
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forgetful) as server:
            server.daemon_threads = True
            server.taken, server.behind = [], ("127.0.0.1", zookeeper.port)
            serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            serving.start()
            place = ("127.0.0.1", server.server_address[1])
            brief = session._replace(timeout_ms=300, servers=(place,))
            while not server.taken:  # a busy machine may keep its server waiting for too long
                assert await asyncio.to_thread(run, brief.line()) == 1
            server.shutdown()
        await life.node_goes()


@pytest.mark.parametrize(
    "answer",
    [b"", b"\0\0", struct.pack(">i", 2**31 - 1), struct.pack(">i", -5), struct.pack(">ii", 4, 0)],
    ids=["silence", "half a size", "a huge size", "a negative size", "a short answer"],
)
async def test_a_server_that_answers_nonsense_is_passed_over(zookeeper, answer):
    root = zookeeper.unused_chroot()
    with hostile(answer) as nonsense:
        async with (
            connected(zookeeper.servers, root) as other,
            connected(zookeeper.servers, root) as store,
        ):
            await store.create("/live", ephemeral=True)
            session = session_of(store, [nonsense, zookeeper.servers])
            assert await asyncio.to_thread(run, session.line()) == 0
            assert not await other.exists("/live")


def test_without_a_server_the_program_gives_up_after_the_session_timeout():
    with hostile(b"") as silent:
        host, port = silent.split(":")
        session = Session(7, bytes(16), 300, ((host, int(port)),))
        assert run(session.line()) == 1

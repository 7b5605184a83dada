"""Goal: whoever watches a path learns of its last change, whatever happens to the connection.

Method: `Watches` beside a model of a ZooKeeper server's watches, in virtual time. The model answers
requests in order, fires each watch once, and loses connections and sessions at random.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from types import SimpleNamespace

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError, NoWatcherError, OperationTimeoutError

from ledger.adapters.zookeeper import zookeeper_watches
from ledger.adapters.zookeeper.zookeeper_watches import ARMED_AT_ONCE, RETRY_S_MAX, Watches
from tests.peers.processes import until

PATHS = [f"/n{number}" for number in range(8)]


class Server:
    """Nodes, the watches of one session, and what is on its way in both directions."""

    def __init__(self):
        self.zxid = 0
        self.nodes = {}  # path: (czxid, mzxid, pzxid)
        self.data_watches, self.child_watches = set(), set()
        self.requests = deque()  # (future, its answer as a function, refusable), not served yet
        self.replies = deque()  # functions, answered and not delivered yet
        self.seen_zxid = 0  # the client's: of the last reply delivered
        self.watches = Watches(self)
        self.restored = 0
        self.failing = False  # refuses every request but removals

    # The requests.

    def arm(self, path):
        return self._ask(lambda: self._exists(path)), self._ask(lambda: self._children(path))

    def restore(self, since_zxid, present, missing):
        return self._ask(lambda: self._set_watches(since_zxid, present, missing))

    def remove(self, path):
        return self._ask(lambda: self._remove(path), refusable=False)

    def _ask(self, serve, *, refusable=True):
        future = asyncio.get_running_loop().create_future()
        self.requests.append((future, serve, refusable))
        return future

    def _exists(self, path):
        self.data_watches.add(path)
        node = self.nodes.get(path)
        return None if node is None else _stat(node)

    def _children(self, path):
        if path not in self.nodes:
            raise NoNodeError
        self.child_watches.add(path)
        return [], _stat(self.nodes[path])

    def _set_watches(self, since_zxid, present, missing):
        self.restored += len(present) + len(missing)
        for path in present:
            node = self.nodes.get(path)
            if node is None or node[1] > since_zxid:
                self._event(path)
            else:
                self.data_watches.add(path)
            if node is None or node[2] > since_zxid:
                self._event(path)
            else:
                self.child_watches.add(path)
        for path in missing:
            if path in self.nodes:
                self._event(path)
            else:
                self.data_watches.add(path)

    def _remove(self, path):
        if path not in self.data_watches | self.child_watches:
            raise NoWatcherError
        self.data_watches.discard(path)
        self.child_watches.discard(path)

    # What happens at the server.

    def change(self, path, kind):
        self.zxid += 1
        node = self.nodes.get(path)
        if node is None:
            self.nodes[path] = (self.zxid, self.zxid, self.zxid)
            self._fire(path, self.data_watches)
        elif kind == "delete":
            del self.nodes[path]
            self._fire(path, self.data_watches, self.child_watches)
        elif kind == "data":
            self.nodes[path] = (node[0], self.zxid, node[2])
            self._fire(path, self.data_watches)
        else:
            self.nodes[path] = (node[0], node[1], self.zxid)
            self._fire(path, self.child_watches)

    def _fire(self, path, *tables):
        if any(path in table for table in tables):
            self._event(path)
        for table in tables:
            table.discard(path)

    def _event(self, path):
        self.replies.append(lambda: self.watches.on_fired(path))

    def serve(self):
        """Answer the oldest request. The answer follows all events so far."""
        future, serve, refusable = self.requests.popleft()
        refused = self.failing and refusable
        try:
            value, error = (None, OperationTimeoutError()) if refused else (serve(), None)
        except (NoNodeError, NoWatcherError) as raised:
            value, error = None, raised
        zxid = self.zxid

        def deliver():
            self.seen_zxid = zxid
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def lose():
            future.set_exception(ConnectionLoss())

        deliver.lose = lose
        self.replies.append(deliver)

    def go_on(self, *, serve):
        """Serve a request or deliver a reply, if there is one."""
        if serve and self.requests:
            self.serve()
        elif not serve and self.replies:
            self.replies.popleft()()

    def lose_connection(self):
        """Nothing on its way arrives. The client learns of it at once."""
        self.data_watches.clear()
        self.child_watches.clear()
        for future, *_ in self.requests:
            future.set_exception(ConnectionLoss())
        for reply in self.replies:
            if hasattr(reply, "lose"):
                reply.lose()
        self.requests.clear()
        self.replies.clear()

    async def reconnect(self, draw):
        """Lose the connection, and perhaps the session, and come back."""
        self.lose_connection()
        await asyncio.sleep(draw.choice([0, 0, 1]))
        renewed = draw.random() < 0.3
        self.seen_zxid = 0 if renewed else self.seen_zxid
        self.watches.on_connected(renewed=renewed, since_zxid=self.seen_zxid)

    async def settle(self):
        """Serve and deliver everything until nothing is left to do."""
        for _ in range(1000):
            while self.requests or self.replies:
                if self.requests:
                    self.serve()
                while self.replies:
                    self.replies.popleft()()
                await asyncio.sleep(0)
            await asyncio.sleep(RETRY_S_MAX)  # of virtual time: a pause after a failure
            if not self.requests and not self.replies:
                return
        raise AssertionError("the client never stops asking")


def _stat(node):
    return SimpleNamespace(czxid=node[0], mzxid=node[1], pzxid=node[2])


class Reader:
    """Watches one path and reads it after each call, as every user of a watch does."""

    def __init__(self, server, path):
        self.server, self.path = server, path
        self.told = 0
        self.unwatch = server.watches.watch(path, self._on_changed)
        self.known = None
        self._read()

    def _on_changed(self):
        self.told += 1
        self._read()

    def _read(self):
        """Reads follow what was asked before, so they see at least the state of now."""
        asked = self.server._ask(lambda: self.server.nodes.get(self.path))
        asked.add_done_callback(self._on_read)

    def _on_read(self, asked):
        if asked.exception() is None:
            self.known = asked.result()
        else:
            self._read()


@pytest.mark.parametrize("seed", range(150))
async def test_the_last_change_is_never_missed(seed, monkeypatch):
    if seed % 2:  # one path in each request, so that connections end between two of them
        monkeypatch.setattr(zookeeper_watches, "RESTORED_BYTES", 1)
    draw, server = random.Random(seed), Server()
    readers = []
    for _ in range(400):
        step = draw.random()
        if step < 0.25:
            server.change(draw.choice(PATHS), draw.choice(["data", "children", "delete"]))
        elif step < 0.85:
            server.go_on(serve=step < 0.55)
        elif step < 0.90 and len(readers) < 12:
            readers.append(Reader(server, draw.choice(PATHS)))
        elif step < 0.93 and readers:
            readers.pop(draw.randrange(len(readers))).unwatch()
        elif step < 0.96:
            await server.reconnect(draw)
        elif step < 0.97:
            server.failing = not server.failing
        await asyncio.sleep(0)
    server.failing = False
    await server.settle()
    for reader in readers:
        assert reader.known == server.nodes.get(reader.path), reader.path
    wanted = {reader.path for reader in readers}
    assert server.data_watches == wanted == set(server.watches._watched)
    assert server.child_watches == wanted & server.nodes.keys()


async def test_a_connection_lost_between_two_restores_loses_no_change(monkeypatch):
    monkeypatch.setattr(zookeeper_watches, "RESTORED_BYTES", 1)
    server = Server()
    for path in PATHS:
        server.change(path, "data")
    readers = [Reader(server, path) for path in PATHS]
    await server.settle()
    server.lose_connection()
    server.watches.on_connected(renewed=False, since_zxid=server.seen_zxid)
    for path in PATHS:
        server.change(path, "data")
    server.serve()  # one path is restored; its answer names a transaction after all changes
    while server.replies:
        server.replies.popleft()()
    server.lose_connection()
    server.watches.on_connected(renewed=False, since_zxid=server.seen_zxid)
    await server.settle()
    assert [reader.known for reader in readers] == [server.nodes[path] for path in PATHS]


async def test_another_connection_restores_watches_by_few_requests_and_tells_no_one():
    server = Server()
    server.change("/n0", "data")
    told = [Reader(server, f"/many/{number}") for number in range(5000)]
    told.append(Reader(server, "/n0"))
    await server.settle()
    server.lose_connection()
    server.watches.on_connected(renewed=False, since_zxid=server.seen_zxid)
    requests = 0
    while server.requests:
        assert len(server.requests) == 1
        requests += 1
        server.serve()
        server.replies.popleft()()
        await asyncio.sleep(0)
    assert server.restored == 5001
    assert requests < 10
    assert {reader.told for reader in told} == {0}
    assert len(server.data_watches) == 5001


async def test_watches_of_a_new_session_leave_in_bounded_batches():
    server = Server()
    readers = [Reader(server, f"/many/{number}") for number in range(1000)]
    await server.settle()
    server.lose_connection()
    server.watches.on_connected(renewed=True, since_zxid=0)
    reads = 2 * ARMED_AT_ONCE + len(readers)  # each told reader reads once
    while server.requests or server.replies:
        assert len(server.requests) <= reads
        if server.requests:
            server.serve()
        while server.replies:
            server.replies.popleft()()
        await asyncio.sleep(0)
    assert {reader.told for reader in readers} == {1}


async def test_watches_that_a_server_refuses_are_armed_once_it_takes_them():
    server = Server()
    reader = Reader(server, "/n0")
    await server.settle()
    server.failing = True
    server.change("/n0", "data")
    for _ in range(5):
        while server.requests or server.replies:
            if server.requests:
                server.serve()
            while server.replies:
                server.replies.popleft()()
            await asyncio.sleep(0)
        await until(lambda: server.requests, "the watch to be armed again", 2 * RETRY_S_MAX)
    assert reader.told == 0
    server.failing = False
    await server.settle()
    assert reader.known == server.nodes["/n0"]

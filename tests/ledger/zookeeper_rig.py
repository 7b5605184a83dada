"""Stores on a real ZooKeeper for tests: one behind a misbehaving proxy, one without."""

import asyncio
import contextlib
import functools
import math
import re
import threading

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from ledger.adapters.system.clock import monotonic_s
from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from ledger.errors import MetadataUnavailable
from tests.peers.processes import TookTooLong, until, wait_until
from tests.peers.proxy import Proxy
from tests.peers.stalls import Stalls

STALL_S = 0.05  # of a busy machine; an idle one wakes a thread within a millisecond or two
LATE_S = 0.1  # of a server that stood still; some reads take as long as half of it
SHORT_MS = 600  # a session that a test waits for to end; ticks are 100 ms
# A session that no stall ends: a connection is dropped after two thirds of it without an answer.
LASTING_MS = 60_000
CONNECT_S_MAX = 60.0  # only ends a test that hangs

lasting = functools.partial(connect_zookeeper, session_ms=LASTING_MS, connect_s=CONNECT_S_MAX)
"""Opens a store whose session no stall ends."""


@contextlib.asynccontextmanager
async def connected(server, root, session_ms=LASTING_MS, **settings):
    """A store. A stall may end a short session while the root is created: connect again."""

    def connect():
        return lasting(server, chroot=root, session_ms=session_ms, **settings)

    store = await (connect() if session_ms >= LASTING_MS else patient(connect))
    try:
        yield store
    finally:
        await store.close()


async def refused(reason, server, **settings):
    """Try to connect. On a busy machine a short wait may end before an attempt has its reason."""
    for connect_s in (1.0, 5.0, CONNECT_S_MAX):
        with pytest.raises(MetadataUnavailable) as failed:
            await connect_zookeeper(server, connect_s=connect_s, **settings)
        if re.search(reason, str(failed.value)):
            return
    raise failed.value


def end_session(server, proxy, store):
    """As if it had expired: another connection takes the session over and closes it."""
    session = store._bridge.client.client_id
    proxy.refuse()  # or the store would take it back
    thief = KazooClient(server.servers, client_id=session)
    thief.start()
    thief.stop()
    thief.close()
    proxy.heal()


class World:
    """Two stores on one root: `far` behind the proxy, `near` without."""

    def __init__(self, server, proxy, far, near):
        self.server, self.proxy, self.far, self.near = server, proxy, far, near
        self.renewed = 0
        far.watch_session(self._count)

    def _count(self):
        self.renewed += 1

    def session(self):
        return self.far._bridge.client.client_id


@contextlib.asynccontextmanager
async def world_on(server, **settings):
    """Open both stores on a new root of this server; the settings are those of `far`."""
    with Proxy(server.port) as proxy:
        root = server.unused_chroot()
        async with (
            connected(proxy.address, root, **settings) as far,
            connected(server.servers, root) as near,
        ):
            yield World(server, proxy, far, near)


async def patient(call):
    """The answer of the first call that gets one."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except MetadataUnavailable:
                await asyncio.sleep(0.01)


class LateAnswers:
    """Measures the longest time that a read took, which passes the server's queue of changes."""

    def __init__(self, server):
        self.longest_s = 0.0
        self._client = KazooClient(server.servers, timeout=60)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        self._client.start(60)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._ended.set()
        self._thread.join()
        self._client.stop()
        self._client.close()

    def _look(self):
        while not self._ended.wait(0.01):
            asked_s = monotonic_s()
            try:
                self._client.exists("/")
            except KazooException:  # an ensemble that stood still elects another leader
                self.longest_s = math.inf
            self.longest_s = max(self.longest_s, monotonic_s() - asked_s)


async def in_some_try(attempt, server, tries=5, late_s=LATE_S):
    """True once an attempt returns True. Only after a stall another one follows.

    A machine that stands still for a part of a short session may cost others theirs; so may a
    server that alone stands still.
    """
    waits_left = 1  # a wait that took too long is forgiven once: it hides what never happens
    for _ in range(tries):
        with Stalls() as stalls, LateAnswers(server) as late:
            outcome = await _tried(attempt)
        if outcome is True:
            return True
        if stalls.longest_s < STALL_S and late.longest_s < late_s:
            break
        if isinstance(outcome, TookTooLong):
            waits_left -= 1
            if waits_left < 0:
                break
    if isinstance(outcome, TookTooLong):
        raise outcome
    return False


async def _tried(attempt):
    """Return what the attempt returns, or its error if it had no connection or waited too long."""
    try:
        return await attempt()
    except (MetadataUnavailable, TookTooLong) as error:
        return error


async def waits(future):
    """True when it has not ended after the loop and the server had time for it."""
    done, _ = await asyncio.wait([future], timeout=0.1)
    return not done


class Told:
    """Counts how often it was called."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1

    async def times(self, count):
        await until(lambda: self.count >= count, f"to be told {count} times", 60)


def no_thread_is_left():
    """True soon after the last store was closed: its thread tells so, and ends a moment later."""

    def ended():
        return all(thread.name != "zookeeper" for thread in threading.enumerate())

    return wait_until(ended, "the thread to end", 60)

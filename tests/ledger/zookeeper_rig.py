"""Stores on a real ZooKeeper for tests: one behind a misbehaving proxy, one without."""

import asyncio
import contextlib
import threading

from kazoo.client import KazooClient

from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from ledger.errors import MetadataUnavailable
from tests.peers.processes import until, wait_until
from tests.peers.stalls import Stalls

STALL_S = 0.05  # of a busy machine; an idle one wakes a thread within a millisecond or two
SHORT_MS = 600  # a session that a test waits for to end; ticks are 100 ms


@contextlib.asynccontextmanager
async def connected(server, root, **settings):
    store = await connect_zookeeper(server, chroot=root, **settings)
    try:
        yield store
    finally:
        await store.close()


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


async def patient(call):
    """The answer of the first call that gets one."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except MetadataUnavailable:
                await asyncio.sleep(0.01)


async def in_some_try(attempt, tries=5):
    """True once an attempt returns True. Only after a stall another one follows.

    A machine that stands still for a part of a short session may cost others theirs.
    """
    for _ in range(tries):
        with Stalls() as stalls, contextlib.suppress(MetadataUnavailable):
            if await attempt():
                return True
        if stalls.longest_s < STALL_S:
            return False
    return False


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
        await until(lambda: self.count >= count, f"to be told {count} times", 10)


def no_thread_is_left():
    """True soon after the last store was closed: its thread tells so, and ends a moment later."""

    def ended():
        return all(thread.name != "zookeeper" for thread in threading.enumerate())

    return wait_until(ended, "the thread to end", 5)

"""Goal: a lease ends before its session does, whichever server of an ensemble fails, and how.

Method: three real servers. One of them, the leader or a follower, is killed, paused or cut off
from the others; a follower that is cut off serves its clients for a while. One store knows this
server only, another knows all, and a third one watches from the other side.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gateway.cluster.lease import Lease
from ledger.adapters.system.clock import SystemClock
from ledger.errors import NodeExists
from ledger.ports.metadata import ANY_VERSION
from tests.ledger.zookeeper_rig import Told, connected, in_some_try, patient
from tests.peers.processes import until
from tests.peers.zookeeper import HOWS, Ensemble

pytestmark = pytest.mark.real_loop

SESSION_MS = 1_000
SYNC_LIMIT = 30  # ticks of 100 ms: a follower notices no sooner than after three sessions


@pytest.fixture
def ensemble(tmp_path):
    """A new one for each test: what was harmed takes long to come back."""
    with Ensemble(tmp_path / "ensemble", sync_limit=SYNC_LIMIT) as started:
        yield started


def lease_of(store):
    return Lease(SystemClock(), lambda: store.confirmed_s, lambda: store.negotiated_session_ms)


async def create_once(store, path, **how):
    """Create the node, though an earlier try may have done so whose reply was lost."""
    with contextlib.suppress(NodeExists):
        await patient(lambda: store.create(path, **how))


async def register(owner):
    """Create the node of the owner. Returns the session that has it."""
    session = None
    while session != session_of(owner):
        session = session_of(owner)
        await create_once(owner, "/owner", ephemeral=True)
    return session


async def lease_outlives_session(other, owner, session, lease):
    """Wait until others see that the session has ended. Returns whether its lease is held then.

    A busy machine may have ended it before; the lease of a later session is another one.
    """
    while await patient(lambda: other.exists("/owner")):
        await asyncio.sleep(0)
    return lease() and session_of(owner) == session


IN_SHORT = (("follower", "cut off"), ("leader", "killed"))
"""Each test starts three servers, so `make test` has two of the six and `make proof` the others."""


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        pytest.param(mode, how, marks=[] if (mode, how) in IN_SHORT else [pytest.mark.proof])
        for mode in ("follower", "leader")
        for how in HOWS
    ],
)
async def test_a_lease_ends_before_its_session(ensemble, mode, how):
    member = await asyncio.to_thread(ensemble.member, mode)
    root = f"/{mode}-{how.replace(' ', '-')}"
    rest = ",".join(one.servers for one in ensemble.members if one is not member)
    async with (
        connected(rest, root, session_ms=20_000) as other,
        connected(member.servers, root, session_ms=SESSION_MS, prove_session=True) as owner,
        connected(ensemble.servers, root, session_ms=SESSION_MS, prove_session=True) as knows_all,
    ):
        told, lease = Told(), lease_of(owner)
        session = await register(owner)
        await create_once(other, "/changed")
        knows_all.watch("/changed", told)
        await patient(lambda: knows_all.sync("/"))
        began_s = lease.until_s
        await until(lambda: lease.until_s > began_s + SESSION_MS / 1000, "the lease to be renewed")
        await asyncio.to_thread(ensemble.harm, member, how)
        assert not await lease_outlives_session(other, owner, session, lease)
        await patient(lambda: other.set("/changed", b"x", ANY_VERSION))
        await told.times(1)
        await until(lease_of(knows_all), "a lease that rests on the other servers")


async def test_a_follower_that_is_cut_off_costs_no_session(ensemble):
    """Its answers prove nothing, so the store turns to another server in time."""
    member = await asyncio.to_thread(ensemble.member, "follower")
    leader = await asyncio.to_thread(ensemble.member, "leader")
    servers = f"{member.servers},{leader.servers}"

    async def kept():
        async with connected(servers, "/turn", session_ms=2_000, prove_session=True) as store:
            renewed = Told()
            store.watch_session(renewed)
            await connect_to(store, member)
            await create_once(store, "/owner", ephemeral=True)
            ensemble.cut_off(member)
            await create_once(store, "/x")
            if await patient(lambda: store.exists("/owner")) and renewed.count == 0:
                return True
        await asyncio.to_thread(ensemble.undo, member, "cut off")
        return False

    assert await in_some_try(kept, leader, tries=5)


async def connect_to(store, member):
    while not await asyncio.to_thread(is_client, store, member):
        with contextlib.suppress(AttributeError, OSError):  # it is connecting anyway
            store._bridge.client._connection._socket.shutdown(2)
        await patient(lambda: store.sync("/"))


def session_of(store):
    return store._bridge._session_id


def is_client(store, member):
    return f"sid=0x{session_of(store):x}" in member.ask("cons")

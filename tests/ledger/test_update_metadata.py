"""Goal: a change of a ledger's metadata is done once, whatever becomes of requests and replies.

Method: LedgerMetadataStore on a real ZooKeeper behind a proxy that loses either, and a rival
that no proxy stands in the way of.
"""

import asyncio
import contextlib
import random
from dataclasses import replace

import pytest

from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from tests.ledger.zookeeper_rig import lasting
from tests.peers.processes import until
from tests.peers.proxy import BOTH, TO_CLIENT, TO_SERVER, Proxy

pytestmark = pytest.mark.real_loop

CONFIG = LedgerClientConfig(metadata_attempts_max=100, metadata_retry_s=0.001)


def new_ledger(ledger=7, token=1):
    fragments = (Fragment(0, ("b0", "b1", "b2")),)
    return LedgerMetadata(
        ledger=ledger,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=fragments,
        token=token,
    )


def closing(metadata):
    if metadata.closed:
        return None
    return metadata.close(4, 100)


def marking(mark):
    """Adds a mark of its own, once."""

    def change(metadata):
        if mark in metadata.custom:
            return None
        return replace(metadata, custom={**metadata.custom, mark: b""})

    return change


@pytest.fixture
def stores(zookeeper):
    """Opens a proxy and two stores on one tree, the first of them behind the proxy."""

    @contextlib.asynccontextmanager
    async def opened():
        with Proxy(zookeeper.port) as proxy:
            root = zookeeper.unused_chroot()
            far = await lasting(proxy.address, chroot=root)
            near = await lasting(zookeeper.servers, chroot=root)
            try:
                yield proxy, *(LedgerMetadataStore(store, CONFIG) for store in (far, near))
            finally:
                proxy.heal()
                await far.close()
                await near.close()

    return opened


@pytest.mark.parametrize("lane", BOTH)
async def test_a_ledger_is_made_though_the_request_or_its_reply_was_lost(stores, lane):
    async with stores() as (proxy, far, near):
        await far.create(new_ledger(1))  # its parents exist from now on
        proxy.cut_at_next(lane)
        assert await far.create(new_ledger(2))
        assert (await near.read(2)).metadata == new_ledger(2)
        assert proxy.accepted == 2


async def test_anothers_ledger_is_not_taken_for_ones_own_when_the_reply_is_lost(stores):
    async with stores() as (proxy, far, near):
        assert await near.create(new_ledger(2, token=99))
        proxy.cut_at_next(TO_CLIENT)
        assert not await far.create(new_ledger(2, token=1))
        assert (await near.read(2)).metadata.token == 99


async def test_ones_own_change_is_recognised_when_its_reply_was_lost(stores):
    async with stores() as (proxy, far, near):
        await far.create(new_ledger())
        known = await far.read(7)
        proxy.cut_at_next(TO_CLIENT)
        stored = await far.update(known, closing)
        assert (stored.metadata.state, stored.version) == (LedgerState.CLOSED, 1)
        assert await near.read(7) == stored


async def test_a_change_is_decided_again_on_what_a_rival_wrote_meanwhile(stores):
    async with stores() as (proxy, far, near):
        await far.create(new_ledger())
        known = await far.read(7)
        await near.update(known, lambda metadata: metadata.in_recovery())
        decided_on = []

        def recovering(metadata):
            decided_on.append(metadata.state)
            return marking("far")(metadata)

        proxy.cut_at_next(TO_SERVER)
        stored = await far.update(known, recovering)
        assert decided_on == [LedgerState.OPEN, LedgerState.IN_RECOVERY]
        assert stored.metadata.state is LedgerState.IN_RECOVERY
        assert (await near.read(7)).metadata == stored.metadata


async def test_under_many_lost_requests_and_replies_every_change_is_done_once(stores):
    chance = random.Random(4)

    async with stores() as (proxy, far, near):
        await near.create(new_ledger())

        async def spoil():
            """Each connection serves for some bytes, then a request or a reply is lost."""
            while True:
                lane, accepted = chance.choice(BOTH), proxy.accepted
                enough = proxy.passed_bytes(lane) + chance.randrange(800)
                await until(lambda: proxy.passed_bytes(lane) >= enough, "traffic")  # noqa: B023
                proxy.cut_at_next(lane)
                await until(lambda: proxy.accepted > accepted, "a new connection")  # noqa: B023

        async def change(store, name):
            versions = []
            for i in range(20):
                known = await store.read(7)
                versions.append((await store.update(known, marking(f"{name}{i}"))).version)
            return versions

        spoiling = asyncio.ensure_future(spoil())
        try:
            changed = await asyncio.gather(
                *(change(far, name) for name in "ab"), *(change(near, name) for name in "xy")
            )
        finally:
            spoiling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await spoiling
        stored = await near.read(7)
        assert set(stored.metadata.custom) == {f"{name}{i}" for name in "abxy" for i in range(20)}
        assert stored.version == 80
        assert all(versions == sorted(set(versions)) for versions in changed)
        assert proxy.accepted > 5

"""Goal: who asks a bookie whose connection ends meanwhile is answered, never cancelled by it.

Method: a real bookie over each transport behind a proxy that holds what it is given.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from ledger.adapters.links.link_config import LinkConfig
from ledger.bookie.in_process import open_local_bookie
from ledger.ids import LedgerId
from ledger.ports.bookies import BookieInfo, Status
from tests.ledger.bookie_rig import KEY
from tests.ledger.transports import bookies_of, server_of
from tests.peers.proxy import Proxy
from tests.sim.bookie_world import entry_buffers

CONFIG = LinkConfig(add_timeout_s=0.2, control_timeout_s=600.0)
pytestmark = [pytest.mark.real_loop, pytest.mark.usefixtures("transport")]

LONG_S = 60.0  # far less than a control call may take


@asynccontextmanager
async def served(tmp_path):
    """The client port, the id of a bookie and the proxy between them."""
    opened = await open_local_bookie(tmp_path / "bookie")
    server = server_of(opened.bookie)
    bookie = opened.bookie.bookie_id
    with Proxy(await server.start("127.0.0.1", 0)) as proxy:
        port = bookies_of(lambda: {bookie: BookieInfo(port=proxy.port)}, CONFIG)
        async with asyncio.timeout(LONG_S):
            while await add(port, bookie, 0) is not Status.OK:  # late on a busy machine
                await asyncio.sleep(0.01)
            yield port, bookie, proxy
        await port.close()
    await server.stop(0)
    await opened.close()


def add(port, bookie, entry):
    told = asyncio.get_running_loop().create_future()
    port.add(bookie, LedgerId(1), entry, KEY, entry_buffers(1, entry, b"x"), told.set_result)
    return told


@pytest.mark.parametrize("call", ["read_lac", "list_entries"])
async def test_a_call_under_way_when_the_connection_is_given_up_is_unreachable(tmp_path, call):
    async with served(tmp_path) as (port, bookie, proxy):
        assert (await getattr(port, call)(bookie, LedgerId(1))).status is Status.OK
        proxy.freeze()
        asking = asyncio.ensure_future(getattr(port, call)(bookie, LedgerId(1)))
        assert await add(port, bookie, 1) is Status.UNREACHABLE  # silent: the connection ends
        assert (await asking).status is Status.UNREACHABLE


async def test_who_gives_up_waiting_is_cancelled_as_elsewhere(tmp_path):
    async with served(tmp_path) as (port, bookie, proxy):
        proxy.freeze()
        asking = asyncio.ensure_future(port.read_lac(bookie, LedgerId(1)))
        await asyncio.wait([asking], timeout=0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        proxy.heal()

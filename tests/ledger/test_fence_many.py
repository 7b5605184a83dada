"""Goal: FENCE_MANY goes only to bookies that announced it; others get single requests.

Method: a real bookie behind its TCP server, whose calls are counted.
"""

import pytest

from ledger.bookie import tcp_connection
from ledger.bookie.in_process import open_local_bookie
from ledger.bookie.tcp_server import TcpServer
from ledger.ports.bookies import FENCED_MAX, BookieInfo, Status
from ledger.wire.bookie_frames import KEY_BYTES_MAX
from tests.contracts.test_bookies import CONFIG
from tests.ledger.bookie_rig import KEY
from tests.ledger.transports import bookies_of, on_transport, server_of

pytestmark = pytest.mark.real_loop


async def asked(tmp_path, count=50, key=KEY):
    """How many calls a bookie got for these fences after the connection was open."""
    calls = 0
    with on_transport("tcp"):
        opened = await open_local_bookie(tmp_path / "bookie", config=CONFIG)
        answer = opened.bookie.fence_many

        async def counted(*words):
            nonlocal calls
            calls += 1
            return await answer(*words)

        opened.bookie.fence_many = counted
        server = server_of(opened.bookie)
        assert isinstance(server, TcpServer)
        name = opened.bookie.bookie_id
        registered = {name: BookieInfo(port=await server.start("127.0.0.1", 0))}
        port = bookies_of(lambda: registered)
        assert (await port.read_lac(name, 1)).status is Status.NO_LEDGER
        replies = await port.fence_many(name, [(ledger, key) for ledger in range(count)])
        assert [reply.status for reply in replies] == [Status.NO_ENTRY] * count
        await port.close()
        await server.stop(0)
        await opened.close()
    return calls


async def test_a_bookie_that_announced_it_gets_one_call_for_all(tmp_path):
    assert await asked(tmp_path) == 1


async def test_as_many_fences_as_one_call_has_may_have_the_longest_keys(tmp_path):
    assert await asked(tmp_path, FENCED_MAX, b"k" * KEY_BYTES_MAX) == 1


async def test_a_bookie_that_did_not_announce_it_gets_single_requests(tmp_path, monkeypatch):
    monkeypatch.setattr(tcp_connection, "FEATURES", 0)
    assert await asked(tmp_path) == 0

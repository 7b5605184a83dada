"""Goal: a connection that is idle takes little memory, so that one gateway can have very many.

Method: what Python allocates for connections on transports in memory, before and after requests.
"""

import gc
import tracemalloc

from tests.gateway.test_connection import BEAT, HEARTBEAT, at_once, heartbeat
from tests.gateway.wire_peer import connect, hub_for, request, turns

COUNT = 100
BYTES_MAX = 11_000
"""For one connection, and more than half of it for the end of its peer, which the test adds."""


async def test_an_idle_connection_takes_little_memory_also_after_requests():
    hub = hub_for(heartbeat(at_once), connections_max=2 * COUNT)
    wires = [connect(hub) for _ in range(COUNT)]  # what the first ones load counts for none
    gc.collect()
    tracemalloc.start()
    try:
        wires += [connect(hub) for _ in range(COUNT)]
        for wire in wires[COUNT:]:
            wire.send(request(HEARTBEAT, 4, 1, BEAT))
        await turns()
        assert all(len(wire.frames()) == 1 for wire in wires[COUNT:])
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / COUNT < BYTES_MAX

"""Goal: a replay without a position writes nothing unless its target certainly has none of it.

Method: small servers on loopback ports that answer from one shared picture of a cluster.
"""

import asyncio

import pytest

from gateway.pipelines.replays.transactions import check_nothing_written
from gateway.pipelines.shared.errors import JobError
from tests.gateway.test_admin_routing import three_servers

pytestmark = pytest.mark.real_loop

REFUSED = 29  # TOPIC_AUTHORIZATION_FAILED, which is not retried


async def test_a_partition_whose_end_is_unknown_may_have_records():
    async with three_servers() as (_, cluster, _servers):
        cluster.leaders = {("t", 0): 1, ("t", 1): 2}
        cluster.sulks[2, 2] = [REFUSED]
        bootstrap = f"127.0.0.1:{cluster.ports[1]}"
        with pytest.raises(JobError, match="t-1: its end is unknown") as raised:
            await asyncio.to_thread(check_nothing_written, bootstrap, "t", {0: 100, 1: 0})
        assert raised.value.code == "NO_LEADER"

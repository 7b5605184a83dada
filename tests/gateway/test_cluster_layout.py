"""Goal: a new cluster keeps committed offsets in log segments; an older one waits for the flag.

Method: the layout over simulated metadata.
"""

import asyncio

import pytest

from gateway.process.cluster_layout import CLUSTER_ID, cluster_id, keeps_log_segments
from tests.sim.metadata import SimMetadata


async def older_cluster():
    metadata = SimMetadata()
    await metadata.create(CLUSTER_ID, b"from-an-older-gateway", parents=True)
    return metadata


async def new_cluster():
    return SimMetadata()


@pytest.mark.parametrize(("laid_out", "expected"), [(new_cluster, True), (older_cluster, False)])
async def test_without_the_flag_a_new_cluster_uses_log_segments_and_an_older_one_nodes(
    laid_out, expected
):
    metadata = await laid_out()
    for _ in range(2):  # the second gateway decides as the first one
        assert await keeps_log_segments(metadata, None) is expected
        assert await keeps_log_segments(metadata, True)
        assert not await keeps_log_segments(metadata, False)


async def test_the_id_of_a_cluster_never_changes():
    older = await older_cluster()
    assert await cluster_id(older) == "from-an-older-gateway"
    new = SimMetadata()
    made = await cluster_id(new)
    assert len(made) == 22
    assert await cluster_id(new) == made


async def test_gateways_that_lay_a_cluster_out_at_the_same_time_agree():
    metadata = SimMetadata()
    chosen = await asyncio.gather(*(keeps_log_segments(metadata, None) for _ in range(5)))
    assert chosen == [True] * 5
    assert len(set(await asyncio.gather(*(cluster_id(metadata) for _ in range(5))))) == 1


async def test_a_first_gateway_without_log_segments_lays_out_the_same_cluster():
    metadata = SimMetadata()
    assert not await keeps_log_segments(metadata, False)
    assert await keeps_log_segments(metadata, None)

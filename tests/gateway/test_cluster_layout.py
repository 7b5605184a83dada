"""Goal: a new cluster keeps committed offsets in log segments and has the newest form of data. An
older one waits for the flag and keeps its form. A release refuses the form of a later one.

Method: the layout over simulated metadata.
"""

import asyncio

import pytest

from gateway.core.feature_levels import Form, newest
from gateway.features.cluster_form import CLUSTER_ID, FORM, ClusterForm
from gateway.features.stored_levels import LEVELS, decode_levels
from gateway.process import cluster_layout
from gateway.process.cluster_layout import epoch_base, keeps_log_segments, read_layout
from ledger.errors import CorruptFormat
from tests.gateway.releases import EARLIER, THIS
from tests.sim.metadata import SimMetadata


async def lay_out_cluster(metadata, supported=THIS):
    return await cluster_layout.lay_out_cluster(metadata, supported)


async def older_cluster():
    metadata = SimMetadata()
    await metadata.create(CLUSTER_ID, b"from-an-older-gateway", parents=True)
    return metadata


async def new_cluster():
    return SimMetadata()


async def decided(metadata, flag):
    """Return what a gateway with this flag decides when it starts."""
    await lay_out_cluster(metadata)
    return await keeps_log_segments(metadata, flag)


@pytest.mark.parametrize(("laid_out", "expected"), [(new_cluster, True), (older_cluster, False)])
async def test_without_the_flag_a_new_cluster_uses_log_segments_and_an_older_one_nodes(
    laid_out, expected
):
    metadata = await laid_out()
    for _ in range(2):  # the second gateway decides as the first one
        assert await decided(metadata, None) is expected
        assert await decided(metadata, True)
        assert not await decided(metadata, False)


async def test_the_id_of_a_cluster_never_changes():
    older = await older_cluster()
    assert (await lay_out_cluster(older)).cluster_id == "from-an-older-gateway"
    new = SimMetadata()
    assert await read_layout(new) is None
    made = await lay_out_cluster(new)
    assert len(made.cluster_id) == 22
    assert await lay_out_cluster(new) == await read_layout(new) == made


async def test_gateways_that_lay_a_cluster_out_at_the_same_time_agree():
    metadata = SimMetadata()
    chosen = await asyncio.gather(*(decided(metadata, None) for _ in range(5)))
    assert chosen == [True] * 5
    assert len(set(await asyncio.gather(*(lay_out_cluster(metadata) for _ in range(5))))) == 1


async def test_a_first_gateway_without_log_segments_lays_out_the_same_cluster():
    metadata = SimMetadata()
    assert not await decided(metadata, False)
    assert await decided(metadata, None)


# -- the form -------------------------------------------------------------------------------------


async def test_an_older_cluster_keeps_its_form_and_every_byte_of_its_id():
    metadata = await older_cluster()
    layout = await lay_out_cluster(metadata)
    assert (layout.form, epoch_base(layout), layout.keeps_epochs) == (0, 0, False)
    assert (await metadata.get(CLUSTER_ID)).data == layout.encode() == b"from-an-older-gateway"


@pytest.mark.parametrize(("supported", "form"), [(EARLIER, Form.INTERNAL_TOPICS), (THIS, FORM)])
async def test_a_new_cluster_has_the_newest_form_and_levels_that_its_first_gateway_supports(
    supported, form
):
    metadata = SimMetadata()
    layout = await lay_out_cluster(metadata, supported)
    assert (layout.form, epoch_base(layout), layout.keeps_epochs) == (form, 1, True)
    stored = decode_levels((await metadata.get(LEVELS)).data)
    assert stored.finalized == newest(supported)
    assert stored.finalized.level("gateway.version") == form


async def test_a_release_without_forms_cannot_read_the_id_of_a_cluster_with_one():
    metadata = SimMetadata()
    await lay_out_cluster(metadata)
    with pytest.raises(UnicodeDecodeError):  # what such a release runs first
        (await metadata.get(CLUSTER_ID)).data.decode()


LATER = ClusterForm("of-a-later-release", FORM + 1).encode()
DAMAGED = ClusterForm("damaged", FORM).encode().replace(b"damaged", b"Damaged")


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (LATER, f"form {FORM + 1}; this release reads forms up to {FORM}"),
        (DAMAGED, "checksum"),
        (b"\xff", "not a sealed document"),
        (b"\xfe\xfe", "utf-8"),
    ],
)
async def test_the_form_of_a_later_release_and_damage_are_refused(stored, reason):
    metadata = SimMetadata()
    await metadata.create(CLUSTER_ID, stored, parents=True)
    for read in (read_layout, lay_out_cluster):
        with pytest.raises(CorruptFormat, match=reason):
            await read(metadata)
    assert (await metadata.get(CLUSTER_ID)).data == stored

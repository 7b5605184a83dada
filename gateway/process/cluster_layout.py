"""The nodes that the first gateway of a cluster creates.

`/gateway/cluster_id` has the cluster's id and the form of its data (`ClusterForm`).
`/gateway/features/levels` has the levels of its features, which are the newest that this gateway
supports.

`/gateway/offsets_in_log_segments` decides where gateways without the flag keep committed offsets.
Only a cluster that a gateway of this version laid out has it. An older cluster keeps its form until
its operator moves it in two steps (see `subscriptions.rollout.open_store`).
"""

from __future__ import annotations

import base64
import uuid

from gateway.core.feature_levels import GATEWAY_VERSION, Supported, newest
from gateway.features.cluster_form import CLUSTER_ID, FORM, ROOT, ClusterForm, decode_form
from gateway.features.stored_levels import FEATURES, LEVELS, encode_levels
from ledger.core.stream_start import FIRST_EPOCH_0
from ledger.errors import NodeExists, NoNode
from ledger.ports.metadata import Create, MetadataStore

__all__ = ["CLUSTER_ID", "FORM", "ClusterForm"]

IN_LOG_SEGMENTS = f"{ROOT}/offsets_in_log_segments"


def epoch_base(layout: ClusterForm) -> int:
    """Return the epoch base of new streams."""
    return FIRST_EPOCH_0 if layout.keeps_epochs else 0


async def read_layout(metadata: MetadataStore) -> ClusterForm | None:
    """Return the layout of the cluster, or None before its first gateway started.

    Raises CorruptFormat, also for the form of a later release.
    """
    try:
        return decode_form((await metadata.get(CLUSTER_ID)).data)
    except NoNode:
        return None


async def lay_out_cluster(metadata: MetadataStore, supported: Supported) -> ClusterForm:
    """Return the layout of the cluster. Its id is created once and never changes.

    A new cluster begins with the newest of the `supported` levels. The id has 22 characters like
    Kafka's. Raises as `read_layout`.
    """
    known = await read_layout(metadata)
    if known is not None:
        return known
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    levels = newest(supported)
    layout = ClusterForm(made, levels.level(GATEWAY_VERSION))
    if not await metadata.exists(ROOT):
        try:
            await metadata.create(ROOT, parents=True)
        except NodeExists:
            pass  # another gateway was faster
    nodes = [
        Create(CLUSTER_ID, layout.encode()),
        Create(IN_LOG_SEGMENTS),
        Create(FEATURES),
        Create(LEVELS, encode_levels(levels, uuid.uuid4().hex)),
    ]
    try:
        await metadata.multi(nodes)
    except NodeExists:
        theirs = await read_layout(metadata)
        assert theirs is not None  # the id is never deleted
        return theirs
    return layout


async def keeps_log_segments(metadata: MetadataStore, flag: bool | None) -> bool:
    """Return whether this gateway commits offsets to log segments.

    Its flag decides; None leaves the decision to the cluster, which `lay_out_cluster` has laid out.
    """
    return await metadata.exists(IN_LOG_SEGMENTS) if flag is None else flag

"""The nodes that the first gateway of a cluster creates.

`/gateway/offsets_in_log_segments` decides where gateways without the flag keep committed offsets.
Only a cluster that a gateway of this version laid out has it. An older cluster keeps its form until
its operator moves it in two steps (see `subscriptions.rollout.open_store`).
"""

from __future__ import annotations

import base64
import uuid

from ledger.errors import NodeExists, NoNode
from ledger.ports.metadata import Create, MetadataStore

ROOT = "/gateway"
CLUSTER_ID = f"{ROOT}/cluster_id"
IN_LOG_SEGMENTS = f"{ROOT}/offsets_in_log_segments"


async def cluster_id(metadata: MetadataStore) -> str:
    """Return the cluster id, 22 characters like Kafka's. It is created once and never changes."""
    try:
        return (await metadata.get(CLUSTER_ID)).data.decode()
    except NoNode:
        pass
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    if not await metadata.exists(ROOT):
        try:
            await metadata.create(ROOT, parents=True)
        except NodeExists:
            pass  # another gateway was faster
    try:
        await metadata.multi([Create(CLUSTER_ID, made.encode()), Create(IN_LOG_SEGMENTS)])
    except NodeExists:
        return (await metadata.get(CLUSTER_ID)).data.decode()
    return made


async def keeps_log_segments(metadata: MetadataStore, flag: bool | None) -> bool:
    """Return whether this gateway commits offsets to log segments.

    Its flag decides; None leaves the decision to the cluster. The first gateway of a cluster lays
    the cluster out.
    """
    await cluster_id(metadata)
    return await metadata.exists(IN_LOG_SEGMENTS) if flag is None else flag

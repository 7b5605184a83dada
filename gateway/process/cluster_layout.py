"""The nodes that the first gateway of a cluster creates.

`/gateway/cluster_id` has the cluster's id, and the newest form of stored data that gateways of the
cluster may write:

    <id>                               form 0; laid out by a release without forms
    ff 1 <crc32c> {"form":1,"id":…}    form 1: streams with epoch bases, last epochs of partitions

A release without forms takes the whole node as the id. The first byte is no UTF-8, so it cannot
start in a cluster whose data it would misread. A later form is refused here in the same way. The
form of a cluster never changes: no release upgrades one.

`/gateway/offsets_in_log_segments` decides where gateways without the flag keep committed offsets.
Only a cluster that a gateway of this version laid out has it. An older cluster keeps its form until
its operator moves it in two steps (see `subscriptions.rollout.open_store`).
"""

from __future__ import annotations

import base64
import uuid
from typing import Final, NamedTuple

from ledger.core.stream_start import FIRST_EPOCH_0
from ledger.errors import CorruptFormat, NodeExists, NoNode
from ledger.ports.metadata import Create, MetadataStore
from ledger.sealed import seal, unseal

ROOT = "/gateway"
CLUSTER_ID = f"{ROOT}/cluster_id"
IN_LOG_SEGMENTS = f"{ROOT}/offsets_in_log_segments"
FORM: Final = 1
_SEALED: Final = b"\xff"


class ClusterLayout(NamedTuple):
    """The id of a cluster, and the form of its data."""

    cluster_id: str
    form: int = 0

    @property
    def epoch_base(self) -> int:
        """The epoch base of new streams."""
        return FIRST_EPOCH_0 if self.form else 0

    @property
    def keeps_epochs(self) -> bool:
        """True if the nodes of owners keep the last epoch of each partition."""
        return bool(self.form)

    def encode(self) -> bytes:
        if not self.form:
            return self.cluster_id.encode()
        return _SEALED + seal({"id": self.cluster_id, "form": self.form})


def _decode(data: bytes) -> ClusterLayout:
    """Decode the node. Raises CorruptFormat, also for the form of a later release."""
    if not data.startswith(_SEALED):
        try:
            return ClusterLayout(data.decode())
        except UnicodeDecodeError as error:
            raise CorruptFormat(f"{CLUSTER_ID}: {error}") from error
    fields = unseal(data[len(_SEALED) :], CLUSTER_ID)
    made, form = fields.get("id"), fields.get("form")
    if not isinstance(made, str) or type(form) is not int or form < 1:
        raise CorruptFormat(f"{CLUSTER_ID}: has no id and form")
    if form > FORM:
        raise CorruptFormat(
            f"{CLUSTER_ID}: the data of this cluster have form {form}; this release reads forms "
            f"up to {FORM}: start a later release"
        )
    return ClusterLayout(made, form)


async def read_layout(metadata: MetadataStore) -> ClusterLayout | None:
    """Return the layout of the cluster, or None before its first gateway started.

    Raises CorruptFormat, also for the form of a later release.
    """
    try:
        return _decode((await metadata.get(CLUSTER_ID)).data)
    except NoNode:
        return None


async def lay_out_cluster(metadata: MetadataStore) -> ClusterLayout:
    """Return the layout of the cluster. It is created once and never changes.

    The id has 22 characters like Kafka's. Raises as `read_layout`.
    """
    known = await read_layout(metadata)
    if known is not None:
        return known
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    layout = ClusterLayout(made, FORM)
    if not await metadata.exists(ROOT):
        try:
            await metadata.create(ROOT, parents=True)
        except NodeExists:
            pass  # another gateway was faster
    try:
        await metadata.multi([Create(CLUSTER_ID, layout.encode()), Create(IN_LOG_SEGMENTS)])
    except NodeExists:
        return _decode((await metadata.get(CLUSTER_ID)).data)
    return layout


async def keeps_log_segments(metadata: MetadataStore, flag: bool | None) -> bool:
    """Return whether this gateway commits offsets to log segments.

    Its flag decides; None leaves the decision to the cluster. The first gateway of a cluster lays
    the cluster out.
    """
    await lay_out_cluster(metadata)
    return await metadata.exists(IN_LOG_SEGMENTS) if flag is None else flag

"""The node with the cluster's id, and the newest form of stored data that gateways may write.

    <id>                               form 0; laid out by a release without forms
    ff 1 <crc32c> {"form":1,"id":…}    a later form: see `Form`

A release without forms takes the whole node as the id. The first byte is no UTF-8, so it cannot
start in a cluster whose data it would misread. A later form is refused here in the same way. The
form is the level of the feature `gateway.version`, and changes in one transaction with it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.core.feature_levels import Form
from ledger.errors import CorruptFormat
from ledger.sealed import seal, unseal

ROOT = "/gateway"
CLUSTER_ID = f"{ROOT}/cluster_id"
FORM: Final = max(Form)
_SEALED: Final = b"\xff"


class ClusterForm(NamedTuple):
    """The id of a cluster, and the form of its data."""

    cluster_id: str
    form: int = Form.FIRST

    @property
    def keeps_epochs(self) -> bool:
        """True if the nodes of owners keep the last epoch of each partition."""
        return self.form >= Form.EPOCH_BASES

    def encode(self) -> bytes:
        if not self.form:
            return self.cluster_id.encode()
        return _SEALED + seal({"id": self.cluster_id, "form": int(self.form)})


def decode_form(data: bytes) -> ClusterForm:
    """Decode the node. Raises CorruptFormat, also for the form of a later release."""
    if not data.startswith(_SEALED):
        try:
            return ClusterForm(data.decode())
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
    return ClusterForm(made, form)

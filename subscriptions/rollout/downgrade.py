"""The way back from the log-segment store: a subscription in a log segment becomes nodes again.

The node keeps its newer form until the last step. In that form the nodes below it have no meaning.
Every step checks the version that this claim gave the node. A crash before the last step leaves the
subscription in its log segment, closed. A crash after it leaves orphaned ledgers, which carry
`SUBSCRIPTION_KEY`.
"""

from __future__ import annotations

from ledger.errors import CorruptFormat, NoSuchLedger
from ledger.ports.metadata import Check, Delete, MetadataStore, Node, Op, Set
from ledger.streams.plain_log import PlainLogs
from subscriptions.committed_offset import WHOLE_STREAM
from subscriptions.segments.log_claim import delete_ledgers, read_state
from subscriptions.segments.log_node import decode_node, is_log_node, ledgers_named
from subscriptions.segments.log_read import read_subscription
from subscriptions.segments.segment_records import SubscriptionState, native_dlsn
from subscriptions.store import Subscription
from subscriptions.znodes.znode_format import (
    OPS_MAX,
    body_op,
    encode_subscriber,
    key_name,
    seal,
)

_OPS_BYTES_MAX = 512 * 1024


class InSegments:
    """Subscriptions in log segments, for a store that keeps nodes: its `SegmentForm`."""

    def __init__(self, metadata: MetadataStore, logs: PlainLogs, *, native: bool) -> None:
        self._metadata = metadata
        self._logs = logs
        self._native = native

    def is_segment(self, data: bytes) -> bool:
        return is_log_node(data)

    async def read(self, path: str) -> Subscription:
        """Read the subscription at `path`. Raises as `read_subscription`."""
        return await read_subscription(self._metadata, self._logs, path, native=self._native)

    async def write_back(self, path: str, node: Node) -> None:
        """Turn the subscription into nodes and fence its segment. `node` is the node as read.

        Raises BadVersion, NodeExists, NoNode or NotEmpty if another store changed it meanwhile,
        CorruptFormat, and the errors of recovery.
        """
        metadata, logs = self._metadata, self._logs
        record = decode_node(node.data, path)
        version = await metadata.set(path, node.data, node.version)
        try:
            state, _ = await read_state(logs, record, path, fence=True)
        except NoSuchLedger as error:
            raise CorruptFormat(f"{path}: its log segment does not exist: {error}") from error
        if state.pending:
            raise CorruptFormat(
                f"{path}: a transaction has pending offsets; they need log segments until it ends"
            )
        if state.keyed:
            raise CorruptFormat(
                f"{path}: a group of the consumer protocol needs log segments; delete the group"
            )
        if self._native:
            await metadata.set(path, _native_data(state, path), version)
        else:
            await _write_group(metadata, path, state, version)
        await delete_ledgers(logs, ledgers_named(record))


def _native_data(state: SubscriptionState, path: str) -> bytes:
    body = state.records.get(WHOLE_STREAM)
    return b"" if body is None else encode_subscriber(native_dlsn(body, path))


async def _write_group(
    metadata: MetadataStore, path: str, state: SubscriptionState, version: int
) -> None:
    stale = await metadata.read_tree(path)
    ops: list[Op] = []
    for key, body in state.records.items():
        child = f"{path}/{key_name(key)}"
        found = stale.pop(child, None)
        ops.append(body_op(child, body, None if found is None else found.version))
    ops += [Delete(child, found.version) for child, found in stale.items()]
    while len(ops) >= OPS_MAX or _size(ops) > _OPS_BYTES_MAX:
        some = _some(ops)
        await metadata.multi([Check(path, version), *some])
        del ops[: len(some)]
    await metadata.multi([*ops, Set(path, seal(state.note), version)])


def _size(ops: list[Op]) -> int:
    return sum(len(op.data) + len(op.path) for op in ops if not isinstance(op, Delete | Check))


def _some(ops: list[Op]) -> list[Op]:
    """Return as many of the first operations as fit into one multi."""
    some: list[Op] = []
    room = _OPS_BYTES_MAX
    for op in ops[: OPS_MAX - 1]:
        room -= _size([op])
        if some and room < 0:
            break
        some.append(op)
    return some

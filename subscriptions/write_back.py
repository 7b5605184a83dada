"""A subscription in a log segment becomes nodes again: the way back from the log-segment store.

The node keeps its new form, which says that what lies below it does not count, until the last
step; every step carries the version that this claim gave it. A crash before the last one leaves
a subscription in its log segment, closed; after it, ledgers of nobody, which carry their key.
"""

from __future__ import annotations

from ledger.errors import CorruptFormat, NoSuchLedger
from ledger.ports.metadata import Check, Delete, MetadataStore, Node, Op, Set
from ledger.streams.plain_log import PlainLogs
from subscriptions.log_claim import delete_ledgers, read_state
from subscriptions.log_node import decode_node, ledgers_named
from subscriptions.old_forms import OPS_MAX, body_op
from subscriptions.positions import WHOLE_STREAM, encode_subscriber, key_name, seal
from subscriptions.segment_records import State, native_dlsn

_OPS_BYTES_MAX = 512 * 1024


async def write_back(
    metadata: MetadataStore, logs: PlainLogs | None, path: str, node: Node, *, native: bool
) -> None:
    """The node is in the old form, and nobody can write to its segment any more.

    `node` is what was read of it. Raises BadVersion and its like when somebody else has it,
    CorruptFormat, and what recovery raises.
    """
    record = decode_node(node.data, path)
    version = await metadata.set(path, node.data, node.version)
    try:
        state, _ = await read_state(logs, record, path, fence=True)
    except NoSuchLedger as error:
        raise CorruptFormat(f"{path}: its segment is gone: {error}") from error
    if native:
        await metadata.set(path, _native_data(state, path), version)
    else:
        await _write_group(metadata, path, state, version)
    if logs is not None:
        await delete_ledgers(logs, ledgers_named(record))


def _native_data(state: State, path: str) -> bytes:
    body = state.records.get(WHOLE_STREAM)
    return b"" if body is None else encode_subscriber(native_dlsn(body, path))


async def _write_group(metadata: MetadataStore, path: str, state: State, version: int) -> None:
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
    """As many as fit into one multi."""
    some: list[Op] = []
    room = _OPS_BYTES_MAX
    for op in ops[: OPS_MAX - 1]:
        room -= _size([op])
        if some and room < 0:
            break
        some.append(op)
    return some

"""Reads of a subscription in either form, without a claim."""

from __future__ import annotations

from ledger.errors import CorruptFormat, NoNode, NoSuchLedger
from ledger.ids import LedgerId
from ledger.ports.metadata import MetadataStore, Node
from ledger.streams.plain_log import PlainLogs
from subscriptions.committed_offset import WHOLE_STREAM, CommittedOffset
from subscriptions.segments.in_steps import copy_offsets
from subscriptions.segments.log_claim import read_state
from subscriptions.segments.log_node import decode_node, is_log_node, ledgers_named
from subscriptions.store import Subscription
from subscriptions.znodes.znode_format import decode_child, decode_subscriber, unseal

_ATTEMPTS_MAX = 5


async def read_subscription(
    metadata: MetadataStore, logs: PlainLogs | None, path: str, *, native: bool
) -> Subscription:
    """Read a subscription. Raises CorruptFormat, MetadataUnavailable, EntryUnknown."""
    for _ in range(_ATTEMPTS_MAX):
        try:
            node = await metadata.get(path)
        except NoNode:
            return Subscription({}, exists=False)
        if not is_log_node(node.data):
            return await read_nodes(metadata, node, path, native=native)
        record = decode_node(node.data, path)
        try:
            state, _ = await read_state(logs, record, path, fence=False)
        except NoSuchLedger:
            continue  # its owner changed the node after it was read
        keyed = dict(state.keyed)
        return Subscription(await copy_offsets(state, path), state.note, keyed=keyed)
    raise CorruptFormat(f"{path}: it names a ledger that does not exist")


async def read_nodes(
    metadata: MetadataStore, node: Node, path: str, *, native: bool
) -> Subscription:
    """Read a subscription with its offsets in nodes."""
    if native:
        if not node.data:  # only the lock of a reader was ever created below it
            return Subscription({})
        return Subscription({WHOLE_STREAM: CommittedOffset(decode_subscriber(node.data, path))})
    note = unseal(node.data, path)
    children = await metadata.read_tree(path)
    return Subscription(dict(decode_child(child, data) for child, data in children.items()), note)


async def ledgers_of(metadata: MetadataStore, path: str) -> set[LedgerId]:
    """Return every ledger that the subscription at `path` names, none if it does not exist.

    If a ledger has this path under `SUBSCRIPTION_KEY` in its custom metadata and is not among
    them, it is an orphan of a crash, unless it is so new that it may still be named. Raises
    CorruptFormat, MetadataUnavailable.
    """
    await metadata.sync(path)
    try:
        node = await metadata.get(path)
    except NoNode:
        return set()
    return ledgers_named(decode_node(node.data, path)) if is_log_node(node.data) else set()

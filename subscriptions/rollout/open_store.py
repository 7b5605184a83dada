"""Which store a process uses: the two steps of moving to log segments, and back.

1. Every process runs code that reads both forms, the flag off: nothing changes in the store.
2. Process by process, the flag on: a subscription moves into a log segment with its first commit
   at such a process, and becomes nodes again when one whose flag is off claims it.

Rolling back is the second step the other way round. Source: the proposal (seed 004),
`logSegmentBasedSubscriptionsStoreEnabled`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
from ledger.streams.plain_log import PlainLogs
from subscriptions.rollout.downgrade import InSegments
from subscriptions.store import SubscriptionsStore
from subscriptions.znodes.znode_store import GroupZnodeStore, NativeZnodeStore

if TYPE_CHECKING:
    from subscriptions.segments.log_claim import LogStoreConfig

GROUPS = "/gateway/groups"


def open_store(
    enabled: bool,
    metadata: MetadataStore,
    logs: PlainLogs,
    clock: Clock,
    *,
    root: str = GROUPS,
    config: LogStoreConfig | None = None,
) -> SubscriptionsStore:
    """The store of Kafka groups, by the flag. Both read what either has written."""
    if enabled:
        from subscriptions.segments.log_store import SubscriptionLogStore  # loaded where it is used

        return SubscriptionLogStore(metadata, logs, clock, root=root, config=config)
    return GroupZnodeStore(metadata, root, InSegments(metadata, logs, native=False))


def open_stream_store(
    enabled: bool,
    metadata: MetadataStore,
    logs: PlainLogs,
    clock: Clock,
    stream: str,
    *,
    config: LogStoreConfig | None = None,
) -> SubscriptionsStore:
    """As `open_store`, of the native subscribers of one stream (the path of its log)."""
    if enabled:
        from subscriptions.segments.log_store import SubscriptionLogStore

        root = f"{stream}/subscribers"
        return SubscriptionLogStore(metadata, logs, clock, root=root, native=True, config=config)
    return NativeZnodeStore(metadata, stream, InSegments(metadata, logs, native=True))

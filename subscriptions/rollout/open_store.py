"""The choice of the store, and the rollout of log segments in two steps.

1. Upgrade every process to code that reads both forms, with the flag off. The stored form stays.
2. Turn the flag on, process by process. A subscription moves into a log segment with its first
   commit at a process with the flag on. A process with the flag off turns it back into nodes when
   it claims it.

To roll back, turn the flag off again. Source: the proposal (seed 004),
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
    """Open the store of Kafka groups that the flag selects. Each reads both forms."""
    if enabled:
        from subscriptions.segments.log_store import SubscriptionLogStore  # loaded only if used

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
    """Open the store of the native subscribers of one stream. `stream` is the path of its log."""
    if enabled:
        from subscriptions.segments.log_store import SubscriptionLogStore

        root = f"{stream}/subscribers"
        return SubscriptionLogStore(metadata, logs, clock, root=root, native=True, config=config)
    return NativeZnodeStore(metadata, stream, InSegments(metadata, logs, native=True))

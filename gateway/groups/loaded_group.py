"""One group that this broker coordinates, in memory."""

from __future__ import annotations

from asyncio import Future, Task
from collections import Counter

from gateway.core.group import Group
from gateway.core.group_members import Persist
from gateway.groups.group_transactions import GroupTransactions
from subscriptions.store import Subscription


class LoadedGroup:
    """One claimed group, from its load until it is unloaded or deleted."""

    __slots__ = (
        "counted",
        "empty_since_ms",
        "encoding",
        "generation",
        "group",
        "group_id",
        "last_write",
        "offsets",
        "stored",
        "transactions",
        "unencoded",
        "unsure",
        "used_ms",
        "writes",
    )

    def __init__(self, group_id: str, group: Group, found: Subscription, since_ms: int) -> None:
        self.group_id = group_id
        # The state machine. It is DEAD once the group is unloaded or being deleted.
        self.group = group
        # The last generation that `LoadedGroups.rebalances` has counted.
        self.generation = group.generation
        # Durable committed offsets: a view of the store's claim, which owns them. The view shows a
        # commit once its write has succeeded.
        self.offsets = found.offsets
        # True if the group is in the store. Set by a successful write, cleared by a deletion.
        self.stored = found.exists
        # The number of accepted writes whose outcome is not known yet.
        self.writes = 0
        # The last accepted write. None once the write has ended. `unload` waits for it.
        self.last_write: Future[None] | None = None
        # The wall time since which the group has had no members. 0 while it has members or if it
        # never had any. Stored with each change of the membership.
        self.empty_since_ms = since_ms
        # Monotonic time of the last request for the group. Eviction reads it.
        self.used_ms = 0
        # Memberships that wait for `encoding`, oldest first. Each counts in `writes`. Only the last
        # one is written, because it replaces the others.
        self.unencoded: list[Persist] = []
        # The task that encodes and writes `unencoded`. None while there is nothing to encode.
        self.encoding: Task[None] | None = None
        # True once the outcome of a write is unknown. The group is unloaded then.
        self.unsure = False
        # The memory of its transactions. None before the first one since the load.
        self.transactions: GroupTransactions | None = None
        # The part of this group in `LoadedGroups.memory`, by client host.
        self.counted: Counter[str] = Counter()

    @property
    def idle(self) -> bool:
        """True if the group has no members and no write is in flight.

        `LoadedGroups.is_idle` also knows about transactions.
        """
        return self.group.idle and not self.writes

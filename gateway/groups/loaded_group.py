"""One group that this broker coordinates, in memory."""

from __future__ import annotations

from asyncio import Future, Task
from collections import Counter
from typing import cast

from gateway.core.consumer_group import ConsumerGroup
from gateway.core.group import Group
from gateway.core.group_members import (
    AnswerJoin,
    AnswerSync,
    Effect,
    Joined,
    Persist,
    State,
    Synced,
)
from gateway.core.offset_expiry import CONSUMER
from gateway.groups.group_transactions import GroupTransactions
from gateway.groups.views import CLASSIC_GROUP, CONSUMER_GROUP, GroupState
from subscriptions.store import Subscription


class LoadedGroup:
    """One claimed group, from its load until it is unloaded or deleted."""

    __slots__ = (
        "commits",
        "consumer",
        "counted",
        "empty_since_ms",
        "encoding",
        "generation",
        "group",
        "group_id",
        "last_change",
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
        # The group of the consumer protocol. None while the group is one of the classic protocol;
        # otherwise `group` is Empty, or DEAD.
        self.consumer: ConsumerGroup | None = None
        # The last generation that `LoadedGroups.rebalances` has counted.
        self.generation = group.generation
        # Durable committed offsets: a view of the store's claim, which owns them. The view shows a
        # commit once its write has succeeded.
        self.offsets = found.offsets
        # Counts the writes that have ended. `offsets` change only with one of them.
        self.commits = 0
        # True if the group is in the store. Set by a successful write, cleared by a deletion.
        self.stored = found.exists
        # The number of accepted writes whose outcome is not known yet.
        self.writes = 0
        # The last accepted write. None once the write has ended. `unload` waits for it.
        self.last_write: Future[None] | None = None
        # The last accepted write of records of `consumer`. None once it has ended.
        self.last_change: Future[None] | None = None
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
        has_members = self.consumer is not None and bool(self.consumer.members)
        return self.group.idle and not self.writes and not has_members

    @property
    def alive(self) -> bool:
        """False once the group is unloaded or being deleted."""
        return self.group.state is not State.DEAD

    @property
    def state(self) -> GroupState:
        """The state, as tools show it."""
        if self.consumer is None or self.group.state is State.DEAD:
            return self.group.state
        return self.consumer.state

    @property
    def protocol_type(self) -> str | None:
        """The protocol type, or None if the group never had a member."""
        return self.group.protocol_type if self.consumer is None else CONSUMER

    @property
    def kind(self) -> str:
        """The type of the group in ListGroups."""
        return CLASSIC_GROUP if self.consumer is None else CONSUMER_GROUP

    @property
    def members(self) -> int:
        """The number of members."""
        return len(self.group.members if self.consumer is None else self.consumer.members)

    @property
    def deadline_ms(self) -> int | None:
        """The time of the next deadline of a member, or None."""
        both = (self.group.deadline_ms, self.consumer and self.consumer.deadline_ms)
        return min((each for each in both if each is not None), default=None)


def answer(effect: Effect) -> None:
    """Answer the waiting request, unless its connection has closed."""
    if isinstance(effect, AnswerJoin | AnswerSync):
        waiter = cast("Future[Joined | Synced]", effect.waiter)
        if not waiter.done():
            waiter.set_result(effect.joined if isinstance(effect, AnswerJoin) else effect.synced)

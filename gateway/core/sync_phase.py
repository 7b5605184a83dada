"""The members of a generation that a group waits for between the join and its assignment. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class SyncPhase:
    """The members that have not sent a SyncGroup, and the time when they are removed."""

    __slots__ = ("_awaited", "assigning", "at_ms")

    def __init__(self) -> None:
        self._awaited: set[str] = set()  # members of this generation without a SyncGroup yet
        self.assigning = False  # True from the leader's SyncGroup until its assignment is stored
        self.at_ms: int | None = None  # deadline of the sync; None once all members have sent it

    def begin(self, member_ids: Iterable[str], at_ms: int) -> None:
        """Wait for a SyncGroup of each member of a new generation."""
        self._awaited = set(member_ids)
        self.at_ms = at_ms

    def end(self) -> None:
        """Wait for no member, because another rebalance begins."""
        self._awaited.clear()
        self.at_ms = None
        self.assigning = False

    def on_sync(self, member_id: str) -> None:
        self._awaited.discard(member_id)
        if not self._awaited:
            self.at_ms = None

    def remove(self, member_id: str) -> None:
        """Forget the member, which has left. The deadline remains."""
        self._awaited.discard(member_id)

    def rename(self, old_id: str, new_id: str) -> None:
        """Wait for the static member under its new id, if the group waits for it."""
        if old_id in self._awaited:
            self._awaited.remove(old_id)
            self._awaited.add(new_id)

    def extend(self, at_ms: int) -> None:
        """Move the deadline of a sync to `at_ms`."""
        if self.at_ms is not None:
            self.at_ms = at_ms

    def time_out(self, member_ids: Iterable[str]) -> list[str]:
        """End the deadline, and return those of these members that have sent no SyncGroup."""
        self.at_ms = None
        return [member_id for member_id in member_ids if member_id in self._awaited]

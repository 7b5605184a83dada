"""Incremental fetch sessions: who wants what, and what they have been told already. Pure.

A client names its partitions once; later requests carry changes only, and answers leave out what
has not changed. Source: KIP-227; Kafka's FetchSession.scala, FetchMetadata.java.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from enum import IntEnum

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1

PartitionKey = tuple[Hashable, int]
"""Topic name (below v13) or topic id, and partition."""


class SessionFault(IntEnum):
    """Why a request cannot use its session. Numbers are Kafka's error codes."""

    UNKNOWN_ID = 70
    WRONG_EPOCH = 71
    NAMES_AND_IDS_MIXED = 106


class Wanted:
    """One partition that a reader wants, and what it was told last."""

    __slots__ = (
        "bytes_max",
        "fetch_offset",
        "high_watermark",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "partition",
        "topic",
    )

    def __init__(
        self,
        topic: Hashable,
        partition: int,
        fetch_offset: int,
        bytes_max: int,
        leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.fetch_offset = fetch_offset
        self.bytes_max = bytes_max
        self.leader_epoch = leader_epoch  # the client's idea of the current one; -1: none
        self.last_fetched_epoch = last_fetched_epoch
        self.high_watermark = -1  # as last told; -1: never, or an error was told
        self.log_start_offset = -1

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition

    def ask(self, newer: Wanted) -> None:
        """The request part is `newer`'s; what was told stays."""
        self.fetch_offset = newer.fetch_offset
        self.bytes_max = newer.bytes_max
        self.leader_epoch = newer.leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch


class Session:
    """The partitions of one request: kept between requests when `id` is not 0."""

    __slots__ = (
        "_partitions",
        "created_ms",
        "epoch",
        "id",
        "incremental",
        "used_ms",
        "uses_ids",
    )

    def __init__(self, wanted: Iterable[Wanted], now_ms: int, *, uses_ids: bool) -> None:
        self.id = NO_SESSION
        self.epoch = 1  # the one that the next request must carry
        self.incremental = False  # of the request under way
        self.uses_ids = uses_ids
        self.created_ms = self.used_ms = now_ms
        self._partitions = {each.key: each for each in wanted}

    def __len__(self) -> int:
        return len(self._partitions)

    def wanted(self) -> list[Wanted]:
        """Partitions in the order in which they are to be served."""
        return list(self._partitions.values())

    def include(
        self,
        wanted: Wanted,
        *,
        high_watermark: int,
        log_start_offset: int,
        error_code: int = 0,
        has_records: bool = False,
        redirected: bool = False,
    ) -> bool:
        """Whether this partition belongs into the answer; remembers what it says.

        `redirected`: the answer names a diverging epoch or a preferred replica. Called once for
        each partition served. One with records moves to the end of the order, so that a small
        answer does not starve the others.
        """
        changed = (
            has_records
            or redirected
            or error_code != 0
            or wanted.high_watermark != high_watermark
            or wanted.log_start_offset != log_start_offset
        )
        wanted.high_watermark = -1 if error_code else high_watermark
        wanted.log_start_offset = log_start_offset
        if has_records and self.incremental and wanted.key in self._partitions:
            self._partitions[wanted.key] = self._partitions.pop(wanted.key)
        return changed or not self.incremental

    def change(self, wanted: Iterable[Wanted], forgotten: Iterable[PartitionKey]) -> None:
        """Added, changed and forgotten partitions of an incremental request."""
        for each in wanted:
            known = self._partitions.get(each.key)
            if known is None:
                self._partitions[each.key] = each
            else:
                known.ask(each)
        for key in forgotten:
            self._partitions.pop(key, None)


class FetchSessions:
    """All sessions of one process, least recently used first.

    `draw_id` gives random positive 31-bit numbers: ids must not be guessable by other clients.
    """

    def __init__(self, sessions_max: int, idle_ms_max: int, draw_id: Callable[[], int]) -> None:
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self._sessions_max = sessions_max
        self._idle_ms_max = idle_ms_max
        self._draw_id = draw_id

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self,
        session_id: int,
        epoch: int,
        wanted: Iterable[Wanted],
        forgotten: Iterable[PartitionKey],
        now_ms: int,
        *,
        uses_ids: bool = False,
    ) -> Session | SessionFault:
        """The session that serves this request: a new one, a known one, or one for it alone (id 0).

        `uses_ids`: the request names topics by id (v13 and later).
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            session = Session(wanted, now_ms, uses_ids=uses_ids)
            if epoch == INITIAL_EPOCH:
                self._try_add(session, now_ms)
            return session
        return self._resume(session_id, epoch, wanted, forgotten, now_ms, uses_ids=uses_ids)

    def _resume(
        self,
        session_id: int,
        epoch: int,
        wanted: Iterable[Wanted],
        forgotten: Iterable[PartitionKey],
        now_ms: int,
        *,
        uses_ids: bool,
    ) -> Session | SessionFault:
        session = self._sessions.get(session_id)
        if session is None:
            return SessionFault.UNKNOWN_ID
        if session.epoch != epoch:
            return SessionFault.WRONG_EPOCH
        if session.uses_ids != uses_ids:
            return SessionFault.NAMES_AND_IDS_MIXED
        session.incremental = True
        session.change(wanted, forgotten)
        session.used_ms = now_ms
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        self._sessions.move_to_end(session_id)
        if not session:
            # Kafka answers such a request without a session; the client starts anew.
            del self._sessions[session_id]
            session.id = NO_SESSION
        return session

    def _try_add(self, session: Session, now_ms: int) -> None:
        """Gives the session an id if there is room, or a less worthy one to evict."""
        if not session or not self._make_room(len(session), now_ms):
            return
        new_id = NO_SESSION
        while new_id <= NO_SESSION or new_id in self._sessions:
            new_id = self._draw_id()
        session.id = new_id
        self._sessions[new_id] = session

    def _make_room(self, partitions: int, now_ms: int) -> bool:
        """An idle session goes first, then the smallest that lived its minutes and is smaller."""
        if len(self._sessions) < self._sessions_max:
            return True
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms > self._idle_ms_max:
            del self._sessions[oldest.id]
            return True
        settled = [
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > self._idle_ms_max
        ]
        smallest = min(settled, key=len, default=None)
        if smallest is None or len(smallest) >= partitions:
            return False
        del self._sessions[smallest.id]
        return True

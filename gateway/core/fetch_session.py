"""Incremental fetch sessions: the partitions that a client fetches, and the values sent to it.
Pure.

A client names its partitions once. Later requests carry only changes, and responses leave out
partitions that have not changed. Source: KIP-227; Kafka's FetchSession.scala, FetchMetadata.java.
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


class FetchSessionError(IntEnum):
    """Why a request cannot use its session. The numbers are Kafka's error codes."""

    UNKNOWN_ID = 70
    WRONG_EPOCH = 71
    NAMES_AND_IDS_MIXED = 106


class FetchPartition:
    """One partition that a client fetches, with the offsets that its last response contained.

    Source: Kafka, CachedPartition.
    """

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
        # Topic name or id, and partition index. Fixed.
        self.topic = topic
        self.partition = partition
        # The values last requested. An incremental request that names the partition replaces them.
        self.fetch_offset = fetch_offset
        self.bytes_max = bytes_max
        self.leader_epoch = leader_epoch  # current leader epoch as the client has it, -1 if unknown
        self.last_fetched_epoch = last_fetched_epoch
        # The values last sent to the client, or -1 if none was sent. An error also sets the high
        # watermark to -1, so that the next response includes the partition.
        self.high_watermark = -1
        self.log_start_offset = -1

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition

    def update_request(self, newer: FetchPartition) -> None:
        """Copy the requested values of `newer`, and keep the sent values."""
        self.fetch_offset = newer.fetch_offset
        self.bytes_max = newer.bytes_max
        self.leader_epoch = newer.leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch


class FetchSession:
    """The partitions of one client, kept between its requests if `id` is not 0."""

    __slots__ = (
        "_partitions",
        "created_ms",
        "epoch",
        "id",
        "incremental",
        "used_ms",
        "uses_ids",
    )

    def __init__(
        self, partitions: Iterable[FetchPartition], now_ms: int, *, uses_ids: bool
    ) -> None:
        # NO_SESSION until `FetchSessions` admits the session, and again once an empty session is
        # dropped.
        self.id = NO_SESSION
        # The epoch that the next request must carry. Rises by one with each incremental request.
        self.epoch = 1
        # True if the current request is incremental. Its response leaves out unchanged partitions.
        self.incremental = False
        # True if topics are named by id. Fixed: a request of the other kind is refused.
        self.uses_ids = uses_ids
        # Wall-clock times of the first and of the last request. Eviction uses both times.
        self.created_ms = self.used_ms = now_ms
        # Partitions in the order of service. The partitions that were sent records last come last.
        self._partitions = {each.key: each for each in partitions}

    def __len__(self) -> int:
        return len(self._partitions)

    def partitions(self) -> list[FetchPartition]:
        """Return the partitions in the order in which they are to be served."""
        return list(self._partitions.values())

    def update_response(
        self,
        partition: FetchPartition,
        *,
        high_watermark: int,
        log_start_offset: int,
        error_code: int = 0,
        has_records: bool = False,
        redirected: bool = False,
    ) -> bool:
        """Return True if the response must include this partition, and record the values sent.

        `redirected` is True if the response names a diverging epoch or a preferred replica. Call
        this once for each partition served. A partition with records moves to the end of the order,
        so that small responses do not starve the others.
        """
        changed = (
            has_records
            or redirected
            or error_code != 0
            or partition.high_watermark != high_watermark
            or partition.log_start_offset != log_start_offset
        )
        partition.high_watermark = -1 if error_code else high_watermark
        partition.log_start_offset = log_start_offset
        if has_records and self.incremental and partition.key in self._partitions:
            self._partitions[partition.key] = self._partitions.pop(partition.key)
        return changed or not self.incremental

    def update(
        self, partitions: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]
    ) -> None:
        """Apply an incremental request: partitions added, changed and forgotten."""
        for each in partitions:
            known = self._partitions.get(each.key)
            if known is None:
                self._partitions[each.key] = each
            else:
                known.update_request(each)
        for key in forgotten:
            self._partitions.pop(key, None)


class FetchSessions:
    """All fetch sessions of one process. Source: Kafka, FetchSessionCache.

    `draw_id` returns random positive 31-bit numbers: other clients must not guess an id.
    """

    def __init__(self, sessions_max: int, idle_ms_max: int, draw_id: Callable[[], int]) -> None:
        # By session id, the least recently used first; at most `sessions_max`.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._sessions_max = sessions_max
        self._idle_ms_max = idle_ms_max
        self._draw_id = draw_id

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self,
        session_id: int,
        epoch: int,
        partitions: Iterable[FetchPartition],
        forgotten: Iterable[PartitionKey],
        now_ms: int,
        *,
        uses_ids: bool = False,
    ) -> FetchSession | FetchSessionError:
        """Return the session of this request: new, known, or for this request alone (id 0).

        `uses_ids` is True if the request names topics by id (v13 and later).
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            session = FetchSession(partitions, now_ms, uses_ids=uses_ids)
            if epoch == INITIAL_EPOCH:
                self._try_add(session, now_ms)
            return session
        return self._resume(session_id, epoch, partitions, forgotten, now_ms, uses_ids=uses_ids)

    def _resume(
        self,
        session_id: int,
        epoch: int,
        partitions: Iterable[FetchPartition],
        forgotten: Iterable[PartitionKey],
        now_ms: int,
        *,
        uses_ids: bool,
    ) -> FetchSession | FetchSessionError:
        session = self._sessions.get(session_id)
        if session is None:
            return FetchSessionError.UNKNOWN_ID
        if session.epoch != epoch:
            return FetchSessionError.WRONG_EPOCH
        if session.uses_ids != uses_ids:
            return FetchSessionError.NAMES_AND_IDS_MIXED
        session.incremental = True
        session.update(partitions, forgotten)
        session.used_ms = now_ms
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        self._sessions.move_to_end(session_id)
        if not session:
            # Like Kafka, answer a request that empties its session without a session. The client
            # then starts a new session.
            del self._sessions[session_id]
            session.id = NO_SESSION
        return session

    def _try_add(self, session: FetchSession, now_ms: int) -> None:
        """Admit the session under a new id if there is room, or if another one can be evicted."""
        if not session or not self._make_room(len(session), now_ms):
            return
        new_id = NO_SESSION
        while new_id <= NO_SESSION or new_id in self._sessions:
            new_id = self._draw_id()
        session.id = new_id
        self._sessions[new_id] = session

    def _make_room(self, partitions: int, now_ms: int) -> bool:
        """Make room for a session with `partitions` partitions. Returns False if there is none.

        An idle session is evicted first. Otherwise the smallest session past its minimum lifetime
        is evicted, if it has fewer partitions than the new session.
        """
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

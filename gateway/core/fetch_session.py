"""Fetch sessions: the partitions that a client fetches, and the values sent to it. Pure.

A client names its partitions once. Later requests carry only changes, and responses leave out
partitions that have not changed. Source: KIP-227; Kafka's FetchSession.scala, FetchMetadata.java.
A client without a session names all partitions each time. Its connection keeps them all the same,
as a session with `names_all`, so that only the differences cost work.

    due ─(answered; nothing more to send)▶ resting ─(its log or the request changes)▶ due

A response looks at the due partitions only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Iterable
from enum import IntEnum
from typing import Protocol

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1

PARTITION_BYTES = 500
"""Memory of one kept partition: the object, its request, its reply and its places in tables."""

PartitionKey = tuple[Hashable, int]
"""Topic name (below v13) or topic id, and partition."""


class FetchSessionError(IntEnum):
    """Why a request cannot use its session. The numbers are Kafka's error codes."""

    UNKNOWN_ID = 70
    WRONG_EPOCH = 71
    NAMES_AND_IDS_MIXED = 106


class WatchedLog(Protocol):
    """A log that notifies fetch partitions of its changes."""

    def add_waiter(self, waiter: FetchPartition) -> None: ...

    def remove_waiter(self, waiter: FetchPartition) -> None: ...


class FetchPartition:
    """One partition that a client fetches, with the offsets that its last response contained.

    Source: Kafka, CachedPartition.
    """

    __slots__ = (
        "_watched",
        "bytes_max",
        "entry",
        "fetch_offset",
        "high_watermark",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "partition",
        "reply",
        "session",
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
        entry: bytes = b"",
    ) -> None:
        # Topic name or id, and partition index. Fixed.
        self.topic = topic
        self.partition = partition
        # The values last requested. A request that names the partition replaces them. `entry` has
        # the bytes of the request for a session with `names_all`, and is empty in others.
        self.fetch_offset = fetch_offset
        self.bytes_max = bytes_max
        self.leader_epoch = leader_epoch  # current leader epoch as the client has it, -1 if unknown
        self.last_fetched_epoch = last_fetched_epoch
        self.entry = entry
        # The values last sent to the client, or -1 if none was sent. An error also sets the high
        # watermark to -1, so that the next response includes the partition.
        self.high_watermark = -1
        self.log_start_offset = -1
        # The session that holds the partition. Set once, when the session takes it.
        self.session: FetchSession | None = None
        # The encoded response while the partition rests, which needs no bytes in a session without
        # `names_all`. None while the partition is due.
        self.reply: bytes | None = None
        # The log that notifies this partition, or None.
        self._watched: WatchedLog | None = None

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition

    def update_request(self, newer: FetchPartition) -> None:
        """Copy the requested values of `newer`, and keep the sent values."""
        self.fetch_offset = newer.fetch_offset
        self.bytes_max = newer.bytes_max
        self.leader_epoch = newer.leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch
        self.entry = newer.entry

    # -- the log ------------------------------------------------------------------------------

    def on_data(self) -> None:
        """Handle a change of the watched log. See `FetchWaiter`."""
        assert self.session is not None
        self.session.changed(self)

    def watch(self, log: WatchedLog) -> None:
        """Be notified by `log` only, until `unwatch`."""
        if self._watched is not log:
            self.unwatch()
            log.add_waiter(self)
            self._watched = log

    def unwatch(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.remove_waiter(self)


class FetchSession:
    """The partitions of one client, kept between its requests if `kept`."""

    __slots__ = (
        "_by_entry",
        "_due",
        "_partitions",
        "_topics",
        "busy",
        "committed",
        "counted",
        "created_ms",
        "epoch",
        "id",
        "incremental",
        "names_all",
        "on_changed",
        "used_ms",
        "uses_ids",
    )

    def __init__(
        self,
        partitions: Iterable[FetchPartition] = (),
        now_ms: int = 0,
        *,
        uses_ids: bool,
        names_all: bool = False,
    ) -> None:
        # NO_SESSION until `FetchSessions` admits the session, and again once an empty session is
        # dropped. Always NO_SESSION with `names_all`.
        self.id = NO_SESSION
        # The epoch that the next request must carry. Rises by one with each incremental request.
        self.epoch = 1
        # True if the current request is incremental. Its response leaves out unchanged partitions.
        self.incremental = False
        # True if topics are named by id. Fixed: a request of the other kind is refused.
        self.uses_ids = uses_ids
        # True for the session of a connection, whose requests name all partitions. Set to False
        # when the session is not kept after its request.
        self.names_all = names_all
        # Wall-clock times of the first and of the last request. Eviction uses both times.
        self.created_ms = self.used_ms = now_ms
        # The number of partitions that `FetchSessions` counts for this session.
        self.counted = 0
        # True if the last request was that of a reader of committed records.
        self.committed = False
        # True while a request of this session is being answered.
        self.busy = False
        # Called with each partition whose log changes while a request waits, otherwise None.
        self.on_changed: Callable[[FetchPartition], None] | None = None
        # All partitions by key.
        self._partitions: dict[PartitionKey, FetchPartition] = {}
        # The partitions that do not rest, in the order of service. Those that were sent records
        # last come last.
        self._due: dict[FetchPartition, None] = {}
        # The topics of `_partitions`; None if they must be collected again.
        self._topics: frozenset[Hashable] | None = None
        # With `names_all`: the partitions of each topic by their bytes in the request.
        self._by_entry: dict[Hashable, dict[bytes, FetchPartition]] = {}
        self.update(partitions, ())

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def kept(self) -> bool:
        """True if the session outlives its request."""
        return self.id != NO_SESSION or self.names_all

    def due(self) -> list[FetchPartition]:
        """Return the partitions that do not rest, in the order in which they are to be served."""
        return list(self._due)

    # -- requests -----------------------------------------------------------------------------

    def update(
        self, partitions: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]
    ) -> None:
        """Apply partitions added, changed and forgotten by a request. Named partitions are due."""
        for each in partitions:
            self._name(each)
        for key in forgotten:
            gone = self._partitions.pop(key, None)
            if gone is not None:
                self._leave(gone)

    def _name(self, named: FetchPartition) -> FetchPartition:
        known = self._partitions.setdefault(named.key, named)
        if known is named:
            known.session = self
            self._topics = None
        else:
            known.update_request(named)
            known.reply = None
        if known not in self._due:
            self._due[known] = None
        return known

    def _leave(self, gone: FetchPartition) -> None:
        self._topics = None
        self._due.pop(gone, None)
        gone.unwatch()

    def new_entries(self, topic: Hashable, entries: list[bytes]) -> list[bytes]:
        """Return the entries that differ from those of the last request, with `names_all`."""
        known = self._by_entry.get(topic, {})
        return [entry for entry in entries if entry not in known]

    def name_entries(
        self,
        topic: Hashable,
        entries: list[bytes],
        read: Callable[[Hashable, bytes], FetchPartition],
    ) -> None:
        """Apply the new entries of one topic, decoded by `read(topic, entry)`."""
        known = self._by_entry.setdefault(topic, {})
        for entry in entries:
            named = read(topic, entry)
            before = self._partitions.get(named.key)
            if before is not None:
                known.pop(before.entry, None)
            known[entry] = self._name(named)

    def name_again(
        self,
        topic: Hashable,
        entries: list[bytes],
        read: Callable[[Hashable, bytes], FetchPartition],
    ) -> None:
        """Apply entries of partitions that are named more than once. The last one counts.

        `new_entries` leaves out an entry of the last request, also if it follows another one of
        the same partition. Source: Kafka, FetchRequest.fetchData.
        """
        known = self._by_entry.setdefault(topic, {})
        for entry in entries:
            named = read(topic, entry)
            before = self._partitions.get(named.key)
            if before is not None and before.entry != entry:
                known.pop(before.entry, None)
                known[entry] = self._name(named)

    def repeats(self, topic: Hashable, entries: list[bytes]) -> bool:
        """Return True if these may name a partition twice. Call `forget_unnamed` before."""
        return len(self._by_entry.get(topic, {})) < len(entries)

    def forget_unnamed(self, named: dict[Hashable, list[bytes]]) -> None:
        """Forget all partitions that a request with these entries does not name."""
        for topic in [each for each in self._by_entry if each not in named]:
            for partition in self._by_entry.pop(topic).values():
                del self._partitions[partition.key]
                self._leave(partition)
        for topic, entries in named.items():
            known = self._by_entry.get(topic, {})
            # Not by their number: a request may name a partition twice.
            for entry in known.keys() - entries:
                partition = known.pop(entry)
                del self._partitions[partition.key]
                self._leave(partition)

    def order_due(self, named: dict[Hashable, list[bytes]]) -> None:
        """Let the due partitions be served in the order of the request with these entries."""
        if len(self._due) < 2:
            return
        ordered: dict[FetchPartition, None] = {}
        for topic, entries in named.items():
            known = self._by_entry.get(topic, {})
            for entry in entries:
                partition = known.get(entry)
                if partition is not None and partition.reply is None:
                    ordered[partition] = None
        self._due = ordered

    # -- changes ------------------------------------------------------------------------------

    def changed(self, partition: FetchPartition) -> None:
        """The log of `partition` changed, so the partition no longer rests."""
        if partition.reply is not None:
            partition.reply = None
            self._due[partition] = None
        if self.on_changed is not None:
            self.on_changed(partition)
        else:
            partition.unwatch()  # one notification is enough until the next response

    def set_isolation(self, *, committed: bool) -> None:
        """Note the isolation of a request. After a change, no kept reply is right."""
        if committed != self.committed:
            self.committed = committed
            self.wake_all()

    def wake_all(self) -> None:
        """Make every partition due."""
        for partition in self._partitions.values():
            partition.reply = None
        self._due = dict.fromkeys(self._partitions.values())

    # -- responses ----------------------------------------------------------------------------

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
        if has_records and partition in self._due:
            del self._due[partition]
            self._due[partition] = None
        return changed or not self.incremental

    def rest(self, partition: FetchPartition, log: WatchedLog, reply: bytes) -> None:
        """Leave a partition out of responses, or repeat `reply` in them, until its log changes."""
        del self._due[partition]
        partition.reply = reply if self.names_all else b""
        partition.watch(log)

    def resting_replies(self, topic: Hashable) -> list[bytes]:
        """Return the encoded partitions of `topic` that rest, for a session with `names_all`."""
        known = self._by_entry.get(topic, {})
        return [each.reply for each in known.values() if each.reply is not None]

    def topics(self) -> Iterable[Hashable]:
        """Return the topics of a session with `names_all`."""
        return self._by_entry

    def named_topics(self) -> frozenset[Hashable]:
        """Return the topics of all partitions, as the requests named them."""
        if self._topics is None:
            self._topics = frozenset(topic for topic, _ in self._partitions)
        return self._topics

    def partitions_of(self, topics: Container[Hashable]) -> list[FetchPartition]:
        """Return the partitions of these topics."""
        return [each for each in self._partitions.values() if each.topic in topics]

    def answered(self) -> None:
        """End a request, whether it was answered or its client left.

        The logs of due partitions are not watched: the next response looks at these partitions.
        """
        self.busy = False
        self.on_changed = None
        if not self.kept:
            self.close()
            return
        for partition in self._due:
            partition.unwatch()

    def close(self) -> None:
        """Unwatch all logs. The session is not used again."""
        for partition in self._partitions.values():
            partition.unwatch()


class FetchSessions:
    """All fetch sessions of one process. Source: Kafka, FetchSessionCache.

    `draw_id` returns random positive 31-bit numbers: other clients must not guess an id.
    """

    def __init__(
        self,
        sessions_max: int,
        idle_ms_max: int,
        draw_id: Callable[[], int],
        partitions_max: int = 200_000,
    ) -> None:
        # By session id, the least recently used first; at most `sessions_max`.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._sessions_max = sessions_max
        self._idle_ms_max = idle_ms_max
        self._draw_id = draw_id
        # The partitions of all kept sessions together, those of connections included. The sum of
        # their `counted`; at most `partitions_max`.
        self.partitions_held = 0
        self._partitions_max = partitions_max

    def __len__(self) -> int:
        return len(self._sessions)

    def find(
        self, session_id: int, epoch: int, now_ms: int, *, uses_ids: bool
    ) -> FetchSession | FetchSessionError:
        """Return the session before the changes of this request. Then `settle` it."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            closed = self._sessions.get(session_id)
            if closed is not None:
                self.remove(closed)
            return FetchSession((), now_ms, uses_ids=uses_ids)
        session = self._sessions.get(session_id)
        if session is None:
            return FetchSessionError.UNKNOWN_ID
        if session.epoch != epoch or session.busy:
            return FetchSessionError.WRONG_EPOCH
        if session.uses_ids != uses_ids:
            return FetchSessionError.NAMES_AND_IDS_MIXED
        session.incremental = True
        session.used_ms = now_ms
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        self._sessions.move_to_end(session_id)
        return session

    def settle(self, session: FetchSession, epoch: int, now_ms: int) -> None:
        """Keep a session after the changes of its request, if it is new or still has room."""
        if epoch == FINAL_EPOCH:
            return
        if epoch == INITIAL_EPOCH:
            self._try_add(session, now_ms)
        elif not session.kept or not session or not self.count(session):
            # Like Kafka, answer a request that empties its session without a session. The client
            # then starts a new session.
            self.remove(session)

    def count(self, session: FetchSession) -> bool:
        """Count the partitions of a session. Returns False if all sessions would have too many."""
        held = self.partitions_held - session.counted + len(session)
        if held > self._partitions_max and len(session) > session.counted:
            return False
        self.partitions_held = held
        session.counted = len(session)
        return True

    def remove(self, session: FetchSession) -> None:
        """Drop a session. A request that it is answering continues without a session."""
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
        session.id = NO_SESSION
        session.names_all = False
        self.partitions_held -= session.counted
        session.counted = 0
        if not session.busy:
            session.close()

    def _try_add(self, session: FetchSession, now_ms: int) -> None:
        """Admit the session under a new id if there is room, or if another one can be evicted."""
        if not session or not self._make_room(len(session), now_ms) or not self.count(session):
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
        full = len(self._sessions) >= self._sessions_max
        while full or self.partitions_held + partitions > self._partitions_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms <= self._idle_ms_max:
                break
            self.remove(oldest)
            full = len(self._sessions) >= self._sessions_max
        if not full:
            return True
        settled = [
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > self._idle_ms_max
        ]
        smallest = min(settled, key=len, default=None)
        if smallest is None or len(smallest) >= partitions:
            return False
        self.remove(smallest)
        return True

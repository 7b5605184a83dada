"""The coordinator of the transactional ids in one partition of the transaction log. Pure.

Every call takes the time and returns effects: records to append, answers for waiters, and markers
to send. Nothing here waits. The state of an id changes only after its record is durable, and an
answer follows the record that it depends on. PrepareCommit or PrepareAbort is the outcome;
CompleteCommit or CompleteAbort follows the last marker.

After a failed append its outcome is unknown. Then this object answers every waiter and is dropped,
and the map is loaded again from the log.

Source: Apache Kafka 4.3, TransactionCoordinator, TransactionStateManager and
TransactionMarkerChannelManager; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from kio.schema.errors import ErrorCode

from gateway.core.deadlines import Deadlines
from gateway.core.transaction_checks import (
    check_ending,
    check_ending_with_bump,
    check_initializing,
    check_producer,
    may_initialize,
)
from gateway.core.transaction_effects import (
    Added,
    Adding,
    Answer,
    Append,
    Effect,
    Ended,
    Ending,
    Hold,
    Initialized,
    Initializing,
    Marker,
    Reload,
    Result,
    SendMarkers,
    TransactionSettings,
    TransactionView,
)
from gateway.core.transaction_log import FIXED_VERSION, FLEXIBLE_VERSION, value_bytes
from gateway.core.transaction_states import (
    EPOCH_BUMP_VERSION,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)

_RETRIED = frozenset(
    (
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
    )
)
_MARKED = frozenset(
    (
        ErrorCode.none,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.unsupported_version,
        # The partition has a newer epoch of this producer, so it has no part of this transaction
        # left. If another coordinator gave the epoch, the Complete record will not become durable.
        ErrorCode.invalid_producer_epoch,
    )
)
"""Answers after which a partition needs no further copy of a marker."""

_NO_PARTITIONS: set[TopicPartition] = set()


class _Entry:
    """One transactional id."""

    __slots__ = ("append", "fences", "held", "marker", "metadata", "unmarked", "waiter", "wants")

    def __init__(self, metadata: TransactionMetadata) -> None:
        # The durable state; before the first record is durable, the state with epoch -1.
        self.metadata = metadata
        # The record that is being appended. At most one; None if there is none.
        self.append: Append | None = None
        # The request that waits for `append`, and the kind of its answer. None if the coordinator
        # itself caused it.
        self.waiter: object = None
        self.wants: type[Result] | None = None
        self.fences = False  # True if `append` aborts the transaction of an earlier producer
        # The marker of the prepared transaction, with all its partitions. Set in Prepare states.
        self.marker: Marker | None = None
        # The partitions whose marker is not durable yet. Not empty only in Prepare states.
        # Most ids share one empty set, to which nothing is ever added.
        self.unmarked = _NO_PARTITIONS
        if metadata.state in PREPARED:
            self.unmarked = set(metadata.partitions)
        # Those of `unmarked` that refused the coordinator epoch also after a reload.
        self.held = _NO_PARTITIONS

    @property
    def busy(self) -> bool:
        """True while a record is appended or markers are sent: requests have to try again."""
        return self.append is not None or self.metadata.state in PREPARED


class TransactionCoordinator:
    """The transactional ids of one partition of the log, during one ownership.

    `coordinator_epoch` must not be that of an earlier owner that may have sent markers. So the
    owner has to own a segment of its own before it calls `start`. `take_producer_id` returns an
    unused producer id, or None if none is at hand. `fenced` is that of the core before this one.
    """

    __slots__ = (
        "_entries",
        "_expiries",
        "_fenced",
        "_held",
        "_live",
        "_number",
        "_reloads",
        "_settings",
        "_take_producer_id",
        "_timeouts",
        "coordinator_epoch",
        "transaction_version",
    )

    def __init__(
        self,
        coordinator_epoch: int,
        take_producer_id: Callable[[], int | None],
        settings: TransactionSettings | None = None,
        transaction_version: int = EPOCH_BUMP_VERSION,
        fenced: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self.coordinator_epoch = coordinator_epoch
        self.transaction_version = transaction_version  # the feature's level; it may change
        self._settings = settings or TransactionSettings()
        self._take_producer_id = take_producer_id
        self._entries: dict[str, _Entry] = {}
        self._live = True  # False after `abandon`
        self._number = 0  # the number of the newest marker; rises by one with each transaction
        # The end of the timeout of each Ongoing transaction, by transactional id.
        self._timeouts: Deadlines[str] = Deadlines()
        # The time at which each id without a transaction expires.
        self._expiries: Deadlines[str] = Deadlines()
        # The time at which the marker for `held` partitions is sent again, of each id with some.
        self._held: Deadlines[str] = Deadlines()
        # The producer id and epoch of prepared transactions whose marker was refused because of
        # the coordinator epoch. Such a refusal reloads the map once for each of them.
        self._fenced = dict(fenced or {})
        self._reloads = False  # True once this core has asked for a reload

    # -- load -----------------------------------------------------------------------------------

    def load(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        """Take over one record of the log, the oldest first. None is a tombstone."""
        self._entries.pop(transactional_id, None)
        self._timeouts.clear(transactional_id)
        self._expiries.clear(transactional_id)
        if metadata is not None:
            self._entries[transactional_id] = _Entry(metadata)
            self._set_deadlines(metadata)

    def start(self, now_ms: int) -> Iterator[Effect]:
        """Send the markers of all prepared transactions again. Called once, after the last load.

        The caller may pause between two effects; requests may come meanwhile.
        """
        prepared = [each for each in self._entries.values() if each.metadata.state in PREPARED]
        for entry in prepared:
            if self._live:
                yield from self._send_markers(entry, now_ms)

    @property
    def metadata(self) -> Iterator[TransactionMetadata]:
        """The durable state of each id: what a snapshot of the log stores."""
        for entry in self._entries.values():
            if entry.metadata.epoch != NO_EPOCH:
                yield entry.metadata

    @property
    def value_version(self) -> int:
        """The version in which this coordinator writes records."""
        return FLEXIBLE_VERSION if self.transaction_version >= 1 else FIXED_VERSION

    @property
    def fenced(self) -> Mapping[str, tuple[int, int]]:
        """The transactions for which the map need not be loaded again, for the next core."""
        return self._fenced

    # -- InitProducerId -------------------------------------------------------------------------

    def initialize(self, request: Initializing, waiter: object, now_ms: int) -> list[Effect]:
        """Handle an InitProducerId: fence earlier producers of the id, and abort what they left."""
        error = check_initializing(request, self._settings.timeout_ms_max)
        if error is ErrorCode.none and not self._live:
            error = ErrorCode.not_coordinator
        if error is not ErrorCode.none:
            return [Answer(waiter, Initialized(error))]
        entry = self._entries.get(request.transactional_id)
        if entry is None:
            producer_id = self._take_producer_id()
            if producer_id is None:
                return [Answer(waiter, Initialized(ErrorCode.coordinator_load_in_progress))]
            entry = self._entries[request.transactional_id] = _Entry(
                TransactionMetadata(
                    transactional_id=request.transactional_id,
                    producer_id=producer_id,
                    timeout_ms=request.timeout_ms,
                    updated_ms=now_ms,
                )
            )
        if entry.busy:
            return [Answer(waiter, Initialized(ErrorCode.concurrent_transactions))]
        if not may_initialize(entry.metadata, request):
            return [Answer(waiter, Initialized(ErrorCode.producer_fenced))]
        if entry.metadata.state is TransactionState.ONGOING:
            return self._fence(entry, waiter, now_ms)
        return self._bump(entry, request, waiter, now_ms)

    def _bump(
        self, entry: _Entry, request: Initializing, waiter: object, now_ms: int
    ) -> list[Effect]:
        metadata = entry.metadata
        expected = None if request.epoch == NO_EPOCH else request.epoch
        if metadata.exhausted and expected in (None, metadata.epoch):
            producer_id = self._take_producer_id()
            if producer_id is None:
                return [Answer(waiter, Initialized(ErrorCode.coordinator_load_in_progress))]
            target = metadata.rotated(
                producer_id, request.timeout_ms, now_ms, keeps_last_epoch=expected is not None
            )
        elif metadata.exhausted:
            # Kafka's code: it refuses to give a further epoch before it compares the epochs.
            return [Answer(waiter, Initialized(ErrorCode.unknown_server_error))]
        else:
            initialized = metadata.initialized(request.timeout_ms, expected, now_ms)
            if initialized is None:
                return [Answer(waiter, Initialized(ErrorCode.producer_fenced))]
            target = initialized
        return self._append(entry, target, waiter, Initialized)

    def _fence(self, entry: _Entry, waiter: object, now_ms: int) -> list[Effect]:
        """Abort an Ongoing transaction with an epoch that no producer receives.

        The waiting producer is told to try again, and then gets the epoch after that.
        """
        metadata, version = entry.metadata, 0
        next_producer_id = NO_PRODUCER_ID
        if self.transaction_version >= EPOCH_BUMP_VERSION:
            version = self.transaction_version
            if metadata.exhausted:
                taken = self._take_producer_id()
                if taken is None:
                    return _fence_later(waiter)
                next_producer_id = taken
        else:
            metadata = metadata.fenced()
        target = metadata.prepared(
            TransactionState.PREPARE_ABORT, version, next_producer_id, now_ms
        )
        effects = self._append(entry, target, waiter, Initialized)
        entry.fences = True
        return effects

    # -- AddPartitionsToTxn and AddOffsetsToTxn -------------------------------------------------

    def add(self, request: Adding, waiter: object, now_ms: int) -> list[Effect]:
        """Handle an AddPartitionsToTxn or AddOffsetsToTxn: add partitions to the transaction."""
        entry = self._entry(request.transactional_id)
        if isinstance(entry, ErrorCode):
            return [Answer(waiter, Added(entry))]
        if entry.busy:
            # First of all checks: a new producer id may be about to become durable.
            return [Answer(waiter, Added(ErrorCode.concurrent_transactions))]
        metadata = entry.metadata
        error = check_producer(metadata, request.producer_id, request.epoch)
        if error is not ErrorCode.none:
            return [Answer(waiter, Added(error))]
        # One pass over the partitions of both: a union would compare those that both have again.
        new = request.partitions - metadata.partitions
        if metadata.state is TransactionState.ONGOING and not new:
            return [Answer(waiter, Added(ErrorCode.none))]
        target = metadata.added(new, request.version, now_ms)
        if value_bytes(target) > self._settings.record_bytes_max:
            return [Answer(waiter, Added(ErrorCode.unknown_server_error))]
        return self._append(entry, target, waiter, Added)

    def verify(self, request: Adding) -> dict[TopicPartition, ErrorCode]:
        """Handle a verify-only AddPartitionsToTxn: report which partitions were added.

        Answer only while the lease holds, because this reads state without an append.
        """
        entry = self._entry(request.transactional_id)
        if isinstance(entry, ErrorCode):
            return dict.fromkeys(request.partitions, entry)
        error = check_producer(entry.metadata, request.producer_id, request.epoch)
        if error is ErrorCode.none and entry.metadata.state in PREPARED:
            error = ErrorCode.concurrent_transactions
        if error is not ErrorCode.none:
            return dict.fromkeys(request.partitions, error)
        added = entry.metadata.partitions
        return {
            partition: ErrorCode.none if partition in added else ErrorCode.transaction_abortable
            for partition in request.partitions
        }

    def _entry(self, transactional_id: str) -> _Entry | ErrorCode:
        """Return the entry of a request's id, or the error if there is none."""
        if not transactional_id:
            return ErrorCode.invalid_request
        if not self._live:
            return ErrorCode.not_coordinator
        return self._entries.get(transactional_id, ErrorCode.invalid_producer_id_mapping)

    # -- EndTxn ---------------------------------------------------------------------------------

    def end(self, request: Ending, waiter: object, now_ms: int) -> list[Effect]:
        """Handle an EndTxn. Its answer follows the Prepare record, not the markers."""
        entry = self._entry(request.transactional_id)
        if isinstance(entry, ErrorCode):
            return [Answer(waiter, Ended(entry))]
        if request.version >= EPOCH_BUMP_VERSION:
            return self._end_with_bump(entry, request, waiter, now_ms)
        error = check_ending(entry.metadata, request, busy=entry.busy)
        if error is not None:
            return [Answer(waiter, Ended(error))]
        target = entry.metadata.prepared(_prepare(request), request.version, NO_PRODUCER_ID, now_ms)
        return self._append(entry, target, waiter, Ended)

    def _end_with_bump(
        self, entry: _Entry, request: Ending, waiter: object, now_ms: int
    ) -> list[Effect]:
        """Handle EndTxn v5 and later: each transaction ends with an epoch of its own."""
        metadata = entry.metadata
        error = check_ending_with_bump(metadata, request, busy=entry.busy)
        if error is ErrorCode.none:  # a retry after a lost answer
            return [Answer(waiter, Ended(error, metadata.producer_id, metadata.epoch))]
        if error is not None:
            return [Answer(waiter, Ended(error))]
        next_producer_id = NO_PRODUCER_ID
        if metadata.exhausted:
            taken = self._take_producer_id()
            if taken is None:
                return [Answer(waiter, Ended(ErrorCode.coordinator_load_in_progress))]
            next_producer_id = taken
        target = metadata.prepared(_prepare(request), request.version, next_producer_id, now_ms)
        return self._append(entry, target, waiter, Ended)

    # -- appended records -----------------------------------------------------------------------

    def _append(
        self, entry: _Entry, target: TransactionMetadata, waiter: object, wants: type[Result]
    ) -> list[Effect]:
        assert entry.append is None
        entry.append = Append(target.transactional_id, target)
        entry.waiter, entry.wants, entry.fences = waiter, wants, False
        return [entry.append]

    def on_appended(self, append: Append, now_ms: int) -> list[Effect]:
        """Take over a state whose record is durable; answer its request and send its markers."""
        entry = self._entries.get(append.transactional_id)
        if not self._live or entry is None or entry.append is not append:
            return []
        entry.append = None
        if append.metadata is None:
            del self._entries[append.transactional_id]
            self._held.clear(append.transactional_id)
            return []
        self._fenced.pop(append.transactional_id, None)
        metadata = entry.metadata = append.metadata
        self._set_deadlines(metadata)
        effects = self._answer(entry, now_ms)
        if metadata.state in PREPARED:
            effects += self._send_markers(entry, now_ms)
        return effects

    def _answer(self, entry: _Entry, now_ms: int) -> list[Effect]:
        waiter, wants, metadata = entry.waiter, entry.wants, entry.metadata
        entry.waiter = entry.wants = None
        if waiter is None:
            return []
        if wants is Initialized:
            if entry.fences:
                return [Answer(waiter, Initialized(ErrorCode.concurrent_transactions))]
            result = Initialized(ErrorCode.none, metadata.producer_id, metadata.epoch)
            return [Answer(waiter, result)]
        if wants is Ended and metadata.bumps_epoch:
            after = metadata.completed(now_ms)
            return [Answer(waiter, Ended(ErrorCode.none, after.producer_id, after.epoch))]
        return [Answer(waiter, Ended(ErrorCode.none) if wants is Ended else Added(ErrorCode.none))]

    def abandon(self, error: ErrorCode) -> list[Effect]:
        """Answer all waiters with `error` and accept nothing more.

        Called after a failed append, or when the ownership ended. The outcome of pending appends
        is unknown; the next load finds it in the log.
        """
        effects: list[Effect] = []
        for entry in self._entries.values():
            if entry.waiter is not None and entry.wants is not None:
                effects.append(Answer(entry.waiter, entry.wants(error)))
            entry.waiter = entry.wants = None
        self._live = False
        self._timeouts, self._expiries, self._held = Deadlines(), Deadlines(), Deadlines()
        return effects

    # -- markers --------------------------------------------------------------------------------

    def _send_markers(self, entry: _Entry, now_ms: int) -> list[Effect]:
        """Send the markers of a prepared transaction, or complete it if it has no partition."""
        metadata = entry.metadata
        self._number += 1
        entry.unmarked = set(metadata.partitions)
        entry.marker = Marker(
            metadata.transactional_id,
            metadata.producer_id,
            metadata.epoch,
            self.coordinator_epoch,
            metadata.state is TransactionState.PREPARE_COMMIT,
            metadata.partitions,
            metadata.version,
            self._number,
        )
        if entry.unmarked:
            return [SendMarkers(entry.marker)]
        return self._complete_if_marked(entry, now_ms)

    def on_marked(
        self, marker: Marker, errors: Mapping[TopicPartition, ErrorCode], now_ms: int
    ) -> list[Effect]:
        """Take over the answers of partitions to a marker.

        Returns a marker for the partitions that have to be asked again, after a backoff. A deleted
        topic is reported as success.
        """
        entry = self._entries.get(marker.transactional_id)
        current = None if entry is None else entry.marker
        if not self._live or entry is None or current is None or current.number != marker.number:
            return []
        again: set[TopicPartition] = set()
        fenced: set[TopicPartition] = set()
        for partition, error in errors.items():
            if error in _MARKED:
                entry.unmarked.discard(partition)
            elif error is ErrorCode.transaction_coordinator_fenced:
                fenced.add(partition)
            elif partition in entry.unmarked:
                again.add(partition)
        effects = self._on_fenced(entry, current, fenced, now_ms) if fenced else []
        if again:
            effects.append(SendMarkers(current._replace(partitions=frozenset(again))))
        return effects + self._complete_if_marked(entry, now_ms)

    def _on_fenced(
        self, entry: _Entry, marker: Marker, partitions: set[TopicPartition], now_ms: int
    ) -> list[Effect]:
        """Load the map again, because another coordinator may have taken over.

        If a partition refuses the marker of this transaction also after that, it has a coordinator
        epoch of another origin, such as a marker of an admin client. Then only this marker waits.
        """
        transaction = marker.producer_id, marker.epoch
        if self._reloads or self._fenced.get(marker.transactional_id) != transaction:
            self._fenced[marker.transactional_id] = transaction
            self._reloads = True
            return [Reload()]
        entry.held = entry.held | partitions
        self._held.set(marker.transactional_id, now_ms + self._settings.held_ms)
        return [Hold(marker._replace(partitions=frozenset(partitions)))]

    def _send_held(self, entry: _Entry) -> list[Effect]:
        """Send the marker again to partitions that refused it; an operator may have helped."""
        held, entry.held = entry.held & entry.unmarked, _NO_PARTITIONS
        if entry.marker is None or not held:
            return []
        return [SendMarkers(entry.marker._replace(partitions=frozenset(held)))]

    def _complete_if_marked(self, entry: _Entry, now_ms: int) -> list[Effect]:
        if entry.unmarked or entry.append is not None:
            return []
        entry.append = Append(entry.metadata.transactional_id, entry.metadata.completed(now_ms))
        entry.marker = None
        entry.unmarked = _NO_PARTITIONS
        return [entry.append]

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Abort transactions whose timeout has passed, and delete expired ids.

        Called every `scan_ms`. The caller may pause between two effects; requests may come
        meanwhile.
        """
        for transactional_id in self._timeouts.each_due(now_ms):
            if not self._live:
                return
            yield from self._abort_timed_out(self._entries[transactional_id], now_ms)
        expired = islice(self._expiries.each_due(now_ms), self._settings.expired_at_once)
        for transactional_id in expired:
            if not self._live:
                return
            entry = self._entries[transactional_id]
            if entry.append is not None:
                self._expiries.set(transactional_id, now_ms + self._settings.scan_ms)
                continue
            entry.append = Append(transactional_id, None)
            yield entry.append
        for transactional_id in self._held.each_due(now_ms):
            yield from self._send_held(self._entries[transactional_id])

    def _abort_timed_out(self, entry: _Entry, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if entry.append is None:
            effects = self._fence(entry, None, now_ms)
        if not effects:  # a record is on its way, or no producer id is at hand
            self._timeouts.set(entry.metadata.transactional_id, now_ms + self._settings.scan_ms)
        return effects

    def _set_deadlines(self, metadata: TransactionMetadata) -> None:
        """Set the deadline that fits the durable state, and only this one."""
        transactional_id = metadata.transactional_id
        self._timeouts.clear(transactional_id)
        self._expiries.clear(transactional_id)
        if metadata.state is TransactionState.ONGOING:
            # Kafka aborts when the timeout has passed, not at its last millisecond.
            self._timeouts.set(transactional_id, metadata.started_ms + metadata.timeout_ms + 1)
        elif metadata.state not in PREPARED:
            at_ms = metadata.updated_ms + self._settings.id_expiration_ms
            self._expiries.set(transactional_id, at_ms)

    # -- descriptions ---------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionView | ErrorCode:
        """Return what DescribeTransactions shows of an id, or the error."""
        if not transactional_id:
            return ErrorCode.invalid_request
        if not self._live:
            return ErrorCode.not_coordinator
        entry = self._entries.get(transactional_id)
        return ErrorCode.transactional_id_not_found if entry is None else _view(entry)

    def views(self, transactional_ids: Iterable[str] | None = None) -> Iterator[TransactionView]:
        """Return what ListTransactions shows, of these ids or of all."""
        wanted = self._entries if transactional_ids is None else transactional_ids
        for transactional_id in wanted:
            view = self.describe(transactional_id)
            if isinstance(view, TransactionView):
                yield view


def _view(entry: _Entry) -> TransactionView:
    metadata = entry.metadata
    return TransactionView(
        metadata.transactional_id,
        metadata.producer_id,
        metadata.epoch,
        metadata.state,
        metadata.timeout_ms,
        metadata.started_ms,
        frozenset(entry.unmarked) if metadata.state in PREPARED else metadata.partitions,
    )


def _fence_later(waiter: object) -> list[Effect]:
    if waiter is None:
        return []
    return [Answer(waiter, Initialized(ErrorCode.coordinator_load_in_progress))]


def _prepare(request: Ending) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if request.commit else TransactionState.PREPARE_ABORT

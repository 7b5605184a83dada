"""A coordinator's core with its log, whose records become durable when a test wants it."""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode as Code

from gateway.core.transaction_effects import (
    Added,
    Adding,
    Answer,
    Append,
    Ending,
    Hold,
    Initialized,
    Initializing,
    Reload,
    SendMarkers,
    TransactionSettings,
)
from gateway.core.transaction_states import (
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)
from gateway.core.transactions import TransactionCoordinator

ID = "pay"
ORDERS, STOCK = TopicPartition("orders", 0), TopicPartition("stock", 3)


class Log:
    """A coordinator whose records become durable at once, unless `holds`."""

    def __init__(self, level=2, **settings):
        self.next_id = 1_000
        self.ids_left = 100
        self.level, self.settings = level, TransactionSettings(**settings)
        self.core = self.coordinator(0)
        self.records: list[Append] = []
        self.pending: list[Append] = []
        self.holds = False
        self.markers = []
        self.answers = []
        self.reloads = self.held = 0
        self.now_ms = 10_000

    def coordinator(self, epoch):
        return TransactionCoordinator(epoch, self._take, self.settings, self.level)

    def _take(self):
        if not self.ids_left:
            return None
        self.ids_left -= 1
        self.next_id += 1
        return self.next_id - 1

    def carry_out(self, effects):
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, Append):
                self.pending.append(effect)
                if not self.holds:
                    waiting += self.flush()
            elif isinstance(effect, Answer):
                self.answers.append(effect.result)
            elif isinstance(effect, SendMarkers):
                self.markers.append(effect.marker)
            else:
                self.reloads += isinstance(effect, Reload)
                self.held += isinstance(effect, Hold)

    def flush(self):
        """Make all pending records durable. Returns the effects."""
        effects = []
        for append in self.pending:
            self.records.append(append)
            effects += self.core.on_appended(append, self.now_ms)
        self.pending.clear()
        return effects

    def init(self, producer_id=-1, epoch=-1, timeout_ms=60_000, name=ID):
        request = Initializing(name, timeout_ms, producer_id, epoch)
        self.carry_out(self.core.initialize(request, "waiter", self.now_ms))
        return self.last()

    def add(self, producer_id, epoch, *partitions, version=2, name=ID):
        request = Adding(name, producer_id, epoch, frozenset(partitions), version)
        self.carry_out(self.core.add(request, "waiter", self.now_ms))
        return self.last()

    def verify(self, producer_id, epoch, *partitions, name=ID):
        return self.core.verify(Adding(name, producer_id, epoch, frozenset(partitions)))

    def end(self, producer_id, epoch, *, commit=True, version=2, name=ID):
        request = Ending(name, producer_id, epoch, commit, version)
        self.carry_out(self.core.end(request, "waiter", self.now_ms))
        return self.last()

    def last(self):
        return self.answers.pop() if self.answers else None

    def mark(self, error=Code.none, *partitions):
        """Answer the newest marker for these partitions, or for all."""
        marker = self.markers.pop()
        errors = dict.fromkeys(partitions or marker.partitions, error)
        self.carry_out(self.core.on_marked(marker, errors, self.now_ms))
        return marker

    def tick(self, later_ms):
        self.now_ms += later_ms
        self.carry_out(self.core.tick(self.now_ms))

    def take_over(self):
        """Load another coordinator from the durable records."""
        self.core = self.coordinator(self.core.coordinator_epoch + 1)
        for record in self.records:
            stored = record.metadata and replace(record.metadata, last_epoch=-1)
            self.core.load(record.transactional_id, stored)
        self.pending.clear()
        self.carry_out(self.core.start(self.now_ms))

    @property
    def states(self):
        return [record.metadata.state.kafka_name for record in self.records if record.metadata]

    @property
    def state(self) -> TransactionMetadata:
        (found,) = self.core.metadata
        return found


def ongoing(level=2, version=2):
    log = Log(level)
    assert log.init() == Initialized(Code.none, 1_000, 0)
    assert log.add(1_000, 0, ORDERS, STOCK, version=version) == Added(Code.none)
    return log


def at_epoch(epoch, state=TransactionState.EMPTY, level=2):
    """A coordinator that loaded the id in this state."""
    log = Log(level)
    partitions = frozenset() if state is TransactionState.EMPTY else frozenset((ORDERS,))
    stored = TransactionMetadata(
        transactional_id=ID,
        producer_id=500,
        epoch=epoch,
        timeout_ms=60_000,
        state=state,
        partitions=partitions,
        started_ms=log.now_ms,
        updated_ms=log.now_ms,
        version=level,
    )
    log.records.append(Append(ID, stored))
    log.take_over()
    return log

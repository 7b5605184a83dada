"""What the transactions of a simulated cluster decided, and what clients saw of them.

A transaction is decided when the coordinator's Prepare record is durable. Every error is a line of
`violations`, which begins with its name:

    K3          a read_committed reader or OffsetFetch returned something of an aborted transaction
    K4          the same of a transaction that was not decided yet
    K7          committed transactions read from each other in a circle
    hidden      a read_committed reader was not given a record of a committed transaction
    torn        partitions or groups disagree about the outcome, or miss a part of it
    decided     a commit or an abort was acknowledged, and something else was decided
    lost        an acknowledged record of a committed transaction is not in the log
    doubled     a record is in the log twice
    fell        a last stable offset, leader epoch, coordinator epoch or committed offset fell
    never       a transaction does not end, or a partition or group is not served, after quiet
    refused     a client got an error that it must never get
    handler     a handler or a task raised an exception
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.transaction_states import PREPARED, TransactionState

COMMIT, ABORT = "commit", "abort"


@dataclass(eq=False)
class Transaction:
    """One transaction of one client, from its begin."""

    number: int
    name: str  # the transactional id
    producer_id: int
    epoch: int
    records: dict = field(default_factory=dict)  # (partition, sequence in the transaction): acked
    offsets: dict = field(default_factory=dict)  # by cell: True once acknowledged
    read: set = field(default_factory=set)  # transactions whose records it has read
    outcome: str | None = None
    order: int = -1  # the place among all decisions
    acknowledged: str | None = None  # the outcome that its client was told
    asked: str | None = None  # the outcome that its client asked for


class Cell(NamedTuple):
    """The committed offset that only one transactional id writes."""

    group: str
    index: int


class Oracle:
    """All transactions of one world."""

    def __init__(self):
        self.violations = []
        self.transactions = {}  # by number
        self._by_producer = defaultdict(list)
        self._decisions = set()
        self.stable = defaultdict(int)  # by partition: the highest stable offset that was shown
        self.epochs = defaultdict(int)  # by partition: the highest leader epoch that was shown
        self.positions = defaultdict(lambda: -1)  # by cell: the highest offset that was returned
        self.told = defaultdict(lambda: -1)  # by cell: the last acknowledged commit

    def report(self, name, text):
        if len(self.violations) < 20:
            self.violations.append(f"{name}: {text}")

    # -- what happens -------------------------------------------------------------------------

    def begin(self, name, producer_id, epoch):
        number = len(self.transactions) + 1
        one = Transaction(number, name, producer_id, epoch)
        self.transactions[number] = one
        self._by_producer[producer_id].append(one)
        return one

    def on_durable(self, metadata):
        """Take a durable record of a coordinator, or one that a new coordinator has loaded."""
        if metadata is None or metadata.state not in PREPARED:
            return
        identity = (metadata.producer_id, metadata.epoch, metadata.started_ms)
        if identity in self._decisions:
            return
        self._decisions.add(identity)
        last = metadata.epoch - 1 if metadata.bumps_epoch else metadata.epoch
        outcome = COMMIT if metadata.state is TransactionState.PREPARE_COMMIT else ABORT
        undecided = [
            one
            for one in self._by_producer[metadata.producer_id]
            if one.epoch <= last and one.outcome is None
        ]
        # A producer whose transaction had nothing to end has gone on with a higher epoch.
        epoch = max((one.epoch for one in undecided), default=-1)
        for one in undecided:
            if one.epoch == epoch:
                one.outcome, one.order = outcome, len(self._decisions)

    def on_ended(self, one, outcome):
        """The client received the outcome."""
        one.acknowledged = outcome
        if not _agrees(outcome, one.outcome):
            self.report("decided", f"{one.number} was told {outcome}, decided {one.outcome}")
        if outcome == COMMIT:
            for cell, acked in one.offsets.items():
                if acked:
                    self.told[cell] = max(self.told[cell], one.number)

    # -- what readers see ---------------------------------------------------------------------

    def sees(self, reader, number):
        """A read_committed reader got a record, or OffsetFetch an offset, of this transaction."""
        one = self.transactions[number]
        if one.outcome == ABORT:
            self.report("K3", f"{reader} read aborted transaction {number}")
        elif one.outcome is None:
            self.report("K4", f"{reader} read transaction {number}, which is not decided")

    def hides(self, reader, number):
        """A read_committed reader dropped a record that it was given as aborted."""
        if self.transactions[number].outcome == COMMIT:
            self.report("hidden", f"{reader} was told that transaction {number} is aborted")

    def shows(self, partition, asked_at, stable, epoch=None):
        """A leader answered with this stable offset; `asked_at` is what was shown before."""
        if stable < asked_at:
            self.report("fell", f"LSO of {partition} from {asked_at} to {stable}")
        self.stable[partition] = max(self.stable[partition], stable)
        if epoch is not None:
            if epoch < self.epochs[partition]:
                self.report("fell", f"epoch of {partition}: {self.epochs[partition]} to {epoch}")
            self.epochs[partition] = max(self.epochs[partition], epoch)

    def shows_offset(self, cell, before, told, offset, *, stable):
        """OffsetFetch returned this. `before` and `told` were known when it was sent."""
        if offset >= 0:
            self.sees(f"OffsetFetch of {cell}", offset)
        if offset < before:
            self.report("fell", f"committed offset of {cell} from {before} to {offset}")
        if stable and offset < told:
            self.report("torn", f"{cell} is stable at {offset}, told was {told}")
        self.positions[cell] = max(self.positions[cell], offset)

    # -- the end ------------------------------------------------------------------------------

    def check_log(self, partition, log):
        """`log` has (producer id, number, sequence) of records, and markers as `Marked`."""
        opened, epochs, found = defaultdict(list), defaultdict(int), set()
        for each in log:
            if isinstance(each, Marked):
                if each.coordinator_epoch < epochs[each.producer_id]:
                    self.report("fell", f"coordinator epoch of {each} in {partition}")
                epochs[each.producer_id] = each.coordinator_epoch
                for number in opened.pop(each.producer_id, ()):
                    self._check_outcome(partition, number, COMMIT if each.commit else ABORT)
                continue
            producer_id, number, sequence = each
            if (number, sequence) in found:
                self.report("doubled", f"{number}.{sequence} in {partition}")
            found.add((number, sequence))
            opened[producer_id].append(number)
        for numbers in opened.values():
            self.report("never", f"transactions {numbers} are open in {partition}")
        self._check_lost(partition, found)

    def _check_lost(self, partition, found):
        for one in self.transactions.values():
            for (index, sequence), acked in one.records.items():
                kept = one.outcome == COMMIT and acked and index == partition
                if kept and (one.number, sequence) not in found:
                    self.report("lost", f"{one.number}.{sequence} in {partition}")

    def _check_outcome(self, partition, number, outcome):
        decided = self.transactions[number].outcome
        if decided != outcome:
            self.report("torn", f"{number} is {outcome} in {partition}, decided {decided}")

    def check_end(self):
        """Check what was acknowledged against what was decided, and the reads for circles."""
        for one in self.transactions.values():
            if not _agrees(one.acknowledged, one.outcome):
                self.report("decided", f"{one.number}: {one.acknowledged}, {one.outcome}")
            if one.outcome == COMMIT and one.asked != COMMIT:
                self.report("decided", f"{one.number} was committed, asked was {one.asked}")
        self._check_circles()

    def expected(self, cell):
        """The number that this cell must have in the end, -1 for no offset."""
        committed = [
            one
            for one in self.transactions.values()
            if one.outcome == COMMIT and one.offsets.get(cell)
        ]
        return max(committed, key=lambda one: one.order).number if committed else -1

    def _check_circles(self):
        done, path = set(), []

        def visit(number):
            if number in path:
                self.report("K7", f"transactions {path[path.index(number) :]} read each other")
            elif number not in done:
                path.append(number)
                for other in sorted(self.transactions[number].read - {number}):
                    visit(other)
                path.pop()
                done.add(number)

        for number, one in self.transactions.items():
            if one.outcome == COMMIT:
                visit(number)


def _agrees(told, decided):
    """An empty transaction is aborted without a decision."""
    return told is None or told == decided or (told, decided) == (ABORT, None)


class Marked(NamedTuple):
    """A marker in the log of a partition."""

    producer_id: int
    commit: bool
    coordinator_epoch: int

"""The clients of `transaction_world`: each initializes, writes some transactions, and ends."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.core.transaction_effects import Adding, Ended, Ending, Initialized, Initializing
from gateway.core.transaction_states import TopicPartition
from tests.sim.transaction_hosts import ID, TOPIC, Message, Produce

TIMEOUT_MS = 1_000
_AGAIN = frozenset(
    (
        ErrorCode.concurrent_transactions,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_leader_or_follower,
    )
)


class Client:
    """One producer process. It has one request at a time and repeats it until it is answered.

    `plan` lists its transactions: the partitions to write to, and whether to commit.
    """

    def __init__(self, index, protocol, plan):
        self.index = index
        self.protocol = protocol
        self.plan = list(plan)
        self.producer_id = self.epoch = -1
        self.step = "init"  # init, add, write, end; then done or fenced
        self.tag = 0  # of the open transaction
        self.number = 0  # of the newest request
        self.waiting = None  # the request without an answer
        self.again = False  # True if the last request was refused and is to be sent again
        self.sequences: dict[int, int] = {}
        self.left: list[int] = []  # partitions that the open transaction is still to write to
        self.added: set[int] = set()
        self.commit = True
        self.unsure = (
            False  # True after a write of unknown outcome; protocol 1 then bumps the epoch
        )

    @property
    def ended(self):
        return self.step in ("done", "fenced")

    def next_request(self, new_tag):
        """Return the next message, or the one without an answer again."""
        if self.waiting is None:
            self.number += not self.again  # a refused request keeps its number
            self.again = False
            self.waiting = self._request(new_tag)
        return self.waiting

    def _request(self, new_tag):
        back = ("client", self.index, self.number)
        if self.step == "init":
            given = (self.producer_id, self.epoch) if self.producer_id >= 0 else ()
            return self._to_coordinator(Initializing(ID, TIMEOUT_MS, *given))
        if self.step == "begin":
            self.left, self.commit = list(self.plan[0][0]), self.plan[0][1]
            self.added.clear()
            self.tag = new_tag(self)
            self._go_on()
        if self.step == "end":
            version = 2 if self.protocol == 2 else 0
            ending = Ending(ID, self.producer_id, self.epoch, self.commit, version)
            return self._to_coordinator(ending)
        partition = self.left[0]
        if self.step == "add":
            where = frozenset((TopicPartition(TOPIC, partition),))
            return self._to_coordinator(Adding(ID, self.producer_id, self.epoch, where))
        sequence = self.sequences.get(partition, 0)
        one = (self.index, self.tag, self.producer_id, self.epoch, sequence, self.protocol)
        return Message(("partition", partition), Produce(*one), back[2])

    def _to_coordinator(self, body):
        return Message(("coordinator", -1), body, ("client", self.index, self.number))

    def _go_on(self):
        if not self.left:
            self.step = "end"
        elif self.protocol == 1 and self.left[0] not in self.added:
            self.step = "add"
        else:
            self.step = "write"

    def answer(self, number, result):
        """Take an answer. Returns the tag and outcome if a transaction ended, otherwise None."""
        if number != self.number or self.waiting is None or self.ended:
            return None
        self.waiting = None
        if result.error in _AGAIN:
            self.again = True
            return None
        if isinstance(result, Initialized) or self.step == "init":
            self._initialized(result)
            return None
        if isinstance(result, Ended) and self.step == "end":
            return self._on_ended(result)
        self._advance(result.error)
        return None

    def _initialized(self, result):
        if result.error is not ErrorCode.none:
            self.step = "fenced"
            return
        if (result.producer_id, result.epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = result.producer_id, result.epoch
        self.step = "begin" if self.plan else "done"

    def _on_ended(self, result):
        if result.error is not ErrorCode.none:
            self.step = "fenced"
            return None
        tag, commit = self.tag, self.commit
        if result.producer_id >= 0:
            self.producer_id, self.epoch = result.producer_id, result.epoch
            self.sequences.clear()
        self.plan.pop(0)
        self.step = "begin" if self.plan else "done"
        if self.unsure and self.protocol == 1 and self.plan:
            self.step = "init"
        self.unsure = False
        return tag, commit

    def give_up(self):
        """Stop waiting for a write, and abort: the write may still arrive."""
        self.waiting, self.again, self.unsure = None, False, True
        self.left, self.commit, self.step = [], False, "end"

    def _advance(self, error):
        partition = self.left[0]
        if error in (ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state):
            self.left, self.commit, self.step = [], False, "end"
        elif error is not ErrorCode.none:
            self.step = "fenced"
        elif self.step == "add":
            self.added.add(partition)
            self._go_on()
        else:
            self.sequences[partition] = self.sequences.get(partition, 0) + 1
            self.left.pop(0)
            self._go_on()

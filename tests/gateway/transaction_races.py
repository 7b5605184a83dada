"""Transactions that race in one partition: batches, markers, late copies, crashes, failures.

The partition is the real one, over streams and a bookie on virtual time. Its coordinator is a model
that knows what each transaction was and how it ended. At the end the log is compared with that, and
so is what a reader of committed records gets.
"""

import asyncio
from random import Random

from kio.schema.errors import ErrorCode as Code

from gateway.wire.batches import CONTROL, TRANSACTIONAL, read_header
from gateway.wire.end_markers import read_marker
from ledger.errors import StreamUnavailable
from tests.gateway.stream_cluster import started_cluster
from tests.gateway.test_read_committed import COLD, consumed
from tests.gateway.test_transaction_path import LONG, P1, P2, mark, no_checks, part, send

STEPS = 120
KINDS = (
    *("write",) * 6,
    *("handle",) * 5,
    *("answer",) * 5,
    *("end",) * 3,
    *("mark",) * 4,
    *(
        "give up",
        "give up",
        "give up",
        "copy",
        "hold",
        "release",
        "release",
        "roll",
        "rest",
        "rest",
    ),
)
STEADY = (*("write", "handle", "answer", "mark", "rest") * 2, "end")
"""Steps with which no producer needs a new epoch in protocol 1."""


class Question:
    """A verification that the partition asked for."""

    def __init__(self, producer, epoch, adds):
        self.producer, self.epoch, self.adds = producer, epoch, adds
        self.code = None  # what the coordinator answered; None before
        self.future = asyncio.get_running_loop().create_future()


class Client:
    """A producer, with what its coordinator knows of it."""

    def __init__(self, producer):
        self.producer = producer
        self.epoch = self.sequence = 0
        self.number = 0  # of its transactions
        self.state = "none"  # or "ongoing", "ending": that of the coordinator
        self.unsure = False  # it gave a batch up: the next transaction has a higher epoch
        self.sending = None  # the answers to its batch under way
        self.marking = None  # the answers to its marker under way
        self.first = None  # the offset of the first acknowledged batch of this transaction
        self.marker = {}  # the words of the marker of this transaction


class Races:
    """One run, drawn from a seed. `play` raises AssertionError if a rule is broken."""

    def __init__(self, cluster, seed):
        self.cluster, self.draw = cluster, Random(seed)
        self.two = seed % 4 < 2  # protocol 2
        self.clients = [Client(producer) for producer in (5, 6)]
        self.questions = []
        self.outcomes = {}  # (producer, number): True if it was committed
        self.numbers = {}  # (producer, epoch, sequence): the number of the transaction
        self.acknowledged = []  # (producer, epoch, sequence) of durable batches
        self.copies = []  # the words of markers that were sent
        self.stable = 0

    def verify(self, transactional_id, producer_id, epoch, topic, index, *, adds):
        question = Question(producer_id, epoch, adds)
        self.questions.append(question)
        return question.future

    # -- steps --------------------------------------------------------------------------------

    async def play(self):
        await self._open(await self._topic())
        for _ in range(STEPS):
            await self._step(self.draw.choice(KINDS))
            self._look()
            if self.draw.random() < 0.02:
                await self._crash()
            if self.draw.random() < 0.02:
                await self._fail()
        await self._finish()

    async def _topic(self):
        self.cluster.partitions.verifier = self
        return await self.cluster.topic()

    async def _open(self, partition):
        self.partition = partition
        await partition.stream.begin()

    async def _step(self, kind):
        client = self.draw.choice(self.clients)
        if kind == "rest":
            await asyncio.sleep(0.01)
        elif kind == "roll":
            self.partition.stream.roll_soon()
        elif kind == "hold":
            if self.cluster.port.held is None:
                self.cluster.port.hold()
        elif kind == "release":
            self._release()
        elif kind in ("handle", "answer"):
            waiting = [q for q in self.questions if (q.code is None) == (kind == "handle")]
            if waiting:
                self._serve(self.draw.choice(waiting))
        elif kind == "copy":
            self._copy()
        else:
            self._of_client(kind, client)
        await asyncio.sleep(0)
        self._collect()

    def _of_client(self, kind, client):
        if kind == "write":
            if client.sending is None and client.state != "ending":
                self._write(client)
        elif kind == "end":
            if client.sending is None and client.state == "ongoing":
                self._end(client, commit=self.draw.random() < 0.5 and not client.unsure)
        elif kind == "give up":
            if client.sending is not None and client.state == "ongoing":
                client.sending, client.unsure = None, True
                self._end(client, commit=False)
        elif client.state == "ending" and client.marking is None:
            client.marker["leader_epoch"] = self.partition.leader_epoch
            self.copies.append(dict(client.marker))
            client.marking = mark(self.partition, **client.marker)

    def _write(self, client):
        if client.first is None and client.state == "none":
            client.number += 1
            if not self.two:  # AddPartitionsToTxn
                client.state = "ongoing"
        place = client.producer, client.epoch, client.sequence
        self.numbers[place] = client.number
        data = part(client.sequence, producer=client.producer, epoch=client.epoch)
        client.sending = send(self.partition, data, P2 if self.two else P1)

    def _end(self, client, *, commit):
        self.outcomes[client.producer, client.number] = commit
        client.state = "ending"
        client.marker = {
            "epoch": client.epoch + int(self.two),
            "commit": commit,
            "producer": client.producer,
            "version": 2 if self.two else 0,
            "number": client.number,
        }

    def _serve(self, question):
        """Let the coordinator decide a question, or its answer arrive."""
        if question.code is not None:
            self.questions.remove(question)
            question.future.set_result(question.code)
            return
        client = next(each for each in self.clients if each.producer == question.producer)
        question.code = Code.none
        if question.epoch != client.epoch:
            question.code = Code.producer_fenced
        elif client.state == "ending":
            question.code = Code.concurrent_transactions
        elif client.state == "none":
            if not question.adds or client.sending is None:
                question.code = Code.invalid_txn_state
            else:
                client.state = "ongoing"

    def _collect(self):
        """Take the answers that arrived."""
        for client in self.clients:
            if client.sending:
                self._on_produced(client, client.sending[0])
                client.sending = None
            if client.marking:
                if client.marking[0] is Code.none:
                    self._on_ended(client)
                client.marking = None

    def _on_produced(self, client, answer):
        if answer.error is Code.none:
            self.acknowledged.append((client.producer, client.epoch, client.sequence))
            client.sequence += 1
            if client.first is None:
                client.first = answer.base_offset
        elif answer.error is not Code.not_enough_replicas:
            client.unsure = True
            if client.state == "ongoing":
                self._end(client, commit=False)

    def _on_ended(self, client):
        client.state, client.first = "none", None
        if self.two or client.unsure:
            client.epoch += 1
            client.sequence, client.unsure = 0, False

    def _release(self):
        if self.cluster.port.held is not None:
            self.cluster.port.release()

    async def _crash(self):
        """End the process, and lose some of what is not durable."""
        if self.draw.random() < 0.5:
            self.cluster.port.lose_after(self.draw.randrange(3))
            for _ in range(10):
                await self._step(self.draw.choice(("write", "handle", "answer", "mark")))
        self.questions = []
        await self.cluster.crash()
        self.cluster.partitions.verifier = self
        for client in self.clients:
            client.marking = None
            if client.state == "ending":
                client.first = None  # its marker may be durable without an answer
            if client.sending is not None:
                client.sending, client.unsure = None, True
                if client.state == "ongoing":
                    self._end(client, commit=False)
        self.partition = self.cluster.partitions.find("t", 0)
        await self._take_over()
        await self._compare()

    async def _fail(self):
        """Fail the stream while a batch is checked. The check ends while it is opened again."""
        self._release()
        for _ in range(40):  # so that transactions are open, behind others of the same epoch
            await self._step(self.draw.choice(STEADY))
        async with no_checks(self.partition):
            self.cluster.send(self.partition, LONG)
            for _ in range(4):
                self._copy()
            await asyncio.sleep(0.01)
            self.partition.stream.fail(StreamUnavailable("a test"))
            for client in self.clients:
                if client.state == "ending":
                    client.first = None  # its marker may be durable without an answer
            self._collect()
            self.partition._begins = True
            opening = self.partition.open()
            while not (opening.done() or self.partition.stream.writable):
                await asyncio.sleep(0.0001)
        await self._take_over()
        await self._compare()

    async def _take_over(self):
        """Open the partition as the next owner does, while late copies of markers arrive."""
        self.partition._begins = True
        opening = self.partition.open()
        while not opening.done():
            self._copy()
            await asyncio.sleep(0.0001)
        await self._open(self.partition)

    def _copy(self):
        """Let a late copy of some marker arrive."""
        if self.copies:
            mark(self.partition, **self.draw.choice(self.copies))

    # -- checks -------------------------------------------------------------------------------

    def _look(self):
        stable = self.partition.stable_offset
        assert stable >= self.stable, "the last stable offset fell"
        self.stable = stable
        for client in self.clients:
            assert client.first is None or stable <= client.first, "an undecided record is stable"

    async def _finish(self):
        """End all transactions, and compare the log with their outcomes."""
        self._release()
        async with asyncio.timeout(600):
            while self.questions or any(each.state != "none" for each in self.clients):
                for kind in ("handle", "answer", "mark", "rest", "copy"):
                    await self._step(kind)
                for client in [each for each in self.clients if each.state == "ongoing"]:
                    self._end(client, commit=False)
        await asyncio.sleep(1)
        committed = await self._compare()
        assert self.partition.stable_offset == self.partition.high_watermark, "one hangs"
        found = await consumed(self.cluster, self.partition, self.draw, 0)
        assert found == committed, "a reader got other records"

    async def _compare(self):
        """Compare the state with the log, and return the offsets of committed records."""
        await asyncio.sleep(0.1)
        opened, committed, stored = {}, [], []
        for data in await self.cluster.read_all(self.partition):
            header = read_header(data)
            if header.attributes & CONTROL:
                outcome = read_marker(data, header).commit
                for offset, number in opened.pop(header.producer_id, ()):
                    expected = self.outcomes.get((header.producer_id, number))
                    assert expected is outcome, f"the transaction of {offset} is torn"
                    committed += [offset] * outcome
            elif header.attributes & TRANSACTIONAL:
                place = header.producer_id, header.producer_epoch, header.base_sequence
                stored.append(place)
                of_producer = opened.setdefault(header.producer_id, [])
                of_producer.append((header.base_offset, self.numbers[place]))
            else:
                committed.append(header.base_offset)
        assert len(set(stored)) == len(stored), "a batch is there twice"
        assert set(self.acknowledged) <= set(stored), "an acknowledged batch is lost"
        transactions = self.partition.transactions
        known = {
            producer: transactions.producer(producer).first_offset
            for producer in transactions.producer_ids
            if transactions.producer(producer).open
        }
        assert known == {producer: found[0][0] for producer, found in opened.items()}
        return sorted(committed)


async def race(seed):
    """Let transactions race. Raises AssertionError if a rule is broken."""
    async with started_cluster(limits=COLD) as cluster:
        await Races(cluster, seed).play()

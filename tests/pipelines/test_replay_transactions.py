"""Goal: the transactions of a replay commit records and positions together, or neither.

Method: one gateway with transactions, without Spark. Runs of a replay begin, write, die and begin
again; a stock consumer says what is committed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from gateway.pipelines.replays.encode import RecordRows
from gateway.pipelines.replays.model import ReplayRequest
from gateway.pipelines.replays.plan import PartitionPlan, ReplayChunk, ReplayPlan, Selection
from gateway.pipelines.replays.target import ProducerId
from gateway.pipelines.replays.task import SendOptions
from gateway.pipelines.replays.transactional_write import TransactionalWrite, WriteChunks
from gateway.pipelines.replays.transactional_writer import Sending, TransactionalWriter
from gateway.pipelines.replays.transactions import (
    FAILED,
    Position,
    ReplayTransactions,
    check_nothing_written,
)
from gateway.pipelines.replays.writer import WriterLimits
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange
from tests.peers.gateway import Gateway
from tests.pipelines.transactional_rig import (
    Writer,
    consumed,
    create,
    plain,
    transactional_gateway,
)

pytestmark = pytest.mark.compat

COUNT = 1000
_numbers = itertools.count()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with transactional_gateway(tmp_path_factory.mktemp("replays")) as gateway:
        yield gateway


class Run(NamedTuple):
    """One run of the replay of `COUNT` records into partition 0 of a topic."""

    gateway: Gateway
    topic: str
    transactions: ReplayTransactions
    producer: ProducerId

    def write(self, start: int, end: int, first: int = 0) -> None:
        """Write records as a task does. The run began at record `first`."""
        partition = PartitionPlan(0, 0, COUNT, 0, COUNT - 1)
        plan = ReplayPlan("", Selection("s", ()), self.topic, "", 0, 0, 10, (partition,))
        options = SendOptions(self.gateway.bootstrap, 0, 200, WriterLimits())
        sending = Sending(self.transactions.name, self.producer, {0: first})
        writer = TransactionalWriter(plan, partition, sending, options)
        each = range(start, end)
        rows = RecordRows(start, [0 for _ in each], [None for _ in each], values(start, end), None)
        assert writer.write(iter([rows]), start) == end

    def open(self) -> None:
        self.transactions.open(self.producer, self.topic, [0])

    def commit(self, number: int) -> None:
        self.transactions.commit(self.producer, self.topic, {0: Position(number, 10 * number)})

    def position(self) -> Position | None:
        return self.transactions.positions(self.topic, [0]).get(0)


def values(start: int, end: int) -> list[bytes | None]:
    return [b"record %d" % number for number in range(start, end)]


def begun(gateway: Gateway, topic: str) -> Run:
    transactions = ReplayTransactions(gateway.bootstrap, f"replay of {topic}")
    return Run(gateway, topic, transactions, transactions.begin())


@pytest.fixture
def topic(gateway: Gateway) -> str:
    return create(gateway, f"target-{next(_numbers)}")


def committed(gateway: Gateway, topic: str, count: int) -> list[bytes]:
    return [value for _, value in consumed(gateway, topic, count)]


def test_records_and_positions_are_committed_together(gateway: Gateway, topic: str) -> None:
    run = begun(gateway, topic)
    assert run.position() is None
    for start in (0, 30, 60):
        run.open()
        run.write(start, start + 30)
        assert run.position() == (Position(start, 10 * start) if start else None)
        run.commit(start + 30)
        assert run.position() == Position(start + 30, 10 * (start + 30))
    assert committed(gateway, topic, 90) == values(0, 90)


def test_what_a_dead_run_left_open_is_dropped_and_written_again(
    gateway: Gateway, topic: str
) -> None:
    dead = begun(gateway, topic)
    dead.open()
    dead.write(0, 20)
    dead.commit(20)
    dead.open()
    dead.write(20, 50)
    run = begun(gateway, topic)
    assert run.position() == Position(20, 200)
    run.open()
    run.write(20, 40, first=20)
    run.commit(40)
    assert committed(gateway, topic, 40) == values(0, 40)


def test_a_run_that_was_fenced_writes_and_commits_nothing(gateway: Gateway, topic: str) -> None:
    slow = begun(gateway, topic)
    slow.open()
    slow.write(0, 10)
    run = begun(gateway, topic)
    with pytest.raises(JobError) as raised:
        slow.write(10, 20)
    assert raised.value.code == "FENCED"
    with pytest.raises(JobError) as raised:
        slow.commit(20)
    assert raised.value.code == "FENCED"
    with pytest.raises(JobError) as raised:
        slow.open()
    assert raised.value.code == "FENCED"
    assert run.position() is None
    run.open()
    run.write(0, 10)
    run.commit(10)
    assert committed(gateway, topic, 10) == values(0, 10)


def test_a_repeated_task_writes_no_record_twice(gateway: Gateway, topic: str) -> None:
    run = begun(gateway, topic)
    run.open()
    run.write(0, 5)
    run.write(0, 5)  # the server knows the batch, and answers as if it were new
    run.commit(5)
    run.open()
    run.write(5, 200)
    with pytest.raises(JobError) as raised:
        run.write(5, 200)  # the server remembers the last five batches only
    assert raised.value.code == FAILED
    again = begun(gateway, topic)
    assert again.position() == Position(5, 50)
    again.open()
    again.write(5, 200, first=5)
    again.commit(200)
    assert committed(gateway, topic, 200) == values(0, 200)


def test_a_plan_without_positions_must_not_find_records(gateway: Gateway, topic: str) -> None:
    check_nothing_written(gateway.bootstrap, topic, {0: 0})
    dead = begun(gateway, topic)
    dead.open()
    dead.write(0, 20)
    begun(gateway, topic)  # aborts them
    check_nothing_written(gateway.bootstrap, topic, {0: 0})
    Writer(gateway, f"other {topic}").begin(topic, [b"another's"]).commit()
    with pytest.raises(JobError) as raised:
        check_nothing_written(gateway.bootstrap, topic, {0: 0})
    assert raised.value.code == "POSITION_LOST"
    check_nothing_written(gateway.bootstrap, topic, {0: 30})
    plain(gateway, topic, [b"one more"])


def test_a_transactional_replay_has_a_state_of_its_own() -> None:
    one = ReplayRequest("a", "b")
    other = ReplayRequest("a", "b", transactional=True)
    assert one.digest() != other.digest()
    assert "transactional" not in one.line()


# -- whole plans ---------------------------------------------------------------------------------

EACH, AT_ONCE = 100, 15
STEPS = ("opened", "written", "positions", "committed")


class Died(Exception):
    """A run ends here, without another request."""


def plan_for(topic: str, *counts: int) -> ReplayPlan:
    """Return a plan of records at every second archived offset."""
    partitions = tuple(
        PartitionPlan(index, 0, count, 10, 10 + 2 * (count - 1))
        for index, count in enumerate(counts)
    )
    ranges = tuple(OffsetRange("s", each.partition, 0, each.last + 1) for each in partitions)
    return ReplayPlan("", Selection("s", ranges), topic, "", 0, 0, 10, partitions)


def write_of(gateway: Gateway, plan: ReplayPlan) -> WriteChunks:
    """Return what writes chunks without Spark, one partition after the other."""
    options = SendOptions(gateway.bootstrap, 0, 200, WriterLimits())

    def write(chunks: Sequence[ReplayChunk], sending: Sending) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for chunk in chunks:
            partition = plan.partitions[chunk.partition]
            offsets = range(max(chunk.first, partition.first), chunk.end)
            held = [n for n in offsets if n % 2 == 0]
            end = chunk.number + len(held)
            nothing: list[bytes | None] = [None for _ in held]
            batch = RecordRows(
                chunk.number, [0 for _ in held], nothing, values(chunk.number, end), None
            )
            writer = TransactionalWriter(plan, partition, sending, options)
            writer.write(iter([batch] if held else []), chunk.number)
            if held:
                done = {"partition": chunk.partition, "number": end}
                rows.append({**done, "code": None, "error": None})
        return rows

    return write


def run_plan(gateway: Gateway, plan: ReplayPlan, step: str = "", seen_max: int = 0) -> list[int]:
    """Run the plan until the given step comes for the last time. Returns what was there before."""
    seen = 0

    def at_step(name: str) -> None:
        nonlocal seen
        seen += name == step
        if step and seen == seen_max:
            raise Died

    transactions = ReplayTransactions(gateway.bootstrap, f"plan of {plan.target}", at_step)
    write = write_of(gateway, plan)
    writing = TransactionalWrite(plan, gateway.bootstrap, transactions, write, AT_ONCE)
    present = writing.begin()
    writing.run(lambda: None)
    return [present[each.partition] for each in plan.partitions]


def test_a_plan_commits_each_record_once_whichever_request_a_run_dies_after(
    gateway: Gateway,
) -> None:
    topic = create(gateway, f"target-{next(_numbers)}", 2)
    plan = plan_for(topic, EACH, EACH // 2)
    for step in STEPS:
        for seen_max in (1, 2):
            with pytest.raises(Died):
                run_plan(gateway, plan, step, seen_max)
    before = run_plan(gateway, plan)
    assert 0 < before[1] < before[0] + before[1] < EACH + EACH // 2
    assert committed(gateway, topic, EACH) == values(0, EACH)
    assert [v for _, v in consumed(gateway, topic, EACH // 2, 1)] == values(0, EACH // 2)
    assert run_plan(gateway, plan) == [EACH, EACH // 2]


def test_a_run_that_fails_aborts_its_transaction(gateway: Gateway, topic: str) -> None:
    plan = plan_for(topic, EACH)
    write = write_of(gateway, plan)

    def fail(chunks: Sequence[ReplayChunk], sending: Sending) -> list[dict[str, Any]]:
        rows = write(chunks, sending)
        return [{**each, "code": FAILED, "error": "no more"} for each in rows]

    name = f"plan of {topic}"
    transactions = ReplayTransactions(gateway.bootstrap, name)
    writing = TransactionalWrite(plan, gateway.bootstrap, transactions, fail, AT_ONCE)
    writing.begin()
    with pytest.raises(JobError, match="no more"):
        writing.run(lambda: None)
    plain(gateway, topic, [b"behind"])
    assert committed(gateway, topic, 1) == [b"behind"], "no transaction is open any more"

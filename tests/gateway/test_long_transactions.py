"""Goal: a transaction with very many partitions holds up no other transaction, and its record is
complete and durable before its answer.

Method: requests at a coordinator on real streams and virtual time; steps of the interpreter and
turns of the event loop are counted.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from gateway.config import TransactionLimits
from gateway.core.transaction_log import (
    STEP_PARTITIONS,
    decode_value,
    encode_in_steps,
    encode_key,
    encode_value,
)
from gateway.core.transaction_states import TopicPartition, TransactionMetadata, TransactionState
from gateway.transactions import coordinator_partition
from gateway.transactions.transaction_map import PARTITION_BYTES
from tests.gateway.transaction_rig import ADD, transacting
from tests.sim.seeds import first_at_commit
from tests.steps import steps_of

LONG = 5 * STEP_PARTITIONS


class CountedSteps:
    """Encodes values as the coordinator does, and counts the steps, also those of one turn."""

    def __init__(self, monkeypatch):
        self.made = self.most_in_a_turn = self._in_turn = 0
        monkeypatch.setattr(coordinator_partition, "encode_in_steps", self)

    def __call__(self, metadata, version):
        steps = encode_in_steps(metadata, version)
        while True:
            self._note()
            try:
                yield next(steps)
            except StopIteration as end:
                return end.value

    def _note(self):
        if not self._in_turn:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self.made += 1
        self._in_turn += 1
        self.most_in_a_turn = max(self.most_in_a_turn, self._in_turn)

    def _end_turn(self):
        self._in_turn = 0


async def long_transaction(cluster):
    """Return the producer of a transaction to which `LONG` partitions are to be added."""
    await cluster.create("wide", LONG, {})
    return await cluster.begin()


def wide(producer, count=LONG, name="pay"):
    one = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}
    one |= {"topics": [{"name": "wide", "partitions": list(range(count))}], "verify_only": False}
    return {"transactions": [one]}


async def begun(cluster, producer, steps):
    """Return the request that adds `LONG` partitions, once its record is being encoded."""
    adding = asyncio.ensure_future(cluster.answer(ADD, 4, **wide(producer)))
    while not steps.made and not adding.done():
        await asyncio.sleep(0)
    return adding


def codes(reply):
    (topic,) = reply.results_by_transaction[0].topic_results
    return {each.partition_error_code for each in topic.results_by_partition}


async def test_the_record_of_many_partitions_is_encoded_in_parts(monkeypatch):
    async with transacting() as cluster:
        producer = await long_transaction(cluster)
        steps = CountedSteps(monkeypatch)
        reply = await cluster.answer(ADD, 4, **wide(producer))
        assert codes(reply) == {ErrorCode.none}
        assert steps.made > 10, "five to group the partitions, and five to put them in"
        assert steps.most_in_a_turn <= 2, "a turn may make its step before the count begins again"
        key, value = (await cluster.log())[-1]
        stored = decode_value("pay", value)
        assert key == encode_key("pay")
        assert stored.state is TransactionState.ONGOING
        expected = {TopicPartition("wide", at) for at in range(LONG)} | {TopicPartition("t", 0)}
        assert stored.partitions == expected


async def test_a_short_record_overtakes_a_long_one_that_is_encoded(monkeypatch):
    async with transacting() as cluster:
        producer = await long_transaction(cluster)
        _, other, _ = await cluster.init("other")
        adding = await begun(cluster, producer, CountedSteps(monkeypatch))
        assert await cluster.add(producer, 1) == {("t", 1): ErrorCode.concurrent_transactions}
        added = await cluster.add((other, 0), 0, name="other")
        assert added == {("t", 0): ErrorCode.none}
        assert not adding.done()
        assert codes(await adding) == {ErrorCode.none}
        names = [key for key, _ in (await cluster.log())[-2:]]
        assert names == [encode_key("other"), encode_key("pay")]


async def test_a_record_of_which_a_part_is_encoded_is_dropped_with_its_coordinator(monkeypatch):
    async with transacting() as cluster:
        producer = await long_transaction(cluster)
        before = await cluster.log()
        steps = CountedSteps(monkeypatch)
        adding = await begun(cluster, producer, steps)
        cluster.shell.on_ended()
        assert codes(await adding) == {ErrorCode.not_coordinator}
        made = steps.made
        await asyncio.sleep(60)
        assert steps.made == made < 10
        assert await cluster.log() == before


async def test_a_coordinator_that_loads_again_writes_nothing_of_the_one_before(monkeypatch):
    async with transacting() as cluster:
        producer = await long_transaction(cluster)
        before = await cluster.log()
        adding = await begun(cluster, producer, CountedSteps(monkeypatch))
        cluster.shell.on_opened(cluster.shell._log.leader_epoch)
        assert codes(await adding) == {ErrorCode.not_coordinator}
        await cluster.until(lambda: cluster.shell._core is not None)
        assert await cluster.add(producer, 1) == {("t", 1): ErrorCode.none}
        await asyncio.sleep(60)
        (record,) = (await cluster.log())[len(before) :]
        assert decode_value("pay", record[1]).partitions == {("t", 0), ("t", 1)}


@pytest.mark.parametrize("commit", first_at_commit([True, False], 1))
async def test_a_transaction_of_many_partitions_ends(commit):
    async with transacting() as cluster:
        producer = await long_transaction(cluster)
        assert codes(await cluster.answer(ADD, 4, **wide(producer))) == {ErrorCode.none}
        assert await cluster.end(producer, commit=commit) is ErrorCode.none
        await cluster.until(lambda: cluster.markers.sent)
        marked = [each for marker in cluster.markers.answer() for each in marker.partitions]
        assert len(marked) == len(set(marked)) == LONG + 1
        await asyncio.sleep(60)
        assert await cluster.state() == ("CompleteCommit" if commit else "CompleteAbort")


@pytest.mark.proof
async def test_a_short_record_waits_for_none_of_many_long_ones(monkeypatch):
    async with transacting() as cluster:
        await cluster.create("wide", LONG, {})
        names = [f"long-{number}" for number in range(20)]
        producers = [await cluster.begin(name) for name in names]
        _, other, _ = await cluster.init("other")
        requests = [wide(each, name=name) for name, each in zip(names, producers, strict=True)]
        steps = CountedSteps(monkeypatch)
        adding = [asyncio.ensure_future(cluster.answer(ADD, 4, **each)) for each in requests]
        while cluster.coordinators.memory_bytes < 10 * LONG * PARTITION_BYTES:
            await asyncio.sleep(0)
        added = await cluster.add((other, 0), 0, name="other")
        assert added == {("t", 0): ErrorCode.none}
        assert sum(each.done() for each in adding) <= 2
        assert steps.most_in_a_turn <= 2
        assert {code for each in adding for code in codes(await each)} == {ErrorCode.none}
        stored = {key for key, _ in (await cluster.log())[-len(names) :]}
        assert stored == {encode_key(name) for name in names}


async def test_long_records_that_wait_count_as_memory_of_transactions():
    """Else a client could have any number accepted until the first one is durable."""
    limits = TransactionLimits(memory_bytes_max=4 * LONG * PARTITION_BYTES)
    async with transacting(transaction=limits) as cluster:
        await cluster.create("wide", LONG, {})
        names = [f"long-{number}" for number in range(10)]
        producers = [await cluster.begin(name) for name in names]
        requests = [wide(each, name=name) for name, each in zip(names, producers, strict=True)]
        replies = await asyncio.gather(*(cluster.answer(ADD, 4, **each) for each in requests))
        found = [codes(each) for each in replies]
        assert 1 <= found.count({ErrorCode.none}) <= 4
        assert found.count({ErrorCode.policy_violation}) == 10 - found.count({ErrorCode.none})
        assert cluster.coordinators.long_records.waiting_bytes == 0


async def test_a_record_that_cannot_be_encoded_is_answered_and_its_id_goes_on(monkeypatch):
    async with transacting() as cluster:
        producer = await long_transaction(cluster)

        def fail(metadata, version):
            yield
            raise MemoryError

        reports = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: reports.append(found))
        with monkeypatch.context() as patch:
            patch.setattr(coordinator_partition, "encode_in_steps", fail)
            reply = await cluster.answer(ADD, 4, **wide(producer))
        asyncio.get_running_loop().set_exception_handler(None)
        assert codes(reply) == {ErrorCode.coordinator_not_available}
        assert [type(each["exception"]) for each in reports] == [MemoryError]
        await cluster.until(lambda: cluster.shell._core is not None)
        assert codes(await cluster.answer(ADD, 4, **wide(producer))) == {ErrorCode.none}


def ongoing(topics, partitions):
    named = {TopicPartition(f"topic-{t}", at) for t in range(topics) for at in range(partitions)}
    metadata = TransactionMetadata(
        transactional_id="pay", producer_id=7, epoch=0, timeout_ms=1_000, updated_ms=5
    )
    return metadata.added(frozenset(named), 2, 6)


@pytest.mark.parametrize(("topics", "partitions"), [(1, 20_000), (20_000, 1), (20, 1_000)])
@pytest.mark.parametrize("version", first_at_commit([1, 0], 1))
def test_no_step_of_the_encoding_is_long(version, topics, partitions):
    metadata = ongoing(topics, partitions)
    whole, _ = steps_of(lambda: encode_value(metadata, version))
    encoding, longest = encode_in_steps(metadata, version), 0
    done = object()
    while True:
        taken, ended = steps_of(lambda: next(encoding, done))
        longest = max(longest, taken)
        if ended is done:
            break
    assert longest < whole / 5
    decoded = decode_value("pay", encode_value(metadata, version))
    assert decoded.partitions == metadata.partitions

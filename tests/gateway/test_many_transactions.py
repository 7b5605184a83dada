"""Goal: thousands of transactions in one partition cost each of them no more than a few do, and
hold up no other task.

Method: steps of the interpreter are counted, for few transactions and for many; turns of the event
loop on virtual time.
"""

import asyncio
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.aborted_lists import SegmentAborted, overlapping_in_order
from gateway.core.partition_transactions import (
    AbortedTransaction,
    EndMarker,
    PartitionTransactions,
)
from gateway.topics import produce_path
from gateway.topics.partition_state import aborted_of_footer
from tests.gateway.stream_cluster import started_cluster
from tests.gateway.test_transaction_path import Coordinator, mark
from tests.steps import steps_of


def with_open(count):
    """Return a partition in which `count` producers have an open transaction each."""
    core = PartitionTransactions()
    for producer in range(count):
        core.accept_batch(producer, 0, producer, 0, transactional=True)
    core.on_durable(count)
    return core


def abort(core, producer, offset):
    core.accept_marker(EndMarker(producer, 1, 0, commit=False, version=2), offset, 0)


def cost_of_the_last(count):
    """Return the steps of the last abort of `count` transactions, none of them durable yet."""
    core = with_open(count)
    for producer in range(count - 1):
        abort(core, producer, count + producer)
    return steps_of(partial(abort, core, count - 1, 2 * count - 1))[0]


def test_the_end_of_a_transaction_costs_the_same_however_many_ended_with_it():
    assert cost_of_the_last(2_000) == cost_of_the_last(20) > 0


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_a_short_fetch_does_not_read_a_long_list(at):
    """Each of these transactions has its own two offsets."""
    core = PartitionTransactions()
    for producer in range(4_000):
        core.accept_batch(producer, 0, 2 * producer, 0, transactional=True)
        abort(core, producer, 2 * producer + 1)
    start = 2 * int(at * 3_990)
    steps, found = steps_of(partial(overlapping_in_order, core.aborted, start, start + 6))
    assert [one.first_offset for one in found] == [start, start + 2, start + 4]
    assert steps < 500


ENDS = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60)


@settings(max_examples=100, deadline=None)
@given(ENDS, st.integers(0, 60), st.integers(0, 60))
def test_the_list_of_a_fetch_is_that_of_a_slow_twin(steps, start, end):
    """Up to the last stable offset, which bounds every fetch."""
    core = PartitionTransactions()
    for offset, (producer, aborts) in enumerate(steps):
        known = core.producer(producer)
        if aborts and known is not None and known.open:
            abort(core, producer, offset)
        else:
            core.accept_batch(producer, 0, offset, 0, transactional=True)
    core.on_durable(len(steps))
    end = min(end, core.stable_offset(len(steps)))
    expected = [one for one in core.aborted if one.last_offset >= start and one.first_offset < end]
    assert overlapping_in_order(core.aborted, start, end) == expected


async def test_waiting_markers_are_appended_in_parts():
    async with started_cluster() as cluster:
        cluster.partitions.verifier = Coordinator()
        await cluster.topic()
        await cluster.restart()
        cluster.partitions.verifier = Coordinator()
        partition = cluster.partitions.find("t", 0)
        stream, ends = partition.stream, [0]
        begin = stream.on_segment

        async def watch():
            while ends[-1] < 2_000:
                ends.append(partition.accepted_end)
                await asyncio.sleep(0)

        def on_segment(start):
            begin(start)
            watching.append(asyncio.ensure_future(watch()))

        watching, stream.on_segment = [], on_segment
        answers = [mark(partition, producer=number) for number in range(2_000)]
        async with asyncio.timeout(60):
            while not all(answers):
                await asyncio.sleep(0.01)
        await watching[0]
        steps = [after - before for before, after in pairwise(ends)]
        assert max(steps) <= produce_path._APPENDED_PER_TURN


def test_the_list_of_a_cleaned_segment_is_in_the_order_of_the_markers():
    """Its cleaner found the transactions in the order of their records."""
    long, short = AbortedTransaction(5, 0, 900, 0), AbortedTransaction(6, 10, 20, 0)
    footer = SegmentAborted(0, 100, 100, (long, short)).encode()
    found = aborted_of_footer(0, 100, footer).aborted
    assert found == (short, long)
    assert overlapping_in_order(found, 0, 100) == [short, long]
    assert overlapping_in_order(found, 50, 100) == [long]

"""Goal: many transactions that end at once, or a refused marker, hold up no others.

Method: the coordinator on real streams and virtual time, with a sender of markers that counts what
it gets in one turn of the loop; and the pure parts alone.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from kio.schema.errors import ErrorCode as Code

from gateway.core.deadlines import Deadlines
from gateway.core.transaction_states import TopicPartition
from gateway.transactions import turns
from tests.gateway.coordinator_log import ORDERS, STOCK, Log, ongoing
from tests.gateway.transaction_rig import NotedMarkers, transacting

NONE, FENCED = Code.none, Code.transaction_coordinator_fenced
IDS = 600
PER_TURN = turns.PER_TURN // 2  # a record and a partition for each marker


class CountedMarkers(NotedMarkers):
    """Counts the markers of each turn of the loop that has some."""

    def __init__(self):
        super().__init__()
        self.turns = []
        self.counting = False
        self.between = lambda: None  # called after each turn

    def send(self, marker, on_answers):
        super().send(marker, on_answers)
        if not self.counting:
            self.counting = True
            self.turns.append(0)
            asyncio.get_running_loop().call_soon(self.on_turn)
        self.turns[-1] += 1

    def on_turn(self):
        self.counting = False
        self.between()


async def many(cluster, **settings):
    """Begin `IDS` transactions. Returns their producers by name."""
    names = [f"id {number}" for number in range(IDS)]
    begun = await asyncio.gather(*(cluster.begin(name, **settings) for name in names))
    return dict(zip(names, begun, strict=True))


def count_turns(cluster):
    services = cluster.shell._services
    object.__setattr__(services, "markers", CountedMarkers())
    return services.markers


async def test_transactions_that_time_out_together_are_aborted_in_many_turns():
    async with transacting() as cluster:
        await many(cluster, timeout_ms=30_000)
        markers = count_turns(cluster)
        await cluster.until(lambda: len(markers.sent) == IDS)
        assert max(markers.turns) <= PER_TURN


async def test_the_records_of_many_partitions_of_the_log_share_the_bound_of_a_turn():
    async with transacting(log_partitions=10) as cluster:
        await many(cluster, timeout_ms=30_000)
        markers = count_turns(cluster)
        await cluster.until(lambda: len(markers.sent) == IDS)
        # A batch is not cut, and two turns may count as one.
        assert max(markers.turns) <= 3 * PER_TURN


async def test_work_beyond_a_turn_runs_in_later_turns_and_in_order():
    queue, done, by_turn = turns.Turns(), [], []
    for number in range(10):
        queue.run(100, partial(done.append, number))
    while len(done) < 10:
        by_turn.append(len(done))
        await asyncio.sleep(0)
    assert done == list(range(10))
    assert by_turn == [3, 6, 9]
    queue.run(1, partial(done.append, "at once"))
    assert done[-1] == "at once"


async def test_a_takeover_resends_markers_in_many_turns_and_answers_requests_meanwhile():
    async with transacting() as cluster:
        producers = await many(cluster)
        ends = [cluster.end(producer, name=name) for name, producer in producers.items()]
        assert set(await asyncio.gather(*ends)) == {NONE}
        await cluster.coordinators.stop()
        markers = count_turns(cluster)
        views = []
        markers.between = lambda: views.append(cluster.shell.describe("id 599"))
        cluster.shell.on_opened(cluster.shell._log.leader_epoch)
        await cluster.until(lambda: len(markers.sent) == IDS)
        assert max(markers.turns) <= PER_TURN
        assert views[0].state.kafka_name == "PrepareCommit"
        assert views[0].partitions == {("t", 0)}  # also before its marker is sent


async def test_a_marker_that_stays_fenced_after_a_reload_stops_no_other_id():
    async with transacting() as cluster:
        stuck, fine = await cluster.begin("stuck"), await cluster.begin("fine")
        assert await cluster.end(stuck, name="stuck") is NONE
        cluster.markers.answer(FENCED)
        await cluster.until(lambda: cluster.markers.sent)
        core = cluster.shell._core
        cluster.markers.answer(FENCED)
        assert await cluster.end(fine, name="fine") is NONE
        (marker,) = cluster.markers.answer()
        assert marker.transactional_id == "fine"
        await asyncio.sleep(50)
        assert cluster.shell._core is core
        assert await cluster.state("fine") == "CompleteCommit"
        assert await cluster.state("stuck") == "PrepareCommit"
        assert not cluster.markers.sent
        await cluster.until(lambda: cluster.markers.sent)  # slowly, and for ever
        cluster.markers.answer()
        await cluster.until(lambda: cluster.shell.describe("stuck").state.name == "COMPLETE_COMMIT")


async def test_a_held_marker_is_logged_with_its_id_and_partition(capfd):
    async with transacting() as cluster:
        assert await cluster.end(await cluster.begin("stuck"), name="stuck") is NONE
        cluster.markers.answer(FENCED)
        await cluster.until(lambda: cluster.markers.sent)
        cluster.markers.answer(FENCED)
        (line,) = [each for each in capfd.readouterr().err.splitlines() if "stays prepared" in each]
        assert "stuck" in line
        assert "t-0" in line


# -- the core ------------------------------------------------------------------------------------


def reloaded(log):
    """Load another core after the first refusal, as the shell does."""
    fenced = log.core.fenced
    log.coordinator = lambda epoch: type(log.core)(
        epoch, log._take, log.settings, log.level, fenced
    )
    log.take_over()


def test_the_next_transaction_of_a_fenced_id_reloads_once_more():
    log = ongoing()
    log.end(1_000, 0)
    log.mark(FENCED)
    reloaded(log)
    log.mark()
    assert (log.states[-1], dict(log.core.fenced), log.reloads) == ("CompleteCommit", {}, 1)
    log.add(1_000, 1, ORDERS)
    log.end(1_000, 1)
    log.mark(FENCED)
    assert log.reloads == 2


def test_only_the_partition_that_refuses_the_coordinator_waits():
    log = ongoing()
    log.end(1_000, 0)
    log.mark(FENCED)
    reloaded(log)
    marker = log.markers.pop()
    log.carry_out(log.core.on_marked(marker, {ORDERS: FENCED, STOCK: NONE}, log.now_ms))
    assert (log.reloads, log.held, log.markers) == (1, 1, [])
    assert log.core.describe("pay").partitions == {ORDERS}
    log.tick(59_999)
    assert log.markers == []
    log.tick(1)
    assert log.mark(FENCED).partitions == {ORDERS}
    log.tick(60_000)
    assert log.mark().partitions == {ORDERS}
    assert log.states[-1] == "CompleteCommit"


def test_requests_between_two_effects_of_a_tick_do_not_disturb_it():
    log = Log()
    for name in ("a", "b", "c"):
        log.init(name=name)
        log.add(log.next_id - 1, 0, TopicPartition("orders", 0), name=name)
    log.now_ms += 60_001
    effects = log.core.tick(log.now_ms)
    first = next(effects)
    log.end(log.next_id - 1, 0, name="c")
    assert [each.transactional_id for each in (first, *effects)] == ["a", "b"]


def test_a_dropped_coordinator_yields_no_further_effects():
    log = Log()
    for name in ("a", "b"):
        log.init(name=name)
        log.add(log.next_id - 1, 0, ORDERS, name=name)
    effects = log.core.tick(log.now_ms + 60_001)
    next(effects)
    log.core.abandon(Code.not_coordinator)
    assert list(effects) == []


# -- deadlines -----------------------------------------------------------------------------------


def test_a_deadline_that_is_cleared_and_set_for_ever_takes_the_room_of_one():
    deadlines = Deadlines()
    for at in range(10_000):
        deadlines.set("id", at)
        deadlines.clear("id")
    deadlines.set("id", 20_000)
    assert len(deadlines._heap) == 1
    assert deadlines.due(19_999) == []
    assert deadlines.due(20_000) == ["id"]
    assert deadlines.next() is None


@pytest.mark.parametrize("between", ["set", "clear"])
def test_deadlines_change_while_due_ones_are_taken(between):
    deadlines = Deadlines()
    for at, key in enumerate("abc"):
        deadlines.set(key, at)
    due = deadlines.each_due(10)
    assert next(due) == "a"
    if between == "set":
        deadlines.set("b", 11)
        deadlines.set("a", 5)
        assert list(due) == ["c", "a"]
    else:
        deadlines.clear("c")
        assert list(due) == ["b"]

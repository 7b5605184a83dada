"""Goal: whatever happens to real bookies and ZooKeeper, no acknowledged entry is lost or moved.

Method: processes on loopback: ZooKeeper, five bookies behind proxies, two writers and a reader that
log what they are told. Each test does one kind of harm while they work, heals, kills the writers,
lets the reader see the rest, and judges every ledger: each acknowledged entry once, in order, on Qa
good copies. The tests share one cluster; what one leaves is the next one's past, and at the end
everything is judged once more.
"""

import pytest

from ledger.errors import Fenced
from tests.cluster.world import World, pause, resume
from tests.peers.bookie import BookieProcess
from tests.peers.processes import wait_until

MORE = 300  # acknowledged entries: a few groups of each writer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with World(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
        cluster.end_clients()
        cluster.heal()
        assert cluster.judge_ever() == []


@pytest.fixture
def world(cluster):
    cluster.heal()
    cluster.begin()
    cluster.wait_acked(MORE, "writers to write")
    yield cluster
    cluster.end_clients()
    cluster.end_auditors()


def keeps_all(world, *, all_copies=False):
    """Clients go on after all is healed; then nothing is missing. What was told."""
    world.heal()
    world.wait_acked(MORE, "writers to go on")
    world.finish()
    assert world.judge(all_copies=all_copies) == []
    return world.told()


def test_killed_bookies_cost_no_write(world):
    for bookie in world.bookies[:2]:
        bookie.kill()
        world.wait_acked(MORE, "writers to go on without it")
        bookie.start()
    assert keeps_all(world).given_up == []


def test_bookies_that_stop_and_go_on_are_replaced_meanwhile(world):
    for bookie in world.bookies[:2]:
        bookie.pause()
        wait_until(lambda bookie=bookie: bookie.id not in world.written_to(), "it to be replaced")
        world.wait_acked(MORE, "writers to go on without it")
        bookie.resume()
    assert keeps_all(world).given_up == []


def test_a_bookie_that_is_cut_off_or_answers_late_costs_no_write(world):
    cut, slow, deaf, mute = world.proxies[:4]
    cut.refuse()
    world.wait_acked(MORE, "writers to go on past a refused connection")
    cut.heal()
    slow.slow(latency_s=0.2)
    world.wait_acked(MORE, "writers to go on past a slow connection")
    slow.heal()
    deaf.drop("to server")
    world.wait_acked(MORE, "writers to go on past lost requests")
    deaf.heal()
    mute.drop("to client")
    world.wait_acked(MORE, "writers to go on past lost answers")
    assert keeps_all(world).given_up == []


def test_a_rolling_restart_of_all_bookies_beside_an_auditor_costs_no_write(world):
    world.auditor()
    for bookie in world.bookies:
        assert bookie.stop() == 0
        bookie.start()
        world.wait_acked(MORE // 5, "writers to go on")
    assert keeps_all(world).given_up == []
    world.audit_once()
    assert world.under_replicated() == []
    assert world.judge(all_copies=True) == []


def test_a_killed_zookeeper_stops_nobody_who_writes_already(world):
    world.zookeeper.kill()
    world.zookeeper.start()
    world.bookies[0].kill()
    world.wait_acked(MORE, "writers to replace a bookie after the restart")
    keeps_all(world)


def test_a_zookeeper_that_is_silent_for_longer_than_sessions_costs_nothing_but_time(world):
    processes = [bookie.process for bookie in world.bookies]
    world.zookeeper.pause()
    # Ledgers are full within a second, and nobody can make new ones: writers stand still.
    wait_until(lambda: stands_still(world), "the writers to need it")
    world.zookeeper.resume()
    world.wait_acked(MORE, "writers to go on")
    keeps_all(world)
    assert [bookie.process for bookie in world.bookies] == processes
    assert all(bookie.running for bookie in world.bookies)


def stands_still(world):
    """For three seconds, longer than any session here, nothing more is acknowledged."""
    before = world.acked()
    try:
        wait_until(lambda: world.acked() > before, "more", 3.0)
    except AssertionError:
        return True
    return False


def test_writers_that_zookeeper_does_not_hear_go_on_with_what_they_have(world):
    world.to_zookeeper["clients"].freeze()
    wait_until(lambda: stands_still(world), "the writers to need it")
    world.bookies[0].kill()
    world.to_zookeeper["clients"].heal()
    world.wait_acked(MORE, "writers to go on with new sessions")
    keeps_all(world)


def test_after_a_kill_of_everything_all_is_there(world):
    for bookie in world.bookies:
        bookie.kill()
    world.zookeeper.kill()
    world.end_clients()
    world.heal()
    world.start_clients("write", "read")
    keeps_all(world)


def test_killed_writers_leave_ledgers_that_others_complete(world):
    world.end_clients()
    world.start_clients("write", "read")
    keeps_all(world)


def test_a_writer_that_sleeps_through_its_takeover_acknowledges_nothing_more(world):
    sleepers = [process for log, process in world.clients if log.name.startswith("write")]
    for process in sleepers:
        pause(process)
    world.close_all()  # by another process: this one
    ended = {metadata.ledger: metadata.last_entry for metadata in world.metadata()}
    for process in sleepers:
        resume(process)
    wait_until(lambda: len(world.told("write").given_up) == len(sleepers), "both to give up")
    facts = keeps_all(world)
    assert all(why.split()[2] == f"{Fenced.__name__}:" for why in facts.given_up)
    for ledger, acked in facts.acked.items():
        assert acked[-1] <= ended.get(ledger, acked[-1])


def test_a_directory_serves_one_bookie_and_the_second_is_refused(world):
    first = world.bookies[0]
    second = BookieProcess(
        first.data, world.zookeeper.servers, ["--advertised-host", "127.0.0.31"], name=first.name
    )
    second.data = world.directory / "second" / "data"
    second.data.parent.mkdir(exist_ok=True)
    second.data.symlink_to(first.data, target_is_directory=True)
    assert second.begin().wait_exit() == 78
    assert "another process" in second.output()
    world.wait_acked(MORE, "writers to go on")
    assert first.running
    assert keeps_all(world).given_up == []


def test_a_reader_that_sleeps_is_shown_all_of_it_later(world):
    readers = [process for log, process in world.clients if log.name.startswith("read")]
    for process in readers:
        pause(process)
    world.wait_acked(3 * MORE, "writers to close ledgers meanwhile")
    for process in readers:
        resume(process)
    assert keeps_all(world).given_up == []

"""Goal: whatever happens to real bookies and ZooKeeper, no acknowledged entry is lost or moved.

Method: processes on loopback: ZooKeeper, five bookies behind proxies, two writers and a reader that
log what they are told. Each test does one kind of harm while they work, heals, kills the clients,
and judges every ledger: each acknowledged entry once, in order, on Qa good copies.
"""

import shutil
import subprocess

import pytest

from tests.cluster.world import World
from tests.peers.processes import wait_until

MORE = 300  # acknowledged entries: a few groups of each writer


@pytest.fixture
def world(tmp_path):
    with World(tmp_path) as world:
        world.client("write")
        world.client("write")
        world.client("read")
        world.wait_acked(MORE, "writers to write")
        yield world


def keeps_all(world, *, all_copies=False):
    """Writers go on after all is healed; then nothing is missing."""
    world.heal()
    world.wait_acked(MORE, "writers to go on")
    shown = sum(map(len, world.told("read").shown.values()))
    wait_until(
        lambda: sum(map(len, world.told("read").shown.values())) > shown, "the reader to go on"
    )
    world.end_clients()
    assert world.judge(all_copies=all_copies) == []
    return world.told("write")


def test_killed_bookies_cost_no_write(world):
    for bookie in world.bookies[:2]:
        bookie.kill()
        world.wait_acked(MORE, "writers to go on without it")
        bookie.start()
    facts = keeps_all(world)
    assert facts.given_up == []


def test_bookies_that_stop_and_go_on_are_replaced_meanwhile(world):
    for bookie in world.bookies[:2]:
        bookie.pause()
        world.wait_acked(MORE, "writers to go on without it")
        bookie.resume()
    facts = keeps_all(world)
    assert facts.given_up == []


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
    facts = keeps_all(world)
    assert facts.given_up == []


def test_a_rolling_restart_of_all_bookies_costs_no_write(world):
    for bookie in world.bookies:
        assert bookie.stop() == 0
        bookie.start()
        world.wait_acked(MORE // 5, "writers to go on")
    facts = keeps_all(world)
    assert facts.given_up == []


def test_a_killed_zookeeper_stops_nobody_who_writes_already(world):
    world.zookeeper.kill()
    world.zookeeper.start()
    world.bookies[0].kill()
    world.wait_acked(MORE, "writers to replace a bookie after the restart")
    keeps_all(world)


def test_after_a_kill_of_everything_all_is_there(world):
    for bookie in world.bookies:
        bookie.kill()
    world.zookeeper.kill()
    world.end_clients()
    world.heal()
    world.client("write")
    world.client("read")
    keeps_all(world)


def test_killed_writers_leave_ledgers_that_others_complete(world):
    for _log, process in list(world.clients):
        process.kill()
    world.client("write")
    world.client("read")
    keeps_all(world)


def test_a_wiped_bookie_comes_back_as_another_and_its_share_is_made_anew(world):
    world.auditor()
    wiped = world.bookies[0]
    before = wiped.id
    wiped.kill()
    shutil.rmtree(wiped.data)
    world.wait_acked(MORE, "writers to go on without it")
    wiped.start()
    assert wiped.id != before
    world.wait_acked(MORE, "writers to go on with it")
    world.end_clients()
    world.judge()  # closes what killed writers left
    wait_until(
        lambda: before not in world.members(), "every copy of the lost bookie to be replaced", 60
    )
    assert world.judge(all_copies=True) == []
    assert world.under_replicated() == []


def test_a_full_disk_makes_a_bookie_read_only_and_costs_no_write(tmp_path):
    small = tmp_path / "bookie-0"
    small.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(small)], check=True, timeout=10
    )
    try:
        with World(tmp_path) as world:
            world.client("write")
            world.client("write")
            world.client("read")
            world.wait_acked(MORE, "writers to write")
            ballast = small / "ballast"
            with ballast.open("wb") as file:
                while True:
                    try:
                        file.write(bytes(1024 * 1024))
                    except OSError:
                        break
            world.wait_acked(3 * MORE, "writers to go on past the full disk")
            ballast.unlink()
            facts = keeps_all(world)
            assert facts.given_up == []
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True, timeout=10)

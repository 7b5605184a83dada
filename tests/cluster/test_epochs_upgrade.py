"""Goal: gateways of an earlier release and of this one agree on every leader epoch, and an earlier
release refuses data whose epochs it would misread.

Method: the release before epoch bases, from git, beside this tree: in one cluster, and one after
the other on one directory. Epochs are those that Metadata shows.
"""

from __future__ import annotations

import random

import pytest

from gateway.core.ownership import FORMAT_1, FORMAT_2
from tests.cluster.gateway_pair import (
    LED_S_MAX,
    PARTITIONS,
    Pair,
    agreed,
    create,
    epochs,
    is_listening,
    led,
    shown,
    take_session_flag_of_this_tree,
    write,
)
from tests.cluster.world import World
from tests.gateway.admin_commands import produced
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until
from tests.peers.release import take_off, unpacked

pytestmark = pytest.mark.proof

BEFORE = "f3a6cd8"


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    return unpacked(BEFORE, tmp_path_factory.mktemp("release"))


# -- one cluster ----------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path):
    with World(tmp_path / "world", 1, proxied=False) as world:
        pair = Pair(world, tmp_path)
        try:
            yield pair
        finally:
            pair.end()


def test_in_a_cluster_of_the_earlier_release_both_show_the_same_and_nothing_is_of_a_new_form(
    pair, before
):
    old, new = pair.all
    before.put_on(old)
    take_session_flag_of_this_tree(old)
    old.start()
    create(old, "theirs")
    write(old, "theirs")
    last = agreed([old], "theirs")
    assert last == [1] * PARTITIONS
    new.start()
    create(new, "ours")
    draw = random.Random(7)
    for killed in (old, new, old, new):
        for topic in ("theirs", "ours"):
            agreed([old, new], topic)
            write(old if draw.random() < 0.5 else new, topic)
        now = agreed([old, new], "theirs")
        assert all(a >= b for a, b in zip(now, last, strict=True)), (last, now)
        last = now
        killed.kill()
        other = new if killed is old else old
        wait_until(lambda o=other: led(o, "theirs") and led(o, "ours"), "a takeover", LED_S_MAX)
        write(other, "ours")
        killed.start()
    assert min(agreed([old, new], "ours")) >= 1
    assert max(last) > 1, "epochs rose"
    assert all(data.isdigit() for data in pair.starts())
    assert pair.formats() == {FORMAT_1}
    old.stop()
    take_off(old)
    old.start()  # the whole cluster is of this release, and keeps its form
    create(old, "more")
    assert agreed([old, new], "more") == [1] * PARTITIONS
    assert all(data.isdigit() for data in pair.starts())
    assert pair.formats() == {FORMAT_1}


def test_a_cluster_of_this_release_begins_with_0_and_the_earlier_one_cannot_join_it(pair, before):
    new, old = pair.all
    new.start()
    create(new, "t")
    assert agreed([new], "t") == [0] * PARTITIONS
    write(new, "t")
    before.put_on(old)
    take_session_flag_of_this_tree(old)
    old.begin()
    assert old.wait_exit() != 0
    assert not is_listening(old)
    assert agreed([new], "t") == [0] * PARTITIONS
    assert not any(data.isdigit() for data in pair.starts())
    assert pair.formats() == {FORMAT_2}


def test_between_two_owners_a_partition_shows_its_last_epoch(pair):
    first, second = pair.all
    first.start()
    create(first, "t")
    second.start()
    last = agreed([first, second], "t")
    for killed, other in ((first, second), (second, first), (first, second)):
        write(other, "t")
        killed.kill()
        seen = []

        def taken_over(other=other, killed=killed, seen=seen):
            now = shown(other, "t")
            seen.append([epoch for _, epoch in now])
            return all(node not in (-1, killed.node_id) for node, _ in now) and not slow(other)

        wait_until(taken_over, "a takeover", LED_S_MAX)
        write(other, "t")
        seen.append(agreed([other], "t"))
        for earlier, later in zip([last, *seen], seen, strict=False):
            assert all(a <= b for a, b in zip(earlier, later, strict=True)), (last, seen)
        last = seen[-1]
        killed.start()
        last = [max(a, b) for a, b in zip(last, agreed([first, second], "t"), strict=True)]


def slow(gateway):
    """Return whether a partition of this gateway is still being opened."""
    return not led(gateway, "t")


# -- one directory --------------------------------------------------------------------------------


def test_a_directory_of_the_earlier_release_keeps_its_epochs(tmp_path, before):
    gateway = Gateway(tmp_path / "data")
    before.put_on(gateway)
    gateway.start()
    create(gateway, "t", 2)
    produced(gateway, "t", 3, partition=1)
    assert epochs(gateway, "t")[1] == 1
    last = 1
    for release in (before, None, None, None):
        gateway.kill()
        take_off(gateway) if release is None else release.put_on(gateway)
        gateway.start()
        if release is None:
            assert epochs(gateway, "t") == [1, last + 1], "shown without opening"
        produced(gateway, "t", 3, partition=1)
        assert epochs(gateway, "t")[1] == last + 1
        last += 1
    gateway.kill()
    before.put_on(gateway)
    gateway.begin()
    assert gateway.wait_exit() != 0  # the bookie's directory is of the new form now
    take_off(gateway)
    gateway.start()
    create(gateway, "later", 1)
    assert epochs(gateway, "later") == [1], "as every stream of such a directory"
    gateway.stop()


def test_a_directory_of_this_release_is_refused_by_the_earlier_one_and_stays_usable(
    tmp_path, before
):
    gateway = Gateway(tmp_path / "data").start()
    create(gateway, "t", 2)
    assert epochs(gateway, "t") == [0, 0]
    produced(gateway, "t", 3, partition=1)
    gateway.stop()
    before.put_on(gateway)
    gateway.begin()
    assert gateway.wait_exit() != 0
    assert not is_listening(gateway)
    take_off(gateway)
    gateway.start()
    assert epochs(gateway, "t") == [0, 1]
    gateway.stop()


def test_over_50_kills_the_epoch_never_falls(tmp_path):
    draw = random.Random(15)
    gateway = Gateway(tmp_path / "data").start()
    create(gateway, "t", 2)
    last, written = [0, 0], [False, False]
    for _ in range(50):
        found = epochs(gateway, "t")
        for at in (0, 1):
            assert (found[at] > last[at]) if written[at] else (found[at] == last[at])
        written = [draw.random() < 0.5, draw.random() < 0.5]
        for partition in (0, 1):
            if written[partition]:
                produced(gateway, "t", 2, partition=partition)
        assert epochs(gateway, "t") == found
        last = found
        gateway.kill()
        gateway.start()
    gateway.stop()

"""Goal: gateways of an earlier release never meet data of a new form. Until an upgrade, a cluster
may go back to that release; afterwards that release refuses to start.

Method: two earlier releases from git, beside this tree in one cluster: the one before forms, and
the one before features. Levels are those that ApiVersions and `gateway feature` show.
"""

from __future__ import annotations

import json

import pytest
from confluent_kafka import TopicPartition

from gateway.features.cluster_form import CLUSTER_ID, decode_form
from gateway.features.stored_levels import FEATURES, LEVELS
from tests.cluster.gateway_pair import (
    PARTITIONS,
    Pair,
    agreed,
    create,
    is_listening,
    take_session_flag_of_this_tree,
    write,
)
from tests.cluster.world import World
from tests.gateway.admin_commands import consumer, invoke
from tests.peers.processes import wait_until
from tests.peers.release import take_off, unpacked

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

RELEASES = {"f3a6cd8": 0, "c17f799": 1}  # the form in which each lays out a cluster
PREVIEW = "--preview-transactions"
FOLLOWED_S_MAX = 30.0
NEWEST = {"gateway.version": 3, "metadata.version": 30, "transaction.version": 2}


@pytest.fixture(scope="module", params=RELEASES)
def before(request, tmp_path_factory):
    return unpacked(request.param, tmp_path_factory.mktemp("release"))


@pytest.fixture
def pair(tmp_path):
    with World(tmp_path / "world", 1, proxied=False) as world:
        pair = Pair(world, tmp_path)
        try:
            yield pair
        finally:
            pair.end()


def command(gateway, *words):
    return invoke("feature", *words, bootstrap=f"127.0.0.1:{gateway.port}")


def levels(gateway):
    code, out, errors = command(gateway, "describe", "-o", "json")
    assert code == 0, errors
    return {row["feature"]: row["finalized"] for row in json.loads(out)}


def stored(pair):
    """Return the nodes that only this release writes, and the cluster's id."""
    nodes = pair.nodes("/gateway")
    return {path: nodes.get(path) for path in (CLUSTER_ID, FEATURES, LEVELS)}


def run_earlier(gateway, release):
    release.put_on(gateway)
    take_session_flag_of_this_tree(gateway)


def run_this(gateway):
    take_off(gateway)
    gateway.options.append(PREVIEW)


def count(gateway, topic):
    """Return the number of records that a consumer reads from the topic."""
    reader = consumer(gateway, "count")
    try:
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        ends = sum(reader.get_watermark_offsets(place, timeout=30)[1] for place in places)
        reader.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        read = reader.consume(ends, timeout=30)
        assert not [each.error() for each in read if each.error()]
        return len(read)
    finally:
        reader.close()


def start_beside_the_earlier(pair, before):
    """Start a gateway of `before` with a topic, and one of this tree. Returns the cluster's id."""
    old, new = pair.all
    run_earlier(old, before)
    old.start()
    create(old, "t")
    write(old, "t")
    cluster_id = stored(pair)[CLUSTER_ID]
    run_this(new)
    new.start()
    agreed([old, new], "t")
    write(new, "t")
    return cluster_id


def test_a_mixed_cluster_writes_no_new_form_and_goes_back(pair, before):
    old, new = pair.all
    cluster_id = start_beside_the_earlier(pair, before)
    form = decode_form(cluster_id).form
    assert form == RELEASES[before.commit]
    level = {"gateway.version": form, "metadata.version": 29, "transaction.version": 0}
    assert levels(new) == level
    code, _, errors = command(new, "upgrade")
    assert code == 1
    assert "Broker 0 does not support this feature" in errors
    assert levels(new) == level
    assert stored(pair) == {CLUSTER_ID: cluster_id, FEATURES: b"", LEVELS: None}

    new.stop()
    agreed([old], "t")
    write(old, "t")
    assert count(old, "t") == 3 * PARTITIONS
    new.start()
    agreed([old, new], "t")
    old.kill()
    old.start()
    agreed([old, new], "t")
    assert stored(pair) == {CLUSTER_ID: cluster_id, FEATURES: b"", LEVELS: None}


def test_after_an_upgrade_all_gateways_have_the_levels_and_the_earlier_release_is_refused(
    pair, before
):
    old, new = pair.all
    start_beside_the_earlier(pair, before)
    old.stop()  # the last one of the earlier release
    run_this(old)
    old.start()
    agreed([old, new], "t")
    code, out, errors = command(old, "upgrade")
    assert code == 0, errors
    assert "gateway.version was upgraded to 3." in out
    assert levels(old) == NEWEST
    wait_until(lambda: levels(new) == NEWEST, "the other gateway to follow", FOLLOWED_S_MAX)
    assert decode_form(stored(pair)[CLUSTER_ID]).form == 3
    new.kill()
    run_earlier(new, before)
    new.options.remove(PREVIEW)
    new.begin()
    assert new.wait_exit() != 0
    assert not is_listening(new)
    run_this(new)
    new.start()
    agreed([old, new], "t")
    write(new, "t")
    assert levels(new) == NEWEST
    assert count(old, "t") == 3 * PARTITIONS


def test_a_new_cluster_keeps_the_earlier_release_out_and_needs_the_preview_everywhere(pair, before):
    first, second = pair.all
    first.start()
    create(first, "t")
    write(first, "t")
    assert levels(first) == {"gateway.version": 2, "metadata.version": 30}
    run_earlier(second, before)
    second.begin()
    assert second.wait_exit() != 0
    assert not is_listening(second)
    run_this(second)
    second.start()
    agreed([first, second], "t")
    code, _, errors = command(second, "upgrade")
    assert code == 1
    assert "Broker 0 " in errors, "it has no preview"
    first.stop()
    run_this(first)
    first.start()
    agreed([first, second], "t")
    assert command(second, "upgrade")[0] == 0
    wait_until(lambda: levels(first) == NEWEST, "the other gateway to follow", FOLLOWED_S_MAX)
    first.stop()
    first.options.remove(PREVIEW)
    first.begin()
    assert first.wait_exit() != 0
    assert PREVIEW in first.output()

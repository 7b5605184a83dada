"""Goal: gateways of an earlier release never meet data of a new form. Until an upgrade, a cluster
may go back to that release; afterwards that release refuses to start.

Method: three earlier releases from git, beside this tree in one cluster: the one before forms, the
one before features, and the one before transactions. Levels are those that ApiVersions and
`gateway feature` show.
"""

from __future__ import annotations

import json
import re

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

pytestmark = pytest.mark.proof

# The form in which each lays out a cluster, and the level of metadata.version
RELEASES = {"f3a6cd8": (0, 29), "c17f799": (1, 29), "b0dcebb": (2, 30)}
FOLLOWED_S_MAX = 60.0
NEWEST = {
    "gateway.version": 3,
    "metadata.version": 30,
    "transaction.version": 2,
    "group.version": 1,
}


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
    """Return the nodes of the cluster's id and of its features, None for one that is not there."""
    nodes = pair.nodes("/gateway")
    return {path: nodes.get(path) for path in (CLUSTER_ID, FEATURES, LEVELS)}


def run_earlier(gateway, release):
    release.put_on(gateway)
    take_session_flag_of_this_tree(gateway)


def count(gateway, topic):
    """Return the number of records that a consumer reads from the topic."""
    reader = consumer(gateway, "count")
    try:
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        ends = sum(reader.get_watermark_offsets(place, timeout=60)[1] for place in places)
        reader.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        read = reader.consume(ends, timeout=60)
        assert not [each.error() for each in read if each.error()]
        return len(read)
    finally:
        reader.close()


def start_beside_the_earlier(pair, before):
    """Start a gateway of `before` with a topic, and one of this tree. Returns the stored nodes."""
    old, new = pair.all
    run_earlier(old, before)
    old.start()
    create(old, "t")
    write(old, "t")
    nodes = stored(pair)
    take_off(new)
    new.start()
    agreed([old, new], "t")
    write(new, "t")
    return {**nodes, FEATURES: nodes[FEATURES] or b""}


def test_a_mixed_cluster_writes_no_new_form_and_goes_back(pair, before):
    old, new = pair.all
    nodes = start_beside_the_earlier(pair, before)
    form, metadata = RELEASES[before.commit]
    assert decode_form(nodes[CLUSTER_ID]).form == form
    level = {"gateway.version": form, "metadata.version": metadata, "transaction.version": 0}
    level["group.version"] = 0
    assert levels(new) == level
    code, _, errors = command(new, "upgrade")
    assert code == 1
    assert re.search("Broker 0 (does not support this feature|only supports versions 0-2)", errors)
    assert levels(new) == level
    assert stored(pair) == nodes

    new.stop()
    agreed([old], "t")
    write(old, "t")
    assert count(old, "t") == 3 * PARTITIONS
    new.start()
    agreed([old, new], "t")
    old.kill()
    old.start()
    agreed([old, new], "t")
    assert stored(pair) == nodes


def test_after_an_upgrade_all_gateways_have_the_levels_and_the_earlier_release_is_refused(
    pair, before
):
    old, new = pair.all
    start_beside_the_earlier(pair, before)
    old.stop()  # the last one of the earlier release
    take_off(old)
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
    new.begin()
    assert new.wait_exit() != 0
    assert not is_listening(new)
    take_off(new)
    new.start()
    agreed([old, new], "t")
    write(new, "t")
    assert levels(new) == NEWEST
    assert count(old, "t") == 3 * PARTITIONS


def test_a_new_cluster_begins_at_the_newest_levels_and_keeps_the_earlier_release_out(pair, before):
    first, second = pair.all
    first.start()
    create(first, "t")
    write(first, "t")
    assert levels(first) == NEWEST
    run_earlier(second, before)
    second.begin()
    assert second.wait_exit() != 0
    assert not is_listening(second)
    take_off(second)
    second.start()
    agreed([first, second], "t")
    assert levels(second) == NEWEST

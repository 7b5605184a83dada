"""Goal: read-only groups are recognized by the client ids of Spark's executors alone, stay within
their limits, and expire.

Method: single facts about names, restarts, age and eviction; then Hypothesis fetches for several
queries, and a dumb twin keeps the last fetch of each.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ReaderLimits
from gateway.core.read_progress import EXECUTOR_MARK, ReadProgress, is_read_group, merge_read_groups

HOST = "/127.0.0.1"
RUN = "0f8fad5b-d9cb-469f-a165-70867728950e"
NEXT_RUN = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
T, U = UUID(int=1), UUID(int=2)
LIMITS = ReaderLimits()


def stream(run=RUN, hashed="-12345", prefix="spark-kafka-source"):
    return f"{prefix}-{run}-{hashed}-executor"


def batch(run=RUN, prefix="spark-kafka-relation"):
    return f"{prefix}-{run}-executor"


def client(group, number=1):
    return f"consumer-{group}-{number}"


def progress(**limits):
    return ReadProgress(replace(LIMITS, **limits))


def fetch(kept, group, offset, *, topic=T, partition=0, now_ms=0, number=1, host=HOST):
    kept.note(client(group, number), host, [((topic, partition), offset)], now_ms)


def stands(kept, group, now_ms=0):
    """Return {partition: offset} of all topics, or None if there is no such group."""
    found = kept.get(group, now_ms)
    if found is None:
        return None
    return {index: at.offset for (_, index), at in found.fetches.items()}


@pytest.mark.parametrize(
    "group", [stream(), stream(hashed="12345"), batch(), stream(prefix="mine"), batch(prefix="a-b")]
)
def test_a_query_is_a_group_by_the_names_that_spark_gives_it(group):
    kept = progress()
    assert EXECUTOR_MARK in client(group)
    fetch(kept, group, 7)
    assert is_read_group(group)
    assert stands(kept, group) == {0: 7}


@pytest.mark.parametrize(
    "name",
    [
        client("console-consumer-12345"),
        client(stream().replace("-executor", "-driver-0")),
        stream(),
        f"{client(stream())}x",
        f"consumer-{'x' * 600}-{stream()}-1",
        "consumer-my-executor-1",
    ],
)
def test_other_clients_are_no_groups(name):
    kept = progress()
    kept.note(name, HOST, [((T, 0), 1)], 0)
    assert len(kept) == 0


def test_a_group_has_the_offset_of_its_last_fetch_even_if_that_is_lower():
    kept = progress()
    fetch(kept, stream(), 7)
    fetch(kept, stream(), 9, number=2)
    fetch(kept, stream(), 5, number=1)
    assert stands(kept, stream()) == {0: 5}


def test_executors_of_one_client_id_are_distinguished_by_their_host():
    kept = progress()
    fetch(kept, stream(), 7, partition=0)
    fetch(kept, stream(), 8, partition=1, host="/10.0.0.2")
    assert len(kept.get(stream(), 0).clients) == 2


def test_a_restarted_stream_takes_the_place_of_what_it_was_before():
    kept = progress()
    fetch(kept, stream(), 7)
    fetch(kept, stream(NEXT_RUN), 7)
    assert stands(kept, stream()) is None
    assert stands(kept, stream(NEXT_RUN)) == {0: 7}


def test_streams_with_other_checkpoints_stand_side_by_side():
    kept = progress()
    fetch(kept, stream(), 7)
    fetch(kept, stream(NEXT_RUN, hashed="777"), 8)
    assert stands(kept, stream()) == {0: 7}


@pytest.mark.parametrize(
    ("group", "idle_s"), [(batch(), LIMITS.batch_idle_s_max), (stream(), LIMITS.stream_idle_s_max)]
)
def test_a_group_that_fetches_no_more_expires(group, idle_s):
    kept = progress()
    fetch(kept, group, 7)
    assert stands(kept, group, now_ms=int(idle_s * 1000)) == {0: 7}
    assert stands(kept, group, now_ms=int(idle_s * 1000) + 1) is None


def test_of_too_many_groups_the_one_that_fetched_longest_ago_goes():
    kept = progress(groups_max=2)
    for run in ("a", "b"):
        fetch(kept, batch(prefix=run), 1)
    fetch(kept, batch(prefix="a"), 2)
    fetch(kept, batch(prefix="c"), 1)
    assert stands(kept, batch(prefix="b")) is None
    assert stands(kept, batch(prefix="a")) == {0: 2}


def test_of_too_many_positions_those_of_other_groups_go_and_then_no_more_are_taken():
    kept = progress(positions_max=3)
    fetch(kept, batch(prefix="a"), 1)
    for partition in range(5):
        fetch(kept, batch(prefix="b"), 1, partition=partition)
    assert stands(kept, batch(prefix="a")) is None
    assert stands(kept, batch(prefix="b")) == {0: 1, 1: 1, 2: 1}


def test_of_too_many_clients_the_oldest_is_dropped_and_its_offsets_stay():
    kept = progress(clients_max=2)
    for number in range(4):
        fetch(kept, stream(), number, partition=number, number=number)
    found = kept.get(stream(), 0)
    assert [name for name, _ in found.clients] == [client(stream(), 2), client(stream(), 3)]
    assert len(found.fetches) == 4


def test_a_deleted_topic_is_forgotten_and_so_is_a_group_that_read_nothing_else():
    kept = progress()
    fetch(kept, batch(prefix="a"), 1, topic=T)
    fetch(kept, batch(prefix="b"), 1, topic=T)
    fetch(kept, batch(prefix="b"), 2, topic=U, partition=1)
    kept.forget_topic(T)
    assert [group.name for group in kept.groups(0)] == [batch(prefix="b")]
    assert stands(kept, batch(prefix="b")) == {1: 2}


def test_of_what_two_gateways_know_the_later_holds():
    before, after = progress(), progress()
    fetch(before, stream(), 5, partition=0, now_ms=1)
    fetch(before, stream(), 6, partition=1, now_ms=1)
    fetch(after, stream(), 8, partition=1, now_ms=2)
    parts = [each.get(stream(), 2) for each in (after, before)]
    whole = merge_read_groups(stream(), parts)
    assert {index: at.offset for (_, index), at in whole.fetches.items()} == {0: 5, 1: 8}
    assert set(whole.clients.values()) == {2}


def test_a_group_that_no_broker_has_is_none():
    assert merge_read_groups(stream(), []) is None


FETCHES = st.lists(
    st.tuples(
        st.sampled_from("abc"),  # query
        st.integers(1, 3),  # its client
        st.dictionaries(st.tuples(st.sampled_from([T, U]), st.integers(0, 3)), st.integers(0, 99)),
        st.booleans(),  # afterwards topic U is deleted
    )
)


def without(known, topic):
    return {key: offset for key, offset in known.items() if key[0] != topic}


@pytest.mark.slow
@given(FETCHES)
def test_each_offset_is_the_last_that_any_client_of_the_query_fetched(fetches):
    kept = progress()
    twin = {}
    for now_ms, (query, number, places, deleted) in enumerate(fetches):
        kept.note(client(batch(prefix=query), number), HOST, places.items(), now_ms)
        twin.setdefault(batch(prefix=query), {}).update(places)
        if deleted:
            kept.forget_topic(U)
            twin = {name: without(known, U) for name, known in twin.items()}
    shown = {
        group.name: {key: at.offset for key, at in group.fetches.items()}
        for group in kept.groups(len(fetches))
    }
    assert shown == {name: known for name, known in twin.items() if known}


@pytest.mark.slow
@given(FETCHES, st.integers(1, 5))
def test_positions_stay_within_their_bound_and_are_counted_right(fetches, positions_max):
    kept = progress(positions_max=positions_max)
    for query, number, places, deleted in fetches:
        kept.note(client(batch(prefix=query), number), HOST, places.items(), 0)
        if deleted:
            kept.forget_topic(U)
    total = sum(len(group.fetches) for group in kept.groups(0))
    assert total <= positions_max
    assert total == kept._partitions

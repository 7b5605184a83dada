"""Goal: the responses of a fetch session contain what changed, and nothing else (KIP-227).

Method: single facts about ids, epochs, order and eviction; then Hypothesis plays client and log
against a dumb twin that remembers everything sent to the client.
"""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.fetch_session import (
    EPOCH_MAX,
    FetchPartition,
    FetchSession,
    FetchSessionError,
    FetchSessions,
)


def sessions(sessions_max=10, idle_ms_max=120_000):
    ids = count(100)
    return FetchSessions(sessions_max, idle_ms_max, lambda: next(ids))


def want(partition, topic="t", offset=0):
    return FetchPartition(topic, partition, offset, 1024)


def resolve(cache, session_id, epoch, partitions, forgotten, now_ms, *, uses_ids=False):
    """Return the session of a request: new, known, or for this request alone (id 0)."""
    session = cache.find(session_id, epoch, now_ms, uses_ids=uses_ids)
    if isinstance(session, FetchSession):
        session.update(partitions, forgotten)
        cache.settle(session, epoch, now_ms)
    return session


def kept(session):
    return list(session._partitions.values())


def respond(session, partition, **sent):
    """Return whether the response includes this partition."""
    [wanted] = [each for each in kept(session) if each.partition == partition]
    return session.update_response(wanted, **{"high_watermark": 5, "log_start_offset": 0, **sent})


def opened(cache, *partitions, now_ms=0):
    session = resolve(cache, 0, 0, map(want, partitions), (), now_ms)
    for partition in partitions:
        respond(session, partition)
    return session


def resumed(cache, session, wanted=(), forgotten=(), now_ms=0):
    return resolve(cache, session.id, session.epoch, wanted, forgotten, now_ms)


def test_a_full_request_gets_a_session_and_all_its_partitions():
    session = resolve(sessions(), 0, 0, map(want, (1, 2)), (), 0)
    assert session.id == 100
    assert respond(session, 1)
    assert respond(session, 2)


def test_the_final_epoch_gets_no_session_and_drops_the_one_it_names():
    cache = sessions()
    first = opened(cache, 1)
    assert resolve(cache, first.id, -1, [want(1)], (), 0).id == 0
    assert len(cache) == 0


def test_a_full_request_replaces_the_session_it_names():
    cache = sessions()
    first = opened(cache, 1)
    second = resolve(cache, first.id, 0, [want(1)], (), 0)
    assert second.id != first.id
    assert resumed(cache, first) is FetchSessionError.UNKNOWN_ID


def test_an_unknown_session_is_refused():
    assert resolve(sessions(), 7, 1, (), (), 0) is FetchSessionError.UNKNOWN_ID


@pytest.mark.parametrize("epoch", [2, 3, EPOCH_MAX])
def test_another_epoch_than_the_next_is_refused(epoch):
    cache = sessions()
    session = opened(cache, 1)
    assert resolve(cache, session.id, epoch, (), (), 0) is FetchSessionError.WRONG_EPOCH


def test_the_same_epoch_twice_is_refused():
    cache = sessions()
    session = opened(cache, 1)
    assert isinstance(resolve(cache, session.id, 1, (), (), 0), FetchSession)
    assert resolve(cache, session.id, 1, (), (), 0) is FetchSessionError.WRONG_EPOCH


def test_the_epoch_wraps_to_one():
    cache = sessions()
    session = opened(cache, 1)
    session.epoch = EPOCH_MAX
    assert resumed(cache, session).epoch == 1


def test_names_and_ids_cannot_share_a_session():
    cache = sessions()
    session = opened(cache, 1)
    fault = resolve(cache, session.id, 1, (), (), 0, uses_ids=True)
    assert fault is FetchSessionError.NAMES_AND_IDS_MIXED


def test_an_unchanged_partition_is_left_out():
    cache = sessions()
    session = resumed(cache, opened(cache, 1))
    assert not respond(session, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"high_watermark": 6},
        {"log_start_offset": 1},
        {"has_records": True},
        {"redirected": True},
        {"error_code": 6},
    ],
)
def test_a_changed_partition_is_included(change):
    cache = sessions()
    session = resumed(cache, opened(cache, 1))
    assert respond(session, 1, **change)


def test_after_an_error_the_partition_is_included_again():
    cache = sessions()
    session = resumed(cache, opened(cache, 1))
    respond(session, 1, error_code=6)
    assert respond(resumed(cache, session), 1)


def test_an_added_partition_is_included_and_a_forgotten_one_removed():
    cache = sessions()
    session = resumed(cache, opened(cache, 1, 2), [want(3)], [("t", 1)])
    assert [each.partition for each in kept(session)] == [2, 3]
    assert respond(session, 3)


def test_a_changed_offset_is_taken_over_in_place():
    cache = sessions()
    session = resumed(cache, opened(cache, 1, 2), [want(1, offset=9)])
    assert [(each.partition, each.fetch_offset) for each in kept(session)] == [
        (1, 9),
        (2, 0),
    ]


def test_partitions_with_records_move_to_the_end():
    cache = sessions()
    session = resumed(cache, opened(cache, 1, 2, 3))
    respond(session, 1, has_records=True)
    assert [each.partition for each in session.due()] == [2, 3, 1]


def test_a_session_without_partitions_ends():
    cache = sessions()
    session = opened(cache, 1)
    assert resumed(cache, session, (), [("t", 1)]).id == 0
    assert len(cache) == 0


def test_ids_are_drawn_until_one_is_free_and_positive():
    draws = iter([0, -3, 5, 5, 6])
    cache = FetchSessions(10, 1000, lambda: next(draws))
    assert [opened(cache, 1).id, opened(cache, 1).id] == [5, 6]


def test_a_full_cache_gives_no_session():
    cache = sessions(sessions_max=1)
    first = opened(cache, 1)
    assert opened(cache, 1, 2, 3).id == 0
    assert isinstance(resumed(cache, first), FetchSession)


def test_an_idle_session_gives_way():
    cache = sessions(sessions_max=1)
    opened(cache, 1)
    assert opened(cache, 1, now_ms=120_001).id != 0


def test_a_settled_smaller_session_gives_way_to_a_larger_one():
    cache = sessions(sessions_max=2)
    small, large = opened(cache, 1), opened(cache, 1, 2, 3)
    small = resumed(cache, small, now_ms=100_000)
    resumed(cache, large, now_ms=100_000)
    assert opened(cache, 1, 2, now_ms=130_000).id != 0
    assert resumed(cache, small) is FetchSessionError.UNKNOWN_ID


def test_a_settled_larger_session_keeps_its_place():
    cache = sessions(sessions_max=1)
    resumed(cache, opened(cache, 1, 2, 3), now_ms=100_000)
    assert opened(cache, 1, 2, now_ms=130_000).id == 0


ANSWERS = st.dictionaries(
    st.integers(0, 4),
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from([0, 0, 0, 6]), st.booleans()),
)
ROUNDS = st.lists(
    st.tuples(ANSWERS, st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4))), max_size=8
)


@pytest.mark.slow
@settings(deadline=None)
@given(ROUNDS)
def test_a_client_always_has_the_latest_state(rounds):
    cache = sessions()
    wanted = dict.fromkeys(range(5))
    sent = {}  # the twin: the state that the client has
    session = resolve(cache, 0, 0, map(want, wanted), (), 0)
    for answers, added, forgotten in [({}, set(), set()), *rounds]:
        served = kept(session)
        assert {each.partition for each in served} == set(wanted)
        for each in served:
            high, start, error, records = answers.get(each.partition, (0, 0, 0, False))
            state = (high, start, error)
            if session.update_response(
                each,
                high_watermark=high,
                log_start_offset=start,
                error_code=error,
                has_records=records and not error,
            ):
                sent[each.partition] = state
            assert sent[each.partition] == state
        for partition in forgotten:
            wanted.pop(partition, None)
            if partition not in added:
                sent.pop(partition, None)
        wanted.update(dict.fromkeys(added))
        forgets = [("t", partition) for partition in forgotten - added]
        wanted = {p: None for p in wanted if ("t", p) not in forgets}
        session = resolve(cache, session.id, session.epoch, map(want, added), forgets, 0)
        if not wanted:
            return

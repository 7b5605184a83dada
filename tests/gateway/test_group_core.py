"""Goal: a classic group behaves as Kafka's, whatever its members do and in whatever order.
Method: the pure state machine by hand, time as an argument. test_group_walk.py walks at random.
"""

import pytest

from gateway.core.deadlines import Deadlines
from gateway.core.group import Group
from gateway.core.group_members import (
    GroupMembership,
    GroupSettings,
    Joined,
    MemberRecord,
    State,
    Syncing,
)
from tests.gateway.group_driver import RANGE, Driver

BOTH = (("range", b"r"), ("sticky", b"s"))
STICKY_FIRST = (("sticky", b"s"), ("range", b"r"))


def test_the_first_rebalance_waits_for_the_initial_delay():
    driver = Driver()
    waiter = driver.join()
    driver.wait(2_999)
    assert waiter not in driver.joined
    driver.wait(1)
    assert driver.joined[waiter].generation == 1


def test_each_new_member_prolongs_the_initial_delay():
    driver = Driver()
    first = driver.join()
    driver.wait(2_000)
    second = driver.join()
    driver.wait(1_000)
    assert not driver.joined
    driver.wait(3_000)
    assert driver.joined[first].generation == driver.joined[second].generation == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout():
    driver = Driver()
    for _ in range(20):
        driver.join(rebalance_timeout_ms=7_000)
        driver.wait(500)
    assert driver.group.generation == 1
    assert driver.now_ms == 10_000


def test_only_the_leader_learns_who_is_in_the_group():
    driver = Driver()
    leader, follower = driver.join(), driver.join()
    driver.wait(10_000)
    assert [each.member_id for each in driver.joined[leader].members] == ["c-1", "c-2"]
    assert driver.joined[follower].members == ()
    assert driver.joined[follower].leader == driver.joined[leader].member_id == "c-1"


def test_assignments_are_given_out_only_when_they_are_durable():
    driver = Driver(holding=True)
    driver.join()
    driver.wait(10_000)
    waiter = driver.sync("c-1", assignments=[("c-1", b"all")])
    assert waiter not in driver.synced
    assert driver.stored[-1].members[0].assignment == b"all"
    driver.release()
    assert driver.synced[waiter].assignment == b"all"
    assert driver.group.state is State.STABLE


def test_a_leader_that_repeats_its_sync_stores_no_second_assignment():
    driver = Driver(holding=True)
    [leader] = driver.wait_for(driver.join())
    waiters = [
        driver.sync(leader.member_id, assignments=[(leader.member_id, each)])
        for each in (b"first", b"second")
    ]
    assert [each.members[0].assignment for each in driver.stored] == [b"first"]
    driver.release()
    assert [driver.synced[each].assignment for each in waiters] == [b"first"] * 2


def test_an_assignment_too_large_to_store_is_an_error_for_all_and_a_rebalance():
    driver = Driver(holding=True)
    first, second = driver.wait_for(driver.join(), driver.join())
    waiters = [driver.sync(second.member_id)]
    waiters.append(driver.sync(first.member_id, assignments=[(first.member_id, b"all")]))
    driver.refuse()
    assert [driver.synced[each].error.name for each in waiters] == ["unknown_server_error"] * 2
    assert driver.heartbeat(first.member_id) == "rebalance_in_progress"
    again = driver.wait_for(*(driver.join(each.member_id) for each in (first, second)))
    assert [each.generation for each in again] == [2, 2]


def test_an_assignment_too_large_to_store_ends_no_later_rebalance():
    driver = Driver(holding=True)
    first, second = driver.wait_for(driver.join(), driver.join())
    driver.sync(first.member_id, assignments=[(first.member_id, b"all")])
    driver.leave((second.member_id,))
    again = driver.join(first.member_id)
    assert driver.joined[again].generation == 2
    driver.refuse()
    assert driver.group.state is State.COMPLETING_REBALANCE


def test_a_static_member_too_large_to_store_is_refused():
    driver = Driver()
    driver.stable("i")
    driver.holding = True
    waiter = driver.join(instance="i")
    driver.refuse()
    assert driver.joined[waiter].error.name == "unknown_server_error"
    assert driver.group.state is State.PREPARING_REBALANCE


def test_a_group_has_a_bound_on_its_bytes():
    driver = Driver(bytes_max=10_000)
    large = (("range", bytes(6_000)),)
    [first] = driver.wait_for(driver.join(protocols=large))
    assert driver.joined[driver.join(protocols=large)].error.name == "group_max_size_reached"
    larger = driver.join(first.member_id, protocols=(("range", bytes(10_000)),))
    assert driver.joined[larger].error.name == "group_max_size_reached"
    assert driver.heartbeat(first.member_id) == "none"
    smaller = driver.join(first.member_id, protocols=(("range", bytes(1_000)),))
    assert driver.joined[smaller].error.name == "none"
    driver.join(protocols=large)
    assert len(driver.group.members) == 2


def test_ids_that_were_given_out_count_as_bytes_of_the_group():
    driver = Driver(bytes_max=10_000)
    errors = []
    for _ in range(4):
        waiter = driver.join(client_id="c" * 4_000, id_required=True)
        errors.append(driver.joined[waiter].error.name)
    assert errors == ["member_id_required"] + ["group_max_size_reached"] * 3
    driver.wait(10_000)
    assert sum(driver.group.take_byte_changes().values()) == 0


def test_a_new_member_must_come_back_with_its_id():
    driver = Driver()
    waiter = driver.join(id_required=True)
    assert driver.joined[waiter] == Joined(driver.joined[waiter].error, "c-1")
    assert driver.joined[waiter].error.name == "member_id_required"
    again = driver.join("c-1", id_required=True)
    driver.wait(10_000)
    assert driver.joined[again].generation == 1


def test_a_rebalance_waits_for_members_that_were_given_an_id():
    driver = Driver()
    (leader,) = driver.stable(None)
    driver.join(id_required=True, session_timeout_ms=6_000)
    waiter = driver.join(leader)
    assert waiter not in driver.joined
    driver.wait(6_000)
    assert driver.joined[waiter].generation == 2


def test_a_member_that_does_not_rejoin_in_time_is_dropped():
    driver = Driver()
    leader, _ = driver.stable(None, None)
    waiter = driver.join(leader, rebalance_timeout_ms=60_000)
    for _ in range(12):
        driver.heartbeat("c-2")
        driver.wait(5_000)
    assert [each.member_id for each in driver.joined[waiter].members] == [leader]


def test_a_silent_member_is_dropped_after_its_session():
    driver = Driver()
    leader, follower = driver.stable(None, None)
    driver.wait(9_000)
    assert driver.heartbeat(leader) == "none"
    driver.wait(1_000)
    assert driver.group.state is State.PREPARING_REBALANCE
    assert list(driver.group.members) == [leader]
    assert driver.heartbeat(follower) == "unknown_member_id"


def test_heartbeats_keep_a_session_and_cost_no_deadline():
    driver = Driver()
    (leader,) = driver.stable(None)
    for _ in range(100):
        driver.wait(9_999)
        assert driver.heartbeat(leader) == "none"
    assert driver.group.state is State.STABLE


def test_heartbeats_tell_of_a_rebalance():
    driver = Driver()
    leader, follower = driver.stable(None, None)
    driver.join(leader)
    assert driver.heartbeat(follower) == "rebalance_in_progress"


def test_heartbeats_are_welcome_before_the_assignment():
    driver = Driver()
    driver.join()
    driver.wait(10_000)
    assert driver.group.state is State.COMPLETING_REBALANCE
    assert driver.heartbeat("c-1") == "none"


@pytest.mark.parametrize(
    ("member_id", "generation", "instance", "error"),
    [
        ("i-1", 1, "i", "none"),
        ("i-1", 0, "i", "illegal_generation"),
        ("i-1", 2, None, "illegal_generation"),
        ("other", 1, "i", "fenced_instance_id"),
        ("other", 1, None, "unknown_member_id"),
        ("i-1", 1, "other", "unknown_member_id"),
        ("", -1, None, "unknown_member_id"),
    ],
)
def test_strangers_and_the_past_are_refused(member_id, generation, instance, error):
    driver = Driver()
    driver.stable("i")
    assert driver.heartbeat(member_id, generation, instance) == error
    assert driver.commit(member_id, generation, instance) == error
    waiter = driver.sync(member_id, generation, instance_id=instance)
    assert driver.synced[waiter].error.name == error
    if generation == 1 and error != "none":
        joined = driver.joined[driver.join(member_id, instance)]
        assert joined.error.name == error


def test_the_protocol_is_voted_among_those_all_know():
    driver = Driver()
    waiters = [
        driver.join(protocols=STICKY_FIRST),
        driver.join(protocols=STICKY_FIRST),
        driver.join(protocols=BOTH),
    ]
    assert driver.wait_for(*waiters)[0].protocol == "sticky"
    driver.join(protocols=RANGE)
    for waiter in waiters:
        driver.join(driver.joined[waiter].member_id, protocols=STICKY_FIRST)
    assert driver.group.protocol == "range"


@pytest.mark.parametrize(
    "more",
    [
        {"protocols": (("other", b""),)},
        {"protocol_type": "connect"},
        {"protocols": ()},
    ],
)
def test_a_member_with_nothing_in_common_is_refused(more):
    driver = Driver()
    driver.stable(None)
    assert driver.joined[driver.join(**more)].error.name == "inconsistent_group_protocol"


@pytest.mark.parametrize("more", [{"protocols": ()}, {"protocol_type": ""}])
def test_an_empty_group_wants_a_protocol_too(more):
    driver = Driver()
    assert driver.joined[driver.join(**more)].error.name == "inconsistent_group_protocol"


def test_a_follower_that_asks_again_gets_the_current_generation():
    driver = Driver()
    _, follower = driver.stable(None, None)
    waiter = driver.join(follower)
    assert (driver.joined[waiter].generation, driver.group.state) == (1, State.STABLE)


def test_a_leader_that_rejoins_starts_a_rebalance():
    driver = Driver()
    (leader,) = driver.stable(None)
    assert driver.joined[driver.join(leader)].generation == 2


def test_a_rejoin_before_the_assignment_repeats_the_answer():
    driver = Driver()
    first = driver.join()
    driver.wait(10_000)
    assert driver.joined[driver.join("c-1")] == driver.joined[first]


def test_changed_metadata_starts_a_rebalance():
    driver = Driver()
    leader, follower = driver.stable(None, None)
    driver.join(follower, protocols=(("range", b"other topics"),))
    assert driver.heartbeat(leader) == "rebalance_in_progress"


def test_waiting_syncs_are_told_of_a_new_rebalance():
    driver = Driver()
    driver.join()
    driver.join()
    driver.wait(10_000)
    waiter = driver.sync("c-2")
    driver.join()
    assert driver.synced[waiter].error.name == "rebalance_in_progress"


def test_members_of_a_group_that_has_changed_its_protocol_have_to_join_again_when_they_sync():
    own = ("c-1", None, "c", "/h", 10_000, 60_000, RANGE, b"")
    stored = GroupMembership(3, "consumer", None, "c-1", (MemberRecord(*own),))
    group = Group.restore(stored, GroupSettings(), 0)
    (answer,) = group.sync(Syncing("c-1", 3, None, "consumer", "range"), "waiter", 0)
    assert answer.synced.error.name == "rebalance_in_progress"


def test_an_assignment_that_became_durable_too_late_is_not_given_out():
    driver = Driver(holding=True)
    driver.join()
    driver.wait(10_000)
    late = driver.sync("c-1", assignments=[("c-1", b"old")])
    driver.join()
    assert driver.synced[late].error.name == "rebalance_in_progress"
    driver.join("c-1")
    assert driver.group.generation == 2
    driver.sync("c-1", assignments=[("c-1", b"new")])
    driver.release()
    assert driver.group.state is State.COMPLETING_REBALANCE
    driver.release()
    assert driver.group.members["c-1"].assignment == b"new"


def test_members_that_never_sync_are_dropped_after_the_rebalance_timeout():
    driver = Driver()
    first = driver.join()
    driver.join()
    driver.wait(10_000)
    waiter = driver.sync(driver.joined[first].member_id)  # stable; the other never syncs
    assert driver.synced[waiter].error.name == "none"
    for _ in range(12):
        driver.heartbeat("c-1", 1)
        driver.heartbeat("c-2", 1)
        driver.wait(5_000)
    assert list(driver.group.members) == ["c-1"]
    assert driver.group.state is State.PREPARING_REBALANCE


def test_a_member_that_waits_for_an_answer_outlives_its_session():
    driver = Driver()
    leader, _ = driver.stable(None, None)
    waiter = driver.join(leader)
    for _ in range(11):
        driver.wait(5_000)
        driver.heartbeat("c-2", 1)
    assert leader in driver.group.members
    driver.wait(10_000)
    assert driver.joined[waiter].generation == 2


def test_a_new_member_that_waits_for_ever_is_dropped():
    driver = Driver(new_member_timeout_ms=20_000)
    leader, _ = driver.stable(None, None)
    waiter = driver.join(rebalance_timeout_ms=600_000)
    for _ in range(5):
        driver.wait(5_000)
        driver.heartbeat(leader, 1)
        driver.heartbeat("c-2", 1)
    assert driver.joined[waiter].error.name == "unknown_member_id"


def test_the_last_member_leaves_an_empty_group_that_is_stored():
    driver = Driver()
    (leader,) = driver.stable(None)
    assert driver.leave((leader,)) == ["none"]
    assert driver.group.state is State.EMPTY
    assert driver.stored[-1] == (2, "consumer", None, None, ())


def test_leaving_members_each_get_a_code():
    driver = Driver()
    _, static, _ = driver.stable(None, "i", "j")
    errors = driver.leave((static, "i"), ("", "j"), ("", "k"), ("x",), (static, "i"))
    assert errors == ["none", "none", *["unknown_member_id"] * 3]
    assert list(driver.group.members) == ["c-1"]
    assert driver.leave(("wrong", "i")) == ["unknown_member_id"]


def test_a_pending_member_can_leave():
    driver = Driver()
    driver.join(id_required=True)
    assert driver.leave(("c-1",)) == ["none"]
    assert driver.group.idle


def test_a_restarted_static_member_rebalances_nobody():
    driver = Driver()
    leader, static = driver.stable("l", "f")
    waiter = driver.join(instance="f", protocols=(("range", b"it owns nothing yet"),))
    joined = driver.joined[waiter]
    assert (joined.error.name, joined.generation, joined.leader) == ("none", 1, leader)
    assert driver.group.state is State.STABLE
    synced = driver.synced[driver.sync(joined.member_id, instance_id="f")]
    assert synced.assignment == static.encode()
    assert driver.heartbeat(static, 1, "f") == "fenced_instance_id"
    assert driver.stored[-1].members[1].member_id == joined.member_id


def not_synced(driver):
    """Two static members have joined, and wait to be assigned; their ids, the leader first."""
    waiters = [driver.join(instance=instance) for instance in "lf"]
    return [joined.member_id for joined in driver.wait_for(*waiters)]


def test_a_static_member_that_restarts_and_never_syncs_is_dropped_at_the_deadline_of_the_sync():
    driver = Driver()
    leader, _ = not_synced(driver)
    driver.sync(leader)
    again = driver.joined[driver.join(instance="f")].member_id
    for _ in range(8):
        assert {leader, again} == driver.group.members.keys()
        driver.wait(7_000)
        driver.heartbeat(leader, 1, "l")
        driver.heartbeat(again, 1, "f")
    driver.wait(5_000)
    assert driver.group.members.keys() == {leader}


def test_a_time_without_the_coordinator_does_not_count_against_the_sync():
    driver = Driver()
    members = not_synced(driver)
    driver.now_ms += 59_000
    driver.group.extend_sessions(driver.now_ms)
    driver.wait(9_000)
    assert driver.group.state is State.COMPLETING_REBALANCE
    assert driver.group.members.keys() == set(members)


def test_a_restarted_static_leader_is_told_to_skip_the_assignment():
    driver = Driver()
    driver.stable("l", "f")
    joined = driver.joined[driver.join(instance="l")]
    assert joined.skip_assignment
    assert joined.leader == joined.member_id
    assert [each.instance_id for each in joined.members] == ["l", "f"]


def test_an_old_static_leader_is_told_that_another_leads():
    driver = Driver()
    leader, _ = driver.stable("l", "f")
    joined = driver.joined[driver.join(instance="l", skip_supported=False)]
    assert (joined.skip_assignment, joined.leader, joined.members) == (False, leader, ())


def test_a_static_member_that_changes_the_protocol_starts_a_rebalance():
    driver = Driver()
    one = driver.join(instance="a", protocols=BOTH)
    two = driver.join(instance="b", protocols=BOTH)
    driver.wait(20_000)
    driver.sync(driver.joined[one].member_id)
    driver.sync(driver.joined[two].member_id)
    driver.join(instance="b", protocols=(("sticky", b""),))
    assert driver.group.state is State.PREPARING_REBALANCE


def test_a_static_member_that_restarts_while_it_waits_fences_itself():
    driver = Driver()
    first = driver.join(instance="i")
    second = driver.join(instance="i")
    assert driver.joined[first].error.name == "fenced_instance_id"
    driver.wait(10_000)
    assert driver.joined[second].generation == 1
    waiting = driver.join(instance="f")
    driver.join(driver.joined[second].member_id, "i")
    sync = driver.sync(driver.joined[waiting].member_id)
    driver.join(instance="f")
    assert driver.synced[sync].error.name == "fenced_instance_id"
    assert driver.group.state is State.PREPARING_REBALANCE


def test_an_absent_static_member_stays_through_a_rebalance():
    driver = Driver()
    timeouts = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 7_000}
    leader, absent = (
        each.member_id
        for each in driver.wait_for(
            driver.join(instance="l", **timeouts), driver.join(instance="f", **timeouts)
        )
    )
    driver.sync(leader, assignments=[(leader, b"1"), (absent, b"2")])
    driver.sync(absent)
    waiter = driver.join(leader, "l", **timeouts)
    driver.wait(7_000)
    assert [each.member_id for each in driver.joined[waiter].members] == [leader, absent]


def test_a_rebalance_that_nobody_joins_waits_until_sessions_end():
    driver = Driver()
    timeouts = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 7_000}
    static = driver.join(instance="s", **timeouts)
    driver.wait_for(static)
    driver.sync("s-1")
    driver.join(**timeouts)
    driver.leave(("c-2",))
    driver.wait(14_000)
    assert (driver.group.generation, driver.group.state) == (1, State.PREPARING_REBALANCE)
    driver.wait(16_000)
    assert (driver.group.generation, driver.group.state) == (2, State.EMPTY)


def test_a_full_group_refuses_new_members():
    driver = Driver(members_max=2)
    driver.stable(None, None)
    assert driver.joined[driver.join()].error.name == "group_max_size_reached"


def test_a_group_that_fills_up_while_it_rebalances_keeps_those_who_came_first():
    driver = Driver(members_max=2)
    waiters = [driver.join() for _ in range(3)]
    driver.wait_for(*waiters)
    assert driver.joined[waiters[2]].error.name == "group_max_size_reached"
    assert len(driver.group.members) == 2


def test_simple_consumers_commit_only_while_the_group_is_empty():
    driver = Driver()
    assert driver.commit() == "none"
    driver.stable(None)
    assert driver.commit() == "unknown_member_id"


def test_a_commit_waits_for_the_assignment():
    driver = Driver()
    driver.join()
    driver.wait(10_000)
    assert driver.commit("c-1", 1) == "rebalance_in_progress"


def test_a_commit_during_a_rebalance_is_accepted_and_keeps_the_session():
    driver = Driver()
    leader, follower = driver.stable(None, None)
    driver.join(leader)
    for _ in range(5):
        driver.wait(9_000)
        assert driver.commit(follower, 1) == "none"


def test_an_abandoned_group_answers_everybody():
    driver = Driver()
    leader, _ = driver.stable(None, None)
    waiter = driver.join(leader)
    from kio.schema.errors import ErrorCode

    driver.run(driver.group.abandon(ErrorCode.not_coordinator))
    assert driver.joined[waiter].error.name == "not_coordinator"
    assert driver.heartbeat(leader) == "coordinator_not_available"
    assert driver.joined[driver.join()].error.name == "coordinator_not_available"
    assert driver.commit() == "coordinator_not_available"


def test_a_restored_group_goes_on_where_it_was():
    driver = Driver()
    leader, follower = driver.stable("l", None)
    restored = Driver()
    restored.now_ms = 50
    restored.group = Group.restore(driver.group.membership(), GroupSettings(), 50)
    assert restored.group.membership() == driver.group.membership()
    assert restored.heartbeat(follower, 1) == "none"
    assert restored.synced[restored.sync(leader, instance_id="l")].assignment == leader.encode()
    restored.wait(10_000)
    assert restored.group.members == {}
    assert restored.stored[-1].generation == 2


def test_deadlines_fall_due_once_each_in_order():
    deadlines = Deadlines()
    for key, at in (("a", 5), ("b", 3), ("c", 9), ("a", 7), ("c", 1), ("d", 4)):
        deadlines.set(key, at)
    deadlines.clear("d")
    assert deadlines.next() == 1
    assert deadlines.due(6) == ["c", "b"]
    assert deadlines.due(6) == []
    assert deadlines.due(7) == ["a"]
    assert deadlines.next() is None
    assert len(deadlines) == 0

"""Goal: the records, the times and the expressions of a group are what its configs and members say.

Method: the pure parts alone, with the limits of a broker of Kafka.
"""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import GroupLimits
from gateway.core.consumer_members import (
    ConsumerMember,
    MemberState,
    Now,
    RecordKey,
    RecordKind,
)
from gateway.groups.current_pb2 import CurrentAssignment, HeldPartitions
from gateway.groups.stored_consumer_group import (
    decode_note,
    decode_notes,
    encode_changes,
    has_members,
)
from gateway.groups.topic_patterns import CHARACTERS_MAX, pattern_fault, resolve
from gateway.settings.group_configs import bounds_of
from gateway.settings.group_timing import standard_timing, wanted_timing
from ledger.errors import CorruptFormat
from ledger.sealed import seal
from tests.gateway.consumer_rig import TIMING, Client, FakeTopics, beat, fresh_group, settle

LIMITS = GroupLimits()


def stored():
    topics = FakeTopics()
    topics.make("t", 5)
    group = fresh_group()
    for name in ("a", "b"):
        beat(group, Client(name), topics)
    return group, encode_changes(group.roster.records())


async def test_every_record_is_read_as_it_was_written():
    group, notes = stored()
    found = await decode_notes(notes, "g")
    written = group.roster.records()
    assert found.keys() == written.keys()
    again = fresh_group().restore("g", group._settings, found, 0, 45_000)
    assert again.roster.records() == written
    assert has_members(notes)
    assert not has_members({"group": b""})


def current_note(*, state=0, topic_id=bytes(16)):
    held = HeldPartitions(topic_id=topic_id, epoch=3, partitions=[1, 2])
    return CurrentAssignment(epoch=4, state=state, assigned=[held]).SerializeToString()


epochs = st.dictionaries(
    st.uuids(),
    st.dictionaries(st.integers(0, 2**31 - 1), st.integers(-2, 2**31 - 1), min_size=1, max_size=6),
    max_size=3,
)
currents = st.builds(
    ConsumerMember,
    member_id=st.text(max_size=40),
    epoch=st.integers(-2, 2**31 - 1),
    previous_epoch=st.integers(-2, 2**31 - 1),
    state=st.sampled_from(MemberState),
    assigned=epochs,
    revoking=epochs,
)


@given(currents)
def test_a_current_assignment_is_read_as_it_was_written(member):
    key = RecordKey(RecordKind.CURRENT, member.member_id)
    ((text, note),) = encode_changes({key: member}).items()
    assert decode_note(text, note, "g") == (key, member)


def test_a_current_assignment_takes_few_bytes():
    member = ConsumerMember(member_id="m", epoch=900, assigned={UUID(int=5): {700: 600}})
    (note,) = encode_changes({RecordKey(RecordKind.CURRENT, "m"): member}).values()
    assert len(note) <= 36


def test_a_current_assignment_as_a_sealed_document_is_read_too():
    topic = UUID(int=5)
    fields = {"epoch": 4, "previous_epoch": 3, "state": 1, "revoking": {}}
    note = seal({**fields, "assigned": {topic.hex: {"2": [0, 7], "3": [1]}}})
    _, member = decode_note("current/a", note, "g")
    assert (member.epoch, member.previous_epoch, member.state) == (4, 3, 1)
    assert member.assigned == {topic: {0: 2, 7: 2, 1: 3}}


@pytest.mark.parametrize(
    ("key", "note"),
    [
        ("group", seal({"epoch": 1})),
        ("strange/a", seal({})),
        ("target/a", seal({"partitions": {"no-id": [1]}})),
        ("current/a", seal({"epoch": 1, "state": 9})),
        ("current/a", b""),
        ("current/a", current_note()[:-1]),
        ("current/a", current_note(state=9)),
        ("current/a", current_note(topic_id=b"short")),
        ("member/a", b"1 00000000 {}"),
    ],
)
async def test_a_damaged_record_is_refused(key, note):
    with pytest.raises(CorruptFormat):
        await decode_notes({key: note}, "g")


def timing(own, broker):
    return wanted_timing(own, broker, LIMITS, bounds_of(LIMITS))


def test_the_configs_of_a_group_come_before_those_of_the_broker():
    broker = {"group.consumer.assignment.interval.ms": "7"}
    own = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "6000"}
    assert timing({}, {}) == standard_timing(LIMITS)
    assert timing({}, broker).assignment_interval_ms == 7
    assert timing(own, broker)[:3] == (50_000, 6_000, 7)
    nine = {"consumer.assignment.interval.ms": "9"}
    assert timing(nine, broker).assignment_interval_ms == 9


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("a.*", None),
        ("[", "missing closing ]"),
        ("(", "missing closing )"),
        ("*", "missing argument to repetition operator"),
        ("(?<=a)", "invalid named capture"),
        ("x" * (CHARACTERS_MAX + 1), "it has 1025 characters, and at most 1024 are allowed"),
        (r"\pN" * 5, "it has 5 Unicode classes, and at most 4 are allowed"),
        ("a{2}" * 17, "it has 17 counted repetitions, and at most 16 are allowed"),
    ],
)
def test_a_bad_expression_gets_the_text_of_kafka(pattern, fault):
    assert pattern_fault(pattern) == fault


async def test_a_topic_that_the_client_may_not_describe_matches_nothing():
    names = [f"t{number}" for number in range(1_200)] + ["other"]
    found = await resolve(["t1.?", "[", "other"], names, lambda name: name != "t11")
    expected = {f"t1{digit}" for digit in (*"023456789", "")}
    assert found == {"t1.?": expected, "[": frozenset(), "other": {"other"}}


def test_rebalance_timeouts_begin_anew_after_a_time_without_heartbeats():
    topics = FakeTopics()
    topics.make("t", 4)
    group = fresh_group()
    (owner,) = settle(group, [Client("a")], topics)
    beat(group, Client("b"), topics)
    beat(group, owner, topics)
    assert group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    group.extend_sessions(100_000, 45_000)
    assert group.tick(Now(100_000, topics, TIMING)) == {}
    assert group.deadline_ms == 145_000
    group.extend_sessions(159_000, 45_000)  # as long as it does not revoke, it has 60 s
    group.tick(Now(219_000, topics, TIMING))
    assert "a" not in group.members

"""Goal: what a seek remembers leads back, what users write of times and offsets is read, and a
group's history is shown as it happened.

Method: Hypothesis for what is remembered; a log-segment store on simulated bookies for the history.
"""

import asyncio
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.client import AdminError
from gateway.admin.group_history import Past, last_seeks, positions_then, read_past, rows
from gateway.admin.group_seek import (
    METADATA_SIZE_MAX,
    Scope,
    fits_undo,
    remember,
    remembered,
    replaced_by,
)
from gateway.admin.groups import Committed
from gateway.admin.notation import (
    SeekTarget,
    read_duration,
    read_moment,
    read_offsets,
    read_target,
    read_time,
    read_topics,
    write_time,
)
from gateway.core.group_members import GroupMembership, MemberRecord
from gateway.groups.stored_membership import StoredMembership, encode_membership
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.store import OffsetChange, SubscriptionHistory
from tests.gateway.group_world import World
from tests.sim.loop import simulate
from tests.subscriptions.log_world import LogWorld

commits = st.builds(
    Committed, st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1), st.text(max_size=200)
)


@given(st.none() | commits, st.lists(st.integers(0, 9), max_size=5))
def test_seeks_are_undone_one_after_the_other_down_to_what_was_there(first, seeks):
    stack = [first]
    for number, offset in enumerate(seeks):
        stack.append(Committed(offset, -1, remember(stack[-1], number)))
    while len(stack) > 1:
        seek = stack.pop()
        assert replaced_by(seek.metadata) == stack[-1]


@pytest.mark.slow
@given(st.text(max_size=2 * METADATA_SIZE_MAX), st.integers(1, 60))
def test_what_is_remembered_fits_and_the_newest_seek_can_be_undone(metadata, seeks):
    current = Committed(5, 1, metadata)
    for offset in range(seeks):
        before, current = current, Committed(offset, -1, remember(current, 1_700_000_000_000))
        assert len(current.metadata) <= METADATA_SIZE_MAX
        assert replaced_by(current.metadata).offset == before.offset


@pytest.mark.parametrize("size", [0, 4000, 4050, 4096])
def test_a_commit_whose_metadata_an_undo_would_lose_is_told_apart(size):
    was = Committed(7, 3, "m" * size)
    back = replaced_by(remember(was, 1_700_000_000_000))
    assert fits_undo(was) == (back == was)
    assert fits_undo(was) == (size <= 4000)


@given(st.text())
def test_what_others_write_as_metadata_is_no_seek(text):
    assert remembered(text) is None
    assert remembered("gateway-seek:" + text) is None


def test_topics_are_read_as_kafkas_tool_reads_them():
    assert read_topics(["a", "b:0,3", "b:4"]) == {"a": [], "b": [0, 3, 4]}
    for word in ("", ":1", "a:", "a:x", "a:1,", "a:-1"):
        with pytest.raises(ValueError, match="is not a topic"):
            read_topics([word])


def test_times_without_a_zone_are_utc():
    assert read_time("1970-01-02") == 86_400_000
    assert read_time("1970-01-01T01:00:00.250+01:00") == 250
    assert write_time(250) == "1970-01-01T00:00:00.250Z"
    assert read_time(write_time(1_777_636_800_123)) == 1_777_636_800_123


@pytest.mark.parametrize(
    ("word", "duration_ms"),
    [
        ("90s", 90_000),
        ("2h", 7_200_000),
        ("1.5h", 5_400_000),
        ("7d", 604_800_000),
        ("250ms", 250),
        ("P1DT2H", 93_600_000),
        ("PT1H30M", 5_400_000),
        ("PT0.5S", 500),
    ],
)
def test_durations_are_read_short_and_as_iso_8601_has_them(word, duration_ms):
    assert read_duration(word) == duration_ms
    assert read_moment(word, 10**12) == 10**12 - duration_ms


@pytest.mark.parametrize("word", ["", "P", "PT", "1", "h", "P1H", "PT1D", "-1h", "1.5.5h", "P1DT"])
def test_what_is_no_duration_is_refused_with_an_example(word):
    with pytest.raises(ValueError, match="is not a duration, for example"):
        read_duration(word)


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("earliest", SeekTarget("earliest")),
        ("latest", SeekTarget("latest")),
        ("current", SeekTarget("current")),
        ("0", SeekTarget("offset", 0)),
        ("42", SeekTarget("offset", 42)),
        ("+10", SeekTarget("shift", 10)),
        ("-10", SeekTarget("shift", -10)),
        ("1970-01-02", SeekTarget("time", 86_400_000)),
        ("1970-01-01T01:00:00.250+01:00", SeekTarget("time", 250)),
        ("1h", SeekTarget("time", 10**12 - 3_600_000)),
        ("-1h", SeekTarget("time", 10**12 - 3_600_000)),
        ("P1DT2H", SeekTarget("time", 10**12 - 93_600_000)),
        ("30000d", SeekTarget("time", 0)),
    ],
)
def test_a_position_is_a_word_an_offset_a_shift_a_time_or_a_duration_back(word, target):
    assert read_target(word, 10**12) == target


@pytest.mark.parametrize(
    "word", ["", "noon", "Earliest", "1y", "+1h", "--1h", "4.5", "end", "٧", "-1970-01-02"]
)
def test_what_is_no_position_is_refused_with_all_that_is_one(word):
    with pytest.raises(ValueError, match="is not a position: pass earliest, latest, current, an"):
        read_target(word, 10**12)


@pytest.mark.parametrize("read", [read_target, read_moment])
@pytest.mark.parametrize("word", ["9" * 400 + "d", "9" * 15 + "h", "P" + "9" * 400 + "D"])
def test_a_duration_that_no_clock_counts_is_refused(read, word):
    with pytest.raises(ValueError, match=r"\d+[dhD]' is longer than 3650000d"):
        read(word, 10**12)


@pytest.mark.parametrize(
    "text",
    ["", "t,0", "t,0,x", "t,-1,3", "other,t,0,3", '{"offsets": 3}', "[1]", "[{}]", '{"a": 1}'],
)
def test_a_file_that_holds_no_offsets_is_refused(text):
    with pytest.raises(ValueError, match=r"offset|JSON"):
        read_offsets(text, "g")


# History

TOPIC, GONE = UUID(int=1), UUID(int=2)
KEY = TopicIdPartition(TOPIC, 0)


def past(*changes, since_ms=1_000, offsets=None):
    names = {TOPIC: "t"}
    return Past("g", SubscriptionHistory(since_ms, offsets or {}, b"", list(changes)), names.get)


def change(time_ms, offset, key=KEY, metadata=""):
    position = None if offset is None else CommittedOffset(offset=offset, metadata=metadata)
    return OffsetChange(time_ms, key, position)


def test_a_history_shows_each_commit_with_its_time_and_how_far_it_went():
    shown = rows(
        past(
            change(2_000, 5),
            change(3_000, 3),
            change(4_000, None),
            offsets={KEY: CommittedOffset(offset=4)},
        ),
        Scope(),
        0,
        0,
    )
    assert [(row["time"][-7:], row["offset"], row["change"], row["note"]) for row in shown] == [
        ("02.000Z", 5, 1, None),
        ("03.000Z", 3, -2, None),
        ("04.000Z", None, None, "removed"),
    ]


def test_a_history_names_seeks_rebalances_and_deleted_topics():
    member = MemberRecord("m", None, "c", "/h", 1, 1, (), b"")
    note = encode_membership(
        StoredMembership(GroupMembership(3, "consumer", "range", "m", (member,)))
    )
    shown = rows(
        past(
            change(2_000, 5, metadata=remember(None, 0)),
            OffsetChange(3_000, None, note=note),
            change(4_000, 5, TopicIdPartition(GONE, 1)),
        ),
        Scope(),
        0,
        0,
    )
    assert [row["note"] for row in shown] == [
        "seek",
        "generation 3: 1 member",
        "the topic is deleted",
    ]
    assert shown[2]["topic"] == str(GONE)


def test_a_history_is_cut_by_time_by_partition_and_by_number():
    found = past(*(change(1_000 * n, n, TopicIdPartition(TOPIC, n % 2)) for n in range(2, 12)))
    assert [row["offset"] for row in rows(found, Scope(), 9_000, 0)] == [9, 10, 11]
    assert [row["offset"] for row in rows(found, Scope({"t": [1]}), 8_000, 0)] == [9, 11]
    assert [row["offset"] for row in rows(found, Scope(), 0, 2)] == [10, 11]
    assert rows(found, Scope({"other": []}), 0, 0) == []


def test_positions_at_a_time_are_those_of_the_last_commit_before_it():
    found = past(change(2_000, 5), change(3_000, 3), change(4_000, None))
    assert positions_then(found, 2_500) == {("t", 0): Committed(5)}
    assert positions_then(found, 3_000) == {("t", 0): Committed(3)}
    assert positions_then(found, 9_000) == {}
    with pytest.raises(AdminError, match=r"begins at 1970-01-01T00:00:01\.000Z; pass a later --at"):
        positions_then(found, 999)


def test_the_last_seek_is_found_although_consumers_committed_since():
    seek = remember(Committed(7), 0)
    found = past(
        change(2_000, 5, metadata=remember(None, 0)),
        change(3_000, 1, metadata=seek),
        change(4_000, 2),
    )
    assert last_seeks(found, Scope()) == {("t", 0): seek}
    assert last_seeks(found, Scope({"t": [1]})) == {}


class Storage:
    """What the commands read from, on a simulated cluster."""

    def __init__(self, process):
        self.store = process.metadata
        self.client = process.client
        self.clock = process.clock


def kept(enabled, group="g"):
    """The past of a group that committed 1, 2, 3 through a store of this kind."""

    async def main():
        world = LogWorld()
        gateway = World(tree=world.tree)
        gateway.store = world.store(enabled=enabled)
        async with gateway:
            for offset in (1, 2, 3):
                assert await gateway.commit("g", offset) == "none"
            await asyncio.sleep(100)  # until the segment is closed: others see all of it then
        return await read_past(Storage(world.process()), group)

    return simulate(main())


def test_the_history_of_a_group_is_read_from_where_it_is_kept():
    found = kept(enabled=True)
    assert [(row["topic"], row["offset"]) for row in rows(found, Scope(), 0, 0)] == [
        ("t", 1),
        ("t", 2),
        ("t", 3),
    ]


def test_a_store_without_a_history_says_which_setting_keeps_one():
    with pytest.raises(AdminError, match="--log-segment-based-subscriptions-store-enabled"):
        kept(enabled=False)


def test_a_group_that_nobody_made_has_no_history():
    with pytest.raises(AdminError, match="does not exist"):
        kept(enabled=True, group="other")

"""Goal: a change writes the members that it moves, however many there are, and a takeover knows
the epochs that the others were shown.

Method: the pure core with modelled members, and the records of each change as a store has them.
"""

import pytest

from gateway.core.consumer_group import ConsumerGroup
from gateway.core.consumer_members import (
    ConsumerHeartbeat,
    ConsumerRefused,
    ConsumerSettings,
    ConsumerTiming,
    Now,
    RecordKey,
    RecordKind,
)
from gateway.core.group_members import Joining
from gateway.groups.stored_consumer_group import decode_notes, encode_changes
from tests.gateway.consumer_rig import Client, FakeTopics, fresh_group
from tests.gateway.subscription_bytes import subscription
from tests.sim.loop import simulate

TIMING = ConsumerTiming(assignment_interval_ms=1_000)


class Stored:
    """A group, its members and its records. A target is made once for each `later`."""

    def __init__(self, members, partitions):
        self.topics = FakeTopics()
        self.topics.make("t", partitions)
        self.now_ms = 0
        self.group = fresh_group()
        self.notes = {}
        self.written = 0  # bytes
        self.clients = {}
        for number in range(members):
            self.join(f"{number:036}")
        self.rest()

    @property
    def now(self):
        return Now(self.now_ms, self.topics, TIMING)

    def store(self, changes):
        encoded = encode_changes(changes)
        self.written += sum(len(each or b"") for each in encoded.values())
        self.notes |= encoded
        self.notes = {key: each for key, each in self.notes.items() if each is not None}

    def join(self, name, **words):
        self.clients[name] = Client(name, **words)
        self.beat(name)

    def beat(self, name, *, lost=False):
        client = self.clients[name]
        outcome = self.group.heartbeat(client.request(), self.now)
        self.store(outcome.changes)
        if not lost:
            client = client.taken(outcome.answer)
            self.clients[name] = client.revoked() if client.pending else client

    def leave(self, name):
        leaving = ConsumerHeartbeat(member_id=name, epoch=-1)
        self.store(self.group.heartbeat(leaving, self.now).changes)
        del self.clients[name]

    def later(self):
        self.now_ms += 2_000

    def rest(self):
        """Let all members come to the target of now."""
        self.later()
        while self.group.state.value != "Stable":
            for name in self.clients:
                self.beat(name)

    def records(self):
        return simulate(decode_notes(self.notes, "g"))

    def epoch_of(self, name):
        """Return the epoch in the record of a member."""
        return self.records()[RecordKey(RecordKind.CURRENT, name)].epoch

    def take_over(self):
        self.group = ConsumerGroup.restore(
            "g", ConsumerSettings(), self.records(), self.now_ms, 45_000
        )


def written_by(change, members):
    """Return the bytes of a change until the group is at rest."""
    stored = Stored(members, members + 2)
    before = stored.written
    change(stored)
    stored.rest()
    return stored.written - before


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda stored: stored.join("z" * 36), id="join"),
        pytest.param(lambda stored: stored.leave(next(iter(stored.clients))), id="leave"),
    ],
)
def test_the_bytes_of_a_change_do_not_grow_with_the_members(change):
    few, some, many = (written_by(change, members) for members in (10, 100, 1_000))
    assert max(some, many) < few + 100  # numbers of more digits


def moved():
    """Return a group of three members, two of which have come to an epoch without a record."""
    stored = Stored(3, 4)
    stored.join("new")
    stored.rest()
    behind = [
        name for name, client in stored.clients.items() if stored.epoch_of(name) < client.epoch
    ]
    assert len(behind) == 2
    return stored, behind


def test_a_takeover_accepts_the_epochs_that_members_were_shown():
    stored, _ = moved()
    shown = {name: client.epoch for name, client in stored.clients.items()}
    for _ in range(2):
        stored.take_over()
        assert stored.group.state.value == "Stable"
        for name, client in stored.clients.items():
            stored.group.check_fetch(name, client.epoch)
            stored.beat(name)
            assert stored.clients[name].epoch == shown[name]


def test_a_takeover_accepts_a_member_that_was_not_shown_the_last_epoch():
    stored = Stored(3, 4)
    epoch = stored.group.epoch
    stored.join("new")
    stored.later()
    stored.beat("new")
    for _ in range(2):
        stored.take_over()
        for name in list(stored.clients):
            stored.group.check_fetch(name, stored.clients[name].epoch)
            stored.beat(name, lost=True)
        assert {each.epoch for each in stored.clients.values()} >= {epoch}
    stored.rest()
    assert {each.epoch for each in stored.clients.values()} == {stored.group.epoch}


def test_a_member_repeats_its_first_heartbeat_after_a_takeover():
    stored, behind = moved()
    stored.join("last")
    stored.later()
    stored.beat("last")
    stored.take_over()
    name = behind[0]
    assert stored.epoch_of(name) < stored.clients[name].epoch < stored.group.epoch
    stored.beat(name, lost=True)
    stored.beat(name)
    assert stored.clients[name].epoch == stored.group.epoch


def test_a_member_repeats_its_first_heartbeat_after_a_takeover_which_raised_its_epoch():
    stored = Stored(3, 4)
    name = list(stored.clients)[-1]  # it keeps its one partition
    stored.join("new")
    stored.later()
    stored.beat("new")
    stored.leave("new")
    stored.later()
    stored.take_over()
    stored.beat(name, lost=True)
    assert stored.group.members[name].epoch > stored.clients[name].epoch + 1
    stored.beat(name)
    assert stored.clients[name].epoch == stored.group.members[name].epoch


def test_a_member_that_must_revoke_after_a_takeover_repeats_its_heartbeat():
    stored = Stored(1, 4)
    (name,) = stored.clients
    stored.topics.make("u", 1)
    stored.join("of another topic", topics=frozenset({"u"}))
    stored.later()
    stored.beat("of another topic")
    stored.take_over()
    stored.join("new")
    stored.later()
    stored.beat("new")
    stored.beat(name, lost=True)
    stored.beat(name)
    stored.rest()
    assert {len(stored.clients[each].owned) for each in (name, "new")} == {2}


def test_a_static_member_stores_each_epoch():
    """An earlier release would fence it, and refuse its place to itself until its session ends."""
    stored = Stored(1, 4)
    stored.join("static", instance="i")
    stored.rest()
    stored.topics.make("u", 1)
    stored.join("of another topic", topics=frozenset({"u"}))
    stored.rest()
    assert stored.epoch_of("static") == stored.clients["static"].epoch == stored.group.epoch


def beat_in(stored, name, epoch):
    request = ConsumerHeartbeat(member_id=name, epoch=epoch)
    return stored.group.heartbeat(request, stored.now)


def test_a_takeover_refuses_epochs_that_a_member_was_never_shown():
    stored, behind = moved()
    lowest = stored.epoch_of(behind[0])
    for epoch in (lowest - 1, stored.group.epoch + 1):
        stored.take_over()
        with pytest.raises(ConsumerRefused):
            beat_in(stored, behind[0], epoch)
        with pytest.raises(ConsumerRefused):
            stored.group.check_fetch(behind[0], epoch)


def test_after_its_first_heartbeat_a_member_is_held_to_its_epoch():
    stored, behind = moved()
    lowest = stored.epoch_of(behind[0])
    stored.take_over()
    stored.beat(behind[0])
    with pytest.raises(ConsumerRefused):
        beat_in(stored, behind[0], lowest)
    with pytest.raises(ConsumerRefused):
        stored.group.check_fetch(behind[0], lowest)


@pytest.mark.parametrize("heard", [True, False])
def test_a_new_target_stores_the_epochs_that_it_would_hide(heard):
    """Two takeovers, and a target between them that moves all members."""
    stored, behind = moved()
    stored.take_over()
    if heard:
        for name in stored.clients:
            stored.beat(name)
    stored.topics.grow("t", 12)
    stored.later()
    stored.join("last")
    stored.beat("last")
    assert stored.group.assignment_epoch == stored.group.epoch
    stored.take_over()
    for name in behind:
        assert stored.group.members[name].epoch >= stored.clients[name].epoch
        stored.beat(name)
    stored.rest()
    assert sum(len(each.owned) for each in stored.clients.values()) == 12


def test_a_new_target_stores_the_lowest_epoch_of_a_member_that_was_not_heard():
    stored = Stored(3, 4)
    stored.join("new")
    stored.later()
    stored.beat("new")  # the others know the epoch before
    stored.take_over()
    stored.topics.grow("t", 12)
    stored.later()
    stored.beat("new")
    stored.take_over()
    for name, client in stored.clients.items():
        assert beat_in(stored, name, client.epoch).answer.epoch >= client.epoch


def test_a_member_that_joins_by_the_classic_protocol_keeps_its_generation():
    stored, behind = moved()
    name = behind[0]
    owned = sorted(partition for _, partition in stored.clients[name].owned)
    metadata = subscription(["t"], owned)
    joining = Joining(
        member_id=name,
        fresh_id=name,
        instance_id=None,
        client_id="c",
        client_host="/1.2.3.4",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=45_000,
        protocol_type="consumer",
        protocols=(("range", metadata),),
        id_required=False,
    )
    joined = stored.group.join(joining, stored.now)
    stored.store(joined.changes)
    for _ in range(2):
        stored.take_over()
        assert stored.group.members[name].epoch == joined.joined.generation
        stored.join("last")  # which gets nothing
        stored.later()
        stored.beat("last")
        assert stored.group.assignment_epoch > joined.joined.generation


def test_records_that_have_the_epoch_of_every_member_are_read():
    """As they were written before members came to epochs without a record."""
    stored, _ = moved()
    for name, member in stored.group.members.items():
        stored.store({RecordKey(RecordKind.CURRENT, name): member})
    stored.take_over()
    for name, member in stored.group.members.items():
        assert member.lowest_epoch is None
        stored.beat(name)
    assert stored.group.state.value == "Stable"

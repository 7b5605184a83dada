"""Goal: three members of a group never read a partition at once, and every history comes to rest.

Method: an exhaustive search of the pure core with three partitions. Members join, lose answers,
revoke late, leave, and expire in every order within a budget. After each step another broker takes
the group over from its records. In a commit only two members lose answers and end.
"""

from itertools import combinations

import pytest

from gateway.core.consumer_group import ConsumerGroup
from gateway.core.consumer_members import ConsumerSettings, Now
from tests.gateway.consumer_rig import (
    TIMING,
    Client,
    FakeTopics,
    beat,
    fresh_group,
    settle,
)

TOPICS = FakeTopics()
TOPICS.make("t", 3)


class World:
    """One state of the search: the stored records, the clients, and what may still happen."""

    def __init__(self, records, clients, losses, ends):
        self.records = records
        self.clients = clients
        self.losses = losses
        self.ends = ends
        self.key = frozenset(map(_frozen, records.items())), clients, losses, ends

    @property
    def group(self):
        return ConsumerGroup.restore("g", ConsumerSettings(), self.records, 0, 45_000)


def _frozen(item):
    """Return a record as a value that can be a key."""
    key, record = item
    if isinstance(record, dict):
        return key, tuple(sorted(record.items()))
    if not hasattr(record, "assigned"):
        return key, record
    some = (places_of(record.assigned), places_of(record.revoking))
    return key, record.epoch, record.previous_epoch, record.state, record.topics, *some


def places_of(epochs):
    return tuple((topic, *sorted(some.items())) for topic, some in sorted(epochs.items()))


def world_of(group, clients, losses, ends):
    return World(group.roster.records(), clients, losses, ends)


def next_worlds(world):
    """Yield every world that one step leads to."""
    for number, client in enumerate(world.clients):
        for lost in (False, True)[: 1 + (world.losses > 0)]:
            group = world.group
            after = beat(group, client, TOPICS, lost=lost)
            yield _with(world, group, number, after, losses=world.losses - lost)
        if client.pending:
            yield _with(world, world.group, number, client.revoked())
        if world.ends and client.name in dict.fromkeys(_members(world)):
            group = world.group
            group.remove([client.name], Now(0, TOPICS, TIMING))
            yield _with(world, group, number, client, ends=world.ends - 1)


def _members(world):
    return [key.name for key in world.records if key.kind.value == "member"]


def _with(world, group, number, client, losses=None, ends=None):
    clients = list(world.clients)
    clients[number] = client
    return world_of(
        group,
        tuple(clients),
        world.losses if losses is None else losses,
        world.ends if ends is None else ends,
    )


def check(was, after):
    """Check what must hold in every state, and between two states."""
    group = after.group
    live = [each for each in after.clients if each.name in group.members and each.joined]
    for one, other in combinations(live, 2):
        assert not one.owned & other.owned, f"{one} and {other} read the same"
    assert group.epoch >= was.epoch and group.assignment_epoch >= was.assignment_epoch
    assert group.assignment_epoch <= group.epoch
    for name, member in group.members.items():
        if name in was.members:
            assert member.epoch >= was.members[name].epoch
        assert member.epoch <= group.assignment_epoch


def rests(world):
    """Check that the world comes to rest with every partition read by one of the members."""
    group = world.group
    clients = settle(group, list(world.clients), TOPICS)
    read = sorted(place for each in clients for place in each.owned)
    assert len(read) == len(set(read)) == 3
    sizes = [len(each.owned) for each in clients]
    assert max(sizes) - min(sizes) <= 1
    assert group.state.value == "Stable"


def search(names, losses, ends):
    """Visit every world within the budget. Returns how many there are."""
    clients = tuple(map(Client, names))
    first = world_of(fresh_group(), clients, losses, ends)
    seen, waiting = {first.key: first}, [first]
    while waiting:
        world = waiting.pop()
        was = world.group
        for after in next_worlds(world):
            if after.key in seen:
                continue
            check(was, after)
            seen[after.key] = after
            waiting.append(after)
    for number, world in enumerate(seen.values()):
        if number % 199 == 0:
            rests(world)
    return len(seen)


@pytest.mark.parametrize(
    ("names", "losses", "ends"),
    [
        ("abc", 0, 0),
        ("ab", 1, 1),
        pytest.param("abc", 1, 0, marks=pytest.mark.proof),
        pytest.param("abc", 0, 1, marks=pytest.mark.proof),
        pytest.param("abc", 1, 1, marks=pytest.mark.proof),
    ],
)
def test_no_partition_has_two_readers_in_any_order_of_events(names, losses, ends):
    assert search(names, losses, ends) > 100

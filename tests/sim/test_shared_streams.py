"""Goal: however gateways come, go, hang and are cut off, one leads, and no promise is broken.

Method: three real gateways (cluster, partitions, groups) on virtual time over real ledgers and
bookies; `ClusterOwnershipWorld` knows every promise. Then known mistakes are planted where owners
change most, in `MovingOwners`: each must be found. Repeat a seed of the first world with
`python -m tests.sim.test_shared_streams SEED [SEED]`.
"""

import sys
from functools import partial

import pytest

from gateway.cluster.coordinator_ownership import CoordinatorOwnership
from gateway.cluster.membership import ClusterMembership
from gateway.cluster.zookeeper_cluster import ZooKeeperCluster
from gateway.groups.loaded_groups import LoadedGroups
from gateway.topics.partition import Partition
from tests.sim import first_seeds
from tests.sim.gateway_world import ClusterOwnershipWorld, MovingOwners
from tests.sim.seeds import first_at_commit, repeat, run_world

pytestmark = pytest.mark.slow

SEEDS = 20
BLOCKS = 5
MOVING_SEEDS = 30
PLANTED_SEEDS_MAX = 60


def run(seed):
    """What is wrong after this seed's story; a hang or a crash of ours is wrong too."""
    return run_world(ClusterOwnershipWorld, seed)


@pytest.mark.parametrize("block", first_at_commit(range(BLOCKS), 1))
def test_every_promise_of_a_cluster_is_kept(block):
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        assert run(seed) == [], f"repeat with: python -m tests.sim.test_shared_streams {seed}"


@pytest.mark.parametrize("first", first_at_commit(range(0, MOVING_SEEDS, 5), 1))
def test_every_promise_is_kept_while_owners_change_all_the_time(first):
    found = {seed: run_world(MovingOwners, seed) for seed in range(first, first + 5)}
    assert {seed: wrong for seed, wrong in found.items() if wrong} == {}


# -- planted mistakes: each one is a way to be wrong that the world must see ----------------------


def a_lease_is_never_over(patch):
    """T18: what a gateway held is held while nobody tells it otherwise."""
    patch.setattr(ZooKeeperCluster, "lease_held", lambda self: True)


def acknowledgements_need_no_lease(patch):
    patch.setattr(Partition, "may_acknowledge", lambda self: True)


def whoever_is_not_in_the_list_is_dead(patch):
    """Streams are then taken from the living, whose reads nothing stops."""

    async def is_dead(self, who):
        return who.token != self.self_member.token

    patch.setattr(ClusterMembership, "is_dead", is_dead)
    patch.setattr(ClusterMembership, "is_known_dead", lambda self, who: who != self.incarnation)


def a_coordinator_needs_no_claim(patch):
    """T21: the old one answers from its memory."""

    async def claim(self, group):
        """Ours."""

    patch.setattr(CoordinatorOwnership, "claim", claim)
    patch.setattr(LoadedGroups, "serves", lambda self: True)


PLANTED = (
    a_lease_is_never_over,
    acknowledgements_need_no_lease,
    whoever_is_not_in_the_list_is_dead,
    a_coordinator_needs_no_claim,
)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant, monkeypatch):
    plant(monkeypatch)
    run_moving = partial(run_world, MovingOwners)
    assert first_seeds.found("owners", plant.__name__, run_moving, PLANTED_SEEDS_MAX)


if __name__ == "__main__":
    sys.exit(repeat(run))

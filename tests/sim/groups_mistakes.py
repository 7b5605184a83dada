"""Known mistakes of coordinators, planted into a whole cluster; its seeds must find each.

    python -m tests.sim.groups_mistakes [PART_OF_A_NAME]

prints after how many seeds.
"""

from __future__ import annotations

import asyncio
import sys
from unittest import mock

from gateway.cluster.coordinator_ownership import CoordinatorOwnership
from gateway.core import group_migration
from gateway.core.consumer_group import ConsumerGroup
from gateway.core.consumer_members import RecordKind
from gateway.core.consumer_protocol import Assignment
from gateway.core.consumer_roster import ConsumerRoster
from gateway.groups import consumer_groups as shell
from gateway.groups.coordinator import Coordinator
from gateway.groups.loaded_groups import LoadedGroups
from ledger.log import set_level
from subscriptions.segments import log_claim
from tests.gateway import consumer_takeovers, migration_run
from tests.sim.groups_world import GroupsWorld
from tests.sim.planting import Mutation, check_shapes
from tests.sim.seeds import run_world

SEEDS_MAX = 200
_write = LoadedGroups.write
_read_state = log_claim.read_state


def serves_without_lease(self):
    return self._open


async def takes_from_anybody(self, written):
    pass


def keeps_its_groups(self):
    """Go on with all groups after the session has ended."""


async def reads_without_fencing(logs, record, path, *, fence):
    return await _read_state(logs, record, path, fence=False)


def answers_early(self, loaded, offsets, note=None):
    durable = _write(self, loaded, offsets, note)
    if note is not None:
        return durable
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


async def shows_at_once(self, loaded):
    """Answer before the change is durable."""


def any_commit(self, *_, **__):
    return lambda topic, partition: True


def nobody(self, topic, partition):
    """Take every partition for free."""


def nothing_held(_):
    return Assignment({}, has_user_data=False)


def _mistake(trap, name, where, /, **mistakes):
    return Mutation(trap, name, _patched(where, mistakes), GroupsWorld)


def _patched(where, mistakes):
    """As `patched`, of which an attribute may have the name `owner`."""
    check_shapes(where, mistakes)
    return lambda world: mock.patch.multiple(where, **mistakes)


MISTAKES = (
    _mistake(
        "G5", "a coordinator answers without a lease", LoadedGroups, serves=serves_without_lease
    ),
    _mistake(
        "G5", "a live coordinator is robbed", CoordinatorOwnership, _check_free=takes_from_anybody
    ),
    _mistake(
        "G3", "groups are kept when the session has ended", Coordinator, lost=keeps_its_groups
    ),
    _mistake(
        "G5", "a takeover does not fence the log", log_claim, read_state=reads_without_fencing
    ),
    _mistake("G1", "a commit is answered before it is durable", LoadedGroups, write=answers_early),
    _mistake(
        "G1", "an epoch is shown before it is durable", shell.ConsumerGroups, settle=shows_at_once
    ),
    _mistake("G4", "a stale epoch may commit", ConsumerGroup, check_commit=any_commit),
    _mistake("G1", "a partition is given before it was released", ConsumerRoster, owner=nobody),
    _mistake(
        "G7",
        "a takeover forgets current assignments",
        shell,
        decode_notes=consumer_takeovers._forgets(RecordKind.CURRENT),
    ),
    _mistake(
        "G1",
        "a downgrade loses offsets",
        LoadedGroups,
        begin_classic=migration_run._forgets_offsets,
    ),
    _mistake(
        "G7",
        "an upgrade forgets what members hold",
        group_migration,
        decode_assignment=nothing_held,
    ),
)


def found_by(mistake, seed):
    """Return what a seed reports of a planted mistake."""
    set_level("OFF")
    with mistake.plant(None):
        return run_world(GroupsWorld, seed)


def main():
    part, missed = " ".join(sys.argv[1:]), 0
    for mistake in MISTAKES:
        if part not in mistake.name:
            continue
        seeds = ((seed, found_by(mistake, seed)) for seed in range(SEEDS_MAX))
        seed, found = next((each for each in seeds if each[1]), (None, []))
        missed += seed is None
        count = "missed" if seed is None else seed + 1
        print(f"{mistake.trap:4} {mistake.name:50} {count:>6} {found[:1]}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())

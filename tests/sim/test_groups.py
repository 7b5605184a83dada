"""Goal: in a whole cluster, no two members of a group read one partition, no epoch falls, what was
acknowledged stays, and the group comes to its target; over all faults and changes of protocol.

Method: three real gateways (handlers, coordinators, log segments) on virtual time, and members of
both protocols; an oracle has each state that the group was ever stored in
(`tests.sim.groups_oracle`). Known mistakes are planted, and seeds must find each.
`python -m tests.sim.proof_groups FIRST LAST` runs the seeds, and repeats one.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from gateway.core.consumer_members import ConsumerMember, RecordKey, RecordKind
from gateway.groups.stored_consumer_group import encode_changes
from ledger.sealed import seal
from tests.sim.first_seeds import found
from tests.sim.groups_mistakes import MISTAKES, SEEDS_MAX, found_by
from tests.sim.groups_oracle import MEMBER_STATES, GroupsOracle, GroupState, now
from tests.sim.groups_world import HARMS, MEMBER_FAULTS
from tests.sim.proof_groups import run

ROOT = Path(__file__).parents[2]
QUICK_SEEDS = 2
PROOF_SEEDS = 1_000
TOPIC_ID = UUID(int=7)
OCCURS = (
    *(*HARMS, *MEMBER_FAULTS, "start", "upgrade", "downgrade", "members fenced"),
    *(f"takeover: {state}" for state in MEMBER_STATES),
    *("takeover: classic member", "takeover: classic group", "takeover with writes in flight"),
    *("takeover of a gateway that lives", "commits", "commits refused", "fetches"),
)


@pytest.mark.parametrize("seed", range(QUICK_SEEDS))
def test_no_seed_breaks_a_group(seed):
    assert run(seed, Counter()) == [], f"repeat: python -m tests.sim.proof_groups {seed}"


@pytest.mark.proof
@pytest.mark.timeout(2 * 3600)
def test_a_thousand_seeds_break_no_group_and_have_each_fault_in_each_state():
    words = [sys.executable, "-m", "tests.sim.proof_groups", "0", str(PROOF_SEEDS - 1)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr[-2_000:])
    assert done.returncode == 0
    seen = json.loads(done.stdout.splitlines()[-1])["seen"]
    assert [each for each in OCCURS if not seen.get(each)] == []


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_is_found(mistake):
    assert found("groups", mistake.name, lambda seed: found_by(mistake, seed), SEEDS_MAX)


# -- the oracle notices each error ----------------------------------------------------------------


def state(epoch, offsets=(), **members):
    """Return a state of the consumer protocol. `members` have their epoch and partitions."""
    keyed = {"group": seal({"epoch": epoch})}
    for name, (own, assigned) in members.items():
        held = {TOPIC_ID: dict.fromkeys(assigned, 1)}
        current = ConsumerMember(member_id=name, epoch=own, assigned=held)
        keyed |= encode_changes({RecordKey(RecordKind.CURRENT, name): current})
        keyed |= {f"member/{name}": seal({}), f"target/{name}": seal({})}
    return GroupState(keyed, b"", dict(offsets))


def write(oracle, holder, after, *, durable=True):
    """Let a gateway write what makes the state `after`."""
    number = oracle.on_accepted(holder, after.keyed, None, after.offsets)
    if durable:
        oracle.on_durable(holder, number)
    return number


def host(name="gateway 0"):
    return SimpleNamespace(name=name, serving=False)


def member(name, epoch, *owned):
    return SimpleNamespace(name=name, member_id=name, epoch=epoch, owned=set(owned), doing="in")


def begun(*members):
    """Return an oracle, and the gateway that has the group, which is empty."""
    oracle = GroupsOracle(SimpleNamespace(members=list(members)))
    return oracle, oracle.on_load(host(), GroupState({}, b"", {}), last=True)


def kinds(oracle):
    return [each.split(":")[0] for each in oracle.violations]


async def test_a_takeover_may_find_what_was_in_flight():
    oracle, holder = begun()
    write(oracle, holder, state(1, a=(1, [0])))
    write(oracle, holder, state(2, a=(2, [0])), durable=False)
    oracle.on_load(host("gateway 1"), state(2, a=(2, [0])), last=True)
    oracle.on_durable(holder, 2)
    oracle.on_shown(member("a", 2), 2, [0])
    assert oracle.violations == []


async def test_a_takeover_that_loses_or_invents_something_is_noticed():
    for after in (state(1, a=(1, [0])), state(3, a=(2, [0]))):
        oracle, holder = begun()
        write(oracle, holder, state(1, a=(1, [0])))
        write(oracle, holder, state(2, a=(2, [0])))
        oracle.on_load(host("gateway 1"), after, last=True)
        assert kinds(oracle) == ["lost"]


async def test_a_write_after_a_takeover_is_noticed():
    oracle, holder = begun()
    write(oracle, holder, state(1, a=(1, [0])))
    oracle.on_load(host("gateway 1"), state(1, a=(1, [0])), last=True)
    write(oracle, holder, state(2, a=(2, [0])))
    assert kinds(oracle) == ["zombie"]


async def test_an_answer_before_its_change_is_durable_is_noticed():
    oracle, holder = begun()
    write(oracle, holder, state(2, a=(2, [0])), durable=False)
    oracle.on_shown(member("a", 2), 2)
    oracle.on_shown(member("a", 2), 2, [0])
    one = member("a", 2)
    oracle.end_commit(one, 0, oracle.begin_commit(one, 0), stored=True)
    assert kinds(oracle) == ["unsafe"] * 3


async def test_two_readers_within_their_epochs_are_noticed_and_one_that_was_fenced_is_not():
    one, two = member("a", 2, 0), member("b", 3, 0)
    oracle, holder = begun(one, two)
    write(oracle, holder, state(3, b=(3, [0])))
    assert oracle.violations == []
    write(oracle, holder, state(3, a=(3, [0]), b=(3, [0])))
    assert kinds(oracle) == ["two"]


async def test_a_commit_of_a_partition_that_another_member_reads_is_noticed():
    one, two = member("a", 2), member("b", 3, 0)
    oracle, holder = begun(one, two)
    write(oracle, holder, state(3, b=(3, [0])))
    operation = oracle.begin_commit(one, 0)
    write(oracle, holder, state(3, {0: operation.value}, b=(3, [0])))
    assert kinds(oracle) == ["foreign"]


async def test_epochs_that_fall_are_noticed():
    oracle, holder = begun()
    write(oracle, holder, state(5, a=(4, [0])))
    write(oracle, holder, state(4, a=(3, [0])))
    assert kinds(oracle) == ["fell"] * 2


async def test_an_offset_that_goes_back_is_noticed():
    oracle, _ = begun()
    one = member("a", 1)
    for _ in range(2):
        operation = oracle.begin_commit(one, 0)
        oracle.values.add((0, operation.value))
        await asyncio.sleep(1)
        oracle.end_commit(one, 0, operation, stored=True)
        await asyncio.sleep(1)
    oracle.on_fetched(now(), 0, 1)
    oracle.check_register()
    assert kinds(oracle) == ["register"]

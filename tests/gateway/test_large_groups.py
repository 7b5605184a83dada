"""Goal: a large group is stored whole or not at all, costs others nothing, and has a bound.
Method: a whole coordinator on virtual time; tasks that run meanwhile are counted.
"""

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.core.group_members import GroupMembership, Leaving, MemberRecord, Syncing
from gateway.groups.stored_membership import (
    MembershipTooLarge,
    StoredMembership,
    decode_membership,
    decode_with_pauses,
    encode_membership,
    encode_with_pauses,
)
from ledger.errors import CorruptFormat
from ledger.sealed import seal
from tests.gateway.group_world import World
from tests.sim.turns import turns_during

NODE = "/gateway/groups/g"
REPEATED = (("range", b"topic " * 20_000),)


@asynccontextmanager
async def new_world(**settings):
    async with World(**settings) as world:
        yield world


def random_protocols(size):
    return (("range", os.urandom(size)),)


def record(number, metadata=b"m", assignment=b"a"):
    member_id = f"\u00fc-{UUID(int=number)}"
    protocols = (("range", metadata), ('"', b""), ("sticky", metadata))
    return MemberRecord(member_id, None, "\u00fc", "/h", 10_000, 60_000, protocols, assignment)


def stored_with(*members):
    return StoredMembership(GroupMembership(3, "consumer", "range", "l", members), 7)


def stored(world):
    """The membership in the node of the group."""
    data = world.metadata.nodes()[NODE].data
    return decode_membership(data[5:], NODE).membership


async def joined(world, count, protocols, group="g"):
    """Members that have joined and not synced; the leader first."""
    consumers = [world.consumer(group, f"c{n}", protocols=protocols) for n in range(count)]
    for consumer in consumers:
        answer = await world.groups.join(group, consumer._joining())
        consumer.member_id = answer.member_id
    joins = (world.groups.join(group, consumer._joining()) for consumer in consumers)
    answers = await asyncio.gather(*joins)
    for consumer, answer in zip(consumers, answers, strict=True):
        assert answer.error.name == "none"
        consumer.generation = answer.generation
    return sorted(consumers, key=lambda each: each.member_id != answers[0].leader)


def sync(world, consumers, assignment=b"part"):
    """The SyncGroups of all, the leader's last."""
    parts = tuple((each.member_id, assignment) for each in consumers)
    return [
        asyncio.ensure_future(
            world.groups.sync(
                each.group,
                Syncing(
                    each.member_id, each.generation, assignments=parts * (each is consumers[0])
                ),
            )
        )
        for each in reversed(consumers)
    ]


async def errors_of(tasks):
    return {task.error.name for task in await asyncio.gather(*tasks)}


# the stored form


def test_the_form_is_the_sealed_document_of_before():
    members = (record(1, bytes(100_000)), record(2, b""))
    data = encode_membership(stored_with(*members[1:]))
    document = {
        "generation": 3,
        "protocol_type": "consumer",
        "protocol": "range",
        "leader": "l",
        "empty_since_ms": 7,
        "members": [
            [*members[1][:6], [["range", ""], ['"', ""], ["sticky", ""]], "YQ=="],
        ],
    }
    assert data == seal(document)
    for some in ((), members[:1], members):
        assert decode_membership(encode_membership(stored_with(*some)), "x") == stored_with(*some)


def test_a_membership_that_does_not_fit_is_refused_whole():
    with pytest.raises(MembershipTooLarge):
        encode_membership(stored_with(record(1, os.urandom(900_000))))


@pytest.mark.parametrize("cut", [1, 1_000])
def test_a_compressed_membership_that_is_cut_short_is_corrupt(cut):
    data = encode_membership(stored_with(record(1, os.urandom(100_000))))
    assert data.startswith(b"z")
    with pytest.raises(CorruptFormat):
        decode_membership(data[:-cut], "x")


async def test_others_run_while_a_large_membership_is_encoded_and_decoded():
    whole = stored_with(*(record(n, b"topic " * 50_000) for n in range(10)))
    data, turns = await turns_during(encode_with_pauses(whole))
    assert turns > 100
    decoded, turns = await turns_during(decode_with_pauses(data, "x"))
    assert decoded == whole
    assert turns > 20
    many = stored_with(*map(record, range(5_000)))
    _, turns = await turns_during(decode_with_pauses(encode_membership(many), "x"))
    assert turns > 10


# the group


async def test_a_large_group_is_stored_whole_and_survives_a_restart():
    async with new_world() as world:
        consumers = await joined(world, 10, REPEATED)
        assert await errors_of(sync(world, consumers, b"part" * 10_000)) == {"none"}
        assert len(stored(world).members) == 10
        async with world.crashed() as rival:
            await rival.groups.adopt(["g"])
            view = await rival.groups.describe("g")
            assert view.state.value == "Stable"
            assert {each.assignment for each in view.members} == {b"part" * 10_000}


async def test_a_group_too_large_to_store_is_an_error_and_nothing_of_it_is_stored():
    async with new_world() as world:
        consumers = await joined(world, 3, random_protocols(500_000))
        assert await errors_of(sync(world, consumers)) == {"unknown_server_error"}
        assert NODE not in world.metadata.nodes()
        leavings = tuple(Leaving(each.member_id) for each in consumers)
        await world.groups.leave("g", leavings)
        [small] = await joined(world, 1, REPEATED)
        assert await errors_of(sync(world, [small])) == {"none"}
        assert stored(world).generation == small.generation


async def test_assignments_count_as_bytes_of_the_group():
    async with new_world(group_bytes_max=100_000) as world:
        consumers = await joined(world, 2, (("range", b"m"),))
        assert await errors_of(sync(world, consumers, bytes(60_000))) == {"unknown_server_error"}


async def test_all_groups_together_have_a_bound():
    async with new_world(bytes_total_max=550_000) as world:
        consumers = await joined(world, 2, REPEATED)
        late = world.consumer("h", "late", protocols=REPEATED)
        assert (await world.groups.join("h", late._joining())).error.name == (
            "coordinator_not_available"
        )
        await world.groups.leave("g", tuple(Leaving(each.member_id) for each in consumers))
        assert world.groups._loaded_groups.memory.size_bytes == 0
        await joined(world, 1, REPEATED, "h")


def first_join(world, group, host, size=100_000):
    """A JoinGroup of a new group, whose answer takes a rebalance."""
    joining = world.consumer(group, protocols=(("range", bytes(size)),))._joining()
    return asyncio.ensure_future(
        world.groups.join(group, replace(joining, client_host=host, id_required=False))
    )


async def greedy(world, host, groups=100):
    """Join many groups from one address; return how many were admitted."""
    joins = [first_join(world, f"{host} {number}", host) for number in range(groups)]
    return [(await join).error.name for join in joins].count("none")


async def test_groups_of_one_address_leave_room_for_others(capsys):
    async with new_world(bytes_total_max=4_000_000, initial_rebalance_delay_ms=0) as world:
        assert 18 <= await greedy(world, "/10.6.6.6") <= 20  # half
        assert (await first_join(world, "late", "/10.6.6.6")).error.name == (
            "coordinator_not_available"
        )
        log = capsys.readouterr().err
        assert log.count("members of groups use the memory of their address") == 1
        assert "peer=10.6.6.6" in log
        assert (await first_join(world, "honest", "/10.9.9.9")).error.name == "none"
        assert 7 <= await greedy(world, "/10.7.7.7") <= 10
        assert 3 <= await greedy(world, "/10.8.8.8") <= 5
        assert (await first_join(world, "last", "/10.5.5.5")).error.name == "none"
        world.groups.release_waiters()
        assert world.groups._loaded_groups.memory.size_bytes == 0
        assert 18 <= await greedy(world, "/10.6.6.6") <= 20


async def test_groups_of_one_ipv6_network_have_one_share(capsys):
    async with new_world(bytes_total_max=4_000_000, initial_rebalance_delay_ms=0) as world:
        joins = [
            first_join(world, f"g{number}", f"/2001:db8:0:1::{number:x}") for number in range(100)
        ]
        admitted = [(await join).error.name for join in joins].count("none")
        assert 18 <= admitted <= 20  # half, as for one address
        assert "peer=2001:db8:0:1::/64" in capsys.readouterr().err
        assert (await first_join(world, "honest", "/2001:db8:0:2::1")).error.name == "none"


async def test_a_member_that_rejoins_as_it_was_is_admitted_when_its_share_is_used_up():
    async with new_world(bytes_total_max=4_000_000, initial_rebalance_delay_ms=0) as world:
        consumers = await joined(world, 2, REPEATED)
        assert await errors_of(sync(world, consumers)) == {"none"}
        await greedy(world, "/127.0.0.1")
        await greedy(world, "/10.7.7.7")  # now the first address has more than is free
        for group in ("g", "h"):
            again = world.consumer(group, protocols=REPEATED)._joining()
            if group == "g":
                again = replace(again, member_id=consumers[1].member_id)
            answer = await world.groups.join(group, again)
            assert answer.error.name == {"g": "none", "h": "coordinator_not_available"}[group]


async def test_assignments_count_in_the_share_of_their_members():
    async with new_world(bytes_total_max=1_000_000, initial_rebalance_delay_ms=0) as world:
        errors = []
        for number in range(8):
            consumers = await joined(world, 1, (("range", b"m"),), f"g{number}")
            [answer] = sync(world, consumers, bytes(100_000))
            errors.append((await answer).error.name)
        assert errors == ["none"] * 4 + ["coordinator_not_available"] * 4


async def rejoin(world, consumer, host, size):
    """The answer of a JoinGroup of an existing member, from this address."""
    joining = replace(consumer._joining(), client_host=host, protocols=(("range", bytes(size)),))
    answer = await world.groups.join(consumer.group, joining)
    consumer.generation = answer.generation
    return answer.error.name


async def test_a_member_that_grows_from_another_address_counts_in_the_share_that_it_has():
    async with new_world(bytes_total_max=1_000_000, initial_rebalance_delay_ms=0) as world:
        seeds = [(await joined(world, 1, (("range", b"m"),), f"g{n}"))[0] for n in range(20)]
        answers = [await rejoin(world, seed, "/10.7.7.7", 50_000) for seed in seeds]
        assert 9 <= answers.count("none") <= 10  # half, as from one address
        memory = world.groups._loaded_groups.memory
        assert memory.size_bytes <= memory.bytes_max // 2
        assert (await first_join(world, "honest", "/10.9.9.9")).error.name == "none"


async def test_a_member_grows_in_the_free_share_of_its_own_address():
    async with new_world(bytes_total_max=1_000_000, initial_rebalance_delay_ms=0) as world:
        [member] = await joined(world, 1, (("range", b"m"),))
        await greedy(world, "/10.7.7.7")
        assert await rejoin(world, member, "/10.7.7.7", 100_000) == "none"


async def test_assignments_that_replace_others_count_by_their_difference():
    async with new_world(bytes_total_max=1_000_000, initial_rebalance_delay_ms=0) as world:
        [member] = await joined(world, 1, (("range", b"m"),))
        for size in (1, 2, 3, 4):  # each JoinGroup differs, so the members rebalance
            assert await rejoin(world, member, "/127.0.0.1", size) == "none"
            assert await errors_of(sync(world, [member], bytes(300_000))) == {"none"}
            assert await errors_of(sync(world, [member], bytes(300_000))) == {"none"}
        assert await rejoin(world, member, "/127.0.0.1", 5) == "none"
        assert await errors_of(sync(world, [member], bytes(600_000))) == {
            "coordinator_not_available"
        }


async def test_an_assignment_counts_in_the_share_of_the_member_that_gets_it():
    async with new_world(bytes_total_max=1_000_000, initial_rebalance_delay_ms=0) as world:
        leader, other = await joined(world, 2, (("range", b"m"),))
        far = replace(world.consumer()._joining(), client_host="/10.7.7.7", id_required=False)
        rejoins = (rejoin(world, each, "/127.0.0.1", 1) for each in (leader, other))
        third, *_ = await asyncio.gather(world.groups.join("g", far), *rejoins)
        assert await greedy(world, "/10.7.7.7") == 4

        async def assigned(to):
            parts = ((to, bytes(100_000)),)
            syncing = Syncing(leader.member_id, third.generation, assignments=parts)
            return await world.groups.sync("g", syncing)

        assert (await assigned(third.member_id)).error.name == "coordinator_not_available"
        assert (await assigned(leader.member_id)).error.name == "none"


async def pending_encoding(world, consumers):
    """The SyncGroups of the members; the encoding of their group has begun."""
    syncs = sync(world, consumers)
    while world.loaded["g"].encoding is None:
        await asyncio.sleep(0)
    return syncs


async def test_what_was_stored_last_is_the_last_membership():
    async with new_world() as world:
        consumers = await joined(world, 3, REPEATED)
        syncs = await pending_encoding(world, consumers)
        await world.groups.leave("g", tuple(Leaving(each.member_id) for each in consumers))
        assert await errors_of(syncs) == {"unknown_member_id"}
        while world.loaded["g"].writes:
            await asyncio.sleep(0.1)
        assert stored(world) == GroupMembership(2, "consumer")


async def test_a_group_that_is_deleted_while_it_is_encoded_stays_deleted():
    async with new_world() as world:
        consumers = await joined(world, 3, REPEATED)
        syncs = await pending_encoding(world, consumers)
        await world.groups.leave("g", tuple(Leaving(each.member_id) for each in consumers))
        assert world.loaded["g"].encoding is not None
        assert (await world.groups.delete("g")).name == "none"
        await errors_of(syncs)
        assert NODE not in world.metadata.nodes()


async def test_a_hand_over_stores_the_membership_that_is_being_encoded():
    async with new_world() as world:
        consumers = await joined(world, 3, REPEATED)
        syncs = await pending_encoding(world, consumers)
        await world.groups.hand_over()
        assert await errors_of(syncs) == {"not_coordinator"}
        assert len(stored(world).members) == 3

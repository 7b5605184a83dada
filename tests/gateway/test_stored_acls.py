"""Goal: ACLs are checked, stored, described and deleted as in Kafka 4.3, and obeyed everywhere.

Method: CreateAcls, DescribeAcls and DeleteAcls as real requests over the simulator's store. The
expected codes and texts are Kafka's, from its AclControlManager. Two gateways share one store.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from gateway.access import Operation, Resource, ResourceType
from gateway.cluster.authorizer_watch import AuthorizerWatch
from gateway.cluster.port import ClusterMember
from gateway.config import Authorization
from gateway.core import acls as acls_core
from gateway.core.acls import AclFilter, Code, Pattern, PatternType
from gateway.handlers import acl_changes, k29_describe_acls, k30_create_acls, k31_delete_acls
from gateway.settings import stored_acls
from gateway.settings.stored_acls import ROOT, StoredAcls
from ledger.sealed import seal, unseal
from tests.gateway.handler_cluster import PEER, loaded_cluster
from tests.sim.turns import turns_during

ROOT_USER = "User:root"
STANDARD = Authorization(authorizer="standard", super_users=(ROOT_USER,))
OK, BAD = ErrorCode.none, ErrorCode.invalid_request
DENIED = ErrorCode.cluster_authorization_failed
ANY = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
VERSIONS = k30_create_acls.API.versions


def creation(name="orders", operation=3, permission=3, pattern=3, kind=2, **more):
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": "User:ann",
        "host": "*",
        "operation": operation,
        "permission_type": permission,
    } | more


class World:
    """A gateway with an authorizer, whose client is a super user."""

    def __init__(self, cluster, acls):
        self.cluster, self.acls = cluster, acls
        self.peer = cluster.peer

    async def create(self, *creations, version=3):
        answer = await self.cluster.ask(k30_create_acls, version, creations=creations)
        return [(row.error_code, row.error_message) for row in answer.results]

    async def describe(self, version=3, **wanted):
        answer = await self.cluster.ask(k29_describe_acls, version, **(ANY | wanted))
        assert answer.error_code is OK
        return sorted(
            (resource.resource_name, resource.pattern_type, acl.operation, acl.permission_type)
            for resource in answer.resources
            for acl in resource.acls
        )

    async def delete(self, *filters, version=3):
        asked = [ANY | each for each in filters]
        return (await self.cluster.ask(k31_delete_acls, version, filters=asked)).filter_results

    def may(self, operation=Operation.READ, name="orders"):
        return self.acls.allows("User:ann", "::1", operation, Resource(ResourceType.TOPIC, name))


class started:
    """A world, for as long as the block lasts."""

    def __init__(self, **authorization):
        self.authorization = Authorization(
            authorizer="standard", super_users=(ROOT_USER,), **authorization
        )
        self.cluster = loaded_cluster()

    async def __aenter__(self):
        cluster = await self.cluster.__aenter__()
        self.acls = StoredAcls(cluster.store, self.authorization)
        await self.acls.load()
        cluster.context.acls = cluster.context.authorizer = self.acls
        cluster.peer = type(PEER)("127.0.0.1", 1, "127.0.0.1", 2, principal=ROOT_USER)
        return World(cluster, self.acls)

    async def __aexit__(self, *error):
        await self.acls.close()
        await self.cluster.__aexit__(*error)


async def until(found):
    async with asyncio.timeout(5):  # a change takes effect within 5 s on every gateway
        while not found():
            await asyncio.sleep(0.01)


# create


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_acl_is_stored_described_and_obeyed(version):
    async with started() as world:
        assert not world.may()
        assert await world.create(creation(), version=version) == [(OK, "")]
        assert await world.describe(version) == [("orders", 3, 3, 3)]
        assert world.may() and world.may(Operation.DESCRIBE) and not world.may(Operation.WRITE)


async def test_an_acl_that_is_there_already_succeeds():
    async with started() as world:
        assert await world.create(creation(), creation()) == 2 * [(OK, "")]
        assert await world.create(creation()) == [(OK, "")]
        assert len(await world.describe()) == 1


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_pattern_type": 99}, "Invalid patternType UNKNOWN"),
        ({"operation": 99}, "Invalid operation UNKNOWN"),
        ({"permission_type": 99}, "Invalid permissionType UNKNOWN"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        (
            {"resource_type": 4},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        (
            {"principal": "ann"},
            "Could not parse principal from `ann` (no colon is present separating the principal "
            "type from the principal name)",
        ),
        ({"principal": "User:" + "a" * 2_000}, "An ACL has a text of 2005 characters; 1000 are"),
    ],
)
async def test_an_acl_that_means_nothing_is_refused_and_others_are_stored(asked, text):
    async with started() as world:
        refused, stored = await world.create(creation(**asked), creation("others"))
        assert refused[0] is BAD and refused[1].startswith(text)
        assert stored == (OK, "")
        assert await world.describe() == [("others", 3, 3, 3)]


@pytest.mark.parametrize(
    "asked",
    [
        {"resource_type": 1},
        {"resource_pattern_type": 1},
        {"resource_pattern_type": 2},
        {"operation": 1},
        {"permission_type": 1},
    ],
)
async def test_an_acl_for_any_fails_the_whole_request_as_in_kafka(asked):
    async with started() as world:
        answers = await world.create(creation(), creation(**asked))
        assert answers == 2 * [(ErrorCode.unknown_server_error, None)]
        assert await world.describe() == []


async def test_a_star_is_a_prefix_like_any_other():
    async with started() as world:
        assert await world.create(creation("*", pattern=4)) == [(OK, "")]
        assert not world.may()
        assert world.may(name="*orders")


async def test_a_request_for_too_many_acls_stores_none_of_them(monkeypatch):
    monkeypatch.setattr(acl_changes, "CHANGED_MAX", 3)
    async with started() as world:
        text = "Unable to perform excessively large batch operation."
        answers = await world.create(*(creation(f"t-{each}") for each in range(4)))
        assert answers == 4 * [(ErrorCode.policy_violation, text)]
        assert await world.describe() == []
        assert await world.create(*(creation(f"t-{each}") for each in range(3))) == 3 * [(OK, "")]


async def test_a_hundred_thousand_acls_are_refused_while_other_tasks_run():
    async with started() as world:
        many = [creation(f"t-{each}") for each in range(100_000)]
        answers, turns = await turns_during(world.create(*many))
        assert {code for code, _ in answers} == {ErrorCode.policy_violation}
        assert turns > 100
        assert await world.describe() == []


async def test_more_acls_of_one_pattern_than_a_node_holds_are_refused(monkeypatch):
    monkeypatch.setattr("gateway.settings.stored_rows.NODE_BYTES_MAX", 1_000)
    async with started() as world:
        many = [creation(principal=f"User:{each}") for each in range(50)]
        assert {code for code, _ in await world.create(*many)} == {ErrorCode.policy_violation}
        assert await world.create(creation()) == [(OK, "")]


# describe


async def many_acls(world):
    created = await world.create(
        creation("orders"),
        creation("orders", 4, 2),
        creation("ord", pattern=4),
        creation("*"),
        creation("orders", kind=3),
        creation("kafka-cluster", 8, kind=4, host="10.0.0.1"),
    )
    assert set(created) == {(OK, "")}


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({}, ["*", "kafka-cluster", "ord", "orders", "orders", "orders"]),
        ({"resource_type_filter": 3}, ["orders"]),
        ({"resource_name_filter": "orders"}, ["orders", "orders", "orders"]),
        ({"resource_name_filter": "orders", "pattern_type_filter": 3}, 3 * ["orders"]),
        (
            {"resource_name_filter": "orders", "pattern_type_filter": 2},
            ["*", "ord", "orders", "orders", "orders"],
        ),
        ({"resource_name_filter": "*", "pattern_type_filter": 2}, ["*"]),
        ({"pattern_type_filter": 4}, ["ord"]),
        ({"pattern_type_filter": 99}, []),
        ({"operation": 4}, ["orders"]),
        ({"operation": 99}, []),
        ({"permission_type": 2}, ["orders"]),
        ({"host_filter": "10.0.0.1"}, ["kafka-cluster"]),
        ({"principal_filter": "User:bob"}, []),
        ({"principal_filter": "User:ann", "resource_type_filter": 4}, ["kafka-cluster"]),
    ],
)
async def test_a_filter_finds_what_it_matches(wanted, names):
    async with started() as world:
        await many_acls(world)
        assert [name for name, *_ in await world.describe(**wanted)] == names


def test_match_means_the_acls_that_decide_on_a_resource():
    wanted = AclFilter(2, "orders", Code.MATCH, None, None, Code.ANY, Code.ANY)
    for name, kind, matches in (
        ("orders", PatternType.LITERAL, True),
        ("*", PatternType.LITERAL, True),
        ("ord", PatternType.PREFIXED, True),
        ("*", PatternType.PREFIXED, False),
        ("ordersx", PatternType.PREFIXED, False),
    ):
        assert wanted.matches_pattern(Pattern(ResourceType.TOPIC, name, kind)) is matches


# delete


@pytest.mark.parametrize("version", VERSIONS)
async def test_deleted_acls_are_returned_and_no_longer_obeyed(version):
    async with started() as world:
        await many_acls(world)
        wanted = {"resource_name_filter": "orders", "pattern_type_filter": 2, "operation": 3}
        (found,) = await world.delete(wanted | {"resource_type_filter": 2}, version=version)
        assert found.error_code is OK
        assert sorted(each.resource_name for each in found.matching_acls) == ["*", "ord", "orders"]
        assert {each.error_code for each in found.matching_acls} == {OK}
        assert not world.may()
        assert len(await world.describe()) == 3


async def test_acls_beside_a_removed_one_stay_in_force():
    """CVE-2024-27309: after a removal, a resource with two ACLs was taken to have one."""
    async with started(allow_everyone=True) as world:
        await world.create(creation(principal="User:bob"), creation(principal="User:eve"))
        assert not world.may()
        await world.delete({"principal_filter": "User:bob"})
        assert not world.may()  # the resource still has an ACL
        await world.delete({"principal_filter": "User:eve"})
        assert world.may()


async def test_an_acl_that_two_filters_match_is_in_both_answers():
    async with started() as world:
        await world.create(creation())
        first, second, third = await world.delete({}, {"operation": 3}, {"operation": 4})
        rows = [len(each.matching_acls) for each in (first, second, third)]
        assert rows == [1, 1, 0]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"resource_type_filter": 99}, "Unknown patternFilter."),
        ({"pattern_type_filter": 99}, "Unknown patternFilter."),
        ({"operation": 99}, "Unknown entryFilter."),
        ({"permission_type": 99}, "Unknown entryFilter."),
    ],
)
async def test_a_filter_that_means_nothing_deletes_nothing(asked, text):
    async with started() as world:
        await world.create(creation())
        (found,) = await world.delete(asked)
        assert (found.error_code, found.error_message) == (BAD, text)
        assert world.may()


async def test_more_acls_than_one_request_may_delete_stay(monkeypatch):
    async with started() as world:
        await world.create(*(creation(f"t-{each}") for each in range(3)))
        monkeypatch.setattr(acl_changes, "CHANGED_MAX", 2)
        many, one = await world.delete({}, {"resource_name_filter": "t-1"})
        assert (many.error_code, len(many.matching_acls)) == (ErrorCode.unknown_server_error, 0)
        assert [each.resource_name for each in one.matching_acls] == ["t-1"]
        assert len(await world.describe()) == 2


async def test_very_many_filters_let_other_tasks_run():
    async with started() as world:
        await world.create(creation())
        asked = [{"resource_name_filter": f"t-{each}"} for each in range(5_000)]
        found, turns = await turns_during(world.delete(*asked))
        assert len(found) == 5_000 and turns > 1_000


# rights


@pytest.mark.parametrize(
    ("module", "fields", "operation"),
    [
        (k29_describe_acls, ANY, "DESCRIBE"),
        (k30_create_acls, {"creations": [creation()]}, "ALTER"),
        (k31_delete_acls, {"filters": [ANY]}, "ALTER"),
    ],
)
async def test_the_cluster_must_be_allowed(module, fields, operation):
    async with started() as world:
        await world.create(creation())
        world.cluster.peer.principal = "User:ann"
        answer = await world.cluster.ask(module, 3, **fields)
        if module is k29_describe_acls:
            assert (answer.error_code, answer.resources) == (DENIED, ())
        else:
            rows = answer.results if module is k30_create_acls else answer.filter_results
            assert [row.error_code for row in rows] == [DENIED]
        world.cluster.peer.principal = ROOT_USER
        code = acls_core.CODE_OF[Operation(operation)]
        await world.create(creation("kafka-cluster", code, kind=4))
        world.cluster.peer.principal = "User:ann"
        assert await world.cluster.ask(module, 3, **fields) != answer


# several gateways


async def test_a_change_is_obeyed_by_another_gateway_within_five_seconds():
    async with started() as world:
        other = StoredAcls(world.cluster.store, STANDARD)
        await other.load()
        question = ("User:ann", "", Operation.READ, Resource(ResourceType.TOPIC, "orders"))
        assert not other.allows(*question)
        await world.create(creation())
        await until(lambda: other.allows(*question))
        await world.create(creation(permission=2))
        await until(lambda: not other.allows(*question))
        await world.delete({})
        await until(lambda: not other.all())
        await other.close()


async def test_a_cache_that_never_expires_is_found(monkeypatch):
    monkeypatch.setattr(StoredAcls, "_on_changed", lambda self: None)
    with pytest.raises(TimeoutError):
        await test_a_change_is_obeyed_by_another_gateway_within_five_seconds()


async def test_two_gateways_that_change_one_pattern_lose_nothing():
    async with started() as world:
        other = StoredAcls(world.cluster.store, STANDARD)
        await other.load()
        ours = [creation(principal=f"User:{each}") for each in range(5)]
        pattern = Pattern(ResourceType.TOPIC, "orders", PatternType.LITERAL)
        theirs = [
            acls_core.Created(2, "orders", 3, f"User:o{each}", "*", 3, 3).checked()
            for each in range(5)
        ]
        await asyncio.gather(world.create(*ours), *(other.add(pattern, [t]) for t in theirs))
        assert len(await other.all_now()) == 10
        await until(lambda: len(other.rules()) == 10)
        await other.close()


async def test_an_acl_that_is_removed_and_added_again_is_obeyed_at_once():
    async with started() as world:
        await world.create(creation())
        (acl,) = world.acls.rules()
        (name,) = await world.cluster.store.children(ROOT)
        await world.acls.remove(acl.pattern, [acl])
        assert not world.may()
        await world.acls.add(acl.pattern, [acl])
        world.acls._rows.on_gone(name)  # of a reading that began before it was added again
        world.acls._on_changed()
        assert world.may()
        await world.acls.remove(acl.pattern, [acl])
        assert not world.may()


async def test_acls_are_obeyed_again_after_a_restart():
    async with started() as world:
        await world.create(creation(), creation("ord", 4, 2, pattern=4))
        again = StoredAcls(world.cluster.store, STANDARD)
        await again.load()
        assert list(again.rules()) and set(again.rules()) == set(world.acls.rules())
        await again.close()


@pytest.mark.parametrize("damage", ["row", "words"])
async def test_only_super_users_are_served_while_an_acl_cannot_be_read(damage):
    async with started() as world:
        await world.create(creation())
        store = world.cluster.store
        (name,) = await store.children(ROOT)
        path = f"{ROOT}/{name}"
        document = unseal((await store.get(path)).data, path)
        if damage == "words":
            document["value"] = {"acls": [["User:ann", "*", "READ", "PERHAPS"]]}
        await store.set(path, b"rot" if damage == "row" else seal(document), -1)
        await until(lambda: not world.may())
        resource = Resource(ResourceType.TOPIC, "orders")
        assert world.acls.allows(ROOT_USER, "", Operation.READ, resource)
        assert world.acls.decide("User:ann", "", Operation.READ, resource).rule == "Unreadable"
        await store.delete(path, (await store.get(path)).version)
        await until(lambda: world.acls.decide("User:ann", "", *_READ).rule == "DefaultDeny")


_READ = Operation.READ, Resource(ResourceType.TOPIC, "orders")


def test_a_stored_acl_is_one_of_this_release():
    pattern = Pattern(ResourceType.TOPIC, 'a"b', PatternType.PREFIXED)
    acl = acls_core.Created(2, 'a"b', 4, "User:x", "*", 3, 2).checked()
    value = stored_acls._value({stored_acls._entry_of(acl)})
    assert stored_acls._decode(stored_acls._key_of(pattern), value) == [acl]
    assert stored_acls._decode("[]", value) is None


# gateways that differ


def member(node_id, authorizes):
    return ClusterMember(node_id, "h", 1, "", f"t{node_id}", authorizes=authorizes)


def test_gateways_that_differ_in_their_authorizer_are_a_warning(capsys):
    watch = AuthorizerWatch(authorizes=True)
    watch.look([member(1, True), member(2, True)])
    assert "authorizer" not in capsys.readouterr().err
    for _ in range(2):
        watch.look([member(1, True), member(2, False), member(3, False)])
    printed = capsys.readouterr().err
    assert printed.count("gateways differ in their authorizer") == 1
    assert "2, 3" in printed
    watch.look([member(1, True)])
    watch.look([member(1, True), member(2, False)])
    assert "gateways differ in their authorizer" in capsys.readouterr().err

"""Goal: a request with very many ACLs, filters or quotas is answered with Kafka's codes, changes
nothing that it must not, neither holds the loop nor takes much memory, and bad rows spare others.

Method: decoded requests to the handlers over the simulator's store. The processor time between two
turns of other tasks is measured, and the memory that Python allocates.
"""

import gc
import tracemalloc

import pytest
from kio.schema.errors import ErrorCode

from gateway.config import Authorization
from gateway.handlers import (
    k29_describe_acls,
    k30_create_acls,
    k31_delete_acls,
    k49_alter_client_quotas,
)
from gateway.handlers.api import Request
from gateway.settings.client_quotas import ROOT as QUOTAS
from gateway.settings.stored_acls import ROOT as ACLS
from gateway.settings.stored_acls import StoredAcls
from gateway.wire.messages import decode_response, encode_response
from tests.gateway.handler_cluster import PEER, loaded_cluster
from tests.sim.turns import longest_turn_s_during

pytestmark = pytest.mark.proof

COUNTS = (12_000, pytest.param(100_000, marks=pytest.mark.proof))
TURN_S_MAX = 0.25  # of a processor
ACL_BYTES_MAX = 1_000  # besides the decoded request
OK, BAD = ErrorCode.none, ErrorCode.invalid_request
TOO_MANY, FAILED = ErrorCode.policy_violation, ErrorCode.unknown_server_error
ROOT_USER = "User:root"
RATE = "producer_byte_rate"


def creation(name="orders", **more):
    return {
        "resource_type": 2,
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": "User:ann",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    } | more


def entry(kind, name, *ops):
    return {
        "entity": [{"entity_type": kind, "entity_name": name}],
        "ops": [{"key": key, "value": value, "remove": False} for key, value in ops],
    }


class authorized:
    """A gateway with an authorizer, whose client is a super user."""

    async def __aenter__(self):
        self.loaded = loaded_cluster()
        self.cluster = await self.loaded.__aenter__()
        self.acls = StoredAcls(
            self.cluster.store, Authorization(authorizer="standard", super_users=(ROOT_USER,))
        )
        await self.acls.load()
        self.cluster.context.acls = self.cluster.context.authorizer = self.acls
        self.cluster.peer = type(PEER)("127.0.0.1", 1, "127.0.0.1", 2, principal=ROOT_USER)
        return self.cluster

    async def __aexit__(self, *error):
        await self.acls.close()
        await self.loaded.__aexit__(*error)


async def handled(cluster, module, version, **fields):
    """Return the decoded reply, and the most processor time between two turns meanwhile."""
    request = cluster.request(module, version, **fields)
    gc.collect()
    gc.freeze()  # the test has the request more than once; a gateway does not
    try:
        reply, longest_s = await longest_turn_s_during(cluster.handled(module, request))
    finally:
        gc.unfreeze()
    key = module.API.key
    out = b"".join(encode_response(key, version, 1, reply))
    return decode_response(key, version, out).body, longest_s


async def rows_below(cluster, root):
    return len(await cluster.store.children(root))


def same(name="orders", **more):
    return lambda count: [creation(name, **more)] * count


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("many", "codes", "stored"),
    [
        (lambda count: [creation(f"t-{each}") for each in range(count)], {TOO_MANY}, 0),
        (
            lambda count: [creation(principal=f"User:{each}") for each in range(count)],
            {TOO_MANY},
            0,
        ),
        (same(), {OK}, 1),
        (same(""), {BAD}, 0),
        (lambda count: [*same()(count - 1), creation(operation=1)], {FAILED}, 0),
    ],
    ids=("names", "principals", "the same", "refused", "one for any"),
)
async def test_a_hundred_thousand_acls_do_not_hold_the_loop(count, many, codes, stored):
    async with authorized() as cluster:
        reply, longest_s = await handled(cluster, k30_create_acls, 3, creations=many(count))
        assert {row.error_code for row in reply.results} == codes
        assert len(reply.results) == count
        assert await rows_below(cluster, ACLS) == stored
        assert longest_s < TURN_S_MAX


async def test_an_acl_that_a_request_has_very_often_is_one_change():
    async with authorized() as cluster:
        request: Request = cluster.request(k30_create_acls, 3, creations=[creation()] * 1_000)
        await cluster.handled(k30_create_acls, request)
        assert request.changes == 1


@pytest.mark.slow
@pytest.mark.parametrize("bad", [False, True], ids=("stored", "refused"))
async def test_the_memory_of_many_acls_is_in_proportion_to_their_request(bad):
    count = 9_000
    many = [creation(f"t-{each}", operation=99 if bad else 3) for each in range(count)]
    async with authorized() as cluster:
        request = cluster.request(k30_create_acls, 3, creations=many)
        cluster.context.acls.add = _nothing  # what is stored is bounded by the table
        tracemalloc.start()
        try:
            await cluster.handled(k30_create_acls, request)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < count * ACL_BYTES_MAX


async def _nothing(pattern, acls):
    return None


@pytest.mark.slow
async def test_very_many_filters_do_not_hold_the_loop_and_delete_what_they_match():
    async with authorized() as cluster:
        some = [creation(f"t-{each}") for each in range(500)]
        await handled(cluster, k30_create_acls, 3, creations=some)
        names = [f"t-{each}" for each in range(499, 3_000)]
        filters = [
            {
                "resource_type_filter": 2,
                "resource_name_filter": each,
                "pattern_type_filter": 3,
                "principal_filter": None,
                "host_filter": None,
                "operation": 1,
                "permission_type": 1,
            }
            for each in names
        ]
        reply, longest_s = await handled(cluster, k31_delete_acls, 3, filters=filters)
        assert sum(len(each.matching_acls) for each in reply.filter_results) == 1
        assert await rows_below(cluster, ACLS) == 499
        assert longest_s < TURN_S_MAX
        reply, longest_s = await handled(
            cluster, k29_describe_acls, 3, **filters[0] | {"resource_name_filter": None}
        )
        assert len(reply.resources) == 499
        assert longest_s < TURN_S_MAX


@pytest.mark.slow
@pytest.mark.parametrize("count", (4_000, pytest.param(30_000, marks=pytest.mark.proof)))
@pytest.mark.parametrize(
    "one",
    [
        lambda at: entry("user", f"u-{at}", (RATE, -1.0)),
        lambda at: entry("zebra", f"u-{at}", (RATE, 1.0)),
        lambda at: entry("user", "", (RATE, 1.0)),
    ],
    ids=("negative", "unknown type", "the same empty name"),
)
async def test_very_many_bad_quotas_do_not_hold_the_loop(count, one):
    many = [one(at) for at in range(count)]
    async with loaded_cluster() as cluster:
        reply, longest_s = await handled(
            cluster, k49_alter_client_quotas, 1, entries=many, validate_only=False
        )
        assert {row.error_code for row in reply.entries} == {BAD}
        assert await rows_below(cluster, QUOTAS) == 0
        assert longest_s < TURN_S_MAX


@pytest.mark.slow
async def test_very_many_parts_of_one_entity_and_very_many_limits_are_refused_briefly():
    parts = [{"entity_type": f"k-{each}", "entity_name": "a"} for each in range(20_000)]
    ops = [{"key": f"k-{each}", "value": 1.0, "remove": False} for each in range(20_000)]
    many = [
        {"entity": parts, "ops": []},
        {"entity": [{"entity_type": "user", "entity_name": "a"}], "ops": ops},
        entry("user", "b", (RATE, 1.0)),
    ]
    async with loaded_cluster() as cluster:
        reply, longest_s = await handled(
            cluster, k49_alter_client_quotas, 1, entries=many, validate_only=False
        )
        assert [row.error_code for row in reply.entries] == [BAD, BAD, OK]
        assert await rows_below(cluster, QUOTAS) == 1
        assert longest_s < TURN_S_MAX


@pytest.mark.parametrize("value", [0.0, -1.0, float("-inf"), float("inf")])
async def test_a_bad_limit_beside_a_good_one_changes_neither(value):
    async with loaded_cluster() as cluster:
        both = entry("user", "ann", ("consumer_byte_rate", 5.0), (RATE, value))
        good = entry("user", "bob", (RATE, 1.0))
        reply, _ = await handled(
            cluster, k49_alter_client_quotas, 1, entries=[both, good], validate_only=False
        )
        assert [row.error_code for row in reply.entries] == [BAD, OK]
        assert await rows_below(cluster, QUOTAS) == 1

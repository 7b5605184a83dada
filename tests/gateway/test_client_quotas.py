"""Goal: client quotas are checked, stored and described as in Apache Kafka 4.3.

Method: AlterClientQuotas and DescribeClientQuotas as real requests over the simulator's store. The
expected codes and texts are answers of a broker 4.3. Two gateways share one store.
"""

import asyncio
import math

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.client_quotas import (
    QuotaRefused,
    check_entity,
    entity_text,
    ordered,
    ordered_limits,
)
from gateway.core.shown_text import SHOWN_CHARACTERS_MAX
from gateway.core.stored_names import NAME_BYTES_MAX
from gateway.handlers import k48_describe_client_quotas, k49_alter_client_quotas
from gateway.settings import stored_rows
from gateway.settings.client_quotas import ROOT
from gateway.settings.stored_settings import StoredSettings
from ledger.sealed import seal, unseal
from tests.gateway.handler_cluster import loaded_cluster
from tests.sim.turns import turns_during

NAN, INFINITE = float("nan"), float("inf")
RATE, CONNECTIONS = "producer_byte_rate", "connection_creation_rate"
BAD = ErrorCode.invalid_request
NOT_RESOLVED = " is not an IP address, and host names are not resolved."


def entry(entity, *ops):
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
    }


async def altered(cluster, *entries, version=1, validate_only=False):
    answer = await cluster.ask(
        k49_alter_client_quotas, version, entries=list(entries), validate_only=validate_only
    )
    return [(row.error_code, row.error_message) for row in answer.entries]


async def described(cluster, *components, strict=False, version=1):
    """Return the limits by entity, or the error."""
    answer = await cluster.ask(
        k48_describe_client_quotas,
        version,
        components=[
            {"entity_type": kind, "match_type": match_type, "match": name}
            for kind, match_type, name in components
        ],
        strict=strict,
    )
    if answer.error_code is not ErrorCode.none:
        assert answer.entries is None
        return answer.error_code, answer.error_message
    assert answer.error_message == ""
    return {
        tuple((part.entity_type, part.entity_name) for part in row.entity): {
            each.key: each.value for each in row.values
        }
        for row in answer.entries
    }


ANN = (("user", "ann"),)
OK = [(ErrorCode.none, None)]


@pytest.mark.parametrize("version", [0, 1])
async def test_limits_are_stored_changed_and_removed(version):
    async with loaded_cluster() as cluster:
        both = entry(ANN, (RATE, 100.0), ("request_percentage", 0.5))
        assert await altered(cluster, both, version=version) == OK
        assert await altered(cluster, entry(ANN, (RATE, 7.0)), version=version) == OK
        limits = {RATE: 7.0, "request_percentage": 0.5}
        assert await described(cluster, version=version) == {ANN: limits}
        gone = entry(ANN, (RATE, None), ("request_percentage", None), ("nope", None))
        assert await altered(cluster, gone, version=version) == OK
        assert await described(cluster, version=version) == {}
        assert await cluster.store.children(ROOT) == []


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (RATE, 100.5, f"{RATE} cannot be a fractional value."),
        (RATE, 1.00001, f"{RATE} cannot be a fractional value."),
        (RATE, 0.0, f"Quota {RATE} must be greater than 0"),
        (RATE, -1.0, f"Quota {RATE} must be greater than 0"),
        (RATE, -INFINITE, f"Quota {RATE} must be greater than 0"),
        (RATE, INFINITE, f"Proposed value for {RATE} is too large for a LONG."),
        (RATE, 1e300, f"Proposed value for {RATE} is too large for a LONG."),
        ("request_percentage", 0.0, "Quota request_percentage must be greater than 0"),
        (CONNECTIONS, 2.0, f"Invalid configuration key {CONNECTIONS}"),
        ("nope", 2.0, "Invalid configuration key nope"),
        ("", 2.0, "Invalid configuration key "),
    ],
)
async def test_a_limit_that_kafka_refuses_is_refused_and_nothing_is_stored(key, value, text):
    async with loaded_cluster() as cluster:
        change = entry(ANN, ("consumer_byte_rate", 5.0), (key, value or 1e-400))
        change["ops"][1]["value"] = value
        assert await altered(cluster, change) == [(BAD, text)]
        assert await described(cluster) == {}


@pytest.mark.parametrize("value", [1e-7, 1.0000001, 2.0**62, 2.0**63, NAN])
async def test_a_limit_that_kafka_accepts_is_stored(value):
    async with loaded_cluster() as cluster:
        assert await altered(cluster, entry(ANN, (RATE, value))) == OK
        found = (await described(cluster))[ANN][RATE]
        assert found == value or (math.isnan(found) and math.isnan(value))


@pytest.mark.parametrize(
    ("entity", "text"),
    [
        ((), "Invalid empty client quota entity"),
        ((("zebra", "a"),), "Unhandled client quota entity type: zebra"),
        ((("", "a"),), "Unhandled client quota entity type: "),
        ((("user", ""),), "Empty user not supported"),
        ((("client-id", ""),), "Empty client-id not supported"),
        ((("ip", ""),), "Empty ip not supported"),
        ((("ip", "1.2.3.999"),), "1.2.3.999 is not a valid IP or resolvable host."),
        (
            (("ip", "x" * 300),),
            "x" * 300 + NOT_RESOLVED,
        ),
        (
            (("ip", "localhost"),),
            "localhost" + NOT_RESOLVED,
        ),
        ((("user", "ä" * 513),), f"The user is longer than {NAME_BYTES_MAX} bytes."),
        ((("client-id", "a" * 1025),), f"The client-id is longer than {NAME_BYTES_MAX} bytes."),
        ((("zebra", "a"), ("ip", "b")), "Unhandled client quota entity type: zebra"),
        (
            (("ip", "1.2.3.4"), ("user", "a")),
            "Invalid quota entity combination, IP entity shouldnot be combined with User or "
            "ClientId",
        ),
    ],
)
async def test_an_entity_that_kafka_refuses_is_refused(entity, text):
    async with loaded_cluster() as cluster:
        assert await altered(cluster, entry(entity, (RATE, 1.0))) == [(BAD, text)]
        assert await described(cluster) == {}


@pytest.mark.parametrize("address", ["1.2.3.4", "::1", "1.2.3", None])
async def test_an_address_limits_new_connections_only(address):
    async with loaded_cluster() as cluster:
        entity = (("ip", address),)
        assert await altered(cluster, entry(entity, (CONNECTIONS, 4.0))) == OK
        assert await described(cluster, ("ip", 2, None)) == {entity: {CONNECTIONS: 4.0}}
        assert await altered(cluster, entry(entity, (RATE, 4.0))) == [
            (BAD, f"Invalid configuration key {RATE}")
        ]
        assert await altered(cluster, entry(entity, (CONNECTIONS, 2.0**31))) == [
            (BAD, f"Proposed value for {CONNECTIONS} is too large for an INT.")
        ]


async def test_of_an_entity_that_is_named_again_the_first_change_is_made():
    async with loaded_cluster() as cluster:
        pair = (("client-id", "c"), ("user", "ann"))
        entries = [
            entry(pair[::-1], (RATE, 1.0)),
            entry(pair, (RATE, 2.0)),
            entry(ANN, (RATE, 3.0)),
        ]
        text = "Ignoring duplicate entity ClientQuotaEntity(entries={client-id=c, user=ann})"
        assert await altered(cluster, *entries) == [(BAD, text), *OK]
        assert await described(cluster) == {pair: {RATE: 1.0}, ANN: {RATE: 3.0}}


async def test_an_entity_whose_key_is_named_twice_is_not_changed():
    async with loaded_cluster() as cluster:
        change = entry(ANN, (RATE, 2.0), ("consumer_byte_rate", 4.0), (RATE, None))
        text = "Ignoring duplicate entity ClientQuotaEntity(entries={user=ann})"
        assert await altered(cluster, change) == [(BAD, text)]
        assert await described(cluster) == {}


async def test_a_refused_entity_does_not_hinder_the_others():
    async with loaded_cluster() as cluster:
        answers = await altered(
            cluster, entry((("zebra", "a"),), (RATE, 1.0)), entry(ANN, (RATE, 1.0))
        )
        assert [code for code, _ in answers] == [BAD, ErrorCode.none]
        assert await described(cluster) == {ANN: {RATE: 1.0}}


async def test_a_request_that_only_validates_changes_nothing():
    async with loaded_cluster() as cluster:
        assert await altered(cluster, entry(ANN, (RATE, 1.0)), validate_only=True) == OK
        answer = await altered(cluster, entry(ANN, (RATE, -1.0)), validate_only=True)
        assert answer == [(BAD, f"Quota {RATE} must be greater than 0")]
        assert await described(cluster) == {}


# filters

ANN_C = (("client-id", "c"), ("user", "ann"))
ANYONE = (("user", None),)
HOST = (("ip", "1.2.3.4"),)


async def with_entities(cluster):
    for entity in (ANN, ANN_C, ANYONE):
        assert await altered(cluster, entry(entity, (RATE, 1.0))) == OK
    assert await altered(cluster, entry(HOST, (CONNECTIONS, 1.0))) == OK


@pytest.mark.parametrize(
    ("components", "loose", "strict"),
    [
        ([], {ANN, ANN_C, ANYONE, HOST}, set()),
        ([("user", 0, "ann")], {ANN, ANN_C}, {ANN}),
        ([("user", 1, None)], {ANYONE}, {ANYONE}),
        ([("user", 2, None)], {ANN, ANN_C, ANYONE}, {ANN, ANYONE}),
        ([("user", 2, None), ("client-id", 0, "c")], {ANN_C}, {ANN_C}),
        ([("client-id", 2, None)], {ANN_C}, set()),
        ([("ip", 2, None)], {HOST}, {HOST}),
        ([("user", 0, "bob")], set(), set()),
        ([("user", 0, "")], set(), set()),
    ],
)
async def test_a_filter_finds_the_entities_that_kafka_finds(components, loose, strict):
    async with loaded_cluster() as cluster:
        await with_entities(cluster)
        assert set(await described(cluster, *components)) == loose
        assert set(await described(cluster, *components, strict=True)) == strict


@pytest.mark.parametrize(
    ("components", "code", "text"),
    [
        (
            [("ip", 2, None), ("user", 2, None)],
            BAD,
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component.",
        ),
        (
            [("user", 2, None), ("user", 0, "a")],
            BAD,
            "Entity type user cannot appear more than once in the filter.",
        ),
        ([("zebra", 9, None)], ErrorCode.unsupported_version, "Unsupported entity type zebra"),
        ([("", 2, None)], BAD, "Invalid empty entity type."),
        (
            [("user", 0, None)],
            BAD,
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            [("user", 1, "a")],
            BAD,
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            [("user", 2, "a")],
            BAD,
            "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
        ),
        ([("user", 3, None)], BAD, "Unknown match type 3"),
        ([("user", -1, None)], BAD, "Unknown match type -1"),
    ],
)
async def test_a_filter_that_kafka_refuses_is_refused(components, code, text):
    async with loaded_cluster() as cluster:
        assert await described(cluster, *components) == (code, text)


# many gateways, bad nodes, many rows


async def described_in_time(cluster, expected):
    """Return the quotas once they are the expected ones. Raises TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while (seen := await described(cluster)) != expected:
            await asyncio.sleep(0.01)
        return seen


async def test_another_gateway_sees_every_change():
    async with loaded_cluster() as cluster:
        other = StoredSettings(cluster.store)
        await other.load()
        mine = cluster.context.stored
        for value in (1.0, 2.0, None, 3.0):  # the last creates the row again
            await altered(cluster, entry(ANN, (RATE, value)))
            cluster.context.stored = other
            changed = {} if value is None else {ANN: {RATE: value}}
            assert await described_in_time(cluster, changed) == changed
            cluster.context.stored = mine
        await other.close()


async def test_a_change_by_two_gateways_at_once_keeps_both():
    async with loaded_cluster() as cluster:
        other = StoredSettings(cluster.store)
        await other.load()
        await altered(cluster, entry(ANN, (RATE, 1.0)))
        cluster.context.stored = other
        await altered(cluster, entry(ANN, ("consumer_byte_rate", 2.0)))
        assert await described(cluster) == {ANN: {RATE: 1.0, "consumer_byte_rate": 2.0}}
        await other.close()


@pytest.mark.parametrize("damage", ["newer", "checksum", "elsewhere"])
async def test_a_row_of_a_later_release_is_refused_and_kept(damage):
    async with loaded_cluster() as cluster:
        await altered(cluster, entry(ANN, (RATE, 1.0)))
        (name,) = await cluster.store.children(ROOT)
        path = f"{ROOT}/{name}"
        document = unseal((await cluster.store.get(path)).data, path)
        damaged = {
            "newer": lambda: seal(document | {"version": 2}),
            "checksum": lambda: seal(document)[:-2] + b"x}",
            "elsewhere": lambda: seal(document | {"key": "{}"}),
        }[damage]()
        await cluster.store.set(path, damaged, 0)
        (answer,) = await altered(cluster, entry(ANN, (RATE, 2.0)))
        assert answer[0] is not ErrorCode.none
        assert (await cluster.store.get(path)).data == damaged


@pytest.mark.slow
async def test_very_many_entities_are_refused_beyond_the_limit_and_others_go_on(monkeypatch):
    monkeypatch.setattr(stored_rows, "ROWS_MAX", 100)
    async with loaded_cluster() as cluster:
        names = [(("user", f"user-{number}"),) for number in range(5_000)]
        entries = [entry(name, (RATE, 1.0)) for name in names]
        answers, turns = await turns_during(altered(cluster, *entries))
        codes = [code for code, _ in answers]
        assert codes.count(ErrorCode.none) == len(await described(cluster)) <= 164
        assert codes.count(ErrorCode.policy_violation) == 5_000 - codes.count(ErrorCode.none)
        assert turns >= 50


async def test_a_table_holds_a_bounded_number_of_bytes(monkeypatch):
    monkeypatch.setattr(stored_rows, "TABLE_BYTES_MAX", 2_000)
    async with loaded_cluster() as cluster:
        codes = []
        for number in range(20):
            ((code, _),) = await altered(cluster, entry((("user", f"u-{number}"),), (RATE, 1.0)))
            codes.append(code)
        stored = [node.data for node in (await cluster.store.read_tree(ROOT)).values()]
        count = codes.count(ErrorCode.none)
        assert 1 < count < 20
        assert codes == [ErrorCode.none] * count + [ErrorCode.policy_violation] * (20 - count)
        assert sum(map(len, stored)) <= 2_000
        # A row may not grow, but may shrink or be deleted, which makes room for another one.
        first, new = (("user", "u-0"),), (("user", "new"),)
        more = entry(first, *[(key, 1e9) for key in ("consumer_byte_rate", "request_percentage")])
        ((code, text),) = await altered(cluster, more)
        assert code is ErrorCode.policy_violation
        assert "2000 bytes" in text
        assert await altered(cluster, entry(first, (RATE, None))) == OK
        assert await altered(cluster, entry(new, (RATE, 1.0))) == OK


async def test_other_gateways_count_the_bytes_of_a_table_too(monkeypatch):
    async with loaded_cluster() as cluster:
        for number in range(5):
            await altered(cluster, entry((("user", f"u-{number}"),), (RATE, 1.0)))
        stored = (await cluster.store.read_tree(ROOT)).values()
        monkeypatch.setattr(stored_rows, "TABLE_BYTES_MAX", sum(len(each.data) for each in stored))
        other = cluster.context.stored = StoredSettings(cluster.store)
        await other.load()
        ((code, _),) = await altered(cluster, entry((("user", "new"),), (RATE, 1.0)))
        assert code is ErrorCode.policy_violation
        assert await altered(cluster, entry((("user", "u-0"),), (RATE, None))) == OK
        assert await altered(cluster, entry((("user", "u-9"),), (RATE, 1.0))) == OK
        await other.close()


class Counted(str):
    """Text that counts how often it is encoded, as a computation over its characters begins."""

    encoded = 0

    def encode(self, *arguments):
        type(self).encoded += 1
        return super().encode(*arguments)


def test_an_unknown_type_is_refused_before_its_characters_are_read():
    kind = Counted("zebra")
    assert ordered({"user": "a", kind: "b"}) == [(kind, "b"), ("user", "a")]
    with pytest.raises(QuotaRefused):
        check_entity({"user": "a", kind: "b"})
    assert Counted.encoded == 0


@pytest.mark.parametrize("version", [0, 1])
async def test_a_long_name_of_a_client_is_cut_in_errors(version):
    long = "x" * 32_767
    cut = f"{long[:SHOWN_CHARACTERS_MAX]}..."
    async with loaded_cluster() as cluster:
        for change, text in (
            (entry(((long, "a"),)), f"Unhandled client quota entity type: {cut}"),
            (entry(ANN, (long, 1.0)), f"Invalid configuration key {cut}"),
            (entry((("ip", f"{long[1:]}1"),)), f"The ip is longer than {NAME_BYTES_MAX} bytes."),
        ):
            assert await altered(cluster, change, version=version) == [(BAD, text)]
        twice = [entry((("user", long),))] * 2
        ((code, text),) = await altered(cluster, *twice, version=version)
        assert code is BAD
        assert text.endswith(f"ClientQuotaEntity(entries={{user={cut}}})")
        code, text = await described(cluster, (long, 2, None), version=version)
        assert (code, text) == (ErrorCode.unsupported_version, f"Unsupported entity type {cut}")


async def test_other_tasks_run_while_an_entity_of_many_parts_is_read():
    async with loaded_cluster() as cluster:
        many = [(f"k-{number}", "a") for number in range(20_000)]
        answers, turns = await turns_during(altered(cluster, entry(many, (RATE, 1.0))))
        assert answers[0][0] is BAD
        assert turns >= 40
        ops = [(f"k-{number}", None) for number in range(20_000)]
        answers, turns = await turns_during(altered(cluster, entry(ANN, *ops)))
        assert answers == OK
        assert turns >= 40


def test_types_and_limits_come_in_kafkas_order():
    entity = {"ip": "1", "user": "2", "client-id": "3"}
    assert [kind for kind, _ in ordered(entity)] == ["client-id", "user", "ip"]
    keys = ["request_percentage", "controller_mutation_rate", "consumer_byte_rate", RATE]
    assert [key for key, _ in ordered_limits(dict.fromkeys(keys, 1.0))] == keys[::-1]
    assert [key for key, _ in ordered_limits({"later": 1.0, RATE: 1.0})] == [RATE, "later"]


def test_a_default_entity_is_shown_as_null():
    assert entity_text({"user": None}) == "ClientQuotaEntity(entries={user=null})"

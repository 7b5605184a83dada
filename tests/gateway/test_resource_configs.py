"""Goal: configs of groups and client metrics are stored, described and listed as in Kafka 4.3.

Method: the APIs of configs as real requests over the simulator's store; each bound and text is
compared with Apache Kafka's in tests/compat/differential. Two gateways share one store.
"""

import asyncio

import pytest
import re2
from kio.schema.errors import ErrorCode

from gateway.handlers import (
    k32_describe_configs,
    k33_alter_configs,
    k44_incremental_alter_configs,
    k74_list_config_resources,
)
from gateway.settings import stored_rows
from gateway.settings.resource_configs import ROOT
from gateway.settings.resource_keys import GROUP_KEYS, METRICS_KEYS, client_metrics_configs
from gateway.settings.stored_settings import StoredSettings
from gateway.topics.errors import InvalidConfig
from gateway.wire.bounds_check import STRING_BYTES_MAX
from tests.gateway.handler_cluster import loaded_cluster

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
HEARTBEAT = "share.heartbeat.interval.ms"
OK = (ErrorCode.none, None)


async def altered(cluster, kind, name, *changes, validate_only=False):
    row = {
        "resource_type": kind,
        "resource_name": name,
        "configs": [
            {"name": key, "config_operation": 1 if value is None else 0, "value": value}
            for key, value in changes
        ],
    }
    answer = await cluster.ask(
        k44_incremental_alter_configs, 1, resources=[row], validate_only=validate_only
    )
    return answer.responses[0].error_code, answer.responses[0].error_message


async def described(cluster, kind, name, *keys):
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    answer = await cluster.ask(
        k32_describe_configs, 4, resources=[row], include_synonyms=True, include_documentation=True
    )
    (result,) = answer.results
    assert result.error_code is ErrorCode.none
    return {config.name: config for config in result.configs}


async def listed(cluster, *types, version=1):
    fields = {"resource_types": list(types)} if version else {}
    answer = await cluster.ask(k74_list_config_resources, version, **fields)
    if answer.error_code is not ErrorCode.none:
        return answer.error_code
    return sorted(
        (getattr(row, "resource_type", METRICS), row.resource_name)
        for row in answer.config_resources
    )


async def test_a_group_has_all_configs_and_shows_its_own():
    async with loaded_cluster() as cluster:
        assert set(await described(cluster, GROUP, "g")) == set(GROUP_KEYS)
        assert await altered(cluster, GROUP, "g", (HEARTBEAT, "6000")) == OK
        config = (await described(cluster, GROUP, "g", HEARTBEAT))[HEARTBEAT]
        assert (config.value, config.config_source, config.read_only) == ("6000", 8, False)
        assert [(each.name, each.value, each.source) for each in config.synonyms] == [
            (HEARTBEAT, "6000", 8),
            (f"group.{HEARTBEAT}", "5000", 5),
        ]
        assert config.documentation


async def test_client_metrics_have_three_configs():
    async with loaded_cluster() as cluster:
        assert set(await described(cluster, METRICS, "m")) == set(METRICS_KEYS)
        assert await altered(cluster, METRICS, "m", ("interval.ms", "100")) == OK
        config = (await described(cluster, METRICS, "m"))["interval.ms"]
        assert (config.value, config.config_source) == ("100", 7)


async def test_a_resource_is_listed_while_it_has_configs():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {})
        always = [(TOPIC, "t"), (BROKER, "3"), (LOGGER, "3")]
        assert await listed(cluster) == always
        await altered(cluster, GROUP, "g", (HEARTBEAT, "6000"))
        await altered(cluster, METRICS, "m", ("interval.ms", "100"))
        assert await listed(cluster) == [*always, (METRICS, "m"), (GROUP, "g")]
        assert await listed(cluster, GROUP) == [(GROUP, "g")]
        assert await listed(cluster, version=0) == [(METRICS, "m")]
        await altered(cluster, GROUP, "g", (HEARTBEAT, None))
        await altered(cluster, METRICS, "m", ("interval.ms", None))
        assert await listed(cluster) == always
        assert await cluster.store.children(ROOT) == []


@pytest.mark.parametrize("types", [[0], [1], [99], [TOPIC, 99]])
async def test_an_unknown_type_cannot_be_listed(types):
    async with loaded_cluster() as cluster:
        assert await listed(cluster, *types) is ErrorCode.unsupported_version


@pytest.mark.parametrize(
    ("kind", "key", "value", "code"),
    [
        (GROUP, "nope", "1", ErrorCode.invalid_config),
        (GROUP, HEARTBEAT, "4999", ErrorCode.invalid_config),
        (GROUP, HEARTBEAT, "x", ErrorCode.invalid_config),
        (METRICS, "nope", "1", ErrorCode.invalid_request),
        (METRICS, "interval.ms", "99", ErrorCode.invalid_request),
        (METRICS, "match", "client_id=(", ErrorCode.invalid_config),
        (METRICS, "match", f"client_id={'(' * 1_000}", ErrorCode.invalid_config),
        (METRICS, "match", f"client_id={'a' * 1_025}", ErrorCode.invalid_config),
        (METRICS, "match", f"client_id={'a' * 1_024}", ErrorCode.none),
        (METRICS, "match", "client_id=[[a]", ErrorCode.none),
        (METRICS, "match", r"client_id=(?i)pay-\d+ , client_source_port = 9[0-9]+", ErrorCode.none),
    ],
)
async def test_a_refused_change_stores_nothing(kind, key, value, code):
    async with loaded_cluster() as cluster:
        good = ("interval.ms", "100") if kind == METRICS else ("share.isolation.level", "x")
        answer = await altered(cluster, kind, "r", (key, value), *([good] if code else []))
        assert answer[0] is code
        stored = await cluster.store.children(ROOT)
        assert len(stored) == (code is ErrorCode.none)


@pytest.mark.parametrize(
    "expressions",
    [
        pytest.param(["(a|b|ab)*c"] * 17, id="many expressions"),
        pytest.param(["(" * 300 + "x" + ")" * 300] * 2, id="many characters"),
        pytest.param([r"\pL\PL"] * 3, id="many Unicode classes"),
        pytest.param(["(a{10}){10}"] * 9, id="many counted repetitions"),
        pytest.param(["(((a{10}){10}){10}){9}"], id="a repetition of repetitions"),
        pytest.param(["(" + ".?" * 500 + "){15}"], id="a program that takes much memory"),
        pytest.param([r"(a)\1"], id="a back reference, which takes exponential time"),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_expressions_that_take_long_to_compile_are_refused(expressions, validate_only):
    """Others wait while they are compiled, and a request may have many such values."""
    match = ",".join(f"client_id={each}" for each in expressions)
    async with loaded_cluster() as cluster:
        code, text = await altered(
            cluster, METRICS, "m", ("match", match), validate_only=validate_only
        )
        assert code is ErrorCode.invalid_config
        assert "client matching pattern" in text
        assert await cluster.store.children(ROOT) == []


def test_expressions_beyond_the_bounds_are_not_even_compiled(monkeypatch):
    compiled, compile_ = [], re2.compile
    monkeypatch.setattr(re2, "compile", lambda *args: compiled.append(args[0]) or compile_(*args))
    value = ",".join(["client_id=(a+)+b"] * 16)
    assert client_metrics_configs({"match": value}) == {"match": value}
    assert compiled == ["(a+)+b"] * 16
    with pytest.raises(InvalidConfig):
        client_metrics_configs({"match": value + ",client_id=a"})
    assert len(compiled) == 16


async def test_more_configs_than_a_node_holds_are_refused():
    many = [(f"listener.name.x.ssl.{n}", "a" * STRING_BYTES_MAX) for n in range(40)]
    async with loaded_cluster() as cluster:
        assert await altered(cluster, BROKER, "3", *many[:20]) == OK
        before = dict(cluster.context.stored.configs.get(BROKER, "3"))
        code, text = await altered(cluster, BROKER, "3", *many[20:])
        assert code is ErrorCode.policy_violation
        assert "would take 13" in text
        assert cluster.context.stored.configs.get(BROKER, "3") == before


async def test_a_request_that_only_validates_changes_nothing():
    async with loaded_cluster() as cluster:
        assert await altered(cluster, GROUP, "g", (HEARTBEAT, "6000"), validate_only=True) == OK
        assert await listed(cluster, GROUP) == []


async def test_alter_configs_replaces_all_configs_of_a_resource():
    async with loaded_cluster() as cluster:
        await altered(cluster, METRICS, "m", ("interval.ms", "100"), ("metrics", "*"))
        row = {
            "resource_type": METRICS,
            "resource_name": "m",
            "configs": [{"name": "match", "value": "client_id=a"}],
        }
        answer = await cluster.ask(k33_alter_configs, 2, resources=[row], validate_only=False)
        assert answer.responses[0].error_code is ErrorCode.none
        own = {
            name: config.value
            for name, config in (await described(cluster, METRICS, "m")).items()
            if config.config_source == 7
        }
        assert own == {"match": "client_id=a"}


async def test_another_gateway_sees_the_configs():
    async with loaded_cluster() as cluster:
        other = StoredSettings(cluster.store)
        await other.load()
        await altered(cluster, GROUP, "g", (HEARTBEAT, "6000"))
        while not other.configs.get(GROUP, "g"):
            await asyncio.sleep(0.01)
        assert other.configs.get(GROUP, "g") == {HEARTBEAT: "6000"}
        await other.close()


async def test_beyond_the_limit_no_resource_gets_configs(monkeypatch):
    monkeypatch.setattr(stored_rows, "ROWS_MAX", 1)
    async with loaded_cluster() as cluster:
        assert await altered(cluster, GROUP, "g", (HEARTBEAT, "6000")) == OK
        code, _ = await altered(cluster, GROUP, "h", (HEARTBEAT, "6000"))
        assert code is ErrorCode.policy_violation

"""Goal: topic configs are altered as Kafka alters them, and take effect.

Method: AlterConfigs and IncrementalAlterConfigs as real requests over a catalog in the simulator's
store; the pure rules beside a dumb twin.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from gateway.handlers import k32_describe_configs, k33_alter_configs, k44_incremental_alter_configs
from gateway.settings.broker_rules import subtracted
from gateway.topics.config_changes import (
    ConfigChange,
    ConfigOperation,
    appended,
    apply_changes,
    without,
)
from gateway.topics.errors import InvalidConfig
from tests.gateway.handler_cluster import loaded_cluster

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
TOPIC, BROKER = 2, 4


def resource(*configs, name="t", kind=TOPIC):
    return {
        "resource_type": kind,
        "resource_name": name,
        "configs": [
            {"name": key, "config_operation": operation, "value": value}
            for key, operation, value in configs
        ],
    }


async def altered(cluster, *resources, validate_only=False, version=1):
    answer = await cluster.ask(
        k44_incremental_alter_configs,
        version,
        resources=list(resources),
        validate_only=validate_only,
    )
    return [(each.error_code, each.error_message) for each in answer.responses]


async def replaced(cluster, version=2, validate_only=False, **configs):
    asked = {
        "resource_type": TOPIC,
        "resource_name": "t",
        "configs": [
            {"name": name.replace("_", "."), "value": value} for name, value in configs.items()
        ],
    }
    answer = await cluster.ask(
        k33_alter_configs, version, resources=[asked], validate_only=validate_only
    )
    return [(each.error_code, each.error_message) for each in answer.responses]


OK = [(ErrorCode.none, None)]


def own(cluster, name="t"):
    return dict(cluster.catalog.by_name(name).configs)


@pytest.mark.parametrize("version", k44_incremental_alter_configs.API.versions)
async def test_what_is_not_named_stays_as_it_is(version):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {"retention.ms": "1000", "segment.ms": "7"})
        change = resource(("retention.ms", SET, "2000"))
        assert await altered(cluster, change, version=version) == OK
        assert own(cluster) == {"retention.ms": "2000", "segment.ms": "7"}
        assert cluster.catalog.config(cluster.catalog.by_name("t")).retention_ms == 2000


async def test_a_deleted_setting_is_the_default_again():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {"retention.ms": "1000"})
        assert await altered(cluster, resource(("retention.ms", DELETE, None))) == OK
        assert own(cluster) == {}
        answer = await cluster.ask(
            k32_describe_configs,
            4,
            resources=[
                {
                    "resource_type": TOPIC,
                    "resource_name": "t",
                    "configuration_keys": ["retention.ms"],
                }
            ],
        )
        assert answer.results[0].configs[0].value == "604800000"


async def test_a_change_outlives_the_process():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {})
        await altered(cluster, resource(("cleanup.policy", APPEND, "compact")))
        other = type(cluster)()
        other.catalog._store.tree = cluster.store.tree
        await other.catalog.load()
        assert own(other) == {"cleanup.policy": "delete,compact"}


async def test_what_is_only_validated_changes_nothing():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {})
        change = resource(("retention.ms", SET, "5"))
        assert await altered(cluster, change, validate_only=True) == OK
        assert own(cluster) == {}
        wrong = resource(("retention.ms", SET, "soon"))
        [(code, _)] = await altered(cluster, wrong, validate_only=True)
        assert code is ErrorCode.invalid_config


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (
            resource(("no.such", SET, "1")),
            ErrorCode.invalid_config,
            "Unknown topic config name: no.such",
        ),
        (
            resource(("retention.ms", APPEND, "1")),
            ErrorCode.invalid_config,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            resource(("no.such", SUBTRACT, "1")),
            ErrorCode.invalid_config,
            "Can't SUBTRACT to key no.such because its type is not LIST.",
        ),
        (
            resource(("retention.ms", SET, None)),
            ErrorCode.invalid_request,
            "Null value not supported for : retention.ms",
        ),
        (
            resource(("retention.ms", SET, "1"), ("retention.ms", DELETE, None)),
            ErrorCode.invalid_request,
            "Error due to duplicate config keys",
        ),
        (
            resource(("retention.ms", 9, "1")),
            ErrorCode.invalid_request,
            "Unknown operation type id 9",
        ),
        (
            resource(("retention.ms", SET, "1"), name="missing"),
            ErrorCode.unknown_topic_or_partition,
            "The topic 'missing' does not exist.",
        ),
        (
            resource(("retention.ms", SET, "1"), name="no/name"),
            ErrorCode.invalid_topic_exception,
            None,
        ),
        (
            resource(("log.retention.hours", SET, "1"), name="3", kind=BROKER),
            ErrorCode.invalid_request,
            "Cannot update these configs dynamically: [log.retention.hours]",
        ),
        (
            resource(kind=77),
            ErrorCode.invalid_request,
            "Unknown resource type 77",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_is_refused_in_kafkas_words(change, code, text):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {})
        [(said, message)] = await altered(cluster, change)
        assert said is code
        assert text is None or message == text
        assert own(cluster) == {}


async def test_one_resource_that_is_refused_does_not_keep_the_others():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {})
        await cluster.catalog.create("u", 1, 1, {})
        answers = await altered(
            cluster,
            resource(("retention.ms", SET, "x")),
            resource(("retention.ms", SET, "9"), name="u"),
        )
        assert [code for code, _ in answers] == [ErrorCode.invalid_config, ErrorCode.none]
        assert own(cluster, "u") == {"retention.ms": "9"}


async def test_a_resource_that_is_named_twice_is_refused():
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {})
        change = resource(("retention.ms", SET, "9"))
        answers = await altered(cluster, change, change)
        refused = (ErrorCode.invalid_request, "Each resource must appear at most once.")
        assert answers == [refused, refused]
        assert own(cluster) == {}


@pytest.mark.parametrize("version", k33_alter_configs.API.versions)
async def test_the_older_request_replaces_all_settings(version):
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {"retention.ms": "1000", "segment.ms": "7"})
        assert await replaced(cluster, version, segment_ms="8", cleanup_policy="compact") == OK
        assert own(cluster) == {"segment.ms": "8", "cleanup.policy": "compact"}
        [(code, message)] = await replaced(cluster, version, segment_ms=None)
        assert (code, message) == (
            ErrorCode.invalid_request,
            "Null value not supported for : segment.ms",
        )


@pytest.mark.parametrize("kind", [TOPIC, BROKER])
async def test_a_list_that_no_string_holds_is_refused_before_it_is_stored(kind):
    """DescribeConfigs could not return it, and at last no node of the store would hold it."""
    key, name = {
        TOPIC: ("leader.replication.throttled.replicas", "t"),
        BROKER: ("metric.reporters", ""),
    }[kind]
    async with loaded_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {})
        parts = [",".join(f"{n}:{part}" for n in range(1_000, 5_000)) for part in (1, 2)]
        assert all(len(part) == 27_999 for part in parts)
        first = resource((key, SET, parts[0]), name=name, kind=kind)
        second = resource((key, APPEND, parts[1]), name=name, kind=kind)
        assert await altered(cluster, first) == OK
        before = (
            own(cluster) if kind is TOPIC else dict(cluster.context.stored.configs.get(kind, name))
        )
        assert before == {key: parts[0]}
        for validate_only in (True, False):
            [(code, text)] = await altered(cluster, second, validate_only=validate_only)
            assert code is ErrorCode.invalid_config
            assert f"{key} would have 55999 bytes, and the limit is 32767" in text
        after = (
            own(cluster) if kind is TOPIC else dict(cluster.context.stored.configs.get(kind, name))
        )
        assert after == before
        less = resource((key, SUBTRACT, parts[0]), name=name, kind=kind)
        assert await altered(cluster, less) == OK
        assert await altered(cluster, second) == OK


@given(
    st.lists(st.sampled_from("abc"), unique=True),
    st.sampled_from([APPEND, SUBTRACT]),
    st.lists(st.sampled_from("abcd"), max_size=3),
)
def test_lists_grow_and_shrink_as_sets_that_keep_their_order(current, operation, named):
    change = ConfigChange("cleanup.policy", operation, ",".join(named))
    after = apply_changes({"cleanup.policy": ",".join(current)}, [change])["cleanup.policy"]
    if operation is APPEND:
        due = list(dict.fromkeys(current + named))
    else:
        due = [item for item in current if item not in named]
    assert [item for item in after.split(",") if item] == due


def test_appending_begins_with_the_default():
    append = ConfigChange("cleanup.policy", APPEND, "compact")
    assert apply_changes({}, [append]) == {"cleanup.policy": "delete,compact"}
    with pytest.raises(InvalidConfig):
        apply_changes({}, [ConfigChange("segment.ms", SUBTRACT, "1")])


class Compared(str):
    """Text that counts how often it is compared with other text."""

    count = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Compared.count += 1
        return super().__eq__(other)


@pytest.mark.parametrize("change", [appended, without, subtracted])
def test_a_list_is_changed_in_one_pass(change):
    items = [Compared(n) for n in range(2_000)]
    named = [Compared(n) for n in range(1_000, 3_000)]
    Compared.count = 0
    after = change(items, named)
    assert Compared.count < 10_000
    assert after == [str(n) for n in range(3_000 if change is appended else 1_000)]


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abcd")))
def test_brokers_subtract_one_occurrence_for_each_name(items, named):
    due = list(items)
    for each in named:
        if each in due:
            due.remove(each)
    assert subtracted(items, named) == due

"""Goal: the broker's settings of consumer groups act, and bound the configs of groups as in Kafka.

Method: real requests to one gateway on virtual time, with settings as a start makes them. Texts and
codes are those of Apache Kafka 4.3.0: GroupConfig, GroupCoordinatorConfig, GroupCoordinatorService.
"""

import asyncio
from dataclasses import replace

import pytest

from gateway.config import CONSUMER_ASSIGNORS, GroupLimits
from gateway.core.consumer_assignors import ASSIGNORS
from gateway.core.consumer_members import ConsumerSettings
from gateway.settings import group_timing
from gateway.settings.broker_overrides import BROKER
from gateway.settings.group_timing import GROUP, GroupTiming
from tests.gateway.consumer_rig import Client, FakeTopics, beat, fresh_group
from tests.gateway.consumer_world import ConsumerWorld, partitions

DESCRIBE_CONFIGS, ALTER_CONFIGS = 32, 44
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
INTERVAL = "consumer.assignment.interval.ms"
WIDE = {
    "consumer_session_timeout_ms": 10_000,
    "consumer_session_timeout_ms_min": 6_000,
    "consumer_session_timeout_ms_max": 90_000,
    "consumer_heartbeat_interval_ms": 2_000,
    "consumer_heartbeat_interval_ms_min": 1_000,
    "consumer_heartbeat_interval_ms_max": 20_000,
    "consumer_assignment_interval_ms": 3_000,
    "consumer_assignment_interval_ms_min": 500,
    "consumer_assignment_interval_ms_max": 5_000,
}


class Site(ConsumerWorld):
    """A gateway whose stored configs of groups and brokers act."""

    async def __aenter__(self):
        await super().__aenter__()
        await self.context.stored.load()
        self.act()
        return self

    def act(self):
        """Begin as a start does, with what is stored."""
        timing = GroupTiming(self.context.stored.configs, self.context.altered, self.limits)
        self.groups.consumers.timing_of = timing.of

    async def alter(self, kind, name, **values):
        """Return the code and the text of IncrementalAlterConfigs. None deletes a config."""
        configs = [
            {"name": key, "config_operation": int(value is None), "value": value}
            for key, value in values.items()
        ]
        row = {"resource_type": kind, "resource_name": name, "configs": configs}
        reply = await self.ask(ALTER_CONFIGS, 1, {"resources": [row], "validate_only": False})
        return reply.responses[0].error_code.name, reply.responses[0].error_message

    async def configs(self, kind, name, *keys):
        """Return the configs of a resource as DescribeConfigs shows them."""
        row = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys)}
        body = {
            "resources": [row],
            "include_synonyms": True,
            "include_documentation": False,
        }
        found = (await self.ask(DESCRIBE_CONFIGS, 4, body)).results[0]
        return {each.name: each for each in found.configs}


def places(config):
    return [(each.name, each.value, each.source) for each in config.synonyms]


# -- assignors ------------------------------------------------------------------------------------


def test_the_assignors_that_can_be_enabled_are_those_that_exist():
    assert set(ASSIGNORS) == set(CONSUMER_ASSIGNORS)


@pytest.mark.parametrize("enabled", [("range",), ("range", "uniform")])
async def test_the_first_assignor_is_the_default(enabled):
    async with Site(consumer_assignors=enabled) as site:
        await site.beat("a")
        assert (await site.described()).assignor_name == "range"


async def test_an_assignor_that_is_not_enabled_is_refused():
    async with Site(consumer_assignors=("range",)) as site:
        refused = await site.beat("a", server_assignor="uniform")
        assert refused.error_code.name == "unsupported_assignor"
        text = "ServerAssignor uniform is not supported. Supported assignors: range."
        assert refused.error_message == text
        assert (await site.beat("a", server_assignor="range")).error_code.name == "none"


async def test_the_order_of_the_assignors_does_not_change_the_text():
    async with Site(consumer_assignors=("range", "uniform")) as site:
        refused = await site.beat("a", server_assignor="x")
        assert refused.error_message.endswith("Supported assignors: uniform, range.")


def test_a_preference_for_an_assignor_that_is_enabled_no_more_does_not_count():
    topics = FakeTopics()
    topics.make("t", 3)
    group = fresh_group()
    for name in ("a", "b"):
        beat(group, Client(name), topics)
    for name, member in list(group.members.items()):
        group.roster.members[name] = replace(member, assignor="range")
    assert group.assignor == "range"
    group._settings = ConsumerSettings(assignors=("uniform",))
    assert group.assignor == "uniform"


# -- times ----------------------------------------------------------------------------------------


async def test_the_brokers_heartbeat_interval_is_in_the_answers():
    async with Site(**WIDE) as site:
        assert (await site.beat("a")).heartbeat_interval.total_seconds() == 2


async def test_a_session_ends_after_the_brokers_timeout():
    async with Site(**WIDE) as site:
        await site.beat("a")
        await asyncio.sleep(9)
        assert (await site.beat("a", 2)).error_code.name == "none"
        await asyncio.sleep(11)
        assert (await site.beat("a", 2)).error_code.name == "unknown_member_id"


async def test_assignments_wait_for_the_brokers_interval():
    async with Site(**WIDE) as site:
        await site.beat("a")
        assert (await site.beat("b")).member_epoch == 2
        await asyncio.sleep(2.5)
        assert (await site.beat("b", 2)).member_epoch == 2
        await asyncio.sleep(0.6)
        assert (await site.beat("b", 2)).member_epoch == 3


async def test_the_configs_of_a_group_act_within_the_bounds():
    async with Site(**WIDE) as site:
        values = {SESSION: "60000", HEARTBEAT: "20000", INTERVAL: "500"}
        assert await site.alter(GROUP, "g", **values) == ("none", None)
        assert (await site.beat("a")).heartbeat_interval.total_seconds() == 20
        assert (await site.beat("b")).member_epoch == 2
        await asyncio.sleep(0.6)
        assert (await site.beat("b", 2)).member_epoch == 3
        await asyncio.sleep(50)
        assert (await site.beat("b", 3)).error_code.name == "none"
        other = await site.beat("c", group="h")
        assert other.heartbeat_interval.total_seconds() == 2
        assert partitions(other) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({SESSION: "5999"}, f"{SESSION} must be greater than or equal to group.consumer.min"),
        ({SESSION: "90001"}, f"{SESSION} must be less than or equal to group.consumer.max"),
        ({HEARTBEAT: "999"}, f"{HEARTBEAT} must be greater than or equal to group.consumer.min"),
        ({HEARTBEAT: "20001"}, f"{HEARTBEAT} must be less than or equal to group.consumer.max"),
        ({INTERVAL: "499"}, f"{INTERVAL} must be greater than or equal to group.consumer.min"),
        ({INTERVAL: "5001"}, f"{INTERVAL} must be less than or equal to group.consumer.max"),
        ({HEARTBEAT: "10000"}, f"{SESSION} must be greater than {HEARTBEAT}"),
        ({SESSION: "6000", HEARTBEAT: "6000"}, f"{SESSION} must be greater than {HEARTBEAT}"),
        ({SESSION: "1", HEARTBEAT: "1"}, f"{HEARTBEAT} must be greater than or equal to group."),
    ],
)
async def test_a_config_beyond_a_bound_gets_kafkas_text(values, text):
    async with Site(**WIDE) as site:
        code, told = await site.alter(GROUP, "g", **values)
        assert (code, text) == ("invalid_config", told[: len(text)])
        assert not site.context.stored.configs.get(GROUP, "g")


async def test_kafkas_own_bounds_hold_without_settings():
    async with Site() as site:
        assert (await site.alter(GROUP, "g", **{SESSION: "44999"}))[0] == "invalid_config"
        assert (await site.alter(GROUP, "g", **{SESSION: "60000"}))[0] == "none"
        assert (await site.alter(GROUP, "g", **{HEARTBEAT: "15001"}))[0] == "invalid_config"


async def test_a_config_beyond_a_new_bound_acts_as_the_bound(capsys):
    async with Site(**WIDE) as site:
        values = {SESSION: "90000", HEARTBEAT: "1000", INTERVAL: "5000"}
        assert await site.alter(GROUP, "g", **values) == ("none", None)
        site.limits = GroupLimits()
        capsys.readouterr()
        site.act()
        timing = site.groups.consumers.timing_of("g")
        assert timing[:3] == (60_000, 5_000, 5_000)
        logged = capsys.readouterr().err
        assert logged.count("acts as the bound") == 2
        for word in ("group=g", f"config={SESSION}", "stored=90000", "acts=60000"):
            assert word in logged


async def test_a_config_that_was_stored_within_other_bounds_is_shown_as_it_was_stored():
    async with Site(**WIDE) as site:
        await site.alter(GROUP, "g", **{SESSION: "90000"})
        site.context.config = site.context.config.__class__(groups=GroupLimits())
        assert (await site.configs(GROUP, "g", SESSION))[SESSION].value == "90000"


async def test_a_capped_config_is_logged_once_for_each_value(capsys):
    async with Site(**WIDE) as site:
        await site.alter(GROUP, "g", **{SESSION: "90000"})
        site.limits = GroupLimits()
        site.act()
        await site.beat("a")
        assert "stored=90000" in capsys.readouterr().err
        await site.beat("a", 2)
        assert "acts as the bound" not in capsys.readouterr().err
        await site.alter(GROUP, "g", **{SESSION: "80000"})
        await site.beat("a", 2)
        assert "stored=80000" in capsys.readouterr().err


async def test_capped_configs_of_very_many_groups_are_not_all_logged(capsys, monkeypatch):
    monkeypatch.setattr(group_timing, "GROUPS_LOGGED_MAX", 2)
    async with Site(**WIDE) as site:
        for group in ("g", "h", "i"):
            await site.alter(GROUP, group, **{SESSION: "90000"})
        site.limits = GroupLimits()
        site.act()
        times = [site.groups.consumers.timing_of(group) for group in ("g", "h", "i")]
        assert {each.session_timeout_ms for each in times} == {60_000}
        assert capsys.readouterr().err.count("acts as the bound") == 2


async def test_a_session_that_bounds_make_too_short_is_logged(capsys):
    async with Site(**WIDE) as site:
        await site.alter(GROUP, "g", **{SESSION: "30000", HEARTBEAT: "20000"})
        site.limits = GroupLimits(
            consumer_session_timeout_ms=15_000,
            consumer_session_timeout_ms_min=10_000,
            consumer_session_timeout_ms_max=20_000,
            consumer_heartbeat_interval_ms_max=20_000,
        )
        site.act()
        await site.beat("a")
        assert "not greater than its heartbeat interval" in capsys.readouterr().err


SHORT = GroupLimits(consumer_session_timeout_ms=10_000, consumer_session_timeout_ms_min=6_000)


async def test_a_heartbeat_interval_beyond_the_session_acts_as_a_third_of_it(capsys):
    async with Site() as site:
        await site.alter(GROUP, "g", **{HEARTBEAT: "15000"})  # within a session of 45 s
        site.limits = SHORT
        site.act()
        capsys.readouterr()
        joined = await site.beat("a")
        pause_s = joined.heartbeat_interval.total_seconds()
        assert pause_s == 3.333
        logged = capsys.readouterr().err
        for word in ("group=g", "heartbeat_interval_ms=15000", "session_timeout_ms=10000"):
            assert word in logged
        assert "acts as the bound" not in logged
        for _ in range(5):
            await asyncio.sleep(pause_s)
            assert (await site.beat("a", joined.member_epoch)).error_code.name == "none"
        assert capsys.readouterr().err == ""
        await site.alter(GROUP, "g", **{HEARTBEAT: "9999"})
        again = await site.beat("a", 0)
        assert again.heartbeat_interval.total_seconds() == 9.999


async def test_short_sessions_of_very_many_groups_are_not_all_logged(capsys, monkeypatch):
    monkeypatch.setattr(group_timing, "GROUPS_LOGGED_MAX", 2)
    async with Site() as site:
        for group in ("g", "h", "i"):
            await site.alter(GROUP, group, **{HEARTBEAT: "15000"})
        site.limits = SHORT
        site.act()
        capsys.readouterr()
        for group in ("g", "h", "i", "g", "i", "i"):
            assert site.groups.consumers.timing_of(group).heartbeat_interval_ms == 3_333
        assert capsys.readouterr().err.count("not greater than its heartbeat interval") == 2


async def test_a_capped_group_beyond_those_that_are_logged_warns_of_nothing_twice(
    capsys, monkeypatch
):
    monkeypatch.setattr(group_timing, "GROUPS_LOGGED_MAX", 1)
    async with Site(**WIDE) as site:
        for group in ("g", "h"):
            await site.alter(GROUP, group, **{SESSION: "30000", HEARTBEAT: "20000"})
        site.limits = GroupLimits(
            consumer_session_timeout_ms=15_000,
            consumer_session_timeout_ms_min=10_000,
            consumer_session_timeout_ms_max=20_000,
            consumer_heartbeat_interval_ms_max=20_000,
        )
        site.act()
        for _ in range(3):
            for group in ("g", "h"):
                site.groups.consumers.timing_of(group)
        assert capsys.readouterr().err.count("not greater than its heartbeat interval") == 1


async def test_a_stored_value_that_is_no_number_does_not_act():
    async with Site() as site:
        stored = {SESSION: "later"}
        await site.context.stored.configs.change(GROUP, "g", lambda _: stored)
        assert site.groups.consumers.timing_of("g").session_timeout_ms == 45_000


# -- the broker -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "0"])
@pytest.mark.parametrize(
    ("value", "end"),
    [
        ("499", "greater than or equal to group.consumer.min.assignment.interval.ms"),
        ("5001", "less than or equal to group.consumer.max.assignment.interval.ms"),
    ],
)
async def test_an_interval_of_the_broker_beyond_a_bound_is_refused(name, value, end):
    async with Site(**WIDE) as site:
        told = await site.alter(BROKER, name, **{f"group.{INTERVAL}": value})
        assert told == ("invalid_request", f"group.{INTERVAL} must be {end}")


@pytest.mark.parametrize("name", ["", "0"])
async def test_an_interval_that_was_stored_within_other_bounds_hinders_no_other_change(name):
    stored = {f"group.{INTERVAL}": "15000", "group.share.assignment.interval.ms": "20000"}
    async with Site(**WIDE) as site:
        await site.context.stored.configs.change(BROKER, name, lambda _: stored)
        assert await site.alter(BROKER, name, **{"log.retention.ms": "9"}) == ("none", None)
        assert site.context.stored.configs.get(BROKER, name) == stored | {"log.retention.ms": "9"}
        told = await site.alter(BROKER, name, **{f"group.{INTERVAL}": "15001"})
        assert told[0] == "invalid_request"
        assert await site.alter(BROKER, name, **{f"group.{INTERVAL}": None}) == ("none", None)


async def test_the_altered_interval_of_the_broker_acts_at_once():
    async with Site(**WIDE) as site:
        assert await site.alter(BROKER, "", **{f"group.{INTERVAL}": "500"}) == ("none", None)
        assert site.groups.consumers.timing_of("g").assignment_interval_ms == 500
        await site.alter(GROUP, "g", **{INTERVAL: "700"})
        assert site.groups.consumers.timing_of("g").assignment_interval_ms == 700


async def test_an_altered_interval_beyond_a_new_bound_is_capped_and_shown_so(capsys):
    async with Site(**WIDE) as site:
        await site.alter(BROKER, "0", **{f"group.{INTERVAL}": "5000"})
        narrow = GroupLimits(consumer_assignment_interval_ms_max=2_000)
        site.limits = narrow
        site.context.config = site.context.config.__class__(groups=narrow)
        site.act()
        assert site.groups.consumers.timing_of("g").assignment_interval_ms == 2_000
        assert f"config=group.{INTERVAL}" in capsys.readouterr().err
        shown = await site.configs(BROKER, "0", f"group.{INTERVAL}")
        assert shown[f"group.{INTERVAL}"].value == "2000"
        assert (await site.configs(GROUP, "g", INTERVAL))[INTERVAL].value == "2000"


async def test_the_broker_shows_what_it_was_started_with():
    async with Site(consumer_assignors=("range", "uniform"), **WIDE) as site:
        found = await site.configs(BROKER, "0")
        shown = {
            name: found[f"group.consumer.{name}"]
            for name in (
                *("assignors", "session.timeout.ms", "min.session.timeout.ms"),
                *("max.session.timeout.ms", "heartbeat.interval.ms", "min.heartbeat.interval.ms"),
                *("max.heartbeat.interval.ms", "assignment.interval.ms"),
                *("min.assignment.interval.ms", "max.assignment.interval.ms"),
            )
        }
        values = [each.value for each in shown.values()]
        assert values == [
            "range,uniform",
            *(
                str(WIDE[f"consumer_{name}"])
                for name in (
                    *("session_timeout_ms", "session_timeout_ms_min", "session_timeout_ms_max"),
                    *(
                        "heartbeat_interval_ms",
                        "heartbeat_interval_ms_min",
                        "heartbeat_interval_ms_max",
                    ),
                    *("assignment_interval_ms", "assignment_interval_ms_min"),
                    "assignment_interval_ms_max",
                )
            ),
        ]
        assert {each.config_source for each in shown.values()} == {4}
        assert [name for name, each in shown.items() if not each.read_only] == [
            "assignment.interval.ms"
        ]
        assert places(shown["session.timeout.ms"]) == [
            ("group.consumer.session.timeout.ms", "10000", 4),
            ("group.consumer.session.timeout.ms", "45000", 5),
        ]


async def test_a_group_without_configs_shows_those_of_the_broker():
    async with Site(**WIDE) as site:
        await site.alter(BROKER, "", **{f"group.{INTERVAL}": "600"})
        found = await site.configs(GROUP, "g", SESSION, INTERVAL, "share.session.timeout.ms")
        assert (found[SESSION].value, found[SESSION].config_source) == ("10000", 4)
        assert (found[INTERVAL].value, found[INTERVAL].config_source) == ("600", 3)
        assert places(found[INTERVAL]) == [
            (f"group.{INTERVAL}", "600", 3),
            (f"group.{INTERVAL}", "3000", 4),
            (f"group.{INTERVAL}", "1000", 5),
        ]
        share = found["share.session.timeout.ms"]
        assert (share.value, share.config_source) == ("45000", 5)
        await site.alter(GROUP, "g", **{INTERVAL: "700"})
        own = (await site.configs(GROUP, "g", INTERVAL))[INTERVAL]
        assert (own.value, own.config_source) == ("700", 8)
        assert places(own)[:2] == [(INTERVAL, "700", 8), (f"group.{INTERVAL}", "600", 3)]

"""Goal: limits of connections are Kafka's: of all, of an address, of single ones, of a listener.

Method: a registry in memory with limits as configured and as altered at runtime, and the settings
that make them.
"""

from __future__ import annotations

import pytest

from gateway.config import ConnectionLimits, QuotaConfig
from gateway.process import dev
from gateway.settings.broker_overrides import AlteredLimits, overrides_of
from ledger.command_line.program import flags_of
from tests.gateway.wire_peer import hub_for

HERE, THERE = "127.0.0.1", "10.0.0.1"


class Quiet:
    """A connection without a byte."""

    received_bytes = written_bytes = 0

    def __init__(self, listener="PLAINTEXT"):
        self.listener = listener


def admitted(registry, host, count=10, listener="PLAINTEXT"):
    """Return how many connections are admitted."""
    return sum(registry.admit(Quiet(listener), host) for _ in range(count))


async def test_without_a_configured_limit_loopback_is_exempt():
    registry = hub_for(connections_per_address_max=3)
    assert (admitted(registry, HERE), admitted(registry, THERE)) == (10, 3)


async def test_a_configured_limit_of_addresses_includes_loopback():
    registry = hub_for(connections_per_address_max=3, counts_loopback=True)
    assert (admitted(registry, HERE), admitted(registry, "::1")) == (3, 3)
    altered = hub_for(connections_per_address_max=300)
    altered.limit_connections(AlteredLimits(per_address=2))
    assert admitted(altered, HERE) == 2
    altered.limit_connections(AlteredLimits())
    assert admitted(altered, HERE) == 10


async def test_a_limit_of_zero_lets_one_connection_of_this_machine_take_it_back():
    registry = hub_for()
    registry.limit_connections(AlteredLimits(per_address=0))
    assert (admitted(registry, THERE), admitted(registry, HERE)) == (0, 1)


async def test_single_addresses_have_limits_of_their_own():
    registry = hub_for(
        connections_per_address_max=2, counts_loopback=True, per_address=((THERE, 5), (HERE, 0))
    )
    assert [admitted(registry, host) for host in (THERE, HERE, "10.0.0.2")] == [5, 0, 2]
    registry.limit_connections(AlteredLimits(overrides={"10.0.0.3": 1}))
    assert [admitted(registry, host) for host in ("10.0.0.3", HERE)] == [1, 2]


async def test_listeners_have_limits_of_their_own_and_places_are_free_again():
    registry = hub_for(per_listener=(("OUT", 2),))
    assert admitted(registry, THERE, listener="OUT") == 2
    assert admitted(registry, THERE, listener="IN") == 10
    registry.remove(next(iter(registry.connections)))
    assert admitted(registry, THERE, listener="OUT") == 1
    assert registry.counts().by_listener == {"OUT": 2, "IN": 10}
    registry.limit_connections(AlteredLimits(per_listener={"IN": 11}))
    assert admitted(registry, THERE, listener="IN") == 1


async def test_the_listener_of_brokers_may_exceed_the_limit_of_all():
    registry = hub_for(connections_max=3, protected_listener="INTERNAL")
    assert admitted(registry, THERE, listener="OUT") == 3
    assert not registry.admit(Quiet("OUT"), THERE)
    assert admitted(registry, THERE, listener="INTERNAL") == 0  # it was the only one until now
    registry = hub_for(connections_max=3, protected_listener="INTERNAL")
    assert admitted(registry, THERE, 1, listener="INTERNAL") == 1
    assert admitted(registry, THERE, listener="OUT") == 2
    assert admitted(registry, THERE, 5, listener="INTERNAL") == 5


WORDS = [
    *("--max-connections", "20", "--max-connections-per-ip", "5"),
    *("--max-connections-per-ip-overrides", "10.0.0.1:7, [::1]:0"),
    *("--max-connections-per-listener", "out:3,IN:4", "--quota-window-num", "3"),
    *("--controller-quota-window-size", "2s"),
]


def config_of(*words):
    return dev.config_of(dev.settings_of(flags_of(dev.dev, list(words))))


def test_settings_make_the_limits_and_the_windows():
    config = config_of(*WORDS)
    limits = config.connection
    assert (limits.connections_max, limits.connections_per_address_max) == (20, 5)
    assert limits.counts_loopback
    assert dict(limits.per_address) == {THERE: 7, "::1": 0}
    assert dict(limits.per_listener) == {"OUT": 3, "IN": 4}
    assert config.quotas == QuotaConfig(samples=3, controller_sample_ms=2_000)


def test_without_settings_the_limits_are_those_of_before():
    config = config_of()
    assert config.connection == ConnectionLimits()
    assert config.quotas == QuotaConfig()


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--max-connections-per-ip-overrides", "host:3", "host names are not resolved"),
        ("--max-connections-per-ip-overrides", "10.0.0.1", "an address and a count"),
        ("--max-connections-per-ip-overrides", "10.0.0.1:3,10.0.0.1:4", "twice"),
        ("--max-connections-per-listener", "OUT:99999999999", "is more than"),
        ("--quota-window-num", "0", "between 1 and"),
    ],
)
def test_a_limit_that_cannot_be_used_is_refused(flag, value, said):
    (fault,) = dev.settings_of(flags_of(dev.dev, [flag, value])).faults
    assert flag in fault
    assert said in fault


def test_overrides_of_kafkas_key_are_read_and_host_names_are_left_out():
    assert overrides_of("10.0.0.1:5, [::1]:3,host:x") == {"10.0.0.1": 5, "::1": 3}
    assert overrides_of("") == {}

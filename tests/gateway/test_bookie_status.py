"""Goal: an operator sees which bookies each gateway avoids, since when and why.

Method: the greylist of a real client on virtual time, through the handler of DescribeConfigs, to
the command; the numbers on the metrics page by `Samples`; one gateway process by its own command.
"""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from gateway.admin.bookie_status import bookie_status, remarks, table_rows
from gateway.admin.client import AdminError, Unreachable
from gateway.handlers import k32_describe_configs
from gateway.metrics.samples import Samples
from gateway.process.greylist_view import avoided_bookies
from gateway.topics.broker_configs import GREYLIST
from gateway.topics.greylist_report import parse_report
from ledger.client.health import Answer
from ledger.core.bookie_health import SlowDetection
from ledger.core.latency import SampleKind
from tests.gateway.handler_cluster import Cluster
from tests.ledger.calm_cluster import cluster

BROKER = 4
NAMES = ("b0", "b2", "b3")


def gateway_of(**settings):
    """A gateway, and the health of bookies as its ledger client sees them."""
    health = cluster(bookies=4, **settings).client("gateway").health
    gateway = Cluster()
    gateway.context.avoided_bookies = partial(avoided_bookies, health)
    return gateway, health


async def some_found(health):
    """`b1` fails, `b3` is slow."""
    for _ in range(3):
        health.on_result("b1", ok=False)
    for _ in range(10):
        for bookie, seconds in (("b0", 0.001), ("b2", 0.001), ("b3", 0.2)):
            await asyncio.sleep(0.001)
            answer = Answer(SampleKind.READ, 100, NAMES)
            health.on_sample(bookie, answer, seconds, beside=NAMES)


class Asked:
    """The connection of a command to gateways by node id; None does not answer."""

    def __init__(self, **gateways):
        self._gateways = {int(name.removeprefix("g")): one for name, one in gateways.items()}

    async def brokers(self):
        return [SimpleNamespace(node_id=n, host="gw", port=9000 + n) for n in self._gateways]

    async def at_broker(self, broker, key, fields, version_max):
        gateway = self._gateways[broker.node_id]
        if gateway is None:
            raise Unreachable("it is down")
        asked = fields(version_max)["resources"]
        assert asked[0]["resource_name"] == str(broker.node_id)
        asked = [asked[0] | {"resource_name": "3"}]  # the node id of every handler here
        return await gateway.ask(k32_describe_configs, version_max, resources=asked)


async def test_each_gateway_reports_whom_it_avoids_since_when_and_why():
    gateway, health = gateway_of()
    await some_found(health)
    await asyncio.sleep(5)
    [row] = await bookie_status(Asked(g0=gateway))
    assert (row["gateway"], row["address"], row["detection"]) == (0, "gw:9000", "enabled")
    failing, slow = row["bookies"]
    assert (failing["bookie"], failing["reason"]) == ("b1", "failing")
    assert (slow["bookie"], slow["reason"]) == ("b3", "slow")
    assert slow["why"] == "reads up to 4 KiB: 200 ms, the others 1.0 ms"
    assert slow["since"] == "2023-11-14T22:13:20+00:00"
    assert slow["until"] == "2023-11-14T22:14:20+00:00"
    assert [each["bookie"] for each in table_rows([row])] == ["b1", "b3"] and not remarks([row])
    await asyncio.sleep(60)
    assert (await bookie_status(Asked(g0=gateway)))[0]["bookies"] == []


async def test_a_gateway_that_is_away_or_old_or_only_observes_is_named():
    observing, health = gateway_of(reader_slow_shards_detection=SlowDetection.OBSERVE_ONLY)
    await some_found(health)
    found = await bookie_status(Asked(g0=observing, g1=None, g2=Cluster()))
    assert [row["detection"] for row in found] == ["observe-only", "unreachable", "unknown"]
    assert [each["bookie"] for each in found[0]["bookies"]] == ["b1", "b3"]
    assert len(remarks(found)) == 3 and "gateway 1 (gw:9001) did not answer" in remarks(found)


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "{", "[]", "{}", "[" * 100_000, '{"bookies": 1}', '{"bookies": []}'),
        *('{"bookies": [1], "detection": "enabled"}', '{"bookies": [], "detection": {}}'),
    ],
)
def test_what_is_no_report_is_none(text):
    assert parse_report(text) is None


async def test_who_may_not_ask_is_told_so():
    class Refusing:
        async def ask(self, handler, version, **fields):
            code = ErrorCode.cluster_authorization_failed
            result = SimpleNamespace(error_code=code, error_message=None, configs=[])
            return SimpleNamespace(results=[result])

    with pytest.raises(AdminError) as found:
        await bookie_status(Asked(g0=Refusing()))
    assert found.value.code == "CLUSTER_AUTHORIZATION_FAILED"


async def test_the_config_is_read_only_and_left_out_without_a_ledger_client():
    gateway, _ = gateway_of()
    asked = [{"resource_type": BROKER, "resource_name": "3", "configuration_keys": [GREYLIST]}]
    answer = await gateway.ask(k32_describe_configs, 4, resources=asked)
    [config] = answer.results[0].configs
    assert config.read_only and parse_report(config.value) == {
        "detection": "enabled",
        "bookies": [],
    }
    answer = await Cluster().ask(k32_describe_configs, 4, resources=asked)
    assert [each.value for each in answer.results[0].configs] == [None]


async def test_the_metrics_page_counts_them():
    gateway, health = gateway_of()
    await some_found(health)
    samples = Samples(gateway.context)
    samples._bookies()
    [family] = samples._families.values()
    assert family.name == "gateway_bookies_greylisted"
    assert family.samples == [(("failing", "enabled"), 1), (("slow", "enabled"), 1)]

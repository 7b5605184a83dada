"""Goal: a command that asks every gateway or every partition names those that did not answer.

Method: small servers on loopback ports that answer from one shared picture of a cluster.
"""

import json

import pytest

from gateway.admin.cleaning import topic_cleaning
from gateway.admin.hanging_transactions import find_hanging
from gateway.cleaning.report import CleaningReport, describe_cleaning
from tests.gateway.test_admin_routing import Cluster, three_servers

pytestmark = pytest.mark.real_loop

BROKER = 4
PRODUCER = {
    "producer_id": 7,
    "producer_epoch": 0,
    "last_sequence": 2,
    "last_timestamp": 1_000,
    "coordinator_epoch": 0,
    "current_txn_start_offset": 5,
}


class Reporting(Cluster):
    """Also answers requests for configs, producers and transactions."""

    def __init__(self):
        super().__init__()
        self.reports = {}  # node id: rows on the cleaning of topic t

    def _32(self, node_id, body, code):
        (asked,) = body.resources
        configs = [("cleanup.policy", "compact")]
        if asked.resource_type == BROKER:
            assert asked.configuration_keys == ("gateway.cleaning.t",)
            configs = [("gateway.cleaning.t", json.dumps(self.reports[node_id]))]
        return {
            "results": [
                {
                    "error_code": 0,
                    "resource_type": asked.resource_type,
                    "resource_name": asked.resource_name,
                    "configs": [{"name": name, "value": value} for name, value in configs],
                }
            ]
        }

    def _61(self, node_id, body, code):
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": index, "error_code": 0, "active_producers": [PRODUCER]}
                        for index in topic.partition_indexes
                    ],
                }
                for topic in body.topics
            ]
        }

    def _66(self, node_id, body, code):
        return {"error_code": 0, "unknown_state_filters": [], "transaction_states": []}


def row(partition):
    return {"topic": "t", "partition": partition}


async def test_gateways_that_do_not_answer_and_long_reports_are_named():
    async with three_servers(made=Reporting) as (client, cluster, servers):
        cluster.reports = {1: [row(2), row(0)], 3: [row(1), {"left_out": 17}]}
        servers[2].close()
        await servers[2].wait_closed()
        found = await topic_cleaning(client, "t")
        assert found.compacted
        assert [each["partition"] for each in found.rows] == [0, 1, 2]
        unreachable, long = found.missing
        assert (unreachable.code, long.code) == ("UNREACHABLE", "INCOMPLETE")
        assert f"gateway 127.0.0.1:{cluster.ports[2]} (2): " in str(unreachable)
        assert str(long).endswith("(3): its report leaves out 17 partitions")


def test_a_report_counts_the_partitions_that_it_leaves_out():
    reports = [CleaningReport("u", 0), *(CleaningReport("t", n) for n in range(1_002))]
    rows = json.loads(describe_cleaning("t", reports, 0).value)
    assert [each["partition"] for each in rows[:-1]] == list(range(1_000))
    assert rows[-1] == {"left_out": 2}
    assert [each["topic"] for each in json.loads(describe_cleaning("u", reports, 0).value)] == ["u"]


@pytest.mark.parametrize("topic", [None, "t"])
async def test_a_partition_without_a_leader_does_not_hide_hanging_transactions_of_others(topic):
    async with three_servers(made=Reporting, retry_s_max=0.3) as (client, cluster, _servers):
        cluster.leaders = {("t", 0): 1, ("t", 1): -1, ("t", 2): 3}
        rows, missing = await find_hanging(client, topic, None, 0)
        assert [(each["partition"], each["start_offset"]) for each in rows] == [(0, 5), (2, 5)]
        assert [str(each) for each in missing] == ["t-1: no leader answers"]

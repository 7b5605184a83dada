"""Goal: each fault of a cluster is found, with what to do, and a healthy one has none.

Method: facts by hand; one is wrong at a time.
"""

from __future__ import annotations

import pytest

from gateway.core.cluster_health import (
    UNKNOWN,
    BrokerFacts,
    ClusterFacts,
    DiskFacts,
    LedgerFacts,
    judge,
)

LEDGERS = LedgerFacts({"b1": "rw", "b2": "rw"}, 2, "orders", [], True, True)
WELL = ClusterFacts(
    brokers=[BrokerFacts(1, "h:9092", True)],
    leaderless={},
    short={},
    disks=[DiskFacts("the disk of b1", 100, 50)],
    ledgers=LEDGERS,
)


def failed(facts):
    return [each for each in judge(facts) if each.result != "ok"]


def test_a_healthy_cluster_has_no_finding():
    assert failed(WELL) == []
    assert failed(WELL._replace(ledgers=LEDGERS._replace(has_auditor=None))) == []


def test_ledgers_out_of_reach_name_each_server_that_shows_none():
    found = [each for each in failed(WELL._replace(ledgers=None)) if each.result == UNKNOWN]
    assert [each.check for each in found] == ["copies", "repair", "bookies"]
    for each in found:
        fix = each.fix or ""
        assert "ZooKeeper" in fix and "Apache Kafka" in fix and "`gateway dev --secure`" in fix


def with_ledgers(**changed):
    return WELL._replace(ledgers=LEDGERS._replace(**changed))


@pytest.mark.parametrize(
    ("facts", "check", "finding", "fix"),
    [
        (
            WELL._replace(brokers=[BrokerFacts(1, "h:9092", False)]),
            "gateways",
            "node 1 at h:9092 does not answer",
            "start it again",
        ),
        (
            WELL._replace(leaderless={"orders": [0, 1, 2, 3, 4, 5, 6]}),
            "leaders",
            "topic orders has no leader for partition 0, 1, 2, 3, 4 and 2 more",
            "start a gateway",
        ),
        (WELL._replace(short={"a": [1]}), "in-sync replicas", "a lacks", "start the brokers"),
        (
            with_ledgers(underreplicated=[7, 8]),
            "copies",
            "2 ledgers lack copies: 7, 8",
            "`gateway ledger why 7`",
        ),
        (with_ledgers(repair_enabled=False), "repair", "repair is disabled", "enable it"),
        (with_ledgers(has_auditor=False), "repair", "no auditor runs", "start `bookie audit`"),
        (
            with_ledgers(bookies={"b1": "rw", "b2": "rw", "b3": "away"}),
            "bookies",
            "bookie b3 is away",
            "gateway bookie decommission b3",
        ),
        (
            with_ledgers(bookies={"b1": "rw", "b2": "rw", "b3": "silent"}),
            "bookies",
            "bookie b3 does not answer",
            "start it again",
        ),
        (
            with_ledgers(bookies={"b1": "rw", "b2": "rw", "b3": "ro"}),
            "bookies",
            "bookie b3 is read-only",
            "disk space",
        ),
        (
            with_ledgers(copies_max=3),
            "bookies",
            "2 bookies take entries, and topic orders has 3 copies",
            "start more bookies",
        ),
        (
            WELL._replace(disks=[DiskFacts("d", 100, 4)]),
            "disks",
            "d is 96% full",
            "retention.bytes",
        ),
        (
            WELL._replace(disks=[DiskFacts("d", None, None, "KAFKA_STORAGE_ERROR")]),
            "disks",
            "d failed: KAFKA_STORAGE_ERROR",
            "replace the disk",
        ),
    ],
)
def test_a_fault_is_found_with_its_fix(facts, check, finding, fix):
    (found,) = failed(facts)
    assert (found.check, found.result) == (check, "fail")
    assert finding in found.finding
    assert fix in found.fix


def test_what_no_server_says_is_unknown_and_no_fault():
    checks = judge(WELL._replace(ledgers=None, disks=[DiskFacts("d", None, None)]))
    results = {each.check: each.result for each in checks}
    assert results == {
        "gateways": "ok",
        "leaders": "ok",
        "in-sync replicas": "ok",
        "copies": "unknown",
        "repair": "unknown",
        "bookies": "unknown",
        "disks": "unknown",
    }


def test_many_findings_of_a_kind_are_cut():
    checks = failed(WELL._replace(leaderless={f"t{number}": [0] for number in range(30)}))
    assert len(checks) == 11
    assert checks[-1].finding == "20 more of these"

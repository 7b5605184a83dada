"""Goal: `gateway doctor` judges what it found as its documents say, and never hangs or breaks.

Method: tables of facts and expected states for the pure judgements, at and beside each threshold;
checks that hang, fail and crash run beside good ones; the page of the checks is compared with the
code.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from gateway.admin import doctor_findings as form
from gateway.admin.client import Unreachable
from gateway.admin.configs import broker_keys_with_effect
from gateway.admin.doctor import PROBES, diagnose, failed
from gateway.admin.doctor_facts import (
    Answer,
    ClockReading,
    Copies,
    Files,
    Idle,
    Lag,
    LedgerFacts,
    Level,
    Lookup,
    NoLeader,
    Release,
    Session,
    Space,
    Store,
    SyncTimes,
)
from gateway.admin.doctor_findings import CHECKS, Finding, State, ok, seconds, summary, worst
from gateway.admin.doctor_judgement import (
    judge_address,
    judge_bootstrap,
    judge_clocks,
    judge_disk,
    judge_dns,
    judge_files,
    judge_lag,
    judge_leaders,
    judge_sessions,
    judge_sync,
    judge_versions,
)
from gateway.admin.doctor_storage_judgement import judge_ledgers, judge_racks, judge_settings
from gateway.core.config_effect import TOPIC_KEYS_WITH_EFFECT
from tests.house import ROOT

MIB = 1 << 20
GIB = 1 << 30
pytestmark = pytest.mark.unit


def bookies(*racks, read_only=0):
    return [Store(f"b{n}", rack, n >= read_only) for n, rack in enumerate(racks)]


ANSWERS = Answer("10.0.0.1:9092", None, "c1")
SILENT = Answer("10.0.0.2:9092", "10.0.0.2:9092 did not answer within 4 s")
THREE = [Copies("orders", 3), Copies("logs", 1)]
COPIES = {"topics": THREE}
JUDGED = [
    ("ok", judge_bootstrap([ANSWERS]), "10.0.0.1:9092 answers"),
    ("ok", judge_bootstrap([ANSWERS, ANSWERS]), "10.0.0.1:9092, 10.0.0.1:9092 answer"),
    ("warn", judge_bootstrap([ANSWERS, SILENT]), "1 of 2 do not answer: 10.0.0.2:9092 did not"),
    ("fail", judge_bootstrap([SILENT]), "did not answer within 4 s"),
    ("ok", judge_address([ANSWERS], "c1"), "1 broker can be reached"),
    ("fail", judge_address([ANSWERS, SILENT], "c1"), "broker at 10.0.0.2:9092"),
    ("fail", judge_address([ANSWERS], "c2"), "another cluster answers (c1 instead of c2)"),
    ("unknown", judge_address([], "c1"), "no broker"),
    ("ok", judge_dns([]), "all servers are given as addresses"),
    ("ok", judge_dns([Lookup("a.example", 0.1, ("10.0.0.1",))]), "1 name resolved: a.example"),
    ("warn", judge_dns([Lookup("a.example", 1.5, ("10.0.0.1",))]), "a.example took 1.5 s"),
    ("fail", judge_dns([Lookup("a.example", 0.1, (), "Name or service not known")]), "a.example"),
    ("ok", judge_clocks([ClockReading("gateway 0", 400.0)]), "2 clocks within 400 ms"),
    ("ok", judge_clocks([ClockReading("gateway 0", 900.0, within_ms=500)]), "2 clocks"),
    ("warn", judge_clocks([ClockReading("gateway 0", 500.0)]), "500 ms ahead of this machine"),
    ("warn", judge_clocks([ClockReading("gateway 0", -4_999.0)]), "5 s behind this machine"),
    ("fail", judge_clocks([ClockReading("gateway 0", 5_000.0)]), "5 s ahead of this machine"),
    ("unknown", judge_clocks([]), "no process reports its clock"),
    ("unknown", judge_clocks([ClockReading("b1", None, 0, "silent")]), "b1: silent"),
    (
        "unknown",
        judge_clocks([ClockReading("b1", None, 0, "silent"), ClockReading("b2", 1.0)]),
        "b1: silent",
    ),
    (
        "fail",  # the clock of this machine is the wrong one
        judge_clocks([ClockReading("b1", 9_000.0), ClockReading("b2", 9_010.0)]),
        "this machine is 9 s behind b1",
    ),
    (
        "fail",
        judge_clocks([ClockReading("b1", 10.0), ClockReading("b2", -8_000.0)]),
        "b2 is 8 s behind this machine",
    ),
    ("ok", judge_sync(SyncTimes("/data", (1.0,) * 50)), "50 syncs of 64 KiB took 1.0 ms each"),
    ("warn", judge_sync(SyncTimes("/data", (20.0,) * 50)), "20.0 ms"),
    ("warn", judge_sync(SyncTimes("/data", (*(1.0,) * 49, 500.0))), "the slowest 500.0 ms"),
    ("fail", judge_sync(SyncTimes("/data", (100.0,) * 50)), "100.0 ms"),
    ("fail", judge_sync(SyncTimes("/data", (), "Read-only file system")), "Read-only file"),
    ("ok", judge_disk([Space("/data", 50 * GIB, 100 * GIB)]), "50.0GiB free of 100.0GiB"),
    ("warn", judge_disk([Space("/data", 9 * GIB, 100 * GIB)]), "9.0GiB free"),
    ("warn", judge_disk([Space("/data", GIB - 1, 2 * GIB)]), "free of 2.0GiB"),
    ("fail", judge_disk([Space("/data", 256 * MIB - 1, GIB)]), "free of 1.0GiB"),
    ("fail", judge_disk([Space("bookie b1", 50 * GIB, 90 * GIB, False)]), "takes no writes"),
    ("unknown", judge_disk([Space("bookie b1", None, fault="no answer")]), "b1: no answer"),
    (
        "fail",
        judge_disk([Space("/data", 50 * GIB, 90 * GIB), Space("bookie b1", 0, GIB, False)]),
        "bookie b1: 0B free of 1.0GiB, takes no writes",
    ),
    ("ok", judge_files([Files("user 0 here", None)]), "no limit"),
    ("ok", judge_files([Files("user 0 here", 11_000)]), "may open 11,000 files"),
    ("warn", judge_files([Files("user 0 here", 10_999)]), "may open 10,999 files"),
    ("fail", judge_files([Files("user 0 here", 64)]), "may open 64 files"),
    ("warn", judge_files([Files("gateway 0", 20_000, 16_000)]), "16,000 are open"),
    ("fail", judge_files([Files("gateway 0", 20_000, 19_000)]), "19,000 are open"),
    ("ok", judge_sessions(None, []), "not used"),
    ("ok", judge_sessions(None, [Session("this command", 10_000, 10_000)]), "granted 10 s"),
    ("warn", judge_sessions(None, [Session("gateway 0", 10_000, 5_000)]), "5 s instead of 10 s"),
    ("fail", judge_sessions(None, [Session("gateway 0", 10_000, 4_999)]), "instead of 10 s"),
    ("fail", judge_sessions("no ZooKeeper", []), "no ZooKeeper"),
    ("ok", judge_versions([Release("gateway 0", "0.1.0")], []), "of release 0.1.0"),
    (
        "warn",
        judge_versions([Release("gateway 0", "0.1.0"), Release("gateway 1", "0.1.1")], []),
        "0.1.0: gateway 0; 0.1.1: gateway 1",
    ),
    (
        "fail",
        judge_versions([Release("gateway 0", "0.1.0"), Release("gateway 1", "0.2.0")], []),
        "0.2.0: gateway 1",
    ),
    ("warn", judge_versions([Release("gateway 0", "1.4.0"), Release("b1", "1.5.0")], []), "1.5"),
    ("fail", judge_versions([Release("gateway 0", "1.4.0"), Release("b1", "2.0.0")], []), "2.0"),
    (
        "warn",
        judge_versions([Release("gateway 0", "0.1.0")], [Level("gateway.version", 2, 3)]),
        "gateway.version is 2, and 3 is supported",
    ),
    ("unknown", judge_versions([Release("b1", None)], []), "b1 report no release"),
    ("unknown", judge_versions([], []), "no process reports"),
    ("ok", judge_racks(bookies("/a", "/b", "/c", "/a"), **COPIES), "4 bookies in 3 racks"),
    ("ok", judge_racks(bookies("/default-rack"), [Copies("t", 1)]), "1 bookie in 1 rack"),
    ("warn", judge_racks(bookies("/a", "/b", "/c"), **COPIES), "no bookie is spare"),
    ("warn", judge_racks(bookies("/a", "/a", "/a", "/a"), THREE, ("b",)), "there are 2 racks"),
    ("warn", judge_racks(bookies("/a", "/b", "/a", "/b"), THREE, ("c",)), "in rack /c of a gate"),
    ("warn", judge_racks(bookies("/a", "/b", "/default-rack", "/b"), **COPIES), "1 without"),
    ("fail", judge_racks(bookies("/a", "/b"), **COPIES), "3 copies are asked for by orders"),
    ("fail", judge_racks(bookies("/a", "/b", "/c", read_only=1), **COPIES), "2 bookies take"),
    ("fail", judge_racks([], []), "0 bookies take writes"),
    ("ok", judge_leaders(3, []), "3 partitions, each with a leader"),
    ("fail", judge_leaders(3, [NoLeader("orders", 1, "LEADER_NOT_AVAILABLE")]), "orders-1"),
    ("fail", judge_leaders(1, [NoLeader("orders", -1, "OFFLINE")]), "leader: orders (OFFLINE)"),
    ("ok", judge_ledgers(LedgerFacts(7)), "7 ledgers with all copies"),
    ("warn", judge_ledgers(LedgerFacts(7, lacking=("3",))), "1 ledger under-replicated: 3"),
    ("warn", judge_ledgers(LedgerFacts(7, away=("b1",))), "absent, and named by ledgers: b1"),
    ("warn", judge_ledgers(LedgerFacts(7, auditor=False)), "no auditor runs"),
    ("fail", judge_ledgers(LedgerFacts(7, lost=("3",))), "entries that no bookie has: 3"),
    ("fail", judge_ledgers(LedgerFacts(7, unreachable=("3",))), "without a bookie that is pre"),
    ("fail", judge_ledgers(LedgerFacts(7, unreadable=("3",))), "metadata that cannot be read: 3"),
    ("ok", judge_lag(0, []), "there are no groups"),
    ("ok", judge_lag(1, [Lag("g", "t", 0, 5, 59.0, True)]), "1 group, none more than 60 s"),
    ("warn", judge_lag(1, [Lag("g", "t", 0, 5, 60.0, True)]), "group g is 60 s behind in t-0"),
    ("fail", judge_lag(1, [Lag("g", "t", 0, 5, 3_600.0, True)]), "60 min behind in t-0 (5 rec"),
    ("warn", judge_lag(1, [Lag("g", "t", 0, 5, 3_600.0, False)]), "without members"),
    ("ok", judge_lag(1, [Lag("g", "t", 0, 5, 3_599.0, False)]), "1 group"),
    ("unknown", judge_lag(1, [Lag("g", "t", 0, 5, None, True)]), "did not return the times"),
    ("unknown", judge_lag(1, [], 40), "40 more partitions"),
    ("ok", judge_settings([]), "has an effect"),
    ("warn", judge_settings([Idle("topic t", "flush.ms")]), "flush.ms of topic t"),
]


@pytest.mark.parametrize(("state", "found", "words"), JUDGED)
def test_facts_lead_to_the_state_and_the_words(state, found, words):
    assert (found.state, words in found.finding) == (state, True), found
    assert bool(found.fix) == (state in ("warn", "fail")) or state == "unknown"


def test_each_check_has_facts_that_are_ok_and_facts_that_fail():
    by_state = {(found.check, state) for state, found, _ in JUDGED}
    failing = {each.name for each in CHECKS if each.fails != "never"}
    assert {name for name, state in by_state if state == "fail"} == failing
    assert {name for name, state in by_state if state == "ok"} == set(form.BY_NAME)
    assert set(PROBES) == set(form.BY_NAME)


def test_many_names_are_counted():
    faults = [Answer(f"s{n}", f"fault {n}") for n in range(9)]
    assert judge_bootstrap(faults).finding == "fault 0, fault 1, fault 2 and 6 more"


def test_the_worst_finding_stands_for_all_and_unknown_is_worse_than_ok():
    rows = [ok("disk", "a"), Finding("disk", State.unknown, "b"), ok("disk", "c")]
    assert worst(rows) == Finding("disk", State.unknown, "b")
    rows += [form.warn("disk", "d"), form.warn("disk", "e"), form.fail("disk", "f")]
    assert (worst(rows).state, worst(rows).finding) == ("fail", "f")
    assert worst(rows[:-1]).finding == "d; e"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.001, "1 ms"),
        (0.62, "620 ms"),
        (6.24, "6.24 s"),
        (300, "5 min"),
        (11_160, "3.1 h"),
        (2.5 * 86_400, "2.5 d"),
    ],
)
def test_durations_are_for_people(value, shown):
    assert seconds(value) == shown


def test_the_summary_counts_each_state():
    rows = [ok("dns", ""), form.fail("sync", ""), form.warn("disk", ""), form.unknown("lag", "")]
    assert summary(rows) == "1 of 4 checks failed; 1 warned, 1 could not be done."
    assert summary(rows[:1]) == "None of 1 check failed."
    assert failed(rows) and not failed(rows[2:])


async def _good(site, wait_s):
    return ok("dns", "good")


async def _hangs(site, wait_s):
    await asyncio.Event().wait()
    raise AssertionError


async def _crashes(site, wait_s):
    raise ZeroDivisionError("a mistake")


async def _refused(site, wait_s):
    raise Unreachable("no server at 127.0.0.1:1: Connection refused")


async def test_a_check_that_hangs_or_crashes_is_unknown_and_the_others_go_on():
    probes = {"bootstrap": _hangs, "address": _crashes, "dns": _good, "clocks": _refused}
    found = await diagnose(None, frozenset(probes), 10.0, probes)
    assert found == [
        Finding(
            "bootstrap", State.unknown, "not done within 10 s", "allow more time with --timeout"
        ),
        Finding("address", State.unknown, "this check failed itself: ZeroDivisionError: a mistake"),
        ok("dns", "good"),
        Finding("clocks", State.unknown, "no server at 127.0.0.1:1: Connection refused"),
    ]


def test_the_page_has_the_checks_as_the_code_has_them():
    page = (ROOT / "docs/doctor.md").read_text()
    wanted = [
        f"| `{each.name}` | {each.meaning} | {each.warns} | {each.fails} | {each.fix} |"
        for each in CHECKS
    ]
    assert [line for line in page.splitlines() if line.startswith("| `")] == wanted


def test_the_settings_with_an_effect_are_those_of_the_documents():
    text = (ROOT / "docs/NOT_DONE.md").read_text()
    of_topics = text.split("settings of a topic have an effect:")[1].split("The others")[0]
    levels = {
        name for name in TOPIC_KEYS_WITH_EFFECT if re.fullmatch(r"compression\.\w+\.level", name)
    }
    assert set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", of_topics)) | levels == TOPIC_KEYS_WITH_EFFECT
    of_brokers = text.split("These act, at once:")[1].split("Jobs on Spark")[0]
    assert (
        set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", of_brokers)) | levels
        == broker_keys_with_effect()
    )

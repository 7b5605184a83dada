"""Goal: the checker sees each thing that a log may not do, and says nothing of a log that is one.

Method: a small good history for each anomaly, and the same history with one fact changed, made by
hand; the first has no finding, the second has exactly that one (and what follows from it). A
broken log is told again at random, and a large good history is judged in seconds.
"""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from tests.histories.checker import ALLOWED, bad, check
from tests.histories.history import FAIL, FOREVER_S, INFO, OK, Op, load, save

KEY = "t:0"


def send(value, offset, at, result=OK, *, process="p", client="by hand, idempotent", key=KEY):
    """A send of one record that took half a second."""
    end_s = FOREVER_S if result == INFO else at + 0.5
    return Op(process, client, "send", result, at, end_s, [(key, value, offset)])


def gap(first, last, at, *, kind="DATALOSS", accepted=True):
    """An operator or a reader names offsets without records."""
    return Op("ops", "by hand", "gap", OK, at, at, {KEY: [(kind, first, last, accepted)]})


def send_both(first, second, at):
    """One request with two records: (value, offset) each."""
    records = [(KEY, *first), (KEY, *second)]
    return Op("p", "by hand, idempotent", "send", OK, at, at + 0.5, records)


def poll(pairs, at, *, process="c", rebalanced=(), key=KEY):
    return Op(process, "by hand", "poll", OK, at, at + 0.5, {key: pairs}, rebalanced)


def assign(at, process="c", keys=(KEY,)):
    return Op(process, "by hand", "assign", OK, at, at, list(keys))


def look(said, at, process="watcher"):
    return Op(process, "by hand", "look", OK, at, at + 0.5, {KEY: said})


def metadata(node, epoch, at):
    return Op("watcher", "by hand", "metadata", OK, at, at + 0.5, (node, {KEY: (node, epoch)}))


WRITTEN = [send(10, 0, 0), send(11, 1, 1), send(12, 2, 2)]
ALL = [(0, 10), (1, 11), (2, 12)]
PLAIN = "by hand"

# anomaly: what is added to WRITTEN when all is well, and when it is not
CASES = {
    "lost-write": ([poll(ALL, 5)], [poll([ALL[0]], 5), poll([ALL[2]], 6, process="d")]),
    "unseen": ([poll(ALL, 5)], [poll(ALL[:2], 5)]),
    "lost": (
        [assign(5, "final"), poll(ALL, 6, process="final")],
        [poll(ALL, 4), assign(5, "final"), poll(ALL[:2], 6, process="final")],
    ),
    "inconsistent-offsets": (
        [send(13, None, 2, INFO, process="q"), poll(ALL, 5), poll(ALL, 6, process="d")],
        [
            send(13, None, 2, INFO, process="q"),
            poll(ALL, 5),
            poll([*ALL[:2], (2, 13)], 6, process="d"),
        ],
    ),
    "duplicate": ([poll(ALL, 5)], [poll([*ALL, (3, 12)], 5)]),
    "duplicate-plain": (
        [send(13, 3, 3, client=PLAIN), poll([*ALL, (3, 13)], 5)],
        [send(13, 3, 3, client=PLAIN), poll([*ALL, (3, 13), (4, 13)], 5)],
    ),
    "duplicate-new-epoch": (
        [send(13, 3, 3), gap(99, 99, 3.2), poll([*ALL, (3, 13)], 5)],
        [send(13, 3, 3), gap(99, 99, 3.2), poll([*ALL, (3, 13), (4, 13)], 5)],
    ),
    "G1a": (
        [send(13, None, 3, INFO), poll([*ALL, (3, 13)], 5)],
        [send(13, None, 3, FAIL), poll([*ALL, (3, 13)], 5)],
    ),
    "phantom": ([send(13, 3, 3), poll([*ALL, (3, 13)], 5)], [poll([*ALL, (3, 13)], 5)]),
    "early-read": (
        [send(13, 3, 5.2), poll([*ALL, (3, 13)], 5)],
        [send(13, 3, 6), poll([*ALL, (3, 13)], 5)],
    ),
    "no-offset": (
        [send(13, 3, 3), poll([*ALL, (3, 13)], 5)],
        [send(13, -1, 3), poll([*ALL, (3, 13)], 5)],
    ),
    "nonmonotonic-poll": (
        [poll(ALL[:2], 5), poll(ALL[2:], 6)],
        [poll(ALL[:2], 5), poll(ALL[1:], 6)],
    ),
    "poll-skip": (
        [poll(ALL, 5, process="d"), poll(ALL[:2], 5), poll(ALL[2:], 6)],
        [poll(ALL, 5, process="d"), poll(ALL[:1], 5), poll(ALL[2:], 6)],
    ),
    "int-nonmonotonic-poll": ([poll(ALL, 5)], [poll([ALL[0], ALL[2], ALL[1]], 5)]),
    "int-poll-skip": (
        [poll(ALL, 5), poll(ALL, 5, process="d")],
        [poll(ALL, 5), poll([ALL[0], ALL[2]], 5, process="d")],
    ),
    "offset-gap": (
        [send(13, 3, 3), poll([*ALL, (3, 13)], 5)],
        [send(13, 4, 3), poll([*ALL, (4, 13)], 5)],
    ),
    "offset-reused": (
        [send(13, 2 + 2**30, 3), gap(2, 1 + 2**30, 2.8), poll([*ALL[:2], (2 + 2**30, 13)], 5)],
        [send(13, 2, 3, process="q"), poll([*ALL[:2], (2, 13)], 5)],
    ),
    "shown-again": (
        [poll(ALL, 5), gap(1, 1, 6), poll([ALL[0], ALL[2]], 7, process="d")],
        [poll(ALL, 5), gap(1, 1, 6), poll(ALL, 7, process="d")],
    ),
    "nonmonotonic-send": (
        [send(13, 3, 3), send(14, 4, 3.1), poll([*ALL, (3, 13), (4, 14)], 5)],
        [send(13, 4, 3), send(14, 3, 3.1), poll([*ALL, (3, 14), (4, 13)], 5)],
    ),
    "nonmonotonic-send-plain": (
        [send(13, 3, 3), send(14, 4, 3.1), poll([*ALL, (3, 13), (4, 14)], 5)],
        [
            send(13, 4, 3, process="q", client=PLAIN),
            send(14, 3, 3.1, process="q", client=PLAIN),
            poll([*ALL, (3, 14), (4, 13)], 5),
        ],
    ),
    "int-nonmonotonic-send": (
        [send_both((13, 3), (14, 4), 3), poll([*ALL, (3, 13), (4, 14)], 5)],
        [send_both((13, 4), (14, 3), 3), poll([*ALL, (3, 14), (4, 13)], 5)],
    ),
    "int-send-skip": (
        [send_both((13, 3), (14, 4), 3), poll([*ALL, (3, 13), (4, 14)], 5)],
        [
            send_both((13, 3), (15, 5), 3),
            send(14, 4, 3, process="q"),
            poll([*ALL, (3, 13), (4, 14), (5, 15)], 5),
        ],
    ),
    "real-time-order": (
        [send(13, 4, 3), send(14, 3, 3.1, process="q"), poll([*ALL, (3, 14), (4, 13)], 5)],
        [send(13, 4, 3), send(14, 3, 4, process="q"), poll([*ALL, (3, 14), (4, 13)], 5)],
    ),
    "high-watermark-fell": (
        [poll(ALL, 5), look((3, 0, 1), 6), look((3, 0, 1), 7, "other")],
        [poll(ALL, 5), look((3, 0, 1), 6), look((2, 0, 1), 7, "other")],
    ),
    "log-start-fell": (
        [poll(ALL, 5), look((3, 0, 1), 6), look((3, 1, 1), 7)],
        [poll(ALL, 5), look((3, 1, 1), 6), look((3, 0, 1), 7)],
    ),
    "leader-epoch-fell": (
        [poll(ALL, 5), look((3, 0, 1), 6), look((3, 0, 2), 7)],
        [poll(ALL, 5), look((3, 0, 2), 6), look((3, 0, 1), 7)],
    ),
    "metadata-fell": (
        [poll(ALL, 5), metadata(1, 4, 6), metadata(1, 5, 7)],
        [poll(ALL, 5), metadata(1, 5, 6), metadata(1, 4, 7)],
    ),
    "metadata-stale": (
        [poll(ALL, 5), metadata(1, 5, 6), metadata(2, 5, 7)],
        [poll(ALL, 5), metadata(1, 5, 6), metadata(2, 4, 7)],
    ),
}
# what else is true of the bad history, because the anomaly brings it with it
BESIDES = {
    "lost-write": {"poll-skip", "unseen"},
    "int-nonmonotonic-poll": {"int-poll-skip"},
    "offset-reused": {"inconsistent-offsets", "lost-write", "real-time-order", "unseen"},
    "metadata-fell": {"metadata-stale"},
}


def names(ops):
    return {finding.anomaly for finding in check(ops)}


@pytest.mark.parametrize("anomaly", CASES)
def test_a_history_without_it_has_no_finding(anomaly):
    good, _ = CASES[anomaly]
    assert check([*WRITTEN, *good]) == []


@pytest.mark.parametrize("anomaly", CASES)
def test_an_anomaly_is_found_and_no_other_is_made_up(anomaly):
    _, spoiled = CASES[anomaly]
    found = names([*WRITTEN, *spoiled])
    assert anomaly in found
    assert found <= {anomaly} | BESIDES.get(anomaly, set())


@pytest.mark.parametrize("anomaly", CASES)
def test_the_order_of_the_file_does_not_matter(anomaly):
    _, spoiled = CASES[anomaly]
    ops = [*WRITTEN, *spoiled]
    assert Counter(check(ops)) == Counter(check(ops[::-1]))


def test_only_what_does_no_harm_is_allowed():
    found = {name for name in CASES if not bad(check([*WRITTEN, *CASES[name][1]]))}
    assert found == ALLOWED


@pytest.mark.parametrize("other", [gap(99, 99, 2.9), gap(99, 99, 3.6)])
def test_a_duplicate_that_was_not_in_flight_at_an_accepted_loss_is_one(other):
    twice = [send(13, 3, 3), poll([*ALL, (3, 13), (4, 13)], 5)]
    assert names([*WRITTEN, *twice, other]) == {"duplicate"}
    assert names([*WRITTEN, *twice, gap(99, 99, 3.2, accepted=False)]) == {"duplicate"}


def test_after_a_rebalance_a_reader_may_begin_anywhere():
    again = poll(ALL, 6, rebalanced=(KEY,))
    assert check([*WRITTEN, poll(ALL, 5), again]) == []
    assert names([*WRITTEN, poll(ALL, 5), poll(ALL, 6)]) == {"nonmonotonic-poll"}


def test_who_is_assigned_anew_begins_anew():
    ops = [*WRITTEN, poll(ALL, 5), assign(6, keys=["t:1"]), assign(7), poll(ALL, 8)]
    assert check(ops) == []
    assert names([*WRITTEN, poll(ALL, 5), assign(6), poll(ALL, 8)]) == {"nonmonotonic-poll"}


def test_a_send_without_an_answer_may_be_there_or_not():
    for there in ([], [(3, 13)]):
        assert check([*WRITTEN, send(13, None, 3, INFO), poll([*ALL, *there], 5)]) == []


def test_where_logs_are_compacted_a_gap_is_none():
    ops = [*WRITTEN, send(13, 9, 3), poll([*ALL, (9, 13)], 5)]
    assert check(ops, dense=False) == []


MISSING = {
    "lost-write": [poll([ALL[0], ALL[2]], 5)],
    "unseen": [poll(ALL[:1], 5)],
    "offset-gap": [send(13, 7, 3), poll([*ALL, (7, 13)], 5)],
    "poll-skip": [poll(ALL, 5, process="d"), poll(ALL[:1], 5), poll(ALL[2:], 6)],
    "lost": [poll(ALL, 4), assign(5, "final"), poll(ALL[:1], 6, process="final")],
}


@pytest.mark.parametrize("anomaly", MISSING)
def test_an_accepted_loss_explains_what_is_missing_inside_of_it(anomaly):
    ops = [*WRITTEN, *MISSING[anomaly]]
    assert anomaly in names(ops)
    lost = (3, 6) if anomaly == "offset-gap" else (1, 2)
    if anomaly in ("lost-write", "poll-skip"):
        lost = (1, 1)
    assert check([*ops, gap(*lost, 9)]) == []
    assert anomaly in names([*ops, gap(*lost, 9, accepted=False)])
    assert anomaly in names([*ops, gap(*lost, 9, kind="BRIDGE")])
    assert anomaly in names([*ops, gap(lost[0] - 1, lost[0] - 1, 9)])


def test_an_offset_is_lost_as_of_the_first_acceptance_that_names_it():
    ops = [*WRITTEN, poll(ALL, 3), gap(1, 1, 4), gap(1, 2, 6), gap(1, 1, 9)]
    assert "shown-again" in names([*ops, poll([ALL[1]], 5, process="d")])
    assert "shown-again" not in names([*ops, poll([ALL[2]], 5, process="d")])
    assert "shown-again" in names([*ops, poll([ALL[2]], 7, process="d")])


def test_a_history_comes_back_from_its_file(tmp_path):
    ops = [*WRITTEN, send("x", None, 3, INFO), poll(ALL, 5), look((3, 0, 1), 6)]
    ops += [metadata(1, 5, 7), Op("c", "by hand", "commit", OK, 8, 9, ("g", {KEY: 3}))]
    save(ops, tmp_path / "history")
    again = load(tmp_path / "history")
    assert check(again) == check(ops)
    assert [op.value for op in again if op.kind == "commit"] == [("g", {KEY: 3})]
    assert [op.end_s for op in again if op.result == INFO] == [FOREVER_S]


def sound(records, keys=4, seed=1):
    """A history of that many records: four producers, two readers, one after the end."""
    draw = random.Random(seed)
    logs = {f"t:{number}": [] for number in range(keys)}
    ops, at = [], 0.0
    for value in range(records):
        key = f"t:{draw.randrange(keys)}"
        name = f"p{draw.randrange(4)}"
        ops.append(send(value, len(logs[key]), at, process=name, key=key))
        logs[key].append((len(logs[key]), value))
        at += 1.0
    for reader in ("c1", "c2", "final"):
        ops.append(assign(at, reader, list(logs)))
        for key, log in logs.items():
            for first in range(0, len(log), 50):
                at += 1.0
                ops.append(poll(log[first : first + 50], at, process=reader, key=key))
    return ops


@pytest.mark.proof
def test_a_hundred_thousand_records_are_judged_in_seconds():
    ops = sound(100_000)
    began_s = time.process_time()
    assert check(ops) == []
    assert time.process_time() - began_s < 40.0


@pytest.mark.parametrize("seed", range(30))
def test_one_record_taken_out_of_all_polls_or_moved_is_always_found(seed):
    draw = random.Random(seed)
    ops = sound(400, seed=seed)
    value = draw.randrange(400)
    for at, op in enumerate(ops):
        if op.kind == "poll":
            (key, pairs), *_ = op.value.items()
            kept = [pair for pair in pairs if pair[1] != value]
            if len(kept) < len(pairs) and draw.random() < 0.3:
                moved = [(offset + 7, same) for offset, same in pairs if same == value]
                kept = sorted([*kept, *moved])
            ops[at] = op._replace(value={key: kept})
    assert names(ops) & {"lost-write", "unseen", "inconsistent-offsets", "duplicate"}

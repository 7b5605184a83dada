"""Goal: the checker finds each thing that transactions may not do, and nothing else.

Method: for each anomaly, a good history made by hand, and the same history with one fact changed:
the first has no finding, the second has that one, with what follows from it. Lost answers, which
prove nothing, must be accepted.
"""

from __future__ import annotations

import pytest

from tests.histories.history import FAIL, FOREVER_S, INFO, OK, Op, load, save
from tests.histories.transactions import ABORT, COMMIT, check_transactions

A, B, IN = "a:0", "b:0", "in:0"
GROUP = "copiers"
CLIENT = "by hand, idempotent"


def op(process, kind, at, value, result=OK, end_s=None):
    """A call that took half a second."""
    return Op(process, CLIENT, kind, result, at, at + 0.5 if end_s is None else end_s, value)


def begin(number, at, process="p"):
    return op(process, "begin", at, number, end_s=at)


def send(number, at, *records, result=OK, process="p"):
    return op(process, "txn-send", at, (number, records), result)


def read(number, at, polled, process="p"):
    return op(process, "txn-poll", at, (number, polled))


def offsets(number, at, committed, process="p"):
    return op(process, "txn-offsets", at, (number, GROUP, {IN: committed}))


def end(number, at, how=COMMIT, result=OK, process="p"):
    return op(process, "end", at, (number, how), result, FOREVER_S if result == INFO else None)


def poll(at, polled, process="c"):
    return op(process, "poll", at, polled)


def fetch(at, committed):
    return op("f", "fetch", at, (GROUP, {IN: committed}))


def last(at, polled):
    """All that is there when everything has ended."""
    keys = sorted({A, B, *polled})
    return [op("final", "assign", at, keys, end_s=at), poll(at + 1, polled, "final")]


def pair(number, at, how=COMMIT, result=OK, process="p"):
    """A transaction with a record in each of two partitions, 10 * number and one more."""
    records = (A, 10 * number, 2 * number), (B, 10 * number + 1, 2 * number)
    sent = [send(number, at + 1, record, process=process) for record in records]
    return [begin(number, at, process), *sent, end(number, at + 3, how, result, process)]


def copy(number, at, offset, *, process="p", how=COMMIT, result=OK):
    """A transaction that copies one record of the input, which was written as transaction 9."""
    return [
        begin(number, at, process),
        read(number, at + 1, {IN: [(offset, 90 + offset)]}, process),
        send(number, at + 2, (A, 10 * number, 2 * number), process=process),
        offsets(number, at + 2, offset + 1, process),
        end(number, at + 3, how, result, process),
    ]


def source(count):
    """The input of copies."""
    sent = [send(9, 0, (IN, 90 + offset, offset), process="s") for offset in range(count)]
    return [begin(9, 0, "s"), *sent, end(9, 1, process="s")]


def whole(*numbers):
    """What the last reader sees of these pairs."""
    return {
        A: [(2 * number, 10 * number) for number in numbers],
        B: [(2 * number, 10 * number + 1) for number in numbers],
    }


ONE = pair(1, 0)
INPUT = [(0, 90), (1, 91)]
TWO = [*source(2), *copy(1, 2, 0), *copy(2, 12, 1)]
COPIED = {A: [(2, 10), (4, 20)], IN: INPUT}


def reading(*, circle):
    """Two transactions at once. Each reads the record of the other, if there is a circle."""
    return [
        begin(1, 0),
        begin(2, 0, "q"),
        send(1, 1, (A, 10, 2)),
        send(2, 1, (B, 20, 4), process="q"),
        *([read(1, 2, {B: [(4, 20)]})] if circle else []),
        end(1, 3),
        read(2, 5, {A: [(2, 10)]}, "q"),
        end(2, 6, process="q"),
        *last(20, {A: [(2, 10)], B: [(4, 20)]}),
    ]


# anomaly: (a good history, a bad one, what is found besides)
CASES = {
    "G1a": (
        [*pair(1, 0, ABORT), *pair(2, 10), poll(15, whole(2))],
        [*pair(1, 0, ABORT), *pair(2, 10), poll(15, whole(1, 2))],
        set(),
    ),
    "G1a of an offset": (
        [*source(1), *copy(1, 2, 0, how=ABORT), fetch(9, -1), poll(9, {IN: INPUT[:1]})],
        [*source(1), *copy(1, 2, 0, how=ABORT), fetch(9, 1), poll(9, {IN: INPUT[:1]})],
        set(),
    ),
    "precommitted-read": (
        [*ONE, poll(3.2, whole(1))],
        [*ONE, poll(2, whole(1))],
        set(),
    ),
    "precommitted-read of an offset": (
        [*source(1), *copy(1, 2, 0), fetch(5.1, 1), poll(9, {A: [(2, 10)], IN: INPUT[:1]})],
        [*source(1), *copy(1, 2, 0), fetch(4, 1), poll(9, {A: [(2, 10)], IN: INPUT[:1]})],
        set(),
    ),
    "G1c": (reading(circle=False), reading(circle=True), {"precommitted-read"}),
    "torn": (
        [*pair(1, 0, result=INFO), poll(5, {A: [(2, 10)]}), *last(20, whole(1))],
        [*pair(1, 0, result=INFO), poll(5, {A: [(2, 10)]}), *last(20, {A: [(2, 10)], B: []})],
        {"unseen", "lost"},
    ),
    "torn, between records and offsets": (
        [*TWO, fetch(20, 2), *last(20, COPIED)],
        [*TWO, fetch(20, 1), *last(20, COPIED)],
        set(),
    ),
    "lost-write": (
        [*ONE, *pair(2, 10), poll(15, whole(1, 2))],
        [*ONE, *pair(2, 10), poll(15, whole(2))],
        set(),
    ),
    "lost-write of an offset": (
        [begin(1, 0), offsets(1, 1, 5), end(1, 2), fetch(4, 5)],
        [begin(1, 0), offsets(1, 1, 5), end(1, 2), fetch(4, -1)],
        set(),
    ),
    "committed-phantom": (
        [begin(1, 0), offsets(1, 1, 5), end(1, 2), fetch(4, 5)],
        [begin(1, 0), offsets(1, 1, 5), end(1, 2), fetch(4, 6)],
        set(),
    ),
    "copied-twice": (
        [
            *source(1),
            *copy(1, 2, 0, how=ABORT),
            *copy(2, 12, 0, process="q"),
            *last(20, {A: [(4, 20)]}),
        ],
        [
            *source(1),
            *copy(1, 2, 0),
            *copy(2, 12, 0, process="q"),
            *last(20, {A: [(2, 10), (4, 20)]}),
        ],
        set(),
    ),
    "not-copied": (
        [*TWO, *last(20, COPIED)],
        [*source(2), *copy(2, 12, 1), *last(20, {A: [(4, 20)], IN: INPUT})],
        set(),
    ),
}
LOST_ANSWERS = {
    "a commit without an answer happened": [*pair(1, 0, result=INFO), *last(20, whole(1))],
    "a commit without an answer did not happen": [*pair(1, 0, result=INFO), *last(20, {})],
    "offsets of a commit without an answer are there": [
        *source(1),
        *copy(1, 2, 0, result=INFO),
        fetch(9, 1),
        *last(20, {A: [(2, 10)], IN: INPUT[:1]}),
    ],
    "offsets of a commit without an answer are not there": [
        *source(1),
        *copy(1, 2, 0, result=INFO),
        fetch(9, -1),
        *last(20, {IN: INPUT[:1]}),
    ],
    "a transaction was never ended": [*ONE[:-1], *last(20, {})],
    "a record failed, and its transaction was aborted": [
        begin(1, 0),
        send(1, 1, (A, 10, None), result=INFO),
        end(1, 3, ABORT, INFO),
        *last(20, {}),
    ],
    "transactions lie across each other": [
        begin(1, 0),
        begin(2, 0, "q"),
        send(1, 1, (A, 10, 0), (B, 11, 1)),
        send(2, 1, (A, 20, 1), (B, 21, 0), process="q"),
        end(1, 3),
        end(2, 3, process="q"),
        *last(20, {A: [(0, 10), (1, 20)], B: [(0, 21), (1, 11)]}),
    ],
}


def names(history):
    return {finding.anomaly for finding in check_transactions(history)}


def with_input(history):
    """Let the input be read, where a history has one, so that only its own fault is found."""
    wrote = {key for each in history if each.kind == "txn-send" for key, _, _ in each.value[1]}
    shown = {key for each in history if each.kind == "poll" for key in each.value}
    if IN not in wrote or IN in shown:
        return history
    number = sum(each.kind == "txn-send" and each.value[1][0][0] == IN for each in history)
    return [*history, poll(30, {IN: INPUT[:number]}, "reader of the input")]


@pytest.mark.parametrize("case", CASES)
def test_the_good_history_of_an_anomaly_has_none(case):
    assert names(with_input(CASES[case][0])) == set()


@pytest.mark.parametrize("case", CASES)
def test_the_bad_history_has_that_anomaly_and_what_follows(case):
    anomaly = case.split(" of ")[0].split(",")[0]
    _, planted, besides = CASES[case]
    assert names(with_input(planted)) == {anomaly} | besides


@pytest.mark.parametrize("case", LOST_ANSWERS)
def test_what_may_happen_is_accepted(case):
    assert names(LOST_ANSWERS[case]) == set()


def test_a_commit_that_is_known_to_have_failed_is_never_shown():
    assert names([*pair(1, 0, result=FAIL), *last(20, {})]) == set()
    assert names([*pair(1, 0, result=FAIL), *last(20, whole(1))]) == {"G1a"}


def test_an_old_offset_is_torn_once_the_unknown_one_before_it_must_have_ended():
    unknown, later = copy(1, 2, 0, result=INFO), copy(2, 12, 1)
    shown = [*source(2), *unknown, *later, *last(30, COPIED)]
    assert names([*shown, fetch(20, 2)]) == set()
    assert names([*shown, fetch(20, 1)]) == {"torn"}


def test_a_history_of_transactions_is_the_same_after_a_file(tmp_path):
    history = with_input(CASES["not-copied"][1])
    save(history, tmp_path / "history.jsonl.gz")
    assert check_transactions(load(tmp_path / "history.jsonl.gz")) == check_transactions(history)

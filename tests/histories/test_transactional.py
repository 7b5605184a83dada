"""Goal: transactions of stock clients have no anomaly at the gateway, or at Apache Kafka.

Method: librdkafka and aiokafka write and copy in transactions against an embedded gateway, and
their history is judged. The checker also accepts a recorded run of Apache Kafka 4.3 with a kill -9
(`python -m tests.histories.transactional --kills 1 --write`), and finds faults that are planted
into that run.
"""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.histories.checker import bad
from tests.histories.history import FINAL, OK, load
from tests.histories.report import table
from tests.histories.transactional import FILE, IDS, committed, record
from tests.histories.transactions import ABORT, COMMIT, check_transactions
from tests.histories.with_confluent_transactions import Failed, bounded
from tests.peers.gateway import Gateway

OPTIONS = ("--group-initial-rebalance-delay-ms", "0")
COMMITS = 3
KILLS, COMMITS_BETWEEN_KILLS = 5, 12


def judged(recorder):
    findings = check_transactions(recorder.ops)
    print(table(recorder.ops, findings))
    print(dict(recorder.errors))
    assert bad(findings) == [], table(recorder.ops, findings)
    return committed(recorder)


def test_transactions_of_stock_clients_have_no_anomaly(tmp_path):
    with Gateway(tmp_path / "data", OPTIONS) as gateway:
        done = judged(record(gateway, kills=0, each=COMMITS))
    assert min(done.values()) >= COMMITS


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_transactions_under_kill_9_have_no_anomaly(tmp_path):
    with Gateway(tmp_path / "data", OPTIONS) as gateway:
        done = judged(record(gateway, kills=KILLS, each=COMMITS_BETWEEN_KILLS))
    assert min(done.values()) >= (KILLS + 1) * COMMITS_BETWEEN_KILLS


def test_a_call_of_a_client_that_never_returns_fails():
    never = threading.Event()
    with pytest.raises(Failed):
        bounded(never.wait, patience_s=0.01)
    never.set()


def test_an_error_of_a_bounded_call_is_raised():
    def refused():
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with pytest.raises(KafkaException):
        bounded(refused)


@pytest.fixture(scope="module")
def recorded():
    return load(FILE)


def names(ops):
    return {finding.anomaly for finding in bad(check_transactions(ops))}


def test_a_run_of_apache_kafka_has_no_anomaly(recorded):
    assert names(recorded) == set()


def test_that_run_has_every_outcome_of_every_client(recorded):
    ends = Counter((op.process, *op.value[1:], op.result) for op in recorded if op.kind == "end")
    for name in IDS:
        assert ends[name, COMMIT, OK] > 5
    assert sum(ends[name, ABORT, OK] for name in IDS) > 5
    assert any(op.kind == "fetch" for op in recorded)


def test_a_missing_record_tears_its_transaction_in_it(recorded):
    """A transaction with several records, of which the readers miss one."""
    ok = {op.value[0] for op in recorded if op.kind == "end" and op.value[1:] == [COMMIT]}
    sends = Counter(op.value[0] for op in recorded if op.kind == "txn-send" and op.value[0] in ok)
    number = next(number for number, count in sends.items() if count > 1)
    send = next(op for op in recorded if op.kind == "txn-send" and op.value[0] == number)
    key, value, _ = send.value[1][0]

    def without(op):
        if op.kind != "poll" or not op.process.startswith(FINAL):
            return op
        kept = {k: [p for p in pairs if (k, p[1]) != (key, value)] for k, pairs in op.value.items()}
        return op._replace(value=kept)

    assert "torn" in names(list(map(without, recorded)))


def test_an_aborted_transaction_that_is_said_to_be_shown_is_found_in_it(recorded):
    shown = {v for op in recorded if op.kind == "poll" for p in op.value.values() for _, v in p}
    send = next(op for op in recorded if op.kind == "txn-send" and op.value[1][0][1] in shown)

    def aborted(op):
        ends = op.kind == "end" and op.value[0] == send.value[0]
        return op._replace(value=[op.value[0], ABORT]) if ends else op

    assert "G1a" in names(list(map(aborted, recorded)))

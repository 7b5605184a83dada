"""Goal: the checker finds nothing in what Apache Kafka did: it asks for no more than Kafka gives.

Method: the recorded history of one run of Apache Kafka 4.3 under our own load, with a kill -9 in
its middle (`python -m tests.histories.oracle --write` records it anew), judged; and the same
history with one acknowledged record taken out of it, or one commit put back.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.histories.checker import bad, check
from tests.histories.history import FINAL, OK, load
from tests.histories.oracle import FILE


@pytest.fixture(scope="module")
def recorded():
    return load(FILE)


def test_a_run_of_apache_kafka_has_no_anomaly(recorded):
    assert check(recorded) == []


def test_the_run_has_every_kind_of_call_by_both_clients(recorded):
    done = Counter((op.client.split()[0], op.kind) for op in recorded if op.result == OK)
    for client in ("aiokafka", "librdkafka"):
        for kind in ("send", "poll", "assign", "subscribe", "commit", "fetch"):
            assert done[client, kind] > 0, (client, kind)
    assert done["by", "look"] > 10
    assert any(op.result != OK for op in recorded), "the kill was not felt"


def test_a_record_that_the_last_reader_misses_is_found_in_it(recorded):
    key, value, _ = next(op for op in recorded if op.kind == "send" and op.result == OK).value[0]

    def without(op):
        if op.kind != "poll" or not op.process.startswith(FINAL):
            return op
        kept = {k: [p for p in pairs if (k, p[1]) != (key, value)] for k, pairs in op.value.items()}
        return op._replace(value=kept)

    assert {found.anomaly for found in bad(check(map(without, recorded)))} >= {"lost"}


def test_an_old_committed_offset_is_found_in_it(recorded):
    fetches = [op for op in recorded if op.kind == "fetch" and op.process == "a-offsets-1"]
    group, first = fetches[0].value
    last = next(op for op in fetches[::-1] if op.value[1].keys() == first.keys())
    stale = [op._replace(value=(group, first)) if op is last else op for op in recorded]
    assert {found.anomaly for found in bad(check(stale))} == {"committed-fell"}

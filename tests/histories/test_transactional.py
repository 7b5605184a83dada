"""Goal: transactions of stock clients have no anomaly at the gateway.

Method: librdkafka and aiokafka write and copy in transactions against an embedded gateway with
the preview of transactions, and their history is judged.
"""

from __future__ import annotations

from tests.histories.checker import bad
from tests.histories.report import table
from tests.histories.transactional import committed, record
from tests.histories.transactions import check_transactions
from tests.peers.gateway import Gateway

OPTIONS = ("--preview-transactions", "--group-initial-rebalance-delay-ms", "0")
COMMITS = 3


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

"""Goal: transactions cost other producers on the same partition, and readers, next to nothing.

Method: the steps of the interpreter for a batch and for a request are counted, before and after a
transaction of another producer.
"""

from tests.bench.produce_cost import costs


def test_a_transaction_of_another_producer_costs_a_batch_little():
    before, after = costs(used=False), costs(used=True)
    assert before["plain batch"] > 0
    assert after["plain batch"] - before["plain batch"] <= 80
    assert after["idempotent batch"] - before["idempotent batch"] <= 250
    assert after["Produce"] - before["Produce"] <= 250
    assert after["Fetch"] - before["Fetch"] <= 80

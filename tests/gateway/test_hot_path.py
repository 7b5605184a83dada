"""Goal: transactions cost a producer that has none nothing, and its requests next to nothing.

Method: the steps of the interpreter for a batch and for a request are counted, with and without the
preview of transactions.
"""

from tests.bench.produce_cost import costs


def test_a_batch_without_a_transaction_costs_nothing_more_with_the_preview():
    without, preview = costs(transactions=False), costs(transactions=True)
    for name in ("plain batch", "idempotent batch"):
        assert preview[name] == without[name] > 0
    # A request is searched for batches of transactions, and an answer has the last stable offset.
    assert preview["Produce"] - without["Produce"] <= 40
    assert preview["Fetch"] - without["Fetch"] <= 20


def test_a_transaction_of_another_producer_costs_a_batch_little():
    without, used = costs(transactions=False), costs(transactions=True, used=True)
    assert used["plain batch"] - without["plain batch"] <= 80
    assert used["idempotent batch"] - without["idempotent batch"] <= 250

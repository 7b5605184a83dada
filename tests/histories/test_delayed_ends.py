"""Goal: an EndTxn that the network delays never ends the next transaction of a protocol 2 client.

Method: stock clients behind a proxy that holds the request until their next transaction has begun
(`tests.histories.delayed_ends`), at an embedded gateway and at Apache Kafka 4.3. Clients of
protocol 1 have no defence: what they see at the gateway is what they see at Kafka. The answers of
both servers to the same frames are compared in `tests/compat/differential/cases/t26_end_txn.py`.
"""

import pytest

from tests.histories.delayed_ends import PROTOCOL_1, PROTOCOL_2, gateway, kafka, play

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]
ROUNDS = 2


def test_clients_of_protocol_2_have_no_anomaly(tmp_path):
    found = play(gateway, tmp_path, PROTOCOL_2, ROUNDS)
    assert found == {"java-4.3": {}}


def test_clients_of_protocol_1_have_the_anomalies_that_they_have_at_kafka(tmp_path):
    ours = play(gateway, tmp_path, PROTOCOL_1, ROUNDS)
    assert ours == play(kafka, tmp_path, PROTOCOL_1, ROUNDS)
    assert all(found["torn"] and found["G1a"] for found in ours.values())

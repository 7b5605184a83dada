"""Goal: kafka-python works against the gateway. Method: the suite of stock clients."""

from __future__ import annotations

import pytest

from tests.compat.clients.suite import ClientSuite
from tests.compat.clients.with_kafka_python import KafkaPython

pytestmark = [pytest.mark.compat, pytest.mark.proof]


class TestKafkaPython(ClientSuite):
    connect = KafkaPython
    codecs = KafkaPython.codecs

"""Goal: librdkafka works against the gateway. Method: the suite of stock clients."""

from __future__ import annotations

import pytest

from tests.compat.clients.suite import ClientSuite
from tests.compat.clients.with_confluent import Confluent

pytestmark = pytest.mark.compat


class TestConfluent(ClientSuite):
    connect = Confluent
    codecs = Confluent.codecs

"""Goal: aiokafka works against the gateway. Method: the suite of stock clients."""

from __future__ import annotations

import pytest

from tests.compat.clients.suite import ClientSuite
from tests.compat.clients.with_aiokafka import Aiokafka

pytestmark = pytest.mark.compat


class TestAiokafka(ClientSuite):
    connect = Aiokafka
    codecs = Aiokafka.codecs

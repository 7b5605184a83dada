"""KafkaPython"""

from __future__ import annotations

import pytest

from tests.compat.clients.suite import ClientSuite
from tests.compat.clients.with_kafka_python import KafkaPython

pytestmark = pytest.mark.compat


class TestKafkaPython(ClientSuite):
    connect = KafkaPython
    codecs = KafkaPython.codecs

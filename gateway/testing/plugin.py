"""Fixtures for pytest, which finds them wherever the gateway is installed.

    def test_orders(ledger_gateway, ledger_topic):
        producer = Producer({"bootstrap.servers": ledger_gateway.bootstrap})
        producer.produce(ledger_topic("orders"), b"3 apples")

The gateway is started when the first test asks for it, and serves all tests of the run. With
pytest-xdist each worker has one of its own. A topic's name begins with a prefix that no other test
has, so tests do not see each other's records; the same holds for the names of groups.

A wheel contains this module as `ledger_gateway_pytest`, because pytest imports it in every run: an
application may have a package `gateway` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gateway.testing import Gateway

_RUN = token_hex(3)  # of this process: workers count their tests alike
_NUMBERS = count(1)
_NAME_MAX = 100  # of the test's name in a topic's; a topic's name has at most 249 characters


@pytest.fixture(scope="session")
def ledger_gateway() -> Iterator[Gateway]:
    """A running `gateway.testing.Gateway`; `.bootstrap` is its address."""
    from gateway.testing import Gateway

    with Gateway() as gateway:
        yield gateway


@pytest.fixture
def ledger_topic(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a function that makes names of topics and groups this test's own.

    Whether a topic is created by the first record or by an admin client is the test's choice.
    """
    name: str = request.node.name
    safe = "".join(each if each.isascii() and each.isalnum() else "_" for each in name)
    prefix = f"{safe[:_NAME_MAX]}-{_RUN}-{next(_NUMBERS)}-"
    return lambda name: prefix + name

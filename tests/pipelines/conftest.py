"""Fixtures that close what a test of a job leaves open in its process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.pipelines.direct import storage_connection


@pytest.fixture(autouse=True)
def no_connection_is_kept() -> Iterator[None]:
    """Close what a direct read kept open: gRPC delivers events of all loops to one of them."""
    yield
    for address in list(storage_connection._cached):
        storage_connection.drop_cached(address)

"""What the tests of harm begin with: two writers and a reader at work on their module's cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.world import MORE, World


@pytest.fixture
def world(cluster: World) -> Iterator[World]:
    """All works. `cluster` is the module's own: what a test leaves is the next one's past."""
    cluster.heal()
    cluster.begin()
    cluster.wait_acked(MORE, "writers to write")
    yield cluster
    cluster.end_clients()
    cluster.end_auditors()

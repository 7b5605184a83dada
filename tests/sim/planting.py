"""What a mistake is that `mutations` and `accident_mistakes` plant into the product."""

from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

from tests.sim.swarm import Swarm


class Mutation(NamedTuple):
    """`plant` makes a context in which the mistake is there."""

    trap: str
    name: str
    plant: Callable
    world: type = Swarm


def patched(owner, **mistakes):
    """A context in which these attributes of `owner` are others."""
    return lambda world: mock.patch.multiple(owner, **mistakes)

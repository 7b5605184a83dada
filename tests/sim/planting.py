"""What a mistake is that `mutations` and `accident_mistakes` plant into the product."""

import inspect
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


def check_shapes(owner, mistakes):
    """Each mistake takes what it replaces takes: a TypeError would be found instead of it."""
    for name, mistake in mistakes.items():
        known = getattr(owner, name)
        if not inspect.isfunction(known) or not inspect.isfunction(mistake):
            continue
        given, named = [], {}
        for one in inspect.signature(known).parameters.values():
            if one.kind is one.KEYWORD_ONLY:
                named[one.name] = None
            elif one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
                given.append(None)
        inspect.signature(mistake).bind(*given, **named)


def patched(owner, **mistakes):
    """A context in which these attributes of `owner` are others."""
    check_shapes(owner, mistakes)
    return lambda world: mock.patch.multiple(owner, **mistakes)

"""Every state of small worlds of transactions: two producers of one id, two partitions, two
coordinators, one late message.

The world is that of the seeds, `tests.sim.transaction_world`, with few faults. Requests of a client
that nothing can overtake take no time, so that fewer orders are left.

    python -m tests.sim.exhaustive.transactions quick|full
"""

from __future__ import annotations

import copyreg
import marshal
import pickle
import sys
import time
from collections import deque
from dataclasses import replace
from enum import Enum
from hashlib import blake2b

from gateway.core.deadlines import Deadlines
from gateway.core.transaction_states import TransactionMetadata
from tests.sim.exhaustive.freeze import Interner
from tests.sim.exhaustive.search import search
from tests.sim.transaction_hosts import Message
from tests.sim.transaction_mistakes import MISTAKES
from tests.sim.transaction_world import Rules, World

_ATOMS = (int, str, bytes, bool, type(None))
_FAULTS = ("takeovers", "failovers", "timeouts", "losses", "lates", "snapshots")
_NO_FAULTS = dict.fromkeys(_FAULTS, 0)

# Values that never change are numbered once: states are then copied and compared faster.
_stored = Interner()
_messages = Interner()


def _metadata(number):
    return _stored.values[number]


def _number_of(metadata):
    return _metadata, (_stored.number(metadata),)


copyreg.pickle(TransactionMetadata, _number_of)


class State:
    """One state of a world: its bytes, and a digest that is equal for equal states."""

    __slots__ = ("data", "digest")

    def __init__(self, world):
        self.data = pickle.dumps(world, pickle.HIGHEST_PROTOCOL)
        values = marshal.dumps(frozen(world.__dict__), 2)
        self.digest = blake2b(values, digest_size=16).digest()

    def __hash__(self):
        return hash(self.digest)

    def __eq__(self, other):
        return self.digest == other.digest

    def world(self):
        return pickle.loads(self.data)


def frozen(thing):
    """The values of a state as tuples of plain values, in an order that depends on them only."""
    kind = type(thing)
    if kind in _ATOMS:
        return thing
    if kind is TransactionMetadata:
        return _stored.number(thing)
    if kind is Message:  # equal tuples of two kinds are two messages
        return _messages.number((type(thing.body), thing))
    if isinstance(thing, Enum):
        return int(thing.value)
    if isinstance(thing, (list, tuple, deque)):
        return (kind.__name__, *map(frozen, thing))
    if isinstance(thing, dict):
        return tuple(sorted((frozen(key), frozen(value)) for key, value in thing.items()))
    if isinstance(thing, (set, frozenset)):
        return tuple(sorted(map(frozen, thing)))
    if isinstance(thing, Deadlines):
        return frozen(thing._at)  # the heap beside it depends on the way
    if isinstance(thing, (type, Rules)) or callable(thing):
        return None  # the same in all states of one search
    names = [name for one in kind.__mro__ for name in getattr(one, "__slots__", ())]
    held = {name: getattr(thing, name) for name in names} | getattr(thing, "__dict__", {})
    return (kind.__name__, *(frozen(held[name]) for name in sorted(held)))


class TransactionSearch:
    """The world as the searcher wants it."""

    def __init__(self, rules):
        self.rules = rules

    def initial(self):
        return [State(World(self.rules))]

    def canonical(self, state):
        return state

    def pack(self, state):
        return state.digest

    def successors(self, state):
        world = state.world()
        actions = world.actions()
        if not actions:
            self._rest(world)
            return
        for action in actions:
            world.perform(action)  # checks
            # The messages are a set: their order says nothing.
            world.network.sort(key=repr)
            yield action, State(world)
            world = state.world()

    def _rest(self, world):
        """Nothing is left to happen, so every transaction must have ended, or its time comes."""
        if world.ongoing():
            world.left["timeouts"] = 1
            world.perform(("timeout",))
            while actions := world.actions():
                world.perform(actions[0])
        world.check_end()

    def check(self, state):
        """Done by `perform`."""


def small(protocol, **changes):
    """Rules with two producers of one id, and no faults but these."""
    one = ((((0, 1), True),), (((0,), True),))
    instant = frozenset(("client", "data"))
    rules = Rules(protocol, plans=one, instant=instant, **_NO_FAULTS)
    return replace(rules, **changes)


_ALONE = (((0, 1), True),)
QUICK = {
    "protocol 2, a takeover": small(2, takeovers=1, plans=(_ALONE,)),
    "protocol 1, a late message": small(1, lates=1, plans=(_ALONE,)),
}
FULL = {
    "protocol 1, a takeover": small(1, takeovers=1, plans=(_ALONE,)),
    "protocol 2, a late message": small(2, lates=1, plans=(_ALONE,)),
    "protocol 2, two producers": small(2),
    "protocol 1, two producers": small(1),
    "protocol 2, two producers, a takeover": small(2, takeovers=1),
    "protocol 1, two producers, a takeover": small(1, takeovers=1),
    "protocol 2, two producers, a late message": small(2, lates=1),
    "protocol 1, two producers, a late message": small(1, lates=1),
    "protocol 2, two producers, a takeover, a late message": small(2, takeovers=1, lates=1),
}


def mistaken(name, protocol, **changes):
    """A small world with a planted mistake."""
    (found,) = (one for one in MISTAKES if one.name == name)
    return replace(small(protocol, plans=(_ALONE,), **changes), **found.changes)


MISTAKEN = {
    name: mistaken(name, protocol, **changes)
    for name, protocol, changes in (
        ("EndTxn is answered before Prepare is durable", 2, {"takeovers": 1}),
        ("Prepare is forgotten at a takeover", 2, {"takeovers": 1}),
        ("the first batch is not verified", 1, {"given_up": 1}),
        ("the LSO passes a marker that is not durable", 2, {"failovers": 1}),
    )
}


def main(words):
    worlds = {"quick": QUICK, "full": FULL}.get(words[0])
    if worlds is None:
        worlds = {words[0]: FULL[words[0]]}
    for name, rules in worlds.items():
        began_s = time.monotonic()
        found = search(TransactionSearch(rules), trace=True)
        seconds = time.monotonic() - began_s
        print(f"{name}: {found.states} states, {seconds:.0f} s", found.violation, flush=True)
        if found.violation:
            print(*found.way, sep="\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

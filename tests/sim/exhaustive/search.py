"""Breadth first through every state of a world, each once. Run as a program for one of them."""

import struct
import sys
import time
from collections import deque
from dataclasses import replace
from typing import NamedTuple

from tests.sim.exhaustive.world import Bounds, Violation, World


class Found(NamedTuple):
    """`way` is a shortest way to the violation, when there is one and it was asked for."""

    states: int
    complete: bool
    violation: str = ""
    way: tuple = ()


def search(world, states_max=10**12, trace=False):
    """Every reachable state was checked, or `states_max` of them, or one was found wrong."""
    walk = _Walk(world, trace)
    try:
        while walk.queue and len(walk.seen) < states_max:
            walk.step()
    except (Violation, AssertionError) as error:
        return Found(len(walk.seen), False, str(error), walk.way())
    return Found(len(walk.seen), not walk.queue)


class _Walk:
    """States met, and those whose successors are still to be looked at."""

    def __init__(self, world, trace):
        self.world = world
        self._pack = getattr(world, "pack", pack)
        self.queue = deque(set(map(world.canonical, world.initial())))
        self.seen = set(map(self._pack, self.queue))
        self._parents = {} if trace else None
        self._here = (None, None)  # the state looked at, and what happened last

    def step(self):
        """The next state's successors were checked. Raises Violation, AssertionError."""
        world, state = self.world, self.queue.popleft()
        self._here = (state, None)
        for label, after in world.successors(state):
            one = world.canonical(after)
            packed = self._pack(one)
            if packed in self.seen:
                continue
            self.seen.add(packed)
            self._here = (state, label)
            if self._parents is not None:
                self._parents[one] = self._here
            world.check(one)
            self.queue.append(one)

    def way(self):
        """What happened from the beginning to the last state, where it was traced."""
        if self._parents is None:
            return ()
        state, label = self._here
        labels = [label]
        while state in self._parents:
            state, label = self._parents[state]
            labels.append(label)
        return tuple(reversed(labels))


def pack(state):
    """The same state in fewer bytes."""
    numbers = (*state.hosts, *state.columns, *state[-3:], state.metadata)
    return struct.pack(f"{len(numbers)}I", *numbers)


QUICK = (
    Bounds(recoverers=1),
    Bounds(recoverers=1, write_quorum=2),
    Bounds(recoverers=2, entries=1, write_quorum=2),
    Bounds(recoverers=1, entries=1, wipes=1),
    Bounds(recoverers=0, spares=1, timeouts=1, late=1),
    Bounds(recoverers=1, bare=True),
    Bounds(recoverers=1, write_quorum=2, bare=True),
)
FULL = (
    *QUICK,
    Bounds(entries=1),
    Bounds(),
    Bounds(write_quorum=2),
    Bounds(recoverers=1, wipes=1),
    Bounds(recoverers=1, spares=1, timeouts=1),
    Bounds(recoverers=1, entries=1, spares=1, timeouts=1, late=1),
    Bounds(entries=1, write_quorum=2, spares=1, timeouts=1),
    Bounds(entries=1, wipes=1, spares=1),
    Bounds(entries=1, bare=True),
    Bounds(recoverers=1, spares=1, timeouts=1, bare=True),
)


def say(bounds):
    """The bounds in words, as far as they differ from one another."""
    words = f"E {bounds.ensemble_size}, Qw {bounds.write_quorum}, Qa {bounds.ack_quorum}; "
    words += f"entries {bounds.entries}, recoverers {bounds.recoverers}"
    for name in ("spares", "timeouts", "late", "wipes"):
        if getattr(bounds, name):
            words += f", {name} {getattr(bounds, name)}"
    words += ", damaged answers to fences" if bounds.bare else ""
    return words


def main(words):
    """`quick`, `full`, or one world as in `entries=2 recoverers=1`."""
    if words in (["quick"], ["full"]):
        all_bounds = QUICK if words == ["quick"] else FULL
    else:
        pairs = (word.split("=") for word in words)
        all_bounds = [Bounds(**{key: int(value) for key, value in pairs})]
    for bounds in all_bounds:
        began_s = time.monotonic()
        found = search(World(bounds))
        seconds = time.monotonic() - began_s
        print(f"{say(bounds)}: {found.states} states, {seconds:.0f} s", found.violation, flush=True)
        if found.violation:
            named = search(World(replace(bounds, symmetric=False)), trace=True)
            print(*named.way, sep="\n")
            raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])

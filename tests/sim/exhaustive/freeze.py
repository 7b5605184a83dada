"""Objects as values: what a state machine holds, in tuples, so that two states can be compared."""

from collections import deque
from enum import Enum
from functools import cache


def freeze(thing):
    """Everything that `thing` holds, as hashable values. Equal for equal states."""
    if thing is None or isinstance(thing, (int, str, bytes, Enum)):
        return thing
    if isinstance(thing, (tuple, list, deque)):
        return tuple(map(freeze, thing))
    if isinstance(thing, (set, frozenset)):
        return tuple(sorted(map(freeze, thing), key=repr))
    if isinstance(thing, dict):
        return tuple(sorted((key, freeze(value)) for key, value in thing.items()))
    if isinstance(thing, (bytearray, memoryview)):
        return bytes(thing)
    if isinstance(thing, Exception):
        return type(thing).__name__
    names = (*slots_of(type(thing)), *sorted(getattr(thing, "__dict__", ())))
    return (type(thing).__name__, *(freeze(getattr(thing, name, None)) for name in names))


@cache
def slots_of(kind):
    slots = (one.__dict__.get("__slots__", ()) for one in kind.__mro__)
    flat = [name for names in slots for name in ((names,) if isinstance(names, str) else names)]
    return tuple(sorted({name for name in flat if name != "__weakref__"}))


class Interner:
    """Values as small numbers: equal values have the same one."""

    def __init__(self):
        self.values = []
        self._numbers = {}

    def number(self, value):
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self.values)
            self.values.append(value)
        return known

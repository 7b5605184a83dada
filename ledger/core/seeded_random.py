"""Pseudorandom numbers that a seed determines. Pure; not for secrets."""

from __future__ import annotations

from collections.abc import Callable

_MASK = 2**64 - 1


def seeded_random(seed: int) -> Callable[[], float]:
    """Return a function whose calls give independent numbers from 0 up to, not including, 1.

    Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (SplitMix64).
    """
    state = seed & _MASK

    def random() -> float:
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / 2**53

    return random

"""Draws fewer examples for a commit than for the proofs.

A test of Hypothesis draws other examples in each run, so those of many commits add up. A commit
takes a third of the examples that a test asks for, and `make proof` all of them (`EXAMPLES=all`).
Each such test has the mark `drawn`.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
from hypothesis import settings, stateful

SHARE = 3
EXAMPLES_MIN = 20  # a test that asks for fewer gets what it asks for
ALL = "EXAMPLES"
_SETTINGS = "_hypothesis_internal_use_settings"


_digest = stateful.function_digest  # type: ignore[attr-defined]


def digest_without_collection(function: Any) -> bytes:
    """Return the digest of a state machine.

    CPython 3.11 raises SystemError if a collection runs code while it parses the source of a class.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return _digest(function)
    finally:
        if collects:
            gc.enable()


stateful.function_digest = digest_without_collection  # type: ignore[attr-defined]


def examples_of(asked: int) -> int:
    """Return how many examples a commit draws for a test that asks for `asked`."""
    return min(asked, max(EXAMPLES_MIN, asked // SHARE))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that draw, and take a share of their examples, once for each function."""
    seen: set[int] = set()
    for item in items:
        owner, name = _settings_of(item)
        if owner is None:
            continue
        item.add_marker("drawn")
        if id(owner) not in seen and os.environ.get(ALL) != "all":
            seen.add(id(owner))
            asked = getattr(owner, name, None) or settings.default
            setattr(owner, name, settings(asked, max_examples=examples_of(asked.max_examples)))


def _settings_of(item: pytest.Item) -> tuple[Any, str]:
    """Return the object that has the settings of a test, and their name; None if it draws none."""
    if not isinstance(item, pytest.Function):
        return None, ""
    if isinstance(getattr(item.cls, "settings", None), settings):
        return item.cls, "settings"  # a state machine
    function = getattr(item.obj, "__func__", item.obj)
    return (function, _SETTINGS) if hasattr(function, "hypothesis") else (None, "")

"""Run each `async def test_...` on virtual time, or on a real event loop where its mark says so.

The mark is `real_loop`, for tests with sockets, threads or processes. Its argument `loop`, if any,
makes the loop. Tests by Hypothesis get a loop for each example.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.sim.loop import simulate

Run = Callable[[Coroutine[Any, Any, object]], object]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end. Returns None for any other test: pytest calls that."""
    test, run = pyfuncitem.obj, runner_of(pyfuncitem)
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    if inspect.iscoroutinefunction(test):
        assert run(test(**arguments)) is None, "a test returns nothing: it asserts"
        return True
    given = getattr(test, "hypothesis", None)
    if given is None or not inspect.iscoroutinefunction(given.inner_test):
        return None
    coroutine = given.inner_test

    @functools.wraps(coroutine)
    def one_example(*args: Any, **kwargs: Any) -> object:
        return run(coroutine(*args, **kwargs))

    given.inner_test = one_example
    try:
        test(**arguments)
    finally:
        given.inner_test = coroutine
    return True


def runner_of(item: pytest.Function) -> Run:
    mark = item.get_closest_marker("real_loop")
    if mark is None:
        return simulate
    return functools.partial(on_real_loop, mark.kwargs.get("loop"))


def on_real_loop(
    factory: Callable[[], asyncio.AbstractEventLoop] | None, main: Coroutine[Any, Any, object]
) -> object:
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)

"""Mark each test by what it needs, as far as its code shows it, and hold it to that.

The marks follow from the code of a test, of its fixtures, and of the functions and classes of
`tests` that these name. A test whose code reaches `subprocess` is marked `process`; a test whose
code reaches the simulated loop, `sim`; and so on. Folders mark `cluster` and `compat`. A test
without any other mark is a `unit`.

A test that starts a process without a mark that covers it fails.
"""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import types
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import pytest

from tests.peers.zookeeper import ZooKeeper
from tests.sim.loop import simulate

Needs = frozenset[str]

FOLDERS = {"cluster": "cluster", "compat": "compat"}
OWN: dict[object, Needs] = {
    subprocess: frozenset({"process"}),
    ZooKeeper: frozenset({"process", "zookeeper"}),
    simulate: frozenset({"sim"}),
}
BY_NAME = {
    "pyspark": frozenset({"process", "spark"}),
    "playwright": frozenset({"process"}),
    "subprocess": frozenset({"process"}),
}
FIXTURES = {"zookeeper": OWN[ZooKeeper], "spark": BY_NAME["pyspark"]}
SERVERS = frozenset({"process", "zookeeper", "spark", "compat", "cluster"})
KINDS = frozenset({"unit", "sim", "proof"}) | SERVERS

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
_starting_fixtures: set[pytest.FixtureDef[Any]] = set()
_started = 0


# -- what the code shows --------------------------------------------------------------------------


class Needed:
    """The needs of functions, their own and those of everything that they name."""

    def __init__(self, roots: Iterable[object]) -> None:
        self._seen: dict[
            int, list[object]
        ] = {}  # id -> itself and what it names; kept, so no id is reused
        self._by_id: dict[int, set[str]] = {}
        self._named_by: dict[int, list[int]] = {}
        waiting = list(roots)
        while waiting:
            one = waiting.pop()
            if id(one) not in self._seen:
                needs, named = _look_into(one)
                self._seen[id(one)] = [one, *named]
                self._by_id[id(one)] = set(needs)
                for other in named:
                    self._named_by.setdefault(id(other), []).append(id(one))
                waiting += named
        self._pass_on()

    def _pass_on(self) -> None:
        """Give each function the needs of the functions that it names."""
        waiting = [one for one, needs in self._by_id.items() if needs]
        while waiting:
            one = waiting.pop()
            for other in self._named_by.get(one, ()):
                if not self._by_id[one] <= self._by_id[other]:
                    self._by_id[other] |= self._by_id[one]
                    waiting.append(other)

    def of(self, root: object) -> set[str]:
        return self._by_id[id(root)]


def _look_into(one: object) -> tuple[Needs, list[object]]:
    """Returns the needs of `one` itself, and the objects that it names."""
    if isinstance(one, (str, bytes, int, float, type(None))):
        return frozenset(), []
    if isinstance(one, (list, tuple, set, frozenset)):
        return frozenset(), list(one)
    if isinstance(one, dict):
        return frozenset(), list(one.values())
    if isinstance(one, functools.partial):
        return frozenset(), [one.func, one.args, one.keywords]
    if isinstance(one, (types.ModuleType, types.FunctionType, type)) and one in OWN:
        return OWN[one], []
    if isinstance(one, types.ModuleType):
        return BY_NAME.get(one.__name__.partition(".")[0], frozenset()), []
    if isinstance(one, (types.FunctionType, type)):
        return _look_into_code(one)
    return frozenset(), [getattr(one, "__func__", None), getattr(one, "__wrapped__", None)]


@functools.cache
def _look_into_code(one: types.FunctionType | type) -> tuple[Needs, list[object]]:
    top = (one.__module__ or "").partition(".")[0]
    wrapped = [getattr(one, "__wrapped__", None)]
    given = getattr(one, "hypothesis", None)
    if given is not None:
        wrapped.append(given.inner_test)
    if top in BY_NAME:
        return BY_NAME[top], []
    if top != "tests":
        return frozenset(), wrapped
    if isinstance(one, type):
        return frozenset(), list(_members(one))
    cells = [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
    named = [*wrapped, *cells, *(one.__defaults__ or ())]
    needed = frozenset[str]()
    for code in _codes(one.__code__):
        more, others = _names_in(code, one.__globals__)
        needed |= more
        named += others
    return needed, named


def _members(one: type) -> Iterator[object]:
    yield from one.__bases__
    for member in vars(one).values():
        if isinstance(member, property):
            yield member.fget
        else:
            yield getattr(member, "__func__", member)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names_in(code: types.CodeType, names: dict[str, Any]) -> tuple[Needs, list[object]]:
    """Returns what `code` imports, and the globals that it may read.

    Attributes count too, so a global with the name of an attribute is one too many.
    """
    needed = frozenset[str]()
    named = [names[name] for name in code.co_names if name in names]
    modules = [sys.modules[name] for name in code.co_names if name in sys.modules]
    for module in [*modules, *(one for one in named if isinstance(one, types.ModuleType))]:
        named += [getattr(module, name, None) for name in code.co_names]
    for name in code.co_names:
        needed |= BY_NAME.get(name.partition(".")[0], frozenset())
    if "getfixturevalue" in code.co_names:
        for constant in code.co_consts:
            needed |= FIXTURES.get(constant, frozenset()) if isinstance(constant, str) else needed
    return needed, named


# -- marks ----------------------------------------------------------------------------------------


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    roots = {item: _roots(item) for item in items if isinstance(item, pytest.Function)}
    needed = Needed(root for each in roots.values() for root in each)
    for item in items:
        kinds = kinds_of(item, set[str]().union(*map(needed.of, roots.get(item, ()))))
        for name in sorted(kinds - {mark.name for mark in item.iter_markers()}):
            item.add_marker(name)


def kinds_of(item: pytest.Item, needs: set[str]) -> Needs:
    """The marks of a test: those that it has, those that its code needs, and that of its folder."""
    kinds = needs | {mark.name for mark in item.iter_markers()} & KINDS
    for name in getattr(item, "fixturenames", ()):
        kinds |= FIXTURES.get(name, frozenset())  # its code may import a module not loaded yet
    if isinstance(item, pytest.Function) and not item.get_closest_marker("real_loop"):
        kinds |= {"sim"} if inspect.iscoroutinefunction(_plain(item.obj)) else set()
    folder = item.path.relative_to(item.config.rootpath).parts[1:2]
    kinds |= {FOLDERS[name] for name in folder if name in FOLDERS}
    return frozenset(kinds if kinds - {"proof"} else {*kinds, "unit"})


def _plain(test: Any) -> Any:
    given = getattr(test, "hypothesis", None)
    return test if given is None else given.inner_test


def _roots(item: pytest.Function) -> list[object]:
    """Its function, its fixtures, and its parameters, which may be functions too."""
    found: list[object] = [_plain(item.obj)]
    found += [getattr(item.obj, "__func__", None)]
    found += [definition.func for definition in _fixtures_of(item)]
    if hasattr(item, "callspec"):
        found += [each for each in item.callspec.params.values() if callable(each)]
    return found


# -- held to it -----------------------------------------------------------------------------------


def _watch(event: str, _: object, starts: frozenset[str] = _STARTS) -> None:
    # A default, because the interpreter clears the names of modules before its last events.
    global _started
    if event in starts:
        _started += 1


sys.addaudithook(_watch)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    before = _started
    result = yield
    if _started != before:
        _starting_fixtures.add(fixturedef)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    before = _started
    result = yield
    starts = _started != before or not _starting_fixtures.isdisjoint(_fixtures_of(item))
    if starts and not any(item.get_closest_marker(kind) for kind in SERVERS):
        pytest.fail("it starts a process: give it the mark `process`", pytrace=False)
    return result


def _fixtures_of(item: pytest.Item) -> list[pytest.FixtureDef[Any]]:
    if not isinstance(item, pytest.Function):
        return []
    return [one for several in item._fixtureinfo.name2fixturedefs.values() for one in several]

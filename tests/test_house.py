"""Goal: the house stays as docs/HOUSE_STYLE.md says, so that nobody has to argue about it.

Method: every rule of `house.py` and `documents.py` runs over the tree as it is now, tracked files
and new ones; a broken rule names file and line. Each rule is also shown a line that breaks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

import pytest

from tests import (
    documents,
    house,
    moving_reference,
    settings_reference,
    settings_table,
    supervision,
)
from tests.house import Source

Rule = Callable[[Source], Iterable[str]]


@cache
def python_sources() -> tuple[Source, ...]:
    paths = [path for path in house.tree_files() if path.endswith(".py")]
    return tuple(house.read_sources(path for path in paths if not house.is_generated(path)))


@cache
def texts() -> tuple[Source, ...]:
    """Every text file of the tree, code or not; the pins are long and hold hashes only."""
    known = {source.path: source for source in python_sources()}
    rest = [path for path in house.tree_files() if path not in known]
    suffixes = (".md", ".toml", ".sh", ".yaml", ".txt", ".proto", ".pyi", "Makefile", "run")
    return (*known.values(), *house.read_sources(p for p in rest if p.endswith(suffixes)))


def expect_none(found: Iterable[str]) -> None:
    lines = list(found)
    assert not lines, f"{len(lines)} places:\n" + "\n".join(lines)


def over(sources: Iterable[Source], rule: Rule) -> list[str]:
    return [line for source in sources for line in rule(source)]


# --- the tree as it is --------------------------------------------------------------------------


def test_files_and_functions_fit_their_bounds() -> None:
    expect_none(over(python_sources(), house.too_long))


NESTING = ("--preview", "--select", "PLR1702")


def test_blocks_nest_three_deep_at_most() -> None:
    assert house.ruff(*NESTING, ".") == "[]"


def test_a_core_neither_waits_nor_imports_what_waits() -> None:
    cores = [source for source in python_sources() if source.core]
    assert cores
    expect_none(over(cores, house.waits_in_core))


def test_clocks_and_chance_are_asked_in_adapters_only() -> None:
    product = [source for source in python_sources() if source.product]
    expect_none(over(product, house.looks_at_the_world))


def test_cancellation_always_passes() -> None:
    expect_none(over(python_sources(), house.stops_cancellation))


def test_every_task_is_supervised_or_awaited() -> None:
    product = [source for source in python_sources() if source.product]
    expect_none([*over(product, supervision.unsupervised), *supervision.stale(product)])


def test_nothing_is_marked_unfinished() -> None:
    expect_none(over(texts(), house.unfinished))


def test_no_file_names_a_machine_or_a_registry() -> None:
    expect_none(over(texts(), house.names_a_machine))


def test_tests_say_their_goal_check_something_and_neither_sleep_nor_skip() -> None:
    tests = [source for source in python_sources() if source.path.startswith("tests/")]
    expect_none(over(tests, house.weak_tests))


def test_a_handler_file_is_named_after_its_row() -> None:
    rows, wrong = house.handler_rows(python_sources())
    assert rows
    expect_none(wrong)


def test_every_product_module_is_reached_from_an_entry_point() -> None:
    expect_none(house.dead_modules(python_sources()))


def test_every_function_and_class_is_used_somewhere() -> None:
    expect_none(house.dead_names(python_sources()))


def test_only_known_names_lie_at_the_top() -> None:
    expect_none(house.top_level(house.tree_files()))


def test_code_names_only_documents_of_this_tree() -> None:
    expect_none(over(python_sources(), documents.unknown_documents))


def test_links_in_documents_lead_to_files_and_functions() -> None:
    sources = python_sources()
    expect_none(
        line
        for document in documents.documents()
        for line in documents.broken_links(document, sources)
    )


def test_every_document_is_linked_from_another() -> None:
    expect_none(documents.unreachable(documents.documents()))


def test_shell_blocks_in_documents_are_run_or_say_why_not() -> None:
    expect_none(over(documents.documents(), documents.unmarked_blocks))


def test_the_settings_table_is_what_the_dataclasses_say() -> None:
    expect_none(settings_table.differences(python_sources()))


def test_the_reference_of_settings_is_what_their_rows_say() -> None:
    text = settings_reference.PAGE.read_text()
    assert settings_reference.page(text) == text, "run `python -m tests.settings_table`"


def test_the_page_for_users_of_kafka_is_what_settings_clients_and_notes_say() -> None:
    text = moving_reference.PAGE.read_text()
    assert moving_reference.page(text) == text, "run `python -m tests.moving_reference`"
    assert len(list(moving_reference.clients())) > 8


def test_not_done_lists_every_api_with_its_versions_and_what_its_handler_leaves_out() -> None:
    rows, _ = house.handler_rows(python_sources())
    text = (house.ROOT / "docs/NOT_DONE.md").read_text().split("\n")
    handlers = {row.path for row in rows}
    headers = {s.path: s.docstring for s in python_sources() if s.path in handlers}
    expect_none(
        f"docs/NOT_DONE.md:1 wants the row `{wanted}`"
        for row in rows
        if (wanted := settings_table.api_row(row, headers[row.path])) not in text
    )


def test_not_done_lists_the_settings_of_a_topic_that_have_an_effect() -> None:
    (configs,) = (s for s in python_sources() if s.path == "gateway/topics/configs.py")
    effective = configs.text.split("def topic_config(")[1]
    read = set(re.findall(r'(?:value|number)\("([a-z.]+)"\)', effective))
    document = (house.ROOT / "docs/NOT_DONE.md").read_text()
    listed = document.split("settings of a topic have an effect:")[1].split("The others")[0]
    assert read
    assert set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", listed)) == read


# --- each rule catches what it is for -----------------------------------------------------------


def joined(*parts: str) -> str:
    """So that this file does not hold what the rule looks for."""
    return "".join(parts)


_LINES = "  x = 1\n" * 60
_NESTED = "".join(f"{' ' * n}async with a:\n" for n in range(1, 5))
_IMPORTING = '"""Goal."""\nfrom tests.test_house import (\n    expect_none,\n)\n'

CAUGHT: list[tuple[Rule, str, str]] = [
    (house.too_long, "gateway/a.py", "x = 1\n" * 601),
    (house.too_long, "gateway/a.py", "def f():\n" + " x = 1\n" * 60),
    (
        house.too_long,
        "gateway/a.py",
        "class A:\n async def f():\n" + "  x = 1\n" * 60 + "def g(): ...",
    ),
    (house.waits_in_core, "ledger/core/a.py", "import asyncio"),
    (house.waits_in_core, "ledger/core/a.py", "async def f(): ..."),
    (house.waits_in_core, "gateway/core/a.py", "from time import time"),
    (house.looks_at_the_world, "gateway/a.py", "import time\nnow = time.time()"),
    (house.looks_at_the_world, "gateway/a.py", "from time import monotonic as m\nnow = m()"),
    (house.looks_at_the_world, "ledger/client/a.py", "import random as r\nn = r.randint(0, 1)"),
    (house.looks_at_the_world, "ledger/a.py", "from datetime import datetime\nn = datetime.now()"),
    (house.stops_cancellation, "gateway/a.py", "try: f()\nexcept BaseException: g()"),
    (supervision.unsupervised, "gateway/a.py", "def f(): loop.create_task(work())"),
    (supervision.unsupervised, "ledger/a.py", "async def f(): both = asyncio.gather(a(), b())"),
    (house.unfinished, "gateway/a.py", joined("# TO", "DO: later")),
    (house.names_a_machine, "README.md", joined("cd /ho", "me/me/tree")),
    (house.names_a_machine, "Makefile", joined("fetch from repo1.ma", "ven.org")),
    (house.weak_tests, "tests/test_a.py", '"""Goal."""\ndef test_f(): f()'),
    (house.weak_tests, "tests/test_a.py", "def test_f(): assert f()"),
    (house.weak_tests, "tests/a.py", joined("time.sle", "ep(1)")),
    (house.weak_tests, "tests/a.py", joined("pytest.sk", "ip('later')")),
    (documents.unknown_documents, "ledger/a.py", '"""See secret-plan.md."""'),
    (documents.unknown_documents, "ledger/a.py", '"""See correction C4."""'),
    (documents.unmarked_blocks, "README.md", "```bash\nls\n```"),
    (documents.unmarked_blocks, "README.md", "```sh not run:\nls\n```"),
]


# Functions of sixty lines are the house's, but not a statement too many, nor what follows.
BY_RUFF = [
    ("x = 1  #" + "-" * 100, "E501"),
    ("def f():\n" + " x = 1\n" * 51, "PLR0915"),
    ("def f():\n for a in b:\n  if a:\n   while a:\n    if a:\n     pass\n", "PLR1702"),
    (
        "async def f():\n" + "".join(f"{' ' * n}async with a:\n" for n in range(1, 5)) + "     b()",
        "PLR1702",
    ),
    ("def f(a):\n" + "".join(f" if a > {n}:\n  print()\n" for n in range(13)), "PLR0912"),
    ("try:\n f()\nexcept:\n g()\n", "E722"),
    ("try:\n f()\nexcept Exception:\n g()\n", "BLE001"),
    ("try:\n f()\nexcept Exception:\n pass\n", "S110"),
    ("for a in b:\n try:\n  f()\n except Exception:\n  continue\n", "S112"),
    ('"""Summary.\nNo line between."""\n', "D209"),
]


@pytest.mark.parametrize(("rule", "path", "text"), CAUGHT)
def test_a_rule_catches_what_it_is_for(rule: Rule, path: str, text: str) -> None:
    found = list(rule(Source(path, text)))
    assert found
    assert all(line.startswith(f"{path}:") for line in found)


@pytest.mark.parametrize(("code", "rule"), BY_RUFF)
def test_ruff_catches_what_the_house_leaves_to_it(code: str, rule: str) -> None:
    options = NESTING if rule == "PLR1702" else ()
    found = house.ruff(
        "--stdin-filename",
        "tests/a.py" if rule == "D209" else "gateway/a.py",
        *options,
        "-",
        text=code,
    )
    assert f'"code": "{rule}"' in found


def test_text_that_ends_a_function_too_early_does_not_hide_what_it_checks() -> None:
    test = 'def test_f():\n    x = """\nfurther out\n"""\n    assert x\n'
    assert not list(house.weak_tests(Source("tests/test_a.py", f'"""Goal."""\n{test}')))


def test_a_test_checks_through_a_function_of_another_module() -> None:
    test = (
        '"""Goal."""\nfrom tests.test_house import (\n    expect_none,\n)\ndef test_f():\n    {}\n'
    )
    for call, weak in (("expect_none([])", 0), ("print([])", 1)):
        assert len(list(house.weak_tests(Source("tests/test_a.py", test.format(call))))) == weak


def test_a_handler_under_a_wrong_name_is_caught() -> None:
    text = '"""Fetch, key 1, v0-v3."""\nAPI = Api(key=2, name="Fetch", versions=range(4))'
    _, wrong = house.handler_rows([Source("gateway/handlers/k01_fetch.py", text)])
    assert wrong


def test_a_module_that_nobody_imports_is_caught() -> None:
    used = Source("gateway/used.py", "")
    dead = Source("gateway/dead.py", "import gateway.used")
    start = Source("gateway/__main__.py", "from gateway import used")
    assert [line.split(":")[0] for line in house.dead_modules([start, used, dead])] == [dead.path]


def test_a_core_ahead_of_its_shell_is_caught_once_it_is_used() -> None:
    ahead = Source("gateway/core/transaction_log.py", "")
    assert house.dead_modules([ahead], [ahead.module]) == []
    start = Source("gateway/__main__.py", f"import {ahead.module}")
    found = house.dead_modules([start, ahead], [ahead.module])
    assert [line.split(":")[0] for line in found] == [ahead.path]


def test_a_function_that_nothing_names_is_caught() -> None:
    code = Source("ledger/a.py", "def used(): ...\ndef dead(): ...\nused()")
    assert [line.split()[1] for line in house.dead_names([code])] == ["dead"]


def test_a_link_to_a_missing_function_is_caught() -> None:
    code = Source("tests/house.py", "def here(): ...")
    document = Source("docs/A.md", "[`here`](../tests/house.py) [`gone`](../tests/house.py)")
    assert list(documents.broken_links(document, [code])) == [
        "docs/A.md:1 tests/house.py defines no gone"
    ]


def test_a_document_that_nobody_links_to_is_caught() -> None:
    start, lost = Source("docs/A.md", "[b](sub/B.md)"), Source("docs/C.md", "")
    linked = Source("docs/sub/B.md", "[a](../A.md)")
    assert documents.unreachable([start, linked, lost]) == [
        "docs/C.md:1 no other document links here"
    ]


def test_a_link_to_a_missing_file_or_heading_is_caught() -> None:
    document = Source("docs/A.md", "[a](GONE.md)\n`gateway/gone.py`\n[b](../README.md#no-such)")
    assert len(list(documents.broken_links(document, []))) == 3

"""Goal: the gateway answers as Apache Kafka 4.3 does, in every version that it advertises.

Method: the recorded requests of each API are sent to an embedded gateway, and its answers are
compared with Kafka's recorded ones, field by field. Any difference that `intended.py` does not
explain fails, and so does an explanation that nothing needs. `make differential` records again. A
commit plays the lowest and the highest version of each API, and `make proof` all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.handlers.table import rows
from tests.compat.differential import document, servers
from tests.compat.differential.intended import INTENDED
from tests.compat.differential.outcome import Difference, outcome
from tests.compat.differential.recording import Recorded, recorded_cases, same_steps
from tests.compat.differential.script import case_files, cases_of
from tests.peers.gateway import Gateway

FILES = [(key, transactions) for transactions in (False, True) for key in case_files(transactions)]
"""Keys, and whether the cases are those of the API's part in transactions."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with servers.embedded(tmp_path_factory.mktemp("differential") / "data") as started:
        servers.warm_up(started)
        yield started


def played(key: int, transactions: bool, every_version: bool) -> list[Recorded]:
    """Return the recorded cases of an API in all versions, or in the lowest and the highest one."""
    cases = recorded_cases(key, transactions)
    versions = sorted({each.version for each in cases})
    ends = versions if every_version else {*versions[:1], *versions[-1:]}
    return [each for each in cases if each.version in ends]


@pytest.mark.parametrize(
    "every_version", [False, pytest.param(True, marks=pytest.mark.proof)], ids=["ends", "all"]
)
@pytest.mark.parametrize(
    ("key", "transactions"),
    FILES,
    ids=[f"{key}-in-transactions" if transactions else str(key) for key, transactions in FILES],
)
def test_all_answers_of_an_api_are_those_of_kafka(
    key: int, transactions: bool, every_version: bool, gateway: Gateway
) -> None:
    found: list[Difference] = []
    for case in played(key, transactions, every_version):
        found += outcome(case, servers.player(gateway).play(case.steps))
    needed = {id(entry) for each in found for entry in INTENDED if entry.covers(each)}
    unexplained = [str(each) for each in found if not any(entry.covers(each) for entry in INTENDED)]
    assert not unexplained, f"{len(unexplained)} differences\n" + "\n".join(unexplained[:20])
    entries = [each for each in INTENDED if (each.key, each.transactions) == (key, transactions)]
    stale = [entry for entry in entries if id(entry) not in needed]
    assert not every_version or not stale, f"no case shows these differences any more: {stale}"


@pytest.mark.parametrize("transactions", [False, True], ids=["all", "transactions"])
def test_the_recording_is_of_the_cases_in_the_tree(transactions: bool) -> None:
    changed: list[str] = []
    for key in case_files(transactions):
        written = {(each.name, each.version): each.steps() for each in cases_of(key, transactions)}
        stored = {
            (each.name, each.version): each.steps for each in recorded_cases(key, transactions)
        }
        changed += [
            f"key {key} {name} v{version}"
            for name, version in {**written, **stored}
            if not same_steps(written.get((name, version), ()), stored.get((name, version), ()))
        ]
    assert not changed, f"run `make differential KEY=...`: {changed[:10]}"


def test_every_advertised_version_has_a_case() -> None:
    assert document.uncovered(rows()) == []


def test_the_page_about_the_apis_is_up_to_date() -> None:
    assert document.PAGE.read_text() == document.page(), "run the module with --page"

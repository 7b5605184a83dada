"""Writes docs/kafka-api.md from the recordings and the table of intended differences.

The tests of the replays hold the page to the truth: they fail on any other difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from gateway.handlers.rights import RIGHTS
from gateway.handlers.table import rows
from tests.compat.differential.decode import decoded
from tests.compat.differential.intended import INTENDED, Intended
from tests.compat.differential.recording import Recorded, recorded_cases
from tests.compat.logins import intended as logins
from tests.compat.logins.servers import read_recorded as recorded_logins
from tests.compat.rights import intended as rights
from tests.compat.rights.recording import read_recorded as recorded_rights
from tests.house import ROOT

PAGE = ROOT / "docs" / "kafka-api.md"
API_VERSIONS = 18
SASL = (17, 36)  # SaslHandshake, SaslAuthenticate

HEAD = """# Kafka's APIs

The versions of Kafka's APIs that gateways serve, and how their answers compare with those of Apache
Kafka 4.3. `make differential` writes this page. It sends
[the same requests](../tests/compat/differential/cases) to Apache Kafka 4.3 and to the gateway, and
compares the answers field by field, error messages included. Only ids, times, node ids, hosts and
leader epochs are [replaced by symbols](../tests/compat/differential/normalise.py) first, and the
first leader epoch is compared as it is. `make test` replays the requests against the gateway and
compares its answers with Kafka's recorded ones. A test fails if an advertised version has no case.
[TESTING.md](TESTING.md#the-same-answers-as-kafka) describes how to add one.

A case is one sequence of requests in one version. *Equal* means that all answers are equal apart
from the intended differences below. *Not yet* means that a difference remains that is not intended.

"""


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD, _table(), _differences(), _logins(), _rights_compared()]
    return "".join(parts)


def _table() -> str:
    lines = [
        "| key | API | versions | in Kafka 4.3 | cases | answers | rights |",
        "|---|---|---|---|---|---|---|",
    ]
    kafka = kafka_versions()
    for key, api in rows().items():
        served = api.advertised or api.versions
        theirs = _range(*kafka[key]) if key in kafka else "-"
        ours = _range(served.start, served.stop - 1)
        cases = _cases(key)
        row = (key, api.name, ours, theirs, len(cases), _verdict(key), _rights(key))
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines) + "\n"


def _rights(key: int) -> str:
    """Return the rights that an API asks for, each as an operation on a type of resource."""
    return ", ".join(map(str, RIGHTS[key])) or "none"


def _cases(key: int) -> list[Recorded]:
    """Return the cases of an API, those about transactions too."""
    return [*recorded_cases(key), *recorded_cases(key, transactions=True)]


def _verdict(key: int) -> str:
    served = rows()[key].advertised or rows()[key].versions
    if not {case.version for case in _cases(key)}.issuperset(served):
        return "not compared"
    entries = [each for each in INTENDED if each.key == key]
    if any(each.open for each in entries):
        return "not yet equal"
    if key in SASL:
        return "equal, apart from intended differences of [logins](#logins)"
    return "equal, apart from intended differences" if entries else "equal"


def _differences() -> str:
    sections = [
        _section("Intended differences", [each for each in INTENDED if not each.open]),
        _section("Not yet equal", [each for each in INTENDED if each.open]),
    ]
    return "".join(sections)


def _logins() -> str:
    lines = [
        "\n## Logins\n",
        "The cases of SaslHandshake and SaslAuthenticate above are out of order, without SASL.",
        f"{len(recorded_logins())} [logins](../tests/compat/logins/cases.py) with SASL,",
        "right, wrong and out of order, are replayed apart (`python -m tests.compat.logins`).",
        "All answers are equal but for these:\n",
        "| logins | reason |",
        "|---|---|",
    ]
    lines += [f"| `{_cell(name)}` | {why} |" for name, why in logins.INTENDED.items()]
    return "\n".join(lines) + "\n"


def _rights_compared() -> str:
    lines = [
        "\n## Rights\n",
        "The column *rights* lists what an API asks for, as operations on types of resources.",
        f"{len(recorded_rights()):,} answers to clients with [each right taken away]"
        "(../tests/compat/rights/cases.py)",
        "are replayed apart (`python -m tests.compat.rights`). All are equal but for these:\n",
        "| answers | reason |",
        "|---|---|",
    ]
    lines += [f"| `{_cell(title)}` | {why} |" for title, why in rights.REASONS]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _section(title: str, entries: Sequence[Intended]) -> str:
    if not entries:
        return ""
    lines = [
        f"\n## {title}\n",
        "| key | API | versions | fields | reason |",
        "|---|---|---|---|---|",
    ]
    lines += sorted({_row(each) for each in entries}, key=_by_key)
    return "\n".join(lines) + "\n"


def _row(entry: Intended) -> str:
    api = rows()[entry.key]
    served = api.advertised or api.versions
    first = max(entry.versions.start, served.start)
    last = min(entry.versions.stop, served.stop) - 1
    field = f"`{entry.path}`" if entry.path else "(connection)"
    return f"| {entry.key} | {api.name} | {_range(first, last)} | {field} | {entry.reason} |"


def _by_key(row: str) -> tuple[int, str]:
    return int(row.split("|")[1]), row


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


@cache
def kafka_versions() -> dict[int, tuple[int, int]]:
    """Return the lowest and the highest version of each API that Kafka advertises."""
    for case in recorded_cases(API_VERSIONS):
        for step, answer in zip(case.steps, case.answers, strict=True):
            if step.key == API_VERSIONS and answer is not None:
                body = decoded(API_VERSIONS, step.answer_version(), answer)
                return {row.api_key: (row.min_version, row.max_version) for row in body.api_keys}
    return {}


def uncovered(keys: Iterable[int]) -> list[str]:
    """Return the advertised keys and versions without a recorded case."""
    missing: list[str] = []
    for key in keys:
        api = rows()[key]
        known = {case.version for case in _cases(key)}
        missing += [
            f"{api.name} (key {key}) v{version}"
            for version in api.advertised or api.versions
            if version not in known
        ]
    return missing

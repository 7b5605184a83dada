"""The reference of exit codes, of Kafka's error codes and of HTTP errors, written from the code.

`python -m tests.errors_reference` rewrites docs/errors.md. Which codes exist and which are answered
is read from the code; `error_words.py` and `kafka_error_words.py` have cause and fix of each.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.wire.schema import NoSuchSchema
from ledger.command_line import exit_codes
from tests.compat.differential.decode import Undecodable, decoded
from tests.compat.differential.play import errors_in
from tests.compat.differential.recording import recorded_cases
from tests.compat.differential.script import case_files
from tests.error_words import EXITS, HTTP, Words
from tests.house import ROOT
from tests.kafka_error_words import KAFKA

DOCUMENT = ROOT / "docs/errors.md"
_KEYS = 128  # numbers of APIs
# What does not answer clients of Kafka: commands, jobs, the page, and libraries.
_NOT_ANSWERING = ("admin", "pipelines", "native", "process", "http", "testing")
_HEAD = """\
# Errors

Exit codes of commands, Kafka's error codes and the errors of the web page, each with its cause and
what to do. The codes are read from the code: `python -m tests.errors_reference`.
[mistakes.md](mistakes.md) shows the lines of frequent mistakes, and [runbook.md](runbook.md) what
to do when an alert fires.
"""
_EXITS = """\
## Exit codes

`gateway` and `bookie` have the same exit codes; those above 63 are from sysexits.h. An error is one
line on stderr, which names the fix. With `-o json` it is an object with `error` and `code`.

| code | when | what to do |
|---|---|---|
"""
_KAFKA = """\
## Kafka's error codes

The codes that gateways answer with, by their numbers. Clients retry those with *yes* by themselves.
*APIs* are those for which Apache Kafka answered with the code in [the comparison](kafka-api.md); a
gateway answers the same, apart from the differences that are listed there. Other APIs may answer
with it, too. Commands print the name as `code` with `-o json`.

| code | name | retried | cause | what to do | APIs |
|---|---|---|---|---|---|
"""
_HTTP = """\
## HTTP

The errors of [the web page and its JSON](http-api.md). A request that the page makes as a client of
the cluster may fail with a code of Kafka: 404 if something does not exist, otherwise 409.

| status | code | cause | what to do |
|---|---|---|---|
"""


def exit_rows() -> Iterator[tuple[int, str]]:
    """All exit codes with the names of their constants."""
    for name, value in vars(exit_codes).items():
        if name.startswith("EXIT_"):
            yield value, name


def answered_codes() -> set[str]:
    """The names of Kafka's codes that a gateway answers with: all that it does not only compare."""
    found: set[str] = set()
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        if path.relative_to(ROOT / "gateway").parts[0] in _NOT_ANSWERING:
            continue
        text = path.read_text()
        found |= named(ast.parse(text)) if "ErrorCode." in text else set()
    return found - {"none"}


def named(tree: ast.AST) -> set[str]:
    compared = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare | ast.MatchValue)
        for inner in ast.walk(node)
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "ErrorCode"
        and id(node) not in compared
    }


def apis_by_code() -> Mapping[str, set[str]]:
    """The APIs whose recorded answers have a code, by the name of the code."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for transactions, each in product((False, True), range(_KEYS)):
        name = case_files(transactions).get(each, "")
        api = "".join(part.capitalize() for part in name.split("_")[1:])
        for code in _recorded_codes(each, transactions):
            found[code].add(api)
    return found


def _recorded_codes(key: int, transactions: bool) -> set[str]:
    """The names of the codes in Kafka's recorded answers of an API."""
    return {
        code
        for case in recorded_cases(key, transactions)
        for step, answer in zip(case.steps, case.answers, strict=True)
        if answer is not None and step.key == key
        for code in _codes_in(key, step.version, answer)
    }


def _codes_in(key: int, version: int, answer: object) -> list[str]:
    if not isinstance(answer, bytes):
        return []
    try:
        return errors_in(decoded(key, version, answer))
    except (Undecodable, NoSuchSchema):
        return []


def http_errors(pattern: str = "**/*.py") -> set[tuple[int, str]]:
    """The statuses and codes that files of the page name."""
    return {
        error
        for path in sorted((ROOT / "gateway/http").glob(pattern))
        for node in ast.walk(ast.parse(path.read_text()))
        for status, code in _pairs(node)
        for error in _pair(status, code)
    }


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What may be a status and a code: of a call that refuses, or in a table of statuses."""
    if isinstance(node, ast.Call) and len(node.args) > 1:
        if getattr(node.func, "id", "") in ("Refused", "raw_answer", "_Refusal"):
            yield node.args[0], node.args[1]
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(value, ast.Tuple) and key is not None and value.elts:
                yield key, value.elts[0]


def _pair(status: ast.expr, code: ast.expr) -> set[tuple[int, str]]:
    if not (isinstance(status, ast.Constant) and isinstance(code, ast.Constant)):
        return set()
    is_error = isinstance(status.value, int) and status.value >= 400
    return {(int(status.value), code.value)} if is_error and isinstance(code.value, str) else set()


def document() -> str:
    """The text of docs/errors.md. Raises LookupError if a code has no words."""
    exits = [
        f"| {value} | {words_of(EXITS, name).cause} | {words_of(EXITS, name).fix} |\n"
        for value, name in sorted(exit_rows())
    ]
    http = [
        f"| {status} | `{code}` | {words.cause} | {words.fix} |\n"
        for status, code in sorted(http_errors())
        for words in [words_of(HTTP, (status, code))]
    ]
    return "".join([_HEAD, "\n", _EXITS, *exits, "\n", _KAFKA, *_kafka_rows(), "\n", _HTTP, *http])


def _kafka_rows() -> Iterator[str]:
    apis = apis_by_code()
    for code in sorted(map(ErrorCode.__getitem__, answered_codes()), key=int):
        words = words_of(KAFKA, code.name)
        retried = "yes" if code.retriable else "no"
        seen = ", ".join(sorted(apis.get(code.name, ()))) or "-"
        yield (
            f"| {code.value} | `{code.name.upper()}` | {retried} | {words.cause} | {words.fix} "
            f"| {seen} |\n"
        )


def words_of(table: Mapping[Any, Words], key: object) -> Words:
    found = dict[object, Words](table.items()).get(key)
    if found is None:
        raise LookupError(f"{key} has no cause and fix in tests/error_words.py or its neighbour")
    return found


def differences() -> list[str]:
    """What to do if the document is not as the code says."""
    if DOCUMENT.exists() and DOCUMENT.read_text() == document():
        return []
    return ["docs/errors.md: run `python -m tests.errors_reference`"]


if __name__ == "__main__":
    DOCUMENT.write_text(document())

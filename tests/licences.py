"""The licences of everything that an installation brings along, from the packages themselves.

python -m tests.licences --write     writes docs/licences.md
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from tests.peers.install import ROOT

PAGE = ROOT / "docs" / "licences.md"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ]+)", re.MULTILINE)
_IN_DESCRIPTION = re.compile(r"^#+ Licen[sc]e\s+([^.\n]+)", re.MULTILINE)
_ADDRESSES = {"http://www.apache.org/licenses/LICENSE-2.0": "Apache-2.0"}
_SHORT_MAX = 60  # longer texts of the field `License` are the licence itself
_HEAD = """# Licences

What an installation brings along, with the licence that each package states of itself. This page is
written by `python -m tests.licences --write`, and a test compares it with the pinned packages.

The licence of this project itself is its owner's choice, and none is granted yet. `crc32c` is under
the LGPL: it is used as a package of its own, which users may replace.
"""
_COPIES = """
These files of other projects are copied into the web page, unchanged. The text of each licence lies
beside them, in [static/](../gateway/http/static/).

| file | from | licence | SHA-256 |
|---|---|---|---|
"""
STATIC = ROOT / "gateway" / "http" / "static"
OURS = frozenset({"site.css", "site.js", "time_travel.js", "VENDORED.json"})


class Row(NamedTuple):
    """A package, its licence, and what needs it."""

    name: str
    licence: str
    needed_by: str


class Copy(NamedTuple):
    """A file of another project in `gateway/http/static`, as VENDORED.json describes it."""

    file: str
    package: str
    version: str
    path: str
    licence: str
    text: str
    sha256: str


def copies() -> list[Copy]:
    """Return the files of other projects that the web page brings along."""
    found = json.loads((STATIC / "VENDORED.json").read_text())
    return [Copy(name, **each) for name, each in sorted(found.items())]


def sha256(file: str) -> str:
    """Return the SHA-256 of a file of the web page."""
    return hashlib.sha256((STATIC / file).read_bytes()).hexdigest()


def pinned(kind: str) -> dict[str, set[str]]:
    """Return the versions in `compose/requirements-KIND.txt`, by name."""
    found: dict[str, set[str]] = {}
    for name, version in _PIN.findall((ROOT / f"compose/requirements-{kind}.txt").read_text()):
        found.setdefault(name, set()).add(version)
    return found


def of_extra(extra: str) -> set[str]:
    """Return the packages of an extra in pyproject.toml, and what they need, as installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(each) for each in project["optional-dependencies"][extra]]
    found: set[str] = set()
    while waiting:
        needed = waiting.pop()
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        if name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += [Requirement(each) for each in distribution(name).requires or ()]
    return found


def licence_of(found: Distribution) -> str:
    """Return what a package states, in one of the places where packages do."""
    stated = found.metadata
    expression = stated.get("License-Expression") or stated.get("License") or ""
    expression = _ADDRESSES.get(expression, expression)
    if expression and len(expression) <= _SHORT_MAX and "\n" not in expression:
        return expression
    classes = [each for each in stated.get_all("Classifier") or () if each.startswith("License ::")]
    names = [each.rpartition(" :: ")[2] for each in classes]
    described = _IN_DESCRIPTION.search(str(stated.get_payload()))
    return ", ".join(dict.fromkeys(names)) or (described.group(1) if described else "")


def rows() -> list[Row]:
    """Return a row for each package that a program of ours may load when it is installed."""
    needed = dict.fromkeys(pinned("run"), "every program")
    for extra in ("avro", "cel"):
        for name in of_extra(extra):
            needed.setdefault(name, f"the extra `{extra}`")
    for name in pinned("spark"):
        needed.setdefault(name, "the extra `spark`")
    return [Row(name, licence_of(distribution(name)), by) for name, by in sorted(needed.items())]


def page() -> str:
    """Return the text of the page."""
    lines = [f"| {row.name} | {row.licence} | {row.needed_by} |" for row in rows()]
    copied = [
        f"| {each.file} | npm {each.package} {each.version}, {each.path} | {each.licence} "
        f"| `{each.sha256}` |"
        for each in copies()
    ]
    head = [_HEAD, "| package | licence | needed by |", "|---|---|---|", *lines]
    return "\n".join([*head, _COPIES + "\n".join(copied), ""])


def main(words: list[str]) -> int:
    """Print the page, or write it."""
    try:
        text = page()
    except PackageNotFoundError as missing:
        print(f"not installed: {missing}; make .venv-dev/.ready", file=sys.stderr)
        return 1
    if words == ["--write"]:
        Path(PAGE).write_text(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

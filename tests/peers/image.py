"""The steps of compose/image/Dockerfile, replayed below a directory without a container engine.

The context has the files that `.dockerignore` leaves. Each path in `/` becomes one below the
directory. `python`, `pip`, `useradd` and `install` are scripts that do the same there: packages
come from the caches of uv, and no owner is changed.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.peers.install import ROOT

FILE = ROOT / "compose" / "image" / "Dockerfile"
STEP_S_MAX = 300.0
_PLACES = ("opt", "data")  # what lies below the root of an image, beside the base


class Step(NamedTuple):
    """One instruction of a stage."""

    stage: int
    word: str
    text: str

    def words(self) -> list[str]:
        """Return the words of the form of a list, or of a line."""
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


def steps(file: Path = FILE) -> list[Step]:
    """Return the instructions of a Dockerfile, in order."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    found: list[Step] = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, _, text = line.partition(" ")
        if not word:
            continue
        stage = sum(each.word == "FROM" for each in found) - (word != "FROM")
        found.append(Step(stage, word, text.strip()))
    return found


def only(word: str, stage: int = 1) -> str:
    """Return the text of the instruction that a stage has once."""
    (text,) = (step.text for step in steps() if (step.word, step.stage) == (word, stage))
    return text


def context(to: Path, files: list[str]) -> Path:
    """Copy those of the files of the tree that a build sees."""
    for name in seen(files):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)
    return to


def seen(files: list[str]) -> list[str]:
    """Return the files that `.dockerignore` leaves. The last pattern that matches decides."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line.strip() for line in lines if line.strip() and not line.startswith("#")]

    def is_seen(name: str) -> bool:
        result = True
        for rule in rules:
            if _matches(name, rule.removeprefix("!")):
                result = rule.startswith("!")
        return result

    return [name for name in files if is_seen(name)]


def _matches(name: str, pattern: str) -> bool:
    """Whether the pattern matches the file or a directory above it."""
    parts = name.split("/")
    above = ["/".join(parts[: at + 1]) for at in range(len(parts))]
    if pattern.startswith("**/"):
        return any(fnmatch.fnmatch(part, pattern[3:]) for part in parts)
    return any(
        fnmatch.fnmatch(each, pattern) and each.count("/") == pattern.count("/") for each in above
    )


# The `pip` of an environment that `python -m venv` would make.
_PIP = """#!/bin/sh
shift
set -- $(for each in "$@"; do [ "$each" = --no-cache-dir ] || echo "$each"; done)
exec "$UV" pip install -q --python "$(dirname "$0")/python" "$@"
"""
_SCRIPTS = {
    "python": '"$UV" venv -q --python "$PYTHON" "$3" && cp "$PIP" "$3/bin/pip"',
    "useradd": "exit 0",
    "install": 'for each in "$@"; do case $each in -*) ;; *) mkdir -p "$each";; esac; done',
}


class Replay:
    """The root of the image after all steps. Stages have directories of their own."""

    def __init__(self, work: Path, files: list[str], arguments: dict[str, str]) -> None:
        self.work = work
        self.context = context(work / "context", files)
        self._arguments = arguments  # of `--build-arg`
        self._scripts = work / "scripts"
        self._scripts.mkdir()
        scripts = {name: f"#!/bin/sh\nset -eu\n{body}\n" for name, body in _SCRIPTS.items()}
        for name, body in {**scripts, "pip": _PIP}.items():
            file = self._scripts / name
            file.write_text(body)
            file.chmod(0o755)
        # Variables of the last stage, which its processes have.
        self.environment: dict[str, str] = {}

    @property
    def root(self) -> Path:
        """The directory that stands for `/`, in all stages: the last one copies what it keeps."""
        return self.work / "root"

    def run(self) -> None:
        """Replay the steps of all stages."""
        place, given = "", {}
        for step in steps():
            if step.word == "FROM":
                place, given = "", {}
            elif step.word == "WORKDIR":
                place = step.text
                self._at(place).mkdir(parents=True, exist_ok=True)
            elif step.word == "ARG":
                name, _, default = step.text.partition("=")
                given[name] = self._arguments.get(name, default)
            elif step.word == "ENV":
                self.environment = dict(word.split("=", 1) for word in shlex.split(step.text))
            elif step.word == "COPY" and not step.text.startswith("--from="):
                self._copy(step.words(), place)
            elif step.word == "RUN":
                self._run(step.text, place, given)

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _copy(self, words: list[str], place: str) -> None:
        *sources, to = words
        target = self._at(to if to.startswith("/") else f"{place}/{to}")
        for name in sources:
            source = self.context / name
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                into = target / source.name if to.endswith("/") or to == "." else target
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, into)

    def localized(self, text: str) -> str:
        """Return the text with its absolute paths below this root."""
        return re.sub(rf"(?<![\w.])/({'|'.join(_PLACES)})\b", rf"{self.root}/\1", text)

    def _run(self, text: str, place: str, given: dict[str, str]) -> None:
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        assert uv is not None
        variables = {"UV": uv, "PYTHON": sys.executable, "PIP": str(self._scripts / "pip")}
        done = subprocess.run(
            ["sh", "-euc", self.localized(text)],
            cwd=self._at(place),
            env={
                **os.environ,
                **variables,
                **given,
                "PATH": f"{self._scripts}:{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            timeout=STEP_S_MAX,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"

    def command(self) -> list[str]:
        """Return what a container of this image runs."""
        entry, words = json.loads(only("ENTRYPOINT")), json.loads(only("CMD"))
        program = self._at(f"/opt/gateway/bin/{entry[0]}")
        return [str(program), *entry[1:], *map(self.localized, words)]

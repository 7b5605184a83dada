"""Builds the wheel and the sdist of a copy of this tree, and environments that they go into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.documents import RUN, code_blocks, documents
from tests.peers.install import ROOT

PACKAGES = ("gateway", "ledger", "subscriptions")
TOP = (*PACKAGES, "compose")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md")
PAGE = "docs/testing-applications.md"
TOOL_S_MAX = 300.0
PLAIN = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")


def run(*words: str | Path, cwd: Path | None = None, **env: str) -> str:
    """Run a program of the dev environment. Returns its stdout; fails with its stderr."""
    tools = Path(sys.executable).parent
    argv = [str(word) for word in words]
    found = tools / argv[0]
    argv[0] = str(found) if found.exists() else argv[0]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    place = {**own, "PATH": f"{tools}{os.pathsep}{own['PATH']}", **env}
    done = subprocess.run(
        argv, cwd=cwd, env=place, capture_output=True, text=True, timeout=TOOL_S_MAX
    )
    assert done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_tree(to: Path) -> Path:
    """Copy what the product is built from, committed in a repository of its own."""
    hidden = shutil.ignore_patterns("__pycache__")
    for name in TOP:
        shutil.copytree(ROOT / name, to / name, ignore=hidden)
    for name in FILES:
        shutil.copy(ROOT / name, to / name)
    run("git", "init", "-q", cwd=to)
    run("git", "add", "-A", cwd=to)
    run("git", *PLAIN, "-c", "core.hooksPath=/dev/null", "commit", "-q", "-m", "all", cwd=to)
    return to


def build(kind: str, tree: Path, to: Path) -> Path:
    """Build the `wheel` or the `sdist` of a tree."""
    run("hatchling", "build", "-t", kind, "-d", to, cwd=tree)
    (built,) = to.iterdir()
    return built


def unpack(sdist: Path, to: Path) -> Path:
    """Unpack an sdist. Returns the tree in it."""
    with tarfile.open(sdist) as packed:
        packed.extractall(to, filter="data")
    (tree,) = to.iterdir()
    return tree


def names_in(wheel: Path) -> set[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as packed:
        return set(packed.namelist())


def environment(place: Path, wheel: Path) -> Path:
    """Install the wheel with the pinned packages into a new environment. Returns its programs."""
    python = place / "bin" / "python"
    run("uv", "venv", "-q", "--python", sys.executable, place)
    install = ("uv", "pip", "install", "-q", "--python", python)
    run(*install, "--require-hashes", "-r", ROOT / "compose" / "requirements-run.txt")
    run(*install, "--no-deps", wheel)
    return place / "bin"


def installed(tree: Path, place: Path) -> Path:
    """Build and install the tree as the page for users says. Returns its programs."""
    (page,) = [each for each in documents() if each.path == PAGE]
    (steps,) = [each.text for each in code_blocks(page) if each.info == RUN]
    (tree / ".venv-dev").symlink_to(ROOT / ".venv-dev")
    said = run("bash", "-euc", steps.replace("/tmp/", f"{place}/"), cwd=tree)
    assert said.startswith("gateway "), said
    return place / "installed" / "bin"

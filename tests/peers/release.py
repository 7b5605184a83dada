"""An earlier release of this project, made from its commit: its tree, and what its programs need.

The tree comes from git, the packages from the pins of that tree. Both are made once, under
`.cache/`.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import NamedTuple

from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import ClusterGateway, Gateway
from tests.peers.install import PeerMissing

ARCHIVE_S_MAX = 120


def python_of(tree: Path) -> str:
    """Return the interpreter with the packages of a source tree; ours if it has none."""
    python = tree / ".venv" / "bin" / "python"
    return str(python) if python.exists() else install.gateway_python()


def environment_of(tree: Path) -> dict[str, str]:
    """Return the variables with which `python -m` runs the code of a source tree."""
    # Without the first variable the packages of the current directory would be found first.
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(tree)}


def run_tree(server: BookieProcess | Gateway, tree: Path) -> None:
    """Let the next start of the server run the code of a source tree."""
    server.python = python_of(tree)
    server.environment = environment_of(tree)


class Release(NamedTuple):
    """The programs of one commit."""

    commit: str
    tree: Path

    def put_on(self, server: BookieProcess | ClusterGateway) -> None:
        """Let the next start of the server run this release."""
        run_tree(server, self.tree)
        if isinstance(server, ClusterGateway):
            server.session_flag = ("--session-ms", "")


def take_off(server: BookieProcess | ClusterGateway) -> None:
    """Let the next start of the server run this tree."""
    server.python = ""
    server.environment = {}
    if isinstance(server, ClusterGateway):
        server.session_flag = ("--session", "ms")


def release(commit: str) -> Release:
    """Return the release of a commit. Raises PeerMissing if this checkout has no such commit."""
    tree = install.CACHE / "peers" / f"release-{commit}"
    if not tree.is_dir():
        draft = tree.with_name(f"{tree.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(_archive(commit))) as archive:
            archive.extractall(draft, filter="data")
        words = ["bash", "compose/install.sh", ".venv", "compose/requirements-run.txt"]
        done = subprocess.run(
            words, cwd=draft, capture_output=True, text=True, timeout=install.INSTALL_S_MAX
        )
        if done.returncode != 0:
            tail = done.stderr.strip().splitlines()[-1:]
            raise PeerMissing(f"release {commit} did not run: its packages are missing: {tail}")
        draft.rename(tree)
    return Release(commit, tree)


def unpacked(commit: str, tree: Path) -> Release:
    """Unpack the release of a commit into `tree`, to run with the packages of this tree.

    Only for a commit with the same pins. Raises PeerMissing if this checkout has no such commit.
    """
    with tarfile.open(fileobj=io.BytesIO(_archive(commit))) as archive:
        archive.extractall(tree, filter="data")
    (tree / ".venv").symlink_to(Path(install.gateway_python()).parents[1])
    return Release(commit, tree)


def _archive(commit: str) -> bytes:
    """Return the tree of the commit as a tar."""
    git = shutil.which("git")
    if git is None:
        raise PeerMissing(f"release {commit} did not run: git is not installed")
    done = subprocess.run(
        [git, "-C", str(install.ROOT), "archive", "--format=tar", commit],
        capture_output=True,
        timeout=ARCHIVE_S_MAX,
    )
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip()
        raise PeerMissing(
            f"release {commit} did not run: commit {commit} is not in the git history of "
            f"{install.ROOT} ({why}); use a clone with full history (`git fetch --unshallow`)"
        )
    return done.stdout

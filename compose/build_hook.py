"""The hook of the build: refuses stray files, and notes the commit in a package."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCES = (".py", ".pyi", ".proto")
_PAGE = ("gateway/http/templates/", "gateway/http/static/")
_PACKAGES = ("gateway", "ledger", "subscriptions")


def _ask_git(tree: Path, *words: str) -> str:
    """Return what git prints about a working tree. Raises RuntimeError if it fails.

    The variables by which git's hooks name another repository do not count.
    """
    place = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    argv = ["git", "-C", str(tree), *words]
    done = subprocess.run(argv, env=place, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"git: {done.stderr.strip()}")
    return done.stdout.strip()


class CommitHook(BuildHookInterface[Any]):
    """Adds `ledger/command_line/COMMIT`. An sdist brings it along, so its wheel has it too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, if this is a working tree. Raises RuntimeError for untracked files."""
        root = Path(self.root)
        if version == "editable" or not (root / ".git").exists():
            return
        place = "ledger/command_line/version.py"
        spec = importlib.util.spec_from_file_location("version", root / place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        commit = module.commit_of(root)
        if commit is None:
            self.app.display_warning("no commit is checked out: --version will print `unknown`")
            return
        if _ask_git(root, "--no-optional-locks", "status", "--porcelain", "-uno"):
            commit = f"{commit}-dirty"
        untracked = _ask_git(root, "ls-files", "--others", "--exclude-standard", "--", *_PACKAGES)
        stray = [
            name
            for name in untracked.splitlines()
            if name.endswith(_SOURCES) or name.startswith(_PAGE)
        ]
        if stray:
            raise RuntimeError(f"not in the repository: {', '.join(stray)}; add or remove them")
        self._directory = tempfile.TemporaryDirectory()
        note = Path(self._directory.name) / "COMMIT"
        note.write_text(f"{commit}\n")
        build_data["force_include"][str(note)] = "ledger/command_line/COMMIT"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what `initialize` wrote elsewhere."""
        directory = getattr(self, "_directory", None)
        if directory is not None:
            directory.cleanup()

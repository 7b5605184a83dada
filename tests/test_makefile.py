"""Goal: `make` ends with one line where it cannot work.

Method: a copy of the files that the first target needs, with a program that stands for an older
Python: it runs what it is given under another version number.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import ROOT

NEEDED = ("Makefile", "pyproject.toml", "compose/install.sh", "compose/requirements-run.txt")
OLDER = """#!/bin/sh
exec {python} -c 'import sys; sys.version_info = {version}; exec(sys.argv[1])' "$2"
"""


def made(place: Path, version: tuple[int, ...]) -> subprocess.CompletedProcess[str]:
    """Make the first environment with a Python of this version."""
    for name in NEEDED:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    (place / "compose/install.sh").write_text("#!/bin/sh\necho installs\n")
    program = place / "older"
    program.write_text(OLDER.format(python=sys.executable, version=version))
    program.chmod(0o755)
    argv = ["make", "-C", str(place), "--no-print-directory", ".venv/.ready", f"PYTHON={program}"]
    return subprocess.run(argv, capture_output=True, text=True)


@pytest.mark.parametrize("version", [(3, 10, 12), (3, 9, 0)])
def test_an_older_python_is_refused_before_anything_is_installed(
    tmp_path: Path, version: tuple[int, ...]
) -> None:
    done = made(tmp_path, version)
    assert done.returncode == 2  # of make
    shown = ".".join(map(str, version))
    said = f"Python 3.11 or later is needed, and {tmp_path}/older is {shown}: pass another one"
    assert done.stderr.startswith(said)
    assert done.stdout == ""


def test_a_fitting_python_installs(tmp_path: Path) -> None:
    done = made(tmp_path, (3, 11, 0))
    assert (done.returncode, done.stdout) == (0, "installs\n")

"""Goal: no word of code, tests and documents is misspelled.

Method: codespell reads every tracked or new file; pyproject.toml has its exceptions.
"""

from __future__ import annotations

import subprocess
import sys

from tests.house import ROOT, tree_files

BINARY = (".png", ".zst", ".bin", ".gz", ".parquet")


def misspelled(*paths: str) -> str:
    words = [sys.executable, "-m", "codespell_lib", *paths]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 65), done.stderr
    return done.stdout


def test_no_word_is_misspelled():
    assert misspelled(*(path for path in tree_files() if not path.endswith(BINARY))) == ""


def test_a_misspelled_word_is_found(tmp_path):
    (tmp_path / "a.txt").write_text("The reco" + "rd was recie" + "ved.\n")
    assert "received" in misspelled(str(tmp_path / "a.txt"))

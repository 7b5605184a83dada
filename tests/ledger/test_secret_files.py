"""Goal: all programs refuse a file with a secret by one rule, and with one text."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.command_line.secret_files import OTHERS_READ, SecretFault, others_read, read_private
from tests.house import ROOT


@pytest.mark.parametrize(
    ("mode", "refused"),
    [
        (0o600, False),
        (0o400, False),
        (0o440, True),
        (0o640, True),
        (0o660, True),
        (0o604, True),
        (0o602, True),
        (0o100644, True),
        (0o100600, False),
    ],
)
def test_a_mode_is_refused_if_others_have_a_right(mode, refused):
    assert others_read(mode) is refused


def test_the_rule_and_its_text_are_in_one_place():
    masks = ("0o077", "S_IROTH", "S_IRWXO")
    files = [path for top in ("gateway", "ledger") for path in (ROOT / top).rglob("*.py")]
    written = {path.name for path in files if OTHERS_READ in path.read_text()}
    masked = {path.name for path in files if any(each in path.read_text() for each in masks)}
    assert written == masked == {"secret_files.py"}


def test_a_path_with_a_nul_is_one_line():
    with pytest.raises(SecretFault, match="is no path") as refused:
        read_private(Path("/a\0b\n"))
    assert "\0" not in str(refused.value) and "\n" not in str(refused.value)

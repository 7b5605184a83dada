"""Goal: all programs refuse a file with a secret by one rule, and with one text."""

from __future__ import annotations

import pytest

from ledger.command_line.secret_files import OTHERS_READ, others_read
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

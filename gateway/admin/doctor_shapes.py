"""The shapes of what `gateway doctor` prints."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Shape, Tone, text

_CHECK: Final = text("check", "Name of the check, as `--only` takes it.")
FOUND: Final = Shape(
    (
        _CHECK,
        text(
            "state",
            "ok, warn, fail or unknown.",
            tones={
                "ok": Tone.good,
                "warn": Tone.warning,
                "fail": Tone.bad,
                "unknown": Tone.warning,
            },
        ),
        text("finding", "What was found."),
        text("fix", "What to do about it; null if nothing has to be done.", nullable=True),
    )
)
LISTED: Final = Shape(
    (
        _CHECK,
        text("meaning", "What is checked."),
        text("warns", "When it warns."),
        text("fails", "When it fails."),
        text("fix", "What to do then.", wide=True),
    )
)

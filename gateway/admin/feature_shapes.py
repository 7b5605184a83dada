"""The shapes of what the commands `gateway feature ...` print."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Shape, text, whole

_FEATURE: Final = text("feature", "Name of the feature.")
_DONE, _DRY_RUN = "Without `--dry-run`:", "With `--dry-run`:"
_CHANGES: Final = (_FEATURE, whole("level", "New level; 0 disables the feature."))

DESCRIBED: Final = Shape(
    (
        _FEATURE,
        whole("supported_min", "Lowest level that the server supports."),
        whole("supported_max", "Highest level that the server supports."),
        whole("finalized", "Level in use; 0 if the feature is disabled."),
        whole(
            "epoch",
            "Epoch of the finalized levels; null if the server cannot read them.",
            nullable=True,
        ),
    )
)
UPGRADED: Final = Shape(_CHANGES, rows="upgraded", when=_DONE)
WOULD_BE_UPGRADED: Final = Shape(_CHANGES, rows="would_be_upgraded", when=_DRY_RUN)
DOWNGRADED: Final = Shape(_CHANGES, rows="downgraded", when=_DONE)
WOULD_BE_DOWNGRADED: Final = Shape(_CHANGES, rows="would_be_downgraded", when=_DRY_RUN)

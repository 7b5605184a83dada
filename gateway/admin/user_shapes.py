"""The shapes of what the commands `gateway user ...` print."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Shape, text, whole

_USER: Final = text("user", "Name of the user.")
_MECHANISM: Final = text("mechanism", "SCRAM-SHA-256 or SCRAM-SHA-512.")

LISTED: Final = Shape(
    (_USER, _MECHANISM, whole("iterations", "Iterations of the stored keys.")),
)
ADDED: Final = Shape((_USER, _MECHANISM), rows="added")
DELETED: Final = Shape((_USER, _MECHANISM), rows="deleted")

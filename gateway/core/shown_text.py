"""Bounds text of clients in the error texts that the gateway returns to them. Pure."""

from __future__ import annotations

from typing import Final

SHOWN_CHARACTERS_MAX: Final = 512
"""Characters of a name that an error text shows.

A legal topic name is shorter, and a text that names several fits a string of 32,767 bytes.
"""


TEXT_CHARACTERS_MAX: Final = 4_096
"""Characters of a whole error text. It fits a string of 32,767 bytes, whatever it quotes."""


def bounded(text: str) -> str:
    """Return an error text: whole, or its beginning and "..." if it is very long."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}..."


def shown(name: str) -> str:
    """Return the name for an error text: whole, or its beginning and "..." if it is long."""
    return name if len(name) <= SHOWN_CHARACTERS_MAX else f"{name[:SHOWN_CHARACTERS_MAX]}..."

"""The answers that differ from Kafka's, each with its reason."""

from __future__ import annotations

REASONS: tuple[tuple[str, str], ...] = ()
"""How the title of an answer begins, and why it differs."""


def reason_of(difference: str) -> str | None:
    """Return why an answer differs, or None."""
    return next((why for start, why in REASONS if difference.startswith(start)), None)

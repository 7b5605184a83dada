"""The answers that differ from Kafka's, each with its reason."""

from __future__ import annotations

REASONS: tuple[tuple[str, str], ...] = (
    (
        "0-produce-with-bad-acks by WRITE TOPIC rights-t | all",
        "the error has a text",
    ),
    (
        "9-offset-fetch by DESCRIBE GROUP rights-g, DESCRIBE TOPIC rights-t | none",
        "before v8 each partition has the error of its group too: aiokafka reads only these",
    ),
    (
        "9-offset-fetch by DESCRIBE GROUP rights-g, DESCRIBE TOPIC rights-t | without DESCRIBE G",
        "before v8 each partition has the error of its group too: aiokafka reads only these",
    ),
)
"""How the title of an answer begins, and why it differs."""


def reason_of(difference: str) -> str | None:
    """Return why an answer differs, or None."""
    return next((why for start, why in REASONS if difference.startswith(start)), None)

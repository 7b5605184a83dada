"""Bounds the names of users and client ids that the gateway stores. Pure."""

from __future__ import annotations

from typing import Final

NAME_BYTES_MAX: Final = 1024
"""The bytes of a stored name in UTF-8, so that a table of names fits into memory."""


def is_too_long(name: str) -> bool:
    """Return whether the name takes more than `NAME_BYTES_MAX` bytes."""
    return len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX

"""Values that settings only refer to, as all programs read them: `ledger.command_line`."""

from __future__ import annotations

from ledger.command_line.secret_values import (
    BYTES_MAX,
    ENVIRONMENT,
    FILE,
    SecretFault,
    is_reference,
    parse_reference,
    read_private,
    read_public,
    resolve,
    resolve_line,
)

__all__ = [
    "BYTES_MAX",
    "ENVIRONMENT",
    "FILE",
    "SecretFault",
    "is_reference",
    "parse_reference",
    "read_private",
    "read_public",
    "resolve",
    "resolve_line",
]

"""Values that settings only refer to: `file:PATH` or `env:NAME`.

So no secret stands in a flag, a file of settings or an output of `--print-config`. A file with a
secret must be readable by its owner alone; a symbolic link is followed, and its target is checked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ledger.command_line.secret_files import (
    BYTES_MAX,
    SecretFault,
    read_private,
    read_public,
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

FILE, ENVIRONMENT = "file:", "env:"
_MUST: Final = "must be file:PATH or env:NAME"


def is_reference(written: str) -> bool:
    """Return whether a value refers to a secret, and is none."""
    return written.startswith((FILE, ENVIRONMENT)) and len(written.partition(":")[2]) > 0


def parse_reference(written: object) -> str:
    """Parse a setting with a secret. Raises ValueError, without the value."""
    if not isinstance(written, str) or not is_reference(written):
        raise ValueError(f"{_MUST}; a secret itself must not stand here")
    if any(character in written for character in "\t\n\r\0"):
        raise ValueError(f"{_MUST} in one line")
    return written


def resolve(reference: str, variables: Mapping[str, str] | None = None) -> bytes:
    """Return the secret that a reference names. Raises SecretFault."""
    kind, _, name = reference.partition(":")
    if f"{kind}:" == FILE:
        return read_private(Path(name))
    value = (os.environ if variables is None else variables).get(name, "")
    if f"{kind}:" != ENVIRONMENT or not value:
        raise SecretFault(f"{reference}: the variable {name} is not set")
    return value.encode(errors="surrogateescape")


def resolve_line(reference: str) -> str:
    """Return a secret of one line, such as a password, without its line end. Raises SecretFault."""
    try:
        text = resolve(reference).decode()
    except UnicodeDecodeError:
        raise SecretFault(f"{reference}: is not UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text or "\n" in text:
        raise SecretFault(f"{reference}: must be one line")
    return text

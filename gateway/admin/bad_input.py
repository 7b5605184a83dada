"""The error of data that a command cannot write or print, with its exit code."""

from __future__ import annotations


class BadInput(Exception):
    """Data that cannot be written or shown. `code` names the kind, `exit_code` ends the command."""

    def __init__(self, message: str, code: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code

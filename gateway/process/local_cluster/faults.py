"""Why a cluster on this machine cannot be started, stopped or found."""

from __future__ import annotations

from ledger.command_line.exit_codes import EXIT_CONFIG, EXIT_FAILED


class LocalClusterError(Exception):
    """A failure with one line for the user, which names the fix. `code` is for programs."""

    def __init__(self, message: str, code: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code


class CannotStart(LocalClusterError):
    """What a start needs is missing on this machine: a program, a port, a readable state."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, code, EXIT_CONFIG)

"""Exit codes of every command; those above 63 are from sysexits.h."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1  # the server refused, a check found damage, a job failed
EXIT_USAGE: Final = 2
EXIT_DIFFERS: Final = 3  # an audit found differences
EXIT_BAD_INPUT: Final = 65  # EX_DATAERR: a line of the input is no record
EXIT_UNREACHABLE: Final = 69  # EX_UNAVAILABLE: no server, no ZooKeeper
EXIT_SOFTWARE: Final = 70  # EX_SOFTWARE: going on would be unsafe; restart the process
EXIT_DISK: Final = 74  # EX_IOERR: the disk of a bookie failed, or stdout is on a full disk
EXIT_REFUSED: Final = 77  # EX_NOPERM: not authorized
EXIT_CONFIG: Final = 78  # EX_CONFIG: cannot start, or connect, as configured
EXIT_INTERRUPTED: Final = 130  # Ctrl-C, as shells count it
EXIT_CLOSED_PIPE: Final = 141  # SIGPIPE, as shells count it
EXIT_TERMINATED: Final = 143  # SIGTERM, as shells count it

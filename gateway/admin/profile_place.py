"""The place of the file of profiles, and the words that commands need without it.

Commands without a file import this module alone, and not that which reads and checks the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

OUTPUTS: Final = ("table", "wide", "json", "jsonl", "csv")
COLORS: Final = ("auto", "always", "never")
NO_PROFILE: Final = "none"
"""The name for `--profile` that stands for no profile."""


def file_path() -> Path:
    """Return the path of the file, which may not exist."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # the XDG specification ignores relative paths
        try:
            base = Path.home() / ".config"
        except RuntimeError:  # this user has no home, so no file either
            base = Path("/nonexistent")
    return base / "ledger-gateway" / "config.toml"

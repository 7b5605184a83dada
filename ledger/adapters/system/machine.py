"""Facts about this machine: new identities, the current boot, the size of a disk."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def new_instance() -> bytes:
    """Return 16 random bytes that are unique in practice."""
    return uuid.uuid4().bytes


def new_instance_id() -> str:
    """Return a random UUID as text."""
    return str(uuid.uuid4())


def boot_id() -> str:
    """Return the id of this boot, or a new id each time if the system has none."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else uuid.uuid4().hex


def disk_bytes(path: Path) -> int:
    """Return the size in bytes of the disk that holds `path`. Raises OSError."""
    state = os.statvfs(path)
    return state.f_blocks * state.f_frsize

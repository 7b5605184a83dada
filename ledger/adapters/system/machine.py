"""What this machine is asked for once: fresh identities, the boot, the size of a disk."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def new_instance() -> bytes:
    """16 bytes that nobody else has."""
    return uuid.uuid4().bytes


def new_instance_id() -> str:
    """A UUID as text."""
    return str(uuid.uuid4())


def boot_id() -> str:
    """Names this boot of the machine; where the system cannot tell, every start is a new one."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else uuid.uuid4().hex


def disk_bytes(path: Path) -> int:
    """Size of the disk that holds `path`. Raises OSError."""
    state = os.statvfs(path)
    return state.f_blocks * state.f_frsize
